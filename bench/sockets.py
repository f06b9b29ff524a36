"""The group `sockets` of bench/run: programs over TCP, over Unix-domain sockets, and over TCP with
libflue-sockets.so preloaded.

sockets_bench and the well-known programs know nothing of Flue. A contender with the library leaves its
counters (FLUE_STATS): a row whose bytes did not go through lanes says so. All programs are children
that have a time limit and are ended by their numbers.
"""
import atexit
import csv
import glob
import json
import os
import pwd
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time

HANG = 60  # seconds, for what takes one or two
ROUNDS = 5
SHARE = 0.95  # of the bytes of eligible connections
POSTGRES = "postgres"  # PostgreSQL refuses to be root
TCP, UNIX, FLUE = "tcp", "unix", "flue"

NGINX = """
daemon off; pid {dir}/nginx.pid; error_log {dir}/error.log; worker_processes 1; {user}
events {{ worker_connections 512; }}
http {{
    access_log off; sendfile on; keepalive_requests 100000000;
    client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy; fastcgi_temp_path {dir}/fcgi;
    uwsgi_temp_path {dir}/uwsgi; scgi_temp_path {dir}/scgi;
    server {{ listen 127.0.0.1:{port} backlog=512; root {dir}; }}
}}
"""


def free_port():
    """Below those that the kernel gives to clients."""
    while True:
        port = random.randrange(10000, 30000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def listens(port):
    """Asks the kernel, not the server: a connection would be counted."""
    with open("/proc/net/tcp", encoding="ascii") as file:
        return any(line.split()[1].endswith(":%04X" % port) and line.split()[3] == "0A"
                   for line in file)


def postgres_tool(name):
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/" + name))
    return found[-1] if found else None


class Stage:
    """One measurement: a directory, the programs that were started in it, and their counters."""

    def __init__(self, sockets, kind, directory=None, user=None):
        self.failed, self.sockets, self.kind = sockets.kit.Failed, sockets, kind
        self.directory = tempfile.mkdtemp(prefix="flue-bench-") if directory is None else directory
        self.keep, self.user = directory is not None, user if os.getuid() == 0 else None
        self.stats = self.path("stats")
        self.servers = []

    def __enter__(self):
        os.chmod(self.directory, 0o755)
        with open(self.stats, "wb"):
            os.chmod(self.stats, 0o666)  # the programs may have another user
        return self

    def __exit__(self, kind, *_):
        try:
            self.stop()
        finally:
            if not self.keep:
                shutil.rmtree(self.directory, ignore_errors=True)

    def path(self, name):
        return os.path.join(self.directory, name)

    def options(self, cpu, library):
        env = {name: value for name, value in os.environ.items()
               if name != "LD_PRELOAD" and not name.startswith("FLUE_")}
        env["LC_ALL"] = "C.UTF-8"
        if self.kind == FLUE and library:
            env.update(LD_PRELOAD=self.sockets.library, FLUE_STATS=self.stats)
        options = {"env": env, "cwd": self.directory, "stdin": subprocess.DEVNULL}
        if cpu is not None:
            options["preexec_fn"] = lambda: os.sched_setaffinity(0, {cpu})
        if self.user:
            entry = pwd.getpwnam(self.user)
            options.update(user=entry.pw_uid, group=entry.pw_gid, extra_groups=[])
        return options

    def run(self, words, cpu=None, library=True):
        """A program's output."""
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=HANG, check=False,
                                  **self.options(cpu, library))
        except (subprocess.TimeoutExpired, OSError) as error:
            raise self.failed(str(error)[:200]) from error
        if done.returncode != 0:
            text = (done.stderr.strip() or done.stdout.strip() or "no word").splitlines()[-1]
            raise self.failed("%s ended with %d: %s" % (words[0], done.returncode, text))
        return done.stdout

    def start(self, words, cpu=None, library=True, stop=signal.SIGTERM, ready=None, **more):
        """A program that stays until the measurement ends."""
        with open(self.path("server.log"), "ab") as log:
            more = {"stdout": log, "stderr": log, **more}
            process = subprocess.Popen(words, **more, **self.options(cpu, library))
        self.servers.append((process, stop))
        end = time.monotonic() + HANG
        while ready and not ready():
            if process.poll() is not None or time.monotonic() > end:
                with open(self.path("server.log"), encoding="utf-8", errors="replace") as log:
                    raise self.failed("%s does not start: %s" % (words[0], log.read()[-200:]))
            time.sleep(0.01)
        return process

    def stop(self):
        """In the programs' own way, so that they leave their counters."""
        while self.servers:
            process, stop = self.servers.pop()
            if process.poll() is None:
                process.send_signal(stop)
            try:
                process.wait(HANG / 4)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise self.failed("a server did not end") from None
            finally:
                if process.stdout:
                    process.stdout.close()

    def counted(self, figures):
        """The figures, with what the library says of itself; call it when all have ended."""
        if self.kind != FLUE:
            return figures
        with open(self.stats, encoding="utf-8") as file:
            counts = [json.loads(line) for line in file]
        if not counts:
            raise self.failed("the library left no counters")
        lane, tcp = (sum(c["eligible_%s_%s" % (way, end)] for c in counts for end in ("tx", "rx"))
                     for way in ("lane", "tcp"))
        return dict(figures, lanes=sum(c["lanes"] for c in counts),
                    share=lane / (lane + tcp) if lane + tcp else 0)


