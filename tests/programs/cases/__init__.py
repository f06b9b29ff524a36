"""The scenarios, by name. A module per program; importing it enters its scenarios here."""
from scene import Skip
from servers import find

SCENARIOS = {}  # name: Scenario, in the order of the modules


class Scenario:
    """A function of a scene, and when it is played.

    needs:  (program, Debian package) pairs
    quick:  whether it is among the quick ones
    alone:  it compares modes by itself and is played once, with mode "both"
    """

    def __init__(self, name, play, needs, quick, alone):
        self.name, self.play, self.needs = name, play, needs
        self.quick, self.alone = quick, alone

    def find_programs(self):
        """Skips if there is one missing."""
        missing = [package for program, package in self.needs if not find(program)]
        if missing:
            raise Skip("install " + ", ".join(sorted(set(missing))))


def scenario(name, *needs, quick=True, alone=False):
    def enter(play):
        assert name not in SCENARIOS, name
        SCENARIOS[name] = Scenario(name, play, needs, quick, alone)
        return play
    return enter


def load():
    """Imports all modules; the scenarios then stand in SCENARIOS."""
    # pylint: disable=import-outside-toplevel,unused-import
    from cases import (redis, nginx, postgresql, haproxy, rsync, iperf, sockperf,  # noqa: F401
                       python_http, java, node, plain, cpython)
    return SCENARIOS
