#!/usr/bin/env python3
"""Hand-made iWARP against kernel siw in the lab guest, to learn and to pin what siw really does.

Runs inside the lab's network namespace:  lab/in-net STATE lab/mpa_probe.py [PROBE...|--list]
Each probe starts its own guest program through the agent, speaks raw MPA/DDP/RDMAP bytes over a TCP
socket and checks siw's answer. "fact" lines tell what was seen; exit 0 if it is what we know.

A probe must not close a connection with A=1 before the guest says ESTABLISHED: the CLOSE event then
meets iw_cm in state CONN_RECV, and the guest's kernel ends in a BUG() (6.1, iwcm.c, cm_close_handler).
"""
import contextlib
import itertools
import socket
import struct
import sys
import threading
import time

HOST, GUEST, AGENT_PORT = "10.77.0.1", "10.77.0.2", 7100
M, C, R, S = 0x80, 0x40, 0x20, 0x10         # MPA flags
A, B = 0x8000, 0x4000                       # enhanced word, upper half, with IRD
RTR_WRITE, RTR_READ = 0x8000, 0x4000        # enhanced word, lower half, with ORD
TABLE = []
for byte in range(256):
    for _ in range(8):
        byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
    TABLE.append(byte)
ports = itertools.count(7600)


class Surprise(Exception):
    """siw did not do what this file says it does."""


def check(condition, text):
    if not condition:
        raise Surprise(text)


def fact(text):
    print("fact:", text, flush=True)


# ---- bytes ----------------------------------------------------------------------------------

def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def fpdu(ulpdu, crc="good"):
    body = struct.pack(">H", len(ulpdu)) + ulpdu
    body += bytes(-len(body) % 4)
    value = crc32c(body)
    return body + {"good": struct.pack("<I", value), "big-endian": struct.pack(">I", value),
                   "bad": struct.pack("<I", value ^ 1), "zero": bytes(4)}[crc]


def untagged(opcode, queue, msn, payload, offset=0, last=True, version=0x41):
    control = (version & 3) | (0x40 if last else 0)
    return struct.pack(">BBIIII", control, 0x40 | opcode, 0, queue, msn, offset) + payload


def send(msn, payload, **kw):
    return untagged(3, 0, msn, payload, **kw)


def write(stag, to, payload, opcode=0):
    return struct.pack(">BBIQ", 0xC1, 0x40 | opcode, stag, to) + payload


def read_request(msn, sink_stag, sink_to, size, stag, to):
    return untagged(1, 1, msn, struct.pack(">IQIIQ", sink_stag, sink_to, size, stag, to))


def request(flags=S | C, rev=2, pd=b"", word=(A | 4, RTR_WRITE | RTR_READ | 4)):
    if flags & S and rev == 2 and word:
        pd = struct.pack(">HH", *word) + pd
    return b"MPA ID Req Frame" + struct.pack(">BBH", flags, rev, len(pd)) + pd


def reply(flags=S, rev=2, pd=b"", word=(4, 4)):
    if flags & S and word:
        pd = struct.pack(">HH", *word) + pd
    return b"MPA ID Rep Frame" + struct.pack(">BBH", flags, rev, len(pd)) + pd


# ---- the guest's program and our side of the connection -----------------------------------------

class Guest:
    """One command in the guest; its lines arrive in self.lines."""

    def __init__(self, command):
        self.lines, self.status, self.more = [], None, threading.Condition()
        self.sock = socket.create_connection((GUEST, AGENT_PORT), 10)
        self.sock.settimeout(None)
        self.sock.sendall(command.encode() + b"\n")
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        with contextlib.suppress(OSError):          # close() ends it
            self.read_lines()

    def read_lines(self):
        for line in self.sock.makefile("r", errors="replace"):
            with self.more:
                if line.startswith("EXIT "):
                    self.status = int(line[5:])
                else:
                    self.lines.append(line.rstrip())
                self.more.notify_all()

    def wait_line(self, start, timeout=8):
        def found():
            return next((line for line in self.lines if line.startswith(start)), None)
        with self.more:
            self.more.wait_for(lambda: found() or self.status is not None, timeout)
            check(found(), f"guest: no line '{start}' but {self.lines}")
            return found()

    def wait_exit(self, timeout=15):
        with self.more:
            self.more.wait_for(lambda: self.status is not None, timeout)
        check(self.status is not None, f"guest program does not end: {self.lines}")
        return self.status

    def close(self):
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()


