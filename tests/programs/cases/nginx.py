"""nginx: files by sendfile, keep-alive, uploads, its proxy, reloads under load."""
import os
import re
import signal
import subprocess

from cases import find, scenario
from scene import check, digest_file, noise

NGINX = ("nginx", "nginx-light")
CURL = ("curl", "curl")
WRK = ("wrk", "wrk")

CONFIG = """
daemon off; pid {dir}/nginx.pid; error_log {dir}/error.log notice; worker_processes 2; {user}
events {{ worker_connections 512; }}
http {{
    access_log {dir}/access.log; sendfile {sendfile}; tcp_nopush on; keepalive_requests 100000;
    client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy; fastcgi_temp_path {dir}/fcgi;
    uwsgi_temp_path {dir}/uwsgi; scgi_temp_path {dir}/scgi; client_max_body_size 0;
    types {{ }} default_type application/octet-stream;
    upstream inner {{ server 127.0.0.1:{inner}; keepalive 8; }}
    server {{
        listen 127.0.0.1:{port} backlog=512; root {dir}/files;
        location /up/ {{ dav_methods PUT DELETE; }}
        location /proxy/ {{ proxy_pass http://inner/; proxy_http_version 1.1;
                            proxy_set_header Connection ""; }}
    }}
    server {{ listen 127.0.0.1:{inner} backlog=512; root {dir}/files;
              location /up/ {{ dav_methods PUT DELETE; }} }}
}}
"""


def start(scene, sendfile="on", sizes=(1000, 100_000, 5_000_000)):
    """The port, the program, {file name: digest}"""
    port, inner = scene.port(), scene.port()
    files = {}
    for size in sizes:
        files["f%d" % size] = digest_file(scene.write("files/f%d" % size, noise(size, size)))
    os.makedirs(scene.path("files/up"))
    user = "user root;" if os.getuid() == 0 else ""
    config = scene.write("nginx.conf", CONFIG.format(
        dir=scene.directory, port=port, inner=inner, sendfile=sendfile, user=user))
    program = scene.start("server", [find("nginx"), "-p", scene.directory, "-e",
                                     scene.path("error.log"), "-c", config], port,
                          stop=signal.SIGQUIT)
    return port, program, files


def no_worker_died(scene):
    with open(scene.path("error.log"), encoding="utf-8") as file:
        bad = [line for line in file if re.search(r"\[(alert|emerg|crit)\]|signal \d+ \(core|"
                                                  r"exited on signal", line)]
    check(not bad, "nginx logged:\n%s", "".join(bad[:10]))


def fetch(scene, port, names, prefix="", more=(), user=None):
    """All in one connection; their digests."""
    words = ["curl", "-sS", "--fail", *more]
    for number, name in enumerate(names):
        words += ["-o", scene.path("got%d" % number),
                  "http://127.0.0.1:%d/%s%s" % (port, prefix, name)]
    scene.run("client", words, user=user)
    return [digest_file(scene.path("got%d" % number)) for number in range(len(names))]


def load(scene, url, seconds, connections=16):
    """wrk's requests, and its complaints."""
    out = scene.run("client", ["wrk", "-t2", "-c%d" % connections, "-d%d" % seconds,
                               "--timeout", "60", url]).decode()
    requests = int(re.search(r"(\d+) requests in", out)[1])
    check(requests > 0, "wrk made no request:\n%s", out)
    check("Non-2xx" not in out, "wrk got errors:\n%s", out)
    return requests, "".join(line for line in out.splitlines() if "Socket errors" in line)


@scenario("nginx-files", NGINX, CURL)
def files_by_curl(scene):
    """Files of all sizes over one kept connection; a part; an upload."""
    big = scene.size(5_000_000, 300_000_000)
    port, program, files = start(scene, sizes=(1, 1000, 100_000, big))
    names = list(files) * 3
    got = fetch(scene, port, names)
    check(got == [files[name] for name in names], "files differ")
    part = scene.run("client", ["curl", "-sS", "--fail", "-r", "70000-99999",
                                "http://127.0.0.1:%d/f100000" % port])
    check(part == noise(100_000, 100_000)[70000:], "a part differs")
    scene.run("client", ["curl", "-sS", "--fail", "-T", scene.path("files/f%d" % big),
                         "http://127.0.0.1:%d/up/new" % port])
    check(digest_file(scene.path("files/up/new")) == files["f%d" % big], "the upload differs")
    program.stop()
    no_worker_died(scene)
    scene.expect(2 * 2, int(0.9 * 2 * 4 * big))


