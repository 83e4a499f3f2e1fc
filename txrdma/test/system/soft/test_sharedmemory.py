"""
Shared memory between real processes: discovery, end, and access.
"""

from __future__ import annotations

import array
import fcntl
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from txrdma.iba.types import GID, QPN, RKey
from txrdma.iba.verbs import (
    AsyncEventKind,
    Operation,
    QPState,
    Status,
)
from txrdma.soft.shared import _doorbells, unixpackets
from txrdma.soft.shared._rendezvous import (
    DoorbellNotice,
    Hello,
    Join,
    LAYOUTS,
    LONGEST,
    MAGIC,
    makeBox,
    mapBox,
    PairNotice,
    RendezvousKind,
    rendezvousName,
    VERSION,
)
from txrdma.test.support.soft.neighbour import RECEIVES
from txrdma.test.support.soft.neighbours import descriptors, mappings, NeighbourCase, RealCase
from txrdma.test.support.soft.pairs import End
from txrdma.unix import sockets as unixsockets
from txrdma.unix.sockets import Credentials


class NeighbourTests(NeighbourCase):
    """Another process."""

    slowBecause = "each test starts another process"

    def test_echo(self) -> None:
        """Messages pass between processes that sleep in between."""
        end = End(self.open())
        self.neighbour(end)
        for _ in range(5):
            self.exchange(end)
            time.sleep(0)

    def killed(self, end: End) -> subprocess.Popen[str]:
        """Kill the other process during a send."""
        process = self.neighbour(end)
        self.exchange(end)
        os.kill(process.pid, signal.SIGSTOP)
        end.post(501, Operation.SEND, inline=[b"x"])
        end.post(502, Operation.SEND, inline=[b"x"])
        self.assertEqual(end.queue.poll(10), ())
        os.kill(process.pid, signal.SIGKILL)
        found = self.take(end, 2 + RECEIVES - 1)
        self.assertEqual(
            [(c.identifier, c.status) for c in found[:2]],
            [(501, Status.RETRY_EXC_ERR), (502, Status.WR_FLUSH_ERR)],
        )
        self.assertEqual({c.status for c in found[2:]}, {Status.WR_FLUSH_ERR})
        self.assertIs(end.qp.state, QPState.ERR)
        self.runUntil(lambda: end.events)
        self.assertEqual([event.kind for event in end.events], [AsyncEventKind.QP_FATAL])
        return process

    def test_killed(self) -> None:
        """
        A killed peer is detected immediately: sends fail, receives are flushed, and an event reports it.
        """
        began = time.monotonic()
        self.killed(End(self.open()))
        self.assertLess(time.monotonic() - began, 10)

    def test_nothingLeaks(self) -> None:
        """Killed peers leave neither descriptors nor mappings."""
        device = self.open()
        before = descriptors(), mappings()
        for _ in range(3):
            end = End(device)
            self.end(self.killed(end))
            end.domain.close()
            end.queue.close()
            end.channel.close()
        self.assertEqual((descriptors(), mappings()), before)

    def test_writeWakes(self) -> None:
        """A write changes the other process' memory, and a later message wakes it."""
        end = End(self.open())
        self.neighbour(end)
        reported = json.loads(self.reported)
        end.region.view[4096:4106] = b"0123456789"
        end.post(
            1,
            Operation.RDMA_WRITE,
            [end.segment(4096, 10)],
            remoteAddress=reported["address"] + 8192,
            rkey=RKey(reported["rkey"]),
        )
        end.post(
            2,
            Operation.RDMA_READ,
            [end.segment(5000, 10)],
            remoteAddress=reported["address"] + 8192,
            rkey=RKey(reported["rkey"]),
        )
        self.assertEqual([c.status for c in self.take(end, 2)], [Status.SUCCESS] * 2)
        self.assertEqual(end.region.view[5000:5010], b"0123456789")


