"""The group `sockets` of bench/run: programs over TCP, over Unix-domain sockets, and over TCP with
libflue-sockets.so preloaded. How each is measured is in loads.py.
"""
import kit
from loads import Loads
from stage import FLUE, TCP, UNIX

ROUNDS = 5
SHARE = 0.95  # of the bytes of eligible connections
LABELS = {TCP: "kernel TCP", UNIX: "Unix-domain sockets", FLUE: "TCP with libflue-sockets.so"}


class Comparison:
    """A group and its rows. goals: (rival, goal) of ratios; limits: (figure, unit, what, goal) of ours."""

    def __init__(self, name, what, place, measures, wait, figure, unit, goals, limits=(), **more):
        self.name, self.what, self.place, self.measures = "sockets/" + name, what, place, measures
        self.wait, self.figure, self.unit, self.goals, self.limits = wait, figure, unit, goals, limits
        self.rounds = more.get("rounds", ROUNDS)
        self.once = self.rounds == 1  # it is counted rather than measured
        self.lanes = more.get("lanes", True)  # whether there should be any
        self.crowd = more.get("crowd", False)  # more can run than there are processors

    def make(self):
        contenders = {}
        for kind, measure in self.measures.items():
            label = "%s, %s" % (LABELS[kind], self.wait)
            contenders[kind] = (label, lambda _cpus, seconds, measure=measure: measure(seconds))
        group = kit.Group(self.name, contenders, pins=(self.place,))
        group.rounds = self.rounds
        return group

    def rows(self, group):
        shares = [share for share in group.values(self.place, FLUE, "share") if share is not None]
        low = [share for share in shares if share < SHARE]
        note = ""
        if self.lanes and low:
            note = " (in %d of %d rounds only %.0f-%.0f %% of the bytes through lanes)" % (
                len(low), len(shares), 100 * min(low), 100 * max(low))
        for rival, goal in self.goals:
            yield self.row(group, rival, self.figure, self.unit, self.what + note, goal)
        for figure, unit, what, goal in self.limits:
            row = self.row(group, None, figure, unit, what + note, None)
            if row and goal:
                mine = row["ours"]  # None if it failed
                row.update(goal=goal, holds=mine is not None and kit.meets(goal, mine))
            if row:
                row["id"] += "/" + figure
            yield row

    def row(self, group, rival, figure, unit, what, goal):
        row = kit.compare(what, group, self.place, FLUE, rival, figure, unit, goal)
        if row is None or rival and row["ratio"] is None:
            # A rival that is not there proves nothing; if only ours failed, that is a miss.
            theirs = group.values(self.place, rival, figure) if rival else []
            lost = row is None and any(value is not None for value in theirs)
            row = {"ours": None, "rival": None,
                   "rival_name": group.contenders[rival][0] if rival else None, "unit": unit,
                   "ratio": None, "goal": goal, "holds": False if lost and goal else None, "rounds": 0,
                   **(row or {}), "what": "%s, %s: NOT MEASURED" % (what, self.place)}
        row["id"] = ("%s/%s/%s" % (self.name, rival or "alone", self.place)).replace(" ", "-")
        return row


def comparisons(loads):
    yield from round_trips(loads)
    yield from streams(loads)
    yield from programs(loads)
    yield from crowds(loads)
    yield from costs(loads)


def round_trips(loads):
    def trio(place, *words):
        return {kind: loads.plain(kind, place, "pingpong", *words) for kind in (TCP, UNIX, FLUE)}

    what = "64-byte round trip, p50"
    yield Comparison("pingpong-64B", what, "two CPUs", trio("two CPUs"), "blocking", "p50_us", "us",
                     [(TCP, "<= 0.025"), (UNIX, "<= 1.0")],
                     [("p50_us", "us", what, "<= 2 us"), ("p99_us", "us", "64-byte round trip, p99", None)])
    yield Comparison("pingpong-64B-one", what, "one CPU", trio("one CPU"), "blocking", "p50_us", "us",
                     [(TCP, "<= 0.5"), (UNIX, "<= 1.0")])
    yield Comparison("pingpong-64B-think", what + ", 200 us of computing between two", "two CPUs",
                     trio("two CPUs", "--think", "200"), "blocking", "p50_us", "us",
                     [(TCP, "<= 0.8"), (UNIX, "<= 1.0")])
    for place in "two CPUs", "one CPU":
        yield Comparison("pingpong-64B-hogs-" + place.split()[0],
                         "64-byte round trip beside a busy process on each CPU, mean", place,
                         trio(place, "--hogs"), "blocking", "mean_us", "us",
                         [(TCP, "<= 1.0"), (UNIX, "<= 1.0")])


