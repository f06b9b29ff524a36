"""Where a scenario plays: a directory, ports, and programs with or without the library.

A program belongs to a side, "server" or "client". Which sides get the library is the scene's
mode: "both", "server", "client", or "native" for none. Programs run in the foreground, as children
of the scene, which ends them by their numbers.
"""
import ctypes
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import counters
import servers
from servers import descendants, listens

MODES = ("native", "both", "server", "client")
SIDES = {"native": (), "both": ("server", "client"), "server": ("server",),
         "client": ("client",)}
HANG = 120  # seconds; for what takes a few
PYTHON = "/usr/bin/python3"
PR_SET_CHILD_SUBREAPER = 36


class Failure(Exception):
    """The scenario did not go as it should."""


class Skip(Exception):
    """It cannot be played here."""


def check(condition, text, *details):
    if not condition:
        raise Failure(text % details if details else text)


def adopt_orphans():
    """Grandchildren whose parent ends become ours, so that none gets lost."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


# ---- processes ----

def command_line(pid):
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            return file.read().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return "?"


def backtrace(pid):
    if not shutil.which("gdb"):
        return "no gdb"
    try:
        done = subprocess.run(["gdb", "-p", str(pid), "-batch", "-ex", "thread apply all bt 24"],
                              capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return "gdb hangs"
    lines = done.stdout.splitlines()
    return "\n".join(line for line in lines if line.startswith(("#", "Thread")))


# ---- programs ----

class Program:
    """One that was started; its output goes to files."""

    def __init__(self, scene, name, words, stop, **options):
        self.scene, self.name, self.stop_signal = scene, name, stop
        self.out_path = scene.path("%s.out" % name)
        self.err_path = scene.path("%s.err" % name)
        with open(self.out_path, "wb") as out, open(self.err_path, "wb") as err:
            self.process = subprocess.Popen(words, stdout=out, stderr=err, **options)

    @property
    def pid(self):
        return self.process.pid

    def out(self):
        with open(self.out_path, "rb") as file:
            return file.read()

    def err(self):
        with open(self.err_path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def complaints(self):
        """What it said on standard error, without what the library said there."""
        return "".join(line for line in self.err().splitlines(True) if not line.startswith("flue: "))

    def wait(self):
        """Its exit status."""
        try:
            return self.process.wait(self.scene.patience)
        except subprocess.TimeoutExpired:
            self.scene.hang("%s does not end" % self.name)
            raise AssertionError from None  # hang() raises

    def stop(self, good=(0,)):
        """Ends it in the program's own way, so that it can say its counters."""
        if self.process.poll() is None:
            self.process.send_signal(self.stop_signal)
        status = self.wait()
        check(status in good, "%s ended with status %d\n%s", self.name, status, self.err()[-3000:])


