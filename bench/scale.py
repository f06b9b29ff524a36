"""The group `scale/idle` of bench/run: many connected queue pairs that nobody uses."""
import resource

from kit import Failed, Group, limit
from rivals import FULL_TCP, LOCAL, ours

QUEUE = 16  # requests in each queue of a connection: see crowd.c
LINKS = {"strict": ("strict service over TCP", ()), "full-tcp": ("full service over TCP", FULL_TCP),
         "local": ("full service through memory", LOCAL)}


def idle_group(count):
    def measure(words):
        many = ours("flue-connect", *words, "--count", str(count), "--idle", "1")

        def run(cpus, seconds):
            hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            if hard != resource.RLIM_INFINITY and hard < count + 100:
                raise Failed("%d open files are allowed here, too few for %d connections" % (hard, count))
            return many(cpus, seconds)
        return run

    group = Group("scale/idle", {name: ("Flue, " + label, measure(words))
                                 for name, (label, words) in LINKS.items()}, pins=("unpinned",))
    group.rounds, group.count = 3, count
    return group


def idle_rows(group):
    for name, (label, _) in LINKS.items():
        what = "%%s (%d idle connected QPs, queues of %d), %s" % (group.count, QUEUE, label)
        for figure, side in ("client_bytes", "initiator"), ("server_bytes", "responder"):
            yield limit(what % ("resident memory of each, " + side), group, "unpinned", name, figure,
                        "bytes", "<= 4096 bytes")
        # What a look at the clock every now and then costs is more than this.
        yield limit(what % "processor time of both processes in a second", group, "unpinned", name,
                    "idle_us", "us", "<= 100 us")


def entries(count):
    yield (lambda: idle_group(count)), idle_rows
