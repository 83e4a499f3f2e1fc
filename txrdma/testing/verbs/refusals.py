"""
Requests that every device refuses immediately and without effect, as the Linux kernel does.

Follows InfiniBand Architecture vol. 1, 10.3.1 and 11.2.4.2 (states and their attributes), 11.4.1 (posting)
and 11.2.1.2 (limits of a device).
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_uint64
from dataclasses import fields, replace
from typing import Any

from txrdma.error import InvalidRequest, RDMAError, ResourceExhausted
from txrdma.iba.types import MTU, QPN
from txrdma.iba.verbs import (
    Access,
    AddressVector,
    Capacity,
    Operation,
    QPAttributes,
    QPKind,
    QPState,
    ReceiveRequest,
    SendRequest,
    Status,
)
from txrdma.testing.verbs.ends import End, EVERYTHING, PATIENT, QKEY, TwoEnds, USUAL


class TransitionContract(TwoEnds):
    """Promises about the attributes that each transition requires and accepts."""

    def initially(self, end: End) -> QPAttributes:
        """Return the attributes that move the end's queue pair from RESET to INIT."""
        initial = QPAttributes(state=QPState.INIT, pkeyIndex=0, port=end.port)
        return (
            replace(initial, qkey=QKEY)
            if end.queuePair.kind is QPKind.UD
            else replace(initial, access=EVERYTHING)
        )

    def towards(self, end: End, peer: End) -> QPAttributes:
        """Return the attributes that move a connection's queue pair from INIT to RTR."""
        mtu = min(each.device.portAttributes(each.port).activeMTU for each in (end, peer))
        return QPAttributes(
            state=QPState.RTR,
            address=end.destinationOf(peer),
            pathMTU=mtu,
            destinationQPN=peer.queuePair.number,
            rqPSN=1,
            maxDestRDAtomic=1,
            minRNRTimer=1,
        )

    SENDING = QPAttributes(state=QPState.RTS, sqPSN=1, timeout=14, retryCount=7, rnrRetry=7, maxRDAtomic=1)
    """The attributes that move a connection's queue pair from RTR to RTS."""

    def refuses(self, end: End, attributes: QPAttributes) -> None:
        """Assert that the queue pair refuses these attributes, and that nothing has changed."""
        before = end.queuePair.query()
        self.assertRaises(InvalidRequest, end.queuePair.modify, attributes)
        self.assertEqual(end.queuePair.query(), before)

    def refusesWithout(self, end: End, attributes: QPAttributes) -> None:
        """Assert that each of the attributes, except the state, is required."""
        for name in sorted(attributes.given() - {"state"}):
            self.refuses(end, replace(attributes, **{name: None}))

    def refusesWith(self, end: End, attributes: QPAttributes, *wrong: tuple[str, object]) -> None:
        """Assert that each of these attributes is refused."""
        for name, value in wrong:
            self.refuses(end, replace(attributes, **{name: value}))  # type: ignore[arg-type]  # by name

    def test_attributesOfRC(self) -> None:
        """A connection requires all its attributes at each step, and accepts no others."""
        alice, bob = self.end(0), self.end(1)
        step = self.initially(alice)
        self.refusesWithout(alice, step)
        self.refusesWith(alice, step, ("qkey", QKEY), ("timeout", 14), ("address", alice.destinationOf(bob)))
        alice.queuePair.modify(step)
        step = self.towards(alice, bob)
        self.refusesWithout(alice, step)
        self.refusesWith(alice, step, ("qkey", QKEY), ("timeout", 14), ("sqPSN", 1), ("port", 1))
        alice.queuePair.modify(step)
        step = self.SENDING
        self.refusesWithout(alice, step)
        self.refusesWith(
            alice,
            step,
            ("qkey", QKEY),
            ("rqPSN", 1),
            ("destinationQPN", bob.queuePair.number),
            ("pathMTU", MTU(1)),
        )
        alice.queuePair.modify(step)
        self.assertEqual(alice.queuePair.state, QPState.RTS)

    def test_attributesOfUD(self) -> None:
        """A datagram queue pair requires all its attributes at each step, and accepts no others."""
        alice = self.end(0, QPKind.UD)
        step = self.initially(alice)
        self.refusesWithout(alice, step)
        self.refusesWith(alice, step, ("access", EVERYTHING), ("sqPSN", 1))
        alice.queuePair.modify(step)
        step = QPAttributes(state=QPState.RTR)
        self.refusesWith(
            alice, step, ("address", alice.destinationOf(alice)), ("rqPSN", 1), ("pathMTU", MTU(1))
        )
        alice.queuePair.modify(step)
        step = QPAttributes(state=QPState.RTS, sqPSN=1)
        self.refusesWithout(alice, step)
        self.refusesWith(alice, step, ("timeout", 14), ("maxRDAtomic", 1))
        alice.queuePair.modify(step)
        self.assertEqual(alice.queuePair.state, QPState.RTS)

    def test_noWay(self) -> None:
        """Transitions that the state diagram of queue pairs lacks are refused."""
        alice, bob = self.end(0), self.end(1)
        self.refuses(alice, replace(self.towards(alice, bob), access=EVERYTHING))
        self.refuses(alice, self.SENDING)
        self.refuses(alice, QPAttributes(state=QPState.SQD))
        alice.queuePair.modify(self.initially(alice))
        self.refuses(alice, self.SENDING)
        self.refuses(alice, QPAttributes(state=QPState.SQD))
        self.refuses(alice, QPAttributes(state=QPState.SQE))
        alice.queuePair.modify(self.towards(alice, bob))
        self.refuses(alice, self.initially(alice))
        self.refuses(alice, self.towards(alice, bob))
        alice.queuePair.modify(self.SENDING)
        self.refuses(alice, self.initially(alice))
        self.refuses(alice, self.towards(alice, bob))
        alice.queuePair.modify(QPAttributes(state=QPState.ERR))
        for step in (self.initially(alice), self.towards(alice, bob), self.SENDING):
            self.refuses(alice, step)
        alice.queuePair.modify(QPAttributes(state=QPState.RESET))
        alice.queuePair.modify(self.initially(alice))

    def test_wrongCurrentState(self) -> None:
        """A transition that names a wrong current state is refused, and changes nothing."""
        alice, bob = self.end(0), self.end(1)
        alice.queuePair.modify(self.initially(alice))
        alice.queuePair.modify(self.towards(alice, bob))
        self.refusesWith(alice, self.SENDING, ("currentState", QPState.SQD), ("currentState", QPState.RTS))

    def test_nothingOfTheKind(self) -> None:
        """A port, P_Key or GID that does not exist is refused."""
        alice, bob = self.end(0), self.end(1)
        step = self.initially(alice)
        self.refusesWith(
            alice,
            step,
            ("port", 0),
            ("port", alice.device.portCount + 1),
            ("port", 255),
            ("pkeyIndex", 60_000),
        )
        alice.queuePair.modify(step)
        step = self.towards(alice, bob)
        address = alice.destinationOf(bob)
        for wrong in (
            replace(address, sgidIndex=len(alice.device.gids(alice.port))),
            replace(address, sgidIndex=200),
            replace(address, port=alice.device.portCount + 1),
            replace(address, port=0),
        ):
            self.refuses(alice, replace(step, address=wrong))
            self.assertRaises(InvalidRequest, alice.domain.createAddressHandle, wrong)
        self.refusesWith(alice, step, ("pkeyIndex", 60_000))
        alice.queuePair.modify(step)

    def test_outOfRange(self) -> None:
        """Values that exceed their field or the device's limits are refused."""
        alice, bob = self.end(0), self.end(1)
        limits = alice.device.limits
        alice.queuePair.modify(self.initially(alice))
        step = self.towards(alice, bob)
        self.refusesWith(
            alice,
            step,
            ("rqPSN", 1 << 24),
            ("destinationQPN", QPN(1 << 24)),
            ("minRNRTimer", 32),
            ("maxDestRDAtomic", limits.maxDestRDAtomic + 1),
            ("maxDestRDAtomic", -1),
            ("pathMTU", 0),
            ("pathMTU", -1),
            ("access", 1 << 10),
            ("state", 7),
        )
        active = alice.device.portAttributes(alice.port).activeMTU
        self.refusesWith(alice, step, *(("pathMTU", mtu) for mtu in MTU if mtu > active))
        alice.queuePair.modify(step)
        self.refusesWith(
            alice,
            self.SENDING,
            ("sqPSN", 1 << 24),
            ("timeout", 32),
            ("retryCount", 8),
            ("rnrRetry", 8),
            ("maxRDAtomic", limits.maxRDAtomic + 1),
            ("maxRDAtomic", -1),
        )
        alice.queuePair.modify(self.SENDING)
        self.assertEqual(alice.queuePair.query().maxRDAtomic, 1)


