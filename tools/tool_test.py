#!/usr/bin/env python3
"""End-to-end tests of the flue command, as TAP: tool_test.py PATH-TO-FLUE"""
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

FLUE = sys.argv[1]
# Sanitizers are slow; the machine may be busy. Only a hang reaches this.
PATIENCE = 120


def flue(*arguments, status=0, stdin=None):
    """Run the command to its end; returns its output after checking its status."""
    done = subprocess.run([FLUE, *arguments], capture_output=True, text=True, timeout=PATIENCE,
                          stdin=stdin, check=False, env=dict(os.environ, LC_ALL="C.UTF-8"))
    if done.returncode != status:
        raise AssertionError("flue %s: status %d, not %d\n%s%s" % (
            " ".join(arguments), done.returncode, status, done.stdout[-300:], done.stderr))
    return done


class Server:
    """A flue server on a port of its own."""

    def __init__(self, *arguments, command="perf"):
        self.process = subprocess.Popen([FLUE, command, "--server", "-l", "127.0.0.1", "-p", "0",
                                         *arguments], stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True)
        self.timer = threading.Timer(PATIENCE, self.process.kill)
        self.timer.start()
        line = self.process.stdout.readline()
        found = re.fullmatch(r"listening on 127\.0\.0\.1:(\d+)\n", line)
        assert found, "the server said: " + line
        self.port = found[1]

    def __enter__(self):
        return self

    def finish(self):
        """Wait for the end; returns status and output."""
        out, err = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, out + err

    def __exit__(self, *_):
        self.timer.cancel()
        if self.process.poll() is None:
            self.process.terminate()
        self.process.communicate(timeout=PATIENCE)


def help_names_every_command():
    text = flue("help").stdout
    for name in "adapters", "demo", "ping", "perf":
        assert re.search(r"^  %s +\w" % name, text, re.M), name
        page = flue(name, "--help").stdout
        assert "Usage: flue %s" % name in page, page
        assert "Examples:" in page, page
        assert flue("help", name).stdout == page


def version_is_told():
    assert re.fullmatch(r"flue \d+\.\d+\.\d+, library \d+\.\d+\.\d+\n", flue("--version").stdout)


def wrong_use_says_what_is_right():
    assert "'flue help'" in flue("nonsense", status=2).stderr
    assert "usage:" in flue(status=2).stderr
    assert "--server" in flue("perf", status=2).stderr
    assert "64M" in flue("perf", "h", "-S", "1x", status=2).stderr
    assert "write, read, send" in flue("perf", "h", "-o", "fly", status=2).stderr
    assert "'on' or 'off'" in flue("perf", "h", "--crc", "maybe", status=2).stderr
    assert "MIN:MAX" in flue("perf", "h", "--sweep=5", status=2).stderr
    assert "'tcp' or 'local'" in flue("ping", "h", "--link", "smoke", status=2).stderr
    assert "--full" in flue("perf", "h", "--link", "local", status=2).stderr
    for number in "0", "65":
        assert "1 to 64" in flue("perf", "h", "--list", number, status=2).stderr
    assert "too much" in flue("ping", "a", "b", status=2).stderr
    for port in "65536", "70000", "18446744073709551617", "80x":
        assert "up to 65535" in flue("perf", "-s", "-p", port, status=2).stderr, port


def adapters_lists_the_software_rnic():
    listed = json.loads(flue("adapters", "--json").stdout)
    assert listed[0]["schema"] == "flue.adapters/1" and "version" in listed[0], listed[0]
    soft = next(a for a in listed if a["provider"] == "soft")
    assert soft["opens"] and soft["limits"]["max_qp"] >= 1000, soft
    assert soft["adapter"] == "flue0" and "127.0.0.1" in soft["addresses"], soft
    assert soft["processors"] == sorted(os.sched_getaffinity(0)), soft
    text = flue("adapters").stdout
    assert "queue pairs" in text
    answers = [line for line in text.splitlines() if line.endswith(("yes", "no"))]
    assert len(answers) > 10 and all(re.search(r"\S  +(yes|no)$", line) for line in answers), text


def ping_counts_round_trips():
    with Server(command="ping") as server:
        text = flue("ping", "127.0.0.1", "-p", server.port, "-c", "3", "-i", "0.01").stdout
        lines = re.findall(r"^56 bytes from 127\.0\.0\.1:\d+: seq=(\d) time=[\d.]+ \S+$", text, re.M)
        assert lines == ["1", "2", "3"], text
        assert re.search(r"3 round trips ---\nmin/median/mean/max = ", text), text


def ping_prints_json():
    with Server(command="ping") as server:
        result = json.loads(flue("ping", "127.0.0.1", "-p", server.port, "-c", "2", "-i", "0.01",
                                 "--json").stdout)
    assert result["schema"] == "flue.ping/1" and "version" in result, result
    assert {"host", "size", "round_trips", "bad", "min_us", "median_us", "mean_us", "max_us"} <= set(result)


