"""A client of memcached that compares everything it gets back.

  cache.py PORT THREADS CONNECTIONS ROUNDS

Each thread has so many connections, and uses them by turns: it stores values of all sizes, asks for several at once,
some of them through another connection than the one that stored them, and counts up a number that all threads share.
Prints how many values were compared.
"""
import hashlib
import socket
import sys
import threading

SIZES = (1, 100, 1000, 10_000, 100_000, 900_000)  # memcached takes up to a megabyte
BATCH = 6
right, wrong = [], []


class Connection:
    def __init__(self, port):
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.settimeout(100)
        self.file = self.sock.makefile("rb")

    def tell(self, text, answer):
        self.sock.sendall(text)
        line = self.file.readline()
        assert line == answer + b"\r\n", line

    def store(self, key, value):
        self.tell(b"set %s 0 0 %d\r\n%s\r\n" % (key, len(value), value), b"STORED")

    def fetch(self, keys):
        """{key: value}, in one question."""
        self.sock.sendall(b"get %s\r\n" % b" ".join(keys))
        found = {}
        while True:
            words = self.file.readline().split()
            if words == [b"END"]:
                return found
            assert words[0] == b"VALUE", words
            found[words[1]] = self.file.read(int(words[3]))
            assert self.file.read(2) == b"\r\n"

    def count_up(self, key):
        self.sock.sendall(b"incr %s 1\r\n" % key)
        return int(self.file.readline())


def content(key, size):
    return hashlib.shake_128(key).digest(size)


def work(port, number, connections, rounds):
    try:
        mine = [Connection(port) for _ in range(connections)]
        for i in range(rounds):
            keys = {b"t%d-%d-%d" % (number, i % 7, n): SIZES[(i + n) % len(SIZES)] for n in range(BATCH)}
            values = {key: content(key + b"-%d" % i, size) for key, size in keys.items()}
            for n, (key, value) in enumerate(values.items()):
                mine[(i + n) % connections].store(key, value)
            found = mine[(i + 1) % connections].fetch(list(keys))
            assert found == values, "thread %d, round %d: %s differ" % (
                number, i, [key for key in values if found.get(key) != values[key]])
            mine[i % connections].count_up(b"counter")
            right.append(len(found))
    except Exception as why:  # pylint: disable=broad-except
        wrong.append("thread %d: %r" % (number, why))


def main(port, threads, connections, rounds):
    Connection(port).store(b"counter", b"0")
    all_threads = [threading.Thread(target=work, args=(port, number, connections, rounds))
                   for number in range(threads)]
    for thread in all_threads:
        thread.start()
    for thread in all_threads:
        thread.join()
    total = Connection(port).fetch([b"counter"])[b"counter"]
    if int(total) != threads * rounds:
        wrong.append("counted to %s" % total)
    print("\n".join(wrong) or sum(right))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
