"""Node.js: its web server with curl and wrk, and plain sockets with a client of its own.

Debian's, and one with a current libuv, which changes its poll set through io_uring.
"""
import glob
import os

from cases import nginx, scenario
from scene import check, digest_file, noise

PROGRAMS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TOP = os.path.dirname(os.path.dirname(PROGRAMS))
SOURCE = os.path.join(PROGRAMS, "echo.js")
CURRENT = os.path.join(TOP, "build/node")


def has_ring(pid):
    for link in glob.glob("/proc/%d/fd/*" % pid):
        try:
            if "io_uring" in os.readlink(link):
                return True
        except OSError:
            pass  # closed meanwhile
    return False


def serve(scene, node):
    web, echo = scene.port(), scene.port()
    sizes = (1000, 100_000, scene.size(5_000_000, 200_000_000))
    files = {"f%d" % size: digest_file(scene.write("files/f%d" % size, noise(size, size)))
             for size in sizes}
    server = scene.start("server", [node, SOURCE, "server", str(web), str(echo), scene.path("files")], echo)
    scene.note("io_uring: %s", "used" if has_ring(server.pid) else "not used")
    names = list(files) * 3
    check(nginx.fetch(scene, web, names) == [files[name] for name in names], "files differ")
    scene.run("client", ["curl", "-sS", "--fail", "-T", scene.path("files/f%d" % sizes[2]),
                         "http://127.0.0.1:%d/new" % web])
    check(digest_file(scene.path("files/new")) == files["f%d" % sizes[2]], "the upload differs")
    _, errors = nginx.load(scene, "http://127.0.0.1:%d/f1000" % web, scene.size(1, 10))
    check(not errors, "wrk: %s", errors)
    count, size = scene.size(10, 50), scene.size(1_000_000, 20_000_000)
    out = scene.run("client", [node, SOURCE, "client", str(echo), str(count), str(size)])
    check(out.decode().strip() == str(count), "%s of %d connections were right\n%s",
          out.decode().strip(), count, scene.last_error + server.err())
    server.stop()
    check(not server.complaints(), "the server said:\n%s", server.err())
    scene.expect(2 * (count + 16), int(0.8 * 2 * (2 * count * size + 4 * sizes[2])))


@scenario("node", ("node", "nodejs"), nginx.CURL, nginx.WRK, smoke=True)
def debian(scene):
    serve(scene, "node")


@scenario("node-current", (CURRENT, "it by scripts/fetch-node"), nginx.CURL, nginx.WRK, smoke=True)
def current(scene):
    """Where the kernel does not let it use io_uring it is like the other; a note says so."""
    version = scene.run(None, [CURRENT, "-p", "process.version + ', libuv ' + process.versions.uv"])
    scene.note("Node.js %s", version.decode().strip())
    serve(scene, CURRENT)
