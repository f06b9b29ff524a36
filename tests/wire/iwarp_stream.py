"""iWARP as it stands in a capture, read without any of Flue's code: pcap, TCP, MPA, DDP, RDMAP.

read_connections(path, ports) gives the TCP connections of a capture; Connection.parse() cuts
both directions into start-up frames and FPDUs and notes every violation of the RFCs that can be
seen from outside. Everything a peer sent must be accounted for, to the last octet.
"""
import bisect
import struct

OPCODES = ["write", "read_request", "read_response", "send", "send_inv", "send_se",
           "send_se_inv", "terminate", "immediate", "immediate_se", "atomic_request",
           "atomic_response"]
WRITE, READ_REQUEST, READ_RESPONSE, SEND, TERMINATE = 0, 1, 2, 3, 7
IMMEDIATE, IMMEDIATE_SE, ATOMIC_REQUEST, ATOMIC_RESPONSE = 8, 9, 10, 11
TAGGED = {WRITE, READ_RESPONSE}
QUEUE = {READ_REQUEST: 1, TERMINATE: 2, ATOMIC_REQUEST: 1, ATOMIC_RESPONSE: 3}  # all others: 0
LENGTHS = {READ_REQUEST: 28, IMMEDIATE: 8, IMMEDIATE_SE: 8, ATOMIC_REQUEST: 52, ATOMIC_RESPONSE: 12}
REQUEST_KEY, REPLY_KEY = b"MPA ID Req Frame", b"MPA ID Rep Frame"
M, C, R, S = 0x80, 0x40, 0x20, 0x10
FIN, SYN, RST, ACK = 1, 2, 4, 16
SPACING = 512


class Bad(Exception):
    """The stream cannot be read any further."""


def make_crc_table():
    table = []
    for octet in range(256):
        for _ in range(8):
            octet = octet >> 1 ^ (0x82F63B78 if octet & 1 else 0)
        table.append(octet)
    return table


CRC_TABLE = make_crc_table()


def crc32c(data, table=tuple(CRC_TABLE)):
    crc = 0xFFFFFFFF
    for octet in data:
        crc = crc >> 8 ^ table[(crc ^ octet) & 255]
    return crc ^ 0xFFFFFFFF


# ---- packets ----

def read_packets(path):
    """(number, link type, octets) of each packet of a classic pcap file."""
    with open(path, "rb") as file:
        head = file.read(24)
        order = {b"\xd4\xc3\xb2\xa1": "<", b"\x4d\x3c\xb2\xa1": "<",
                 b"\xa1\xb2\xc3\xd4": ">", b"\xa1\xb2\x3c\x4d": ">"}.get(head[:4])
        if not order:
            raise Bad("%s is not a pcap file (dumpcap -P makes one)" % path)
        link = struct.unpack(order + "I", head[20:24])[0]
        number = 0
        while True:
            head = file.read(16)
            if len(head) < 16:
                return
            _, _, have, length = struct.unpack(order + "IIII", head)
            number += 1
            if have != length:
                raise Bad("packet %d was not captured as a whole" % number)
            yield number, link, file.read(have)


def ip_of(link, octets):
    """What is behind the link layer's header: Ethernet or Linux' cooked form."""
    skip = {1: 14, 113: 16, 276: 20, 101: 0}.get(link)
    if skip is None:
        raise Bad("link type %d is unknown" % link)
    return octets[skip:]


class Segment:
    """A TCP segment; None from parse() for all else."""

    @staticmethod
    def parse(number, ip):
        if len(ip) >= 40 and ip[0] >> 4 == 6 and ip[6] == 6:
            source, target = ip[8:24].hex(), ip[24:40].hex()
            tcp = ip[40:40 + struct.unpack(">H", ip[4:6])[0]]
        elif len(ip) >= 20 and ip[0] >> 4 == 4 and ip[9] == 6:
            source, target = (".".join(str(o) for o in ip[at:at + 4]) for at in (12, 16))
            tcp = ip[(ip[0] & 15) * 4:struct.unpack(">H", ip[2:4])[0]]
        else:
            return None
        self = Segment()
        self.number = number
        ports = struct.unpack(">HH", tcp[:4])
        self.source, self.target = (source, ports[0]), (target, ports[1])
        self.seq = struct.unpack(">I", tcp[4:8])[0]
        self.flags = tcp[13]
        self.data = tcp[(tcp[12] >> 4) * 4:]
        return self