class PostingContract(TwoEnds):
    """Promises about requests of a wrong form, or in a wrong state: the call is refused and posts nothing."""

    def refusesToSend(self, end: End, *requests: SendRequest) -> None:
        """Assert that each of these requests is refused, together with a valid one posted before it."""
        good = SendRequest(77, Operation.SEND, inline=[b"good"])
        for request in requests:
            self.assertRaises(InvalidRequest, end.queuePair.postSend, [good, request])

    def test_states(self) -> None:
        """A queue pair refuses sends before RTS and receives before INIT, and does not retain them."""
        alice, bob = self.end(0), self.end(1)
        refused = SendRequest(1, Operation.SEND, inline=[b"refused"])
        for step in (lambda: None, lambda: alice.toInit(), lambda: alice.toRTR(bob)):
            step()
            self.assertRaises(InvalidRequest, alice.queuePair.postSend, [refused])
        bobs = ReceiveRequest(1, [bob.segment()])
        self.assertRaises(InvalidRequest, bob.queuePair.postReceive, [bobs])
        bob.toInit()
        bob.receive(bob.segment(), identifier=2)
        bob.toRTR(alice)
        bob.toRTS()
        alice.toRTS()
        alice.send(inline=[b"proper"], identifier=2)
        self.runUntilBothCompleted(alice, bob)
        self.assertEqual((alice.sent[0].identifier, bob.received[0].identifier), (2, 2))
        self.assertEqual(bytes(bob.memory.view[:8]), b"proper\0\0")
        self.quiet(alice, bob)

    def test_datagramStates(self) -> None:
        """A datagram queue pair refuses sends before RTS, and receives before INIT."""
        alice = self.end(0, QPKind.UD)
        handle = alice.domain.createAddressHandle(alice.destinationOf(alice))
        self.addCleanup(handle.close)
        request = SendRequest(1, Operation.SEND, inline=[b"."], address=handle)
        self.assertRaises(InvalidRequest, alice.receive, alice.segment())
        for step in (lambda: None, alice.toInit, lambda: alice.toRTR(alice)):
            step()
            self.assertRaises(InvalidRequest, alice.queuePair.postSend, [request])

    def test_inlineTooLong(self) -> None:
        """Inline data up to the queue pair's capacity is accepted, and longer data is refused."""
        alice, bob = self.pair(settings=PATIENT)
        most = alice.queuePair.capacity.maxInline
        piece = bytes(min(most, 1 << 20))  # a device may accept 2 GiB, so one piece is repeated
        pieces = [piece] * (most // len(piece)) + [bytes(most % len(piece))]
        self.refusesToSend(
            alice,
            SendRequest(1, Operation.SEND, inline=[*pieces, b"."]),
            SendRequest(1, Operation.RDMA_WRITE, inline=[*pieces, b"."], rkey=bob.memory.rkey),
        )
        if most <= 1 << 16:
            bob.receive(bob.segment(0, 1 << 16))
            alice.send(inline=pieces)
            self.runUntilCompleted(bob, receives=1)
            self.assertEqual(bob.received[0].length, most)

    def test_inlineForm(self) -> None:
        """Inline data may be views of words, whose bytes are counted, but not text."""
        alice, bob = self.end(0, capacity=replace(USUAL, maxInline=32)), self.end(1)
        self.connect(alice, bob)
        most = alice.queuePair.capacity.maxInline
        wrong: tuple[Any, ...] = ("text", 5)
        self.refusesToSend(
            alice,
            *(SendRequest(1, Operation.SEND, inline=[b"a", piece]) for piece in wrong),
            *(SendRequest(1, Operation.SEND, inline=[piece]) for piece in wrong),
            SendRequest(1, Operation.SEND, inline=[memoryview(bytes(-(-most // 8) * 8 + 8)).cast("Q")]),
        )
        number: Any = c_uint64.from_buffer_copy(b"01234567")  # without a length
        for count, inline in enumerate(([number], [memoryview(b"01234567").cast("I")]), 1):
            bob.receive(bob.segment())
            alice.send(inline=inline)
            self.runUntilBothCompleted(alice, bob, count)
            self.assertEqual((bob.received[-1].length, bytes(bob.memory.view[:8])), (8, b"01234567"))

    def test_form(self) -> None:
        """Too many segments, segments with inline data, and reads to inline data are refused as a whole."""
        alice, bob = self.pair()
        capacity = alice.queuePair.capacity
        many = [alice.segment(0, 1)] * (capacity.maxSendSegments + 1)
        for operation in (Operation.SEND, Operation.RDMA_WRITE, Operation.RDMA_READ):
            self.refusesToSend(alice, SendRequest(1, operation, many, rkey=bob.memory.rkey))
        self.refusesToSend(
            alice,
            SendRequest(1, Operation.SEND, [alice.segment()], inline=[b"both"]),
            SendRequest(1, Operation.RDMA_READ, inline=[b"."], rkey=bob.memory.rkey),
        )
        wrong = ReceiveRequest(1, [bob.segment(0, 1)] * (bob.queuePair.capacity.maxReceiveSegments + 1))
        self.assertRaises(InvalidRequest, bob.queuePair.postReceive, [ReceiveRequest(2), wrong])
        bob.receive(bob.segment(), identifier=3)
        alice.send(inline=[b"good"])
        self.runUntilBothCompleted(alice, bob)
        self.assertEqual((bob.received[0].identifier, bob.received[0].status), (3, Status.SUCCESS))

    def test_datagramForm(self) -> None:
        """A datagram queue pair accepts only sends, and only with an address."""
        alice = self.end(0, QPKind.UD)
        self.connect(alice, self.end(1, QPKind.UD))
        handle = alice.domain.createAddressHandle(alice.destinationOf(alice))
        self.addCleanup(handle.close)
        for operation in Operation:
            if operation not in (Operation.SEND, Operation.SEND_WITH_IMMEDIATE):
                wrong = SendRequest(1, operation, [alice.segment(0, 8)], address=handle)
                self.assertRaises(InvalidRequest, alice.queuePair.postSend, [wrong])
        text: Any = "text"
        for wrong in (
            SendRequest(1, Operation.SEND, inline=[b"to whom?"]),
            SendRequest(1, Operation.SEND, inline=[text], address=handle),
        ):
            good = SendRequest(1, Operation.SEND, inline=[b"good"], address=handle)
            self.assertRaises(InvalidRequest, alice.queuePair.postSend, [good, wrong])
        self.quiet(alice)

    def test_otherAddressHandles(self) -> None:
        """Datagrams to closed address handles, and to those of another domain, are refused (IBA 10.2.2.2)."""
        alice, bob = self.end(0, QPKind.UD), self.end(1, QPKind.UD)
        self.connect(alice, bob)
        there = alice.destinationOf(bob)
        closed, right = (alice.domain.createAddressHandle(there) for _ in range(2))
        closed.close()
        self.addCleanup(right.close)
        foreign = self.end(0, QPKind.UD).domain.createAddressHandle(there)
        self.addCleanup(foreign.close)
        to: dict[str, Any] = {"remoteQPN": bob.queuePair.number, "remoteQKey": QKEY}
        bob.receive(bob.segment())
        good = SendRequest(1, Operation.SEND, inline=[b"good"], address=right, **to)
        for handle in (closed, foreign):
            for operation in (Operation.SEND, Operation.SEND_WITH_IMMEDIATE):
                wrong = replace(good, operation=operation, address=handle)
                self.assertRaises(InvalidRequest, alice.queuePair.postSend, [good, wrong])
        alice.queuePair.postSend([good])
        self.runUntilBothCompleted(alice, bob)
        self.quiet(alice, bob)

    def test_closedQueuePair(self) -> None:
        """A closed queue pair refuses requests and transitions."""
        alice, _bob = self.pair()
        alice.queuePair.close()
        posts: tuple[Callable[[], None], ...] = (
            lambda: alice.send(inline=[b""]),
            lambda: alice.receive(),
            lambda: alice.queuePair.modify(QPAttributes(state=QPState.RESET)),
        )
        for post in posts:
            self.assertRaises(RDMAError, post)


class LimitContract(TwoEnds):
    """Promises about limits: objects that exceed those of the device are refused."""

    def test_capacityLimits(self) -> None:
        """A queue pair with a capacity below zero or beyond the device's limits is refused."""
        end, limits = self.end(0), self.devices[0].limits
        for name, most in (
            ("maxSend", limits.maxQueuePairRequests),
            ("maxReceive", limits.maxQueuePairRequests),
            ("maxSendSegments", limits.maxSegments),
            ("maxReceiveSegments", limits.maxSegments),
            ("maxInline", limits.maxInline),
        ):
            for wrong in (most + 1, -1):
                capacity = replace(Capacity(), **{name: wrong})
                self.assertRaises(
                    InvalidRequest, end.domain.createQueuePair, QPKind.RC, end.sends, end.receives, capacity
                )
        self.assertGreaterEqual(end.queuePair.capacity.maxInline, 0)

    def test_queueLimits(self) -> None:
        """A completion queue with a depth below one or beyond the device's limit is refused."""
        end = self.end(0)
        for depth in (0, -1, end.device.limits.maxCompletionQueueDepth + 1):
            self.assertRaises(InvalidRequest, end.device.createCompletionQueue, depth, end.channel)

    def test_memoryLimits(self) -> None:
        """A region with a length below one or beyond the device's limit is refused."""
        end = self.end(0)
        for length in (0, -1):
            self.assertRaises(InvalidRequest, end.domain.allocateMemory, length, EVERYTHING)
        tooLong = end.device.limits.maxMemoryRegionLength + 1
        self.assertRaises((InvalidRequest, ResourceExhausted), end.domain.allocateMemory, tooLong, EVERYTHING)

    def test_rights(self) -> None:
        """The remote write and atomic rights are refused without the local write right."""
        end = self.end(0)
        for access in (
            Access.REMOTE_WRITE,
            Access.REMOTE_ATOMIC,
            Access.REMOTE_WRITE | Access.REMOTE_READ,
            Access.REMOTE_ATOMIC | Access.REMOTE_READ,
        ):
            self.assertRaises(InvalidRequest, end.domain.allocateMemory, 64, access)
            self.assertRaises(InvalidRequest, end.domain.registerMemory, memoryview(bytearray(64)), access)
        region = end.domain.allocateMemory(64, Access.REMOTE_READ)
        region.close()

    def test_notForRegistering(self) -> None:
        """Memory that is read-only, not contiguous or empty cannot be registered."""
        domain = self.end(0).domain
        for view in (memoryview(b"read only"), memoryview(bytearray(10))[::2], memoryview(bytearray(0))):
            self.assertRaises(InvalidRequest, domain.registerMemory, view, EVERYTHING)

    def test_foreigners(self) -> None:
        """Queues and channels of another device are refused."""
        if self.devices[0] is self.devices[1]:
            return
        alice, bob = self.end(0), self.end(1)
        self.assertRaises(
            InvalidRequest, alice.domain.createQueuePair, QPKind.RC, bob.sends, alice.receives, Capacity()
        )
        self.assertRaises(
            InvalidRequest, alice.domain.createQueuePair, QPKind.RC, alice.sends, bob.receives, Capacity()
        )
        self.assertRaises(InvalidRequest, alice.device.createCompletionQueue, 10, bob.channel)

    def test_addressOutOfRange(self) -> None:
        """Address vectors with numbers that do not fit into their fields are refused, also by C{modify}."""
        alice, bob = self.end(0), self.end(1)
        alice.toInit()
        right = alice.destinationOf(bob)
        for name, value in (
            ("trafficClass", 256),
            ("trafficClass", -1),
            ("hopLimit", 256),
            ("flowLabel", 1 << 20),
            ("serviceLevel", 16),
            ("sourcePathBits", 128),
        ):
            wrong = replace(right, **{name: value})  # type: ignore[arg-type]  # by name
            self.assertRaises(InvalidRequest, alice.domain.createAddressHandle, wrong)
            self.assertRaises(InvalidRequest, alice.toRTR, bob, address=wrong)
        alice.toRTR(bob)

    def test_noSuchAddress(self) -> None:
        """An address handle with the zero GID is refused."""
        alice = self.end(0)
        address = alice.destinationOf(alice)
        nowhere = AddressVector(type(address.dgid)(bytes(16)), sgidIndex=address.sgidIndex)
        self.assertRaises(InvalidRequest, alice.domain.createAddressHandle, nowhere)

    def test_limitsAreReported(self) -> None:
        """Every limit is above zero, and a queue pair with the largest number of segments can be created."""
        limits = self.devices[0].limits
        for field in fields(limits):
            self.assertGreater(getattr(limits, field.name), 0, field.name)
        end = self.end(0)
        most = Capacity(
            maxSend=16,
            maxReceive=16,
            maxSendSegments=limits.maxSegments,
            maxReceiveSegments=limits.maxSegments,
        )
        queuePair = end.domain.createQueuePair(QPKind.RC, end.sends, end.receives, most)
        self.assertGreaterEqual(queuePair.capacity.maxSendSegments, limits.maxSegments)
        queuePair.close()