class Conn:
    def __init__(self, sock):
        self.sock = sock
        sock.settimeout(4)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, data):
        self.sock.sendall(data)

    def exactly(self, count):
        data = b""
        while len(data) < count:
            got = self.sock.recv(count - len(data))
            if not got:
                raise EOFError
            data += got
        return data

    def startup(self, key):
        head = self.exactly(20)
        check(head[:16] == key, f"bad key {head[:16]}")
        flags, rev, length = struct.unpack(">BBH", head[16:])
        return flags, rev, self.exactly(length)

    def reply(self):
        return self.startup(b"MPA ID Rep Frame")

    def fpdu(self, crc=True):
        head = self.exactly(2)
        length = struct.unpack(">H", head)[0]
        rest = self.exactly(length + -(length + 2) % 4)
        value = self.exactly(4)
        if crc:
            check(value == struct.pack("<I", crc32c(head + rest)), "bad CRC from siw")
        return rest[:length]

    def message(self, crc=True):
        """A whole DDP message: (first header, payload). siw cuts at the MSS."""
        header, payload = None, b""
        while True:
            ulpdu = self.fpdu(crc)
            size = 14 if ulpdu[0] & 0x80 else 18
            header = header or ulpdu[:size]
            payload += ulpdu[size:]
            if ulpdu[0] & 0x40:
                return header, payload

    def end(self, crc=True):
        """How siw ends the stream: the Terminate's bytes if any, then FIN or RST."""
        seen = []
        try:
            while True:
                ulpdu = self.fpdu(crc)
                seen.append(f"terminate {ulpdu[18:22].hex(' ')}" if ulpdu[1] & 15 == 7
                            else f"opcode {ulpdu[1] & 15}")
        except EOFError:
            seen.append("FIN")
        except ConnectionResetError:
            seen.append("RST")
        except socket.timeout:
            seen.append("nothing more")
        return ", ".join(seen)


@contextlib.contextmanager
def dialled(command, frame=None):
    """A guest server and a connection to it, the request sent; the port goes where PORT is."""
    port = next(ports)
    with contextlib.closing(Guest(command.replace("PORT", str(port)))) as guest:
        sock = None
        for _ in range(100):
            try:
                sock = socket.create_connection((GUEST, port), 5)
                break
            except ConnectionRefusedError:
                time.sleep(0.05)
        check(sock, f"nobody listens: {guest.lines}")
        with sock:
            conn = Conn(sock)
            if frame:
                conn.send(frame)
            yield guest, conn


@contextlib.contextmanager
def called(command):
    """A guest client and our end of its connection."""
    port = next(ports)
    with socket.create_server((HOST, port)) as listener:
        listener.settimeout(8)
        with contextlib.closing(Guest(command.replace("PORT", str(port)))) as guest:
            sock, _ = listener.accept()
            with sock:
                yield guest, Conn(sock)


def siwpeer(mode, role="server"):
    addr = GUEST if role == "server" else HOST
    return f"siwpeer {role} {mode} --addr {addr} --port PORT --timeout 4000"


RTR = fpdu(write(1, 0, b""))


@contextlib.contextmanager
def ready(mode, flags=S | C):
    """Up to the point where the passive siwpeer has told about its memory."""
    with dialled(siwpeer(mode), request(flags)) as (guest, conn):
        conn.reply()
        crc = "good" if flags & C else "zero"
        conn.send(fpdu(write(1, 0, b""), crc) + fpdu(send(1, struct.pack(">QII", 0, 0, 4096)), crc))
        _, payload = conn.message(bool(flags & C))
        yield guest, conn, struct.unpack(">QII", payload)


# ---- probes: siw as responder ---------------------------------------------------------------------

def show(name, flags, rev, pd):
    fact(f"{name}: reply flags {flags:#04x} rev {rev} pd {pd.hex() or '-'}")