@scenario("nginx-no-sendfile", NGINX, CURL)
def files_by_write(scene):
    """The same files by write and writev."""
    port, program, files = start(scene, sendfile="off")
    names = list(files) * scene.size(3, 30)
    check(fetch(scene, port, names) == [files[name] for name in names], "files differ")
    program.stop()
    no_worker_died(scene)
    scene.expect(2, 5_000_000 * 2 * 2)


@scenario("nginx-slow-reader", NGINX, CURL)
def slow_reader(scene):
    """A client that takes its time, so that the server's buffers are full for long. Small files come
    first: what is in TCP's buffers before the client finds the lane would be a large share of one."""
    big = scene.size(20_000_000, 60_000_000)  # more than the kernel's buffers hold
    port, program, files = start(scene, sizes=(1000, big))
    names = ["f1000"] * 30 + ["f%d" % big]
    got = fetch(scene, port, names, more=["--limit-rate", str(big // 2)])
    check(got == [files[name] for name in names], "the files differ")
    program.stop()
    no_worker_died(scene)
    scene.expect(2, big // 2)


@scenario("nginx-wrk", NGINX, WRK, smoke=True)
def wrk(scene):
    """Many connections, small and middle files, each request answered whole."""
    port, program, _ = start(scene)
    for name, size in ("f1000", 1000), ("f100000", 100_000):
        requests, errors = load(scene, "http://127.0.0.1:%d/%s" % (port, name),
                                scene.size(1, 10))
        check(not errors, "wrk: %s", errors)
        scene.note("%d requests for %d bytes", requests, size)
    program.stop()
    no_worker_died(scene)
    with open(scene.path("access.log"), encoding="utf-8") as file:
        lines = file.read().splitlines()
    # Requests that were under way when wrk stopped may have been cut.
    bad = [line for line in lines if " 200 1000 " not in line and " 200 100000 " not in line]
    check(len(bad) <= 32, "%d answers were not whole, the first: %s", len(bad),
          bad[0] if bad else "")
    scene.expect(2 * 32, len(lines) * 1000)


@scenario("nginx-proxy", NGINX, WRK, CURL)
def proxy(scene):
    """Through nginx to itself: both ends of the inner connections are servers."""
    scene.inner = True
    port, program, files = start(scene)
    names = list(files) * 2
    check(fetch(scene, port, names, "proxy/") == [files[name] for name in names], "files differ")
    scene.run("client", ["curl", "-sS", "--fail", "-T", scene.path("files/f5000000"),
                         "http://127.0.0.1:%d/proxy/up/new" % port])
    check(digest_file(scene.path("files/up/new")) == files["f5000000"], "the upload differs")
    _, errors = load(scene, "http://127.0.0.1:%d/proxy/f100000" % port, scene.size(1, 10))
    check(not errors, "wrk: %s", errors)
    program.stop()
    no_worker_died(scene)
    scene.expect(2 * 16, 2 * 2 * 2 * 5_000_000)


@scenario("nginx-reload", NGINX, WRK, CURL)
def reload_under_load(scene):
    """New workers take over several times while clients are served; no file is damaged."""
    port, program, files = start(scene)
    first = set(workers(program.pid))
    seconds = scene.size(3, 20)
    wrk_run = scene.start("client", ["wrk", "-t2", "-c16", "-d%d" % seconds, "--timeout", "60",
                                     "http://127.0.0.1:%d/f100000" % port], name="wrk")
    while wrk_run.process.poll() is None:
        names = list(files) * 2
        check(fetch(scene, port, names) == [files[name] for name in names], "files differ")
        os.kill(program.pid, signal.SIGHUP)
    check(wrk_run.wait() == 0, "wrk failed")
    out = wrk_run.out().decode()
    # A kept connection may be closed by the old worker just when wrk uses it; wrk counts that.
    check("Non-2xx" not in out and " 0 requests" not in out, "wrk said:\n%s", out)
    scene.until(lambda: len(workers(program.pid)) == 2, "old workers do not end")
    check(not first & set(workers(program.pid)), "the workers are still the first ones")
    program.stop()
    no_worker_died(scene)
    scene.expect(2 * 16, 5_000_000)


def workers(master):
    done = subprocess.run(["ps", "--ppid", str(master), "-o", "pid="], capture_output=True,
                          text=True, check=False)
    return [int(word) for word in done.stdout.split()]