def streams(loads):
    for size, name, goal in ((64, "64 B", ">= 5"), (16384, "16 KiB", ">= 4"),
                             (131072, "128 KiB", ">= 4"), (1048576, "1 MiB", ">= 2")):
        trio = {kind: loads.plain(kind, "two CPUs", "stream", "--size", str(size))
                for kind in (TCP, UNIX, FLUE)}
        yield Comparison("stream-" + name.replace(" ", ""), "stream of messages of " + name, "two CPUs",
                         trio, "blocking", "mib_per_s", "MiB/s", [(TCP, goal), (UNIX, ">= 1.0")])
    duo = {kind: loads.iperf(kind, "two CPUs") for kind in (TCP, FLUE)}
    yield Comparison("iperf3", "iperf3, one stream", "two CPUs", duo, "select", "mib_per_s", "MiB/s",
                     [(TCP, ">= 4")])


def programs(loads):
    # Clients, pipeline, requests of TCP and Unix, and of Flue: about as long for each.
    for name, place, clients, pipeline, few, many, goal in (
            ("1 client", "two CPUs", 1, 1, 10_000, 60_000, ">= 10"),
            ("1 client", "one CPU", 1, 1, 15_000, 30_000, ">= 2"),
            ("50 clients", "two CPUs", 50, 1, 40_000, 120_000, ">= 5"),
            ("50 clients, 16 in a pipeline", "two CPUs", 50, 16, 300_000, 300_000, ">= 1.3"),
            ("1,000 clients", "two CPUs", 1000, 1, 40_000, 120_000, ">= 3")):
        trio = {kind: loads.redis(kind, place, clients, pipeline, many if kind == FLUE else few)
                for kind in (TCP, UNIX, FLUE)}
        yield Comparison("redis-%d-%d-%s" % (clients, pipeline, place.split()[0]),
                         "redis-benchmark GET, " + name, place, trio, "epoll", "per_second", "1/s",
                         [(TCP, goal), (UNIX, ">= 1.0")])
    for size in 1000, 100_000:
        duo = {kind: loads.nginx(kind, "two CPUs", size) for kind in (TCP, FLUE)}
        yield Comparison("nginx-%d" % size, "nginx and wrk, 16 connections, a file of %d bytes" % size,
                         "two CPUs", duo, "epoll", "per_second", "1/s", [(TCP, ">= 1.0")])
    trio = {kind: loads.pgbench(kind, 4, 1) for kind in (TCP, UNIX, FLUE)}
    yield Comparison("pgbench", "pgbench select-only, 4 clients", "unpinned", trio, "epoll", "per_second",
                     "1/s", [(TCP, ">= 1.0"), (UNIX, ">= 1.0")])


