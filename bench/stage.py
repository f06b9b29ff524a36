"""One measurement of the sockets door: a directory, the programs in it, and their counters.

The programs know nothing of Flue. One with the library leaves its counters (FLUE_STATS): a row whose bytes
did not go through lanes says so. All are children that have a time limit and are ended by their numbers.
"""
import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import tempfile
import time

from kit import Failed  # first: it knows where the next two are
import counters
import servers

HANG = 60  # seconds, for what takes one or two
TCP, UNIX, FLUE = "tcp", "unix", "flue"
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)


class Stage:
    """`directory` is one that stays; without it there is a new one below `scratch` (None: /tmp)."""

    def __init__(self, kind, library, directory=None, user=None, scratch=None):
        self.kind, self.library, self.user = kind, library, user
        self.directory = directory or tempfile.mkdtemp(prefix="flue-bench-", dir=scratch)
        self.keep = directory is not None
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
        more = {}
        if self.kind == FLUE and library:
            more = {"LD_PRELOAD": self.library, "FLUE_STATS": self.stats}

        def prepare():
            LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if cpu is not None:
                os.sched_setaffinity(0, {cpu})

        return {"env": servers.environment(HOME=self.directory, **more), "cwd": self.directory,
                "stdin": subprocess.DEVNULL, "preexec_fn": prepare, **servers.as_user(self.user)}

    def run(self, words, cpu=None, library=True):
        """A program's output."""
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=HANG, check=False,
                                  **self.options(cpu, library))
        except (subprocess.TimeoutExpired, OSError) as error:
            raise Failed(str(error)[:200]) from error
        if done.returncode != 0:
            text = (done.stderr.strip() or done.stdout.strip() or "no word").splitlines()[-1]
            raise Failed("%s ended with %d: %s" % (words[0], done.returncode, text))
        return done.stdout

    def log(self):
        """What the servers have said so far."""
        with open(self.path("server.log"), encoding="utf-8", errors="replace") as log:
            return log.read()

    def start(self, words, cpu=None, library=True, stop=signal.SIGTERM, ready=None, **more):
        """A program that stays until the measurement ends."""
        with open(self.path("server.log"), "wb") as log:
            more = {"stdout": log, "stderr": log, **more}
            process = subprocess.Popen(words, **more, **self.options(cpu, library))
        self.servers.append((process, stop))
        end = time.monotonic() + HANG
        while ready and not ready():
            if process.poll() is not None or time.monotonic() > end:
                raise Failed("%s does not start: %s" % (words[0], self.log()[-200:]))
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
                kill_all(process)
                raise Failed("a server did not end") from None
            finally:
                if process.stdout:
                    process.stdout.close()

    def counted(self, figures):
        """The figures, with what the library says of itself; call it when all have ended."""
        if self.kind != FLUE:
            return figures
        total = counters.Total(counters.read(self.stats))
        if not total.rows:
            raise Failed("the library left no counters")
        both = total.lane_bytes + total.tcp_bytes
        return dict(figures, lanes=total.lanes, share=total.lane_bytes / both if both else 0)


def kill_all(process):
    """A program and what it has started."""
    for pid in servers.descendants(process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.kill()
    process.wait()


@contextlib.contextmanager
def busy_processes(count):
    """So many endless loops beside what is measured, on whatever processor."""
    hogs = []

    def prepare():
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    try:
        for _ in range(count):
            hogs.append(subprocess.Popen(["sh", "-c", "while :; do :; done"], preexec_fn=prepare,
                                         env=servers.environment()))
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
