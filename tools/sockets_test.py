#!/usr/bin/env python3
"""End-to-end tests of `flue run` and `flue sockets`, as TAP: sockets_test.py PATH-TO-FLUE

What needs the sockets library is skipped where that was not built (as with sanitizers, which do
not like to be preloaded).
"""
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading

FLUE = os.path.abspath(sys.argv[1])
LIBRARY = os.path.join(os.path.dirname(FLUE), "../src/libflue-sockets.so")
# The machine may be busy. Only a hang reaches this.
PATIENCE = 120
# Any library does where it only matters what becomes of its name: one that every program has.
with open("/proc/self/maps", encoding="utf-8") as maps:
    STAND_IN = next(word for line in maps for word in line.split() if re.search(r"/libc\.so\.6$", word))


class Skip(Exception):
    """This cannot be tested here, and why."""


def need_library():
    if not os.path.exists(LIBRARY):
        raise Skip("libflue-sockets.so is not built")


def environment(**more):
    """Ours without what a user may have set, and with `more`."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("FLUE_") and k != "LD_PRELOAD"}
    env.update(more)
    return env


def flue(*arguments, status=0, **more):
    """Run the command to its end; returns its output after checking its status."""
    done = subprocess.run([FLUE, *arguments], capture_output=True, text=True, timeout=PATIENCE,
                          check=False, stdin=subprocess.DEVNULL, env=environment(**more))
    if done.returncode != status:
        raise AssertionError("flue %s: status %d, not %d\n%s%s" % (
            " ".join(arguments), done.returncode, status, done.stdout[-300:], done.stderr))
    return done


def stand_in(*arguments, **more):
    """What a program sees of its environment under `flue run`."""
    text = flue("run", *arguments, "env", FLUE_LIBRARY=STAND_IN, **more).stdout
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


# ---- flue run ----

def run_hands_over_arguments_and_status():
    text = flue("run", "sh", "-c", 'echo "$1:$2"; exit 7', "x", "--why", "a b", status=7,
                FLUE_LIBRARY=STAND_IN).stdout
    assert text == "--why:a b\n", text
    assert flue("run", "--", "echo", "-n", FLUE_LIBRARY=STAND_IN).stdout == ""


def run_ends_as_env_does_when_it_cannot():
    assert "no such program" in flue("run", "no-such-program-here", status=127).stderr
    assert "Permission denied" in flue("run", "/dev/null", status=126).stderr
    assert "PROGRAM" in flue("run", status=125).stderr
    assert "latency, balanced or cpu" in flue("run", "--profile", "fast", "true", status=125).stderr
    assert "cannot read /no/rules" in flue("run", "--rules", "/no/rules", "true", status=125,
                                           FLUE_LIBRARY=STAND_IN).stderr
    assert "FLUE_LIBRARY is /no/lib" in flue("run", "true", status=125,
                                             FLUE_LIBRARY="/no/lib").stderr
    with tempfile.TemporaryDirectory(prefix="a b") as folder:
        path = os.path.join(folder, "l.so")
        os.symlink(STAND_IN, path)
        flue("run", "true", FLUE_LIBRARY=path)  # what counts is the file itself
        os.remove(path)
        with open(path, "wb"):
            assert "blank or colon" in flue("run", "true", status=125, FLUE_LIBRARY=path).stderr


def run_sets_the_environment():
    env = stand_in()
    assert env["LD_PRELOAD"] == STAND_IN, env
    assert not [k for k in env if k in ("FLUE_PROFILE", "FLUE_WHY", "FLUE_RULES", "FLUE_STATS")], env
    env = stand_in("--profile", "latency", "--why", "--rules", "/dev/null", "--stats", "totals")
    assert env["FLUE_PROFILE"] == "latency" and env["FLUE_WHY"] == "1", env
    assert env["FLUE_RULES"] == "/dev/null", env
    assert env["FLUE_STATS"] == os.path.join(os.getcwd(), "totals"), env


def run_keeps_what_is_preloaded_already():
    env = stand_in(LD_PRELOAD="libm.so.6 " + STAND_IN)
    assert env["LD_PRELOAD"] == "libm.so.6:" + STAND_IN, env


def run_says_that_privileged_programs_are_out_of_reach():
    if os.geteuid() != 0:
        raise Skip("only root can make a program that is privileged for root")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "tool")
        subprocess.run(["cp", "/bin/true", path], check=True)
        os.chmod(folder, 0o755)
        os.chown(path, 1, 1)
        os.chmod(path, 0o4755)
        error = flue("run", path, FLUE_LIBRARY=STAND_IN).stderr
        assert error.count("no effect") == 1 and path in error, error


def run_says_why_a_static_program_is_out_of_reach_when_asked():
    with open("/sbin/ldconfig", "rb") as file:
        data = file.read()
    if data[:4] != b"\x7fELF" or b"/ld-linux" in data[:4096]:
        raise Skip("there is no static ldconfig")
    assert flue("run", "/sbin/ldconfig", "-V", FLUE_LIBRARY=STAND_IN).stderr == ""
    error = flue("run", "--why", "/sbin/ldconfig", "-V", FLUE_LIBRARY=STAND_IN).stderr
    assert "/sbin/ldconfig is linked statically" in error, error


def run_finds_the_library_that_was_built_with_it():
    need_library()
    text = flue("run", "sh", "-c", "echo $LD_PRELOAD").stdout
    assert text == os.path.realpath(LIBRARY) + "\n", text


# ---- flue sockets, without the library ----

def sockets_has_an_empty_list_or_one():
    look = json.loads(flue("sockets", "--json").stdout)
    assert sorted(look) == ["connections", "other_versions", "processes", "schema", "version"], look
    assert look["schema"] == "flue.sockets/1", look
    assert flue("sockets").stdout.endswith("\n")


def help_and_manual_know_them():
    for name in "run", "sockets":
        assert re.search(r"^  %s +\w" % name, flue("help").stdout, re.M), name
        page = flue(name, "--help").stdout
        assert "Usage: flue " + name in page and "Examples:" in page, page
    top = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    with open(os.path.join(top, "src/sockets/record/why.def"), encoding="utf-8") as file:
        words = re.findall(r'^WHY\(\w+, "([^"]+)"', file.read(), re.M)
    with open(os.path.join(top, "docs/man/flue-sockets.1.scd"), encoding="utf-8") as file:
        page = file.read()
    assert words and not [w for w in words if "*%s*" % w not in page], words


def sockets_refuses_wrong_use():
    assert "from 0.05 on" in flue("sockets", "--watch=never", status=2).stderr
    assert "from 0.05 on" in flue("sockets", "--watch", "0", status=2).stderr
    assert "too much" in flue("sockets", "3", status=2).stderr
    assert "too much" in flue("sockets", "--watch", "3", "4", status=2).stderr


def sockets_watches_until_interrupted():
    for arguments in ("--watch", "0.05"), ("--watch=0.05", "--json"):
        with subprocess.Popen([FLUE, "sockets", *arguments], stdout=subprocess.PIPE, text=True,
                              env=environment()) as process:
            timer = threading.Timer(PATIENCE, process.kill)
            timer.start()
            lines = [process.stdout.readline() for _ in range(4)]
            process.send_signal(signal.SIGINT)
            process.stdout.read()
            status = process.wait(timeout=PATIENCE)
            timer.cancel()
            assert status == 0 and "" not in lines, (status, lines)


# ---- with the library ----

# Prints its port, echoes one connection, then waits for the end of its input.
SERVER = """
import os, socket, sys
s = socket.create_server(("127.0.0.1", 0))
print(os.getpid(), s.getsockname()[1], flush=True)
c, _ = s.accept()
while True:
    data = c.recv(65536)
    if not data:
        break
    c.sendall(data)