class DescriptorTests(NeighbourCase):
    """A process without free descriptors for those of its peer."""

    def scarce(self) -> Callable[[], None]:
        """Use up all descriptors, until the result is called."""
        next_ = os.dup(0)
        os.close(next_)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (next_, hard))
        return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    def test_region(self) -> None:
        """Data waits until the peer's memory can be mapped; nothing is lost meanwhile."""
        end = End(self.open())
        self.neighbour(end)
        self.exchange(end)
        reported = json.loads(self.reported)
        end.region.view[:5] = b"hello"
        where = {"remoteAddress": reported["address"] + 8192, "rkey": RKey(reported["rkey"])}
        plenty = self.scarce()
        try:
            end.post(1, Operation.RDMA_WRITE, [end.segment(0, 5)], **where)
            begun = time.monotonic()
            self.runUntil(lambda: time.monotonic() > begun + 0.3)
            self.assertEqual(end.queue.poll(10), ())
        finally:
            plenty()
        self.assertEqual([c.status for c in self.take(end, 1)], [Status.SUCCESS])
        self.assertIs(end.qp.state, QPState.RTS)
        self.exchange(end)

    def test_dying(self) -> None:
        """A process that dies during discovery is not found, and its successor is."""
        device, other = self.open(), self.open()
        port: Any = other.ports[0].routes[0]

        def peerOf(sock: socket.socket) -> Credentials:
            port._listener.close()
            return unixsockets.peerOf(sock)

        self.patch(unixpackets, "peerOf", peerOf)
        here: Any = device.ports[0].routes[0]
        name = (other.ports[0].address, other.ports[0].udpPort)
        self.assertIsNone(here._connect(name))
        self.assertEqual((here._peers, here._links), ({}, {}))