class Scene:
    def __init__(self, mode, library, directory, quick, extra=None):
        self.mode, self.directory, self.quick = mode, directory, quick
        self.library, self.extra = library, extra or {}
        self.patience = HANG
        self.stats_path = self.path("stats")
        self.programs = []
        self.notes = []
        self.last_error = ""  # what the last program of run() said
        self.why = []  # connections that stayed on TCP, as FLUE_WHY tells them
        self.least_connections, self.least_bytes = 1, 0
        self.inner = False  # programs of the same side talk to each other
        self.share_required = True
        self.plain = False  # no connection has the library on both ends
        os.makedirs(directory)
        os.chmod(directory, 0o755)
        with open(self.stats_path, "wb"):
            pass
        os.chmod(self.stats_path, 0o666)  # several users write it

    # -- small things that scenarios need --

    def path(self, *names):
        return os.path.join(self.directory, *names)

    def size(self, quick, full):
        return quick if self.quick else full

    def expect(self, connections, octets):
        """The least that must go through lanes when both sides have the library."""
        self.least_connections, self.least_bytes = connections, octets

    def note(self, text, *details):
        self.notes.append(text % details if details else text)

    def write(self, name, content):
        if isinstance(content, str):
            content = content.encode()
        path = self.path(name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)
        os.chmod(path, 0o644)
        return path

    port = staticmethod(servers.free_port)

    # -- programs --

    def environment(self, side):
        env = servers.environment(HOME=self.directory)
        if side in SIDES[self.mode] and self.library:
            env.update(LD_PRELOAD=self.library, FLUE_STATS=self.stats_path, **self.extra)
        return env

    def options(self, side, user, env):
        return {"env": dict(self.environment(side), **(env or {})), "cwd": self.directory,
                **servers.as_user(user)}

    def start(self, side, words, port=None, stop=signal.SIGTERM, name=None, user=None, env=None,
              stdin=subprocess.DEVNULL):
        """Starts a program that stays; returns once it listens on `port`."""
        name = name or "%s-%d" % (os.path.basename(words[0]), len(self.programs))
        program = Program(self, name, words, stop, stdin=stdin,
                          **self.options(side, user, env))
        self.programs.append(program)
        if port:
            self.until(lambda: listens(port) or program.process.poll() is not None,
                       "%s does not listen" % name)
            check(program.process.poll() is None, "%s ended at once\n%s", name,
                  program.err() + program.out().decode(errors="replace"))
        return program

    def run(self, side, words, good=(0,), data=None, seconds=None, user=None, env=None):
        """Runs a program to its end; returns its output. `data` is its input, bytes or a path."""
        stdin = subprocess.DEVNULL
        if isinstance(data, str):
            stdin = open(data, "rb")  # pylint: disable=consider-using-with
        elif data is not None:
            stdin = subprocess.PIPE
        process = subprocess.Popen(words, stdin=stdin, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, **self.options(side, user, env))
        if isinstance(data, str):
            stdin.close()
        try:
            out, err = process.communicate(data if isinstance(data, bytes) else None,
                                           seconds or self.patience)
        except subprocess.TimeoutExpired:
            self.hang("%s does not end" % " ".join(words)[:300])
        self.last_error = err.decode(errors="replace")
        self.why += reasons(self.last_error)
        check(process.returncode in good, "%s\nended with status %d\n%s",
              " ".join(words)[:300], process.returncode,
              (err + out)[-3000:].decode(errors="replace"))
        return out

    def until(self, ready, text):
        end = time.monotonic() + self.patience
        while not ready():
            if time.monotonic() > end:
                self.hang(text)
            time.sleep(0.01)

    def hang(self, text):
        """Fails, with what every process is doing."""
        lines = [text]
        for pid in descendants(os.getpid()):
            lines += ["-- %d %s" % (pid, command_line(pid)), backtrace(pid)]
        done = subprocess.run(["ss", "-tnpOH"], capture_output=True, text=True, check=False) \
            if shutil.which("ss") else None
        lines += ["-- sockets", done.stdout] if done else []
        raise Failure("\n".join(lines))

    def stop(self):
        """Ends all, the last first. A program that must be forced was not well."""
        for program in reversed(self.programs):
            if program.process.returncode is None:
                program.stop(good=(0, -program.stop_signal, 128 + program.stop_signal))

    def clean(self):
        """After all this no process may be left; says which were, and ends them."""
        left = [(pid, command_line(pid)) for pid in descendants(os.getpid())]
        for pid, _ in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        while True:
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0 and not descendants(os.getpid()):
                    break
            except ChildProcessError:
                break
            time.sleep(0.01)
        return ["left behind: %d %s" % pair for pair in left]

    def judge_counters(self):
        """Problems as text, by what the mode promises."""
        total = counters.Total(counters.read(self.stats_path))
        if self.mode == "native" or not self.library:
            return ["counters without the library"] if total.rows else []
        self.note("%s", total.text())
        problems = [] if total.rows else ["no process has left its counters"]
        if self.mode == "both" and self.share_required:
            problems += total.problems(self.least_connections, self.least_bytes)
        if (self.plain or self.mode != "both" and not self.inner) and total.lanes:
            problems.append("%d lanes with a plain peer" % total.lanes)
        return problems + (total.table()[:40] if problems else [])

    def all_reasons(self):
        return self.why + [line for program in self.programs for line in reasons(program.err())]


def reasons(text):
    return [line for line in text.splitlines() if line.startswith("flue: ")]


# ---- data ----

def noise(size, seed=1):
    """Octets that do not repeat, so that a shifted or lost part is seen."""
    part = 64_000_000  # more is too long for randbytes
    return b"".join(random.Random(seed + at).randbytes(min(part, size - at))
                    for at in range(0, size, part))


def digest(data):
    return hashlib.sha256(data).hexdigest()


def digest_file(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() \
            if sys.version_info >= (3, 11) else digest(file.read())