"""
CLIENT = """
import os, socket, sys
c = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
for i in range(2000):
    c.sendall(bytes(100))
    got = 0
    while got < 100:
        got += len(c.recv(100))
print(os.getpid(), "done", flush=True)
sys.stdin.readline()
"""


# The machine's rules are not ours.
HERMETIC = {"FLUE_RULES": "/dev/null"}


class Pair:
    """A client and a server that talked, and hold their connection while we look."""

    def __init__(self, *arguments, under=(True, True), python=sys.executable, user=None, **more):
        run = [FLUE, "run", *arguments]
        self.python = python
        self.server = self.start(run if under[0] else [], SERVER, more=more, user=user)
        # `flue run` may stay in front of the programs: their own numbers count.
        self.server_pid, port = self.first_words(self.server)
        self.client = self.start(run if under[1] else [], CLIENT, port, more=more)
        self.client_pid, _ = self.first_words(self.client)

    def first_words(self, process):
        line = process.stdout.readline().split()
        if len(line) != 2:
            process.kill()
            raise AssertionError("a program failed: " + process.stderr.read())
        return int(line[0]), line[1]

    def start(self, run, program, *arguments, more, user=None):
        process = subprocess.Popen([*run, self.python, "-c", program, *arguments],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, user=user,
                                   env=environment(**dict(HERMETIC, **more)))
        process.timer = threading.Timer(PATIENCE, process.kill)
        process.timer.start()
        return process

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.finish()

    def finish(self):
        """What both said on stderr."""
        if not hasattr(self, "errors"):
            self.errors = [p.communicate(timeout=PATIENCE)[1] for p in (self.client, self.server)]
            for process in self.client, self.server:
                process.timer.cancel()
        return self.errors

    def look(self):
        """Both ends, by pid, as `flue sockets` shows them."""
        ends = json.loads(flue("sockets", "--json").stdout)["connections"]
        pids = self.client_pid, self.server_pid
        return {e["pid"]: e for e in ends if e["pid"] in pids}


def sockets_shows_both_ends_of_a_lane():
    need_library()
    with Pair() as pair:
        ends = pair.look()
        assert len(ends) == 2, ends
        client, server = ends[pair.client_pid], ends[pair.server_pid]
        assert client["way"] == server["way"] == "lane", ends
        assert client["why"] is None and client["explanation"] is None, ends
        assert client["peer_pid"] == pair.server_pid and server["peer_pid"] == pair.client_pid, ends
        assert client["local"] == server["peer"] and client["peer"] == server["local"], ends
        for end in client, server:
            for way in "sent", "received":
                flow = end[way]
                assert flow["lane_bytes"] > 0 and flow["messages"] >= 1000, end
                assert flow["lane_bytes"] + flow["tcp_bytes"] == 200000, end
        text = flue("sockets").stdout
        row = [line for line in text.splitlines() if "[%d]" % pair.client_pid in line]
        assert len(row) == 1 and "[%d]" % pair.server_pid in row[0], text
        assert re.search(r"lane \d+%", row[0]), text


def json_keeps_what_its_schema_promises():
    """What readers of the first schema rely on. More may come; nothing of this may go."""
    need_library()
    with tempfile.TemporaryDirectory() as folder:
        stats = os.path.join(folder, "stats")
        with Pair(FLUE_STATS=stats) as pair:
            look = json.loads(flue("sockets", "--json").stdout)
        with open(stats, encoding="utf-8") as file:
            totals = [json.loads(line) for line in file]
    assert {"schema", "version", "processes", "connections", "other_versions"} <= set(look), look
    end = next(e for e in look["connections"] if e["pid"] == pair.client_pid)
    assert {"pid", "program", "local", "peer", "peer_pid", "peer_program", "way", "why", "explanation",
            "about", "sent", "received"} <= set(end), end
    assert {"lane_bytes", "tcp_bytes", "messages"} <= set(end["sent"]), end
    assert {"pid", "program", "connections_ended", "lanes", "stepdowns"} <= set(look["processes"][0]), look
    assert len(totals) == 2
    for row in totals:
        assert row["schema"] == "flue.stats/1" and row["version"] == look["version"], row
        assert {"pid", "program", "connections", "eligible", "lanes", "stepdowns", "eligible_lane_tx",
                "eligible_lane_rx", "eligible_tcp_tx", "eligible_tcp_rx"} <= set(row), row


def sockets_gives_the_reason_when_a_rule_says_tcp():
    need_library()
    with Pair(FLUE_RULE="use tcp connect python* 127.0.0.0/8:*") as pair:
        end = pair.look()[pair.client_pid]
        assert end["way"] == "tcp" and end["why"] == "rule", end
        assert end["sent"]["tcp_bytes"] == 200000 and end["sent"]["lane_bytes"] == 0, end


def sockets_names_the_rule_also_of_the_other_end():
    need_library()
    with tempfile.NamedTemporaryFile("w", suffix=".rules") as file:
        file.write("# mine\n\nuse tcp listen * *\n")
        file.flush()
        with Pair("--rules", file.name) as pair:
            ends = pair.look()
            client, server = ends[pair.client_pid], ends[pair.server_pid]
            assert server["why"] == "rule" and server["about"] == "line 3 of " + file.name, server
            assert client["why"] == "peer-keeps" and client["peer_pid"] == pair.server_pid, client
            assert client["about"] == "a rule says TCP: line 3 of " + file.name, client
            assert client["explanation"].startswith("the other end keeps it on TCP: "), client
    with Pair(FLUE_RULE="use flue connect * *;use tcp listen * *") as pair:
        assert pair.look()[pair.server_pid]["about"] == "rule 2 of FLUE_RULE", pair.look()


def sockets_names_the_program_without_the_library():
    need_library()
    with Pair(under=(False, True)) as pair:
        end = pair.look()[pair.client_pid]
        assert end["why"] == "plain-peer" and end["about"].endswith("[%d]" % pair.server_pid), end
        assert end["explanation"] == "the peer's program does not run under Flue: " + end["about"], end


def sockets_and_why_name_the_other_user():
    need_library()
    if os.geteuid() != 0:
        raise Skip("only root can run the server as somebody else")
    try:
        subprocess.run([FLUE, "version"], user=65534, check=True, stdout=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError):
        raise Skip("others may not run what was built here") from None
    # Which everybody may run.
    with Pair("--why", user=65534, python="/usr/bin/python3") as pair:
        end = pair.look()[pair.client_pid]
        assert end["why"] == "other-user" and "(65534)" in end["about"], end
        assert "[%d]" % pair.server_pid in end["about"], end
    assert re.search(r"runs for another user: \w+ \(65534\)", pair.finish()[0]), pair.finish()


def why_names_addresses_and_option():
    need_library()
    program = """
