"""The scenarios, by name. A module per program; importing it enters its scenarios here."""
import importlib

from scene import Skip
from servers import find

MODULES = ("redis", "nginx", "postgresql", "mariadb", "haproxy", "rsync", "iperf", "sockperf",
           "memcached", "apache", "lighttpd", "python_http", "grpc", "erlang", "rabbitmq", "java",
           "node", "plain", "cpython")
SCENARIOS = {}  # name: Scenario, in the order of the modules


class Scenario:
    """A function of a scene, and when it is played.

    needs:  (program, Debian package) pairs
    quick:  whether it is among the quick ones
    smoke:  whether it stands for its program where there is time for one scenario only
    alone:  it compares modes by itself and is played once, with mode "both"
    """

    def __init__(self, name, play, needs, quick, alone, smoke):
        self.name, self.play, self.needs = name, play, needs
        self.quick, self.alone, self.smoke = quick, alone, smoke

    def find_programs(self):
        """Skips if there is one missing."""
        missing = [package for program, package in self.needs if not find(program)]
        if missing:
            raise Skip("install " + ", ".join(sorted(set(missing))))


def scenario(name, *needs, quick=True, alone=False, smoke=False):
    def enter(play):
        assert name not in SCENARIOS, name
        SCENARIOS[name] = Scenario(name, play, needs, quick, alone, smoke)
        return play
    return enter


def load():
    """Imports all modules; the scenarios then stand in SCENARIOS."""
    for name in MODULES:
        importlib.import_module("cases." + name)
    return SCENARIOS
