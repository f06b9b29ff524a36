"""Java from Debian: sockets with threads and with a selector, and the JDK's web server."""
import os
import subprocess

from cases import nginx, scenario
from scene import HANG, check, digest_file, noise

NEEDS = (("java", "default-jre-headless"), ("javac", "default-jdk-headless"))
SOURCES = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# On two cores the collector's and the compiler's threads are the most of a small program.
JAVA = ["java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
ENDED = 143  # Java's status after SIGTERM


def compile_source(scene, name):
    subprocess.run(["javac", "-d", scene.path("classes"), os.path.join(SOURCES, name)], check=True,
                   timeout=HANG)
    return JAVA + ["-cp", scene.path("classes")]


def drive(scene, server_kind, client_kind, words):
    port = scene.port()
    server = scene.start("server", words + ["Echo", "server", server_kind, str(port)], port)
    count, size = scene.size(10, 50), scene.size(1_000_000, 10_000_000)
    out = scene.run("client", words + ["Echo", "client", client_kind, str(port), str(count),
                                       str(size)])
    check(out.decode().strip() == str(count), "%s of %d connections were right\n%s",
          out.decode().strip(), count, scene.last_error + server.err())
    server.stop(good=(ENDED,))
    check(not server.complaints(), "the server said:\n%s", server.err())
    return count, count * size


@scenario("java-echo", *NEEDS)
def echo(scene):
    """All four pairs of blocking and selecting ends."""
    words = compile_source(scene, "Echo.java")
    count = octets = 0
    kinds = ("threads", "selector")
    for server in kinds:
        for client in kinds:
            if scene.quick and server == client == "selector":
                continue
            more, bytes_more = drive(scene, server, client, words)
            count, octets = count + more, octets + bytes_more
    scene.expect(2 * count, int(0.8 * 2 * 2 * octets))


@scenario("java-http", *NEEDS, nginx.CURL, nginx.WRK)
def http(scene):
    """The JDK's web server, with curl and wrk."""
    words = compile_source(scene, "Files.java")
    sizes = (1000, 100_000, scene.size(5_000_000, 200_000_000))
    files = {"f%d" % size: digest_file(scene.write("files/f%d" % size, noise(size, size)))
             for size in sizes}
    port = scene.port()
    server = scene.start("server", words + ["Server", str(port), scene.path("files")], port)
    names = list(files) * 3
    check(nginx.fetch(scene, port, names) == [files[name] for name in names], "files differ")
    _, errors = nginx.load(scene, "http://127.0.0.1:%d/f1000" % port, scene.size(1, 10))
    check(not errors, "wrk: %s", errors)
    server.stop(good=(ENDED,))
    scene.expect(2 * 16, int(0.9 * 2 * 3 * sizes[2]))