def ping_ends_with_a_summary_when_interrupted():
    with Server() as server:
        with subprocess.Popen([FLUE, "ping", "127.0.0.1", "-p", server.port], text=True,
                              stdout=subprocess.PIPE) as process:
            process.stdout.readline()
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=PATIENCE)
            assert "round trips ---" in out, out
            assert process.returncode == 0, process.returncode


def perf_verifies_everything(*options, server=None):
    with Server("--once", *(options if server is None else server)) as server:
        text = flue("perf", "127.0.0.1", "-p", server.port, "-o", "all", "-n", "50", "--verify",
                    "--sweep=1:64k", "--json", *options).stdout
        result = json.loads(text)
        assert result["schema"] == "flue.perf/1" and "version" in result, result
        assert len(result["tests"]) == 2 * 3 * 17, len(result["tests"])
        for test in result["tests"]:
            assert test["messages"] == 50 and test["bad"] == 0, test
            assert test["bytes"] == 50 * test["size"], test
            if test["test"] == "latency":
                trip = test["round_trip_us"]
                assert 0 < trip["min"] <= trip["p50"] <= trip["p99"] <= trip["max"], test
                assert sum(bucket[2] for bucket in trip["histogram_ns"]) == 50, test
            else:
                assert test["mib_per_s"] > 0, test
        status, out = server.finish()
        assert status == 0 and "WRONG" not in out, out


def perf_verifies_everything_while_waiting():
    perf_verifies_everything()


def perf_verifies_everything_while_polling():
    perf_verifies_everything("--poll")


def perf_verifies_everything_through_a_descriptor():
    perf_verifies_everything("--fd")


def perf_verifies_everything_without_crc():
    perf_verifies_everything("--crc", "off")


def perf_verifies_everything_in_full_service():
    perf_verifies_everything("--full")


def perf_verifies_everything_in_lists():
    for service in [], ["--full"]:
        perf_verifies_everything("--list", "16", *service, server=service)


def perf_posts_a_list_that_is_longer_than_the_window():
    with Server("--once") as server:
        result = json.loads(flue("perf", "127.0.0.1", "-p", server.port, "-o", "all", "-t", "bw", "-n", "50", "-w", "3",
                                 "-S", "64", "--list", "16", "--verify", "--json").stdout)
    assert [test["messages"] for test in result["tests"]] == [50] * 3, result
    assert not any(test["bad"] for test in result["tests"]), result


def perf_tells_service_and_link():
    for server, client, service, link in (([], [], "strict", "tcp"),
                                          (["--full"], ["--full"], "full", "local"),
                                          (["--full"], ["--full", "--link", "local"], "full", "local"),
                                          (["--full"], ["--full", "--link", "tcp"], "full", "tcp"),
                                          (["--full", "--tcp"], ["--full"], "full", "tcp")):
        with Server("--once", *server) as there:
            result = json.loads(flue("perf", "127.0.0.1", "-p", there.port, "-n", "10", "--json", *client).stdout)
        assert result["service"] == service, (client, result)
        assert [test["link"] for test in result["tests"]] == [link] * 2, (client, result)


def perf_fails_if_the_link_is_another():
    with Server("--full", "--link", "tcp") as server:
        where = ["127.0.0.1", "-p", server.port, "--full", "--link", "local"]
        assert "goes over TCP" in flue("perf", *where, "-n", "10", status=1).stderr
        assert "goes over TCP" in flue("ping", *where, "-c", "1", status=1).stderr


def perf_sweeps_over_all_sizes():
    with Server("--once") as server:
        result = json.loads(flue("perf", "127.0.0.1", "-p", server.port, "-a", "-t", "lat", "-n", "2",
                                 "--json").stdout)
    assert [test["size"] for test in result["tests"]] == [1 << n for n in range(23)], result


def perf_says_that_the_server_has_another_service():
    with Server("--once") as server:
        assert "--full" in flue("perf", "127.0.0.1", "-p", server.port, "--full", status=1).stderr
        flue("perf", "127.0.0.1", "-p", server.port, "-n", "10")


def perf_moves_large_messages():
    with Server() as server:
        result = json.loads(flue("perf", "127.0.0.1", "-p", server.port, "-o", "all", "-n", "6",
                                 "--verify", "-S", "5000001", "--json").stdout)
        assert all(test["bad"] == 0 for test in result["tests"]), result
        assert len(result["tests"]) == 6


def perf_ends_after_its_time():
    with Server() as server:
        result = json.loads(flue("perf", "127.0.0.1", "-p", server.port, "-d", "0.1", "--json").stdout)
        assert [t["size"] for t in result["tests"]] == [64, 1 << 20]
        assert all(t["seconds"] >= 0.1 and t["messages"] > 0 for t in result["tests"]), result


