"""How the programs of the sockets door are measured; sockets.py and compare say which rows they make.

sockets_bench is ours and plain; redis, iperf3, nginx, PostgreSQL, MariaDB, gunicorn and Erlang are as Debian has
them. All are started here, on loopback, in directories that are gone afterwards.
"""
import atexit
import csv
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import urllib.request

from kit import MIB, TOP, Failed, Missing, two_cpus
import servers
from stage import FLUE, HANG, TCP, UNIX, Stage, busy_processes

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


def whole(seconds):
    """For programs that count no fractions."""
    return str(max(1, round(seconds)))


def answer(port):
    """Waits for the first answer of a web server that listens."""
    try:
        with urllib.request.urlopen("http://127.0.0.1:%d/" % port, timeout=HANG) as page:
            page.read()
    except OSError as error:
        raise Failed("no first answer: %s" % error) from error


def beside(count, measure):
    """The same measurement beside so many busy processes."""
    def loaded(seconds):
        with busy_processes(count):
            return measure(seconds)
    return loaded if count else measure


class Databases:
    """Directories with data, made without the library when first needed; all measurements share them."""

    def __init__(self, scratch=None):
        self.scratch, self.directories = scratch, {}

    def directory(self, user, fill):
        if user not in self.directories:
            if not servers.known(user):
                raise Missing("there is no user %s: skipped" % user)
            directory = tempfile.mkdtemp(prefix="flue-bench-", dir=self.scratch)
            atexit.register(shutil.rmtree, directory, ignore_errors=True)
            servers.give(user, directory)
            with Stage(TCP, None, directory, user) as stage:
                fill(stage)
            self.directories[user] = directory
        return self.directories[user]