class Sockets:
    """Where the programs are, and how each is measured. kit: bench/run, whose rows these are."""

    def __init__(self, kit):
        self.kit = kit
        build = os.path.join(kit.TOP, "build", "release")
        self.bench = os.path.join(build, "bench", "sockets_bench")
        self.library = os.path.join(build, "src", "libflue-sockets.so")
        self.cluster = None  # PostgreSQL's directory, made when first needed

    def cpus(self, place):
        """The client's and the server's processor."""
        pair = self.kit.two_cpus()
        if place == "unpinned":
            return None, None
        if place == "two CPUs" and not pair:
            raise self.kit.Failed("only one processor here")
        first = min(os.sched_getaffinity(0))
        return pair if place == "two CPUs" else (first, first)

    def need(self, *programs):
        for program in programs:
            if not program or not shutil.which(program):
                raise self.kit.Failed("%s is not installed: skipped" % program)

    # Each of these makes a function (seconds) -> figures for one contender.

    def plain(self, kind, place, *words, timed=True):
        """sockets_bench, both ends in one command."""
        def measure(seconds):
            with Stage(self, kind) as stage:
                command = [self.bench, *words]
                if timed:
                    command += ["--seconds", str(seconds)]
                if place != "unpinned":
                    command += ["--pin", "%d,%d" % self.cpus(place)]
                if kind == UNIX:
                    command += ["--unix"]
                return stage.counted(json.loads(stage.run(command)))
        return measure

    def alone(self, kind, *words):
        """sockets_bench, and only the client may have the library."""
        def measure(seconds):
            client, server = self.cpus("two CPUs")
            with Stage(self, kind) as stage:
                figures = stage.counted(self.call_alone(
                    stage, client, server, [*words, "--seconds", str(2 * seconds)]))
            return dict(figures, per_cpu_second=1e6 / figures["client_cpu_us"])
        return measure

    def call_alone(self, stage, client, server, words, trace=()):
        process = stage.start([self.bench, *words, "--role", "server"], server, library=False,
                              stdout=subprocess.PIPE, text=True)
        port = process.stdout.readline().strip()
        return json.loads(stage.run([*trace, self.bench, *words, "--role", "client", "--port", port],
                                    client, library=not trace))

    def calls(self, kind):
        """System calls of the client per round trip: the difference of a long and a short run."""
        def count(trips):
            with Stage(self, kind) as stage:
                table = stage.path("calls")
                trace = ["strace", "-f", "-c", "-o", table]
                if kind == FLUE:
                    trace += ["-E", "LD_PRELOAD=" + self.library, "-E", "FLUE_STATS=" + stage.stats]
                stage.counted(self.call_alone(stage, *self.cpus("two CPUs"),
                                              ["pingpong", "--count", str(trips)], trace))
                with open(table, encoding="utf-8") as file:
                    return int(file.readlines()[-1].split()[3])  # of the line "total"

        def measure(_seconds):
            self.need("strace")
            return {"calls": (count(1500) - count(500)) / 1000}
        return measure

    def iperf(self, kind, place):
        def measure(_seconds):
            self.need("iperf3")
            client, server = self.cpus(place)
            with Stage(self, kind) as stage:
                port = free_port()
                process = stage.start(["iperf3", "-s", "-1", "-B", "127.0.0.1", "-p", str(port)],
                                      server, ready=lambda: listens(port))
                out = stage.run(["iperf3", "-c", "127.0.0.1", "-p", str(port), "-J", "-t", "1"], client)
                process.wait(HANG)
                figures = {"mib_per_s": json.loads(out)["end"]["sum_received"]["bits_per_second"]
                           / 8 / self.kit.MIB}
                stage.stop()
                return stage.counted(figures)
        return measure

    def redis(self, kind, place, clients, pipeline, count):
        def measure(seconds):
            self.need("redis-server", "redis-benchmark")
            client, server = self.cpus(place)
            with Stage(self, kind) as stage:
                port, path = free_port(), stage.path("redis")
                stage.start(["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "",
                             "--unixsocket", path, "--dir", stage.directory], server,
                            ready=lambda: listens(port) and os.path.exists(path))
                where = ["-s", path] if kind == UNIX else ["-h", "127.0.0.1", "-p", str(port)]
                out = stage.run(["redis-benchmark", *where, "-t", "get", "--csv", "-c", str(clients),
                                 "-P", str(pipeline), "-n", str(int(count * seconds / 0.5))], client)
                stage.stop()
                rate = [row for row in csv.reader(out.splitlines()) if row[0].startswith("GET")]
                if not rate:
                    raise self.kit.Failed("redis-benchmark said nothing")
                return stage.counted({"per_second": float(rate[0][1])})
        return measure

    def nginx(self, kind, place, size):
        def measure(_seconds):
            self.need("nginx", "wrk")
            client, server = self.cpus(place)
            with Stage(self, kind) as stage:
                port = free_port()
                with open(stage.path("file"), "wb") as file:
                    file.write(os.urandom(size))
                with open(stage.path("nginx.conf"), "w", encoding="utf-8") as file:
                    file.write(NGINX.format(dir=stage.directory, port=port,
                                            user="user root;" if os.getuid() == 0 else ""))
                stage.start(["nginx", "-p", stage.directory, "-e", stage.path("error.log"), "-c",
                             stage.path("nginx.conf")], server, stop=signal.SIGQUIT,
                            ready=lambda: listens(port))
                out = stage.run(["wrk", "-t1", "-c16", "-d1", "http://127.0.0.1:%d/file" % port], client)
                stage.stop()
                if "Non-2xx" in out or "Socket errors" in out:
                    raise self.kit.Failed("wrk saw errors")
                return stage.counted({"per_second": float(re.search(r"Requests/sec:\s*([\d.]+)", out)[1])})
        return measure

    def make_cluster(self):
        """A database for all measurements, made without the library."""
        self.need(postgres_tool("initdb"), postgres_tool("pgbench"))
        directory = tempfile.mkdtemp(prefix="flue-bench-")
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
        if os.getuid() == 0:
            entry = pwd.getpwnam(POSTGRES)
            os.chown(directory, entry.pw_uid, entry.pw_gid)
        with Stage(self, TCP, directory, POSTGRES) as stage:
            stage.run([postgres_tool("initdb"), "-D", stage.path("data"), "-A", "trust", "--no-sync",
                       "-U", POSTGRES, "-E", "UTF8", "--locale=C"])
            port = self.start_postgres(stage)
            stage.run(self.pgbench_words(stage, port) + ["-i", "-q", "-s", "1", POSTGRES])
        self.cluster = directory

    @staticmethod
    def pgbench_words(stage, port):
        host = stage.directory if stage.kind == UNIX else "127.0.0.1"
        return [postgres_tool("pgbench"), "-h", host, "-p", str(port), "-U", POSTGRES]

    @staticmethod
    def start_postgres(stage):
        port = free_port()

        def accepts():
            """It listens before it is ready."""
            try:
                return stage.run([postgres_tool("pg_isready"), "-h", stage.directory, "-p", str(port)],
                                 library=False)
            except stage.failed:
                return False

        stage.start([postgres_tool("postgres"), "-D", stage.path("data"), "-p", str(port), "-h",
                     "127.0.0.1", "-k", stage.directory, "-c", "fsync=off"], stop=signal.SIGINT,
                    ready=lambda: listens(port) and accepts())
        return port

    def pgbench(self, kind):
        def measure(_seconds):
            if not self.cluster:
                self.make_cluster()
            with Stage(self, kind, self.cluster, POSTGRES) as stage:
                port = self.start_postgres(stage)
                out = stage.run(self.pgbench_words(stage, port) + [
                    "-S", "-n", "-c", "4", "-j", "1", "-T", "1", POSTGRES])
                stage.stop()
                return stage.counted({"per_second": float(re.search(r"tps = ([\d.]+)", out)[1])})
        return measure


