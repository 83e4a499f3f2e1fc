"""
Connections of which one call of one function raises an exception: all requests end, no data is invented or
lost silently, and a second connection of the same modules is not affected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import SkipTest
from unittest.mock import Mock

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionLost
from twisted.python.failure import Failure

from txrdma.btl import receivebuffers
from txrdma.btl.core import peer as peerModule
from txrdma.btl.core.assembly import Assembly
from txrdma.btl.core.flow import MessageFlow
from txrdma.btl.core.module import Module
from txrdma.btl.core.ordering import Ordering
from txrdma.btl.core.peer import Peer
from txrdma.btl.core.receivebuffer import ReceiveBuffer
from txrdma.btl.core.receiving import ReceiveWindow
from txrdma.btl.core.regions import Regions
from txrdma.btl.core.window import SendWindow
from txrdma.btl.errors import CallFailed, MessageFailed
from txrdma.btl.inbox import Inbox
from txrdma.btl.lifeline import PeerConnection
from txrdma.btl.memory import ConnectionMemory
from txrdma.btl.outbox import Outbox
from txrdma.btl.receivebuffers import RemoteReceiveBuffers
from txrdma.btl.requests import Answerer, Caller, PendingRequests
from txrdma.btl.transport import BTLMessageTransport
from txrdma.messages.memory import SharedMemory
from txrdma.messages.transport import MessageTransport
from txrdma.test.support.btl.hosts import HostsCase, ORDERED, TAG, TagRecorder
from txrdma.test.support.compiled import skipIfCompiled
from txrdma.test.support.interruptions import Interruptions
from txrdma.testing.smc.hosts import MemoryTCP

LONG = bytes(range(256)) * 400
"""A message that is written by RDMA."""


class InterruptionCase(HostsCase):
    """
    Two connections between the same modules, of which a function raises once while the first one works.

    @cvar OWNERS: classes and modules whose functions raise; C{TRIVIAL}: functions that contain exceptions of
        others, or begin the end of a connection.
    @cvar LATEST: number of the last call of a function that may raise; C{MOST} and C{STRIDE}: see
        L{Interruptions.each}.
    @ivar affected: for each end of the first connection whose functions raise: returns its objects.
    """

    slowBecause = "it plays two connections for each function"
    OWNERS: tuple[Any, ...]
    TRIVIAL: tuple[str, ...]
    LATEST, MOST, STRIDE = 1 << 30, 3, 1

    def setUp(self) -> None:
        super().setUp()
        self.affected: list[Callable[[], list[object]]] = []
        self.requests: list[tuple[Deferred[Any], object]] = []
        usual = MemoryTCP.doRead

        def doRead(tcp: MemoryTCP) -> Any:
            """Log an exception and close the TCP connection, as reactors do."""
            try:
                return usual(tcp)
            except ZeroDivisionError as error:
                self.escaped.append(Failure())
                return error

        self.patch(MemoryTCP, "doRead", doRead)
        self.calls = Interruptions(self.patch, self.OWNERS, self.isVictim, self.TRIVIAL)

    def partsOf(self, end: TagRecorder) -> Callable[[], list[object]]:
        """Return a function that returns the objects of an end, some of which are made later."""
        transport: Any = end.transport
        lifeline, memory = transport._lifeline, transport._memory
        fixed = [transport, lifeline, transport._outbox, transport._inbox, transport._flow, memory]
        fixed += [memory._reads, transport._caller, transport._answerer, lifeline.module.ports[0]]

        def parts() -> list[object]:
            peer = lifeline.peer
            found = [*fixed, peer, peer.sent, peer.received, peer.assembly, peer.order]
            return [*found, *filter(None, (lifeline._receiveBuffers, peer.receiveBuffer))]

        return parts

    def isVictim(self, *arguments: object) -> bool:
        """Return whether a function is called for an end that is affected."""
        return any(each is argument for parts in self.affected for each in parts() for argument in arguments)

    def request(self, make: Callable[[], Deferred[Any]], expected: object = None) -> None:
        """Make a request, which may raise."""
        try:
            self.requests.append((make(), expected))
        except ZeroDivisionError:
            self.raised += 1

    def work(self, here: TagRecorder, there: TagRecorder, memory: SharedMemory) -> list[list[bytes]]:
        """Make requests, the memory being that of the second end; return the messages that each end gets."""
        raise NotImplementedError

    def waitFor(self, condition: Callable[[], object], what: str, seconds: float = 30.0) -> None:
        if not self.waitAnyway(condition, seconds):
            self.wrong.append(what)

    def results(self, sent: list[list[bytes]]) -> list[str]:
        """Wait for all requests, and check their results; return the texts of the failures."""
        self.waitFor(lambda: all(each.called for each, _expected in self.requests), "requests hang")
        texts = []
        for number, (outcome, expected) in enumerate(self.requests):
            found: list[Any] = []
            outcome.addBoth(found.append)
            if found and isinstance(found[0], Failure):
                texts.append(str(found[0].value))
                if not found[0].check(MessageFailed, CallFailed, ZeroDivisionError):
                    self.wrong.append(f"failed with {found[0].value!r}")
            elif found and found[0] != expected and not (self.raised and found[0] in sent[1]):
                self.wrong.append(f"request {number} has a wrong result")
        self.requests = []
        return texts

    def play(self, *ends: int) -> list[str]:
        """Let two connections work and close, of which the first one may fail; return what is wrong."""
        self.raised, self.escaped, self.wrong = 0, list[Failure](), list[str]()
        self.requests = []
        victims, bystanders = self.connected(), self.connected()
        memories = []
        for _client, server in (victims, bystanders):
            server.transport.answer(1, lambda data: data[::-1])
            memories.append(server.transport.share(2 * len(LONG)))
            memories[-1].view[: len(LONG)] = LONG
        self.affected = [self.partsOf(victims[end]) for end in ends]
        sent = self.work(*victims, memories[0])
        texts = self.results(sent)
        for each in victims:
            if not each.lost:
                try:
                    each.transport.loseConnection()
                except ZeroDivisionError:
                    self.raised += 1
        self.waitFor(lambda: all(each.lost for each in victims), "no connectionLost", 100.0)
        received = [self.receivedBy(each) for each in victims]
        if any(got - Counter(output) for got, output in zip(received, sent, strict=True)):
            self.wrong.append("messages were invented")
        isClean = all(each.ends == ["ConnectionDone"] for each in victims)
        if isClean and not (texts or self.raised) and received != list(map(Counter, sent)):
            self.wrong.append("messages were lost silently")
        self.affected = []
        sent = self.work(*bystanders, memories[1])
        if self.results(sent) or [self.receivedBy(each) for each in bystanders] != list(map(Counter, sent)):
            self.wrong.append("the bystander is affected")
        bystanders[0].transport.loseConnection()
        self.waitFor(lambda: all(each.lost for each in bystanders), "the bystander is not closed")
        if [each.ends for each in bystanders] != [["ConnectionDone"]] * 2:
            self.wrong.append("the bystander has not ended in order")
        self.flushLoggedErrors(MessageFailed)  # of requests that have raised
        logged = len(self.flushLoggedErrors(ZeroDivisionError)) + len(self.escaped)
        if logged > 1 or (self.calls.hasRaised and not (logged or texts or self.raised)):
            self.wrong.append(f"it was logged {logged} times")
        try:
            self.assertNothingLeft()
        except self.failureException as error:
            self.wrong.append(f"left: {error}")
        return self.wrong

    def receivedBy(self, end: TagRecorder) -> Counter[bytes]:
        """Return the messages that an end has received; those without tags must be in order."""
        untagged = [data for data, _immediate in end.messages]
        if untagged != sorted(untagged):
            self.wrong.append(f"messages are out of order: {untagged}")
        return Counter([*untagged, *(data for _tag, data in end.tagged)])

    def playEach(self, ends: tuple[int, ...], least: int) -> None:
        """Play once for each call that is selected."""
        self.calls.begin()
        self.assertEqual(self.play(*ends), [])
        self.assertGreater(len(self.calls.counts), least)
        self.calls.counts = Counter({each: min(n, self.LATEST) for each, n in self.calls.counts.items()})
        found = self.calls.findings(lambda: self.play(*ends), self.MOST, self.STRIDE)
        self.assertEqual(found, {}, "\n".join(f"{key}: {value}" for key, value in found.items()))


class ConnectionTests(InterruptionCase):
    """The second call of each function, or its only one, while messages of all kinds are exchanged."""

    LATEST, MOST = 2, 1
    OWNERS = (
        *(
            BTLMessageTransport,
            MessageTransport,
            PeerConnection,
            Outbox,
            Inbox,
            MessageFlow,
            ConnectionMemory,
        ),
        *(ConnectionMemory, PendingRequests, Caller, Answerer),
    )
    TRIVIAL = ("ended", "connectionLost", "_call", "_end", "_contain", "_finish")

    def work(self, here: TagRecorder, there: TagRecorder, memory: SharedMemory) -> list[list[bytes]]:
        one, other = here.transport, there.transport
        sent = [b"%d" % number * 500 for number in range(4)] + [LONG]
        for each in sent:
            self.request(lambda each=each: one.send(TAG, each))  # type: ignore[misc]
            self.request(lambda each=each: one.send(9, each))  # type: ignore[misc]
        self.request(lambda: one.sendMany(TAG, [b"many"] * 3))
        untagged = [b"message%d" % number for number in range(3)]
        for each in untagged:
            self.request(lambda: one.call(1, b"abc"), b"cba")
            self.request(lambda: one.write(memory.name, b"written" * 100, len(LONG)))
            self.request(lambda: one.read(memory.name, 4, 4000), LONG[4000:4004])
            try:
                one.sendMessage(each)
            except ZeroDivisionError:
                self.raised += 1
        self.request(one.ready)
        for each in sent[:3]:
            self.request(lambda: other.receive(9), each)
        return [[], [*sent, *[b"many"] * 3, *untagged]]

    def test_client(self) -> None:
        """The end that makes the requests."""
        self.playEach((0,), 50)

    def test_server(self) -> None:
        """The end that answers them."""
        self.playEach((1,), 50)


class RDMATests(InterruptionCase):
    """What RDMA adds to a connection, while long messages, puts and reads use it."""

    STRIDE = 5
    OWNERS: tuple[Any, ...] = (
        *(receivebuffers, RemoteReceiveBuffers, ReceiveBuffer, Regions),
        *(ConnectionMemory, PeerConnection),
    )
    TRIVIAL = (
        *("connectionLost", "_finish", "_contain", "close", "handleEvent", "eventsReported", "_call"),
        *("_failAll", "_forget", "_segmentsArrived"),
    )

    def work(self, here: TagRecorder, there: TagRecorder, memory: SharedMemory) -> list[list[bytes]]:
        """Send long messages in both directions, write into memory and read it."""
        sent = [bytes([number]) + LONG for number in range(3)]
        for data in sent:
            for end in (here, there):
                self.request(lambda end=end, data=data: end.transport.send(ORDERED, data))  # type: ignore[misc]
            self.request(lambda: here.transport.write(memory.name, LONG, len(LONG)))
            self.request(lambda: here.transport.read(memory.name, len(LONG), 0), LONG)
        return [sent, sent]

    def test_each(self) -> None:
        """The first, second, and last call of each function."""
        self.playEach((0, 1), 15)


class StagingTests(RDMATests):
    """A device that reads from registered memory."""

    def setUp(self) -> None:
        super().setUp()
        for host in self.hosts:
            host.device.limits = replace(host.device.limits, maxInline=64)


class CoreTests(RDMATests):
    """The state of a peer."""

    OWNERS = Module, Peer, SendWindow, ReceiveWindow, Assembly, Ordering
    STRIDE = 9

    def setUp(self) -> None:
        if not (peerModule.__file__ or "").endswith(".py"):
            raise SkipTest("compiled classes can't be patched")
        super().setUp()


class ExceptionTests(HostsCase):
    def test_unknownLoss(self) -> None:
        """If it is not known what the peer has received, the connection is lost; no number is invented."""
        skipIfCompiled()
        client, server = self.connected()
        transport: Any = client.transport
        outbox = Mock(wraps=transport._outbox)
        outbox.takeAll.side_effect = ZeroDivisionError
        self.patch(transport, "_outbox", outbox)
        reasons: list[Failure] = []
        self.patch(client, "connectionLost", reasons.append)
        server.transport.loseConnection()
        self.pause(1.0)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        [reason] = reasons
        self.assertTrue(reason.check(ConnectionLost))
        self.assertIn("it is not known", str(reason.value))

    def test_exit(self) -> None:
        """A handler that ends the program, which decides otherwise, does not stop the module."""
        bystanders = self.connected()
        client, server = self.connected()
        server.transport.setHandler(TAG, Mock(side_effect=[SystemExit, None]))
        client.transport.post(TAG, bytes(700))
        client.transport.post(TAG, bytes(700))
        self.pause(1.0)
        self.assertEqual(len(self.flushLoggedErrors(SystemExit)), 1)
        for here, there in (bystanders, bystanders[::-1]):
            self.outcome(here.transport.send(TAG, b"well"))
            self.assertEqual(there.tagged, [(TAG, b"well")])
