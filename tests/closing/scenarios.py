"""The scenarios of docs/design/closing.md, by the name of their row.

A scenario begins when both sides are in full operation and two receives are posted. It does what
its row's cause says, and where a state could pass by unseen it waits until the actor has seen it,
before the peer goes on: s.saw("CLOSING").
"""
import iwarp

SCENARIOS = {}


def scenario(name):
    def register(function):
        SCENARIOS[name] = function
        return function
    return register


# ---- we close ----

@scenario("local-graceful")
def local_graceful(s):
    if s.role == "initiator":
        # The FINs cross: it is not over before ours is acknowledged.
        s.peer.withhold()
    s.begin_closing()
    s.peer.fin()
    if s.role == "initiator":
        s.goes_on("the peer's FIN")
        s.peer.acknowledge()


@scenario("local-busy")
def local_busy(s):
    s.read()
    s.disconnect()


@scenario("local-rst")
def local_rst(s):
    s.begin_closing()
    s.peer.reset()


@scenario("local-no-ack")
def local_no_ack(s):
    s.peer.withhold()
    s.disconnect(1000)
    if s.role == "initiator":
        # Its FIN alone does not make it graceful.
        s.peer.wait_word("FIN")
        s.peer.fin()
        s.probes = True


@scenario("local-no-fin")
def local_no_fin(s):
    s.disconnect(1000)


@scenario("local-data-after-fin")
def local_data_after_fin(s):
    s.begin_closing()
    s.from_peer(s.peer.send, iwarp.send(1, b"and another thing"))


@scenario("local-post-send")
def local_post_send(s):
    s.begin_closing()
    s.program("send", "ENOTCONN")


@scenario("local-post-recv")
def local_post_recv(s):
    s.begin_closing()
    s.program("recv", "ENOTCONN")


@scenario("local-abort")
def local_abort(s):
    s.begin_closing()
    s.program("abort")


@scenario("local-destroy")
def local_destroy(s):
    s.program("disconnect -1")
    s.peer.wait_word("FIN")
    s.saw("CLOSING")
    s.destroyed = True
    s.program("destroy")


# ---- the peer closes ----

@scenario("remote-graceful")
def remote_graceful(s):
    s.peer_begins_closing()
    s.peer.acknowledge()


@scenario("remote-busy")
def remote_busy(s):
    s.read()
    s.from_peer(s.peer.fin)


@scenario("remote-rst")
def remote_rst(s):
    s.peer_begins_closing()
    s.from_peer(s.peer.reset)


@scenario("remote-no-ack")
def remote_no_ack(s):
    s.probes = True
    s.peer_begins_closing()


@scenario("remote-post-send")
def remote_post_send(s):
    s.probes = True
    s.peer_begins_closing()
    s.program("send", "ENOTCONN")


@scenario("remote-post-recv")
def remote_post_recv(s):
    s.peer_begins_closing()
    s.program("recv", "ENOTCONN")
    s.goes_on("the receive")
    s.peer.acknowledge()


@scenario("remote-torn")
def remote_torn(s):
    s.peer.send(iwarp.send(1, b"half a message")[:-5])
    s.from_peer(s.peer.fin)


# ---- faults ----

@scenario("fault")
def fault(s):
    s.fault()
    s.peer.fin()


@scenario("fault-rst")
def fault_rst(s):
    s.fault()
    s.peer.reset()


@scenario("fault-no-fin")
def fault_no_fin(s):
    s.fault()


@scenario("fault-no-ack")
def fault_no_ack(s):
    s.peer.withhold()
    s.fault()


@scenario("llp-dead")
def llp_dead(s):
    # The kernel's TCP gives up after 0.2 + 0.4 + 0.8 s or so instead of a quarter of an hour.
    with open("/proc/sys/net/ipv4/tcp_retries2", "w", encoding="ascii") as knob:
        knob.write("2")
    s.peer.silent = True
    s.program("read")


@scenario("local-failure")
def local_failure(s):
    s.from_peer(s.peer.send, iwarp.send(1, b"one") + iwarp.send(2, b"too many"))


@scenario("terminate")
def terminate(s):
    s.program("terminate")
    s.await_terminate()
    s.peer.fin()


@scenario("terminate-busy")
def terminate_busy(s):
    s.read()
    terminate(s)


@scenario("abort")
def abort(s):
    s.program("abort")


@scenario("abort-busy")
def abort_busy(s):
    s.read()
    s.program("abort")


@scenario("terminated")
def terminated(s):
    s.from_peer(s.peer.send, iwarp.terminate(0, 1, 1))
    s.peer.wait_word("FIN")
    s.saw("TERMINATE")
    s.peer.fin()


@scenario("terminated-no-fin")
def terminated_no_fin(s):
    s.from_peer(s.peer.send, iwarp.terminate(0, 1, 1))


@scenario("reset")
def reset(s):
    s.from_peer(s.peer.reset)


@scenario("reset-busy")
def reset_busy(s):
    s.read()
    s.from_peer(s.peer.reset)


@scenario("never-flushes")
def never_flushes(s):
    s.disconnect(1000)