def perf_draws_tables_and_a_histogram():
    with Server() as server:
        text = flue("perf", "127.0.0.1", "-p", server.port, "-n", "200", "-o", "send").stdout
        assert "round trip" in text and "MiB/s" in text and "█" in text, text


def perf_serves_clients_at_the_same_time():
    with Server("--clients", "4") as server:
        command = [FLUE, "perf", "127.0.0.1", "-p", server.port, "-o", "all", "-n", "300",
                   "--verify", "--json"]
        clients = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(4)]
        for client in clients:
            out, _ = client.communicate(timeout=PATIENCE)
            assert client.returncode == 0
            assert all(test["bad"] == 0 for test in json.loads(out)["tests"])
        status, out = server.finish()
        assert status == 0, out


def perf_explains_that_nobody_listens():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        error = flue("perf", "127.0.0.1", "-p", str(sock.getsockname()[1]), status=1).stderr
    assert "nobody listens at 127.0.0.1" in error and "flue perf --server" in error, error


def perf_explains_that_a_port_is_taken():
    with Server() as server:
        error = flue("perf", "--server", "-l", "127.0.0.1", "-p", server.port, status=1).stderr
        assert "choose another port with -p" in error, error


def perf_explains_why_it_is_refused():
    with Server("--memory", "1M") as server:
        error = flue("perf", "127.0.0.1", "-p", server.port, "-S", "4M", "-t", "bw", status=1).stderr
        assert "refused:" in error and "granted" in error, error
        flue("perf", "127.0.0.1", "-p", server.port, "-S", "64", "-n", "5")


def perf_explains_a_server_of_another_kind():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        thread = threading.Thread(target=lambda: sock.accept()[0].sendall(b"220 mail here\r\n" * 9))
        thread.start()
        error = flue("ping", "127.0.0.1", "-p", str(sock.getsockname()[1]), status=1).stderr
        thread.join()
    assert "127.0.0.1" in error, error


def server_survives_garbage_and_a_client_that_dies():
    with Server() as server:
        with socket.create_connection(("127.0.0.1", int(server.port))) as sock:
            sock.sendall(os.urandom(4096))
        with subprocess.Popen([FLUE, "perf", "127.0.0.1", "-p", server.port, "-d", "60"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            time.sleep(0.5)
            process.kill()
        flue("perf", "127.0.0.1", "-p", server.port, "-n", "20", "--verify")
        assert server.process.poll() is None


def client_explains_a_server_that_dies():
    with Server() as server:
        with subprocess.Popen([FLUE, "ping", "127.0.0.1", "-p", server.port, "-i", "0.05"],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            process.stdout.readline()
            server.process.kill()
            _, err = process.communicate(timeout=PATIENCE)
            assert process.returncode == 1 and "flue: " in err, err


def demo_shows_and_draws():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "demo.svg")
        text = flue("demo", "-o", path, "-d", "0.02").stdout
        for word in "open", "register", "connect", "send", "write", "read":
            assert re.search(r"^ \d  %s " % word, text, re.M), text
        assert "every byte equal" in text and "MiB/s" in text, text
        with open(path, encoding="utf-8") as file:
            assert file.read().endswith("</svg>\n")


TESTS = [help_names_every_command, version_is_told, wrong_use_says_what_is_right,
         adapters_lists_the_software_rnic, ping_counts_round_trips,
         ping_prints_json, ping_ends_with_a_summary_when_interrupted, perf_verifies_everything_while_waiting,
         perf_verifies_everything_while_polling, perf_verifies_everything_through_a_descriptor,
         perf_verifies_everything_without_crc, perf_verifies_everything_in_full_service,
         perf_verifies_everything_in_lists, perf_posts_a_list_that_is_longer_than_the_window,
         perf_tells_service_and_link, perf_fails_if_the_link_is_another,
         perf_sweeps_over_all_sizes,
         perf_says_that_the_server_has_another_service, perf_moves_large_messages, perf_ends_after_its_time,
         perf_draws_tables_and_a_histogram, perf_serves_clients_at_the_same_time,
         perf_explains_that_nobody_listens, perf_explains_that_a_port_is_taken,
         perf_explains_why_it_is_refused, perf_explains_a_server_of_another_kind,
         server_survives_garbage_and_a_client_that_dies, client_explains_a_server_that_dies,
         demo_shows_and_draws]


def main():
    chosen = [t for t in TESTS if len(sys.argv) < 3 or t.__name__ in sys.argv[2:]]
    print("1..%d" % len(chosen), flush=True)
    failed = 0
    for number, test in enumerate(chosen, 1):
        try:
            test()
            print("ok %d - %s" % (number, test.__name__), flush=True)
        except Exception as error:  # whatever it is, the next test shall run
            failed += 1
            print("not ok %d - %s" % (number, test.__name__))
            for line in ("%s: %s" % (type(error).__name__, error)).splitlines():
                print("# " + line)
            sys.stdout.flush()
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
