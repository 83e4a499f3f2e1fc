"""
Long messages, puts and reads by RDMA of which one call of one function raises an exception: all requests end,
nothing is lost silently, and a second connection of the same modules is not affected.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any
from unittest import SkipTest

from twisted.python.failure import Failure

from txrdma.btl import receivebuffers
from txrdma.btl.core import peer
from txrdma.btl.core.assembly import Assembly
from txrdma.btl.core.module import Module
from txrdma.btl.core.ordering import Ordering
from txrdma.btl.core.peer import Peer
from txrdma.btl.core.receivebuffer import ReceiveBuffer
from txrdma.btl.core.receiving import ReceiveWindow
from txrdma.btl.core.regions import Regions
from txrdma.btl.core.window import SendWindow
from txrdma.btl.errors import MessageFailed
from txrdma.btl.lifeline import PeerConnection
from txrdma.btl.memory import ConnectionMemory
from txrdma.btl.receivebuffers import RemoteReceiveBuffers
from txrdma.messages.memory import SharedMemory
from txrdma.test.support.btl.hosts import HostsCase, ORDERED, TagRecorder
from txrdma.test.support.interruptions import Interruptions
from txrdma.testing.smc.hosts import MemoryTCP

RDMA: tuple[Any, ...] = (receivebuffers, RemoteReceiveBuffers, ReceiveBuffer, Regions)
"""What RDMA adds to a connection."""

CORE: tuple[Any, ...] = (Module, Peer, SendWindow, ReceiveWindow, Assembly, Ordering)
"""The state of a peer."""

USERS: tuple[Any, ...] = (ConnectionMemory, PeerConnection)
"""What uses it."""

TRIVIAL = (
    *("connectionLost", "_finish", "_contain", "close", "handleEvent", "eventsReported", "_call"),
    *("_failAll", "_forget", "_segmentsArrived"),
)
"""Functions that contain exceptions of others, or begin the end of a connection."""

LONG = bytes(range(256)) * 400
"""A message that is written by RDMA."""


class InterruptionTests(HostsCase):
    """Two connections between the same modules, of which a function raises once while the first one works."""

    slowBecause = "it plays two connections for each function"
    MOST_INLINE: int | None = None
    STRIDE = 5
    OWNERS = (*RDMA, *USERS)

    def setUp(self) -> None:
        super().setUp()
        self.ends: list[Any] = []
        self.ports: list[Any] = []
        for host in self.hosts if self.MOST_INLINE is not None else ():
            host.device.limits = replace(host.device.limits, maxInline=self.MOST_INLINE)
        usual = MemoryTCP.doRead

        def doRead(tcp: MemoryTCP) -> Any:
            """Log an exception and close the TCP connection, as reactors do."""
            try:
                return usual(tcp)
            except ZeroDivisionError as error:
                self.escaped += 1
                return error

        self.patch(MemoryTCP, "doRead", doRead)
        self.calls = Interruptions(self.patch, self.OWNERS, self.isVictim, TRIVIAL)

    def isVictim(self, *arguments: object) -> bool:
        """Return whether a function is called for the first connection."""
        mine: list[object] = [*self.ports]
        for lifeline, memory in self.ends:
            peer: Any = lifeline.peer
            mine += [lifeline, memory, peer, peer.sent, peer.received, peer.assembly, peer.order]
            mine += [each for each in (lifeline._receiveBuffers, peer.receiveBuffer) if each is not None]
        return any(each is argument for argument in arguments for each in mine)

    def work(self, here: TagRecorder, there: TagRecorder, memory: SharedMemory) -> list[Any]:
        """Send long messages in both directions, write into memory and read it. Return results by request."""
        name, requests = memory.name, list[Any]()

        def request(make: Any, expected: object = None) -> None:
            try:
                requests.append((make(), expected))
            except ZeroDivisionError:
                self.raised += 1

        for number in range(3):
            for end in (here, there):
                request(lambda end=end, number=number: end.transport.send(ORDERED, bytes([number]) + LONG))
            request(lambda: here.transport.write(name, LONG, len(LONG)))
            request(lambda: here.transport.read(name, len(LONG), 0), LONG)
        return requests

    def play(self) -> list[str]:
        """Let two connections work and close, of which the first one may fail; return what is wrong."""
        self.raised, self.escaped, wrong = 0, 0, list[str]()
        victims, bystanders = self.connected(), self.connected()
        memories = [each[1].transport.share(2 * len(LONG)) for each in (victims, bystanders)]
        for each in memories:
            each.view[: len(LONG)] = LONG
        self.ends = [(self.lifeline(each), each.transport._memory) for each in victims]
        self.ports = [each.module.ports[0] for each, _memory in self.ends]
        requests = self.work(*victims, memories[0])
        texts = self.ended(requests, wrong)
        for each in victims:
            if not each.lost:
                each.transport.loseConnection()
        self.waitFor(lambda: all(each.lost for each in victims), "no connectionLost", wrong, 100.0)
        sent = Counter(bytes([number]) + LONG for number in range(3))
        received = [Counter(data for _tag, data in each.tagged) for each in victims]
        if any(each - sent for each in received):
            wrong.append("messages were invented")
        isClean = all(each.ends == ["ConnectionDone"] for each in victims)
        if isClean and not texts and not self.raised and any(each != sent for each in received):
            wrong.append("messages were lost silently")
        self.ends, self.ports = [], []
        requests = self.work(*bystanders, memories[1])
        if self.ended(requests, wrong) or any(
            Counter(data for _tag, data in each.tagged) != sent for each in bystanders
        ):
            wrong.append("the bystander is affected")
        bystanders[0].transport.loseConnection()
        self.waitFor(lambda: all(each.lost for each in bystanders), "bystander not closed", wrong)
        if [each.ends for each in bystanders] != [["ConnectionDone"]] * 2:
            wrong.append("the bystander has not ended in order")
        self.flushLoggedErrors(MessageFailed)
        logged = len(self.flushLoggedErrors(ZeroDivisionError)) + self.escaped
        if logged > 1 or (self.calls.hasRaised and not (logged or texts or self.raised)):
            wrong.append(f"it was logged {logged} times")
        try:
            self.assertNothingLeft()
        except self.failureException as error:
            wrong.append(f"left: {error}")
        return wrong

    def waitFor(self, condition: Any, what: str, wrong: list[str], seconds: float = 30.0) -> None:
        if not self.waitAnyway(condition, seconds):
            wrong.append(what)

    def ended(self, requests: list[Any], wrong: list[str]) -> list[str]:
        """Wait for requests; return the texts of the failures."""
        self.waitFor(lambda: all(each.called for each, _expected in requests), "requests hang", wrong)
        texts = []
        for outcome, expected in requests:
            found: list[Any] = []
            outcome.addBoth(found.append)
            if found and isinstance(found[0], Failure):
                texts.append(str(found[0].value))
                if not found[0].check(MessageFailed, ZeroDivisionError):
                    wrong.append(f"failed with {found[0].value!r}")
            elif found and found[0] != expected:
                wrong.append("a request has a wrong result")
        return texts

    def test_each(self) -> None:
        """The first, second, and last call of each function."""
        self.assertEqual(self.play(), [])
        self.assertGreater(len(self.calls.counts), 15)
        found = {}
        for (owner, name), number in self.calls.each(stride=self.STRIDE):
            wrong = self.play()
            if wrong:
                found[owner.__name__, name, number] = wrong
        self.assertEqual(found, {}, "\n".join(f"{k}: {v}" for k, v in found.items()))


class StagingTests(InterruptionTests):
    """A device that reads from registered memory."""

    MOST_INLINE = 64


class CoreTests(InterruptionTests):
    """The state of a peer."""

    OWNERS = CORE
    STRIDE = 9

    def setUp(self) -> None:
        if not (peer.__file__ or "").endswith(".py"):
            raise SkipTest("compiled classes can't be patched")
        super().setUp()