def rev2_peer_to_peer():
    """Revision 2, A=1, RTR by Write or Read offered: siw picks Write and waits for it."""
    with dialled(siwpeer("connect --pd beef"), request(pd=b"hi")) as (guest, conn):
        flags, rev, pd = conn.reply()
        show("A=1, Write+Read offered", flags, rev, pd)
        check((flags, rev, pd) == (S | C, 2, bytes.fromhex("8004 8004 beef")), "unexpected reply")
        check(guest.wait_line("PEER-PD") == "PEER-PD 6869", "private data")
        time.sleep(0.3)
        fact("ESTABLISHED before the RTR: " + str("EVENT ESTABLISHED 0" in guest.lines))
        conn.send(RTR)
        guest.wait_line("EVENT ESTABLISHED 0")
        conn.sock.shutdown(socket.SHUT_WR)
        fact(f"after our FIN: {conn.end()}")
        check(guest.wait_exit() == 0, f"{guest.lines}")


def rev2_rtr_read():
    """Only the Read RTR offered: siw asks for it and answers with a zero-length Read Response."""
    with dialled(siwpeer("connect"), request(word=(A | 4, RTR_READ | 4))) as (guest, conn):
        flags, rev, pd = conn.reply()
        show("A=1, Read offered", flags, rev, pd)
        check(pd == bytes.fromhex("8004 4004"), "unexpected reply")
        conn.send(fpdu(read_request(1, 7, 0x1234, 0, 1, 0)))
        header, payload = conn.message()
        check((header, payload) == (write(7, 0x1234, b"", 2), b""), f"{header.hex()} {payload}")
        guest.wait_line("EVENT ESTABLISHED 0")


def rev2_rtr_send():
    """Only the Send RTR offered: siw asks for a Write instead; a zero-length Send eats a receive."""
    with dialled(siwpeer("connect"), request(word=(A | B | 4, 4))) as (guest, conn):
        show("A=1, Send offered", *conn.reply())
        conn.send(fpdu(send(1, b"")))
        with contextlib.suppress(Surprise):
            guest.wait_line("EVENT ESTABLISHED 0", 2)
        conn.sock.shutdown(socket.SHUT_WR)
        end = conn.end()
        guest.wait_exit()
        fact(f"zero-length Send as RTR: guest says {guest.lines[4:]}; end: {end}")


def rev2_client_server():
    """A=0: siw is in RTS with its reply; a zero-length Send as first FPDU is an ordinary message."""
    with dialled(siwpeer("connect"), request(word=(4, 4))) as (guest, conn):
        show("A=0", *conn.reply())
        guest.wait_line("EVENT ESTABLISHED 0")
        fact("A=0: ESTABLISHED before any FPDU")
        conn.send(fpdu(send(1, b"")))
        check(guest.wait_line("WC SUCCESS RECV") == "WC SUCCESS RECV 0", f"{guest.lines}")


def rev2_ird_ord():
    """IRD and ORD in siw's reply, for several requests."""
    for ird, ord_ in ((1, 1), (0, 0), (128, 128), (200, 200), (0x3FFF, 0x3FFF)):
        frame = request(word=(ird, ord_))
        with dialled(siwpeer("connect --ird 16 --ord 16"), frame) as (guest, conn):
            try:
                flags, rev, pd = conn.reply()
                answer = struct.unpack(">HH", pd[:4])
                fact(f"request IRD {ird} ORD {ord_}: flags {flags:#x}, reply IRD {answer[0]} ORD {answer[1]},"
                     f" program sees {guest.wait_line('PEER-IRD')[13:]}")
            except (EOFError, ConnectionResetError):
                guest.wait_exit()
                fact(f"request IRD {ird} ORD {ord_}: closed without a reply; guest: {guest.lines[-2:]}")


