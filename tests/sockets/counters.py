"""The counters that the preload library leaves: one JSON object per process, in one file.

A connection is eligible when it talked enough, with a local peer that has the library too. Only
for those are bytes counted: through the lane, and on TCP after the connection became eligible.
"""
import json
import os

SHARE = 0.95  # of the eligible connections, and of their bytes
FIELDS = ("connections", "eligible", "lanes", "stepdowns", "eligible_lane_tx", "eligible_lane_rx",
          "eligible_tcp_tx", "eligible_tcp_rx")


START = '{"schema"'


def row_of(line):
    """One that was killed while it wrote leaves the beginning of its line, in front of another's."""
    try:
        return json.loads(line[line.rfind(START):])
    except ValueError:
        return None


def read(path):
    """A list of dictionaries, one per process that ended."""
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        return [row for row in map(row_of, file) if row]


def sums(path):
    """Of each number, over all processes."""
    total = {}
    for row in read(path):
        for key, value in row.items():
            if isinstance(value, int) and key != "pid":
                total[key] = total.get(key, 0) + value
    return total


class Total:
    """The sum over processes."""

    def __init__(self, rows):
        self.rows = rows
        for field in FIELDS:
            setattr(self, field, sum(row[field] for row in rows))

    @property
    def lane_bytes(self):
        return self.eligible_lane_tx + self.eligible_lane_rx

    @property
    def tcp_bytes(self):
        return self.eligible_tcp_tx + self.eligible_tcp_rx

    def text(self):
        share = self.lane_bytes / max(1, self.lane_bytes + self.tcp_bytes)
        return ("%d processes, %d connections, %d eligible, %d lanes, %d step-downs, "
                "%.1f of %.1f MB through lanes (%.1f %%)"
                % (len(self.rows), self.connections, self.eligible, self.lanes, self.stepdowns,
                   self.lane_bytes / 1e6, (self.lane_bytes + self.tcp_bytes) / 1e6, 100 * share))

    def table(self):
        """One line per process, for a report of what went wrong."""
        return ["%s[%s]: %s" % (row["program"], row["pid"],
                                " ".join("%s %d" % (field, row[field]) for field in FIELDS))
                for row in self.rows]

    def problems(self, connections, octets):
        """What is wrong, both sides having the library. A program that reports nothing, or less
        than was asked of it, must not pass: `connections` ends and `octets` are the least that
        the scenario's work amounts to, each connection and each byte counted at both ends."""
        found = []
        if self.eligible < connections:
            found.append("%d eligible ends of connections, not at least %d"
                         % (self.eligible, connections))
        if self.lanes < SHARE * self.eligible:
            found.append("only %d of %d eligible connections had lanes"
                         % (self.lanes, self.eligible))
        if self.lane_bytes < SHARE * (self.lane_bytes + self.tcp_bytes):
            found.append("only %d of %d bytes went through lanes"
                         % (self.lane_bytes, self.lane_bytes + self.tcp_bytes))
        if self.lane_bytes < octets:
            found.append("%d bytes went through lanes, not at least %d"
                         % (self.lane_bytes, octets))
        return found
