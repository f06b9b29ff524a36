"""lighttpd: files, two processes, and its proxy to itself."""
import os
import re
import signal

import servers
from cases import find, nginx, scenario
from scene import check, digest_file, noise

NEEDS = (("lighttpd", "lighttpd"), ("setsid", "util-linux"), nginx.CURL, nginx.WRK)

CONFIG = """
server.document-root = "{dir}/files"
server.bind = "127.0.0.1"
server.port = {port}
server.errorlog = "{dir}/error.log"
server.network-backend = "{backend}"
server.max-worker = {workers}
server.max-keep-alive-requests = 1000000
server.modules = ( "mod_accesslog", "mod_proxy" )
accesslog.filename = "{dir}/access.log"
accesslog.format = "%s %B"
mimetype.assign = ( "" => "application/octet-stream" )
$SERVER["socket"] == "127.0.0.1:{outer}" {{
    proxy.server = ( "" => (( "host" => "127.0.0.1", "port" => {port} )) )
}}
"""


def start(scene, backend, workers):
    """(port, port of the proxy, program, {file name: digest})"""
    port, outer = scene.port(), scene.port()
    files = {"f%d" % size: digest_file(scene.write("files/f%d" % size, noise(size, size)))
             for size in (1, 1000, 100_000, scene.size(5_000_000, 200_000_000))}
    config = scene.write("lighttpd.conf", CONFIG.format(
        dir=scene.directory, port=port, outer=outer, backend=backend, workers=workers))
    # SIGINT is its graceful end. It sends that on to its whole process group, which must not be ours.
    program = scene.start("server", ["setsid", find("lighttpd"), "-D", "-f", config], outer,
                          stop=signal.SIGINT, name="lighttpd-%d" % len(scene.programs))
    return port, outer, program, files


def end(scene, program):
    workers = set(servers.descendants(program.pid))
    program.stop()
    # It does not wait for them.
    scene.until(lambda: not workers & set(servers.parents()), "processes of lighttpd do not end")
    with open(scene.path("error.log"), encoding="utf-8") as file:
        bad = [line for line in file if not re.search(
            "server (started|stopped)|graceful shutdown|clock jumped", line)]
    check(not bad and not program.complaints(), "lighttpd said:\n%s", "".join(bad[:10]) + program.err())


@scenario("lighttpd", *NEEDS, smoke=True)
def files_of(scene):
    """Each way of sending files, over kept connections and from many clients at once."""
    octets = 0
    for backend in "sendfile", "writev":
        port, _, program, files = start(scene, backend, workers=0)
        names = list(files) * 3
        check(nginx.fetch(scene, port, names) == [files[name] for name in names], "files differ")
        part = scene.run("client", ["curl", "-sS", "--fail", "-r", "70000-99999",
                                    "http://127.0.0.1:%d/f100000" % port])
        check(part == noise(100_000, 100_000)[70000:], "a part differs")
        for name in "f1000", "f100000":
            requests, errors = nginx.load(scene, "http://127.0.0.1:%d/%s" % (port, name), scene.size(1, 3))
            check(not errors, "wrk: %s", errors)
            scene.note("%s by %s: %d requests", name, backend, requests)
        end(scene, program)
        octets += 3 * os.path.getsize(scene.path("files", list(files)[-1]))
    with open(scene.path("access.log"), encoding="utf-8") as file:
        lines = file.read().split("\n")
    # wrk cuts what is under way when it stops.
    bad = [line for line in lines if line not in ("200 1000", "200 100000")]
    check(len(bad) < 4 * 16 + 2 * (2 * 3 + 1) + 2, "%d answers were not whole: %s", len(bad), bad[:20])
    scene.expect(2 * (2 + 4 * 16), int(0.9 * 2 * octets))


@scenario("lighttpd-proxy", *NEEDS)
def proxy(scene):
    """Through two processes to the same two, a connection for each request. It splices what comes from behind into files,
    which only TCP can do."""
    scene.inner = True
    _, outer, program, files = start(scene, "sendfile", workers=2)
    names = list(files) * 2
    check(nginx.fetch(scene, outer, names) == [files[name] for name in names], "files differ")
    _, errors = nginx.load(scene, "http://127.0.0.1:%d/f100000" % outer, scene.size(1, 5), 8)
    check(not errors, "wrk: %s", errors)
    end(scene, program)
    octets = 2 * os.path.getsize(scene.path("files", list(files)[-1]))
    scene.expect(2 * (1 + 8), int(0.9 * 2 * octets))
