"""The rows of docs/design/closing.md that kernel siw can play, as scenarios of the lab.

Flue tells about its own end (flue_peer, mode closing), the capture about the wire; both are compared with
the row. lab/README.md says which rows siw cannot play.
"""
import dataclasses
import errno
import os
import struct

from labtest import GUEST, HOST, Failed, check, finish_all

TABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../docs/design/closing.md")
FIN, RST = 0x01, 0x04
TERMINATE = b"\x41\x47\0\0\0\0\0\0\0\2"     # the DDP and RDMAP header's beginning, queue 2
TRIES = 5


def read_table():
    """{scenario: {column: text}}"""
    rows, columns, inside = {}, None, False
    with open(TABLE, encoding="utf-8") as file:
        for line in file:
            if line.startswith("<!-- "):
                inside = "begin: closing table" in line
            elif inside and not line.startswith("|---"):
                cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
                if columns is None:
                    columns = cells
                else:
                    rows[cells[0]] = dict(zip(columns, cells))
    return rows


def segments(path, source):
    """(flags, payload) of all TCP segments from this address, in order."""
    address = bytes(int(part) for part in source.split("."))
    with open(path, "rb") as file:
        data = file.read()
    at = 24
    while at + 16 <= len(data):
        length = struct.unpack_from("<I", data, at + 8)[0]
        frame = data[at + 16:at + 16 + length]
        at += 16 + length
        if len(frame) < 54 or frame[12:14] != b"\x08\x00" or frame[23] != 6 or frame[26:30] != address:
            continue
        tcp = 14 + 4 * (frame[14] & 15)
        end = 14 + struct.unpack_from(">H", frame, 16)[0]
        yield frame[tcp + 13], frame[tcp + 4 * (frame[tcp + 12] >> 4):end]


def wire_words(path, source):
    """What the other side sees of this one, in the table's words; repetitions count once."""
    words = []
    for flags, payload in segments(path, source):
        seen = (("TERM", TERMINATE in payload), ("RST", flags & RST), ("FIN", flags & FIN))
        words += [word for word, there in seen if there and word not in words]
    return words


def said(program, word, default=None):
    """The rest of the one line that begins with the word."""
    found = [line[len(word) + 1:] for line in program.lines if line.startswith(word + " ")]
    check(found or default is not None, f"no '{word}'\n{program.report()}")
    return found[0] if found else default


@dataclasses.dataclass
class Closing:
    """One row. host: flue_peer's options, guest: siwpeer's; differs: columns in which siw's part differs
    from that of the table's peer, with the reason beside the row.

    resets: siw's TCP must have reset and not closed. That is a matter of milliseconds, so where it comes out
    otherwise it is played again.
    """
    row: str
    host: str
    guest: str = "passive"
    variant: str = ""
    differs: dict = dataclasses.field(default_factory=dict)
    resets: bool = False
    retries: int = 0        # of the host's TCP; 0: as it is
    server: bool = False
    group: str = "flue"

    @property
    def name(self):
        role = "server" if self.server else "client"
        return f"closing, {role}, {self.row}" + (f", {self.variant}" if self.variant else "")

    def start(self, lab, peer):
        port = lab.port()
        # The side that posts the RDMA operations is the host's, unless siw does a bad deed.
        active = "server" if self.server != ("siw-active" in self.host) else "client"
        common = f"--port {port} --active {active}"
        host = self.host.replace("siw-active", "").split()
        addr = HOST if self.server else GUEST
        ours = [peer, "server" if self.server else "client", "closing", "--addr", addr, *common.split(), *host]
        theirs = f"siwpeer {'client' if self.server else 'server'} {self.guest} --addr {addr} {common} --quiet"
        if "--close" not in theirs:
            theirs += " --close wait"
        if self.retries:
            ours = ["sh", "-c", 'echo "$0" >/proc/sys/net/ipv4/tcp_retries2; "$@"; r=$?;'
                    "echo 15 >/proc/sys/net/ipv4/tcp_retries2; exit $r", str(self.retries), *ours]
        if self.server:
            program = lab.host(*ours)
            program.wait_line("LISTENING")
            return program, lab.guest(theirs)
        server = lab.guest(theirs)
        lab.wait_guest_listens(port)
        return lab.host(*ours), server

    def compare(self, host, capture):
        wanted = dict(read_table()[self.row])
        wanted.update(self.differs)
        problems = []

        def equal(column, seen):
            if seen != wanted[column]:
                problems.append(f"{column}: wanted '{wanted[column]}', seen '{seen}'")

        if wanted["events"] != "-":
            reason, detail = said(host, "EVENT DISCONNECTED").split(" ", 1)[1].rsplit(" ", 1)
            number = int(detail, 16)
            equal("events", " ".join(["DISCONNECTED"] * int(said(host, "ENDS"))))
            equal("reason", reason)
            equal("detail", f"0x{number:04x}" if wanted["detail"].startswith("0x")
                  else errno.errorcode.get(number, str(number)))
            equal("sends", said(host, "SENDS"))
            equal("receives", said(host, "RECEIVES"))
            if said(host, "LATE") != "0":
                problems.append("completions after the end was told")
        states = said(host, "STATES")
        equal("states", states if wanted["events"] != "-" else states + " -")
        equal("result", said(host, "RESULT", "-"))
        equal("wire", " ".join(wire_words(capture.path, HOST)) or "-")
        meddled = said(host, "MEDDLED", "-")
        if meddled not in ("-", "ok" if "abort" in self.host else "ENOTCONN"):
            problems.append(f"what the program did while Closing: {meddled}")
        if ("EVENT CQ_ERROR" in host.lines) != (self.row == "local-failure"):
            problems.append("EVENT CQ_ERROR: missing or too many")
        return problems

    def play(self, lab):
        from scenarios import flue_peer     # which imports us
        with lab.capture() as capture:
            host, guest = self.start(lab, flue_peer())
            statuses = finish_all([host, guest], 30)
        report = f"{host.report()}\n{guest.report()}\n{capture.path}"
        check(statuses == [0, 0], report)
        check("EVENT DISCONNECTED 0" in guest.lines or "--close exit" in self.guest, report)
        return host, capture, report

    def run(self, lab):
        for again in range(TRIES):
            host, capture, report = self.play(lab)
            if not self.resets or wire_words(capture.path, GUEST)[:1] == ["RST"]:
                break
        else:
            raise Failed(f"siw did not reset in {TRIES} attempts\n{report}")
        problems = self.compare(host, capture)
        if problems:
            raise Failed("\n".join(problems) + "\n" + report)
        return [f"siw closed in order {again} times before it reset"] if again else []