LABELS = {TCP: "kernel TCP", UNIX: "Unix-domain sockets", FLUE: "TCP with libflue-sockets.so"}


class Comparison:
    """A group and its rows. goals: (rival, goal) of ratios; limits: (figure, unit, what, goal) of ours."""

    def __init__(self, name, what, place, measures, wait, figure, unit, goals, limits=(), **more):
        self.name, self.what, self.place, self.measures = "sockets/" + name, what, place, measures
        self.wait, self.figure, self.unit, self.goals, self.limits = wait, figure, unit, goals, limits
        self.rounds = more.get("rounds", ROUNDS)
        self.lanes = more.get("lanes", True)  # whether there should be any

    def make(self, kit):
        contenders = {}
        for kind, measure in self.measures.items():
            label = "%s, %s" % (LABELS[kind], self.wait)
            contenders[kind] = (label, lambda _cpus, seconds, measure=measure: measure(seconds))
        group = kit.Group(self.name, contenders, pins=(self.place,))
        group.rounds = self.rounds
        return group

    def rows(self, kit, group):
        shares = [share for share in group.values(self.place, FLUE, "share") if share is not None]
        low = [share for share in shares if share < SHARE]
        note = ""
        if self.lanes and low:
            note = " (in %d of %d rounds only %.0f-%.0f %% of the bytes through lanes)" % (
                len(low), len(shares), 100 * min(low), 100 * max(low))
        for rival, goal in self.goals:
            yield self.row(kit, group, rival, self.figure, self.unit, self.what + note, goal)
        for figure, unit, what, goal in self.limits:
            row = self.row(kit, group, None, figure, unit, what + note, None)
            if row and goal:
                sign, limit = goal.split()[:2]
                mine = row["ours"]  # None if it failed
                row.update(goal=goal, holds=mine is not None and
                           (mine <= float(limit) if sign == "<=" else mine >= float(limit)))
            if row:
                row["id"] += "/" + figure
            yield row

    def row(self, kit, group, rival, figure, unit, what, goal):
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


