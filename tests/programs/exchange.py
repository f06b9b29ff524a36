"""Two programs that say the same things at the same times, whenever they run.

  exchange.py server|client PORT block|select|poll|epoll PAUSE ROUNDS [BULK]

After connect each waits PAUSE, then come ROUNDS of question and answer of fixed sizes, and at last
BULK bytes each way. Prints what is measured from inside: the digest of all that was received.
"""
import hashlib
import select
import socket
import sys
import time

QUESTION, ANSWER = 50, 170


class Waiter:
    """Blocks until something can be read, in one of four ways."""

    def __init__(self, sock, kind):
        self.sock, self.kind = sock, kind
        if kind != "block":
            sock.setblocking(False)
        if kind == "poll":
            self.poll = select.poll()
            self.poll.register(sock, select.POLLIN)
        elif kind == "epoll":
            self.poll = select.epoll()
            self.poll.register(sock, select.EPOLLIN)

    def wait(self):
        if self.kind == "select":
            select.select([self.sock], [], [])
        elif self.kind != "block":
            self.poll.poll()

    def receive(self, size):
        """Exactly so many bytes."""
        parts = []
        while size:
            self.wait()
            part = self.sock.recv(size)
            assert part, "the end came early"
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def send(self, data):
        while data:
            try:
                data = data[self.sock.send(data):]
            except BlockingIOError:
                select.select([], [self.sock], [])


def content(size, seed):
    return hashlib.shake_128(b"%d" % seed).digest(size)


def streams(rounds, bulk):
    """(all that the client sends, all that the server sends)"""
    return (b"".join(content(QUESTION, i) for i in range(rounds)) + content(bulk, -1),
            b"".join(content(ANSWER, i) for i in range(rounds)) + content(bulk, -2))


def main(side, port, kind, pause, rounds, bulk=0):
    port, pause, rounds, bulk = int(port), float(pause), int(rounds), int(bulk)
    if side == "server":
        with socket.create_server(("127.0.0.1", port)) as listener:
            sock = listener.accept()[0]
    else:
        sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    waiter, heard = Waiter(sock, kind), hashlib.sha256()
    time.sleep(pause)
    for number in range(rounds):
        if side == "client":
            waiter.send(content(QUESTION, number))
            heard.update(waiter.receive(ANSWER))
        else:
            heard.update(waiter.receive(QUESTION))
            waiter.send(content(ANSWER, number))
    if bulk and side == "client":
        waiter.send(content(bulk, -1))
        heard.update(waiter.receive(bulk))
    elif bulk:
        heard.update(waiter.receive(bulk))
        waiter.send(content(bulk, -2))
    print(heard.hexdigest())
    if side == "server":
        # The client closes first, always.
        waiter.wait()
        assert sock.recv(1) == b""
    sock.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
