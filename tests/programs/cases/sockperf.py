"""sockperf: ping-pong and load by TCP, its own check of the content switched on."""
import re
import signal

from cases import scenario
from scene import check

SOCKPERF = ("sockperf", "sockperf")


def drive(scene, kind, *words, server=()):
    port = scene.port()
    address = ["--tcp", "-i", "127.0.0.1", "-p", str(port)]
    program = scene.start("server", ["sockperf", "server", *address, *server], port,
                          stop=signal.SIGINT)
    out = scene.run("client", ["sockperf", kind, *address, "-t", str(scene.size(1, 10)),
                               *words]).decode()
    program.stop()
    sent = re.findall(r"SentMessages=(\d+); ReceivedMessages=(\d+)", out) or re.findall(
        r"Total of (\d+) (messages) sent", out)
    dropped = re.search(r"# dropped messages = (\d+); # duplicated messages = (\d+); "
                        r"# out-of-order messages = (\d+)", out)
    check(sent and int(sent[0][0]) > 100, "sockperf said:\n%s", out)
    if dropped:
        check(dropped.groups() == ("0", "0", "0"), "sockperf said:\n%s", out)
    return sent[0]


@scenario("sockperf-ping-pong", SOCKPERF)
def ping_pong(scene):
    """One message at a time, of two sizes, each compared with what was sent."""
    octets = 0
    for size in 14, 4000:
        # Its list of time stamps has room for 600,000 round trips a second, which is not enough.
        count = int(drive(scene, "ping-pong", "-m", str(size), "--mps", "300000", "--data-integrity")[1])
        octets += count * size * 2 * 2
        scene.note("%d round trips of %d bytes", count, size)
    scene.expect(2 * 2, int(0.9 * octets))


@scenario("sockperf-load", SOCKPERF)
def under_load(scene):
    """Many messages under way, with answers; and one way."""
    sent, received = drive(scene, "under-load", "-m", "200", "--mps", "20000", "--reply-every",
                           "1")
    scene.note("%s sent, %s answered", sent, received)
    drive(scene, "throughput", "-m", "1000")
    scene.expect(2 * 2, 1_000_000)


@scenario("sockperf-epoll", SOCKPERF)
def epoll(scene):
    """The server waits by epoll, the client does not block."""
    feed = scene.write("feed", "")
    ports = [scene.port() for _ in range(4)]
    with open(feed, "w", encoding="ascii") as file:
        file.writelines("T:127.0.0.1:%d\n" % port for port in ports)
    program = scene.start("server", ["sockperf", "server", "-f", feed, "-F", "e"], ports[-1],
                          stop=signal.SIGINT)
    out = scene.run("client", ["sockperf", "ping-pong", "-f", feed, "-F", "e", "-t",
                               str(scene.size(1, 10)), "-m", "100"]).decode()
    check(re.search(r"ReceivedMessages=\d{3}", out), "sockperf said:\n%s", out)
    program.stop()
    scene.expect(2 * 4, 10_000)