class Flow:
    """One direction of a connection."""

    def __init__(self, source):
        self.source = source
        self.first = None  # sequence number of the first octet
        self.data = bytearray()
        self.marks = []  # (end of the data so far, number of the packet that brought it)
        self.early = {}  # offset: (octets, packet number) behind a gap
        self.fin = self.reset = False

    def take(self, segment):
        if segment.flags & SYN:
            self.first = (segment.seq + 1) & 0xFFFFFFFF
            return
        self.fin |= bool(segment.flags & FIN)
        self.reset |= bool(segment.flags & RST)
        if self.first is None and not self.reset:  # a reset answers a SYN where nobody listens
            raise Bad("the capture does not have the beginning of %s:%d" % self.source)
        if segment.data:
            at = (segment.seq - self.first) & 0xFFFFFFFF
            # Sequence numbers wrap; what was sent before is never 2 GiB away.
            at += (len(self.data) - at + (1 << 31)) >> 32 << 32
            self.early[at] = (bytes(segment.data), segment.number)
            self.advance()

    def advance(self):
        while True:
            at = next((a for a in self.early if a <= len(self.data)), None)
            if at is None:
                return
            octets, number = self.early.pop(at)
            known = self.data[at:at + len(octets)]
            if known != octets[:len(known)]:
                raise Bad("packet %d repeats other octets than before" % number)
            if len(octets) > len(known):
                self.data += octets[len(known):]
                self.marks.append((len(self.data), number))

    def packet_of(self, offset):
        """The packet that brought the octet."""
        at = bisect.bisect_right(self.marks, (offset, 1 << 62))
        return self.marks[at][1] if at < len(self.marks) else 0


# ---- MPA ----

class Frame:
    """A start-up frame."""

    def __init__(self, data, key):
        if len(data) < 20 or bytes(data[:16]) != key:
            raise Bad("no start-up frame '%s'" % key.decode())
        self.flags, self.revision, length = struct.unpack(">BBH", data[16:20])
        if length > 512 or len(data) < 20 + length:
            raise Bad("start-up frame with %d octets of private data" % length)
        self.size = 20 + length
        self.private = bytes(data[20:self.size])
        self.enhanced = bool(self.flags & S) and self.revision >= 2


class Fpdu:
    """One FPDU, as a whole."""

    def __init__(self, at):
        self.at = at
        self.markers = 0
        self.crc_good = None
        self.fields = {}

    def name(self):
        opcode = self.fields.get("opcode", 99)
        return OPCODES[opcode] if opcode < len(OPCODES) else "opcode %d" % opcode


def read_fpdu(data, at, pos, markers, crc):
    """The FPDU at offset `at`, which is octet `pos` of full operation; None: not all there."""
    fpdu = Fpdu(at)
    plain = bytearray()
    need, start = 2, None
    covered = at
    while len(plain) < need:
        if markers and (pos + covered - at) % SPACING == 0:
            if len(data) < covered + 4:
                return None
            # Before the length field the distance is 0: the marker belongs to this FPDU.
            want = 0 if start is None else covered - start
            if struct.unpack(">HH", data[covered:covered + 4]) != (0, want & 0xFFFF):
                raise Bad("marker at stream octet %d is %s, not %d"
                          % (covered, data[covered:covered + 4].hex(), want))
            fpdu.markers += 1
            covered += 4
        if start is None:
            start = covered
        room = SPACING - (pos + covered - at) % SPACING if markers else need
        chunk = min(need - len(plain), room)
        if len(data) < covered + chunk:
            return None
        plain += data[covered:covered + chunk]
        covered += chunk
        if need == 2 and len(plain) == 2:
            fpdu.ulpdu_length = struct.unpack(">H", plain)[0]
            fpdu.pad = -(2 + fpdu.ulpdu_length) % 4
            need = 2 + fpdu.ulpdu_length + fpdu.pad
    if markers and (pos + covered - at) % SPACING == 0:
        # Between pad and CRC: still inside this FPDU.
        if len(data) < covered + 4:
            return None
        if struct.unpack(">HH", data[covered:covered + 4]) != (0, (covered - start) & 0xFFFF):
            raise Bad("marker before the CRC at stream octet %d is wrong" % covered)
        fpdu.markers += 1
        covered += 4
    if len(data) < covered + 4:
        return None
    fpdu.size = covered + 4 - at
    fpdu.ulpdu = bytes(plain[2:2 + fpdu.ulpdu_length])
    fpdu.pad_good = not any(plain[2 + fpdu.ulpdu_length:])
    if crc:
        sent = struct.unpack("<I", data[covered:covered + 4])[0]
        fpdu.crc_good = sent == crc32c(data[at:covered])
    return fpdu


# ---- DDP and RDMAP ----

