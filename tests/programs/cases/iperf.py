"""iperf3: streams one way, the other, both at once, and eight side by side."""
import json
import re

from cases import scenario
from scene import check

IPERF = ("iperf3", "iperf3")
BUFFERED = 64_000_000  # more than the kernel keeps for eight streams


def drive(scene, *words, server=()):
    """One test; its report as a dictionary."""
    port = scene.port()
    program = scene.start("server", ["iperf3", "-s", "-1", "-B", "127.0.0.1", "-p", str(port),
                                     *server], port)
    out = scene.run("client", ["iperf3", "-c", "127.0.0.1", "-p", str(port), "-J", *words])
    check(program.wait() == 0, "the server failed:\n%s", program.err())
    return json.loads(out)


def moved(report, words, octets):
    """Both ends must agree on what was moved, as far as iperf3 can know: the receiver counts
    what it had read when the test ended, and a sender's last buffers are still under way."""
    end = report["end"]
    sums = [("sum_sent", "sum_received")]
    if "--bidir" in words:
        sums.append(("sum_sent_bidir_reverse", "sum_received_bidir_reverse"))
    for sent, received in sums:
        sent, received = end[sent]["bytes"], end[received]["bytes"]
        check(sent >= octets, "%d bytes were sent, not %d", sent, octets)
        check(sent - BUFFERED <= received <= sent, "%d bytes were sent, %d received",
              sent, received)


def enter(name, *words, quick=100_000_000, full=5_000_000_000):
    @scenario("iperf3-" + name, IPERF)
    def play(scene):
        octets = scene.size(quick, full)
        # With --bidir either direction ends the test; the other has moved less by then.
        report = drive(scene, "-n", str(octets), *words)
        moved(report, words, 0 if "--bidir" in words else octets)
        streams = 8 if "-P" in words else 2 if "--bidir" in words else 1
        scene.expect(2 * streams, int(0.9 * octets))
    return play


enter("forward")
enter("reverse", "-R")
enter("bidir", "--bidir")
enter("parallel", "-P", "8")
enter("zerocopy", "-Z")
enter("small", "-l", "100", quick=5_000_000, full=200_000_000)


# What a sender makes of the digits: it starts over at 0 with each block, and after a short write.
RUNS = re.compile(b"(?:0(?:1(?:2(?:3(?:4(?:5(?:6(?:7(?:89?)?)?)?)?)?)?)?)?)*")


@scenario("iperf3-content", IPERF)
def content(scene):
    """The receiver writes what it gets to a file: digits, counting up. (Sending a file would be
    better, but iperf3 loses its place in it after a short write.)"""
    octets = scene.size(50_000_000, 500_000_000)
    for reverse in False, True:
        got = scene.path("got%d" % reverse)
        words = ["--repeating-payload", "-n", str(octets)]
        if reverse:
            drive(scene, "-R", "-F", got, *words)
        else:
            drive(scene, *words, server=["-F", got])
        with open(got, "rb") as arrived:
            back = arrived.read()
        check(octets - BUFFERED <= len(back) and len(back) > 0, "only %d of %d bytes arrived",
              len(back), octets)
        odd = [part for part in set(back.split(b"0123456789")) if not RUNS.fullmatch(part)]
        check(not odd, "the digits are out of order: %s", odd[:5])
    scene.expect(2 * 2, octets)