def both_roles(*args, **kw):
    return [Closing(*args, **kw), Closing(*args, server=True, **kw)]


# Steps of siwpeer_act.c. DEAF: long enough for Flue to do its part (SOON) while nothing of it gets in.
DEAF = "passive --act deaf,sleep:400"
SOON = "--pause 100"
SIW_CLOSES = "passive --act sleep:100 --close "

ROWS = [
    # Graceful, from each side and in each role.
    *both_roles("local-graceful", "--close disconnect"),
    *both_roles("remote-graceful", "--close wait", SIW_CLOSES + "disconnect"),
    Closing("remote-graceful", "--close wait", SIW_CLOSES + "exit", server=True, variant="siw's process ends"),
    Closing("remote-graceful", "--close wait", SIW_CLOSES + "destroy", server=True, variant="siw's QP destroyed"),
    Closing("remote-graceful", "--close wait", SIW_CLOSES + "error", server=True, variant="siw's QP to error"),
    # Work outstanding.
    *both_roles("local-busy", f"{SOON} --work read --close disconnect", DEAF + ",hear"),
    *both_roles("remote-busy", f"{SOON} --work read --close wait", DEAF + ",disconnect,sleep:200,hear"),
    # siw resets.
    Closing("local-rst", f"{SOON} --work write --close disconnect", DEAF + ",reset,hear", resets=True),
    # Before TCP repeats the Write: it would then hold back the FIN.
    Closing("remote-rst", "--pause 50 --work write --close wait",
            "passive --act deaf,sleep:180,disconnect,sleep:300,hear"),
    Closing("reset", f"{SOON} --work write --close wait", DEAF + ",reset,hear", resets=True),
    Closing("reset-busy", f"{SOON} --work read --close wait", DEAF + ",reset,hear", resets=True),
    # siw's TCP does not answer.
    Closing("local-no-ack", f"{SOON} --close disconnect --close-time 1000", DEAF + ",sleep:900,hear"),
    Closing("local-data-after-fin", f"{SOON} --close disconnect", DEAF + ",send,sleep:100,hear"),
    Closing("remote-no-ack", "--close wait", "passive --act deaf,sleep:100,disconnect,sleep:2200,hear"),
    # Long after that siw's own FIN finds nobody: that is the RST.
    Closing("llp-dead", f"{SOON} --work read --close wait", "passive --act deaf,sleep:3000,hear --close disconnect",
            retries=1, differs={"wire": "RST"}),
    # The program goes on while Closing.
    Closing("local-post-send", f"{SOON} --close then-send", DEAF + ",hear"),
    Closing("local-post-recv", f"{SOON} --close then-recv", DEAF + ",hear"),
    Closing("local-abort", f"{SOON} --close then-abort", DEAF + ",hear"),
    Closing("local-destroy", f"{SOON} --close then-destroy", DEAF + ",hear"),
    # Not so deaf that a FIN is sent twice: TCP's answer to the second would be a reset.
    Closing("remote-post-send", "--close wait-send", "passive --act deaf,sleep:100,disconnect,sleep:100,hear"),
    Closing("remote-post-recv", "--close wait-recv", "passive --act deaf,sleep:100,disconnect,sleep:100,hear"),
    Closing("local-failure", "siw-active --close wait --recv-cq 1", "passive --act send,send"),
    # Terminate, from each side. The table's peer reports another fault than siw does.
    *both_roles("terminate", "--close terminate"),
    Closing("terminate-busy", f"{SOON} --work read --close terminate", DEAF + ",hear"),
    *both_roles("terminated", "--work bad-write --close wait", differs={"detail": "0x1100"}),
    *both_roles("fault", "siw-active --close wait", "bad-write-key"),
    Closing("fault-rst", "siw-active --close wait", "passive --act deaf,bad-write,sleep:200,reset,hear", resets=True),
    Closing("fault-no-ack", "siw-active --close wait", "passive --act deaf,bad-write,sleep:2300,hear"),
    # Abortive from our side.
    *both_roles("abort", "--close abort"),
    Closing("abort-busy", f"{SOON} --work read --close abort", DEAF + ",hear"),
]