def read_header(ulpdu):
    """The fields of a segment."""
    if len(ulpdu) < 14 or len(ulpdu) < 18 and not ulpdu[0] & 0x80:
        raise Bad("segment of %d octets is shorter than its header" % len(ulpdu))
    fields = {"tagged": ulpdu[0] >> 7, "last": ulpdu[0] >> 6 & 1, "dv": ulpdu[0] & 3,
              "reserved": ulpdu[0] & 0x3C | ulpdu[1] & 0x30, "rv": ulpdu[1] >> 6,
              "opcode": ulpdu[1] & 15}
    if fields["tagged"]:
        fields["stag"], fields["to"] = struct.unpack(">IQ", ulpdu[2:14])
        fields["payload"] = ulpdu[14:]
    else:
        names = ("invalidate", "qn", "msn", "mo")
        fields.update(zip(names, struct.unpack(">IIII", ulpdu[2:18])))
        fields["payload"] = ulpdu[18:]
    return fields


class Sender:
    """What one direction has sent so far, to judge what it sends next."""

    def __init__(self):
        self.msn = {0: 1, 1: 1, 2: 1, 3: 1}
        self.mo = 0
        self.open = None  # opcode of a message of several segments
        self.next = None  # (stag, to) that its next tagged segment must have
        self.reads = []  # not answered yet: [sink stag, to, bytes left] of a Read, [id] of an atomic
        self.over = False  # a Terminate was sent

    def untagged(self, f):
        opcode, qn = f["opcode"], f["qn"]
        if qn != QUEUE.get(opcode, 0):
            yield "queue %d is not that of the opcode" % qn
            return
        if f["msn"] != self.msn[qn]:
            yield "message number %d, not %d" % (f["msn"], self.msn[qn])
        if f["mo"] != (self.mo if qn == 0 else 0):
            yield "message offset %d, not %d" % (f["mo"], self.mo)
        if qn and not f["last"]:
            yield "a message of one segment lacks L"
        if opcode not in (4, 6) and f["invalidate"]:
            yield "an STag to invalidate in a message that does not"
        if qn == 0:
            self.mo = 0 if f["last"] else self.mo + len(f["payload"])
        if f["last"]:
            self.msn[qn] = (self.msn[qn] + 1) & 0xFFFFFFFF

    def tagged(self, f):
        if self.next and (f["stag"], f["to"]) != self.next:
            yield "not where its message went on"
        self.next = None if f["last"] else (f["stag"], (f["to"] + len(f["payload"])) % (1 << 64))

    def answer(self, f, asked):
        """A Read Response, against the oldest Read Request of the other side."""
        if not asked:
            yield "a Read Response that nobody asked for"
            return
        read = asked[0]
        if len(read) == 1:
            yield "a Read Response where an atomic is to be answered"
            return
        if (f["stag"], f["to"]) != (read[0], read[1]):
            yield "a Read Response to another place than asked for"
        read[1] += len(f["payload"])
        read[2] -= len(f["payload"])
        if read[2] < 0 or bool(f["last"]) != (read[2] == 0):
            yield "a Read Response of another length than asked for"
        if f["last"]:
            asked.pop(0)

    def answer_atomic(self, f, asked):
        if not asked or [struct.unpack(">I", f["payload"][:4])[0]] != asked[0]:
            yield "an Atomic Response that nobody asked for"
        else:
            asked.pop(0)

    def judge(self, f, other):
        if self.over:
            yield "something behind a Terminate"
        if f["dv"] != 1 or f["rv"] != 1 or f["reserved"]:
            yield "versions or reserved bits"
        if f["opcode"] >= len(OPCODES) or (f["opcode"] in TAGGED) != bool(f["tagged"]):
            yield "opcode %d with T %d" % (f["opcode"], f["tagged"])
            return
        # Others than us may interleave; siw breaks on it, so we must not.
        if self.open is not None and self.open != f["opcode"] and f["opcode"] != TERMINATE:
            yield "a message inside another one"
        self.open = None if f["last"] else f["opcode"]
        yield from self.tagged(f) if f["tagged"] else self.untagged(f)
        if f["opcode"] == READ_RESPONSE:
            yield from self.answer(f, other.reads)
        length = len(f["payload"])
        if length != LENGTHS.get(f["opcode"], length):
            yield "%s of %d octets" % (OPCODES[f["opcode"]], length)
            return
        if f["opcode"] == ATOMIC_REQUEST:
            operation, number = struct.unpack(">II", f["payload"][:8])
            if operation not in (0, 2):
                yield "atomic operation %d" % operation
            self.reads.append([number])
        if f["opcode"] == ATOMIC_RESPONSE:
            yield from self.answer_atomic(f, other.reads)
        if f["opcode"] == READ_REQUEST:
            stag, to, size = struct.unpack(">IQI", f["payload"][:16])
            self.reads.append([stag, to, size])
        if f["opcode"] == TERMINATE:
            self.over = True
            if not 4 <= len(f["payload"]) <= 52:
                yield "a Terminate of %d octets" % len(f["payload"])


