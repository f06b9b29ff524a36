#!/usr/bin/env python3
"""End-to-end tests of `flue sockets --watch` on a terminal (tmux), as TAP: screen_test.py PATH-TO-FLUE"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

import sockets_test as base
from sockets_test import FLUE, PATIENCE, Skip

# A server and N connections to it, of which the first is busy and the others have said little.
MANY = """
import os, socket, sys, time
s = socket.create_server(("127.0.0.1", 0))
n = int(sys.argv[1])
if os.fork() == 0:
    ends = [socket.create_connection(s.getsockname()) for _ in range(n)]
else:
    ends = [s.accept()[0] for _ in range(n)]
    print(os.getpid(), s.getsockname()[1], flush=True)
first = ends[0].getsockname()[1] != s.getsockname()[1]
def turn(c):
    if first: c.sendall(bytes(1000))
    got = 0
    while got < 1000:
        more = len(c.recv(1000 - got))
        if not more: sys.exit(0)
        got += more
    if not first: c.sendall(bytes(1000))
for end in ends:
    for _ in range(20): turn(end)
while True:
    turn(ends[0])
    time.sleep(0.001)
"""


class Screen:
    """The command on a terminal of its own."""

    def __init__(self, *arguments, width=80, height=24, term=None):
        if not shutil.which("tmux"):
            raise Skip("there is no tmux")
        self.folder = tempfile.TemporaryDirectory()
        self.status = os.path.join(self.folder.name, "status")
        words = " ".join([FLUE, "sockets", "--watch=0.1", *arguments])
        script = "%s%s; echo $? >%s; exec sleep 1000" % ("TERM=%s " % term if term else "", words,
                                                        self.status)
        self.tmux("new-session", "-d", "-x", str(width), "-y", str(height), script)

    def tmux(self, *words):
        env = base.environment(TMUX_TMPDIR=self.folder.name)
        env.pop("TMUX", None)
        return subprocess.run(["tmux", "-f", "/dev/null", *words], check=True, capture_output=True,
                              text=True, env=env, timeout=PATIENCE).stdout

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.tmux("kill-server")
        self.folder.cleanup()

    def lines(self):
        return self.tmux("capture-pane", "-p").rstrip("\n").split("\n")

    def press(self, *keys):
        for key in keys:
            self.tmux("send-keys", key)

    def wait(self, *patterns):
        """Until each is on some line; the lines."""
        limit = time.monotonic() + PATIENCE
        while True:
            lines = self.lines()
            if all(any(re.search(p, line) for line in lines) for p in patterns):
                return lines
            if time.monotonic() > limit:
                raise AssertionError("no %r in\n%s" % (patterns, "\n".join(lines)))
            time.sleep(0.05)

    def ended(self):
        """Its exit status."""
        limit = time.monotonic() + PATIENCE
        while not (os.path.exists(self.status) and os.path.getsize(self.status)):
            if time.monotonic() > limit:
                raise AssertionError("it has not ended\n" + "\n".join(self.lines()))
            time.sleep(0.05)
        with open(self.status, encoding="ascii") as file:
            return int(file.read())


class Many:
    """Two processes with many connections."""

    def __init__(self, n):
        base.need_library()
        self.process = subprocess.Popen([FLUE, "run", sys.executable, "-c", MANY, str(n)],
                                        stdout=subprocess.PIPE, text=True, start_new_session=True,
                                        env=base.environment(FLUE_RULES="/dev/null"))
        self.pid, self.port = self.process.stdout.readline().split()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.killpg(self.process.pid, 9)
        self.process.communicate(timeout=PATIENCE)


def rows(lines):
    """Those between the titles and the details."""
    top = next(i for i, line in enumerate(lines) if line.startswith("PROGRAM"))
    return [line for line in lines[top + 1:next(
        (i for i, line in enumerate(lines) if line.startswith("-----")), len(lines))] if line]


def everything_that_matters_fits_80_columns():
    with Many(2) as many, Screen("--filter", "port=" + many.port) as screen:
        lines = screen.wait(r"^2 connections of .*, 2 in lanes", r"\d (B|KiB|MiB) +\d")
        assert max(map(len, lines)) <= 80, lines
        for title in "PROGRAM", "PID", "PEER", "PORT", "WAY", "OUT/s", "IN/s":
            assert title in lines[2], lines
        for row in rows(lines):
            assert " %s " % many.pid in row and " %s " % many.port in row and "lane " in row, row
        # All about the row under the cursor.
        assert re.search(r"127.0.0.1:\d+ to .*127.0.0.1:%s" % many.port, "\n".join(lines)), lines
        assert re.search(r"lane \d+%; sent .* in .* calls, received .* calls", "\n".join(lines)), lines


def reasons_are_whole_at_80_columns():
    base.need_library()
    with base.Pair(FLUE_RULE="use tcp listen * *") as pair:
        with Screen("--filter", "pid=%d" % pair.client_pid) as screen:
            lines = screen.wait(r"tcp peer-keeps", r"why TCP: ")
            text = " ".join(line.strip() for line in lines)
            assert "the other end keeps it on TCP: a rule says TCP: rule 1 of FLUE_RULE" in text, text


def rows_can_be_sorted():
    with Many(3) as many, Screen("--filter", "port=" + many.port) as screen:
        screen.wait(r"by rate;", r"3 connections", r"[KM]iB +\S+ [KM]iB")
        rates = [re.search(r"lane +\d+% +(\S+ \w+)", row)[1] for row in rows(screen.wait(r"KiB|MiB"))]
        assert rates[0] != "0 B" and rates[1:] == ["0 B", "0 B"], rates
        screen.press("r")
        screen.wait(r"by rate, reversed;")
        rates = [re.search(r"lane +\d+% +(\S+ \w+)", row)[1] for row in rows(screen.lines())]
        assert rates[0] == "0 B" and rates[2] != "0 B", rates
        for key in "bytes", "program", "pid", "port", "rate":
            screen.press("s")
            screen.wait(r"by %s, reversed;" % key)


def rows_can_be_filtered_as_one_types():
    with Many(2) as many, Screen() as screen:
        screen.wait(r"by rate; filter: none")
        screen.press("/", *("port=%s" % many.port))
        screen.wait(r"filter: port=%s" % many.port, r"^2 connections", r"Enter: done")
        screen.press("BSpace", "x", "Enter")
        screen.wait(r"^0 connections", r"q: quit")
        screen.press("/", "Escape")
        screen.wait(r"filter: none")


def rows_can_be_scrolled():
    with Many(60) as many, Screen("--filter", "pid=" + many.pid, "--sort", "port") as screen:
        screen.wait(r"^60 connections")
        top = rows(screen.lines())
        assert 10 < len(top) < 20, top
        screen.press("End")
        marked = r"to .*127.0.0.1:" + many.port
        screen.wait(marked)
        first = screen.lines()
        screen.press("Home")
        screen.wait(marked)
        limit = time.monotonic() + PATIENCE
        while screen.lines()[-4:] == first[-4:] and time.monotonic() < limit:
            time.sleep(0.05)
        assert screen.lines()[-4:] != first[-4:], first
        screen.press(*["Down"] * 30)
        screen.press("NPage", "PPage", "Up")
        screen.wait(marked)


def it_follows_the_size_of_the_terminal():
    with Many(2) as many, Screen("--filter", "port=" + many.port, width=60, height=10) as screen:
        screen.wait(r"^2 connections", "WAY")
        screen.tmux("resize-window", "-x", "200", "-y", "30")
        lines = screen.wait(r"ADDRESS.*SENT +RECEIVED")
        assert re.search(r"127\.0\.0\.1:%s" % many.port, rows(lines)[0]), lines
        screen.tmux("resize-window", "-x", "20", "-y", "4")
        time.sleep(0.5)
        screen.press("q")
        assert screen.ended() == 0


def it_ends_with_q_and_control_c_and_leaves_the_terminal_as_it_was():
    base.need_library()
    for key in "q", "C-c":
        with Screen() as screen:
            screen.wait(r"q: quit")
            screen.press(key)
            assert screen.ended() == 0, key
            assert not any("q: quit" in line for line in screen.lines()), screen.lines()


def a_terminal_that_cannot_be_drawn_on_gets_lines():
    with Screen(term="no-such-terminal") as screen:
        screen.wait(r"connection|no program of yours")
        screen.press("C-c")
        assert screen.ended() == 0


base.TESTS = [everything_that_matters_fits_80_columns, reasons_are_whole_at_80_columns,
              rows_can_be_sorted, rows_can_be_filtered_as_one_types, rows_can_be_scrolled,
              it_follows_the_size_of_the_terminal,
              it_ends_with_q_and_control_c_and_leaves_the_terminal_as_it_was,
              a_terminal_that_cannot_be_drawn_on_gets_lines]

if __name__ == "__main__":
    sys.exit(base.main())
