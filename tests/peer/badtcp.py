"""A TCP that misbehaves on purpose.

The kernel's TCP cannot be told to withhold an acknowledgement or to answer a FIN with a reset, so
this one stands behind a TUN device, as another host: the kernel's side is KERNEL, this one HOST.
Needs a network namespace of its own (enter_namespace).

    host = badtcp.Host()
    c = host.connect(port)         or   c = host.listen(port).accept()
    c.send(octets, each=1)         one octet per segment
    c.wait_received(20)            everything so far is c.received
    c.withhold()                   acknowledges nothing more, c.withhold(n): nothing behind octet n
    c.at_fin(c.reset)              answers a FIN with a RST
    c.at_octet(100, c.fin)         sends a FIN when the 100th octet has come
    c.silent = True                hears and says nothing any more (still records)
    c.words()                      what the other side sent: ["SYN", "data", "FIN", "RST"]

One thread takes packets; all else is called from the thread of the test. What at_fin() and
at_octet() ask for is done before the packet is acknowledged.
"""
import fcntl
import os
import random
import select
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time

KERNEL, HOST = "10.77.0.1", "10.77.0.2"
FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16
MSS, WINDOW = 1460, 65535
RTO = 0.3
PATIENCE = 20

INSIDE = "FLUE_PEER_INSIDE"
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 1, 0x1000


def skip(reason):
    """For test programs: TAP's way to say that this cannot run here (77 is not: meson errs)."""
    print("1..0 # SKIP " + reason)
    sys.exit(0)


