"""
The rendezvous of devices in shared memory, with processes that break its rules.
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Sequence
from dataclasses import replace
from select import select
from struct import Struct
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

from hypothesis import given, settings
from hypothesis import strategies as st

from twisted.logger import capturedLogs, formatEvent

from txrdma.iba.types import GID, QPN, RKey
from txrdma.iba.verbs import Access, AddressVector, Operation, QPState, Status
from txrdma.interfaces import IDirectLane
from txrdma.soft.core.netdev import softMAC
from txrdma.soft.device import openSoftDevice
from txrdma.soft.shared import _doorbells, _remote, _rendezvous, peerdevice, sharedmemoryport, unixpackets
from txrdma.soft.shared._layout import HEADER_BYTES
from txrdma.soft.shared._rendezvous import (
    AccessReply,
    AccessRequest,
    Join,
    LAYOUTS,
    LONGEST,
    makeBox,
    mapBox,
    PairNotice,
    Reach,
    RegionReply,
    RegionRequest,
    RendezvousKind,
    rendezvousName,
    VERSION,
)
from txrdma.test.support import slow
from txrdma.test.support.soft.neighbours import Added, RealCase
from txrdma.test.support.soft.pairs import End, INIT, RTR
from txrdma.test.support.soft.strangers import connectedTo, doorbell, hello, isClosed, sendTo
from txrdma.unix import sockets as unixsockets
from txrdma.unix.mapping import SIZE_SEALS

LOOPBACK = "127.0.0.1"


class StrangerCase(RealCase):
    """Connected devices, and another one that a stranger connects to."""

    def setUp(self) -> None:
        super().setUp()
        self.good = self.pair()
        self.device = self.open()
        self.check()
        self.added = Added()

    def check(self) -> None:
        """Check that other devices still work."""
        one, other = self.good
        other.qp.postReceive([])
        one.write(other, 1, 0, 64, there=128)
        self.assertEqual([c.status for c in self.take(one, 1)], [Status.SUCCESS])


class StrangerTests(StrangerCase):
    """Processes that connect to the rendezvous and break the rules."""

    def come(self, greet: bool = True) -> socket.socket:
        sock = connectedTo(self.device, hello() if greet else b"")
        self.addCleanup(sock.close)
        return sock

    def refused(self, sock: socket.socket) -> None:
        """Assert that the process was disconnected, nothing of it remains, and other devices work."""
        self.runUntil(lambda: isClosed(sock))
        sock.close()
        self.check()
        self.assertTrue(self.added.isNothing())

    def invitation(self, box: int, *doorbells: int) -> socket.socket:
        """Send an invitation with a box and these doorbells."""
        sock = self.come()
        for number, descriptor in enumerate(doorbells, 1):
            sendTo(sock, doorbell(number), [descriptor])
        sendTo(sock, self.join().encode(), [box])
        for descriptor in (box, *doorbells):
            os.close(descriptor)
        return sock

    def join(self, number: int = 6, source: int = 5) -> Join:
        """Return an invitation of a local queue pair, with the doorbells 1 and 2."""
        kind, destination = RendezvousKind.JOIN, QPN(number)
        return Join(kind=kind, source=QPN(source), destination=destination, receives=1, sends=2)

    def box(self) -> int:
        descriptor, mapping = makeBox(4096)
        mapping.close()
        return descriptor

    def bell(self) -> int:
        return os.eventfd(0)

    def test_invalidPrematureOrLateMessageDisconnects(self) -> None:
        leave = PairNotice(kind=RendezvousKind.LEAVE, source=QPN(1), destination=QPN(2))
        for what, greet, message in (
            ("garbage", True, b"\xff" * 100),
            ("beyond the maximum length", True, b"\1" * (LONGEST + 100)),
            ("before the greeting", False, leave.encode()),
            ("of another version", False, hello(version=VERSION + 1)),
            ("a second greeting", True, hello()),
        ):
            with self.subTest(what):
                sock = self.come(greet)
                sendTo(sock, message)
                self.refused(sock)

    def test_invitationAndDoorbellNeedOneDescriptor(self) -> None:
        for message in (self.join().encode(), doorbell(1)):
            for number in (0, 2, 20):
                with self.subTest(message=message, descriptors=number):
                    sock, given = self.come(), [self.bell() for _ in range(number)]
                    sendTo(sock, message, given)
                    for each in given:
                        os.close(each)
                    self.refused(sock)

    def test_secondDoorbellWithSameNumberIsRefused(self) -> None:
        sock, bell = self.come(), self.bell()
        for _ in range(2):
            sendTo(sock, doorbell(1), [bell])
        os.close(bell)
        self.refused(sock)

    def test_doorbellsBeyondLimitAreRefused(self) -> None:
        self.patch(_doorbells, "MOST", 20)
        sock, bell = self.come(), self.bell()
        for number in range(21):
            sendTo(sock, doorbell(number), [bell])
        os.close(bell)
        self.refused(sock)

    def test_invitationWithUnknownDoorbellsIsRefusedAlone(self) -> None:
        sock = self.come()
        for number in (1, 2):
            sendTo(sock, doorbell(number, RendezvousKind.DOORBELL_CLOSED))
        box = self.box()
        sendTo(sock, self.join().encode(), [box])
        os.close(box)
        refusal = PairNotice(kind=RendezvousKind.LEAVE, source=QPN(6), destination=QPN(5)).encode()
        self.runUntil(lambda: self.isAccepted(sock, refusal))
        self.assertEqual(self.added.mappings(), 0)
        sock.close()
        self.runUntil(self.added.isNothing)

    def isAccepted(self, sock: socket.socket, message: bytes) -> bool:
        try:
            return sock.recv(1 << 17, socket.MSG_DONTWAIT).startswith(message)
        except BlockingIOError:
            return False

    def test_withdrawnDoorbellIsClosedWithItsLastUse(self) -> None:
        sock = self.invitation(self.box(), self.bell(), self.bell())
        self.runUntil(lambda: self.added.mappings() == 1)
        for number in (1, 2):
            sendTo(sock, doorbell(number, RendezvousKind.DOORBELL_CLOSED))
        leave = PairNotice(kind=RendezvousKind.LEAVE, source=QPN(5), destination=QPN(6)).encode()
        sendTo(sock, leave)
        self.runUntil(lambda: self.added.mappings() == 0)
        self.assertEqual(self.added.descriptors(), 2)  # both ends of the connection
        sock.close()
        self.runUntil(lambda: self.added.descriptors() == 0)

    def test_processWithAnothersNameIsRefusedAndHarmless(self) -> None:
        one, other = self.good
        second, self.device = one.device, other.device
        self.patch(unixpackets, "peerOf", lambda sock: unixsockets.peerOf(sock)._replace(pid=1))
        sock = self.come(greet=False)
        sock.send(hello(second.address, second.port))
        self.runUntil(lambda: isClosed(sock))
        self.check()

    def test_processMayHaveNameOfEndedOne(self) -> None:
        port = cast(Any, self.device.routes[0])
        sock = self.come()
        self.runUntil(lambda: port._known((LOOPBACK, 9)))
        for number in range(100):  # messages that this process has not read, perhaps because it was stopped
            sendTo(sock, doorbell(number, RendezvousKind.DOORBELL_CLOSED))
        sock.recv(LONGEST)  # else its end would be found before the messages
        sock.close()
        self.patch(unixpackets, "peerOf", lambda sock: unixsockets.peerOf(sock)._replace(pid=1))
        self.come()
        port._listener.doRead()
        line = list(port._links)[-1]
        line.receiveNow()
        self.assertFalse(line.isClosed)

    def test_processOfUnknownNumberMayHaveNameOfEndedOne(self) -> None:
        """All processes outside of the PID namespace have PID 0."""
        self.patch(unixpackets, "peerOf", lambda sock: unixsockets.peerOf(sock)._replace(pid=0))
        port = cast(Any, self.device.routes[0])
        sock = self.come()
        self.runUntil(lambda: port._known((LOOPBACK, 9)))
        for number in range(100):
            sendTo(sock, doorbell(number, RendezvousKind.DOORBELL_CLOSED))
        sock.recv(LONGEST)
        sock.close()
        self.come()
        port._listener.doRead()
        line = list(port._links)[-1]
        line.receiveNow()
        for _ in range(10):
            self.reactor.iterate(0)
        self.assertFalse(line.isClosed)
        self.assertEqual(port._known((LOOPBACK, 9)).lines, [line])

    def test_greetingWithOtherNameIsRefused(self) -> None:
        closed, end = self.open(), End(self.device)
        closed.close()
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.addCleanup(listening.close)
        listening.bind(rendezvousName(LOOPBACK, closed.port))
        listening.listen()
        end.qp.modify(INIT)
        address = AddressVector(GID.fromIP(LOOPBACK), dmac=softMAC(LOOPBACK, closed.port))
        end.qp.modify(replace(RTR, address=address, destinationQPN=QPN(5)))
        sock, _ = listening.accept()
        self.addCleanup(sock.close)
        sock.send(hello(port=9))
        self.runUntil(lambda: isClosed(sock))

    def test_allConnectionsToLostProcessAreForgotten(self) -> None:
        one, other = self.good
        peer = cast(Any, one.qp)._route._services._peer
        port, device = peer._port, cast(Any, other.device)
        sock = connectedTo(cast(Any, one.device))
        self.addCleanup(sock.close)
        before = len(peer.lines)
        sock.send(hello(device.address, device.port))
        self.runUntil(lambda: len(peer.lines) > before)
        device.close()
        self.runUntil(lambda: peer.isLost)
        self.assertEqual(port._links, {})

    def test_unrequestedRegionsAreMappedUpToLimit(self) -> None:
        one, other = self.good
        sender, receiver = (cast(Any, end.qp)._route._services for end in (one, other))
        request = RegionRequest(
            kind=RendezvousKind.REGION_REQUEST,
            source=other.qp.number,
            destination=one.qp.number,
            rkey=one.region.rkey,
        )
        before = set(receiver._mappings)
        self.assertNotIn(one.region.rkey, before)
        answers: list[bytes] = []

        def answer(message: bytes, descriptors: Sequence[int]) -> None:
            answers.append(message)
            receiver.regionReceived(RegionReply.decode(message), list(descriptors))

        regions = receiver.lane._remote.regions
        others = {RKey(number): None for number in range(_remote.MOST_OFFERED) if number != one.region.rkey}
        regions.update(others)  # as if the peer had offered so many
        sender._peer.regionRequested(request, answer)
        self.assertEqual(RegionReply.decode(answers[0]).reach, Reach.MAPPED)
        self.assertEqual(set(receiver._mappings), before)
        self.assertTrue(self.added.isNothing())
        for rkey in others:
            del regions[rkey]
        for _ in range(2):
            IDirectLane(one.qp).offer(one.region.rkey)
        self.runUntil(lambda: len(receiver._mappings) > len(before))
        self.assertEqual(set(receiver._mappings), before | {one.region.rkey})
        self.assertEqual(self.added.mappings(), 1)
        self.check()

    def test_memoryIsGivenOnlyToEntitledPeer(self) -> None:
        one, other = self.good
        pair = cast(Any, one.qp)
        private, readable = (
            one.domain.allocateMemory(4096, Access.LOCAL_WRITE | each)
            for each in (Access(0), Access.REMOTE_READ)
        )
        for region, changes, reach in (
            (private, {}, Reach.REFUSED),
            (readable, {}, Reach.MAPPED),
            (readable, {"access": Access.REMOTE_WRITE}, Reach.REFUSED),
            (readable, {"maxDestRDAtomic": 0}, Reach.REFUSED),
        ):
            usual, pair.attributes = pair.attributes, replace(pair.attributes, **cast(Any, changes))
            answers: list[tuple[bytes, int]] = []

            def answer(message: bytes, descriptors: Sequence[int]) -> None:
                answers.append((message, len(descriptors)))  # noqa: B023

            peer, key = pair._route._services._peer, region.rkey
            names: Any = {"source": other.qp.number, "destination": one.qp.number, "rkey": key}
            peer.regionRequested(RegionRequest(kind=RendezvousKind.REGION_REQUEST, **names), answer)
            access = AccessRequest(
                kind=RendezvousKind.ACCESS_REQUEST, address=region.address, length=8, **names
            )
            peer.accessRequested(access, memoryview(b""), answer)
            (mapped, descriptors), (read, _) = answers
            isAllowed = reach is Reach.MAPPED
            self.assertEqual((RegionReply.decode(mapped).reach, descriptors), (reach, int(isAllowed)))
            self.assertEqual(
                (AccessReply.decode(read).allowed, len(read) - AccessReply.size), (isAllowed, 8 * isAllowed)
            )
            pair.attributes = usual

    def test_resizableOrImpossibleBoxIsRefused(self) -> None:
        usual = HEADER_BYTES + 4096
        for length, seals in (
            *((usual, 0), (usual, fcntl.F_SEAL_SHRINK), (usual, fcntl.F_SEAL_GROW)),
            (usual + 1, SIZE_SEALS),
        ):
            with self.subTest(length=length, seals=seals):
                box = os.memfd_create("test", os.MFD_ALLOW_SEALING)
                os.ftruncate(box, length)
                fcntl.fcntl(box, fcntl.F_ADD_SEALS, seals)
                self.refused(self.invitation(box, self.bell(), self.bell()))

    def test_boxOfHugePagesIsRefused(self) -> None:
        box = os.memfd_create("test", os.MFD_ALLOW_SEALING | os.MFD_HUGETLB)
        fcntl.fcntl(box, fcntl.F_ADD_SEALS, SIZE_SEALS)
        with self.assertRaisesRegex(ValueError, "pages of another size"):
            mapBox(box)
        os.close(box)

    def test_boxWithTransparentHugePagesIsAccepted(self) -> None:
        box = self.box()
        size = os.fstat(box).st_size
        self.patch(os, "fstat", lambda descriptor: SimpleNamespace(st_size=size, st_blksize=1 << 21))
        mapBox(box).close()
        os.close(box)

    def test_doorbellThatIsNoEventfdIsRefused(self) -> None:
        def pipe() -> int:
            reading, writing = os.pipe()
            os.close(reading)
            return writing

        for make in (pipe, lambda: os.pidfd_open(os.getpid())):
            self.refused(self.invitation(self.box(), self.bell(), make()))

    def test_otherUsersDoorbellIsNotRetained(self) -> None:
        self.patch(peerdevice, "isSameUser", lambda user: False)
        sock = self.invitation(self.box(), self.bell(), self.bell())
        self.runUntil(lambda: self.added.mappings() == 1)
        leave = PairNotice(kind=RendezvousKind.LEAVE, source=QPN(5), destination=QPN(6)).encode()
        sendTo(sock, leave)
        self.runUntil(lambda: self.added.mappings() == 0)
        self.assertEqual(self.added.descriptors(), 2)  # both ends of the connection

    def test_queuePairAcceptsOneInvitationOfItsPeer(self) -> None:
        sock, bell, end = self.come(), self.bell(), End(self.device)
        for number in (1, 2):
            sendTo(sock, doorbell(number), [bell])
        os.close(bell)
        self.runUntil(lambda: cast(Any, self.device.routes[0])._known((LOOPBACK, 9)))
        end.qp.modify(INIT)
        address = AddressVector(GID.fromIP(LOOPBACK), dmac=softMAC(LOOPBACK, 9))
        end.qp.modify(replace(RTR, address=address, destinationQPN=QPN(5)))
        for source, answer in (
            (7, RendezvousKind.LEAVE),
            (5, RendezvousKind.JOIN),
            (5, RendezvousKind.LEAVE),
        ):
            box = self.box()
            sendTo(sock, self.join(end.qp.number, source).encode(), [box])
            os.close(box)
            start = PairNotice(kind=answer, source=end.qp.number, destination=QPN(source)).encode()
            self.runUntil(lambda: self.isAccepted(sock, start))  # noqa: B023

    def test_exceptionEndsOneQueuePair(self) -> None:
        """A message that raises is refused, and the connection between the processes stays open."""
        sock = self.come()
        [port] = [each for each in self.device.routes if isinstance(each, sharedmemoryport.SharedMemoryPort)]
        self.runUntil(lambda: port._known((LOOPBACK, 9)))
        [link] = port._links.values()
        leave = PairNotice(kind=RendezvousKind.LEAVE, source=QPN(1), destination=QPN(2)).encode()
        self.patch(
            sharedmemoryport._ConnectedDevice,
            "leaveReceived",
            Mock(side_effect=ZeroDivisionError("a test's")),
        )
        link.messageReceived(leave, [])
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        refusal = PairNotice(kind=RendezvousKind.LEAVE, source=QPN(2), destination=QPN(1)).encode()
        self.runUntil(lambda: self.isAccepted(sock, refusal))
        self.assertFalse(link.line.isClosed)
        sock.close()

    def test_queuePairsFailAlthoughMemoryCannotBeReleased(self) -> None:
        sock, end = self.come(), End(self.device)
        port = cast(Any, self.device.routes[0])
        self.runUntil(lambda: port._known((LOOPBACK, 9)))
        end.qp.modify(INIT)
        address = AddressVector(GID.fromIP(LOOPBACK), dmac=softMAC(LOOPBACK, 9))
        end.qp.modify(replace(RTR, address=address, destinationQPN=QPN(5)))
        self.patch(_doorbells.PeerDoorbells, "close", Mock(side_effect=ZeroDivisionError("a test's")))
        sock.close()
        self.runUntil(lambda: end.qp.state is QPState.ERR)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.check()

    def test_invitationsForUnknownQueuePairsAreBounded(self) -> None:
        self.patch(sharedmemoryport, "_MOST_WAITING", 2)
        sock, bell = self.come(), self.bell()
        for number in (1, 2):
            sendTo(sock, doorbell(number), [bell])
        os.close(bell)
        for source in (5, 6, 7):
            box = self.box()
            sendTo(sock, self.join(source=source).encode(), [box])
            os.close(box)
        refusal = PairNotice(kind=RendezvousKind.LEAVE, source=QPN(6), destination=QPN(7)).encode()
        self.runUntil(lambda: self.isAccepted(sock, refusal))
        self.assertEqual(self.added.mappings(), 2)
        sock.close()
        self.runUntil(self.added.isNothing)

    def test_repeatedInvitationIsRefused(self) -> None:
        box, bell = self.box(), self.bell()
        again = os.dup(box)
        sock = self.invitation(box, bell, self.bell())
        sendTo(sock, self.join().encode(), [again])
        os.close(again)
        self.refused(sock)
        self.runUntil(self.added.isNothing)

    def test_pendingInvitationIsDroppedWithItsSender(self) -> None:
        sock = self.invitation(self.box(), self.bell(), self.bell())
        self.runUntil(lambda: self.added.mappings() == 1)
        sock.close()
        self.runUntil(self.added.isNothing)

    @slow("Hypothesis generates many messages")
    def test_arbitraryMessagesAndDescriptorsLeaveNothing(self) -> None:
        numbers = [int(end.qp.number) for end in self.good]

        def message(draw: st.DrawFn) -> bytes:
            kind = draw(st.sampled_from(list(LAYOUTS)))
            size = LAYOUTS[kind].size
            body = bytearray(draw(st.binary(min_size=size, max_size=size)))
            body[0] = kind
            if draw(st.booleans()):
                for at in (1, 5):
                    body[at : at + 3] = draw(st.sampled_from(numbers)).to_bytes(3, "big")
            return bytes(body) + draw(st.binary(max_size=40))

        @settings(max_examples=150, deadline=None, database=None)
        @given(st.lists(st.tuples(st.composite(message)(), st.integers(0, 3)), max_size=6), st.booleans())
        def anything(messages: list[tuple[bytes, int]], greet: bool) -> None:
            sock = self.come(greet)
            for content, passed in messages:
                given = [self.box() if not index else self.bell() for index in range(passed)]
                try:
                    sendTo(sock, content, given)
                except (BrokenPipeError, ConnectionResetError):
                    pass
                for each in given:
                    os.close(each)
                self.reactor.iterate(0)
            sock.close()
            for _ in range(4):
                self.reactor.iterate(0)
            self.assertTrue(self.added.isNothing())
            self.assertEqual(port._links, {})

        port = cast(Any, self.device).routes[0]
        anything()
        self.check()
        self.flushLoggedErrors()


class OtherVersionTests(RealCase):
    """Devices of processes whose txrdma has another version of these messages."""

    def test_otherVersionMeansUDPAndLoggedReason(self) -> None:
        one, other = (
            End(openSoftDevice(self.reactor, port=0, route=route)) for route in ("auto", "shared-memory")
        )
        for end in (one, other):
            self.addCleanup(end.device.close)
        self.patch(_rendezvous, "VERSION", VERSION + 1)
        with capturedLogs() as log:
            one.join(other)
        self.assertEqual(cast(Any, one.qp).route, "rocev2")
        self.assertIn("another version of shared memory", "\n".join(map(formatEvent, log)))


class OtherUserTests(RealCase):
    """Processes of different users, which wake each other by messages."""

    def setUp(self) -> None:
        super().setUp()
        self.patch(peerdevice, "isSameUser", lambda user: False)
        self.passed: list[int] = []
        send = unixpackets.PacketSocket.send

        def record(line: unixpackets.PacketSocket, message: bytes, descriptors: Sequence[int] = ()) -> None:
            if message[0] == RendezvousKind.DOORBELL:
                self.passed.append(len(descriptors))
            send(line, message, descriptors)

        self.patch(unixpackets.PacketSocket, "send", record)

    def test_noDoorbellDescriptorIsSent(self) -> None:
        self.pair()
        self.assertGreater(len(self.passed), 0)
        self.assertEqual(set(self.passed), {0})

    def test_sleepingProgramIsWokenByMessage(self) -> None:
        one, other = self.pair()
        other.receive(1, 0, 64)
        other.queue.arm()
        one.post(1, Operation.SEND, inline=[b"wake up"])
        self.runUntil(other.channel.takeEvents)
        self.assertEqual([each.status for each in other.queue.poll(1)], [Status.SUCCESS])

    def test_programThatReadsLaneIsWokenByMessage(self) -> None:
        one, other = self.pair()
        layout = Struct("BBHI")
        lanes = [IDirectLane(end.qp) for end in (one, other)]
        for lane in lanes:
            lane.openLane(layout.size, 7, layout.unpack_from)
        other.queue.arm()
        self.runUntil(lambda: lanes[0].putMessage(1, False, layout.pack(7, 0, 0, 0)))
        self.runUntil(lambda: select([other.channel], [], [], 0)[0])
        self.assertEqual(len(lanes[1].takeMessages(8)), 1)
