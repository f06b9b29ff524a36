"""Apache with its event MPM: one thread waits for all connections and gives them to others; ab and curl."""
import os
import re
import signal

import servers
from cases import find, nginx, scenario
from scene import Skip, check, digest_file, noise

NEEDS = (("apache2", "apache2-bin"), ("ab", "apache2-utils"), ("setsid", "util-linux"), nginx.CURL)
USER = "www-data"  # its workers refuse to be root

CONFIG = """
ServerRoot /usr/lib/apache2
DefaultRuntimeDir {dir}
PidFile {dir}/pid
ServerName localhost
Listen 127.0.0.1:{port}
Listen 127.0.0.1:{outer}
LoadModule mpm_event_module modules/mod_mpm_event.so
LoadModule authz_core_module modules/mod_authz_core.so
LoadModule dav_module modules/mod_dav.so
LoadModule dav_fs_module modules/mod_dav_fs.so
LoadModule proxy_module modules/mod_proxy.so
LoadModule proxy_http_module modules/mod_proxy_http.so
ServerLimit 2
StartServers 2
ThreadLimit 40
ThreadsPerChild 40
MaxRequestWorkers 80
MinSpareThreads 1
MaxSpareThreads 80
MaxKeepAliveRequests 0
KeepAliveTimeout 60
EnableSendfile {sendfile}
EnableMMAP {mmap}
DocumentRoot {dir}/files
DavLockDB {dir}/locks
ErrorLog {dir}/error.log
LogLevel warn
LogFormat "%m %s %B"
TransferLog {dir}/access.log
<Directory {dir}/files/up>
    Dav On
</Directory>
<VirtualHost 127.0.0.1:{outer}>
    ProxyPass / http://127.0.0.1:{port}/
</VirtualHost>
"""


def start(scene, mmap="on", sendfile="off"):
    """(port, port of the proxy, program, {file name: digest})"""
    if not servers.known(USER):
        raise Skip("no user " + USER)
    port, outer = scene.port(), scene.port()
    files = {"f%d" % size: digest_file(scene.write("files/f%d" % size, noise(size, size)))
             for size in (1, 1000, 100_000, scene.size(5_000_000, 200_000_000))}
    os.makedirs(scene.path("files/up"), exist_ok=True)
    servers.give(USER, scene.directory, scene.path("files/up"))
    config = scene.write("apache.conf", CONFIG.format(
        dir=scene.directory, port=port, outer=outer, mmap=mmap, sendfile=sendfile))
    # It ends its whole process group, which must not be ours. SIGWINCH is its graceful end: at the other one it takes
    # connections away from its threads, and crashes if one of them has freed what it looks at.
    program = scene.start("server", ["setsid", find("apache2"), "-DFOREGROUND", "-f", config], outer,
                          stop=signal.SIGWINCH, name="apache-%d" % len(scene.programs), user=USER)
    return port, outer, program, files


def end(scene, program):
    program.stop()
    with open(scene.path("error.log"), encoding="utf-8") as file:
        bad = [line for line in file if re.search(r":(error|crit|alert|emerg)\]|exit signal", line)]
    check(not bad, "Apache said:\n%s", "".join(bad[:10]))


def load(scene, port, name, count, *words):
    """ab counts what it gets; the first answer's length is what all others must have."""
    out = scene.run("client", ["ab", "-q", "-n", str(count), "-c", "16", *words,
                               "http://127.0.0.1:%d/%s" % (port, name)], user=USER).decode()
    found = dict(re.findall(r"^([\w -]+): +(\d+)", out, re.MULTILINE))
    check(found["Complete requests"] == str(count) and found["Failed requests"] == "0"
          and "Non-2xx responses" not in found and found["Document Length"] == name[1:]
          and int(found["HTML transferred"]) == count * int(name[1:]), "ab said:\n%s", out)


def curl(scene, *words):
    return scene.run("client", ["curl", "-sS", "--fail", *words], user=USER)


@scenario("apache", *NEEDS, smoke=True)
def files_of(scene):
    """Each way of sending files, an upload, kept connections and one for each request."""
    requests, octets, times = 0, 0, scene.size(1, 20)
    for mmap, sendfile in ("on", "off"), ("off", "on"), ("off", "off"):
        port, _, program, files = start(scene, mmap, sendfile)
        names = list(files) * 3
        check(nginx.fetch(scene, port, names, user=USER) == [files[name] for name in names], "files differ")
        big = list(files)[-1]
        curl(scene, "-T", scene.path("files", big), "http://127.0.0.1:%d/up/new" % port)
        check(digest_file(scene.path("files/up/new")) == files[big], "the upload differs")
        load(scene, port, "f1000", 2000 * times, "-k")
        load(scene, port, "f100000", 500 * times, "-k")
        load(scene, port, "f1000", 500 * times)
        end(scene, program)
        os.remove(scene.path("files/up/new"))
        requests += len(names) + 3000 * times
        octets += 4 * int(big[1:]) + 2000 * times * 1000 + 500 * times * 100_000
    with open(scene.path("access.log"), encoding="utf-8") as file:
        lines = file.read().splitlines()
    good = [line for line in lines if re.fullmatch(r"GET 200 \d+", line)]
    check(len(good) == requests, "%d of %d files were sent whole", len(good), requests)
    check(len(lines) == requests + 3, "there were %d requests, not %d", len(lines), requests + 3)
    # One may end before both ends have agreed: a thread was just in another call with its number.
    scene.expect(2 * 3 * (2 + 16 + 16) - 4, int(0.9 * 2 * octets))


@scenario("apache-proxy", *NEEDS)
def proxy(scene):
    """Through its proxy to itself; the inner connections are kept, and both their ends are servers."""
    scene.inner = True
    _, outer, program, files = start(scene)
    names = list(files) * 2
    check(nginx.fetch(scene, outer, names, user=USER) == [files[name] for name in names], "files differ")
    big = list(files)[-1]
    curl(scene, "-T", scene.path("files", big), "http://127.0.0.1:%d/up/new" % outer)
    check(digest_file(scene.path("files/up/new")) == files[big], "the upload differs")
    # Each request has two of its threads.
    count = scene.size(500, 20_000)
    out = scene.run("client", ["ab", "-q", "-k", "-n", str(count), "-c", "6",
                               "http://127.0.0.1:%d/f100000" % outer], user=USER).decode()
    check(re.search(r"Complete requests: +%d\nFailed requests: +0\n" % count, out), "ab said:\n%s", out)
    end(scene, program)
    scene.expect(2 * (2 + 6) - 1, int(0.9 * 2 * 2 * (3 * int(big[1:]) + count * 100_000)))