def comparisons(sockets):
    yield from round_trips(sockets)
    yield from streams(sockets)
    yield from programs(sockets)
    yield from costs(sockets)


def round_trips(sockets):
    def trio(place, *words):
        return {kind: sockets.plain(kind, place, "pingpong", *words) for kind in (TCP, UNIX, FLUE)}

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


def streams(sockets):
    for size, name, goal in ((64, "64 B", ">= 5"), (16384, "16 KiB", ">= 4"),
                             (131072, "128 KiB", ">= 4"), (1048576, "1 MiB", ">= 2")):
        trio = {kind: sockets.plain(kind, "two CPUs", "stream", "--size", str(size))
                for kind in (TCP, UNIX, FLUE)}
        yield Comparison("stream-" + name.replace(" ", ""), "stream of messages of " + name, "two CPUs",
                         trio, "blocking", "mib_per_s", "MiB/s", [(TCP, goal), (UNIX, ">= 1.0")])
    duo = {kind: sockets.iperf(kind, "two CPUs") for kind in (TCP, FLUE)}
    yield Comparison("iperf3", "iperf3, one stream", "two CPUs", duo, "select", "mib_per_s", "MiB/s",
                     [(TCP, ">= 4")])


def programs(sockets):
    # Clients, pipeline, requests of TCP and Unix, and of Flue: about as long for each.
    for name, place, clients, pipeline, few, many, goal in (
            ("1 client", "two CPUs", 1, 1, 10_000, 60_000, ">= 10"),
            ("1 client", "one CPU", 1, 1, 15_000, 30_000, ">= 2"),
            ("50 clients", "two CPUs", 50, 1, 40_000, 120_000, ">= 5"),
            ("50 clients, 16 in a pipeline", "two CPUs", 50, 16, 300_000, 300_000, ">= 1.3"),
            ("1,000 clients", "two CPUs", 1000, 1, 40_000, 120_000, ">= 3")):
        trio = {kind: sockets.redis(kind, place, clients, pipeline, many if kind == FLUE else few)
                for kind in (TCP, UNIX, FLUE)}
        yield Comparison("redis-%d-%d-%s" % (clients, pipeline, place.split()[0]),
                         "redis-benchmark GET, " + name, place, trio, "epoll", "per_second", "1/s",
                         [(TCP, goal), (UNIX, ">= 1.0")])
    for size in 1000, 100_000:
        duo = {kind: sockets.nginx(kind, "two CPUs", size) for kind in (TCP, FLUE)}
        yield Comparison("nginx-%d" % size, "nginx and wrk, 16 connections, a file of %d bytes" % size,
                         "two CPUs", duo, "epoll", "per_second", "1/s", [(TCP, ">= 1.0")])
    trio = {kind: sockets.pgbench(kind) for kind in (TCP, UNIX, FLUE)}
    yield Comparison("pgbench", "pgbench select-only, 4 clients", "unpinned", trio, "epoll", "per_second",
                     "1/s", [(TCP, ">= 1.0"), (UNIX, ">= 1.0")])


