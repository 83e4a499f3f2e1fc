"""
Promises of every device about asynchronous events, and about ports that go down and come up.

Follows InfiniBand Architecture vol. 1, 11.6.3 (asynchronous events).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from txrdma.error import DeviceUnavailable
from txrdma.iba.verbs import (
    Access,
    AsyncEventKind,
    Operation,
    PortState,
    QPAttributes,
    QPKind,
    QPState,
    SendRequest,
    Status,
)
from txrdma.interfaces import AsyncEvent
from txrdma.testing.verbs.ends import End, EVERYTHING, PATIENT, QKEY, TwoEnds

STEADY = replace(PATIENT, timeout=17)
"""Attributes for connections that survive a port that is down: timeout 0.5 seconds, seven retries."""

HASTY = replace(PATIENT, timeout=8, retryCount=1)
"""Attributes for connections that fail while a port is down."""

_REFUSALS: Final = {
    Status.REM_ACCESS_ERR: AsyncEventKind.QP_ACCESS_ERROR,
    Status.REM_INV_REQ_ERR: AsyncEventKind.QP_REQUEST_ERROR,
}
"""Events of a queue pair that refuses a request, by the status of the requester's completion."""


def eventsOf(end: End, *kinds: AsyncEventKind) -> list[AsyncEvent]:
    """Return the asynchronous events of these kinds that an end has received."""
    return [event for event in end.events if event.kind in kinds]


class QueueEventContract(TwoEnds):
    """Promises about events of queue pairs and completion queues."""

    def test_established(self) -> None:
        """Only the first message of a queue pair in RTR raises C{COMMUNICATION_ESTABLISHED}."""
        alice, bob = self.end(0), self.end(1)
        self.connectToRTR(alice, bob)
        alice.toRTS()
        for index in range(2):
            bob.receive(bob.segment())
            alice.send(inline=[b"are you there?"])
            self.runUntilCompleted(bob, receives=index + 1)
        self.runFor(0.02)
        reported = eventsOf(bob, AsyncEventKind.COMMUNICATION_ESTABLISHED)
        expected = [bob.queuePair] if self.quirks[1].establishes else []
        self.assertEqual([event.queuePair for event in reported], expected)
        self.assertEqual(eventsOf(alice, AsyncEventKind.COMMUNICATION_ESTABLISHED), [])
        bob.toRTS()
        alice.receive(alice.segment(100))
        bob.send(inline=[b"yes"])
        self.runUntilCompleted(alice, sends=2, receives=1)

    def test_notEstablishedAgain(self) -> None:
        """A message of a queue pair that is already in RTS does not raise C{COMMUNICATION_ESTABLISHED}."""
        alice, bob = self.pair()
        bob.receive(bob.segment())
        alice.send(inline=[b"hello"])
        self.runUntilBothCompleted(alice, bob)
        self.quiet(alice, bob)
        self.assertEqual(eventsOf(bob, AsyncEventKind.COMMUNICATION_ESTABLISHED), [])

    def test_refusalEvent(self) -> None:
        """
        A queue pair that refuses a request because of the memory, or because of its own access rights, raises
        the event for the status that the requester gets.
        """
        for operation in (Operation.RDMA_WRITE, Operation.RDMA_READ):
            for access, isOutside in ((EVERYTHING, True), (Access.LOCAL_WRITE, False)):
                alice, bob = self.pair(access=access)
                alice.rdma(operation, bob.memory, alice.segment(), offset=bob.memory.length * isOutside)
                self.runUntilCompleted(alice, sends=1)
                status = alice.sent[0].status
                self.assertIn(status, (Status.REM_ACCESS_ERR,) if isOutside else _REFUSALS)
                self.runFor(0.02)
                expected = [(_REFUSALS[status], bob.queuePair)] if self.quirks[1].reportsRefusals else []
                self.assertEqual([(event.kind, event.queuePair) for event in bob.events], expected)

    def test_overrunBySends(self) -> None:
        """A completion queue that overruns by sends is in error, and so is its queue pair."""
        alice, bob = self.end(0, depth=4), self.end(1)
        self.connect(alice, bob)
        most = alice.sends.depth + 8
        for _ in range(most):
            bob.receive(bob.segment())
        for index in range(most):
            alice.send(inline=[b"."], identifier=index)

        def isOverrun() -> bool:
            bob.poll()
            if len(bob.received) == most:
                alice.sends.poll(1)  # some devices complete sends only while polled
            return bool(eventsOf(alice, AsyncEventKind.CQ_ERROR))

        self.runUntil(isOverrun)
        self.assertIs(eventsOf(alice, AsyncEventKind.CQ_ERROR)[0].completionQueue, alice.sends)
        self.runUntil(lambda: alice.queuePair.state is QPState.ERR)

    def test_othersOverrun(self) -> None:
        """An overrun does not affect queue pairs with other completion queues."""
        alice, (carol, dave) = self.end(0, depth=4), self.pair()
        alice.toInit()
        for index in range(alice.receives.depth + 8):
            alice.receive(identifier=index)
        alice.queuePair.modify(QPAttributes(state=QPState.ERR))
        self.runUntil(lambda: bool(eventsOf(carol, AsyncEventKind.CQ_ERROR)))
        dave.receive(dave.segment())
        carol.send(inline=[b"still here"])
        self.runUntilBothCompleted(carol, dave)
        self.assertEqual(carol.sent[0].status, Status.SUCCESS)


