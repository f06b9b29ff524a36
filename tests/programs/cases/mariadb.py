"""MariaDB: a thread for each connection; sysbench with many of them, and its own client."""
import os
import re

import servers
from cases import find, scenario
from scene import Skip, check, noise
from servers import MYSQL as USER

NEEDS = (("mariadbd", "mariadb-server"), ("mariadb-install-db", "mariadb-server"), ("mariadb", "mariadb-client"))
SYSBENCH = ("sysbench", "sysbench")
TABLES, ROWS = 2, 2000


def start(scene):
    """The port and the server; its directory is made without the library."""
    if not servers.known(USER):
        raise Skip("no user " + USER)
    data = scene.path("data")
    os.mkdir(data, 0o700)
    servers.give(USER, data, scene.directory)
    scene.run(None, servers.mariadb_init(data), user=USER)
    port = scene.port()
    words = servers.mariadb_serve(data, port, scene.path("socket"))
    return port, scene.start("server", [*words, "--secure-file-priv=", "--max-allowed-packet=64M"], port,
                             user=USER)


def client(scene, port, *words, data=None):
    return scene.run("client", [find("mariadb"), "--no-defaults", "-h", "127.0.0.1", "-P", str(port), "-u",
                                "root", "--batch", "--raw", "--skip-column-names",
                                "--max-allowed-packet=64M", *words], data=data, user=USER)


def ask(scene, port, sql, *words):
    return client(scene, port, *words, "-e", sql).decode().strip()


def stop(server):
    server.stop()
    bad = [line for line in server.err().splitlines() if "[ERROR]" in line or "got signal" in line]
    check(not bad, "the server said:\n%s", "\n".join(bad[:20]))


def sysbench(scene, port, test, verb, *words, threads=1):
    return scene.run("client", [
        "sysbench", test, "--db-driver=mysql", "--mysql-host=127.0.0.1", "--mysql-port=%d" % port,
        "--mysql-user=root", "--mysql-db=sbtest", "--tables=%d" % TABLES, "--table-size=%d" % ROWS,
        "--threads=%d" % threads, *words, verb], user=USER).decode()


def load(scene, port, test, threads, count, *words):
    """So many events by all threads together, none of which may fail. Deadlocks in the server are no errors, and
    such an event is done again."""
    out = sysbench(scene, port, test, "run", "--events=%d" % count, "--time=0", *words, threads=threads)
    events = re.search(r"total number of events: +(\d+)", out)
    check(events and int(events[1]) == count and re.search(r"reconnects: +0 ", out), "sysbench said:\n%s", out)
    rate = re.search(r"transactions: .*\((.*) per sec", out)
    scene.note("%s, %d threads: %s transactions per second", test, threads, rate[1] if rate else "?")


@scenario("mariadb-sysbench", *NEEDS, SYSBENCH, smoke=True)
def transactions(scene):
    """Threads that connect at the same moment and then read and write; the tables must be what follows."""
    port, server = start(scene)
    ask(scene, port, "create database sbtest")
    sysbench(scene, port, "oltp_read_write", "prepare")
    threads, count = 8, scene.size(200, 4000)
    load(scene, port, "oltp_read_only", threads, count)
    load(scene, port, "oltp_read_write", threads, count)
    load(scene, port, "oltp_point_select", threads, 10 * count)
    rows = ask(scene, port, "select (select count(*) from sbtest1) + (select count(*) from sbtest2)", "sbtest")
    check(rows == str(TABLES * ROWS), "there are %s rows", rows)
    load(scene, port, "oltp_insert", threads, count)
    rows = ask(scene, port, "select (select count(*) from sbtest1) + (select count(*) from sbtest2)", "sbtest")
    check(rows == str(TABLES * ROWS + count), "there are %s rows after %d were added", rows, count)
    stop(server)
    # An event that only reads asks 16 questions, four of them for a hundred rows.
    scene.expect(2 * 4 * threads, 2 * count * 10_000)


@scenario("mariadb-client", *NEEDS)
def tables(scene):
    """A table goes there in one file, and comes back as it was; large values."""
    port, server = start(scene)
    rows = scene.size(30_000, 500_000)
    text = b"".join(b"%d\t%s\n" % (i, noise(40 + i % 60, i).hex().encode()) for i in range(rows))
    table = scene.write("rows", text)
    ask(scene, port, "create database t; create table t.t (i int primary key, s text)")
    client(scene, port, "--local-infile=1", "-e", "load data local infile '%s' into table t" % table, "t")
    check(client(scene, port, "-e", "select * from t order by i", "t") == text, "the table comes back different")
    check(client(scene, port, "--quick", "-e", "select * from t order by i", "t") == text,
          "the table comes back different row by row")
    value = ask(scene, port, "select repeat(md5('x'), 300000)")
    check(len(value) == 32 * 300_000 and value == value[:32] * 300_000, "a large value is damaged")
    statement = scene.write("statement", "select md5('%s')" % value)
    digest = client(scene, port, data=statement).decode().strip()
    check(digest == ask(scene, port, "select md5(repeat(md5('x'), 300000))"), "a large statement is damaged")
    stop(server)
    scene.expect(2 * 5, int(0.9 * 2 * 3 * len(text)))
