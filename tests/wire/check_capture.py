#!/usr/bin/env python3
"""Two independent readers look at the iWARP traffic in a capture and must agree.

  check_capture.py PCAP [--port N]... [--expect NAME=COUNT]... [--own-reader-only]
                   [--lax] [--terminates]

One reader is tshark; the other is iwarp_stream.py, which shares no code with Flue. Every octet
behind a TCP header must be part of a start-up frame or of an FPDU, every CRC must be good, no
rule of the RFCs broken, and tshark must have seen the same FPDUs with the same headers, none
malformed. Prints

  frames N fpdus N crc-good N crc-bad N unread N malformed N

and what is wrong; exit 0: nothing is, and there was something to read.

  --port N            server port of the connections meant; default: all
  --expect NAME=N     so many messages of this kind: write, read_request, read_response, send,
                      send_inv, send_se, send_se_inv, terminate
  --own-reader-only   do not ask tshark, where it is known to fail (see README.md here)
  --lax               do not judge the order of messages, only that they can be read
  --terminates        print one line per Terminate: source address and the first four octets
"""
import argparse
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import iwarp_stream  # noqa: E402
import tshark  # noqa: E402

NUDGES = 3  # of one connection, at most
FIELDS = ["ulpdulength", "tagged_flag", "last_flag", "opcode", "stag", "to", "qn", "msn", "mo"]
TSHARK_NAMES = ["iwarp_mpa.ulpdulength", "iwarp_ddp.tagged_flag", "iwarp_ddp.last_flag",
                "iwarp_rdma.opcode", "iwarp_ddp.stag", "iwarp_ddp.tagged_offset",
                "iwarp_ddp.qn", "iwarp_ddp.msn", "iwarp_ddp.mo"]


def number(text):
    return int(text, 16 if text.startswith("0x") else 10)


class TsharkView:
    """What tshark makes of a capture, by source port and destination port."""

    def __init__(self, pcap, ports):
        self.fpdus = {}  # (source port, target port): [tuple of FIELDS]
        self.frames = {"req": 0, "rep": 0}
        self.malformed = self.warnings = 0
        wanted = " or ".join("tcp.port == %d" % port for port in ports) or "tcp"
        self.read_fields(pcap, wanted)
        text = tshark.Fpdus(pcap, wanted)
        self.good, self.bad = text.good, text.bad

    def read_fields(self, pcap, wanted):
        names = ["tcp.srcport", "tcp.dstport", "iwarp_mpa.req", "iwarp_mpa.rep", "_ws.malformed",
                 "iwarp_mpa.res.not_set0", "iwarp_mpa.rev.not_set1", "iwarp_mpa.bad_length"]
        wanted = "(iwarp_mpa or _ws.malformed) and (%s)" % wanted
        for columns in tshark.fields(pcap, wanted, names + TSHARK_NAMES):
            self.frames["req"] += bool(columns[2])
            self.frames["rep"] += bool(columns[3])
            self.malformed += bool(columns[4]) + bool(columns[7])
            self.warnings += bool(columns[5]) + bool(columns[6])
            key = (number(columns[0]), number(columns[1]))
            self.fpdus.setdefault(key, []).extend(self.split(columns[len(names):]))

    @staticmethod
    def split(columns):
        """A packet can hold several FPDUs: each column is a list, those of tagged and untagged
        headers have an entry only for the FPDUs that are so."""
        lists = [[number(value) for value in column.split(",")] if column else []
                 for column in columns]
        tagged, untagged = [iter(column) for column in lists[4:6]], \
                           [iter(column) for column in lists[6:9]]
        for length, flag, last, opcode in zip(*lists[:4]):
            stag = [next(column, None) if flag else 0 for column in tagged]
            queue = [0 if flag else next(column, None) for column in untagged]
            yield (length, flag, last, opcode, *stag, *queue)


def own_list(connection, side):
    """FPDUs of a direction, as tuples of FIELDS."""
    found = []
    for fpdu in connection.fpdus[side]:
        f = fpdu.fields
        found.append((fpdu.ulpdu_length, f["tagged"], f["last"], f["opcode"],
                      f.get("stag", 0), f.get("to", 0), f.get("qn", 0), f.get("msn", 0),
                      f.get("mo", 0)))
    return found


def first_difference(ours, theirs):
    for at, (one, other) in enumerate(zip(ours, theirs)):
        if one != other:
            return "FPDU %d is %s, tshark says %s" % (
                at, dict(zip(FIELDS, one)), dict(zip(FIELDS, other)))
    return "%d FPDUs, tshark sees %d" % (len(ours), len(theirs))