import os, socket
s = socket.create_server(("127.0.0.1", 0))
unused = socket.socket()
unused.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 2)
unused.close()
if os.fork() == 0:
    c = socket.socket()
    c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 2)
    c.connect(s.getsockname())
    c.sendall(b"x")
    c.recv(1)  # which a reset ends
    raise SystemExit
c, _ = s.accept()
c.recv(1)
c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\\1" + b"\\0" * 7)
c.close()
os.wait()
"""
    error = flue("run", "--why", sys.executable, "-c", program).stderr
    found = re.findall(r"127\.0\.0\.1 port \d+ to 127\.0\.0\.1 port \d+ was on TCP: (.*)", error)
    assert len(found) == 2, error
    assert "the program uses what only TCP has: SO_RCVLOWAT" in found, error


def rules_know_a_program_by_the_name_it_was_started_by():
    need_library()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "a-link-to-python")
        os.symlink(os.path.realpath(sys.executable), path)
        with Pair(python=path, FLUE_RULE="use tcp listen a-link-* *") as pair:
            end = pair.look()[pair.server_pid]
            assert end["way"] == "tcp" and end["why"] == "rule", end


def sockets_gives_the_reason_when_the_peer_is_plain():
    need_library()
    with Pair(under=(False, True)) as pair:
        ends = pair.look()
        assert list(ends) == [pair.client_pid], ends
        end = ends[pair.client_pid]
        assert end["way"] == "tcp" and end["peer_pid"] is None, end
        assert end["received"]["tcp_bytes"] == 200000, end


def broken_rules_are_told_once_and_mean_tcp():
    need_library()
    with tempfile.NamedTemporaryFile("w", suffix=".rules") as file:
        file.write("# mine\nuse flue both * *\nuse tpc both * *\n")
        file.flush()
        with Pair("--rules", file.name) as pair:
            ends = pair.look()
            assert [e["way"] for e in ends.values()] == ["tcp", "tcp"], ends
            assert {e["why"] for e in ends.values()} == {"broken-rules"}, ends
        for error in pair.finish():
            assert error.count(file.name + ":3: 'tpc' is neither 'flue' nor 'tcp'") == 1, error


def broken_rules_are_told_by_the_command_and_not_by_each_process():
    need_library()
    socket = "%s -c 'import socket; socket.socket()'" % sys.executable
    text = "'x' ends the rule too early"
    error = flue("run", "sh", "-c", "%s; %s; %s" % (socket, socket, socket), FLUE_RULE="use x").stderr
    assert error.count(text) == 1 and "sh and what it starts stay on TCP" in error, error
    # Also from one command to the next, but not of other rules.
    error = flue("run", FLUE, "run", "sh", "-c", socket, FLUE_RULE="use x").stderr
    assert error.count(text) == 1, error
    error = flue("run", "sh", "-c", "FLUE_RULE='use y' " + socket, FLUE_RULE="use x").stderr
    assert error.count(text) == 1 and error.count("'y' ends the rule too early") == 1, error


def run_says_at_once_that_totals_cannot_be_written():
    with tempfile.TemporaryDirectory() as folder:
        new = os.path.join(folder, "new")
        flue("run", "--stats", new, "true", FLUE_LIBRARY=STAND_IN)
        assert not os.path.exists(new)
        for wrong in os.path.join(folder, "no/such"), folder:
            done = flue("run", "--stats", wrong, "echo", "started", status=125, FLUE_LIBRARY=STAND_IN)
            assert wrong in done.stderr and "--stats takes a file" in done.stderr, done.stderr
            assert done.stdout == "", done.stdout
        error = flue("run", "--stats", os.path.join(folder, "x" * 250), "true", status=125,
                     FLUE_LIBRARY=STAND_IN).stderr
        assert "more than 255 octets" in error, error


def why_tells_the_reason_at_the_end():
    need_library()
    with Pair("--why", under=(False, True)) as pair:
        pass
    assert "flue: " in pair.finish()[0], pair.finish()


TESTS = [run_hands_over_arguments_and_status, run_ends_as_env_does_when_it_cannot,
         run_sets_the_environment, run_keeps_what_is_preloaded_already,
         run_says_that_privileged_programs_are_out_of_reach,
         run_says_why_a_static_program_is_out_of_reach_when_asked,
         run_finds_the_library_that_was_built_with_it, sockets_has_an_empty_list_or_one,
         help_and_manual_know_them, sockets_refuses_wrong_use, sockets_watches_until_interrupted,
         sockets_shows_both_ends_of_a_lane, json_keeps_what_its_schema_promises, sockets_gives_the_reason_when_a_rule_says_tcp,
         rules_know_a_program_by_the_name_it_was_started_by,
         sockets_names_the_rule_also_of_the_other_end,
         sockets_names_the_program_without_the_library, sockets_and_why_name_the_other_user,
         why_names_addresses_and_option,
         sockets_gives_the_reason_when_the_peer_is_plain, broken_rules_are_told_once_and_mean_tcp,
         broken_rules_are_told_by_the_command_and_not_by_each_process,
         run_says_at_once_that_totals_cannot_be_written,
         why_tells_the_reason_at_the_end]


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