class PortEventContract(TwoEnds):
    """
    Promises about events of a port that goes down, and comes up again.

    The suite of an implementation defines how: by command, or by the network interface of the port.
    """

    def setPort(self, which: int, isUp: bool) -> None:
        """Take the first port of the first or the second device down, or up again."""
        raise NotImplementedError

    def down(self, which: int) -> Callable[[], None]:
        """Take a port down; return a function that brings it up, which is called after the test, too."""
        self.setPort(which, False)
        isDown = [True]

        def up() -> None:
            if isDown.pop() if isDown else False:
                self.setPort(which, True)

        self.addCleanup(up)
        return up

    def test_portEvents(self) -> None:
        """A port that goes down, or up again, raises an event, and its attributes show the new state."""
        end = self.end(0)
        up = self.down(0)
        self.runUntil(lambda: bool(eventsOf(end, AsyncEventKind.PORT_ERROR)))
        self.assertEqual(eventsOf(end, AsyncEventKind.PORT_ERROR)[0].port, 1)
        self.assertEqual(end.device.portAttributes(1).state, PortState.DOWN)
        up()
        self.runUntil(lambda: bool(eventsOf(end, AsyncEventKind.PORT_ACTIVE)))
        self.assertEqual(eventsOf(end, AsyncEventKind.PORT_ACTIVE)[0].port, 1)
        self.assertEqual(end.device.portAttributes(1).state, PortState.ACTIVE)


