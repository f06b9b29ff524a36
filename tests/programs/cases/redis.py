"""redis: values of all sizes, pipelines, the benchmark, publish and subscribe, a replica."""
import subprocess

from cases import scenario
from scene import check, noise

SERVER = ("redis-server", "redis-server")
CLI = ("redis-cli", "redis-tools")
BENCHMARK = ("redis-benchmark", "redis-tools")


def start(scene, *options):
    port = scene.port()
    words = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "",
             "--dir", scene.directory, "--client-output-buffer-limit", "pubsub", "0", "0", "0",
             *options]
    return port, scene.start("server", words, port)


def cli(scene, port, *words, data=None):
    return scene.run("client", ["redis-cli", "-p", str(port), *words], data=data)


def ask(port, *words):
    """Without the library, so that questions of ours are not counted."""
    return subprocess.run(["redis-cli", "-p", str(port), *words], capture_output=True,
                          timeout=60, check=True).stdout.strip()


@scenario("redis-values", SERVER, CLI)
def values(scene):
    """Values of up to many megabytes come back as they were."""
    port, _ = start(scene)
    sizes = [1, 1000, 100_000, 3_000_001, scene.size(16_000_000, 200_000_000)]
    for number, size in enumerate(sizes):
        value = noise(size, number)
        check(cli(scene, port, "-x", "set", "value%d" % number, data=value) == b"OK\n",
              "SET of %d bytes failed", size)
        back = cli(scene, port, "get", "value%d" % number)
        check(back == value + b"\n", "a value of %d bytes came back different", size)
    # 64 KiB pass before a connection is eligible.
    scene.expect(2 * 2 * 2, int(0.9 * 2 * 2 * sum(sizes[3:])))


@scenario("redis-pipe", SERVER, CLI)
def pipe(scene):
    """Thousands of commands in one pipeline, then one by one."""
    port, _ = start(scene)
    count = scene.size(5_000, 100_000)
    pairs = [(b"key:%d" % i, noise(1 + i * 37 % 700, i).hex().encode()) for i in range(count)]
    text = b"".join(b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n"
                    % (len(key), key, len(value), value) for key, value in pairs)
    out = cli(scene, port, "--pipe", data=text)
    check(b"errors: 0, replies: %d" % count in out, "--pipe said: %s", out)
    out = cli(scene, port, data=b"".join(b"GET %s\n" % key for key, _ in pairs))
    check(out.split() == [value for _, value in pairs], "values differ")
    scene.expect(2 * 2, int(0.9 * 2 * 2 * sum(len(value) for _, value in pairs)))


@scenario("redis-benchmark", SERVER, BENCHMARK, CLI, smoke=True)
def benchmark(scene):
    """The usual load: many connections, with and without pipelining; then what must be there."""
    port, server = start(scene)
    count, length = scene.size(3_000, 100_000), 300
    for depth in "1", "16":
        out = scene.run("client", ["redis-benchmark", "-p", str(port), "-n", str(count), "-q",
                                   "-c", "20", "-P", depth, "-d", str(length), "-t",
                                   "ping,set,get,incr,lpush,lrange_100,mset"])
        check(out.count(b"requests per second") >= 7, "redis-benchmark said: %s", out)
    value = ask(port, "get", "key:__rand_int__")
    check(len(value) == length, "a value is %s", value)
    done = int(ask(port, "get", "counter:__rand_int__"))
    check(done >= 2 * count, "only %d of %d increments happened", done, 2 * count)
    entries = ask(port, "lrange", "mylist", "0", "-1").split()
    check(len(entries) >= 2 * count and set(entries) == {value},
          "the list has %d entries of %d kinds", len(entries), len(set(entries)))
    scene.expect(2 * 20 * 7 * 2, 2 * 2 * count * length * 3)
    server.stop()


@scenario("redis-pubsub", SERVER, CLI)
def pubsub(scene):
    """Every subscriber gets every message, in order."""
    port, server = start(scene)
    count, listeners = scene.size(2_000, 50_000), 5
    messages = [noise(1 + i * 13 % 400, i).hex().encode() for i in range(count)]
    # A subscriber ends when the server does; its input must stay open until then.
    subscribers = [scene.start("client", ["redis-cli", "-p", str(port), "subscribe", "news"],
                               name="subscriber-%d" % i, stdin=subprocess.PIPE)
                   for i in range(listeners)]
    scene.until(lambda: ask(port, "pubsub", "numsub", "news").split()[-1]
                == b"%d" % listeners, "not all have subscribed")
    out = cli(scene, port, data=b"".join(b"PUBLISH news %s\n" % text for text in messages))
    check(out.split() == [b"%d" % listeners] * count, "not every message had %d receivers",
          listeners)
    ask(port, "publish", "news", "end")
    for subscriber in subscribers:
        scene.until(lambda s=subscriber: b"\nend\n" in s.out()[-20:], "a subscriber misses the end")
    server.stop()
    for subscriber in subscribers:
        check(subscriber.wait() in (0, 1), "a subscriber ended badly:\n%s", subscriber.err())
        lines = subscriber.out().split(b"\n")[3:]
        got = lines[2::3][:count]
        check(got == messages, "a subscriber got %d messages, not the %d that were sent",
              len(lines) // 3, count)
    scene.expect(2 + 2 * listeners, 2 * listeners * sum(map(len, messages)) // 2)


@scenario("redis-replica", SERVER, CLI, BENCHMARK)
def replica(scene):
    """A replica takes a full copy and then follows; both are servers."""
    scene.inner = True
    first, _ = start(scene, "--repl-diskless-sync-delay", "0")
    size = scene.size(3_000_000, 100_000_000)
    cli(scene, first, "-x", "set", "big", data=noise(size))
    second, _ = start(scene, "--replicaof", "127.0.0.1", str(first))
    scene.until(lambda: b"master_link_status:up" in ask(second, "info", "replication"),
                "the replica is not in step")
    scene.run("client", ["redis-benchmark", "-p", str(first), "-n", str(scene.size(3000, 100_000)),
                         "-q", "-c", "10", "-r", "1000", "-t", "set,lpush"])
    check(ask(first, "wait", "1", "60000") == b"1", "the replica does not follow")
    check(ask(first, "debug", "digest-value", "big", "mylist")
          == ask(second, "debug", "digest-value", "big", "mylist"), "the replica differs")
    scene.expect(2 * 2, size)
