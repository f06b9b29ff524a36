"""gRPC: a server of four methods, one of each kind, and a client that compares all answers.

  rpc.py server PORT
  rpc.py client PORT CHANNELS THREADS ROUNDS

The client's threads share its channels, each of which is one connection. Prints how many answers were right.
"""
import concurrent.futures
import hashlib
import signal
import sys
import threading

import grpc

SIZES = (0, 1, 100, 5_000, 70_000, 1_000_000)
LIMIT = 100  # seconds for one call
STREAM = 20  # messages in one


def turn(message):
    """An answer that is not its question."""
    return message[::-1] + b"%d" % len(message)


def shorten(message):
    return hashlib.sha256(message).digest()


class Service(grpc.GenericRpcHandler):
    """The methods by their names; messages are octets."""

    def service(self, details):
        return {
            "/test/Unary": grpc.unary_unary_rpc_method_handler(lambda message, _: turn(message)),
            "/test/Many": grpc.unary_stream_rpc_method_handler(
                lambda message, _: (turn(message + b"%d" % i) for i in range(STREAM))),
            "/test/Sum": grpc.stream_unary_rpc_method_handler(
                lambda messages, _: shorten(b"".join(messages))),
            "/test/Both": grpc.stream_stream_rpc_method_handler(
                lambda messages, _: (turn(message) for message in messages)),
        }.get(details.method)


OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1),
           ("grpc.so_reuseport", 0)]


def serve(port):
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(8), [Service()], options=OPTIONS)
    assert server.add_insecure_port("127.0.0.1:%d" % port) == port
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    server.start()
    ended.wait()
    server.stop(5).wait()


def content(number, size):
    return hashlib.shake_128(b"%d" % number).digest(size)


def talk(channel, number):
    """One call of each kind; True if all answers are right."""
    size = SIZES[number % len(SIZES)]
    message = content(number, size)
    parts = [content(number + i, size // STREAM + i) for i in range(STREAM)]
    one = channel.unary_unary("/test/Unary")(message, timeout=LIMIT, wait_for_ready=True)
    many = list(channel.unary_stream("/test/Many")(message, timeout=LIMIT))
    total = channel.stream_unary("/test/Sum")(iter(parts), timeout=LIMIT)
    both = list(channel.stream_stream("/test/Both")(iter(parts), timeout=LIMIT))
    return [one == turn(message), many == [turn(message + b"%d" % i) for i in range(STREAM)],
            total == shorten(b"".join(parts)), both == [turn(part) for part in parts]]


def call(port, channels, threads, rounds):
    opened = [grpc.insecure_channel("127.0.0.1:%d" % port, options=OPTIONS) for _ in range(channels)]
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        answers = list(pool.map(lambda n: talk(opened[n % channels], n), range(threads * rounds)))
    for channel in opened:
        channel.close()
    wrong = [(n, answer) for n, answer in enumerate(answers) if not all(answer)]
    print("wrong: %s" % wrong[:10] if wrong else sum(map(len, answers)))


if __name__ == "__main__":
    numbers = map(int, sys.argv[2:])
    if sys.argv[1] == "server":
        serve(*numbers)
    else:
        call(*numbers)
