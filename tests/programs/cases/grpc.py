"""gRPC from Python: HTTP/2 with its own event loop, many calls at once over few connections."""
import os
import subprocess

from cases import scenario
from scene import PYTHON, Skip, check

SOURCE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "rpc.py")


@scenario("grpc", (PYTHON, "python3"), smoke=True)
def grpc(scene):
    """Calls of all four kinds, by threads that share channels."""
    if subprocess.run([PYTHON, "-c", "import grpc"], stderr=subprocess.DEVNULL, check=False).returncode:
        raise Skip("install python3-grpcio")
    port = scene.port()
    server = scene.start("server", [PYTHON, SOURCE, "server", str(port)], port)
    channels, threads, rounds = 3, 6, scene.size(4, 100)
    out = scene.run("client", [PYTHON, SOURCE, "client", str(port), str(channels), str(threads), str(rounds)])
    check(out.decode().strip() == str(4 * threads * rounds), "the client said: %s\n%s", out.decode(),
          scene.last_error)
    server.stop()
    check(not server.complaints(), "the server said:\n%s", server.err())
    # In every six calls a message of a million octets goes there once, and comes back 21 times.
    scene.expect(2 * channels, int(0.9 * 2 * 22 * 1_000_000 * rounds))
