"""How tshark is asked about iWARP: for check_capture.py here and for lab/check-capture.

README.md here and lab/README.md tell what tshark 4.0 can read.
"""
import os
import subprocess
import sys

# Two passes, so that the parts of a reassembled FPDU are known as such. The heuristic first: many
# ports belong to other protocols by default (7000, 7171, 7900, ...). The guessers of what is inside
# a Send would claim short ones as malformed packets of theirs.
OPTIONS = ["-n", "-2", "-o", "tcp.try_heuristic_first:TRUE", "--disable-protocol", "rpcordma",
           "--disable-protocol", "smb_direct"]
# Nobody's own settings: there is no such folder.
NO_SETTINGS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "no-settings")


def ask(pcap, wanted, *args):
    """The lines tshark prints about the packets that the display filter lets through."""
    done = subprocess.run(["tshark", "-r", pcap, *OPTIONS, "-Y", wanted, *args], capture_output=True,
                          text=True, check=False, env=dict(os.environ, WIRESHARK_CONFIG_DIR=NO_SETTINGS))
    if done.returncode:
        sys.exit("tshark: " + done.stderr)
    return done.stdout.splitlines()


def fields(pcap, wanted, names):
    """For each packet a list of texts, one for each name; several values have commas between."""
    args = [arg for name in names for arg in ("-e", name)]
    for line in ask(pcap, wanted, "-T", "fields", *args):
        columns = line.split("\t")
        yield columns + [""] * (len(names) - len(columns))


def count(pcap, wanted):
    return sum(1 for _ in fields(pcap, wanted, ["frame.number"]))


class Fpdus:
    """How many FPDUs there are, and how many CRCs are good or bad. Only the text of the tree says
    whether a CRC is good."""

    def __init__(self, pcap, wanted):
        lines = ask(pcap, "iwarp_mpa and (%s)" % wanted, "-O", "iwarp_mpa")
        self.fpdus = sum(line.strip() == "FPDU" for line in lines)
        self.good = sum("(Good CRC32)" in line for line in lines)
        self.bad = sum("(Bad CRC32" in line for line in lines)


def summary(frames, fpdus, good, bad, unread, malformed):
    """The line that both programs print, for people and for scripts."""
    return "frames %d fpdus %d crc-good %d crc-bad %d unread %d malformed %d" % (
        frames, fpdus, good, bad, unread, malformed)
