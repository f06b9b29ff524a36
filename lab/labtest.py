"""What the scenarios are made of: the lab, its programs on both sides, and captures."""
import os
import re
import signal
import subprocess
import threading
import time

HOST, GUEST = "10.77.0.1", "10.77.0.2"
CRASH = re.compile(r"BUG|Oops|Kernel panic|WARNING:")


class Failed(Exception):
    pass


class Skipped(Exception):
    pass


def check(condition, text):
    if not condition:
        raise Failed(text)


class Program:
    """A program of the lab, in the guest or on the host; its output arrives line by line."""

    def __init__(self, name, argv):
        self.name, self.lines, self.more = name, [], threading.Condition()
        self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, text=True, errors="replace")
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            with self.more:
                self.lines.append(line.rstrip())
                self.more.notify_all()
        with self.more:
            self.more.notify_all()

    def wait_line(self, start, timeout=10):
        def over():
            return any(line.startswith(start) for line in self.lines) or not self.reader.is_alive()
        with self.more:
            self.more.wait_for(over, timeout)
        check(any(line.startswith(start) for line in self.lines), f"no '{start}'\n{self.report()}")

    def wait(self, timeout):
        try:
            status = self.process.wait(timeout)
            self.reader.join(5)
            return status
        except subprocess.TimeoutExpired:
            raise Failed(f"not over after {timeout} s\n{self.report()}") from None

    def end(self, sig=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(sig)
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def report(self):
        shown = self.lines[-25:]
        return "\n".join([f"{self.name}: exit {self.process.poll()}"] + ["  " + line for line in shown])


class Lab:
    def __init__(self, tools, folder):
        self.tools, self.folder, self.why, self.boots, self.captures = tools, folder, "", 0, 0
        self.next_port = 7400

    def tool(self, name):
        return os.path.join(self.tools, name)

    def up(self):
        self.boots += 1
        self.state = os.path.join(self.folder, f"boot{self.boots}")
        done = subprocess.run([self.tool("up"), self.state], stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True, check=False)
        lines = done.stderr.strip().splitlines()
        self.why = lines[-1] if lines else ""
        return done.returncode

    def down(self):
        subprocess.run([self.tool("down"), self.state], check=False)

    def restart(self):
        self.down()
        check(self.up() == 0, f"the guest does not come back: {self.why}")

    def console(self):
        try:
            with open(os.path.join(self.state, "console.log"), errors="replace") as log:
                return log.read().splitlines()
        except FileNotFoundError:
            return []

    def crash_lines(self):
        lines = self.console()
        at = next((i for i, line in enumerate(lines) if CRASH.search(line)), len(lines) - 5)
        return lines[at:at + 12]

    def healthy(self):
        if any(CRASH.search(line) for line in self.console()):
            return False
        try:
            with open(os.path.join(self.state, "qemu.pid")) as file:
                os.kill(int(file.read()), 0)
            return True
        except (OSError, ValueError):
            return False

    def port(self):
        self.next_port += 1
        return self.next_port

    def guest(self, command):
        return Program("guest " + command.split(" -")[0], [self.tool("guest-run"), self.state, command])

    def host(self, *argv):
        return Program("host " + os.path.basename(argv[0]), [self.tool("in-net"), self.state, *argv])

    def wait_guest_listens(self, port, timeout=30):
        # siw's listeners are kernel sockets and show up here; the programs themselves say nothing.
        command = f"until grep -q ':{port:04X} 0*:0000 0A ' /proc/net/tcp; do sleep 0.05; done"
        waiting = self.guest(command)
        try:
            waiting.wait(timeout)
        finally:
            waiting.end()

    def capture(self):
        return Capture(self)


class Capture:
    """with lab.capture() as cap: ...; afterwards cap.path, cap.summary(), cap.terminates()."""

    def __init__(self, lab):
        lab.captures += 1
        self.lab, self.name = lab, f"scenario{lab.captures}"
        self.path = os.path.join(lab.state, self.name + ".pcap")

    def control(self, verb):
        done = subprocess.run([self.lab.tool("capture"), verb, self.lab.state, self.name],
                              stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode == 77:
            raise Skipped(done.stderr.strip())
        check(done.returncode == 0, done.stderr)

    def __enter__(self):
        self.control("start")
        return self

    def __exit__(self, *exc):
        self.control("stop")

    def reader(self, *args):
        done = subprocess.run([self.lab.tool("check-capture"), self.path, *args], capture_output=True,
                              text=True, check=False)
        return done.returncode, (done.stdout + done.stderr).strip()

    def summary(self, *wanted):
        return self.reader(*wanted)

    def terminates(self):
        return self.reader("--terminates")[1].splitlines()


def finish_all(programs, seconds):
    """Waits for all of them, at most so long altogether; none is left running."""
    end = time.monotonic() + seconds
    try:
        return [program.wait(max(0.1, end - time.monotonic())) for program in programs]
    except Failed as why:
        raise Failed(f"{why}\n" + "\n".join(program.report() for program in programs)) from None
    finally:
        for program in programs:
            program.end()