def costs(sockets):
    churn = {kind: sockets.plain(kind, "two CPUs", "churn", "--count", "3000", timed=False)
             for kind in (TCP, UNIX, FLUE)}
    yield Comparison("churn", "a new connection for every request", "two CPUs", churn, "blocking",
                     "per_second", "1/s", [(TCP, ">= 0.97"), (UNIX, ">= 1.0")], lanes=False)
    for name, words in (("64-byte round trips", ["pingpong"]),
                        ("16 KiB messages", ["stream", "--size", "16384"])):
        duo = {kind: sockets.alone(kind, *words) for kind in (TCP, FLUE)}
        yield Comparison("plain-peer-" + words[0], name + " per second of processor time, peer plain",
                         "two CPUs", duo, "blocking", "per_cpu_second", "1/s", [(TCP, ">= 0.98")],
                         lanes=False)
    duo = {kind: sockets.calls(kind) for kind in (TCP, FLUE)}
    yield Comparison("plain-peer-calls", "system calls per round trip, peer plain", "two CPUs", duo,
                     "blocking", "calls", "calls", [(TCP, "<= 1.0")], rounds=1, lanes=False)

    def hold(count, *words):
        return {FLUE: sockets.plain(FLUE, "unpinned", "hold", "--count", str(count), *words,
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


def entries(kit):
    """As in bench/run's GROUPS: a function that makes the group and one that makes its rows."""
    for comparison in comparisons(Sockets(kit)):
        yield (lambda c=comparison: c.make(kit), lambda group, c=comparison: c.rows(kit, group))
