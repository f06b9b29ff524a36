"""Contenders of bench/run: flue_bench's modes, UCX's and libfabric's own measuring programs.

A contender takes the two processors (or None) and a time in seconds, and gives figures.
"""
import json
import os
import subprocess
import time

from kit import MIB, TOP, Failed, run_command
from servers import free_port

PROGRAM = os.path.join(TOP, "build", "release", "bench", "flue_bench")

# Words for flue_bench; every contender's name shows them.
POLL = ("--wait", "poll")
FULL_TCP = ("--full", "--link", "tcp")
LOCAL = ("--full", "--link", "local")
DENIED = LOCAL + ("--no-process-vm",)


def ours(*arguments):
    """A mode of flue_bench."""
    def measure(cpus, seconds):
        command = [PROGRAM, *arguments, "--seconds", str(seconds)]
        if cpus:
            command += ["--pin", "%d,%d" % cpus]
        return json.loads(run_command(command))
    return measure


def flue(label, *arguments):
    """Label and contender, the label with the flags."""
    return "%s (%s)" % (label, " ".join(arguments)), ours(*arguments)


def pinned(cpus, index, command):
    return ["taskset", "-c", str(cpus[index]), *command] if cpus else command


def run_pair(cpus, server, client, env=None, timeout=60):
    """Start a server, then the client as soon as the server is there; the client's output."""
    variables = dict(os.environ, **(env or {}))
    with subprocess.Popen(pinned(cpus, 1, server), stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL, env=variables) as process:
        try:
            last = None
            for _ in range(40):
                time.sleep(0.1)
                try:
                    text = run_command(pinned(cpus, 0, client), timeout, env=variables)
                    break
                except Failed as error:
                    last = error
                    if process.poll() is not None:
                        raise
            else:
                raise last
            try:
                process.wait(3)  # its end tidies up what it has in /dev/shm
            except subprocess.TimeoutExpired:
                pass
            return text
        finally:
            process.kill()


UCX_TCP = {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo", "UCX_WARN_UNUSED_ENV_VARS": "n"}
UCX_LOCAL = {"UCX_TLS": "posix,cma", "UCX_WARN_UNUSED_ENV_VARS": "n"}
# Without this the memory of its one-sided tests is memory that both processes have mapped.
UCX_PRIVATE = dict(UCX_LOCAL, UCX_ALLOC_PRIO="mmap")


def often(seconds, each, least=50, most=3_000_000):
    """How many of something that takes about so long."""
    return int(min(max(seconds / each, least), most))


def ucx(test, size, iterations, warmup=None, sleep=False, env=None):
    """ucx_perftest prints, last: iterations, latency (50 %, mean, overall), MiB/s (mean, overall), messages/s
    (mean, overall). `iterations` is a number or a function of the seconds."""
    def measure(cpus, seconds):
        port = str(free_port())
        count = iterations(seconds) if callable(iterations) else iterations
        common = ["ucx_perftest", "-p", port]
        if sleep:
            common += ["-E", "sleep"]
        client = common[:1] + ["127.0.0.1"] + common[1:] + [
            "-t", test, "-s", str(size), "-n", str(count), "-w", str(warmup or count // 10 + 1), "-f"]
        text = run_pair(cpus, common, client, env or UCX_TCP)
        rows = [line.split() for line in text.splitlines()]
        numbers = [row for row in rows if len(row) >= 8 and row[0].isdigit()]
        if not numbers:
            raise Failed("no figures in ucx_perftest's output")
        last = [float(number) for number in numbers[-1][:8]]
        # Its latency is half of a round trip.
        return {"p50_us": 2 * last[1], "mean_us": 2 * last[2], "mib_per_s": last[5], "per_second": last[7]}
    return measure


def libfabric(size, iterations, provider="tcp", endpoint="msg"):
    """fi_pingpong prints: bytes #sent #ack total time MB/sec usec/xfer; a transfer is one way."""
    def measure(cpus, seconds):
        port = str(free_port())
        count = iterations(seconds) if callable(iterations) else iterations
        common = ["fi_pingpong", "-p", provider, "-e", endpoint, "-I", str(count), "-S", str(size)]
        text = run_pair(cpus, common + ["-B", port], common + ["-P", port, "127.0.0.1"])
        fields = text.splitlines()[-1].split()
        if len(fields) < 8:
            raise Failed("no figures in fi_pingpong's output")
        return {"mean_us": 2 * float(fields[6]), "p50_us": 2 * float(fields[6]),
                "mib_per_s": float(fields[5]) * 1e6 / MIB}
    return measure
