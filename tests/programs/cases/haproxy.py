"""HAProxy in the middle: it belongs to the servers' side, and so does what is behind it."""
import signal

from cases import find, nginx, scenario
from scene import check, digest_file

HAPROXY = ("haproxy", "haproxy")

CONFIG = """
global
    maxconn 400
    nbthread {threads}
    {globals}
defaults
    timeout connect 60s
    timeout client 300s
    timeout server 300s
    {splice}
frontend web
    mode http
    bind 127.0.0.1:{web}
    default_backend files
frontend plain
    mode tcp
    bind 127.0.0.1:{plain}
    default_backend streams
backend files
    mode http
    http-reuse always
    server one 127.0.0.1:{behind}
backend streams
    mode tcp
    server one 127.0.0.1:{behind}
"""


def start(scene, behind, threads=2, splice=False):
    """(HAProxy, its port for HTTP, its port for any stream)"""
    web, plain = scene.port(), scene.port()
    config = scene.write("haproxy.cfg", CONFIG.format(
        web=web, plain=plain, behind=behind, threads=threads,
        globals="" if splice else "nosplice", splice="option splice-auto" if splice else ""))
    program = scene.start("server", [find("haproxy"), "-db", "-f", config], plain,
                          stop=signal.SIGUSR1)
    return program, web, plain


def drive(scene, splice):
    scene.inner = True
    port, server, files = nginx.start(scene)
    program, web, plain = start(scene, port, splice=splice)
    names = list(files) * scene.size(2, 20)
    for entry in web, plain:
        check(nginx.fetch(scene, entry, names) == [files[name] for name in names],
              "files differ")
        scene.run("client", ["curl", "-sS", "--fail", "-T", scene.path("files/f5000000"),
                             "http://127.0.0.1:%d/up/new" % entry])
        check(digest_file(scene.path("files/up/new")) == files["f5000000"], "the upload differs")
        for name in "f1000", "f100000":
            _, errors = nginx.load(scene, "http://127.0.0.1:%d/%s" % (entry, name),
                                   scene.size(1, 5))
            check(not errors, "wrk: %s", errors)
    # HAProxy 2.6 sometimes crashes when it frees its tables at the end, without the library too.
    program.stop(good=(0, -signal.SIGSEGV))
    check("Proxy plain stopped" in program.err(), "HAProxy did not come to its end:\n%s",
          program.err())
    if program.process.returncode:
        scene.note("HAProxy crashed after its end")
    server.stop()
    nginx.no_worker_died(scene)


@scenario("haproxy", HAPROXY, nginx.NGINX, nginx.CURL, nginx.WRK, smoke=True)
def proxy(scene):
    """HTTP and plain streams through it."""
    drive(scene, splice=False)
    # Each file crosses two connections, each with two ends.
    scene.expect(2 * 16, 2 * 2 * 2 * 3 * 5_000_000)


@scenario("haproxy-splice", HAPROXY, nginx.NGINX, nginx.CURL, nginx.WRK)
def proxy_splice(scene):
    """With splice between its sockets, of which only the data is judged: what splice moves is
    the kernel's."""
    scene.share_required = False
    drive(scene, splice=True)