def compare(connections, view):
    """Complaints where the two readers differ, and how many FPDUs tshark missed."""
    complaints, unread = [], 0
    by_key = {}
    for connection in connections:
        for side in 0, 1:
            key = tuple(connection.flows[i].source[1] for i in (side, 1 - side))
            by_key.setdefault(key, []).extend(own_list(connection, side))
    for key, ours in by_key.items():
        theirs = view.fpdus.get(key, [])
        if ours != theirs:
            unread += max(1, len(ours) - len(theirs))
            complaints.append("from port %d to %d: %s" % (*key, first_difference(ours, theirs)))
    frames = [frame for connection in connections for frame in connection.frames if frame]
    if view.frames["req"] + view.frames["rep"] != len(frames):
        complaints.append("%d start-up frames, tshark sees %s" % (len(frames), view.frames))
    if view.malformed:
        complaints.append("tshark calls %d packets malformed" % view.malformed)
    if view.warnings:
        complaints.append("tshark has %d warnings about start-up frames" % view.warnings)
    return complaints, unread


class Report:
    def __init__(self, connections, view):
        fpdus = [f for c in connections for side in c.fpdus for f in side]
        self.fpdus = len(fpdus)
        self.good = sum(f.crc_good is True for f in fpdus)
        self.bad = sum(f.crc_good is False for f in fpdus)
        self.malformed = view.malformed if view else 0
        self.unread = 0
        self.complaints = [text for c in connections for text in c.problems]
        if view:
            complaints, self.unread = compare(connections, view)
            self.complaints += complaints
            if (view.good, view.bad) != (self.good, self.bad):
                self.complaints.append("CRCs: %d good and %d bad, tshark says %d and %d"
                                       % (self.good, self.bad, view.good, view.bad))
        self.frames = sum(len(flow.marks) for c in connections for flow in c.flows)

    def line(self):
        return tshark.summary(self.frames, self.fpdus, self.good, self.bad, self.unread,
                              self.malformed)


def nudges(connections, beyond):
    """Empty Writes beyond those that were asked for: to a peer that is silent for long, as on a busy machine, the
    initiator sends a few."""
    empty = sum(fpdu.name() == "write" and not fpdu.fields["payload"]
                for c in connections for side in c.fpdus for fpdu in side)
    return beyond if 0 < beyond <= min(empty, NUDGES * len(connections)) else 0


def check_counts(connections, expected):
    total = {}
    for connection in connections:
        for name, count in connection.count().items():
            total[name] = total.get(name, 0) + count
    if "write" in expected:
        total["write"] -= nudges(connections, total["write"] - expected["write"])
    for name, want in expected.items():
        if total.get(name, 0) != want:
            yield "%d messages '%s', expected %d" % (total.get(name, 0), name, want)


def print_terminates(connections):
    everyone = [item + (c,) for c in connections for item in c.in_order()]
    for _, side, fpdu, connection in sorted(everyone, key=lambda item: item[0]):
        if fpdu.name() == "terminate":
            print(connection.flows[side].source[0], fpdu.fields["payload"][:4].hex(" "))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("pcap")
    parser.add_argument("--port", type=int, action="append", default=[])
    parser.add_argument("--expect", action="append", default=[], metavar="NAME=N")
    parser.add_argument("--own-reader-only", action="store_true")
    parser.add_argument("--lax", action="store_true")
    parser.add_argument("--terminates", action="store_true")
    return parser.parse_args()


def main():
    args = arguments()
    try:
        connections = iwarp_stream.read_connections(args.pcap, args.port)
    except iwarp_stream.Bad as why:
        sys.exit("check_capture: %s" % why)
    for connection in connections:
        connection.parse(args.lax)
    if args.terminates:
        print_terminates(connections)
        return 0
    view = None if args.own_reader_only else TsharkView(args.pcap, args.port)
    report = Report(connections, view)
    expected = {name: int(count) for name, count in (e.split("=") for e in args.expect)}
    report.complaints += check_counts(connections, expected)
    if not any(frame for connection in connections for frame in connection.frames):
        report.complaints.append("there is no iWARP connection")
    print(report.line())
    for text in report.complaints[:20]:
        print(text)
    return 1 if report.complaints else 0


if __name__ == "__main__":
    sys.exit(main())
