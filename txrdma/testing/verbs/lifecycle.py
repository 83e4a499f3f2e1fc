"""
Promises of every device about states, queues, events, and closing.

Follows InfiniBand Architecture vol. 1, 10.3.1 (states), 10.2.5 (completion queues) and 11.4.2 (notification).
"""

from __future__ import annotations

from dataclasses import replace
from select import select

from txrdma.error import QueueFull, RDMAError
from txrdma.iba.types import QPN
from txrdma.iba.verbs import (
    Access,
    AsyncEventKind,
    Capacity,
    Operation,
    QPAttributes,
    QPState,
    ReceiveRequest,
    SendRequest,
    Status,
)
from txrdma.interfaces import (
    IAddressHandle,
    ICompletionChannel,
    ICompletionQueue,
    IMemoryRegion,
    IProtectionDomain,
    IQueuePair,
    IVerbsDevice,
)
from txrdma.testing.verbs.ends import End, EVERYTHING, PATIENT, TwoEnds

_FLUSHED = Status.WR_FLUSH_ERR


class StateContract(TwoEnds):
    """Promises about the states of a queue pair, and about the permitted operations in each."""

    def test_reportedStates(self) -> None:
        """A queue pair reports its state on the way to RTS."""
        alice, bob = self.end(0), self.end(1)
        self.assertEqual(alice.queuePair.state, QPState.RESET)
        for end in (alice, bob):
            end.toInit()
        self.assertEqual(alice.queuePair.state, QPState.INIT)
        alice.toRTR(bob)
        self.assertEqual(alice.queuePair.state, QPState.RTR)
        alice.toRTS()
        self.assertEqual(alice.queuePair.state, QPState.RTS)

    def test_query(self) -> None:
        """All attributes of a queue pair can be queried."""
        alice, bob = self.pair()
        known = alice.queuePair.query()
        self.assertEqual(known.state, QPState.RTS)
        self.assertEqual(known.destinationQPN, bob.queuePair.number)
        self.assertEqual((known.timeout, known.retryCount, known.rnrRetry), (14, 7, 7))
        self.assertEqual((known.rqPSN, known.sqPSN), (PATIENT.rqPSN, PATIENT.sqPSN))
        self.assertEqual(known.access, EVERYTHING)

    def test_receiverNeedsNoRTS(self) -> None:
        """A queue pair in RTR receives and acknowledges messages."""
        alice, bob = self.end(0), self.end(1)
        self.connectToRTR(alice, bob)
        alice.toRTS()
        bob.receive(bob.segment())
        alice.send(alice.fill(b"to RTR"))
        self.runUntilBothCompleted(alice, bob)
        self.assertEqual(alice.sent[0].status, Status.SUCCESS)

    def test_error(self) -> None:
        """The transition to ERR flushes sends and receives in order; later requests are flushed, too."""
        alice, _bob = self.pair()
        for index in range(3):
            alice.receive(alice.segment(), identifier=10 + index)
            alice.send(inline=[b"never received"], identifier=index)
        alice.queuePair.modify(QPAttributes(state=QPState.ERR))
        alice.send(inline=[b"late"], identifier=3, signaled=False)
        alice.receive(identifier=13)
        self.runUntilCompleted(alice, sends=4, receives=4)
        self.assertEqual(alice.statuses(), ([_FLUSHED] * 4, [_FLUSHED] * 4))
        self.assertEqual([c.identifier for c in alice.sent], [0, 1, 2, 3])
        self.assertEqual([c.identifier for c in alice.received], [10, 11, 12, 13])
        self.assertEqual({c.qpn for c in alice.sent}, {alice.queuePair.number})

    def test_fullQueueIsFlushed(self) -> None:
        """In ERR any number of requests is accepted and flushed immediately."""
        alice, _bob = self.pair()
        alice.queuePair.modify(QPAttributes(state=QPState.ERR))
        most = alice.queuePair.capacity.maxSend
        for index in range(most + 5):
            alice.send(inline=[b""], identifier=index)
        self.runUntilCompleted(alice, sends=most + 5)

    def test_resetAndAgain(self) -> None:
        """A failed queue pair can be reset and reconnected, and completes no former requests."""
        alice, bob = self.pair()
        alice.receive(alice.segment(), identifier=66)
        alice.rdma(Operation.RDMA_READ, bob.memory, alice.segment(0, 70_000))
        for end in (alice, bob):
            end.queuePair.modify(QPAttributes(state=QPState.ERR))
            end.queuePair.modify(QPAttributes(state=QPState.RESET))
            self.assertEqual(end.queuePair.state, QPState.RESET)
            self.assertIsNone(end.queuePair.query().destinationQPN)
        self.quiet(alice, bob)
        self.connect(alice, bob, replace(PATIENT, rqPSN=77, sqPSN=77))
        bob.receive(bob.segment())
        alice.receive(alice.segment(100, 64))
        alice.send(alice.fill(b"reborn"))
        bob.send(bob.fill(b"as well", 500))
        self.runUntilCompleted(bob, sends=1, receives=1)
        self.runUntilCompleted(alice, sends=1, receives=1)
        self.assertEqual(
            (bytes(bob.memory.view[:6]), bytes(alice.memory.view[100:107])), (b"reborn", b"as well")
        )

    def test_drain(self) -> None:
        """In SQD the send queue drains, raises an event, and retains new requests until RTS."""
        alice, bob = self.pair()
        bob.receive(bob.segment())
        alice.send(alice.fill(b"first"))
        if not self.quirks[0].drainsWhatIsPosted:
            self.runUntilCompleted(alice, sends=1)
        alice.queuePair.modify(QPAttributes(state=QPState.SQD))
        self.runPolling(lambda: bool(alice.events), alice, bob)
        self.assertEqual(alice.events[0].kind, AsyncEventKind.SQ_DRAINED)
        self.assertIs(alice.events[0].queuePair, alice.queuePair)
        self.runUntilBothCompleted(alice, bob)
        buffer = bytearray(b"second")
        bob.receive(bob.segment())
        request = SendRequest(2, Operation.SEND, inline=[buffer])
        alice.queuePair.postSend([request])
        buffer[:], request.identifier = b"spoilt", 3
        self.quiet(alice, bob)
        alice.queuePair.modify(QPAttributes(state=QPState.RTS))
        if not self.quirks[0].resumesFromSQD:
            bob.receive(bob.segment(1000))
            alice.send(inline=[b"go on"], identifier=4)
            self.runUntilCompleted(alice, sends=3)
        self.runUntilCompleted(bob, receives=2 if self.quirks[0].resumesFromSQD else 3)
        self.runUntilCompleted(alice, sends=len(bob.received))
        self.assertEqual(alice.sent[1].identifier, 2)
        self.assertEqual(bytes(bob.memory.view[:6]), b"second")

    def test_changedRights(self) -> None:
        """The access rights of a connected queue pair can be changed."""
        alice, bob = self.pair(access=EVERYTHING)
        bob.queuePair.modify(QPAttributes(access=Access.LOCAL_WRITE))
        self.assertEqual(bob.queuePair.state, QPState.RTS)
        alice.rdma(Operation.RDMA_WRITE, bob.memory, alice.fill(b"1"))
        self.runUntilCompleted(alice, sends=1)
        self.assertIn(alice.sent[0].status, (Status.REM_INV_REQ_ERR, Status.REM_ACCESS_ERR))
        self.assertEqual(bob.memory.view[0], 0)