def rev1():
    """Revision 1, and revision 2 without S, with and without CRC: answered in kind."""
    for rev, flags in ((1, C), (1, 0), (0, C), (2, C)):
        with dialled(siwpeer("connect --pd beef"), request(flags, rev, b"hi")) as (guest, conn):
            got = conn.reply()
            show(f"rev {rev} flags {flags:#04x}", *got)
            check(got == (flags, rev, b"\xbe\xef"), "unexpected reply")
            conn.send(fpdu(send(1, b"hello"), "good" if flags & C else "zero"))
            check(guest.wait_line("WC") == "WC SUCCESS RECV 5", f"{guest.lines}")


def crc_off():
    """C=0 on both sides: no CRC is checked, siw sends zero or anything in the field."""
    with ready("passive", S) as (guest, conn, (addr, rkey, _)):
        conn.send(fpdu(write(rkey, addr, b"abcd"), "bad") +
                  fpdu(read_request(1, 9, 0, 4, rkey, addr), "bad"))
        head = conn.exactly(20 + 4)
        check(head[16:20] == b"abcd", f"{head.hex()}")
        fact(f"C=0: CRC field of siw's Read Response: {head[20:].hex()}, right value would be "
             f"{struct.pack('<I', crc32c(head[:20])).hex()}")
        check(not any(line.startswith("ASYNC") for line in guest.lines), f"{guest.lines}")


def crc_byte_order():
    """The CRC travels least significant byte first; the other order and a wrong one are refused."""
    for kind in ("good", "big-endian", "bad"):
        with ready("passive") as (guest, conn, (addr, rkey, _)):
            conn.send(fpdu(write(rkey, addr, b"abcd"), kind))
            if kind == "good":
                conn.send(fpdu(read_request(1, 9, 0, 4, rkey, addr)))
                check(conn.message()[1] == b"abcd", "read back")
                continue
            fact(f"{kind} CRC: {conn.end()}")
            guest.wait_exit()


def markers():
    """M=1 is rejected with R in the reply."""
    with dialled(siwpeer("connect"), request(S | C | M)) as (_, conn):
        flags, rev, pd = conn.reply()
        show("M=1", flags, rev, pd)
        check(flags & R and not flags & M, "not rejected")
        fact(f"M=1: then {conn.end()}")


def reserved_bits():
    """Reserved bits of the request come back in the reply unchanged; siw accepts all of them."""
    for rev, base in ((2, S | C), (1, C)):
        for bits in (0x01, 0x02, 0x04, 0x08, 0x0F):
            with dialled(siwpeer("connect"), request(base | bits, rev)) as (guest, conn):
                flags, _, pd = conn.reply()
                fact(f"rev {rev} request flags {base | bits:#04x}: reply {flags:#04x} pd {pd.hex() or '-'}")
                check(flags == base | bits, "not an echo")
                conn.send(RTR)
                guest.wait_line("EVENT ESTABLISHED 0")
    with dialled(siwpeer("reject --pd aa"), request(S | C | 1)) as (_, conn):
        show("rejected request with 0x01", *conn.reply())


def private_data():
    """The longest private data siw takes in a request, and the longest it brings back."""
    for rev, size in ((2, 247), (2, 251), (2, 252), (2, 253), (1, 255), (1, 256), (1, 257)):
        frame = request(S | C if rev == 2 else C, rev, b"x" * size, word=(4, 4))
        with dialled(siwpeer("connect --pd " + "5a" * 247), frame) as (guest, conn):
            try:
                _, _, pd = conn.reply()
                got = guest.wait_line("PEER-PD")[8:]
                answer = f"reply with {len(pd)} bytes, program sees {len(got.strip('-')) // 2} bytes"
            except (EOFError, ConnectionResetError, socket.timeout) as err:
                answer = f"no reply ({type(err).__name__})"
            fact(f"rev {rev}, {size} bytes of program data: {answer}")


def glued_request():
    """FPDUs sent before the reply (glued behind the request) kill the connection."""
    with dialled(siwpeer("connect"), request(word=(4, 4)) + fpdu(send(1, b"x"))) as (guest, conn):
        try:
            show("glued FPDU", *conn.reply())
            fact(f"glued FPDU: guest {guest.lines}; {conn.end()}")
        except (EOFError, ConnectionResetError) as err:
            fact(f"glued FPDU: {type(err).__name__}")


