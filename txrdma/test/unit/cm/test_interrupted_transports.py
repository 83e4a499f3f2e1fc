"""
Message connections of which one call of one function raises an exception: all requests end, no message is
lost silently, another connection of the same devices is not affected, and nothing is left.
"""

from __future__ import annotations

import gc
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone

import txrdma.cm.connections
import txrdma.messages
from txrdma.cm.connections.endpoints import RDMAServerEndpoint
from txrdma.cm.connections.transport import RDMATransport
from txrdma.kit import cancelling, shutdown
from txrdma.messages.protocol import MessageFactory
from txrdma.test.support.cm.interrupted import InterruptionCase, partsOf
from txrdma.test.support.cm.messaging import PORT
from txrdma.test.support.compiled import skipIfCompiled
from txrdma.test.support.interruptions import ownersIn
from txrdma.test.unit.cm.test_names import ResolvingClock
from txrdma.testing.protocols import MessageRecorder

PACKAGES = txrdma.cm.connections, txrdma.messages

TRIVIAL: tuple[str, ...] = (
    # They handle the exceptions of others.
    *("_abort", "_call", "_completed", "_handleEvent", "_logFailure", "_succeeded", "handleEvent"),
    *("makeConnection", "wrapped"),
    # They only call these.
    *("abortConnection", "withdraw"),
    # They release what they are called for.
    *("_stop", "release", "removeShutdownListener", "stopListening", "suspend"),
)

LONG = bytes(range(256)) * 80
"""A message that the peer reads from memory, since it does not fit into a receive."""

MESSAGES = [b"small", b"with immediate data", LONG, b"the last one"]


class TransportTests(InterruptionCase):
    """Messages and access to memory by service IDs: C{ib:}."""

    slowBecause = "it plays three connections for each function"
    OWNERS = (*ownersIn(*PACKAGES), cancelling, shutdown)
    TRIVIAL = TRIVIAL
    STRIDE = 29
    bystanders: tuple[object, ...] = ()
    isReported = True

    def setUp(self) -> None:
        skipIfCompiled()
        super().setUp()

    def isAffected(self, *arguments: object) -> bool:
        """Return whether a call is not one for the other connection."""
        return self.isSelected and not (arguments and any(each is arguments[0] for each in self.bystanders))

    def others(self, manager: Any) -> list[Any]:
        return []

    def play(self, work: Any) -> list[str]:
        self.createHosts()
        self.bystanders, self.isSelected, self.raised = (), False, 0
        wrong = super().play(work)
        if self.interruptions.hasRaised and not self.count + self.raised and self.isReported:
            wrong.append("the exception was not reported")
        if self.clock.getDelayedCalls():
            wrong.append(f"left: {self.clock.getDelayedCalls()}")
        return wrong

    def connected(self, *terms: Any, **more: Any) -> tuple[MessageRecorder, MessageRecorder]:
        ends = super().connected(*terms, **more)
        packages = tuple(each.__name__ for each in PACKAGES)
        self.bystanders = tuple(part for each in ends for part in partsOf(each.transport, packages))
        return ends

    def request(self, end: MessageRecorder, method: str, *arguments: Any) -> Any:
        """Call a method of a transport; abort the connection if that raises, as a program would."""
        for name, given in ((method, arguments), ("abortConnection", ())):
            try:
                result = getattr(end.transport, name)(*given)
            except ZeroDivisionError:
                self.raised += 1
            else:
                if isinstance(result, Deferred):
                    self.pending.append(result)
                    result.addErrback(lambda _: None)
                return result if name == method else None
        return None

    def traffic(self, closes: str = "loseConnection") -> None:
        """Connect, send messages both ways, access memory, and close."""
        self.pending: list[Deferred[Any]] = []
        self.served.clear()
        (port,) = self.begun(self.ends().listen, MessageFactory(self.made))
        found = self.begun(self.ask)
        self.until(lambda: found, "the attempt hangs")
        client = found[0] if found else None
        ends = [each for each in (client, *self.served) if each is not None and each.isMade]
        if client is not None:
            self.until(lambda: self.served[-1].isMade or client.lost, "the server is not connected")
            self.exchange(client, self.served[-1], closes)
            ends = [each for each in (client, self.served[-1]) if each.isMade]
        self.until(lambda: all(each.lost for each in ends), "an end hangs")
        self.until(lambda: all(each.called for each in self.pending), "a request hangs")
        if port is not None:
            self.do(port.stopListening)
        self.raised += port is None or client is None
        for each in ends:
            received = [data for data, _immediate in each.messages]
            if received != MESSAGES[: len(received)] or len(each.lost) > 1:
                self.wrong.append(f"it has received {len(received)} messages, and ended by {each.ends}")
        isClean = len(ends) == 2 and all(reason.check(ConnectionDone) for e in ends for reason in e.lost)
        if isClean and not self.raised and not all(len(each.messages) == len(MESSAGES) for each in ends):
            self.wrong.append(f"only {[len(each.messages) for each in ends]} messages have arrived")

    def exchange(self, client: MessageRecorder, server: MessageRecorder, closes: str) -> None:
        """Send messages both ways to protocols that pause, access memory, and close."""
        ends = [each for each in (client, server) if each.isMade]
        for each in ends:
            self.request(each, "pauseProducing")
            for number, data in enumerate(MESSAGES):
                self.request(each, "send", data, number or None)
        end = self.clock.seconds() + 0.05
        self.until(lambda: self.clock.seconds() > end, "the time does not pass")
        for each in ends:
            self.request(each, "resumeProducing")
        hasEnded = any(each.lost or not each.isMade for each in (client, server))
        memory = None if hasEnded else self.request(server, "share", 64)
        if memory is not None:
            self.request(client, "write", memory.name, b"written ")
            self.request(client, "read", memory.name, 8)
            self.request(client, "fetchAndAdd", memory.name, 1)
        self.until(
            lambda: any(each.lost for each in ends) or all(len(e.messages) == len(MESSAGES) for e in ends),
            "messages do not arrive",
        )
        self.request(client, closes)

    def test_close(self) -> None:
        """Messages are exchanged, and the client closes."""
        self.playEach(self.traffic, 2)

    def test_abort(self) -> None:
        """The client aborts its connection."""
        self.playEach(lambda: self.traffic("abortConnection"), 1)


class NameTests(TransportTests):
    """The same by the name of a host, whose first address does not answer: C{rdma:}."""

    TRIVIAL = (*TRIVIAL, "addressResolved", "resolutionBegan", "resolutionComplete")  # called by a resolver
    clockClass = ResolvingClock
    isReported = False  # if the attempt at another address succeeds

    def ends(self, *_: object, **__: object) -> Any:
        return RDMAServerEndpoint(self.clock, PORT, self.devices[1])

    def ask(self, *_: object, **__: object) -> Deferred[Any]:
        assert isinstance(self.clock, ResolvingClock)
        connecting = self.connectTo(host="there.example")
        asked, self.clock.asked = self.clock.asked, []
        for each in asked:
            each.answer("10.0.1.9", *self.addresses[1])
        return connecting

    def traffic(self, closes: str = "loseConnection") -> None:
        super().traffic(closes)
        gc.collect()  # so that exceptions in Deferreds are logged now, not in a later play

    def test_withdrawal(self) -> None:
        """An exception while the attempt at the first address is withdrawn affects no other attempt."""
        self.interruptions.begin((RDMATransport, "_finish"), 1)
        self.assertEqual(self.play(self.traffic), [])
        self.assertEqual((self.interruptions.hasRaised, self.count, self.raised), (True, 1, 0))
