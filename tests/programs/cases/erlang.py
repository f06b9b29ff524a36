"""Erlang: one poll set that several threads of its run time wait in, and ports that write when they can."""
import servers
from cases import scenario
from scene import check

NEEDS = (("escript", "erlang-base"),)


@scenario("erlang-echo", *NEEDS, smoke=True)
def echo(scene):
    """Small messages by many processes at once, then long streams both ways."""
    port = scene.port()
    server = scene.start("server", servers.erlang_echo("server", port), port)
    pings, count, size = 20, scene.size(8, 20), scene.size(1_000_000, 20_000_000)
    seconds = scene.size(1.0, 10.0)
    rate = float(scene.run("client", servers.erlang_echo("client", port, pings, seconds)))
    check(rate > 0, "no message came back")
    scene.note("%d round trips", rate * seconds)
    out = scene.run("client", servers.erlang_echo("check", port, count, size)).decode()
    check(out.strip() == str(count), "%s of %d connections were right\n%s", out.strip(), count,
          scene.last_error + server.err())
    server.stop()
    check(not server.complaints() and b"ERROR REPORT" not in server.out(), "the server said:\n%s",
          server.out().decode() + server.err())
    scene.expect(2 * (pings + count), int(0.8 * 2 * 2 * count * size))