def slow_request():
    """A request that comes byte by byte is fine; one that never comes is timed out."""
    with dialled(siwpeer("connect")) as (guest, conn):
        for byte in request():
            conn.send(bytes([byte]))
        conn.reply()
        conn.send(RTR)
        guest.wait_line("EVENT ESTABLISHED 0")
    with dialled(siwpeer("connect")) as (guest, conn):
        begin = time.time()
        conn.sock.settimeout(10)
        end = conn.end()
        fact(f"no request: {end} after {time.time() - begin:.1f} s")


def large_fpdu():
    """An FPDU far above the MSS, up to the 16-bit limit, is accepted; siw's own stay below the MSS."""
    data = bytes(i * 7 & 0xFF for i in range(65000))
    with ready("passive --size 65536") as (_, conn, (addr, rkey, _)):
        conn.send(fpdu(write(rkey, addr, data[:64754])))
        conn.send(fpdu(read_request(1, 9, 0, 64754, rkey, addr)))
        sizes, got = [], b""
        while len(got) < 64754:
            ulpdu = conn.fpdu()
            sizes.append(len(ulpdu))
            got += ulpdu[14:]
        check(got == data[:64754], "data differ")
        fact(f"FPDU with 64768 bytes ULPDU accepted; siw's own ULPDUs: {sorted(set(sizes))}")
        conn.send(fpdu(write(rkey, addr, data[:65000])))
        conn.send(fpdu(read_request(2, 9, 0, 16, rkey, addr)))
        check(conn.message()[1] == data[:16], "read back")
        fact("FPDU with 65014 bytes ULPDU (above RFC 5044's 64768) accepted, too")


def errors():
    """siw's answers to a peer's mistakes: the four Terminate bytes as sent, then how TCP ends."""
    cases = {
        "write, bad STag": lambda a, k: write(k ^ 0x5500, a, b"x" * 16),
        "write, bad key byte": lambda a, k: write(k ^ 0x01, a, b"x" * 16),
        "write, out of bounds": lambda a, k: write(k, a + 4088, b"x" * 16),
        "write, before start": lambda a, k: write(k, a - 8, b"x" * 16),
        "write, TO wraps": lambda a, k: write(k, 0xFFFFFFFFFFFFFFF8, b"x" * 16),
        "write, zero length, bad STag": lambda a, k: write(k ^ 0x5500, a, b""),
        "read, bad STag": lambda a, k: read_request(1, 9, 0, 16, k ^ 0x5500, a),
        "read, out of bounds": lambda a, k: read_request(1, 9, 0, 16, k, a + 4088),
        "read, bad MSN": lambda a, k: read_request(2, 9, 0, 16, k, a),
        "send, bad MSN (3 not 2)": lambda a, k: send(3, b"x" * 16),
        "send, MSN again (1)": lambda a, k: send(1, b"x" * 16),
        "send, bad MO": lambda a, k: send(2, b"x" * 16, offset=4),
        "send, bad QN": lambda a, k: untagged(3, 5, 2, b"x" * 16),
        "send, DDP version 0": lambda a, k: send(2, b"x" * 16, version=0x40),
        "opcode 12": lambda a, k: untagged(12, 0, 2, b"x" * 16),
        "opcode 8 (immediate)": lambda a, k: untagged(8, 0, 2, b"x" * 8),
        "read response unasked": lambda a, k: write(k, a, b"x" * 16, 2),
        "terminate": lambda a, k: untagged(7, 2, 1, bytes.fromhex("00000000")),
        "garbage": lambda a, k: b"\xff" * 40,
    }
    for name, make in cases.items():
        mode = "write --size 4096" if name.startswith("send") else "passive --size 4096"
        with ready(mode) as (guest, conn, (addr, rkey, _)):
            conn.send(fpdu(make(addr, rkey)))
            conn.sock.settimeout(1.5)
            end = conn.end()
            conn.sock.close()
            guest.wait_exit()
            seen = [line for line in guest.lines[6:] if not line.startswith(("DONE", "WC SUCCESS"))]
            fact(f"{name}: {end}; guest: {'; '.join(dict.fromkeys(seen))}")
            check("nothing" in end if "zero length" in name else "nothing" not in end, "unexpected end")
    for mode in ("send-no-recv", "send-too-long", "bad-write-access", "bad-read-access"):
        with ready(mode) as (guest, conn, (addr, rkey, _)):
            conn.send(fpdu({"send-no-recv": send(2, b"x" * 16), "send-too-long": send(2, b"x" * 1000),
                            "bad-write-access": write(rkey, addr, b"x" * 16),
                            "bad-read-access": read_request(1, 9, 0, 16, rkey, addr)}[mode]))
            conn.sock.settimeout(1.5)
            fact(f"{mode}: {conn.end()}")


