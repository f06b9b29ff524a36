"""PostgreSQL: a process per connection, forked after accept; psql and pgbench."""
import os
import signal

import servers
from cases import scenario
from scene import Skip, check, noise
from servers import POSTGRES as USER


def tool(name):
    found = servers.postgres_tool(name)
    if not found:
        raise Skip("install postgresql")
    return found


def start(scene):
    """The port and the server; its directory is made without the library."""
    data = scene.path("data")
    tool("initdb")  # or it is skipped
    os.mkdir(data, 0o700)
    servers.give(USER, data, scene.directory)
    scene.run(None, servers.postgres_init(data), user=USER)
    port = scene.port()
    server = scene.start("server", servers.postgres_serve(
        data, port, "", "full_page_writes=off", "max_connections=60"),
        port, stop=signal.SIGINT, user=USER)
    scene.until(lambda: "ready to accept" in server.err(), "the server does not start")
    return port, server


def client(scene, name, port, *words, data=None):
    env = {"PGUSER": USER, "PGHOST": "127.0.0.1", "PGPORT": str(port), "PGDATABASE": "postgres"}
    return scene.run("client", [tool(name), *words], data=data, user=USER, env=env)


def psql(scene, port, sql):
    return client(scene, "psql", port, "-XAtq", "-v", "ON_ERROR_STOP=1", "-c", sql).decode().strip()


def stop(server):
    server.stop()
    check("terminated by signal" not in server.err() and "PANIC" not in server.err(),
          "the server logged:\n%s", server.err()[-3000:])


@scenario("postgresql-pgbench", smoke=True)
def pgbench(scene):
    """Transactions of many clients, kept and new connections; the sums must agree."""
    port, server = start(scene)
    client(scene, "pgbench", port, "-i", "-q", "-s", "1", "-I", "dtGvp")
    clients, count = 8, scene.size(100, 5_000)
    done = 0
    # New connections for every transaction, prepared statements, the simple protocol.
    for words, each in (["-C"], scene.size(10, 100)), (["-M", "prepared"], count), ([], count):
        client(scene, "pgbench", port, "-n", "-c", str(clients), "-j", "2", "-t", str(each),
               *words)
        done += clients * each
    sums = psql(scene, port, "select (select count(*) from pgbench_history),"
                " (select sum(delta) from pgbench_history) = (select sum(abalance) from"
                " pgbench_accounts), (select sum(tbalance) from pgbench_tellers) ="
                " (select sum(bbalance) from pgbench_branches)")
    check(sums == "%d|t|t" % done, "after %d transactions the tables say %s", done, sums)
    stop(server)
    scene.expect(2 * (clients * 2 + clients * scene.size(10, 100)),
                 clients * count * 2 * 100)


@scenario("postgresql-psql")
def copy(scene):
    """A big table goes in, and out in several ways."""
    port, server = start(scene)
    rows = scene.size(30_000, 1_000_000)
    text = b"".join(b"%d\t%s\n" % (i, noise(40 + i % 60, i).hex().encode()) for i in range(rows))
    table = scene.write("rows", text)
    psql(scene, port, "create table t (i int primary key, s text)")
    client(scene, "psql", port, "-Xq", "-c", "\\copy t from stdin", data=table)
    out = client(scene, "psql", port, "-Xq", "-c", "\\copy (select * from t order by i) to stdout")
    check(out == text, "the table comes back different by copy")
    out = client(scene, "psql", port, "-XAtq", "-F", "\t", "-c", "select * from t order by i")
    check(out == text, "the table comes back different by select")
    out = client(scene, "psql", port, "-XAtq", "-F", "\t", "-v", "FETCH_COUNT=500", "-c",
                 "select * from t order by i")
    check(out == text, "the table comes back different by cursor")
    value = psql(scene, port, "select repeat(md5('x'), 300000)")
    check(len(value) == 32 * 300000 and len(set(map(value.__getitem__, range(5, 32 * 300000, 32))))
          == 1, "a big value is damaged")
    stop(server)
    scene.expect(2 * 5, int(0.9 * 2 * 4 * len(text)))


@scenario("postgresql-dump", quick=False)
def dump(scene):
    """pg_dump in parallel and pg_basebackup: many connections, long streams."""
    port, server = start(scene)
    client(scene, "pgbench", port, "-i", "-q", "-s", "10", "-I", "dtGvp")
    client(scene, "pg_dump", port, "-Fd", "-j", "4", "-f", scene.path("dump"), "-Z0")
    before = psql(scene, port, "select md5(string_agg(a::text, ',' order by aid)) from"
                  " pgbench_accounts a")
    psql(scene, port, "create database again")
    client(scene, "pg_restore", port, "-d", "again", "-j", "4", scene.path("dump"))
    after = client(scene, "psql", port, "-XAtq", "-d", "again", "-c",
                   "select md5(string_agg(a::text, ',' order by aid)) from"
                   " pgbench_accounts a").decode().strip()
    check(before == after, "the restored table differs")
    client(scene, "pg_basebackup", port, "-D", scene.path("backup"), "-X", "stream", "-c", "fast")
    scene.run(None, [tool("pg_verifybackup"), "-q", scene.path("backup")], user=USER)
    stop(server)
    scene.expect(2 * 6, 2 * 100_000_000)
