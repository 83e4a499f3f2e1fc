"""
Tests for L{txrdma.soft.rc.routes} and L{txrdma.soft.rc.roce}: ports that are down, and events.
"""

from __future__ import annotations

from typing import Any

from txrdma.iba.headers import BTH, Opcode
from txrdma.iba.roce import UDPFlow
from txrdma.iba.types import DEFAULT_PKEY
from txrdma.iba.verbs import AsyncEventKind, Operation, QPAttributes, QPState, Status
from txrdma.sim.network import Faults
from txrdma.test.support.soft.cores import reth
from txrdma.test.support.soft.pairs import connected, datagramEnds, End, INIT, QKEY, RTR
from txrdma.test.unit.soft.test_roce import ALICE, BOB, NetworkCase, portOf

ESTABLISHED = AsyncEventKind.COMMUNICATION_ESTABLISHED


class PortTests(NetworkCase):
    def setUp(self) -> None:
        super().setUp()
        self.alice, self.bob = connected(self.one, self.other)

    def test_queuedPacketsOfPortDownAreDropped(self) -> None:
        self.network.faults = Faults(congestion=1.0)
        self.alice.write(self.bob, 1, 0, 5000)
        portOf(self.one).setEnabled(False)
        self.network.faults = Faults()
        self.run_(0.05)
        self.assertEqual(self.network.sent, 0)
        portOf(self.one).setEnabled(True)
        self.run_()
        self.assertEqual(self.statuses(self.alice), [(1, Status.SUCCESS)])

    def test_datagramsOfPortDownAreLost(self) -> None:
        alice, bob = datagramEnds(self.one, self.other)
        portOf(self.one).setEnabled(False)
        bob.receive(1, 0, 100)
        alice.post(2, Operation.SEND, inline=[b"x"], **alice.to(bob))
        self.run_()
        self.assertEqual((self.statuses(alice), self.statuses(bob)), ([(2, Status.SUCCESS)], []))

    def test_closedPortStaysClosed(self) -> None:
        port = portOf(self.one)
        self.one.close()
        port.setEnabled(True)
        self.assertFalse(port.isEnabled)


class EstablishedTests(NetworkCase):
    """The first message may arrive before a queue pair is ready to send (IBA 11.6.3.1)."""

    def halfway(self, **more: Any) -> tuple[End, End]:
        """Return Alice in RTS and Bob in RTR."""
        alice, bob = End(self.one), End(self.other)
        bob.qp.modify(INIT)
        attributes = {name: getattr(RTR, name) for name in RTR.given()}
        bob.qp.modify(QPAttributes(**attributes, address=alice.vector(), destinationQPN=alice.qp.number))
        alice.join(bob)
        return alice, bob

    def kinds(self, end: End) -> list[AsyncEventKind]:
        return [event.kind for event in end.events]

    def test_messageWithoutReceiveIsNotReported(self) -> None:
        alice, bob = self.halfway()
        alice.post(1, Operation.SEND, inline=[b"x"])
        self.run_(0.01)
        self.assertEqual(self.kinds(bob), [])
        bob.receive(1, 0, 10)
        self.run_()
        self.assertEqual(self.kinds(bob), [ESTABLISHED])


class RouteTests(NetworkCase):
    """Further properties of connections and datagrams."""

    def test_completionsPrecedeFlush(self) -> None:
        alice, bob = connected(self.one, self.other)
        self.failWhileReceiving(alice, bob)

    def test_datagramCompletionsPrecedeFlush(self) -> None:
        alice, bob = datagramEnds(self.one, self.other)
        self.failWhileReceiving(alice, bob, **alice.to(bob))

    def failWhileReceiving(self, alice: End, bob: End, **more: Any) -> None:
        """Fail Bob's queue pair between a packet and its processing."""
        bob.receive(1, 0, 100)
        bob.receive(2, 0, 100)
        carrier: Any = portOf(self.other)._carrier  # a simulated one
        alice.post(1, Operation.SEND, inline=[b"x"], **more)
        ended = carrier._batchEnded

        def first() -> None:
            bob.qp.modify(QPAttributes(state=QPState.ERR))
            ended()

        carrier._batchEnded = first  # called between the packet and its processing
        self.run_(0.01)
        self.assertEqual(self.statuses(bob), [(1, Status.SUCCESS), (2, Status.WR_FLUSH_ERR)])

    def test_anyUDPPortOfPeerIsAccepted(self) -> None:
        alice, bob = connected(self.one, self.other)
        kernel = self.network.carrier(ALICE, 54321)
        bth = BTH(
            opcode=Opcode.RC_RDMA_WRITE_ONLY, pkey=DEFAULT_PKEY, destination=bob.qp.number, psn=0xFFFFF0
        )
        packet = bth.encode() + reth(bob.region.address, bob.region.rkey, 4) + b"here"
        datagram = UDPFlow(ALICE, kernel.port, BOB, 4791).seal(packet)
        kernel.send(memoryview(datagram), len(datagram), (BOB, 4791))
        self.run_()
        self.assertEqual(bytes(bob.region.view[:4]), b"here")

    def test_addressChangesInSQD(self) -> None:
        [third] = self.devices("10.0.0.3")
        alice, bob = connected(self.one, self.other)
        carol = End(third)
        carol.join(alice, rqPSN=0xFFFFF0)
        routes = portOf(third)._routes
        routes[bob.qp.number] = routes[carol.qp.number]  # stands for the same queue pair on another host
        alice.qp.modify(QPAttributes(state=QPState.SQD))
        alice.qp.modify(QPAttributes(state=QPState.SQD, address=carol.vector()))
        alice.qp.modify(QPAttributes(state=QPState.RTS))
        alice.write(carol, 1, 0, 10)
        self.run_()
        self.assertEqual(self.statuses(alice), [(1, Status.SUCCESS)])
        self.assertEqual(portOf(self.other).counters.packetsReceived, 0)

    def test_wideNumbersAreTruncatedToFields(self) -> None:
        alice, bob = datagramEnds(self.one, self.other)
        bob.receive(1, 0, 100)
        wide = {**alice.to(bob), "remoteQPN": bob.qp.number | 1 << 24, "remoteQKey": QKEY | 1 << 33}
        alice.post(2, Operation.SEND_WITH_IMMEDIATE, inline=[b"x"], immediate=-1, **wide)
        self.run_()
        [completion] = bob.poll()
        self.assertEqual((completion.status, completion.immediate), (Status.SUCCESS, 0xFFFFFFFF))