def abort():
    """Our RST, and our FIN in the middle of an FPDU, reach the guest program as DISCONNECTED."""
    with ready("passive") as (guest, conn, _):
        conn.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        conn.sock.close()
        guest.wait_line("EVENT DISCONNECTED")
        fact(f"RST: guest {guest.lines[8:]}")
    with ready("passive") as (guest, conn, (addr, rkey, _)):
        conn.send(fpdu(write(rkey, addr, b"x" * 1000))[:500])
        conn.sock.shutdown(socket.SHUT_WR)
        fact(f"FIN in mid-FPDU: {conn.end()}")
        guest.wait_line("EVENT DISCONNECTED")


def guest_closes():
    """What the ways of ending a siw program look like on the wire."""
    for how in ("disconnect", "exit", "destroy", "error"):
        with dialled(siwpeer(f"connect --close {how}"), request(word=(4, 4))) as (_, conn):
            conn.reply()
            fact(f"guest closes by {how}: {conn.end()}")
    with dialled(siwpeer("passive"), request(word=(4, 4))) as (guest, conn):
        conn.reply()
        guest.wait_line("EVENT ESTABLISHED 0")
        guest.close()
        fact(f"guest program killed: {conn.end()}")


# ---- probes: the genuine programs ----------------------------------------------------------------

def rping_server():
    """The whole rping exchange with a genuine `rping -s`, our side in Python."""
    data = bytes(range(65, 128)) + b"\0"          # rping writes back a string
    with dialled(f"rping -s -a {GUEST} -p PORT -C 2 -v", request()) as (guest, conn):
        conn.reply()
        conn.send(RTR)
        msn = 0
        for ping in range(2):
            conn.send(fpdu(send(msn + 1, struct.pack(">QII", 0x1000, 7, 64))))
            head, payload = conn.message()          # the server reads our buffer
            check(head[1] == 0x41, "no Read Request")
            sink_stag, sink_to, size, stag, to = struct.unpack(">IQIIQ", payload)
            check((size, stag, to) == (64, 7, 0x1000), "Read Request differs")
            conn.send(fpdu(write(sink_stag, sink_to, data, 2)))
            check(conn.message()[0][1] == 0x43, "no go-ahead")
            conn.send(fpdu(send(msn + 2, struct.pack(">QII", 0x2000, 8, 64))))
            head, payload = conn.message()          # the server writes it back
            check(head[:6] == b"\xc1\x40" + struct.pack(">I", 8) and payload == data, "wrong echo")
            check(conn.message()[0][1] == 0x43, "no end of ping")
            msn += 2
            fact(f"rping -s: ping {ping} right")
        conn.sock.shutdown(socket.SHUT_WR)
        fact(f"rping -s: end {conn.end()}; {guest.wait_exit()} {guest.lines}")


def rdma_server():
    """A genuine rdma_server: one 16-byte Send each way."""
    with dialled("rdma_server -p PORT", request()) as (guest, conn):
        conn.reply()
        conn.send(RTR + fpdu(send(1, b"0123456789abcdef")))
        header, payload = conn.message()
        check(header[1] == 0x43 and len(payload) == 16, f"{header.hex()}")
        fact(f"rdma_server answers {payload.hex()}; end: {conn.end()}; {guest.lines}")
        check(guest.wait_exit() == 0, "rdma_server failed")


# ---- probes: siw as initiator --------------------------------------------------------------------