class QueueContract(TwoEnds):
    """Promises about the capacity of queues, and about the form of requests."""

    def test_capacity(self) -> None:
        """A queue pair has at least the requested capacity."""
        wanted = Capacity(5, 6, 2, 3, 100)
        got = self.end(0, capacity=wanted).queuePair.capacity
        for name in ("maxSend", "maxReceive", "maxSendSegments", "maxReceiveSegments", "maxInline"):
            self.assertGreaterEqual(getattr(got, name), getattr(wanted, name))

    def test_sendQueueFull(self) -> None:
        """Requests that exceed the send queue are refused as a whole; completed requests free entries."""
        alice, bob = self.pair()
        most = alice.queuePair.capacity.maxSend
        waiting = [SendRequest(index, Operation.SEND, inline=[b"."]) for index in range(most - 1)]
        alice.queuePair.postSend(waiting)
        two = [SendRequest(1000, Operation.SEND, inline=[b"."])] * 2
        self.assertRaises(QueueFull, alice.queuePair.postSend, two)
        for _ in range(most + 1):
            if len(alice.sent) < most - 1:
                bob.receive(bob.segment())
                self.runUntilCompleted(alice, sends=len(alice.sent) + 1)
        alice.queuePair.postSend(two)
        for _ in range(2):
            bob.receive(bob.segment())
        self.runUntilCompleted(alice, sends=most + 1)
        self.assertEqual([c.identifier for c in alice.sent], [*range(most - 1), 1000, 1000])

    def test_receiveQueueFull(self) -> None:
        """Receives that exceed the receive queue are refused as a whole."""
        bob = self.end(1, capacity=Capacity(maxReceive=4))
        bob.toInit()
        most = bob.queuePair.capacity.maxReceive
        for index in range(most - 1):
            bob.receive(identifier=index)
        self.assertRaises(QueueFull, bob.queuePair.postReceive, [ReceiveRequest(1)] * 2)
        bob.queuePair.postReceive([ReceiveRequest(99)])
        bob.queuePair.modify(QPAttributes(state=QPState.ERR))
        self.runUntilCompleted(bob, receives=most)

    def test_pollTakesItsShare(self) -> None:
        """A poll returns no more completions than requested, oldest first."""
        alice, _bob = self.pair()
        alice.queuePair.modify(QPAttributes(state=QPState.ERR))
        for index in range(5):
            alice.send(inline=[b""], identifier=index)
        self.assertEqual([c.identifier for c in alice.sends.poll(2)], [0, 1])
        self.assertEqual([c.identifier for c in alice.sends.poll(10)], [2, 3, 4])
        self.assertEqual(list(alice.sends.poll(10)), [])