def namespace_command():
    """The words before a command that run it in a new network namespace; skips if impossible."""
    missing = [name for name in ("unshare", "ip") if not shutil.which(name)]
    if missing:
        skip("needs " + ", ".join(missing))
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        skip("no /dev/net/tun")
    why = ""
    for how in ["unshare", "-n"], ["unshare", "-rn"]:
        done = subprocess.run(how + ["ip", "tuntap", "add", "dev", "bad0", "mode", "tun"],
                              capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return how
        why = done.stderr.strip()
    skip("no network namespace with a TUN device: " + why)
    return []


def enter_namespace():
    """Runs this program again in a new network namespace; returns only there."""
    if INSIDE not in os.environ:
        how = namespace_command()
        os.execvpe(how[0], how + [sys.executable, *sys.argv], dict(os.environ, **{INSIDE: "1"}))


class Timeout(Exception):
    """The other side did not do in time what the test waited for."""


# ---- packets ----

def checksum(octets):
    if len(octets) % 2:
        octets += b"\0"
    total = sum(struct.unpack(">%dH" % (len(octets) // 2), octets))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def make_packet(ports, seq, ack, flags, data, window=WINDOW, options=b""):
    """An IP packet from us to the kernel; ports: (ours, theirs)."""
    ours, theirs = socket.inet_aton(HOST), socket.inet_aton(KERNEL)
    length = 20 + len(options) + len(data)
    tcp = bytearray(struct.pack(">HHIIBBHHH", *ports, seq & 0xFFFFFFFF, ack & 0xFFFFFFFF,
                                (20 + len(options)) << 2, flags, window, 0, 0))
    tcp += options + data
    pseudo = ours + theirs + struct.pack(">HH", 6, length)
    struct.pack_into(">H", tcp, 16, checksum(pseudo + bytes(tcp)))
    ip = bytearray(struct.pack(">BBHHHBBH", 0x45, 0, 20 + length, random.getrandbits(16), 0x4000,
                               64, 6, 0) + ours + theirs)
    struct.pack_into(">H", ip, 10, checksum(bytes(ip)))
    return bytes(ip + tcp)


class Packet:
    """A TCP segment from the kernel; `good` is False for all else."""

    def __init__(self, octets):
        self.good = len(octets) >= 40 and octets[0] >> 4 == 4 and octets[9] == 6
        if not self.good:
            return
        tcp = octets[(octets[0] & 15) * 4:struct.unpack(">H", octets[2:4])[0]]
        theirs, ours, self.seq, self.ack = struct.unpack(">HHII", tcp[:12])
        self.ports = (ours, theirs)
        self.flags = tcp[13]
        self.window = struct.unpack(">H", tcp[14:16])[0]
        self.data = tcp[(tcp[12] >> 4) * 4:]


def distance(to, start):
    """to - start as a signed number of 32 bits: sequence numbers wrap."""
    return ((to - start + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)


# ---- the host ----

def open_tun(name):
    try:
        fd = os.open("/dev/net/tun", os.O_RDWR)
        fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TUN | IFF_NO_PI))
    except OSError as why:
        skip("no TUN device: %s" % why)
    for command in (["addr", "add", KERNEL + "/24", "dev", name], ["link", "set", name, "up"],
                    ["link", "set", "lo", "up"]):
        subprocess.run(["ip"] + command, check=True)
    return fd


class Host:
    """The machine behind the TUN device."""

    def __init__(self, name="bad0"):
        self.tun = open_tun(name)
        self.lock = threading.RLock()
        self.news = threading.Condition(self.lock)
        self.connections = {}  # (our port, their port)
        self.listeners = {}
        self.wake, self.waker = os.pipe()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def close(self):
        os.close(self.waker)
        self.thread.join()
        os.close(self.tun)
        os.close(self.wake)

    def listen(self, port):
        with self.lock:
            self.listeners[port] = Listener(self)
            return self.listeners[port]

    def connect(self, port, timeout=PATIENCE):
        """Opens a connection to the kernel's port; ConnectionRefusedError when it is reset."""
        with self.lock:
            ours = random.randrange(20000, 60000)
            while (ours, port) in self.connections:
                ours += 1
            c = self.connections[ours, port] = Connection(self, (ours, port))
            c.open()
        c.wait(lambda: c.established or c.was_reset, timeout, "the answer to our SYN")
        if c.was_reset:
            raise ConnectionRefusedError
        return c

    def drain(self, timeout=PATIENCE):
        """Waits until everything that the kernel has sent so far was taken."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            with self.lock:
                # The thread reads with the lock held: nothing is on its way.
                if not select.select([self.tun], [], [], 0)[0]:
                    return
            time.sleep(0.001)
        raise Timeout("the kernel does not stop sending")

    def run(self):
        while True:
            ready = select.select([self.tun, self.wake], [], [], RTO / 3)[0]
            if self.wake in ready:
                return
            with self.lock:
                if ready:
                    packet = Packet(os.read(self.tun, 65536))
                    if packet.good:
                        self.take(packet)
                for c in list(self.connections.values()):
                    c.tick()
                self.news.notify_all()

    def take(self, packet):
        if packet.flags & SYN and not packet.flags & ACK and packet.ports[0] in self.listeners:
            if packet.ports not in self.connections:
                c = self.connections[packet.ports] = Connection(self, packet.ports)
                self.listeners[packet.ports[0]].waiting.append(c)
        if packet.ports in self.connections:
            self.connections[packet.ports].take(packet)
        elif not packet.flags & RST:
            os.write(self.tun, make_packet(packet.ports, packet.ack, packet.seq + 1, RST | ACK,
                                           b""))


class Listener:
    """A port of ours."""

    def __init__(self, host):
        self.host = host
        self.waiting = []

    def accept(self, timeout=PATIENCE):
        with self.host.lock:
            if not self.host.news.wait_for(lambda: any(c.established for c in self.waiting),
                                           timeout):
                raise Timeout("nobody connects")
            c = next(c for c in self.waiting if c.established)
            self.waiting.remove(c)
            return c


class Connection:
    """One connection. Public: received, silent, established, was_reset, seen and the methods."""

    def __init__(self, host, ports):
        self.host, self.ports = host, ports
        # Sending: octet i of `out` has number first + i; a FIN stands behind the last one.
        self.iss = random.getrandbits(32)
        self.first = self.iss + 1
        self.out, self.edges = bytearray(), []  # edges: where a segment must end
        self.acked = self.sent = 0  # in octets of `out`, the FIN is the one behind
        self.fin_wanted = False
        self.window, self.last_sent = 1, 0.0
        # Receiving.
        self.irs = None
        self.received = bytearray()
        self.fin_seen = self.was_reset = self.dead = False
        self.limit = None  # octets that may be acknowledged, the FIN counts as one
        self.silent = self.established = False
        self.seen = []  # (word, number of octets before it, time)
        self.octet_actions, self.fin_action = [], None

    # ---- for the test ----

    def wait(self, condition, timeout, what):
        with self.host.lock:
            if not self.host.news.wait_for(condition, timeout):
                raise Timeout("%s did not come in %g s; seen: %s" % (what, timeout, self.words()))

    def wait_received(self, octets, timeout=PATIENCE):
        self.wait(lambda: len(self.received) >= octets, timeout, "octet %d" % octets)

    def wait_word(self, word, timeout=PATIENCE):
        self.wait(lambda: word in self.words(), timeout, word)

    def words(self):
        """What came, in order; repetitions and pure acknowledgements left out."""
        with self.host.lock:
            return [word for word, _, _ in self.seen]

    def send(self, octets, each=MSS):
        """Queues octets, in segments of at most `each`."""
        with self.host.lock:
            for at in range(0, len(octets), each):
                self.out += octets[at:at + each]
                self.edges.append(len(self.out))
            self.pump()

    def fin(self):
        """Closes our half, behind everything sent so far."""
        with self.host.lock:
            self.fin_wanted = True
            self.pump()

    def reset(self):
        """Behind everything sent so far. This side then knows nothing of the connection."""
        with self.host.lock:
            self.emit(RST | ACK, self.sent)
            self.dead = True

    def repeat_fin(self):
        """As if ours had been lost: shows whether the other side still knows the connection."""
        with self.host.lock:
            self.emit(FIN | ACK, len(self.out))

    def withhold(self, octets=None):
        """Acknowledge nothing behind the first `octets`; None: nothing that has not come yet."""
        with self.host.lock:
            self.limit = len(self.received) if octets is None else octets

    def acknowledge(self):
        """The opposite of withhold()."""
        with self.host.lock:
            self.limit = None
            self.emit(ACK, self.sent)

    def forget(self):
        """The test is over. The host resets what still comes; the ports can be used again."""
        with self.host.lock:
            self.dead = True
            self.host.connections.pop(self.ports, None)

    def at_octet(self, octets, action):
        with self.host.lock:
            self.octet_actions.append((octets, action))
            self.act()

    def at_fin(self, action):
        with self.host.lock:
            self.fin_action = action

    # ---- sending ----

    def ack_number(self):
        have = len(self.received) + self.fin_seen
        return self.irs + 1 + (have if self.limit is None else min(have, self.limit))

    def emit(self, flags, at, data=b""):
        """at: which octet of ours the segment begins with."""
        if not self.silent and not self.dead:
            os.write(self.host.tun, make_packet(self.ports, self.first + at, self.ack_number(),
                                                flags, data))
            self.last_sent = time.monotonic()

    def open(self):
        os.write(self.host.tun, make_packet(self.ports, self.iss, 0, SYN, b"",
                                            options=struct.pack(">BBH", 2, 4, MSS)))
        self.last_sent = time.monotonic()

    def pump(self):
        """Sends what the other side's window takes."""
        room = self.acked + self.window
        while self.established and self.sent < min(len(self.out), room):
            edge = next(e for e in self.edges if e > self.sent)
            data = bytes(self.out[self.sent:min(edge, room)])
            self.emit(PSH | ACK, self.sent, data)
            self.sent += len(data)
        if self.established and self.fin_wanted and self.sent == len(self.out):
            self.emit(FIN | ACK, self.sent)
            self.sent += 1

    def tick(self):
        """Repeats what was not acknowledged for long."""
        if self.dead or time.monotonic() - self.last_sent < RTO:
            return
        if not self.established:
            if self.irs is None:
                self.open()
        elif self.sent > self.acked:
            self.sent = self.acked
            self.pump()

    # ---- receiving ----

    def note(self, word, once=True):
        if not (once and word in [seen[0] for seen in self.seen]):
            self.seen.append((word, len(self.received), time.monotonic()))

    def take(self, packet):
        if packet.flags & SYN:
            self.take_syn(packet)
            return
        if self.irs is None:
            if packet.flags & RST:
                self.take_reset()
            return
        if packet.flags & ACK:
            self.take_ack(packet)
        if packet.flags & RST:
            self.take_reset()
            return
        new = self.take_data(packet)
        if packet.data or packet.flags & FIN:
            self.act()
            if self.limit is None or new and len(self.received) + self.fin_seen <= self.limit:
                self.emit(ACK, self.sent)
        self.pump()

    def take_syn(self, packet):
        self.note("SYN")
        self.irs = packet.seq
        self.window = packet.window
        if packet.flags & ACK:
            self.established = True
            self.emit(ACK, 0)
        elif not self.established:
            os.write(self.host.tun, make_packet(self.ports, self.iss, self.irs + 1, SYN | ACK, b"",
                                                options=struct.pack(">BBH", 2, 4, MSS)))

    def take_reset(self):
        self.note("RST")
        self.was_reset = self.dead = True

    def take_ack(self, packet):
        if self.dead or self.silent:
            return
        self.established = True
        self.window = packet.window
        acked = distance(packet.ack, self.first)
        if self.acked < acked <= len(self.out) + self.fin_wanted:
            self.acked = acked
            self.sent = max(self.sent, acked)
            # The clock of the next unacknowledged octet starts here.
            self.last_sent = time.monotonic()

    def take_data(self, packet):
        """True: it brought something new. What is behind a gap is left for its repetition."""
        offset = distance(packet.seq, self.irs + 1)
        known = len(self.received) - offset
        if known < 0 or self.fin_seen:
            return False
        fresh = packet.data[known:]
        if fresh:
            if not self.seen or self.seen[-1][0] != "data":
                self.note("data", once=False)
            self.received += fresh
        if packet.flags & FIN and offset + len(packet.data) == len(self.received):
            self.fin_seen = True
            self.note("FIN")
            return True
        return bool(fresh)

    def act(self):
        due = [item for item in self.octet_actions if item[0] <= len(self.received)]
        for item in due:
            self.octet_actions.remove(item)
            item[1]()
        if self.fin_seen and self.fin_action:
            action, self.fin_action = self.fin_action, None
            action()