def initiator_request():
    """What genuine clients on siw send first."""
    for command in (f"rping -c -a {HOST} -p PORT -C 1", f"rdma_client -s {HOST} -p PORT",
                    f"ucmatose -s {HOST} -p PORT", siwpeer("connect --pd 1234 --ird 8 --ord 2", "client")):
        with called(command) as (_, conn):
            flags, rev, pd = conn.startup(b"MPA ID Req Frame")
            fact(f"{command.split(' -')[0]}: request flags {flags:#04x} rev {rev} pd {pd.hex()}")
            check((flags, rev) == (S, 2), "unexpected request")


def initiator_takes_reply():
    """Replies siw accepts or refuses when it is the initiator."""
    cases = {
        "plain": reply(), "C=1": reply(S | C), "0x02": reply(S | 2), "0x01": reply(S | 1),
        "all reserved": reply(S | 0x0F), "C=1 and 0x02": reply(S | C | 2), "M=1": reply(S | M),
        "rev 1": reply(0, 1), "A=1, Write": reply(word=(A | 4, RTR_WRITE | 4)),
        "IRD 0 ORD 0": reply(word=(0, 0)), "ORD 129": reply(word=(4, 129)),
        "rejected": reply(S | R, pd=b"no"),
        "glued Send": reply() + fpdu(send(1, b"early"), "zero"), "PD 252": reply(pd=b"x" * 252),
        # One byte more, a PD_Length above 256, and the guest's kernel dereferences a NULL pointer.
    }
    refused = ("M=1", "rev 1", "ORD 129", "rejected", "glued Send")
    for name, frame in cases.items():
        with called(siwpeer("connect --close wait", "client")) as (guest, conn):
            conn.startup(b"MPA ID Req Frame")
            conn.send(frame)
            conn.sock.settimeout(0.7)
            end = conn.end(crc=False)
            conn.sock.close()
            guest.wait_exit()
            seen = [line[:60] for line in guest.lines[2:] if not line.startswith("WC")]
            fact(f"reply {name}: guest {seen}; wire: {end}")
            check(("EVENT ESTABLISHED 0" in seen) == (name not in refused), "unexpected event")


def initiator_crc():
    """A reply with C=1 to a request without: siw then uses and checks CRC in both directions."""
    with called(siwpeer("send --size 16", "client")) as (guest, conn):
        conn.startup(b"MPA ID Req Frame")
        conn.send(reply(S | C))
        header, payload = conn.message(crc=True)
        conn.send(fpdu(header + bytes(x ^ 0xFF for x in payload)))
        check(guest.wait_line("DONE") == "DONE 1 16 0", f"{guest.lines}")
        fact("request C=0, reply C=1: CRC used in both directions")


def early_responder():
    """An FPDU sent by us as responder 50 ms after the reply, before siw's program sent anything."""
    with called(siwpeer("connect --close wait", "client")) as (guest, conn):
        conn.startup(b"MPA ID Req Frame")
        conn.send(reply())
        guest.wait_line("EVENT ESTABLISHED")
        conn.send(fpdu(send(1, b"early"), "zero"))
        check(guest.wait_line("WC") == "WC SUCCESS RECV 5", f"{guest.lines}")
        fact("siw initiator takes an FPDU before it has sent one, once established")


PROBES = {f.__name__.replace("_", "-"): f for f in (
    rev2_peer_to_peer, rev2_rtr_read, rev2_rtr_send, rev2_client_server, rev2_ird_ord, rev1, crc_off,
    crc_byte_order, markers, reserved_bits, private_data, glued_request, slow_request, large_fpdu, errors,
    abort, guest_closes, rping_server, rdma_server, initiator_request, initiator_takes_reply,
    initiator_crc, early_responder)}


def main(names):
    if names == ["--list"]:
        for name, probe in PROBES.items():
            print(f"{name}: {probe.__doc__.splitlines()[0]}")
        return 0
    failed = 0
    for name in names or PROBES:
        try:
            PROBES[name]()
            print(f"passed: {name}", flush=True)
        except (Surprise, OSError, EOFError, struct.error) as err:
            print(f"failed: {name}: {type(err).__name__} {err}", flush=True)
            failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
