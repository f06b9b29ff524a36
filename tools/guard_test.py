#!/usr/bin/env python3
"""End-to-end tests of `flue run --why` and `--stats`, which stay beside the program: guard_test.py PATH-TO-FLUE

The caller must see what it would see of the program alone, and be told also of what signals end. Prints TAP.
"""
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import time

FLUE = os.path.abspath(sys.argv[1])
LIBRARY = os.path.join(os.path.dirname(FLUE), "../src/libflue-sockets.so")
PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
PATIENCE = 120  # seconds; only a hang reaches this


class Skip(Exception):
    """This cannot be tested here, and why."""


def need_library():
    if not os.path.exists(LIBRARY):
        raise Skip("libflue-sockets.so is not built")


def environment(**more):
    env = {k: v for k, v in os.environ.items() if not k.startswith("FLUE_") and k != "LD_PRELOAD"}
    return dict(env, FLUE_RULES="/dev/null", **more)


def start(*words, **more):
    """A program that stays, in a session of its own so that groups of ours are spared."""
    options = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                   env=environment(), start_new_session=True)
    options.update(more)
    return subprocess.Popen([FLUE, "run", *words], **options)


def end(process):
    """Its output and errors."""
    try:
        return process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise


def until(condition, what):
    limit = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > limit:
            raise AssertionError("in vain: " + what)
        time.sleep(0.005)


def alive(pid):
    try:
        with open("/proc/%d/stat" % pid, encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# ---- as if it were the program ----

def the_status_is_the_programs():
    for status in 0, 7, 255:
        process = start("--why", "sh", "-c", "exit %d" % status)
        end(process)
        assert process.returncode == status, process.returncode


def the_signal_that_ended_it_ends_the_command():
    for number in signal.SIGTERM, signal.SIGKILL, signal.SIGINT, signal.SIGSEGV, signal.SIGUSR1:
        process = start("--why", "sh", "-c", "kill -%d $$" % number)
        end(process)
        assert process.returncode == -number, (number, process.returncode)


def what_cannot_be_started_is_told_as_without():
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"\x7fELF nonsense")
        file.flush()
        os.chmod(file.name, 0o755)
        process = start("--why", file.name)
        assert "cannot run " + file.name in end(process)[1]
        assert process.returncode == 126, process.returncode


def input_and_output_are_the_programs():
    process = start("--why", "cat")
    assert process.communicate("some text\n", timeout=PATIENCE)[0] == "some text\n"


def a_pipe_ends_when_the_program_closes_it():
    process = start("--why", "sh", "-c", "exec >&-; read line")
    assert process.stdout.read() == ""  # while it runs
    assert process.poll() is None
    end(process)


def a_caller_that_ignores_children_gets_the_status():
    process = start("--why", "sh", "-c", "exit 3",
                    preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
    end(process)
    assert process.returncode == 3, process.returncode


# Writes a line for each signal that comes, and ends at the end of its input.
COUNTER = """
import os, signal, sys
for number in signal.SIGUSR1, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGCONT:
    # Not print(): the next signal may come into it.
    signal.signal(number, lambda n, _: os.write(1, signal.Signals(n).name.encode() + bytes([10])))
print("ready", flush=True)
sys.stdin.read()
"""


def signals(send):
    """What the program got when `send` sent it."""
    process = start("--why", PYTHON, "-c", COUNTER)
    assert process.stdout.readline() == "ready\n"
    for number in signal.SIGUSR1, signal.SIGTERM, signal.SIGHUP, signal.SIGINT:
        send(process, number)
        time.sleep(0.05)  # whatever comes twice must have the time to
    out, err = end(process)
    assert process.returncode == 0, (process.returncode, err)
    return out.split()


def a_signal_to_the_command_is_passed_on_once():
    assert signals(lambda p, n: p.send_signal(n)) == ["SIGUSR1", "SIGTERM", "SIGHUP", "SIGINT"]


def a_signal_to_the_group_is_not_passed_on_again():
    assert signals(lambda p, n: os.killpg(p.pid, n)) == ["SIGUSR1", "SIGTERM", "SIGHUP", "SIGINT"]


def a_signal_to_the_parent_reaches_the_caller():
    got = []
    before = signal.signal(signal.SIGUSR2, lambda *_: got.append(1))
    try:
        end(start("--why", "sh", "-c", "kill -USR2 $PPID; read line"))
        until(lambda: got, "the signal")
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert got == [1], got


def who_kills_the_command_kills_the_program():
    process = start("--why", "sh", "-c", "echo $$; exec sleep 1000")
    pid = int(process.stdout.readline())
    process.kill()
    end(process)
    assert process.returncode == -signal.SIGKILL
    until(lambda: not alive(pid), "the end of the program")


# ---- on a terminal ----

class Terminal:
    """An interactive shell on a terminal of its own."""

    def __init__(self):
        self.text = ""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update(environment(PS1="PROMPT> ", TERM="dumb", HISTFILE="/dev/null"))
            os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])
        self.expect(r"PROMPT> ")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.kill(self.pid, signal.SIGHUP)
        os.kill(self.pid, signal.SIGCONT)
        os.close(self.fd)
        os.waitpid(self.pid, 0)

    def type(self, text):
        os.write(self.fd, text.encode())

    def expect(self, pattern):
        """Wait for it; what came before is forgotten."""
        limit = time.monotonic() + PATIENCE
        while not (found := re.search(pattern, self.text)):
            ready = select.select([self.fd], [], [], max(0, limit - time.monotonic()))[0]
            if not ready:
                raise AssertionError("no %r in %r" % (pattern, self.text))
            self.text += os.read(self.fd, 4096).decode(errors="replace")
        self.text = self.text[found.end():]
        return found


