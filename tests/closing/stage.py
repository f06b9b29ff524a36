"""The stage of tests/closing: the actor (a process that uses Flue) and the misbehaving peer."""
import os
import queue
import subprocess
import tempfile
import threading
import time
from collections import namedtuple

import badtcp
import iwarp

ROLES = ("responder", "initiator")
PATIENCE = 20
PORT = 5000
FOREIGN_KEY = 0xDEADBE00  # no region of the actor has it

Note = namedtuple("Note", "kind when fields")
End = namedtuple("End", "when name reason detail sockets sends receives")
Result = namedtuple("Result", "when name")
Left = namedtuple("Left", "late fds threads bytes")


class StageError(Exception):
    """The scenario could not be played as written."""


# ---- the program that uses Flue ----

def summary(statuses):
    """' flushed flushed' -> '2 flushed'"""
    words = statuses.split()
    return ", ".join("%d %s" % (words.count(w), w) for w in sorted(set(words))) or "-"


class Actor:
    """The process. Replies are waited for, everything else it says is noted."""

    def __init__(self, path):
        # Without malloc's caches and further arenas every byte in use is somebody's.
        environment = dict(os.environ, GLIBC_TUNABLES="glibc.malloc.tcache_count=0:"
                                                      "glibc.malloc.arena_max=1")
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self.errors, text=True, env=environment)
        self.news = threading.Condition()
        self.notes = []
        self.replies = queue.Queue()
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def read(self):
        for line in self.process.stdout:
            kind, when, *fields = line.rstrip("\n").split("\t")
            note = Note(kind, float(when), fields)
            if kind == "reply":
                self.replies.put(note)
            with self.news:
                self.notes.append(note)
                self.news.notify_all()
        self.replies.put(None)

    def begin(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def reply(self, command, expected="ok"):
        try:
            note = self.replies.get(timeout=PATIENCE)
        except queue.Empty:
            raise StageError("no reply to '%s'" % command) from None
        if not note:
            raise StageError("the actor ended at '%s'" % command)
        if note.fields[0] != expected:
            raise StageError("'%s' says %s, not %s" % (command, note.fields[0], expected))
        return note

    def do(self, command, expected="ok"):
        self.begin(command)
        return self.reply(command, expected)

    def wait(self, condition, timeout, what):
        with self.news:
            if not self.news.wait_for(condition, timeout):
                raise StageError("%s did not come in %g s" % (what, timeout))

    def end(self):
        """Its exit status."""
        self.process.stdin.close()
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            return "none: it hangs"

    def stderr(self):
        self.errors.seek(0)
        return self.errors.read()

    # ---- what was noted since forget() ----

    def forget(self):
        with self.news:
            self.notes = []

    def fields(self, kind):
        with self.news:
            return [(note.when, note.fields) for note in self.notes if note.kind == kind]

    def ends(self):
        return [End(when, f[0].upper().replace(" ", "_"), f[1], int(f[2]), int(f[3]),
                    summary(f[4]), summary(f[5])) for when, f in self.fields("event")
                if len(f) > 1]

    def cq_errors(self):
        return len([f for _, f in self.fields("event") if f[0] == "completion queue error"])

    def states(self):
        """From RTS on."""
        names = [f[0].upper() for _, f in self.fields("state")]
        return names[names.index("RTS"):] if "RTS" in names else names

    def result(self):
        found = self.fields("result")
        return Result(found[0][0], found[0][1][0]) if found else None

    def story(self):
        with self.news:
            notes = list(self.notes)
        first = notes[0].when if notes else 0
        return "actor: " + "; ".join("%d ms %s %s" % ((note.when - first) * 1000, note.kind,
                                                      " ".join(note.fields)) for note in notes)


# ---- actor and peer together ----

class Stage:
    """One scenario in one role."""

    def __init__(self, host, actor, scenario, role):
        self.host, self.actor, self.scenario, self.role = host, actor, scenario, role
        self.peer = None
        self.begin_at = 0  # where FPDUs begin in what the peer received
        self.cause = None  # when it happened
        self.destroyed = self.blocked = self.probes = False
        self.open_words = {"local-failure": "1", "never-flushes": "16 dead"}.get(scenario, "16")
        self.left = None

    def play(self, scenario, quiet):
        """All of it; scenario: the function. Returns what is left."""
        self.actor.forget()
        self.actor.do("open %s %s" % ("callback" if self.role == "responder" else "queue",
                                      self.open_words))
        (self.dial if self.role == "responder" else self.answer)()
        self.saw("RTS")
        scenario(self)
        if not self.destroyed:
            self.actor.wait(self.actor.ends, 60, "the end")
        if self.blocked:
            self.actor.wait(self.actor.result, PATIENCE, "the result of disconnect()")
        time.sleep(quiet)
        self.host.drain()
        if self.probes:
            self.probe()
        # What the actor does below is not the scenario any more.
        self.words, self.stream = self.peer.words(), bytes(self.peer.received)
        note = self.actor.do("close")
        self.peer.forget()
        self.left = Left(*(int(field) for field in note.fields[1:]))
        return self.left

    def probe(self):
        """Linux sends no reset once both FINs are out: it forgets the connection. The peer learns
        of it when it repeats its FIN; one that was closed in order would be acknowledged."""
        self.peer.repeat_fin()
        try:
            self.peer.wait_word("RST", 2)
        except badtcp.Timeout:
            pass  # the table's column says whether this is bad

    def wire(self):
        """The table's words: a Terminate counts, other data do not."""
        found = iwarp.find_terminate(self.stream, self.begin_at)
        return (["TERM"] if found else []) + [w for w in self.words if w in ("FIN", "RST")]

    def wire_story(self):
        if not self.peer or not self.peer.seen:
            return "the peer saw nothing"
        first = self.peer.seen[0][2]
        return "; ".join("%d ms %s behind octet %d" % ((when - first) * 1000, word, octets)
                         for word, octets, when in self.peer.seen)

    # ---- connecting: revision 2, ready-to-receive by an empty Write ----

    def take_frame(self, key):
        self.peer.wait(lambda: iwarp.read_frame(self.peer.received, key), PATIENCE, "a frame")
        self.begin_at = iwarp.read_frame(self.peer.received, key).size

    def dial(self):
        port = int(self.actor.do("listen").fields[1])
        self.peer = self.host.connect(port)
        self.actor.begin("accept")
        self.peer.send(iwarp.request())
        self.take_frame(iwarp.REPLY_KEY)
        self.peer.send(iwarp.write())
        self.actor.reply("accept")

    def answer(self):
        listener = self.host.listen(PORT)
        self.actor.begin("connect %s %d" % (badtcp.HOST, PORT))
        self.peer = listener.accept()
        self.take_frame(iwarp.REQUEST_KEY)
        self.peer.send(iwarp.reply())
        self.heard(iwarp.WRITE)
        self.actor.reply("connect")
        # The peer says nothing by itself: what crosses a disconnect() is data after the close.

    # ---- words of the scenarios ----

    def heard(self, opcode):
        """The peer has a message of this kind."""
        self.peer.wait(lambda: opcode in [segment["opcode"] for segment in iwarp.read_segments(
            self.peer.received, self.begin_at)], PATIENCE, "opcode %d" % opcode)

    def saw(self, state):
        self.actor.wait(lambda: state in self.actor.states() or self.actor.ends(), PATIENCE,
                        "state " + state)
        # The end is told from another thread than states are.
        self.actor.wait(lambda: state in self.actor.states(), 1, "state " + state)

    def goes_on(self, after):
        """Long enough to see that this ended nothing."""
        time.sleep(0.1)
        if self.actor.ends():
            raise StageError("%s ended the connection" % after)

    def read(self):
        """A Read that will never be answered."""
        self.actor.do("read")
        self.heard(iwarp.READ_REQUEST)

    def program(self, command, expected="ok"):
        """The cause is what the program does."""
        self.cause = self.actor.do(command, expected).when

    def disconnect(self, ms=0):
        self.blocked = True
        self.program("disconnect %d" % ms)

    def begin_closing(self):
        """Our FIN is out and acknowledged; the peer has not answered."""
        self.disconnect()
        self.peer.wait_word("FIN")
        self.saw("CLOSING")

    def from_peer(self, action, *args):
        """The cause is what the peer does."""
        self.cause = time.monotonic()
        action(*args)

    def peer_begins_closing(self):
        """The peer's FIN is in and ours is out, not acknowledged."""
        self.peer.withhold()
        self.from_peer(self.peer.fin)
        self.peer.wait_word("FIN")
        self.saw("CLOSING")

    def fault(self):
        self.from_peer(self.peer.send, iwarp.write(FOREIGN_KEY, 0, b"not mine"))
        self.await_terminate()

    def await_terminate(self):
        self.heard(iwarp.TERMINATE)
        self.peer.wait_word("FIN")
        self.saw("TERMINATE")
