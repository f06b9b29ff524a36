"""The groups `local/...` of bench/run: two processes of one host, full service through memory.

All of ours poll, all rivals spin. Memory is private to each process (mmap) unless a name says otherwise.
"""
from kit import Group, compare
from rivals import DENIED, LOCAL, POLL, UCX_LOCAL, UCX_PRIVATE, flue, libfabric, often, ours, ucx

ROUNDS, PACE = 5, 0.5
SIZES = [8, 64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20]
UNPINNED = (8, 64, 4 << 10, 64 << 10)  # of streams and of what is seen: the others are only measured pinned
SEEN_SIZES = [8, 64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10]
SHORT, LONG = 256, 4 << 10
# From here on UCX and libfabric copy with one process_vm_readv() for each message (looked up with strace).
ONE_CALL = 16 << 10
UCX_NEEDS = "ucx_perftest"


def size_text(size):
    for unit, name in (1 << 20, "MiB"), (1 << 10, "KiB"):
        if size >= unit:
            return "%d %s" % (size // unit, name)
    return "%d B" % size


def trip_goal(size, rival):
    """Of the quotient of two times; see docs/performance.md."""
    if size <= SHORT:
        return "<= 1.25" if rival == "ucx" else None
    if size < LONG:
        return None
    return "<= 1.03" if size >= ONE_CALL else "<= 1.0"


def stream_goal(size):
    if size < LONG:
        return None
    return ">= 0.97" if size >= ONE_CALL else ">= 1.0"


def pins_of(size):
    return ("pinned", "unpinned") if size in UNPINNED else ("pinned",)


def name_of(kind, size):
    return "local/%s-%s" % (kind, size_text(size).replace(" ", ""))


def local_group(kind, size, contenders, pins=("pinned", "unpinned")):
    needs = {name: UCX_NEEDS if name.startswith("ucx") else "fi_pingpong"
             for name in contenders if name.startswith(("ucx", "libfabric"))}
    group = Group(name_of(kind, size), contenders, pins, needs)
    group.rounds, group.pace, group.size = ROUNDS, PACE, size
    return group


# ---- Send and answer ----

def trip_group(size):
    def trips(each):
        return lambda seconds: often(seconds, each)

    one = ("--size", str(size))
    if size < LONG:
        one += ("--batch", "8")  # a look at the clock costs a tenth of such a round trip
    return local_group("trip", size, {
        "flue": flue("Flue Send, polling, private memory", "flue-pingpong", *LOCAL, *POLL, *one),
        "denied": flue("Flue Send without process_vm, polling, private memory",
                       "flue-pingpong", *DENIED, *POLL, *one),
        "memory": ("bare memory: a copy, last octet last, spinning, shared memory",
                   ours("memory-pingpong", *one)),
        "ucx": ("UCX posix,cma tag_lat, spinning, private memory",
                ucx("tag_lat", size, trips(0.4e-6 + 2 * size / 8e9), env=UCX_LOCAL)),
        "libfabric": ("libfabric shm fi_pingpong (mean), spinning, private memory",
                      libfabric(size, trips(1e-6 + 2 * size / 4e9), "shm", "rdm")),
    })


def trip_rows(group):
    what = size_text(group.size) + " Send and answer through memory, both sides polling, private memory"
    for pin in group.pins:
        yield compare(what, group, pin, "flue", "ucx", "p50_us", "us", trip_goal(group.size, "ucx"))
        yield compare(what, group, pin, "flue", "libfabric", "mean_us", "us",
                      trip_goal(group.size, "libfabric"))
        yield compare(what, group, pin, "flue", "memory", "p50_us", "us")
        for rival, figure in ("ucx", "p50_us"), ("libfabric", "mean_us"):
            yield compare(what + ", process_vm denied", group, pin, "denied", rival, figure, "us")


# ---- streams ----

STREAMS = {"send": ("flue-send", "ucx-tag", "libfabric"), "write": ("flue-write", "ucx-put", "ucx-put-private", "call"),
           "read": ("flue-read", "ucx-get", "call")}


def stream_group(size):
    def many(seconds):
        return often(seconds, 0.15e-6 + size / 8e9)

    one = ("--size", str(size))
    # As many as fit into the window; posted one by one where a message takes longer than a call.
    more = one + (("--list", "16") if size <= 64 << 10 else ())
    contenders = {}
    for kind, (mode, *_) in STREAMS.items():
        title = "Flue %s%%s, polling, private memory" % kind.capitalize()
        contenders[kind] = flue(title % "", mode, *LOCAL, *POLL, *more)
        contenders["denied-" + kind] = flue(title % " without process_vm", mode, *DENIED, *POLL, *more)
    contenders.update({
        "ucx-tag": ("UCX posix,cma tag_bw, spinning, private memory", ucx("tag_bw", size, many, env=UCX_LOCAL)),
        "ucx-put": ("UCX posix,cma put_bw, spinning, memory that both have mapped",
                    ucx("ucp_put_bw", size, many, env=UCX_LOCAL)),
        "ucx-put-private": ("UCX posix,cma put_bw, spinning, private memory",
                            ucx("ucp_put_bw", size, lambda s: often(s, 1e-6 + size / 4e9, 20), env=UCX_PRIVATE)),
        "ucx-get": ("UCX posix,cma get, spinning, memory that both have mapped",
                    ucx("ucp_get", size, many, env=UCX_LOCAL)),
        "libfabric": ("libfabric shm fi_pingpong (one way at a time), spinning, private memory",
                      libfabric(size, lambda s: often(s, 1e-6 + 2 * size / 4e9), "shm", "rdm")),
        "call": ("one bare process_vm_writev each, private memory", ours("process-vm-call", *one)),
    })
    return local_group("stream", size, contenders,
                       pins_of(size))


def stream_rows(group):
    text, big = size_text(group.size), group.size >= LONG
    figure, unit = ("mib_per_s", "MiB/s") if big else ("per_second", "1/s")
    for pin in group.pins:
        for kind, (_, *rivals) in STREAMS.items():
            what = "stream of %ss of %s through memory, both sides polling, private memory" % (
                kind.capitalize(), text)
            for rival in rivals:
                if rival == "libfabric" and not big:
                    continue  # it has one at a time: that is the other table's
                goal = None
                if kind == "send":
                    goal = stream_goal(group.size)
                elif rival == "call" and group.size >= ONE_CALL:
                    goal = ">= 0.97"
                yield compare(what, group, pin, kind, rival, figure, unit, goal)
            yield compare(what + ", process_vm denied", group, pin, "denied-" + kind, rivals[0], figure, unit)


# ---- a Write that a spinning target sees ----

def seen_group(size):
    one = ("--size", str(size))
    return local_group("seen", size, {
        "flue": flue("Flue Write, target spins, private memory", "flue-seen", *LOCAL, *one),
        "denied": flue("Flue Write without process_vm, target spins, private memory",
                       "flue-seen", *DENIED, *one),
        "self": flue("Flue Write within a process, target is a spinning thread", "flue-seen", *LOCAL, "--self", *one),
        "process-vm": ("process_vm_writev, target spins, private memory", ours("process-vm-seen", *one)),
        "call": ("one bare process_vm_writev, until it returns, private memory", ours("process-vm-call", *one)),
        "memory": ("bare memory: a copy, last octet last, target spins, shared memory", ours("memory-seen", *one)),
    }, pins_of(size))


def seen_rows(group):
    what = "Write of %s until a spinning target that never calls the library has seen it, " % size_text(group.size)
    for pin in group.pins:
        private = what + "private memory"
        yield compare(private, group, pin, "flue", "call", "p50_us", "us", "<= 1.2")
        yield compare(private, group, pin, "flue", "process-vm", "p50_us", "us", "<= 1.2")
        yield compare(private + ", process_vm denied", group, pin, "denied", "process-vm", "p50_us", "us")
        mapped = what + "memory that both have mapped (one process with itself)"
        yield compare(mapped, group, pin, "self", "process-vm", "p50_us", "us")
        yield compare(mapped, group, pin, "self", "memory", "p50_us", "us")


# ---- rates ----

def rate_group():
    words = ("flue-send", *POLL, "--size", "64", "--list", "16")
    group = Group("local/rate-64B", {
        "flue": flue("Flue Send in lists of 16, polling, private memory", *words, *LOCAL),
        "single": flue("Flue Send one by one, polling, private memory", *words[:-2], *LOCAL),
        "ucx": ("UCX posix,cma tag_bw, spinning, private memory",
                ucx("tag_bw", 64, lambda s: often(s, 0.15e-6), env=UCX_LOCAL)),
    }, needs={"ucx": UCX_NEEDS})
    group.rounds = ROUNDS
    return group


def rate_rows(group):
    for pin in group.pins:
        yield compare("Sends of 64 B through memory in lists of 16, both sides polling, private memory", group, pin,
                      "flue", "ucx", "per_second", "1/s")
        yield compare("Sends of 64 B through memory one by one, both sides polling, private memory", group, pin,
                      "single", "ucx", "per_second", "1/s")


def atomics_group():
    words = ("flue-fetch-add", *POLL, *LOCAL)
    group = Group("local/atomics", {
        "one": flue("Flue fetch-and-add, 1 outstanding, polling, private memory", *words, "--window", "1"),
        "many": flue("Flue fetch-and-add, 16 outstanding, polling, private memory", *words, "--window", "16"),
        "ucx": ("UCX posix,cma fadd, spinning, private memory",
                ucx("ucp_fadd", 8, lambda s: often(s, 0.5e-6), env=UCX_PRIVATE)),
        "ucx-mapped": ("UCX posix,cma fadd, spinning, memory that both have mapped",
                       ucx("ucp_fadd", 8, lambda s: often(s, 0.1e-6), env=UCX_LOCAL)),
    }, needs={"ucx": UCX_NEEDS, "ucx-mapped": UCX_NEEDS})
    group.rounds = ROUNDS
    return group


def atomics_rows(group):
    what = "fetch-and-adds through memory, %s outstanding, both sides polling, private memory"
    for pin in group.pins:
        for ours_is, count in ("one", "1"), ("many", "16"):
            for rival in "ucx", "ucx-mapped":
                yield compare(what % count, group, pin, ours_is, rival, "per_second", "1/s")


def entries():
    """As in bench/run's GROUPS: a function that makes the group and one that makes its rows."""
    for sizes, make, rows in ((SIZES, trip_group, trip_rows), (SIZES, stream_group, stream_rows),
                              (SEEN_SIZES, seen_group, seen_rows)):
        for size in sizes:
            yield (lambda make=make, size=size: make(size)), rows
    yield rate_group, rate_rows
    yield atomics_group, atomics_rows


# Pictures over sizes: file, title, unit, figure, kind of group, contenders.
PLOTS = [
    ("local-trip", "Send and answer through memory", "µs", "p50_us", "trip",
     ("flue", "denied", "ucx", "libfabric", "memory")),
    ("local-send", "Streams of Sends through memory", "MiB/s", "mib_per_s", "stream",
     ("send", "denied-send", "ucx-tag", "libfabric")),
    ("local-onesided", "Streams of Writes and Reads through memory", "MiB/s", "mib_per_s", "stream",
     ("write", "read", "denied-write", "denied-read", "ucx-put", "ucx-put-private", "ucx-get", "call")),
    ("local-seen", "A Write until a spinning target has seen it", "µs", "p50_us", "seen",
     ("flue", "denied", "self", "process-vm", "call", "memory")),
]