def control_c_and_control_z_do_what_they_should():
    with Terminal() as term:
        term.type("%s run --why %s -c \"print('up', flush=True); input()\"\n" % (FLUE, PYTHON))
        term.expect(r"up\r\n")
        for _ in range(2):
            term.type("\x1a")
            term.expect(r"Stopped")
            term.expect(r"PROMPT> ")
            term.type("fg\n")
            term.expect(r"run --why")
            time.sleep(0.05)
        term.type("some input\n")
        term.expect(r"PROMPT> ")
        term.type("echo status $?\n")
        term.expect(r"status 0\r\n")
        term.type("%s run --why sleep 1000\n" % FLUE)
        time.sleep(0.5)
        term.type("\x03")
        term.expect(r"PROMPT> ")
        term.type("echo status $?\n")
        term.expect(r"status 130\r\n")


def a_shell_with_jobs_of_its_own_works():
    with Terminal() as term:
        term.type("PS1='INNER> ' %s run --why bash --norc --noprofile -i\n" % FLUE)
        term.expect(r"INNER> ")
        term.type("sleep 1000\n")
        time.sleep(0.2)
        term.type("\x1a")
        term.expect(r"Stopped")
        term.expect(r"INNER> ")
        term.type("kill %1; suspend\n")
        term.expect(r"PROMPT> ")
        term.type("fg\n")
        term.expect(r"run --why bash")
        term.type("echo $((40 + 2))\n")
        term.expect(r"42\r\n")
        term.type("exit 5\n")
        term.expect(r"PROMPT> ")
        term.type("echo status $?\n")
        term.expect(r"status 5\r\n")


def what_reads_the_terminal_in_the_background_is_stopped_as_a_job():
    with Terminal() as term:
        term.type("%s run --why sed -u s/words/heard/ &\n" % FLUE)
        term.expect(r"\[1\] \d+")
        term.expect(r"PROMPT> ")
        until_stopped = time.monotonic() + PATIENCE
        while time.monotonic() < until_stopped:
            term.type("jobs\n")
            found = term.expect(r"\[1\]\+?\s+(Running|Stopped)")
            term.expect(r"PROMPT> ")
            if found[1] == "Stopped":
                break
            time.sleep(0.1)
        else:
            raise AssertionError("it is not stopped")
        term.type("fg\n")
        term.expect(r"run --why sed")
        term.type("words\n")
        term.expect(r"heard\r\n")
        term.type("\x04")
        term.expect(r"PROMPT> ")


# ---- what is told ----

# A process and its child: a lane, a connection that stays young, one that has ended; then both wait.
TALKERS = """
import os, socket, sys, time
s = socket.create_server(("127.0.0.1", 0))
def exchange(c, times, first):
    for i in range(times):
        if first: c.sendall(bytes(100))
        got = 0
        while got < 100: got += len(c.recv(100 - got))
        if not first: c.sendall(bytes(100))
child = os.fork()
ends = []
for times in 1, 500, 1:
    end = s.accept()[0] if child else socket.create_connection(s.getsockname())
    exchange(end, times, not child)
    if not ends: end.close()
    ends.append(end)
if child:
    print(child, flush=True)
time.sleep(1000)
"""


