"""Python's http.server, with curl and with urllib; a connection per request and kept ones."""
import signal

from cases import nginx, scenario
from scene import PYTHON, check, digest_file, noise

NEEDS = ((PYTHON, "python3"), nginx.CURL)

FETCH = """
import hashlib, sys, threading, urllib.request
def fetch(url, count, expected):
    for _ in range(count):
        with urllib.request.urlopen(url, timeout=100) as answer:
            got = hashlib.sha256(answer.read()).hexdigest()
        if got != expected:
            print(url, 'differs')
url, count, expected, threads = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
all = [threading.Thread(target=fetch, args=(url, count, expected)) for _ in range(threads)]
for one in all: one.start()
for one in all: one.join()
print('done')
"""


@scenario("python-http", *NEEDS)
def serve(scene):
    port = scene.port()
    sizes = (1000, 1_000_000, scene.size(5_000_000, 100_000_000))
    files = {"f%d" % size: digest_file(scene.write("files/f%d" % size, noise(size, size)))
             for size in sizes}
    for protocol in "HTTP/1.0", "HTTP/1.1":
        server = scene.start("server", [PYTHON, "-m", "http.server", "-b", "127.0.0.1", "-p",
                                        protocol, "-d", scene.path("files"), str(port)], port,
                             stop=signal.SIGINT)
        names = list(files) * 3
        check(nginx.fetch(scene, port, names) == [files[name] for name in names], "files differ")
        out = scene.run("client", [PYTHON, "-c", FETCH, "http://127.0.0.1:%d/f1000000" % port,
                                   str(scene.size(5, 50)), files["f1000000"], "4"])
        check(out == b"done\n", "a client said: %s", out)
        server.stop()
    # A megabyte fits into the kernel's buffers: its sender may be done before it is received.
    scene.expect(2 * (3 + 1), sizes[2])
