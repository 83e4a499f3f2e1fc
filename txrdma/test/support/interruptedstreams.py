"""
Streams of which one call of one function raises an exception, beside another stream of the same hosts: both
ends end once, no wrong byte is delivered, the other stream is not affected, and nothing is left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.error import ConnectionDone
from twisted.internet.protocol import connectionDone, Protocol
from twisted.python.failure import Failure

from txrdma.test.support.interruptions import Interruptions, readerOf
from txrdma.testing.reactors import Base

SECONDS = 100.0
"""Time in which a connection ends whose peer does not answer."""


class Peer(Protocol):
    """One end: answers everything, or writes and closes when its bytes have come back."""

    transport: Any

    def __init__(self, data: bytes = b"", closes: str = "") -> None:
        self.data, self.closes = data, closes
        self.received = bytearray()
        self.made = self.raised = 0
        self.lost: list[Failure] = []

    def do(self, method: str, *arguments: Any) -> None:
        """Call a method of the transport; abort the connection if that raises, as a program would."""
        for name, given in ((method, arguments), ("abortConnection", ())):
            try:
                getattr(self.transport, name)(*given)
                break
            except ZeroDivisionError:
                self.raised += 1

    def connectionMade(self) -> None:
        self.made += 1
        if self.data:
            self.do("write", self.data)

    def dataReceived(self, data: bytes) -> None:
        self.received += data
        if not self.data:
            self.do("write", data)
        elif self.closes and len(self.received) >= len(self.data):
            self.do(self.closes)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.lost.append(reason)


class InterruptedStreams(Base):
    """
    A mixin of tests: two streams between the same hosts, of which a function raises once for one of them.

    @cvar OWNERS: returns the classes and modules that a stream consists of.
    @cvar TRIVIAL: functions that only contain exceptions of others, or release what they are called for.
    @cvar EXCEPT: classes, modules and functions that are not interrupted.
    @cvar SHARED: classes whose state is shared by streams, which may end together.
    @cvar LEAST: a number of functions that are called.
    @cvar DATA: bytes that are more than a ring.
    @cvar CLIENT: the class of the end that writes and closes; C{SERVER}: of the one that answers.
    """

    slowBecause = "it plays three connections for each function"
    STRIDE = 29
    OWNERS: Callable[[], tuple[Any, ...]]
    TRIVIAL: tuple[str, ...] = ()
    EXCEPT: tuple[Any, ...] = ()
    SHARED: tuple[Any, ...] = ()
    LEAST = 0
    TRANSPORT: str
    DATA = bytes(range(256)) * 120
    CLIENT: type[Peer] = Peer
    SERVER: type[Peer] = Peer

    def setUp(self) -> None:
        super().setUp()
        self.data = self.DATA
        self.isArmed = False
        self.others: list[object] = []
        self.calls = Interruptions(self.patch, type(self).OWNERS(), self.isAffected, self.TRIVIAL)

    def isAffected(self, *arguments: object) -> bool:
        """Return whether a call is not one for the other connection."""
        return self.isArmed and not (arguments and any(each is arguments[0] for each in self.others))

    # For subclasses

    def begin(self) -> None:
        """Prepare the hosts."""

    def seconds(self) -> float:
        """Return the time."""
        raise NotImplementedError

    def iterate(self) -> bool:
        """Run the reactors once; return False if nothing can happen any more."""
        raise NotImplementedError

    def attempt(self, client: Peer, server: Peer, isVictim: bool) -> tuple[list[Any], Callable[[], object]]:
        """
        Begin a connection, and set C{isArmed} to C{isVictim}.

        @return: a list to which the outcome is appended, and whether the server knows that it has one.
        """
        raise NotImplementedError

    def partsOf(self, transport: Any) -> list[object]:
        """Return the objects of one stream."""
        raise NotImplementedError

    def disturb(self) -> None:
        """Do nothing, when the connection has begun."""

    def readerHasRaised(self, reader: Any) -> None:
        """Handle an exception of a reader, which a reactor removes."""
        self.wrong.append(f"the reactor has removed {reader!r}")

    def clear(self) -> None:
        """Check that nothing is left."""
        raise NotImplementedError

    # The play

    def turn(self) -> bool:
        """Run the reactors once, which log exceptions."""
        try:
            return self.iterate()
        except ZeroDivisionError as error:
            self.escaped.append(Failure())
            reader = readerOf(error)
            if reader is not None:
                self.readerHasRaised(reader)
            return True

    def until(self, condition: Callable[[], Any], what: str, seconds: float = SECONDS) -> None:
        """Run the hosts until a condition is true."""
        end = self.seconds() + seconds
        while not condition():
            if self.seconds() > end or not self.turn():
                self.wrong.append(what)
                return

    def passTime(self, seconds: float) -> None:
        end = self.seconds() + seconds
        self.until(lambda: self.seconds() >= end, "the time does not pass", seconds + 1)

    def converse(self, closes: str, isVictim: bool = False) -> tuple[Peer, Peer]:
        """Connect, exchange bytes and close, as far as each step succeeds; return both ends."""
        client, server = self.CLIENT(self.data, closes), self.SERVER()
        outcome, isNotified = self.attempt(client, server, isVictim)
        self.until(lambda: outcome, "the attempt hangs")
        if isVictim:
            self.disturb()
        self.hasFailed = isinstance(outcome[0], Failure) if outcome else False
        self.until(
            lambda: all(each.lost or not each.made for each in (client, server)) and isNotified(),
            "an end hangs",
        )
        return client, server

    def play(self, closes: str) -> list[str]:
        """Converse beside another connection, and again; return what is wrong."""
        self.wrong, self.escaped, self.others = list[str](), list[Failure](), []
        self.begin()
        bystanders = Peer(self.data), Peer()
        self.attempt(*bystanders, isVictim=False)
        self.until(lambda: bystanders[0].received == self.data, "the bystander does not begin")
        self.passTime(0.1)  # until there is another link
        for each in bystanders:
            self.others += self.partsOf(each.transport)
        ends = self.converse(closes, isVictim=True)
        hasFailed = self.hasFailed
        self.passTime(1.0)
        if hasFailed and ends[0].received:
            self.wrong.append("the attempt has failed, but it is connected")
        self.isArmed = False
        self.judge(*ends)
        mayEnd = self.calls.hasRaised and self.calls.owner in self.SHARED and all(e.lost for e in bystanders)
        if not mayEnd:
            bystanders[0].received.clear()
            bystanders[0].transport.write(self.data)
            self.until(lambda: len(bystanders[0].received) >= len(self.data), "the bystander is affected")
        client, server = self.converse("loseConnection")
        if client.received != self.data or client.transport.__class__.__name__ != self.TRANSPORT:
            self.wrong.append(f"the next connection fails: {client.transport!r}")
        bystanders[0].transport.loseConnection()
        self.until(lambda: all(end.lost for end in bystanders), "the bystander does not end")
        logged = len(self.flushLoggedErrors(ZeroDivisionError)) + len(self.escaped)
        raised = sum(each.raised for each in ends)
        if logged + raised > 1 or (self.calls.hasRaised and not (logged + raised or hasFailed)):
            self.wrong.append(f"it was logged {logged} times, and raised {raised} times")
        self.wrong += [f"logged as well: {each.value!r}" for each in self.flushLoggedErrors()]
        self.clear()
        return self.wrong

    def judge(self, client: Peer, server: Peer) -> None:
        """Check what the ends of the connection have received."""
        for end in (client, server):
            if len(end.lost) > 1:
                self.wrong.append(f"it ended {len(end.lost)} times")
            if not self.data.startswith(bytes(end.received)):
                self.wrong.append("wrong bytes have arrived")
        isClean = client.made and all(each.check(ConnectionDone) for each in (*client.lost, *server.lost))
        isWhole = client.received == server.received == self.data
        if isClean and not isWhole and not (self.escaped or client.raised or server.raised):
            self.wrong.append(f"only {len(client.received)} bytes have returned")

    def playEach(self, closes: str) -> None:
        """Play once for each function that is called, and let one of its calls raise."""
        self.calls.begin()
        self.assertEqual(self.play(closes), [])
        self.assertGreater(len(self.calls.counts), self.LEAST)
        for function in [each for each in self.calls.counts if each[0] in self.EXCEPT or each in self.EXCEPT]:
            del self.calls.counts[function]
        found = self.calls.findings(lambda: self.play(closes), 2, self.STRIDE)
        self.assertEqual(found, {}, "\n".join(f"{key}: {value}" for key, value in found.items()))

    def test_close(self) -> None:
        """The client closes its connection."""
        self.playEach("loseConnection")

    def test_small(self) -> None:
        """The client sends a few bytes."""
        self.data = self.DATA[:64]
        self.playEach("loseConnection")

    def test_abort(self) -> None:
        """The client aborts its connection."""
        self.playEach("abortConnection")