class EventContract(TwoEnds):
    """Promises about completion events, which wake a program that waits for a channel."""

    def rung(self, end: End) -> bool:
        """Return whether the channel's descriptor is readable."""
        return bool(select([end.channel.fileno()], [], [], 0)[0])

    def test_event(self) -> None:
        """An armed queue raises one event for its next completion, and is then disarmed."""
        alice, bob = self.pair()
        bob.receives.arm()
        self.assertFalse(self.rung(bob))
        for _ in range(2):
            bob.receive(bob.segment())
        alice.send(inline=[b"wake up"])
        self.runUntil(lambda: self.rung(bob))
        self.assertEqual(list(bob.channel.takeEvents()), [bob.receives])
        self.assertFalse(self.rung(bob))
        self.runUntilCompleted(bob, receives=1)
        alice.send(inline=[b"nobody armed"])
        self.runUntilCompleted(bob, receives=2)
        self.assertFalse(self.rung(bob))

    def test_localEvent(self) -> None:
        """
        An event of an armed queue makes the channel's descriptor readable, or, with C{callForLocal}, may call
        that function instead.
        """
        alice, bob = self.pair()
        calls: list[None] = []
        bob.channel.callForLocal(lambda: calls.append(None))
        for received in (1, 2):
            bob.receives.arm()
            bob.receive(bob.segment())
            alice.send(inline=[b"wake up"])
            self.runUntil(lambda: self.rung(bob) or bool(calls))
            self.assertEqual(list(bob.channel.takeEvents()), [] if calls else [bob.receives])
            self.assertLessEqual(len(calls), 1)
            self.runUntilCompleted(bob, receives=received)
            bob.channel.callForLocal(None)
            calls.clear()

    def test_sleeperLoop(self) -> None:
        """A program that arms, polls until empty, and waits misses no completion in a hundred rounds."""
        alice, bob = self.pair()
        for _ in range(32):
            bob.receive(bob.segment())
        got = 0
        bob.receives.arm()
        for turn in range(100):
            for _ in range(turn % 3):
                alice.send(inline=[b"."], signaled=False)
            alice.send(inline=[b"."])
            wanted = got + 1 + turn % 3
            while got < wanted:
                self.runPolling(lambda: self.rung(bob), alice)
                if bob.channel.takeEvents():
                    bob.receives.arm()
                while batch := bob.receives.poll(16):
                    got += len(batch)
                    for _ in batch:
                        bob.receive(bob.segment())
            self.runPolling(lambda: len(alice.sent) > turn, alice)  # noqa: B023 (called at once)
        self.assertEqual(got, sum(1 + turn % 3 for turn in range(100)))

    def test_lateSendEvent(self) -> None:
        """A send that has to wait for its receiver raises an event when it completes."""
        alice, bob = self.pair()
        alice.sends.arm()
        alice.send(inline=[b"done?"])
        self.runFor(0.02)
        self.assertFalse(self.rung(alice))
        bob.receive(bob.segment())
        self.runPolling(lambda: self.rung(alice), bob)
        self.assertEqual(list(alice.channel.takeEvents()), [alice.sends])
        self.runUntilCompleted(alice, sends=1)

    def test_solicited(self) -> None:
        """A queue armed for solicited completions raises no event for others."""
        alice, bob = self.pair()
        bob.receives.arm(solicitedOnly=True)
        for _ in range(2):
            bob.receive(bob.segment())
        alice.send(inline=[b"not urgent"])
        self.runUntilCompleted(alice, sends=1)
        self.assertFalse(self.rung(bob))
        alice.queuePair.postSend([SendRequest(2, Operation.SEND, inline=[b"urgent"], solicited=True)])
        self.runUntil(lambda: self.rung(bob))
        self.assertEqual(list(bob.channel.takeEvents()), [bob.receives])
        self.runUntilCompleted(bob, receives=2)

    def test_errorsAreSolicited(self) -> None:
        """A failure raises an event of a queue armed for solicited completions."""
        _alice, bob = self.pair()
        bob.receive(bob.segment())
        bob.receives.arm(solicitedOnly=True)
        bob.queuePair.modify(QPAttributes(state=QPState.ERR))
        if not self.quirks[1].failuresAreSolicited:
            self.runUntilCompleted(bob, receives=1)
            self.assertFalse(self.rung(bob))
            return
        self.runUntil(lambda: self.rung(bob))
        self.assertEqual(list(bob.channel.takeEvents()), [bob.receives])

    def test_peersEndWakes(self) -> None:
        """The failure of a request on a broken connection raises an event."""
        alice, bob = self.pair(settings=replace(PATIENT, timeout=8, retryCount=1))
        alice.sends.arm()
        alice.send(inline=[b"hello?"])
        bob.queuePair.close()
        self.runUntil(lambda: self.rung(alice))
        alice.channel.takeEvents()
        self.runUntilCompleted(alice, sends=1)
        self.assertEqual(alice.sent[0].status, Status.RETRY_EXC_ERR)

    def test_overrun(self) -> None:
        """A completion queue that overruns is in error, and so are its queue pairs."""
        alice = self.end(0, depth=4)
        alice.toInit()
        for index in range(20):
            alice.receive(identifier=index)
        alice.queuePair.modify(QPAttributes(state=QPState.ERR))
        self.runUntil(lambda: bool(alice.events))
        self.assertEqual(alice.events[0].kind, AsyncEventKind.CQ_ERROR)
        self.assertIs(alice.events[0].completionQueue, alice.receives)
        self.assertEqual(alice.queuePair.state, QPState.ERR)

    def test_unsubscribed(self) -> None:
        """A subscriber that has unsubscribed gets no more events."""
        alice, _bob = self.pair()
        other = self.end(0)
        alice.unsubscribe()
        alice.unsubscribe()
        alice.queuePair.modify(QPAttributes(state=QPState.SQD))
        self.runUntil(lambda: bool(other.events))
        self.assertEqual(alice.events, [])


