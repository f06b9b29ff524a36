#!/usr/bin/env python3
"""Tests of what scripts/test does with tests that fail: run again, alone, and told of. Prints TAP."""
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import sys
import tempfile

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts", "test")
HALF = "1..2\nok 1 - x\nnot ok 2 - y\n"
WHOLE = "1..2\nok 1 - x\nok 2 - y\n"


def load():
    loader = importlib.machinery.SourceFileLoader("runner", SCRIPT)
    sys.dont_write_bytecode = True
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("runner", loader))
    loader.exec_module(module)
    return module


def entry(name, result="OK", out=""):
    return {"name": "flue:e2e / " + name, "result": result, "stdout": out, "stderr": ""}


def play(*runs):
    """A stage whose tests end as in `runs`, the first time and the second. Its tally, and the commands."""
    runner, commands = load(), []
    with tempfile.TemporaryDirectory() as top:
        folder = os.path.join(top, "build", "gcc", "meson-logs")
        os.makedirs(folder)
        runner.TOP, runner.LOGS = top, os.path.join(top, "logs")

        def pretend(stage, _verbose):
            entries = runs[len(commands)]
            commands.append(stage["command"])
            with open(os.path.join(folder, "testlog.json"), "w", encoding="utf-8") as log:
                log.writelines(json.dumps(e) + "\n" for e in entries)
            return int(any(e["result"] != "OK" for e in entries)), "output"

        runner.run_command = pretend
        with contextlib.redirect_stdout(io.StringIO()):
            tally = runner.run_stage(runner.meson("tests", "gcc", ["unit", "e2e"]), False)
    return tally, commands


def what_passes_is_not_run_again():
    tally, commands = play([entry("a"), entry("b")])
    assert len(commands) == 1 and tally.passed == 2 and not tally.shaky and not tally.failures


def what_passes_the_second_time_is_shaky():
    tally, commands = play([entry("a"), entry("b", "FAIL", HALF)], [entry("b", "OK", WHOLE)])
    assert commands[1][-1] == "b" and "--suite" not in commands[1], commands
    assert commands[1][commands[1].index("--num-processes") + 1] == "1"
    assert tally.line() == "3 passed, 0 failed, 0 skipped", tally.line()
    assert [name for name, _ in tally.shaky] == ["flue:e2e / b y"], tally.shaky


def what_fails_twice_is_a_failure():
    tally, _ = play([entry("a"), entry("b", "FAIL", HALF)], [entry("b", "FAIL", HALF)])
    assert tally.line() == "2 passed, 1 failed, 0 skipped" and not tally.shaky, tally.line()


def what_cannot_be_run_again_is_a_failure():
    tally, _ = play([entry("a"), entry("b", "FAIL")], [])
    assert tally.line() == "1 passed, 1 failed, 0 skipped" and not tally.shaky, tally.line()


def many_failures_are_no_accident():
    tally, commands = play([entry(name, "FAIL") for name in "abcd"])
    assert len(commands) == 1 and len(tally.failures) == 4


def main():
    tests = [what_passes_is_not_run_again, what_passes_the_second_time_is_shaky,
             what_fails_twice_is_a_failure, what_cannot_be_run_again_is_a_failure,
             many_failures_are_no_accident]
    print("1..%d" % len(tests))
    bad = 0
    for number, test in enumerate(tests, 1):
        try:
            test()
            print("ok %d - %s" % (number, test.__name__))
        except AssertionError as why:
            bad = 1
            print("not ok %d - %s\n# %s" % (number, test.__name__, why))
    return bad


if __name__ == "__main__":
    sys.exit(main())
