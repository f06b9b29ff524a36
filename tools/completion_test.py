#!/usr/bin/env python3
"""Tests of the completion of the command in shells, as TAP: completion_test.py PATH-TO-FLUE

bash is asked what it would offer. zsh, where it is, must at least understand its file.
"""
import os
import re
import shutil
import subprocess
import sys

import sockets_test as base
from sockets_test import FLUE, Skip

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "completion")


def offered(*words):
    """What is offered for the last word. As bash splits them: '=' is a word."""
    if not shutil.which("bash"):
        raise Skip("there is no bash")
    script = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
compopt() { :; }
_flue "$1"
printf '%s\\n' "${COMPREPLY[@]}"
"""
    done = subprocess.run(["bash", "--norc", "-uc", script, "bash", FOLDER + "/flue.bash", FLUE, *words],
                          check=True, capture_output=True, text=True, timeout=base.PATIENCE)
    assert not done.stderr, done.stderr
    return done.stdout.split()


def commands_are_offered():
    found = offered("")
    assert {"run", "sockets", "perf", "help", "version"} <= set(found), found
    assert offered("so") == ["sockets"]
    assert offered("help", "so") == ["sockets"]


def options_are_those_of_the_help():
    for command in "adapters", "demo", "ping", "perf", "run", "sockets":
        text = base.flue(command, "--help").stdout
        listed = set(re.findall(r"^ {2,6}(?:-., )?(--[a-z]+)", text, re.M))
        found = {word.rstrip("=") for word in offered(command, "--")}
        assert listed and found == listed, (command, found ^ listed)
    assert "--watch" in offered("sockets", "--w") and "--sort=" in offered("sockets", "--so")


def values_are_offered():
    assert offered("run", "--profile", "") == ["latency", "balanced", "cpu"]
    assert offered("run", "--profile", "=", "la") == ["latency"]
    assert offered("run", "--profile", "=") == ["latency", "balanced", "cpu"]
    assert "rate" in offered("sockets", "--sort", "") and "port" in offered("sockets", "-s", "p")
    assert offered("perf", "-t", "b") == ["bandwidth", "both"]
    assert offered("perf", "--crc", "o") == ["on", "off"]
    assert offered("ping", "--link", "") == ["tcp", "local"]


def programs_and_files_are_offered():
    assert "bash" in offered("run", "bas") and "bash" in offered("run", "--why", "bas")
    assert offered("run", "--rules", "/etc/pass") and "/etc/passwd" in offered("run", "--rules", "/etc/pass")
    # What follows the program is the program's.
    assert offered("run", "ls", "--") == [], offered("run", "ls", "--")


def zsh_understands_its_file():
    if not shutil.which("zsh"):
        raise Skip("there is no zsh")
    subprocess.run(["zsh", "-n", os.path.join(FOLDER, "_flue")], check=True)


base.TESTS = [commands_are_offered, options_are_those_of_the_help, values_are_offered,
              programs_and_files_are_offered, zsh_understands_its_file]

if __name__ == "__main__":
    sys.exit(base.main())