def crowds(loads):
    """More programs and threads that can run than processors: who spins or yields takes from the others."""
    def duo(name, what, wait, measure, lanes=True):
        for hogs, tail, more in (0, "", ""), (2, "-hogs", ", beside two busy processes"):
            yield Comparison(name + tail, what + more, "unpinned",
                             {kind: measure(kind, hogs) for kind in (TCP, FLUE)}, wait, "per_second",
                             "1/s", [(TCP, ">= 1.0")], lanes=lanes, crowd=True)

    for count, clients in (1, "1 client"), (8, "8 clients in 2 threads"):
        yield from duo("pgbench-%d" % count, "pgbench select-only, " + clients, "poll and epoll",
                       lambda kind, hogs, c=count: loads.pgbench(kind, c, min(c, 2), hogs))
    for count, clients, few, many in (1, "1 client", 3_000, 12_000), (8, "8 clients", 15_000, 15_000):
        yield from duo("mysqlslap-%d" % count, "mysqlslap and MariaDB, " + clients, "blocking, threads",
                       lambda kind, hogs, c=count, queries={TCP: few, FLUE: many}:
                       loads.mysqlslap(kind, c, queries[kind], hogs))
    yield from duo("gunicorn-sync", "gunicorn and wrk, 4 processes, a connection for each request",
                   "select", lambda kind, hogs: loads.gunicorn(kind, ["-w", "4"], hogs), lanes=False)
    yield from duo("gunicorn-threads", "gunicorn and wrk, 4 threads, 8 connections", "epoll",
                   lambda kind, hogs: loads.gunicorn(kind, ["-k", "gthread", "--threads", "4"], hogs))
    for count, connections in (1, "1 connection"), (8, "8 connections"):
        yield from duo("erlang-%d" % count, "Erlang echo of 64 bytes, " + connections, "epoll",
                       lambda kind, hogs, c=count: loads.erlang(kind, c, hogs))


def costs(loads):
    churn = {kind: loads.plain(kind, "two CPUs", "churn", "--count", "3000", timed=False)
             for kind in (TCP, UNIX, FLUE)}
    yield Comparison("churn", "a new connection for every request", "two CPUs", churn, "blocking",
                     "per_second", "1/s", [(TCP, ">= 0.97"), (UNIX, ">= 1.0")], lanes=False)
    for name, words in (("64-byte round trips", ["pingpong"]),
                        ("16 KiB messages", ["stream", "--size", "16384"])):
        duo = {kind: loads.alone(kind, *words) for kind in (TCP, FLUE)}
        yield Comparison("plain-peer-" + words[0], name + " per second of processor time, peer plain",
                         "two CPUs", duo, "blocking", "per_cpu_second", "1/s", [(TCP, ">= 0.98")],
                         lanes=False)
    duo = {kind: loads.calls(kind) for kind in (TCP, FLUE)}
    yield Comparison("plain-peer-calls", "system calls per round trip, peer plain", "two CPUs", duo,
                     "blocking", "calls", "calls", [(TCP, "<= 1.0")], rounds=1, lanes=False)

    for sockets in (1000, 8000):
        duo = {kind: loads.forks(kind, sockets) for kind in (TCP, FLUE)}
        for figure, what in (("fork_us", "fork()"), ("life_us", "fork() until the child's end"),
                             ("set_us", "epoll_create1() and close()")):
            yield Comparison("%s-%d" % (figure.partition("_")[0], sockets),
                             "%s with %d sockets" % (what, sockets), "unpinned", duo, "blocking",
                             figure, "us", [(TCP, None)], lanes=False)

    def hold(count, *words):
        return {FLUE: loads.plain(FLUE, "unpinned", "hold", "--count", str(count), *words,
                                    timed=False)}

    yield Comparison("hold", "", "unpinned", hold(10_000), "epoll", "held", "", [], [
        ("held", "connections", "connections held, each answers", ">= 10000"),
        ("lanes", "ends", "their ends with lanes (of 20,002)", ">= 19000"),
        ("idle_kib", "KiB", "memory of both processes per idle connection with a lane", "<= 16 KiB")],
        rounds=1, lanes=False)
    yield Comparison("hold-bulk", "", "unpinned", hold(1000, "--bulk"), "epoll", "held", "", [], [
        ("bulk_kib", "KiB", "memory per connection right after 1 MiB each way", "<= 64 KiB"),
        ("later_kib", "KiB", "memory per connection after one more round trip on each", None)],
        rounds=1, lanes=False)


def entries():
    """As in bench/run's GROUPS: a function that makes the group and one that makes its rows."""
    for comparison in comparisons(Loads()):
        yield comparison.make, comparison.rows