class Loads:
    """Where the programs are, and how each is measured with one build of the library."""

    def __init__(self, library=None, bench=None, scratch=None, databases=None, pin=True):
        build = os.path.join(TOP, "build", "release")
        self.bench = bench or os.path.join(build, "bench", "sockets_bench")
        self.library = library or os.path.join(build, "src", "libflue-sockets.so")
        self.scratch, self.pin = scratch, pin
        self.databases = databases or Databases(scratch)

    def stage(self, kind, directory=None, user=None):
        return Stage(kind, self.library, directory, user, self.scratch)

    def cpus(self, place):
        """The client's and the server's processor."""
        pair = two_cpus()
        if place == "unpinned" or not self.pin:
            return None, None
        if place == "two CPUs" and not pair:
            raise Missing("only one processor here")
        first = min(os.sched_getaffinity(0))
        return pair if place == "two CPUs" else (first, first)

    @staticmethod
    def need(*programs):
        for program in programs:
            if not program or not servers.find(program):
                raise Missing("%s is not installed: skipped" % (program or "PostgreSQL"))

    # Each of these makes a function (seconds) -> figures for one contender.

    def plain(self, kind, place, *words, timed=True):
        """sockets_bench, both ends in one command."""
        def measure(seconds):
            with self.stage(kind) as stage:
                command = [self.bench, *words]
                if timed:
                    command += ["--seconds", str(seconds)]
                client, server = self.cpus(place)
                if client is not None:
                    command += ["--pin", "%d,%d" % (client, server)]
                if kind == UNIX:
                    command += ["--unix"]
                return stage.counted(json.loads(stage.run(command)))
        return measure

    def alone(self, kind, *words):
        """sockets_bench, and only the client may have the library."""
        def measure(seconds):
            client, server = self.cpus("two CPUs")
            with self.stage(kind) as stage:
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

    def forks(self, kind, sockets):
        """What forks cost in a program that has so many sockets."""
        def measure(_seconds):
            with self.stage(kind) as stage:
                program = os.path.join(os.path.dirname(self.bench), "sockets_fork")
                return stage.counted(json.loads(stage.run([program, str(sockets)])))
        return measure

    def calls(self, kind):
        """System calls of the client per round trip: the difference of a long and a short run."""
        def count(trips):
            with self.stage(kind) as stage:
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
        def measure(seconds):
            self.need("iperf3")
            client, server = self.cpus(place)
            with self.stage(kind) as stage:
                port = servers.free_port()
                process = stage.start(["iperf3", "-s", "-1", "-B", "127.0.0.1", "-p", str(port)],
                                      server, ready=lambda: servers.listens(port))
                out = stage.run(["iperf3", "-c", "127.0.0.1", "-p", str(port), "-J", "-t",
                                 whole(seconds)], client)
                try:
                    process.wait(HANG)  # by itself, after one client
                except subprocess.TimeoutExpired as error:
                    raise Failed("iperf3's server does not end") from error
                stage.stop()
                return stage.counted({"mib_per_s": json.loads(out)["end"]["sum_received"][
                    "bits_per_second"] / 8 / MIB})
        return measure

    def redis(self, kind, place, clients, pipeline, count):
        def measure(seconds):
            self.need("redis-server", "redis-benchmark")
            client, server = self.cpus(place)
            with self.stage(kind) as stage:
                port, path = servers.free_port(), stage.path("redis")
                stage.start(["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "",
                             "--unixsocket", path, "--dir", stage.directory], server,
                            ready=lambda: servers.listens(port) and os.path.exists(path))
                where = ["-s", path] if kind == UNIX else ["-h", "127.0.0.1", "-p", str(port)]
                out = stage.run(["redis-benchmark", *where, "-t", "get", "--csv", "-c", str(clients),
                                 "-P", str(pipeline), "-n", str(int(count * seconds / 0.5))], client)
                stage.stop()
                rate = [row for row in csv.reader(out.splitlines()) if row[0].startswith("GET")]
                if not rate:
                    raise Failed("redis-benchmark said nothing")
                return stage.counted({"per_second": float(rate[0][1])})
        return measure

    def nginx(self, kind, place, size):
        def measure(seconds):
            self.need("nginx", "wrk")
            client, server = self.cpus(place)
            with self.stage(kind) as stage:
                port = servers.free_port()
                with open(stage.path("file"), "wb") as file:
                    file.write(os.urandom(size))
                with open(stage.path("nginx.conf"), "w", encoding="utf-8") as file:
                    file.write(NGINX.format(dir=stage.directory, port=port,
                                            user="user root;" if os.getuid() == 0 else ""))
                stage.start(["nginx", "-p", stage.directory, "-e", stage.path("error.log"), "-c",
                             stage.path("nginx.conf")], server, stop=signal.SIGQUIT,
                            ready=lambda: servers.listens(port))
                return self.wrk(stage, port, "file", 16, seconds, client)
        return measure

    @staticmethod
    def wrk(stage, port, path, connections, seconds, cpu=None):
        """Requests per second of what listens, with the counters of all."""
        out = stage.run(["wrk", "-t1", "-c%d" % connections, "-d" + whole(seconds),
                         "http://127.0.0.1:%d/%s" % (port, path)], cpu)
        stage.stop()
        if "Non-2xx" in out or "Socket errors" in out:
            raise Failed("wrk saw errors")
        return stage.counted({"per_second": float(re.search(r"Requests/sec:\s*([\d.]+)", out)[1])})

    # ---- databases, which have their own user ----

    @staticmethod
    def start_postgres(stage):
        port = servers.free_port()
        stage.start(servers.postgres_serve(stage.path("data"), port, stage.directory), stop=signal.SIGINT,
                    # It listens before it is ready.
                    ready=lambda: "ready to accept connections" in stage.log())
        return port

    @staticmethod
    def pgbench_words(stage, port, *words):
        host = stage.directory if stage.kind == UNIX else "127.0.0.1"
        return [servers.postgres_tool("pgbench"), "-h", host, "-p", str(port), "-U", servers.POSTGRES,
                *words, servers.POSTGRES]

    def fill_postgres(self, stage):
        stage.run(servers.postgres_init(stage.path("data")))
        port = self.start_postgres(stage)
        stage.run(self.pgbench_words(stage, port, "-i", "-q", "-s", "1"))

    def pgbench(self, kind, clients, threads, hogs=0):
        def measure(seconds):
            self.need(servers.postgres_tool("initdb"), servers.postgres_tool("pgbench"))
            directory = self.databases.directory(servers.POSTGRES, self.fill_postgres)
            with self.stage(kind, directory, servers.POSTGRES) as stage:
                port = self.start_postgres(stage)
                out = stage.run(self.pgbench_words(stage, port, "-S", "-n", "-c", str(clients), "-j",
                                                   str(threads), "-T", whole(seconds)))
                stage.stop()
                return stage.counted({"per_second": float(re.search(r"tps = ([\d.]+)", out)[1])})
        return beside(hogs, measure)

    @staticmethod
    def fill_mariadb(stage):
        stage.run(servers.mariadb_init(stage.path("data")))

    def mysqlslap(self, kind, clients, count, hogs=0):
        """`count` queries in half a second, or about that. Beside busy processes less than a second says little."""
        def measure(seconds):
            self.need("mariadb-install-db", "mariadbd", "mariadb-slap")
            directory = self.databases.directory(servers.MYSQL, self.fill_mariadb)
            with self.stage(kind, directory, servers.MYSQL) as stage:
                port = servers.free_port()
                stage.start(servers.mariadb_serve(stage.path("data"), port, stage.path("socket")),
                            ready=lambda: "ready for connections" in stage.log())
                out = stage.run(["mariadb-slap", "--no-defaults", "--protocol=tcp", "-h", "127.0.0.1",
                                 "-P", str(port), "-u", "root", "-c", str(clients), "--csv",
                                 "--number-of-queries=%d" % int(count * max(1, seconds) / 0.5), "--auto-generate-sql",
                                 "--auto-generate-sql-load-type=read", "--auto-generate-sql-write-number=20"])
                stage.stop()
                # engine, kind, mean, least, most seconds, clients, queries of each
                fields = out.strip().split(",")
                if len(fields) < 7 or float(fields[2]) <= 0:
                    raise Failed("mariadb-slap said " + out.strip())
                return stage.counted({"per_second": int(fields[5]) * int(fields[6]) / float(fields[2])})
        return beside(hogs, measure)

    # ---- interpreters ----

    def gunicorn(self, kind, workers, hogs=0):
        """`workers`: words for gunicorn. Those of kind sync take a new connection for every request."""
        def measure(seconds):
            self.need("gunicorn", "wrk")
            with self.stage(kind) as stage:
                port = servers.free_port()
                with open(stage.path("app.py"), "w", encoding="utf-8") as file:
                    file.write(servers.WSGI)
                stage.start(servers.gunicorn_serve(port, *workers), ready=lambda: servers.listens(port))
                answer(port)  # the workers come after the listener
                return self.wrk(stage, port, "", 8, seconds)
        return beside(hogs, measure)

    def erlang(self, kind, connections, hogs=0):
        def measure(seconds):
            self.need("escript")
            with self.stage(kind) as stage:
                port = servers.free_port()
                stage.start(servers.erlang_echo("server", port), ready=lambda: servers.listens(port))
                out = stage.run(servers.erlang_echo("client", port, connections, max(1.0, seconds)))
                stage.stop()
                return stage.counted({"per_second": float(out)})
        return beside(hogs, measure)
