"""Producers and consumers of one queue of an AMQP broker, each a thread with a connection of its own.

  broker.py PORT PRODUCERS CONSUMERS MESSAGES

Each message says who sent it and which it is. Every one must come to one consumer, once, as it was sent, and those of
one producer in their order. Prints how many did.
"""
import hashlib
import sys
import threading

import pika

SIZES = (0, 10, 300, 5_000, 100_000, 1_000_000)
QUEUE = "test"
LIMIT = 100  # seconds without a message
lock = threading.Lock()
seen, wrong = set(), []


def connect(port):
    return pika.BlockingConnection(pika.ConnectionParameters(
        "127.0.0.1", port, heartbeat=0, blocked_connection_timeout=LIMIT, socket_timeout=LIMIT,
        stack_timeout=LIMIT))


def end(connection, channel):
    """The channel first: the broker sometimes logs an error when a connection ends with channels that are open."""
    channel.close()
    connection.close()


def content(producer, number):
    head = b"%d %d " % (producer, number)
    return head + hashlib.shake_128(head).digest(SIZES[(producer + number) % len(SIZES)])


def produce(port, producer, messages):
    connection = connect(port)
    channel = connection.channel()
    channel.confirm_delivery()
    for number in range(messages):
        channel.basic_publish("", QUEUE, content(producer, number), mandatory=True)
    end(connection, channel)


def take(body, last):
    """Enters one message."""
    producer, number = map(int, body.split(b" ", 2)[:2])
    assert body == content(producer, number), "message %d of %d differs" % (number, producer)
    assert number > last.get(producer, -1), "message %d of %d comes after %d" % (
        number, producer, last[producer])
    last[producer] = number
    with lock:
        assert (producer, number) not in seen, "message %d of %d comes twice" % (number, producer)
        seen.add((producer, number))


def consume(port, total):
    connection = connect(port)
    channel = connection.channel()
    channel.basic_qos(prefetch_count=20)
    last, quiet = {}, 0
    for method, _, body in channel.consume(QUEUE, inactivity_timeout=0.2):
        if method:
            quiet = 0
            take(body, last)
            channel.basic_ack(method.delivery_tag)
        elif len(seen) == total or wrong:
            break
        else:
            quiet += 1
            assert quiet < LIMIT * 5, "no message for %d s" % LIMIT
    channel.cancel()
    end(connection, channel)


def guard(work, *arguments):
    try:
        work(*arguments)
    except Exception as why:  # pylint: disable=broad-except
        wrong.append("%s: %r" % (work.__name__, why))


def main(port, producers, consumers, messages):
    connection = connect(port)
    channel = connection.channel()
    channel.queue_declare(QUEUE)
    threads = [threading.Thread(target=guard, args=(consume, port, producers * messages))
               for _ in range(consumers)]
    threads += [threading.Thread(target=guard, args=(produce, port, number, messages))
                for number in range(producers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    left = channel.queue_declare(QUEUE, passive=True).method.message_count
    end(connection, channel)
    if left:
        wrong.append("%d messages are left" % left)
    print("\n".join(wrong) or len(seen))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
