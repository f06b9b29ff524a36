"""What the measuring scripts share: measurements by turns, intervals, words to the user."""
import math
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import time

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MIB = 1 << 20

# What starts and counts servers is the tests'.
sys.path += [os.path.join(TOP, "tests", name) for name in ("programs", "sockets")]


class Failed(Exception):
    """One contender could not be measured this time."""


class Missing(Failed):
    """Nor will it be another time: something is not there."""


def run_command(command, timeout=60, **more):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False,
                              **more)
    except (subprocess.TimeoutExpired, OSError) as error:
        raise Failed(str(error)) from error
    if done.returncode != 0:
        raise Failed((done.stderr.strip() or done.stdout.strip() or "failed").splitlines()[-1])
    return done.stdout


def have(program):
    return shutil.which(program) is not None


class Group:
    """Contenders that are measured in turns. contenders: {name: (label, measure)}."""

    rounds = 9
    pace = 1  # of the length of a measurement

    def __init__(self, name, contenders, pins=("pinned", "unpinned"), needs=None):
        self.name = name
        self.contenders = contenders
        self.pins = pins
        self.needs = needs or {}
        self.samples = {}  # (pin, contender) -> list of figures, None where one failed

    def run(self, rounds, seconds, cpus, say):
        for name, program in self.needs.items():
            if name in self.contenders and not have(program):
                say("%s is not installed: %s left out" % (program, name))
                del self.contenders[name]
        names = list(self.contenders)
        for pin in self.pins:
            if pin == "pinned" and not cpus:
                say("%s: only one processor here, nothing pinned" % self.name)
                continue
            for turn in range(rounds):
                for name in names[turn % len(names):] + names[:turn % len(names)]:
                    say("%s, %s, round %d of %d: %s" % (self.name, pin, turn + 1, rounds, name), True)
                    self.measure(pin, name, cpus if pin == "pinned" else None, seconds * self.pace, say)

    def leave_out(self, names):
        for name in names:
            self.contenders.pop(name, None)

    def measure(self, pin, name, cpus, seconds, say):
        try:
            figures = self.contenders[name][1](cpus, seconds)
        except Failed as error:
            say("%s, %s: %s: %s" % (self.name, pin, name, error))
            figures = None
        self.samples.setdefault((pin, name), []).append(figures)

    def values(self, pin, name, figure):
        """In order of the rounds, None where the measurement failed."""
        return [s.get(figure) if s else None for s in self.samples.get((pin, name), [])]


def interval(rounds, statistic, resamples=2000):
    """95 % bootstrap interval of statistic(list of rounds); the same seed for all, so it repeats."""
    chance = random.Random(1)
    found = []
    for _ in range(resamples):
        try:
            found.append(statistic([chance.choice(rounds) for _ in rounds]))
        except (statistics.StatisticsError, ZeroDivisionError):
            pass
    if not found:
        return None
    found.sort()
    return [found[int(0.025 * len(found))], found[min(int(0.975 * len(found)), len(found) - 1)]]


def median_of(values):
    return statistics.median([v for v in values if v is not None])


def rounded(value):
    """Four digits are more than the noise leaves."""
    if value is None or value == 0 or not math.isfinite(value):
        return value
    return round(value, max(0, 4 - int(math.floor(math.log10(abs(value)))) - 1))


def meets(goal, value):
    """Whether a goal as ">= 0.95" or "<= 4096 bytes" holds."""
    sign, bound = goal.split()[:2]
    return value >= float(bound) if sign == ">=" else value <= float(bound)


def limit(what, group, pin, name, figure, unit, goal):
    """A row whose goal is for our own figure; None if it was not tried."""
    row = compare(what, group, pin, name, None, figure, unit)
    if row:
        row.update(id="%s/%s" % (row["id"], figure), goal=goal,
                   holds=row["ours"] is not None and meets(goal, row["ours"]))
    return row


def compare(what, group, pin, name, rival, figure, unit, goal=None):
    """A row of the results, or None if there is nothing to tell. goal: ">= 0.95" or "<= 1.15". One of ours that was tried
    and has no figure is a row that says so."""
    mine = group.values(pin, name, figure)
    theirs = group.values(pin, rival, figure) if rival else []
    row = {"id": "%s/%s%s/%s" % (group.name, name, "-vs-" + rival if rival else "", pin),
           "what": "%s, %s" % (what, pin), "ours": None, "rival": None,
           "ours_name": group.contenders[name][0] if name in group.contenders else None,
           "rival_name": group.contenders[rival][0] if rival in group.contenders else None,
           "unit": unit, "ratio": None, "goal": goal, "holds": None, "rounds": len(mine)}
    if not any(v is not None for v in mine):
        if not mine:
            return None
        # A rival that is not there proves nothing.
        lost = goal and any(v is not None for v in theirs)
        row.update(what=row["what"] + ": NOT MEASURED", holds=False if lost else None)
        return row
    row.update(ours=rounded(median_of(mine)), ours_interval=interval(mine, median_of))
    if any(v is not None for v in theirs):
        pairs = list(zip(mine, theirs))
        ratio = lambda some: median_of([a for a, _ in some]) / median_of([b for _, b in some])
        row.update(rival=rounded(median_of(theirs)), ratio=rounded(ratio(pairs)),
                   rival_interval=interval(theirs, median_of),
                   ratio_interval=interval(pairs, ratio))
        if goal:
            row["holds"] = meets(goal, row["ratio"])
            # Sure: the whole interval is on the same side of the goal.
            row["sure"] = all(meets(goal, r) == row["holds"] for r in row["ratio_interval"])
    for key in "ours_interval", "rival_interval", "ratio_interval":
        if row.get(key):
            row[key] = [rounded(v) for v in row[key]]
    return row


def environment():
    def first(command):
        try:
            return run_command(command, 10).splitlines()[0]
        except (Failed, IndexError):
            return None
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo", encoding="utf-8")
                if line.startswith("model name")), platform.machine())
    return {"when": time.strftime("%Y-%m-%d %H:%M:%S %z"), "cpu": cpu,
            "processors": len(os.sched_getaffinity(0)), "kernel": platform.release(),
            "load": os.getloadavg(), "ucx": first(["ucx_info", "-v"]),
            "libfabric": first(["fi_info", "--version"]),
            "commit": first(["git", "-C", TOP, "rev-parse", "--short", "HEAD"])}


def number(value):
    if value is None:
        return "-"
    return "{:,.0f}".format(value) if value >= 1000 else "%.4g" % value


def make_say(name="bench"):
    terminal = sys.stderr.isatty()

    def say(text, passing=False):
        if passing and terminal:
            sys.stderr.write("\r%s\033[K" % text[:100])
        elif not passing:
            sys.stderr.write(("\r\033[K" if terminal else "") + name + ": " + text + "\n")
        sys.stderr.flush()
    return say


def two_cpus():
    cpus = sorted(os.sched_getaffinity(0))
    return (cpus[0], cpus[1]) if len(cpus) > 1 else None
