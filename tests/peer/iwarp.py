"""What a peer says in iWARP: MPA start-up frames, FPDUs, DDP segments, Terminates.

Written from RFC 5040, 5041, 5044 and 6581, without any of Flue's code. Whatever a builder makes
can be wrong on purpose: octets are octets, cut, change or hold them back. Reading is done by the
reader of the captures, tests/wire/iwarp_stream.py, which shares nothing with Flue either.
"""
import os
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "wire"))
from iwarp_stream import (Bad, Frame, REPLY_KEY, REQUEST_KEY, crc32c,  # noqa: E402
                          read_fpdu, read_header)

MARKERS, CRC, REJECT, ENHANCED = 0x80, 0x40, 0x20, 0x10
RTR_SEND, RTR_WRITE, RTR_READ = 1, 2, 4
WRITE, READ_REQUEST, READ_RESPONSE, SEND, TERMINATE = 0, 1, 2, 3, 7

__all__ = ["Bad", "crc32c", "frame", "request", "reply", "read_frame", "fpdu", "write", "send",
           "read_request", "terminate", "read_segments", "Terminate", "find_terminate"]


# ---- MPA ----

def frame(key, flags, revision, data):
    return key + struct.pack(">BBH", flags, revision, len(data)) + data


def enhanced(depth, p2p, rtr):
    """RFC 6581, 4.2: A and B stand above the IRD, C and D above the ORD."""
    first = depth | (0x8000 if p2p else 0) | (0x4000 if rtr & RTR_SEND else 0)
    second = depth | (0x8000 if rtr & RTR_WRITE else 0) | (0x4000 if rtr & RTR_READ else 0)
    return struct.pack(">HH", first, second)


def build(key, revision, flags, depth, rtr, data):
    if revision < 2:
        return frame(key, flags, revision, data)
    return frame(key, flags | ENHANCED, revision, enhanced(depth, bool(rtr), rtr) + data)


def request(revision=2, flags=CRC, depth=8, rtr=RTR_WRITE, data=b""):
    """rtr: mask of what the initiator can send as ready-to-receive; 0: two-way."""
    return build(REQUEST_KEY, revision, flags, depth, rtr, data)


def reply(revision=2, flags=CRC, depth=8, rtr=RTR_WRITE, data=b""):
    return build(REPLY_KEY, revision, flags, depth, rtr, data)


def read_frame(octets, key):
    """The frame that the stream begins with; None: more octets are needed."""
    if len(octets) < 20 or len(octets) < 20 + struct.unpack(">H", octets[18:20])[0]:
        if key.startswith(bytes(octets[:16])):
            return None
    return Frame(octets, key)


def fpdu(ulpdu, crc=True):
    """Length, ULPDU, pad, CRC; no markers. crc False: CRC in use, but this one is wrong."""
    octets = struct.pack(">H", len(ulpdu)) + ulpdu
    octets += bytes(-len(octets) % 4)
    return octets + struct.pack("<I", crc32c(octets) ^ (0 if crc else 1))


# ---- DDP and RDMAP: messages of one segment, as FPDUs ----

def tagged(opcode, stag, to, data):
    return fpdu(struct.pack(">BBIQ", 0xC1, 0x40 | opcode, stag, to) + data)


def untagged(opcode, queue, msn, data):
    return fpdu(struct.pack(">BBIIII", 0x41, 0x40 | opcode, 0, queue, msn, 0) + data)


def write(stag=0, to=0, data=b""):
    """Without data: the ready-to-receive message."""
    return tagged(WRITE, stag, to, data)


def send(msn, data=b""):
    return untagged(SEND, 0, msn, data)


def read_request(msn, sink, length, source):
    """sink and source: (STag, tagged offset)."""
    return untagged(READ_REQUEST, 1, msn, struct.pack(">IQIIQ", *sink, length, *source))


def terminate(layer, kind, code):
    """RFC 5040, 4.8, without copied headers."""
    return untagged(TERMINATE, 2, 1, struct.pack(">BBH", layer << 4 | kind, code, 0))


# ---- reading ----

def read_segments(stream, begin):
    """Fields of each whole FPDU of a stream behind its start-up frame; Bad when one is broken."""
    at = begin
    while True:
        one = read_fpdu(stream, at, at - begin, False, True)
        if one is None:
            return
        if not one.crc_good:
            raise Bad("the CRC of the FPDU at stream octet %d is wrong" % at)
        fields = read_header(one.ulpdu)
        fields["end"] = at = at + one.size
        yield fields


class Terminate:
    """A Terminate message, decoded."""

    def __init__(self, payload):
        if len(payload) < 4:
            raise Bad("a Terminate of %d octets" % len(payload))
        self.layer, self.kind, self.code = payload[0] >> 4, payload[0] & 15, payload[1]
        self.has_length, self.has_ddp, self.has_rdmap = (bool(payload[2] & bit)
                                                         for bit in (0x80, 0x40, 0x20))
        self.copied = bytes(payload[4:])
        # As Flue's events write it, so that both can be compared.
        self.detail = self.layer << 12 | self.kind << 8 | self.code


def find_terminate(stream, begin):
    """(Terminate, offset of the octet behind it), or None."""
    for fields in read_segments(stream, begin):
        if fields["opcode"] == TERMINATE and not fields["tagged"]:
            return Terminate(fields["payload"]), fields["end"]
    return None
