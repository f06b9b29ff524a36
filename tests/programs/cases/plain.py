"""Plain peers: what a program with the library does to a connection whose other end has none.

Nothing, says the capture: the same segments as without the library. And next to nothing, says
strace: a constant number of calls, none per message.
"""
import os
import re
import subprocess

import exchange
import shm
import sniffer
from cases import scenario
from scene import PYTHON, Failure, Skip, check

PROGRAMS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
EXCHANGE = [PYTHON, os.path.join(PROGRAMS, "exchange.py")]
PAUSE = "0.1"  # between connect and the first question, so that a hidden talk would be seen
ROUNDS, BULK = 300, 1_000_000
STRACE = ("strace", "strace")
# How many calls a connection with a plain peer may cost in all: looking for the other end.
CONSTANT = 400


def enter_namespace(scene, function):
    """Runs `function(scene)` of this module in a network namespace of its own, in a child."""
    if os.getuid() != 0:
        raise Skip("needs root for a network namespace")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        text = ""
        try:
            if hasattr(os, "unshare"):
                os.unshare(os.CLONE_NEWNET)
            else:
                import ctypes  # pylint: disable=import-outside-toplevel
                check(ctypes.CDLL(None).unshare(0x40000000) == 0, "no network namespace")
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
            # What others have left on the notice board would be looked at, with a call each.
            shm.make_private()
            text = "\n".join(function(scene) or [])
        except Failure as why:
            text = "FAILED\n%s" % why
        except BaseException as why:  # pylint: disable=broad-except
            text = "FAILED\n%r" % why
        os.write(writer, text.encode()[:60000])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8", errors="replace") as file:
        text = file.read()
    os.waitpid(child, 0)
    check(not text.startswith("FAILED"), "%s", text[7:])
    for line in text.splitlines():
        scene.note("%s", line)


def converse(scene, sides, kind, rounds, bulk=0, before=(), users=(None, None)):
    """One exchange, the given sides having the library. Returns (port, outputs)."""
    port = scene.port()
    programs, outputs = [], []
    for side, user in zip(("server", "client"), users):
        scene.mode = "both" if side in sides else "native"
        words = [*(before if side in sides else ()), *EXCHANGE, side, str(port), kind, PAUSE,
                 str(rounds), str(bulk)]
        programs.append(scene.start(side, words, port if side == "server" else None,
                                    name="%s-%d" % (side, len(scene.programs)), user=user))
    scene.mode = "both"
    for program in reversed(programs):
        check(program.wait() == 0, "%s failed\n%s", program.name, program.err())
        outputs.append(program.out().decode().strip())
    return port, outputs


# ---- captures ----

def capture(scene, sides, kind, bulk, users):
    sniff = sniffer.Sniffer()
    try:
        port, _ = converse(scene, sides, kind, ROUNDS, bulk, users=users)
    finally:
        segments, foreign, drops = sniff.finish()
    check(drops == 0, "the capture lost %d packets", drops)
    check(not foreign, "%d packets that are no TCP", len(foreign))
    others = [s for s in segments if port not in (s.source, s.target)]
    check(not others, "segments of other connections: %s", others[:3])
    clients = {s.source if s.target == port else s.target for s in segments}
    check(len(clients) == 1, "%d connections, not one", len(clients))
    return port, segments


def shape(port, segments):
    """What must not change: segments until the first payload, payloads in order, SYNs, ends."""
    first = next(i for i, s in enumerate(segments) if s.payload)
    return {
        "segments before the first payload": [
            ("to" if s.target == port else "from", s.flags) for s in segments[:first]],
        "payloads of the rounds": [
            ("to" if s.target == port else "from", len(s.payload))
            for s in segments if s.payload][:2 * ROUNDS],
        "SYN segments": sum(bool(s.flags & sniffer.SYN) for s in segments),
        "FIN segments": sum(bool(s.flags & sniffer.FIN) for s in segments),
        "RST segments": sum(bool(s.flags & sniffer.RST) for s in segments),
        "octets to the server": sniffer.stream(segments, False, port),
        "octets from the server": sniffer.stream(segments, True, port),
    }


