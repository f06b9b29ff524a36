"""The lab's scenarios, as tables. A row has a group, a name and run(lab) -> notes to print."""
import dataclasses
import os

import closing
import mpa_probe
from labtest import GUEST, HOST, Failed, Skipped, check, finish_all

MIB = 1 << 20


def bulk(mebibytes):
    return f"--size {MIB} --total {mebibytes * MIB} --wrs 4"


def check_says(programs, wanted, report):
    for program, starts in zip(programs, wanted):
        for start in starts:
            check(any(line.startswith(start) for line in program.lines), f"no '{start}'\n{report}")


@dataclasses.dataclass
class Probe:
    """One probe of mpa_probe.py."""
    name: str
    group: str = "self"

    def run(self, lab):
        probe = lab.host(lab.tool("mpa_probe.py"), self.name[len("probe "):])
        status = finish_all([probe], 90)[0]
        check(status == 0, probe.report())
        return probe.lines


@dataclasses.dataclass
class Local:
    """Server and client in the guest, over siw's own address. PORT is replaced."""
    name: str
    server: str
    client: str
    server_says: tuple = ()
    client_says: tuple = ()
    seconds: int = 30
    group: str = "self"

    def run(self, lab):
        port = lab.port()
        server = lab.guest(self.server.replace("PORT", str(port)))
        lab.wait_guest_listens(port)
        client = lab.guest(self.client.replace("PORT", str(port)))
        statuses = finish_all([server, client], self.seconds)
        reports = f"{server.report()}\n{client.report()}"
        check(statuses == [0, 0], reports)
        check_says((server, client), (self.server_says, self.client_says), reports)


def both(name, args, **kw):
    """siwpeer on both sides with the same arguments."""
    side = f"{args} --addr {GUEST} --port PORT --quiet"
    return Local(f"guest alone, {name}", f"siwpeer server {side}", f"siwpeer client {side}", **kw)


GONE = ("EVENT DISCONNECTED",)
SELF = [
    Local("guest alone, rping", f"rping -s -a {GUEST} -p PORT -C 20",
          f"rping -c -a {GUEST} -p PORT -C 20 -V"),
    Local("guest alone, rdma_client and rdma_server", "rdma_server -p PORT",
          f"rdma_client -s {GUEST} -p PORT"),
    Local("guest alone, ucmatose", "ucmatose -p PORT -C 10", f"ucmatose -s {GUEST} -p PORT -C 10"),
    both("private data", "connect --pd 00ff10", server_says=("PEER-PD 00ff10",),
         client_says=("PEER-PD 00ff10",)),
    both("reject with private data", "reject --pd dead", client_says=("EVENT REJECTED", "PEER-PD dead")),
    both("sends", "send --count 2000 --size 512"),
    both("long sends", "send --count 50 --size 100000"),
    both("writes by the client", f"write {bulk(16)}"),
    both("writes by the server", f"write --active server {bulk(16)}"),
    both("reads by the client", f"read {bulk(16)}"),
    both("reads by the server", f"read --active server {bulk(16)}"),
] + [
    both(f"{mode}, {active} active", f"{mode} --active {active}", server_says=GONE, client_says=GONE)
    for mode in ("bad-write-key", "bad-write-bounds", "bad-write-access", "bad-read-key",
                 "bad-read-bounds", "send-no-recv", "send-too-long")
    for active in ("client", "server")
] + [
    Local(f"guest alone, client closes by {how}", f"siwpeer server connect --addr {GUEST} --port PORT",
          f"siwpeer client connect --addr {GUEST} --port PORT --close {how}", server_says=GONE)
    for how in ("disconnect", "exit", "destroy", "error")
] + [Probe(f"probe {name}") for name in mpa_probe.PROBES]


@dataclasses.dataclass
class TsharkReads:
    """tshark finds its way through a capture of Python against genuine rping on siw."""
    name: str = "tshark reads a capture of rping"
    group: str = "self"

    def run(self, lab):
        with lab.capture() as cap:
            probe = lab.host(lab.tool("mpa_probe.py"), "rping-server", "large-fpdu")
            check(finish_all([probe], 60) == [0], probe.report())
        status, text = cap.summary()
        check(status == 0, text)
        return [text]


def flue_peer():
    here = os.path.dirname(os.path.abspath(__file__))
    default = os.path.join(here, "../build/gcc/tests/lab/flue_peer")
    path = os.environ.get("FLUE_PEER", default)
    if not os.access(path, os.X_OK):
        raise Skipped(f"{os.path.normpath(path)} is not built")
    return os.path.abspath(path)