class EndContract(TwoEnds):
    """Promises about the device itself, and about closing objects."""

    def test_provides(self) -> None:
        """All objects provide their interfaces."""
        end = self.end(0)
        handle = end.domain.createAddressHandle(end.destinationOf(end))
        self.addCleanup(handle.close)
        for thing, interface in (
            (end.device, IVerbsDevice),
            (end.domain, IProtectionDomain),
            (end.channel, ICompletionChannel),
            (end.sends, ICompletionQueue),
            (end.queuePair, IQueuePair),
            (end.memory, IMemoryRegion),
            (handle, IAddressHandle),
        ):
            self.assertTrue(interface.providedBy(thing), (thing, interface))

    def test_numbers(self) -> None:
        """Queue pairs have distinct numbers of 24 bits."""
        ends = [self.end(0) for _ in range(5)]
        numbers = {end.queuePair.number for end in ends}
        self.assertEqual(len(numbers), 5)
        self.assertTrue(all(1 < number < QPN(1 << 24) for number in numbers))

    def test_closeIsSilent(self) -> None:
        """Closing a queue pair creates no completion, and discards those that were not polled."""
        alice, bob = self.pair()
        alice.receive(alice.segment())
        bob.receive(bob.segment())
        alice.send(inline=[b"delivered, but not polled"])
        self.runPolling(lambda: bool(bob.received), bob)
        alice.send(inline=[b"never"])
        alice.queuePair.close()
        self.quiet(alice)
        self.assertRaises(RDMAError, alice.send, inline=[b""])

    def test_closeTwice(self) -> None:
        """All objects may be closed twice."""
        alice, bob = self.pair()
        handle = alice.domain.createAddressHandle(alice.destinationOf(bob))
        for thing in (
            alice.queuePair,
            alice.memory,
            alice.sends,
            alice.receives,
            alice.channel,
            handle,
            alice.domain,
            alice.device,
        ):
            thing.close()
            thing.close()

    def test_closeInAnyOrder(self) -> None:
        """All objects may be closed in the wrong order, in the middle of traffic, without an exception."""
        alice, bob = self.pair()
        alice.send(inline=[b"."])
        bob.receive(bob.segment())
        for thing in (
            alice.channel,
            alice.sends,
            alice.domain,
            alice.receives,
            alice.memory,
            alice.queuePair,
        ):
            thing.close()
        self.runFor(0.02)
        for device in self.devices:
            device.close()
        self.runFor(0.02)

    def test_closedDevice(self) -> None:
        """A closed device refuses to create objects."""
        device = self.devices[0]
        device.close()
        self.assertRaises(RDMAError, device.createProtectionDomain)
        self.assertRaises(RDMAError, device.createChannel)
