"""Every packet on the loopback device of this network namespace, as TCP segments."""
import collections
import socket
import struct
import threading

SEGMENT = collections.namedtuple("Segment", "source target flags sequence payload")
FIN, SYN, RST, ACK = 1, 2, 4, 16
PACKET_OUTGOING = 4  # on lo each packet is seen leaving and arriving; the second is ignored
ETH_P_ALL = 3


class Sniffer:
    """Listens from creation to finish()."""

    def __init__(self):
        self.sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        self.sock.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
        self.sock.bind(("lo", 0))
        self.sock.settimeout(0.5)
        self.segments, self.foreign, self.ending = [], [], False
        self.thread = threading.Thread(target=self.listen)
        self.thread.start()

    def listen(self):
        while True:
            try:
                packet, address = self.sock.recvfrom(1 << 17)
            except socket.timeout:
                if self.ending:
                    return
                continue
            if address[2] != PACKET_OUTGOING:
                continue
            self.take(packet)

    def take(self, packet):
        packet = packet[14:]
        if packet[0] >> 4 != 4 or packet[9] != socket.IPPROTO_TCP:
            self.foreign.append(packet)
            return
        header = (packet[0] & 15) * 4
        length = struct.unpack_from("!H", packet, 2)[0] or len(packet)
        tcp = packet[header:length]
        source, target, sequence = struct.unpack_from("!HHI", tcp)
        self.segments.append(SEGMENT(source, target, tcp[13], sequence, tcp[(tcp[12] >> 4) * 4:]))

    def finish(self):
        """(segments, packets that are no TCP, how many were missed)"""
        self.ending = True
        self.thread.join()
        # SOL_PACKET, PACKET_STATISTICS: packets, drops
        drops = struct.unpack("II", self.sock.getsockopt(263, 6, 8))[1]
        self.sock.close()
        return self.segments, self.foreign, drops


def stream(segments, port_is_source, port):
    """The octets of one direction, put together by sequence number."""
    chosen = [s for s in segments if (s.source == port) == port_is_source]
    first = next((s.sequence for s in chosen if s.flags & SYN), 0)
    octets = bytearray()
    for segment in chosen:
        if segment.payload:
            at = (segment.sequence - first - 1) & 0xFFFFFFFF
            octets[at:at + len(segment.payload)] = segment.payload
    return bytes(octets)