class StrangerTests(RealCase):
    """Processes that connect to the rendezvous and break the rules."""

    def setUp(self) -> None:
        super().setUp()
        self.good = self.pair()
        self.device = self.open()
        self.check()
        self.before = descriptors(), mappings()

    def check(self) -> None:
        """Check that other devices still work."""
        one, other = self.good
        other.qp.postReceive([])
        one.write(other, 1, 0, 64, 128)
        self.assertEqual([c.status for c in self.take(one, 1)], [Status.SUCCESS])

    def come(self, greet: bool = True) -> socket.socket:
        """Connect."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        self.addCleanup(sock.close)
        sock.connect(rendezvousName(self.device.address, self.device.port))
        if greet:
            sock.send(self.hello().encode())
        return sock

    def hello(self, version: int = VERSION) -> Hello:
        return Hello(
            kind=RendezvousKind.HELLO,
            magic=MAGIC,
            version=version,
            port=9,
            address=GID.fromIP("127.0.0.1"),
        )

    def sendText(self, sock: socket.socket, message: bytes, passed: Sequence[int] = ()) -> None:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", passed))]
        sock.sendmsg([message], ancillary if passed else [])

    def isClosed(self, sock: socket.socket) -> bool:
        try:
            while sock.recv(1 << 17, socket.MSG_DONTWAIT):
                pass
            return True
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True

    def refused(self, sock: socket.socket) -> None:
        """Assert that the process was disconnected, nothing of it remains, and other devices work."""
        self.runUntil(lambda: self.isClosed(sock))
        sock.close()
        self.check()
        self.assertEqual((descriptors(), mappings()), self.before)

    def invitation(self, box: int, *doorbells: int) -> socket.socket:
        """Send an invitation with a box and these doorbells."""
        sock = self.come()
        for number, doorbell in enumerate(doorbells, 1):
            self.sendText(
                sock, DoorbellNotice(kind=RendezvousKind.DOORBELL, number=number).encode(), [doorbell]
            )
        self.sendText(sock, self.join().encode(), [box])
        for descriptor in (box, *doorbells):
            os.close(descriptor)
        return sock

    def join(self, number: int = 6) -> Join:
        """Return an invitation of a local queue pair, with the doorbells 1 and 2."""
        destination = QPN(number)
        return Join(kind=RendezvousKind.JOIN, source=QPN(5), destination=destination, receives=1, sends=2)

    def box(self) -> int:
        descriptor, mapping = makeBox(4096)
        mapping.close()
        return descriptor

    def bell(self) -> int:
        return os.eventfd(0)

    def test_garbage(self) -> None:
        """Bytes that are no message are refused."""
        sock = self.come()
        self.sendText(sock, b"\xff" * 100)
        self.refused(sock)

    def test_tooLong(self) -> None:
        """A message beyond the maximum length is refused."""
        sock = self.come()
        self.sendText(sock, b"\1" * (LONGEST + 100))
        self.refused(sock)

    def test_noGreeting(self) -> None:
        """A message before the greeting is refused."""
        sock = self.come(greet=False)
        self.sendText(sock, PairNotice(kind=RendezvousKind.LEAVE, source=QPN(1), destination=QPN(2)).encode())
        self.refused(sock)

    def test_otherVersion(self) -> None:
        """Another version is refused."""
        sock = self.come(greet=False)
        self.sendText(sock, self.hello(VERSION + 1).encode())
        self.refused(sock)

    def test_twoGreetings(self) -> None:
        """A second greeting is refused."""
        sock = self.come()
        self.sendText(sock, self.hello().encode())
        self.refused(sock)

    def test_fewDescriptors(self) -> None:
        """An invitation without a box, and a doorbell without a descriptor, are refused."""
        for message in (self.join(), DoorbellNotice(kind=RendezvousKind.DOORBELL, number=1)):
            sock = self.come()
            self.sendText(sock, message.encode())
            self.refused(sock)

    def test_manyDescriptors(self) -> None:
        """Messages with too many descriptors are refused."""
        for message in (self.join(), DoorbellNotice(kind=RendezvousKind.DOORBELL, number=1)):
            for number in (2, 20):
                sock, given = self.come(), [self.bell() for _ in range(number)]
                self.sendText(sock, message.encode(), given)
                for each in given:
                    os.close(each)
                self.refused(sock)

    def test_doorbellTwice(self) -> None:
        """Two doorbells with the same number are refused."""
        sock, bell = self.come(), self.bell()
        for _ in range(2):
            self.sendText(sock, DoorbellNotice(kind=RendezvousKind.DOORBELL, number=1).encode(), [bell])
        os.close(bell)
        self.refused(sock)

    def test_manyDoorbells(self) -> None:
        """Doorbells beyond the limit are refused."""
        self.patch(_doorbells, "MOST", 20)
        sock, bell = self.come(), self.bell()
        for number in range(21):
            self.sendText(sock, DoorbellNotice(kind=RendezvousKind.DOORBELL, number=number).encode(), [bell])
        os.close(bell)
        self.refused(sock)

    def test_noDoorbell(self) -> None:
        """An invitation with unknown doorbells is refused, and its sender may stay."""
        sock = self.come()
        for number in (1, 2):
            self.sendText(sock, DoorbellNotice(kind=RendezvousKind.DOORBELL_CLOSED, number=number).encode())
        box = self.box()
        self.sendText(sock, self.join().encode(), [box])
        os.close(box)
        refusal = PairNotice(kind=RendezvousKind.LEAVE, source=QPN(6), destination=QPN(5)).encode()
        self.runUntil(lambda: self.isAccepted(sock, refusal))
        self.assertEqual(mappings(), self.before[1])
        sock.close()
        self.runUntil(lambda: (descriptors(), mappings()) == self.before)

    def isAccepted(self, sock: socket.socket, message: bytes) -> bool:
        try:
            return sock.recv(1 << 17, socket.MSG_DONTWAIT) == message
        except BlockingIOError:
            return False

    def test_muted(self) -> None:
        """A doorbell that its owner withdraws is closed when no invitation uses it any more."""
        sock = self.invitation(self.box(), self.bell(), self.bell())
        self.runUntil(lambda: mappings() == self.before[1] + 1)
        for number in (1, 2):
            self.sendText(sock, DoorbellNotice(kind=RendezvousKind.DOORBELL_CLOSED, number=number).encode())
        leave = PairNotice(kind=RendezvousKind.LEAVE, source=QPN(5), destination=QPN(6)).encode()
        self.sendText(sock, leave)
        self.runUntil(lambda: mappings() == self.before[1])
        self.assertEqual(descriptors(), self.before[0] + 2)  # both ends of the connection
        sock.close()
        self.runUntil(lambda: descriptors() == self.before[0])

    def test_anothersName(self) -> None:
        """A process that uses another one's name does not disturb that one, and is refused."""
        one, other = self.good
        second, self.device = one.device, other.device
        self.patch(unixpackets, "peerOf", lambda sock: unixsockets.peerOf(sock)._replace(pid=1))
        sock = self.come(greet=False)
        hello = self.hello().replace(port=second.port, address=GID.fromIP(second.address))
        sock.send(hello.encode())
        self.runUntil(lambda: self.isClosed(sock))
        self.check()

    def test_unsealed(self) -> None:
        """A box that can shrink is refused."""
        box = os.memfd_create("test", os.MFD_ALLOW_SEALING)
        os.ftruncate(box, 8192)
        self.refused(self.invitation(box, self.bell(), self.bell()))

    def test_hugePages(self) -> None:
        """A box of huge pages, in which a peer can punch holes, is refused."""
        box = os.memfd_create("test", os.MFD_ALLOW_SEALING | os.MFD_HUGETLB)
        fcntl.fcntl(box, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        with self.assertRaisesRegex(ValueError, "pages of another size"):
            mapBox(box)
        os.close(box)

    def test_halfSealed(self) -> None:
        """A box that can grow is refused."""
        box = os.memfd_create("test", os.MFD_ALLOW_SEALING)
        os.ftruncate(box, 8192)
        fcntl.fcntl(box, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        self.refused(self.invitation(box, self.bell(), self.bell()))

    def test_noBox(self) -> None:
        """A box with an invalid length is refused."""
        box = os.memfd_create("test", os.MFD_ALLOW_SEALING)
        os.ftruncate(box, 12345)
        fcntl.fcntl(box, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        self.refused(self.invitation(box, self.bell(), self.bell()))

    def test_noBell(self) -> None:
        """A blocking doorbell is refused."""
        reading, writing = os.pipe()
        os.close(reading)
        self.refused(self.invitation(self.box(), self.bell(), writing))

    def test_timerBell(self) -> None:
        """A doorbell that is not an eventfd is refused."""
        self.refused(self.invitation(self.box(), self.bell(), os.pidfd_open(os.getpid())))

    def test_manyInvitations(self) -> None:
        """Invitations for unknown queue pairs are bounded."""
        sock = self.come()
        box, bell = self.box(), self.bell()
        try:
            for number in (1, 2):
                self.sendText(
                    sock, DoorbellNotice(kind=RendezvousKind.DOORBELL, number=number).encode(), [bell]
                )
            for number in range(300):
                self.sendText(sock, self.join(number).encode(), [box])
                if number % 20 == 0:
                    self.reactor.iterate(0)
        except (BrokenPipeError, ConnectionResetError):
            pass
        os.close(box)
        os.close(bell)
        self.refused(sock)

    def test_waitingInvitation(self) -> None:
        """A pending invitation is dropped with its sender."""
        sock = self.invitation(self.box(), self.bell(), self.bell())
        self.runUntil(lambda: mappings() == self.before[1] + 1)
        sock.close()
        self.runUntil(lambda: (descriptors(), mappings()) == self.before)

    def test_anything(self) -> None:
        """Arbitrary messages and descriptors break nothing, and nothing remains."""
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
                    self.sendText(sock, content, given)
                except (BrokenPipeError, ConnectionResetError):
                    pass
                for each in given:
                    os.close(each)
                self.reactor.iterate(0)
            sock.close()
            for _ in range(4):
                self.reactor.iterate(0)
            self.assertEqual((descriptors(), mappings()), self.before)

        anything()
        self.check()
        self.flushLoggedErrors()

    def test_otherUser(self) -> None:
        """A process of another user is disconnected before any message."""
        if os.getuid() != 0:
            self.skipTest("only root can be somebody else")
        name = rendezvousName(self.device.address, self.device.port)
        program = (
            "import os, socket, sys\n"
            "os.setgid(65534); os.setuid(65534)\n"
            "sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
            f"sock.connect({name!r})\n"
            "sock.settimeout(20)\n"
            "print(sock.recv(100))\n"
        )
        process = subprocess.Popen([sys.executable, "-S", "-c", program], stdout=subprocess.PIPE)
        self.addCleanup(process.kill)
        self.runUntil(lambda: process.poll() is not None)
        out, _ = process.communicate()
        self.assertEqual(out, b"b''\n")
        self.check()