def compare_captures(scene):
    expected = exchange.streams(ROUNDS, BULK)
    lines = []
    for kind in ("block", "epoll") if scene.quick else ("block", "select", "poll", "epoll"):
        native = shape(*capture(scene, (), kind, BULK, (None, None)))
        check((native["octets to the server"], native["octets from the server"]) == expected,
              "the capture without the library is not what was said")
        check(native["segments before the first payload"] == [
            ("to", sniffer.SYN), ("from", sniffer.SYN | sniffer.ACK), ("to", sniffer.ACK)],
            "odd start: %s", native["segments before the first payload"])
        for name, sides, users in (
                ("server", ("server",), (None, None)), ("client", ("client",), (None, None)),
                ("both of two users", ("server", "client"), ("nobody", None))):
            seen = shape(*capture(scene, sides, kind, BULK, users))
            wrong = [key for key in native if native[key] != seen[key]]
            check(not wrong, "%s, library on %s: %s differ:\nnative %s\nseen   %s", kind, name,
                  wrong, *(str(shape_[key])[:500] for key in wrong[:1]
                           for shape_ in (native, seen)))
            lines.append("%s, library on %s: %d segments with payload in the rounds, %d + %d "
                         "bytes, as without" % (kind, name, len(seen["payloads of the rounds"]),
                                                *map(len, expected)))
    return lines


@scenario("plain-capture", (PYTHON, "python3"), ("ip", "iproute2"), alone=True)
def captures(scene):
    scene.plain, scene.share_required = True, False
    enter_namespace(scene, compare_captures)


# ---- system calls ----

def count_calls(path):
    """{call: number} from strace -c"""
    counts = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            match = re.match(r"\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+)\s+(?:\d+\s+)?(\w+)$", line)
            if match and match[2] != "total":
                counts[match[2]] = int(match[1])
    return counts


def trace(scene, side, library, kind, rounds):
    path = scene.path("calls")
    before = ["strace", "-f", "-c", "-o", path]
    saved = scene.library
    try:
        if not library:
            scene.library = ""
        converse(scene, (side,), kind, rounds, before=before)
    finally:
        scene.library = saved
    return count_calls(path)


def difference(more, less):
    names = set(more) | set(less)
    return {name: more.get(name, 0) - less.get(name, 0) for name in names
            if more.get(name, 0) != less.get(name, 0)}


def compare_calls(scene):
    # Both below the 256 KiB after which the peer is looked for again.
    few, many = 200, scene.size(700, 1100)
    lines = []
    for kind in ("block", "epoll") if scene.quick else ("block", "select", "poll", "epoll"):
        for side in "server", "client":
            plain = [trace(scene, side, False, kind, rounds) for rounds in (few, many)]
            ours = [trace(scene, side, True, kind, rounds) for rounds in (few, many)]
            expected, seen = difference(*plain[::-1]), difference(*ours[::-1])
            extra = difference(ours[0], plain[0])
            # Memory calls come with Python's own needs.
            for name in "brk", "mmap", "munmap", "madvise", "futex":
                for counts in expected, seen:
                    counts.pop(name, None)
            check(seen == expected, "%s %s: %d more rounds make these calls: %s, without the "
                  "library: %s", kind, side, many - few, seen, expected)
            total = sum(extra.values())
            check(total <= CONSTANT, "%s %s: %d more calls than without the library: %s", kind,
                  side, total, extra)
            lines.append("%s %s: no call more per message; %d more in all: %s"
                         % (kind, side, total, extra))
    return lines


@scenario("plain-calls", (PYTHON, "python3"), STRACE, alone=True)
def calls(scene):
    scene.plain, scene.share_required = True, False
    enter_namespace(scene, compare_calls)
