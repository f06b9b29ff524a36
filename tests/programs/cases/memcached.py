"""memcached with several threads: libmemcached's load, which compares what it gets, and a client of ours."""
import os
import re

from cases import scenario
from scene import PYTHON, check

SERVER = ("memcached", "memcached")
LOAD = ("memcaslap", "libmemcached-tools")
CLIENT = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "cache.py")
THREADS = 4


def start(scene):
    """With room for all that comes: memcaslap takes what was thrown out for damaged."""
    port = scene.port()
    words = ["memcached", "-t", str(THREADS), "-l", "127.0.0.1", "-p", str(port), "-U", "0", "-m", "1024"]
    return port, scene.start("server", words + (["-u", "root"] if os.getuid() == 0 else []), port)


def load(scene, port, count, *words):
    out = scene.run("client", ["memcaslap", "-s", "127.0.0.1:%d" % port, "-T", "2", "-c", "16", "-x",
                               str(count), "-v", "1.0", *words]).decode()
    found = dict(re.findall(r"^(\w+): (\d+)$", out, re.MULTILINE))
    check(int(found["cmd_get"]) + int(found["cmd_set"]) == count
          and {found[name] for name in ("get_misses", "verify_misses", "verify_failed")} == {"0"},
          "memcaslap said:\n%s", out)


@scenario("memcached", SERVER, LOAD, (PYTHON, "python3"), smoke=True)
def memcached(scene):
    """Both protocols, several keys in one question, and threads that count together."""
    port, server = start(scene)
    count = scene.size(10_000, 500_000)
    for words in [], ["-B"], ["-d", "20"]:
        load(scene, port, count, *words)
    connections, rounds = 3, scene.size(20, 300)
    out = scene.run("client", [PYTHON, CLIENT, str(port), str(THREADS), str(connections), str(rounds)])
    check(out.decode().strip() == str(THREADS * rounds * 6), "the client said: %s", out.decode())
    server.stop()
    # Each value of ours goes there and back; on average they have 168 thousand octets.
    scene.expect(2 * (3 * 16 + THREADS * connections), 2 * 2 * THREADS * rounds * 6 * 150_000)