# ---- connections ----

class Connection:
    """Both directions of a TCP connection. flows[0] is the initiator's."""

    def __init__(self, client, server):
        self.flows = [Flow(client), Flow(server)]
        self.frames = [None, None]
        self.fpdus = [[], []]
        self.torn = [0, 0]  # octets of an FPDU that was cut off by a reset
        self.problems = []

    def terms(self):
        """(CRC used, [markers in what the initiator sends, and the responder])."""
        request, reply = self.frames
        return bool((request.flags | reply.flags) & C), [bool(reply.flags & M),
                                                         bool(request.flags & M)]

    def note(self, side, fpdu, text):
        self.problems.append("%s:%d, packet %d, %s: %s" % (
            *self.flows[side].source, self.flows[side].packet_of(fpdu.at + fpdu.size - 1),
            fpdu.name(), text))

    def read_frames(self):
        keys = (REQUEST_KEY, REPLY_KEY)
        for side in 0, 1:
            if self.flows[side].early:
                raise Bad("octets of %s:%d are missing" % self.flows[side].source)
            if self.flows[side].data:
                self.frames[side] = Frame(self.flows[side].data, keys[side])
        return all(self.frames) and not self.frames[1].flags & R

    def read_side(self, side, crc, markers):
        flow = self.flows[side]
        begin = at = self.frames[side].size
        while at < len(flow.data):
            fpdu = read_fpdu(flow.data, at, at - begin, markers, crc)
            if fpdu is None:
                self.torn[side] = len(flow.data) - at
                break
            self.fpdus[side].append(fpdu)
            fpdu.fields = read_header(fpdu.ulpdu)
            if crc and not fpdu.crc_good:
                self.note(side, fpdu, "CRC is wrong")
            if not fpdu.pad_good:
                self.note(side, fpdu, "pad is not zero")
            at += fpdu.size

    def in_order(self):
        """All FPDUs of both sides, (packet number, side, FPDU), as they passed by."""
        both = []
        for side in 0, 1:
            latest = 0
            for fpdu in self.fpdus[side]:
                # Packets can overtake each other, FPDUs cannot.
                packet = self.flows[side].packet_of(fpdu.at + fpdu.size - 1)
                latest = max(latest, packet)
                both.append((latest, side, fpdu))
        return sorted(both, key=lambda item: item[0])

    def judge(self):
        senders = [Sender(), Sender()]
        seen = [False, False]
        for _, side, fpdu in self.in_order():
            if side == 1 and not seen[0]:
                self.note(side, fpdu, "the responder speaks before the initiator did")
            seen[side] = True
            for text in senders[side].judge(fpdu.fields, senders[1 - side]):
                self.note(side, fpdu, text)

    def parse(self, lax=False):
        """lax: the peers' framing is judged, not what they say with it."""
        try:
            if not self.read_frames():
                self.check_refused()
                return
            crc, markers = self.terms()
            for side in 0, 1:
                self.read_side(side, crc, markers[side])
            if not lax:
                self.judge()
        except Bad as why:
            self.problems.append("%s:%d: %s" % (*self.flows[0].source, why))
        if any(self.torn) and not any(flow.reset for flow in self.flows):
            self.problems.append("%s:%d: an FPDU ends in the middle" % self.flows[0].source)

    def check_refused(self):
        for side in 0, 1:
            frame = self.frames[side]
            if frame and len(self.flows[side].data) > frame.size:
                self.problems.append("%s:%d: something behind a refused start-up"
                                     % self.flows[side].source)

    def count(self):
        """Messages (not segments) of each kind."""
        total = dict.fromkeys(OPCODES, 0)
        for side in 0, 1:
            for fpdu in self.fpdus[side]:
                if fpdu.fields.get("last"):
                    total[fpdu.name()] = total.get(fpdu.name(), 0) + 1
        return total


def read_connections(path, ports=()):
    """Connections with one of these server ports (any, when none is given), in order."""
    found, order = {}, []
    for number, link, octets in read_packets(path):
        segment = Segment.parse(number, ip_of(link, octets))
        if segment is None:
            continue
        key = frozenset((segment.source, segment.target))
        if segment.flags & SYN and not segment.flags & ACK:
            if not ports or segment.target[1] in ports:
                found[key] = Connection(segment.source, segment.target)
                order.append(found[key])
            else:
                found.pop(key, None)
        if key in found:
            side = 0 if segment.source == found[key].flows[0].source else 1
            found[key].flows[side].take(segment)
    return order