@dataclasses.dataclass
class Pair:
    """flue_peer on the host and a program in the guest; who serves starts first. PORT is replaced, and SECOND,
    another one.

    terminates: (who sends it, its first three bytes) that the capture must show, all and no others.
    readable: tshark must be able to read the whole capture, or what its filter lets through.
    """
    name: str
    host: str
    guest: str
    host_says: tuple = ()
    guest_says: tuple = ()
    host_status: int = 0
    guest_status: int = 0
    terminates: tuple = None
    readable: object = False
    seconds: int = 60
    group: str = "flue"

    def start(self, lab, peer):
        port = lab.port()
        guest = self.guest.replace("PORT", str(port)).replace("SECOND", str(lab.port()))
        argv = [peer, *self.host.replace("PORT", str(port)).split()]
        if argv[1].split("-")[-1] in ("server", "accept"):
            host = lab.host(*argv)
            host.wait_line("LISTENING")
            return host, lab.guest(guest)
        server = lab.guest(guest)
        lab.wait_guest_listens(port)
        return lab.host(*argv), server

    def exchange(self, lab, peer):
        host, guest = self.start(lab, peer)
        statuses = finish_all([host, guest], self.seconds)
        report = f"{host.report()}\n{guest.report()}"
        check(statuses == [self.host_status, self.guest_status], report)
        check_says((host, guest), (self.host_says, self.guest_says), report)

    def run(self, lab):
        peer = flue_peer()
        if self.terminates is None and not self.readable:
            self.exchange(lab, peer)
            return []
        with lab.capture() as cap:
            self.exchange(lab, peer)
        if self.readable:
            status, text = cap.summary(*([self.readable] if isinstance(self.readable, str) else []))
            check(status == 0, text)
        if self.terminates is not None:
            seen = [tuple(line.split(" ", 1)) for line in cap.terminates()]
            seen = [(source, code[:8]) for source, code in seen]
            check(seen == list(self.terminates), f"Terminates seen: {seen}, wanted: {self.terminates}")
        return []


def to_guest(name, args, **kw):
    """flue_peer as client, siwpeer as server, same arguments."""
    return Pair(f"client, {name}", f"client {args} --addr {GUEST} --port PORT --quiet",
                f"siwpeer server {args} --addr {GUEST} --port PORT --quiet", **kw)


def from_guest(name, args, **kw):
    """siwpeer as client, flue_peer as server, same arguments."""
    return Pair(f"server, {name}", f"server {args} --addr {HOST} --port PORT --quiet",
                f"siwpeer client {args} --addr {HOST} --port PORT --quiet", **kw)


def both_ways(name, args, **kw):
    return [to_guest(name, args, **kw), from_guest(name, args, **kw)]


def detail(terminate):
    """Of Flue's event: layer, type, code."""
    layer_type, code, _ = terminate.split()
    return int(layer_type + code, 16)


def bad_deeds():
    """The active side misbehaves, the passive one sends the Terminate: RFC form, siw's swapped."""
    # mode: Flue's bytes (layer/type, code, header bits), siw's, or None where siw does not check
    deeds = {
        "bad-write-key": ("11 00 c0", "11 00 03"),
        "bad-write-bounds": ("11 01 c0", "11 01 03"),
        "bad-write-access": ("01 02 c0", "11 00 03"),
        "bad-read-key": ("01 00 e0", "10 00 07"),
        "bad-read-bounds": ("01 01 e0", "10 01 07"),
        "bad-read-access": ("01 02 e0", None),
        "send-no-recv": ("12 02 c0", "21 02 03"),
        "send-too-long": ("12 05 c0", "21 02 03"),
    }
    for mode, (flue, siw) in deeds.items():
        found = (f"EVENT DISCONNECTED 6 protocol fault {detail(flue):x}",)
        yield from_guest(f"siw does {mode}", mode, terminates=((HOST, flue),), host_says=found, guest_says=GONE)
        yield to_guest(f"siw does {mode}", f"{mode} --active server", terminates=((HOST, flue),),
                       host_says=found, guest_says=GONE)
        if siw:
            told = (f"EVENT DISCONNECTED 5 terminated by peer {detail(siw[1] + siw[0] + siw[2:]):x}",)
            yield to_guest(f"Flue does {mode}", mode, terminates=((GUEST, siw),), host_says=told)