def rows(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def totals_and_reasons_are_told_when_a_signal_ends_the_program():
    need_library()
    for kill, status in ((lambda p, child: p.terminate(), -15),
                         (lambda p, child: os.killpg(p.pid, signal.SIGINT), None)):
        with tempfile.TemporaryDirectory() as folder:
            stats = os.path.join(folder, "stats")
            process = start("--why", "--stats", stats, PYTHON, "-c", TALKERS)
            child = int(process.stdout.readline())
            if status:
                os.kill(child, signal.SIGKILL)
                until(lambda: os.path.exists(stats), "what the child has left")
                assert [r["pid"] for r in rows(stats)] == [child], rows(stats)
            kill(process, child)
            _, err = end(process)
            assert status is None or process.returncode == status, process.returncode
            found = rows(stats)
            assert len(found) == 2 and child in [r["pid"] for r in found], found
            for row in found:
                assert row["connections"] == 3 and row["lanes"] == 1, found
                assert row["eligible_lane_tx"] > 40000 and row["eligible_lane_rx"] > 40000, found
            lines = re.findall(r"flue: python3\S*\[\d+\]: 127.* was on TCP: too young", err)
            assert len(lines) == 4, err


def totals_are_told_when_somebody_kills_the_command():
    need_library()
    with tempfile.TemporaryDirectory() as folder:
        stats = os.path.join(folder, "stats")
        process = start("--stats", stats, PYTHON, "-c", TALKERS)
        child = int(process.stdout.readline())
        process.kill()
        until(lambda: os.path.exists(stats) and rows(stats), "totals")
        os.kill(child, signal.SIGKILL)
        end(process)
        assert rows(stats)[0]["connections"] == 3, rows(stats)


def nothing_is_told_twice_when_the_program_ends_by_itself():
    need_library()
    with tempfile.TemporaryDirectory() as folder:
        stats = os.path.join(folder, "stats")
        program = TALKERS.replace("time.sleep(1000)", "child and os.wait()")
        process = start("--why", "--stats", stats, PYTHON, "-c", program)
        _, err = end(process)
        assert process.returncode == 0 and len(rows(stats)) == 2, (rows(stats), err)
        assert err.count("too young") == 4, err


def reasons_name_the_program_at_the_other_end():
    need_library()
    server = """
import socket, sys
s = socket.create_server(("127.0.0.1", 0))
print(s.getsockname()[1], flush=True)
c, _ = s.accept()
while data := c.recv(65536): c.sendall(data)
"""
    client = """
import socket, sys
c = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
for i in range(200):
    c.sendall(bytes(100))
    c.recv(100)
print("done", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen([PYTHON, "-c", server], stdout=subprocess.PIPE, text=True) as peer:
        port = peer.stdout.readline().strip()
        process = start("--why", PYTHON, "-c", client, port)
        assert process.stdout.readline() == "done\n"
        time.sleep(0.5)  # a look at all processes may take a while
        _, err = end(process)
    assert re.search(r"does not run under Flue: \S+\[%d\]" % peer.pid, err), err


TESTS = [the_status_is_the_programs, the_signal_that_ended_it_ends_the_command,
         what_cannot_be_started_is_told_as_without, input_and_output_are_the_programs,
         a_pipe_ends_when_the_program_closes_it, a_caller_that_ignores_children_gets_the_status,
         a_signal_to_the_command_is_passed_on_once, a_signal_to_the_group_is_not_passed_on_again,
         a_signal_to_the_parent_reaches_the_caller, who_kills_the_command_kills_the_program,
         control_c_and_control_z_do_what_they_should,
         a_shell_with_jobs_of_its_own_works,
         what_reads_the_terminal_in_the_background_is_stopped_as_a_job,
         totals_and_reasons_are_told_when_a_signal_ends_the_program,
         totals_are_told_when_somebody_kills_the_command,
         nothing_is_told_twice_when_the_program_ends_by_itself,
         reasons_name_the_program_at_the_other_end]


def main():
    chosen = [t for t in TESTS if len(sys.argv) < 3 or t.__name__ in sys.argv[2:]]
    print("1..%d" % len(chosen), flush=True)
    failed = 0
    for number, test in enumerate(chosen, 1):
        try:
            test()
            print("ok %d - %s" % (number, test.__name__), flush=True)
        except Skip as why:
            print("ok %d - %s # SKIP %s" % (number, test.__name__, why), flush=True)
        except Exception as error:  # whatever it is, the next test shall run
            failed += 1
            print("not ok %d - %s" % (number, test.__name__))
            for line in ("%s: %s" % (type(error).__name__, error)).splitlines():
                print("# " + line)
            sys.stdout.flush()
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