class PortContract(PortEventContract):
    """
    Promises about traffic through a port that goes down and comes up again.

    @cvar isOneWire: whether the ports are the ends of one wire: when one goes down, the other loses its link
        eventually, and the system may queue datagrams meanwhile.
    """

    isOneWire = False

    def mayFailAtOnce(self, which: int) -> bool:
        """Return whether the first device may fail immediately, instead of waiting for its port to be up."""
        return not self.quirks[0].waitsForPort and (which == 0 or self.isOneWire)

    def test_backInTime(self) -> None:
        """Requests posted while a port is down, on either side, are executed once when it is up again."""
        for which in (0, 1):
            alice, bob = self.pair(settings=STEADY)
            for _ in range(3):
                bob.receive(bob.segment())
            alice.send(inline=[b"before"])
            self.runUntilBothCompleted(alice, bob)
            up = self.down(which)
            alice.send(inline=[b"meanwhile"])
            alice.rdma(Operation.RDMA_WRITE, bob.memory, inline=[b"written"], offset=1000)
            alice.rdma(Operation.RDMA_READ, bob.memory, alice.segment(2000, 7), offset=1000)
            self.runFor(0.1)
            for end in (alice, bob):
                end.poll()
            if not self.mayFailAtOnce(which):
                self.assertEqual((len(alice.sent), len(bob.received)), (1, 1))
            elif which == 0:
                self.runUntilCompleted(alice, sends=4)
            up()
            self.runUntilCompleted(alice, sends=4)
            if self.mayFailAtOnce(which) and (which == 0 or alice.sent[1].status):
                failed = [self.quirks[0].localFailure, *[Status.WR_FLUSH_ERR] * 2]
                self.assertEqual(alice.statuses()[0][1:], failed)
                continue
            self.runUntilCompleted(bob, receives=2)
            self.assertEqual(set(alice.statuses()[0]), {Status.SUCCESS})
            self.assertEqual(bytes(alice.memory.view[2000:2007]), b"written")

    def test_tooLate(self) -> None:
        """A connection with few retries ends while the port is down, on either side."""
        for which in (0, 1):
            alice, bob = self.pair(settings=HASTY)
            bob.receive(bob.segment())
            up = self.down(which)
            alice.send(inline=[b"lost"], identifier=1)
            alice.send(inline=[b"behind"], identifier=2)
            self.runUntilCompleted(alice, sends=2)
            statuses = {Status.RETRY_EXC_ERR}
            if self.mayFailAtOnce(which):
                statuses.add(self.quirks[0].localFailure)
            self.assertIn(alice.sent[0].status, statuses)
            self.assertEqual(alice.sent[1].status, Status.WR_FLUSH_ERR)
            up()
            self.runFor(0.02)
            bob.poll()
            self.assertEqual(bob.received, [])

    def test_connectedWhileDown(self) -> None:
        """Queue pairs can be connected while a port is down, and their messages arrive when it is up."""
        up = self.down(1)
        try:
            alice, bob = self.pair(settings=STEADY)
        except DeviceUnavailable:
            # The kernel resolves the peer's link address, which may or may not be cached.
            self.assertTrue(any(quirks.needsPeerForRTR for quirks in self.quirks))
            return
        if any(quirks.needsPeerForRTR for quirks in self.quirks):
            return  # it was cached; another test sends while the link is down
        bob.receive(bob.segment())
        alice.send(inline=[b"patience"])
        self.runFor(0.05)
        up()
        self.runUntilBothCompleted(alice, bob)
        self.assertEqual(bytes(bob.memory.view[:8]), b"patience")

    def test_datagramsWhileDown(self) -> None:
        """Datagrams sent while a port is down are lost, or queued by the system; later ones arrive."""
        alice, bob = self.end(0, QPKind.UD), self.end(1, QPKind.UD)
        self.connect(alice, bob)
        for _ in range(2):
            bob.receive(bob.segment(0, 140))
        handle = alice.domain.createAddressHandle(alice.destinationOf(bob))
        self.addCleanup(handle.close)

        def post(data: bytes) -> None:
            request = SendRequest(1, Operation.SEND, [alice.fill(data)], address=handle)
            request.remoteQPN, request.remoteQKey = bob.queuePair.number, QKEY
            alice.queuePair.postSend([request])

        up = self.down(1)
        post(b"lost")
        self.runUntilCompleted(alice, sends=1)
        self.runFor(0.05)
        up()
        self.runFor(0.05)
        if alice.queuePair.state is QPState.ERR and self.mayFailAtOnce(1):
            return
        post(b"found")
        if self.isOneWire:
            self.runPolling(lambda: bytes(bob.memory.view[40:45]) == b"found", alice, bob)
            return
        self.runUntilCompleted(bob, receives=1)
        self.assertEqual(bytes(bob.memory.view[40:45]), b"found")