FLUE = [
    Pair("client of rping", f"rping-client --addr {GUEST} --port PORT --count 100 --size 1000",
         f"rping -s -a {GUEST} -p PORT -C 100 -S 1000 -V", readable=True),
    Pair("server of rping", f"rping-server --addr {HOST} --port PORT --count 100 --size 1000",
         f"rping -c -a {HOST} -p PORT -C 100 -S 1000 -V", readable=True),
    Pair("client of rdma_server", f"rdma-client --addr {GUEST} --port PORT", "rdma_server -p PORT"),
    Pair("server of rdma_client", f"rdma-server --addr {HOST} --port PORT",
         f"rdma_client -s {HOST} -p PORT"),
    Pair("client of ucmatose", f"ucmatose-client --addr {GUEST} --port PORT --count 10",
         "ucmatose -p PORT -C 10"),
    Pair("lenient server of ucmatose", f"ucmatose-server --addr {HOST} --port PORT --count 10 --lenient",
         f"ucmatose -s {HOST} -p PORT -C 10"),
    *both_ways("private data", "connect --pd 0123456789abcdef",
               host_says=("PEER-PD 0123456789abcdef",), guest_says=("PEER-PD 0123456789abcdef",)),
    to_guest("rejected", "reject --pd dead", host_says=("EVENT REJECTED", "PEER-PD dead")),
    from_guest("rejecting", "reject --pd dead", guest_says=("EVENT REJECTED", "PEER-PD dead")),
    *both_ways("10,000 sends", "send --count 10000 --size 1000", seconds=90),
    *both_ways("256 MiB of writes from the client", f"write {bulk(256)}", seconds=120),
    *both_ways("256 MiB of reads by the client", f"read {bulk(256)}", seconds=120),
    *both_ways("writes from the server", f"write --active server {bulk(16)}"),
    *both_ways("reads by the server", f"read --active server {bulk(16)}"),
    Pair("client, CRC off", f"client send --count 100 --crc off --addr {GUEST} --port PORT --quiet",
         f"siwpeer server send --count 100 --addr {GUEST} --port PORT --quiet", readable=True),
    Pair("server, CRC on", f"server send --count 100 --crc on --addr {HOST} --port PORT --quiet",
         f"siwpeer client send --count 100 --addr {HOST} --port PORT --quiet", readable=True),
    Pair("server, CRC off", f"server send --count 100 --crc off --addr {HOST} --port PORT --quiet",
         f"siwpeer client send --count 100 --addr {HOST} --port PORT --quiet", readable=True),
    Pair("client, revision 1", f"client send --count 100 --rev 1 --addr {GUEST} --port PORT --quiet",
         f"siwpeer server send --count 100 --addr {GUEST} --port PORT --quiet", readable=True),
    Pair("client, bad MSN", f"client bad-msn --addr {GUEST} --port PORT",
         f"siwpeer server write --addr {GUEST} --port PORT", host_says=GONE, guest_says=GONE,
         guest_status=1, terminates=((GUEST, "21 03 03"),)),
] + [
    Pair(f"client closes by {how}", f"client send --addr {GUEST} --port PORT --close {how}",
         f"siwpeer server send --addr {GUEST} --port PORT", guest_says=GONE)
    for how in ("disconnect", "exit", "abort")
] + [
    Pair(f"server, siw closes by {how}", f"server send --addr {HOST} --port PORT",
         f"siwpeer client send --addr {HOST} --port PORT --close {how}", host_says=GONE)
    for how in ("disconnect", "exit", "destroy", "error")
] + list(bad_deeds())


def converted_connect(name, args, lines=True, **kw):
    """Flue makes a TCP connection and converts it as initiator; siw responds, behind the relay if there are lines."""
    if not lines:
        return Pair(f"converted, {name}", f"convert-connect {args} --addr {GUEST} --port PORT --quiet",
                    f"siwpeer server {args} --addr {GUEST} --port PORT --quiet", **kw)
    return Pair(f"converted behind lines, initiator, {name}",
                f"convert-connect {args} --lines --addr {GUEST} --port PORT --quiet",
                f"siwpeer server {args} --addr {GUEST} --port SECOND --quiet & "
                f"relay accept PORT {GUEST} SECOND && wait $!",
                host_says=("LINE HELLO siw", "LINE GO"), guest_says=("LINE LOGIN flue", "LINE RDMA", "RELAYED"), **kw)


def converted_accept(name, args, early=False, **kw):
    """siw connects to the relay, which connects to Flue's plain listener; Flue converts as responder."""
    return Pair(f"converted behind lines, responder, {name}",
                f"convert-accept {args} --lines --addr {HOST} --port PORT --quiet",
                f"relay connect PORT {HOST} SECOND{' --eager' if early else ''} & relay=$!; "
                f"until grep -q \"$(printf ':%04X 0*:0000 0A ' SECOND)\" /proc/net/tcp; do sleep 0.05; done; "
                f"siwpeer client {args} --addr {GUEST} --port SECOND --quiet && wait $relay",
                host_says=("LINE LOGIN siw", "LINE RDMA", "EARLY 2" if early else "EARLY 0"),
                guest_says=("LINE HELLO flue", "LINE GO", "RELAYED"), **kw)


EXCHANGES = {
    "sends": "send --count 200 --size 3000 --pd 0123",
    "writes": f"write {bulk(4)}",
    "reads": f"read {bulk(4)}",
    "writes from the server": f"write --active server {bulk(4)}",
    "reads by the server": f"read --active server {bulk(4)}",
}
NO_LINES = r'!(tcp.payload matches "^(LOGIN|HELLO|RDMA|GO)")'
CONVERTED = [
    *(converted_connect(name, args, lines=False, readable=name == "sends") for name, args in EXCHANGES.items()),
    *(converted_connect(name, args, readable=name == "sends" and NO_LINES) for name, args in EXCHANGES.items()),
    *(converted_accept(name, args, readable=name == "sends" and NO_LINES) for name, args in EXCHANGES.items()),
    *(converted_accept(f"{name}, request with the last line", EXCHANGES[name], early=True)
      for name in ("sends", "reads")),
    converted_connect("rejected", "reject --pd dead"),
]
CONVERTED[-1].host_says += ("EVENT REJECTED", "PEER-PD dead")


def all_rows():
    rows = SELF + [TsharkReads()] + FLUE + CONVERTED + closing.ROWS
    names = [row.name for row in rows]
    if len(set(names)) != len(names):
        raise Failed("two scenarios have the same name")
    return rows
