"""
Options of endpoints: their effects on connections, and their limits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

from twisted.internet import reactor as theReactor

from txrdma.kit.shares import CLIENT_SHARE
from txrdma.kit.values import replace
from txrdma.smc.group._linkgroup import LinkGroupProtocol
from txrdma.smc.group.buffers import BufferPool, RemoteMemoryBuffer
from txrdma.smc.group.groups import closeLinkGroups
from txrdma.smc.handshake._machine import CLC_TIMEOUT
from txrdma.smc.handshake.accepting import HandshakeCount, ServerNegotiation
from txrdma.smc.handshake.outcomes import Outcomes
from txrdma.smc.stream.transport import PromptTransport, SMCTransport
from txrdma.smc.terms.options import Options
from txrdma.smc.wire.clc import Decline, decode, Diagnosis
from txrdma.smc.wire.llc import LLCType, readHeader
from txrdma.test.support.smc.ends import EndsTestCase
from txrdma.test.support.smc.races import Listener, RaceTestCase
from txrdma.testing.protocols import Echo, ProducerRecorder
from txrdma.testing.reactors import unqueuedSeconds
from txrdma.testing.smc.hosts import Host, MemorySocket
from txrdma.testing.smc.scenario import DEVICE

reactor: Any = theReactor


class CorkTests(RaceTestCase):
    """C{autocork}: writes of one reactor iteration are sent together, or each immediately."""

    def write(self, here: Listener, there: Listener) -> int:
        """Write ten times in an iteration; return the number of messages."""
        before = here.transport.smc.messagesSent
        for number in range(10):
            here.transport.write(b"%d" % number)
        during: int = here.transport.smc.messagesSent - before
        self.until(lambda: there.received == b"0123456789")
        self.assertEqual(here.transport.smc.messagesSent - before, max(during, 1))
        return during

    def test_nothingIsSentBeforeIterationEndsByDefault(self) -> None:
        self.assertEqual(self.write(*self.pair()), 0)

    def test_everyWriteIsPostedBeforeCallReturns(self) -> None:
        here, there = self.pair(autocork=False)
        self.assertIsInstance(here.transport, PromptTransport)
        self.assertEqual(self.write(here, there), 10)

    def test_sequence(self) -> None:
        here, there = self.pair(autocork=False)
        before = here.transport.smc.messagesSent
        here.transport.writeSequence([b"a", b"b", b"c"])
        self.assertEqual(here.transport.smc.messagesSent - before, 1)
        self.until(lambda: there.received == b"abc")

    def test_writesBeyondRingOrReceivesWaitInOrder(self) -> None:
        here, there = self.pair(autocork=False)
        pieces = [bytes([number % 256]) * 700 for number in range(200)]
        for piece in pieces:
            here.transport.write(piece)
        here.transport.loseConnection()
        self.until(lambda: there.hasEnded)
        self.assertEqual(there.received, b"".join(pieces))

    def test_answerInDataReceivedIsSentBeforeItReturns(self) -> None:
        here, there = self.pair(autocork=False)
        sent: list[int] = []

        def answer(data: bytes) -> None:
            before = there.transport.smc.messagesSent
            there.transport.write(data)
            there.transport.write(data)
            sent.append(there.transport.smc.messagesSent - before)

        there.dataReceived = answer  # type: ignore[method-assign]
        here.transport.write(b"x")
        self.until(lambda: here.received == b"xx")
        self.assertEqual(sent, [2])


class SizeTests(RaceTestCase):
    def test_eachEndHasRequestedRingSizeRoundedUp(self) -> None:
        here, there = self.pair(rcvbuf=100_000)
        for end in (here, there):
            reported = end.transport.smc.toDict()
            self.assertEqual((reported["bufferSize"], reported["peerBufferSize"]), (131_072, 131_072))
        here, there = self.pair()
        self.assertEqual(here.transport.smc.toDict()["bufferSize"], 16_384)

    def test_producerIsPausedAboveSndbuf(self) -> None:
        for sndbuf, isPaused in ((65_536, False), (50_000, True)):
            here, _there = self.pair(sndbuf=sndbuf)
            producer = ProducerRecorder()
            here.transport.registerProducer(producer, True)
            here.transport.write(bytes(60_000))
            self.assertEqual(producer.calls, ["pause"] if isPaused else [])
            here.transport.unregisterProducer()
        self.assertEqual(SMCTransport.bufferSize, 65_536)


class KeepaliveTests(RaceTestCase):
    def asked(self, seconds: float, **keys: Any) -> list[float]:
        """Return the times of TEST LINK requests during a silence of so many seconds."""
        times: list[float] = []
        received = LinkGroupProtocol.received

        def spy(group: LinkGroupProtocol, raw: bytes, now: float, *rest: Any) -> None:
            kind, _, header = readHeader(raw)
            if kind is LLCType.TEST_LINK and not header.flags & 0x80:
                times.append(now)
            received(group, raw, now, *rest)

        self.patch(LinkGroupProtocol, "received", spy)
        self.pair(**keys)
        self.wait(seconds)
        return times

    def test_silentLinkIsTestedAfterOneToTwoIntervals(self) -> None:
        times = self.asked(60.0, keepalive=7.0)
        self.assertGreaterEqual(len(times), 4)
        for earlier, later in pairwise([self.world.clock.seconds() - 60.0, *times]):
            self.assertTrue(7.0 <= later - earlier <= 14.0 or later - earlier < 0.1, times)

    def test_linkIsTestedAfterTwoHoursByDefault(self) -> None:
        self.assertEqual(self.asked(60.0), [])


class LimitTestCase(RaceTestCase):
    """Clients that begin a handshake without completing it; limits count nothing of other tests."""

    def setUp(self) -> None:
        self.addCleanup(setattr, BufferPool, "total", BufferPool.total)
        BufferPool.total = 0
        super().setUp()

    @contextmanager
    def flood(
        self,
        count: int,
        crowd: HandshakeCount,
        isNew: bool = False,
        hosts: Sequence[Host | None] = (None,),
        **keys: Any,
    ) -> Iterator[list[tuple[MemorySocket, Listener]]]:
        """
        Connect clients that propose and send nothing more.

        @param isNew: each with another name; otherwise each has its answer.
        @param hosts: the hosts of the clients, in turn; None: the usual one.
        """
        options = Options(device=DEVICE, agreed=True, **keys)
        clients = []
        for number in range(count):
            there = Listener()
            accepting = ServerNegotiation(
                self.server, options, Outcomes("server"), partial(_same, there), None, crowd
            )
            client = self.connectSocket(accepting, hosts[number % len(hosts)])
            client.send(self.proposal(b"%08d" % number if isNew else b""))
            clients.append((client, there))
        self.until(lambda: clients[0 if isNew else -1][0].isReadable)
        yield clients
        for socket, _ in clients:
            socket.close()


class LimitTests(LimitTestCase):
    """C{maxgroups}, C{maxmemory} and C{handshakes}."""

    def test_connectionBeyondGroupLimitFallsBack(self) -> None:
        first, _ = self.pair()
        self.assertEqual(first.mode, "SMC-R")
        third = self.host(3)
        here, there = self.pair(client=third, maxgroups=2)  # each end of the first one has its own
        self.assertEqual((here.mode, there.mode), ("TCP", "TCP"))
        self.assertEqual(there.transport.smc.fallbackReason, Diagnosis.MEM)
        self.assertEqual(here.transport.smc.peerDiagnosis, Diagnosis.MEM)
        self.assertEqual(self.pair(maxgroups=2)[0].mode, "SMC-R")

    def test_unusedGroupEndsWhenItsNumberOrMemoryIsNeeded(self) -> None:
        limits: list[dict[str, Any]] = [{"maxgroups": 2}, {"maxmemory": 2 * 16 * 16_384}]
        for keys in limits:
            here, there = self.pair()
            here.transport.loseConnection()
            there.transport.loseConnection()
            self.until(lambda here=here, there=there: here.reason and there.reason)  # type: ignore[misc]
            self.wait(1.0)
            third = self.host(3 + len(self.uses))
            new, other = self.pair(client=third, **keys)
            self.assertEqual((new.mode, other.mode), ("SMC-R", "SMC-R"), keys)
            for host in list(self.groupsOf):
                for group in self.groupsOf[host].groups():
                    group.close("for the test")

    def test_limitAppliesToServerWhoseRingIsReservedFirst(self) -> None:
        part = 5 * 16_384
        most = int(part / CLIENT_SHARE)
        totals: list[int] = []
        grow = BufferPool.grow

        def record(pool: BufferPool, *arguments: Any) -> RemoteMemoryBuffer:
            buffer = grow(pool, *arguments)
            totals.append(BufferPool.total)
            return buffer

        self.patch(BufferPool, "grow", record)
        self.pair(maxmemory=most)
        self.assertEqual(totals[:1], [part])

    def test_bufferRespectsLimitAndOthersFallBack(self) -> None:
        most = 2 * 10 * 16_384  # the server's part, and the rest for the client
        modes = []
        for _ in range(13):
            here, there = self.pair(maxmemory=most)
            self.assertEqual(here.mode, there.mode)
            self.assertLessEqual(BufferPool.total, most)
            modes.append(here.mode)
        self.assertEqual(modes, ["SMC-R"] * 10 + ["TCP"] * 3)

    def test_groupsOfClient(self) -> None:
        """A client gets its part of the groups; another client is served then."""
        with self.flood(3, HandshakeCount(), isNew=True, maxgroups=int(2 / CLIENT_SHARE)) as clients:
            self.wait(1.0)
            answers = [decode(socket.recv(1000)) for socket, _ in clients]
            self.assertEqual([isinstance(each, Decline) for each in answers], [False, False, True])
            self.assertEqual(self.pair(client=self.host(3), maxgroups=int(2 / CLIENT_SHARE))[1].mode, "SMC-R")

    def test_memoryOfClient(self) -> None:
        """A client gets its part of the memory; another client is served then."""
        accepting, most = self.accepting, int(18 * 32_768 / CLIENT_SHARE)
        server = {"maxmemory": most, "rcvbuf": 32_768}  # the client's rings count as well, and are smaller
        self.patch(self, "accepting", lambda options, there: accepting(replace(options, **server), there))
        modes = [self.pair()[1].mode for _ in range(20)]
        self.assertEqual(modes, ["SMC-R"] * 18 + ["TCP"] * 2)
        self.assertLess(BufferPool.total, most)
        self.assertEqual(self.pair(client=self.host(4))[1].mode, "SMC-R")

    def test_memoryOfEndedGroupsIsNotCounted(self) -> None:
        self.pair()
        self.assertGreater(BufferPool.total, 0)
        for host in (self.client, self.server):
            for group in self.groupsOf[host].groups():
                group.close("for the test")
        self.assertEqual(BufferPool.total, 0)

    def test_handshakesBeyondLimitAreDeclined(self) -> None:
        self.pair()
        crowd = HandshakeCount()
        with self.flood(12, crowd, True, (None, self.host(3)), handshakes=10) as clients:
            self.wait(0.1)
            self.assertEqual(crowd.present, 10)
            answers = [decode(socket.recv(1000)) for socket, _ in clients]
            declined = [each.diagnosis for each in answers if isinstance(each, Decline)]
            self.assertEqual(declined, [Diagnosis.MEM] * 2)
            self.wait(2 * CLC_TIMEOUT)
            self.assertEqual({there.mode for _, there in clients}, {"TCP"})
            self.assertEqual(crowd.present, 0)

    def test_handshakesOfClient(self) -> None:
        """A client gets its part of the handshakes; another client is served then."""
        self.pair()
        crowd, most = HandshakeCount(), int(5 / CLIENT_SHARE)
        with self.flood(7, crowd, handshakes=most) as clients:
            answers = [decode(socket.recv(1000)) for socket, _ in clients]
            declined = [each.diagnosis for each in answers if isinstance(each, Decline)]
            self.assertEqual((crowd.present, declined), (5, [Diagnosis.MEM] * 2))
            with self.flood(1, crowd, hosts=[self.host(3)], handshakes=most) as [(socket, _)]:
                self.assertNotIsInstance(decode(socket.recv(1000)), Decline)
                self.assertEqual(crowd.present, 6)
            self.wait(2 * CLC_TIMEOUT)
            self.assertEqual(crowd.present, 0)

    def test_newHandshakesBeginWhenOthersHaveEnded(self) -> None:
        self.pair()
        crowd, most = HandshakeCount(), int(5 / CLIENT_SHARE)
        with self.flood(5, crowd, handshakes=most):
            self.assertEqual(crowd.present, 5)
            self.wait(CLC_TIMEOUT + 2)
        with self.flood(1, crowd, handshakes=most) as [(socket, _)]:
            self.assertNotIsInstance(decode(socket.recv(1000)), Decline)

    def test_groupsForNewNamesAreMadeSomeAtTime(self) -> None:
        here, there = self.pair()
        with self.flood(200, HandshakeCount(), isNew=True):
            made = len(self.groupsOf[self.server].groups())
            self.assertLess(made, 20)
            here.transport.write(b"hello")
            self.wait(5e-3)
            self.assertEqual(there.received, b"hello")
            self.wait(1.0)
            self.assertEqual(len(self.groupsOf[self.server].groups()), 201)
            self.wait(CLC_TIMEOUT + 2)
            self.assertEqual(len(self.groupsOf[self.server].groups()), 1)

    def test_waitingClientsFallBackWhenDeviceCloses(self) -> None:
        self.pair()
        with self.flood(50, HandshakeCount(), isNew=True) as clients:
            closeLinkGroups(self.server)
            self.wait(2 * CLC_TIMEOUT)
            self.assertEqual({there.mode for _, there in clients}, {"TCP"})

    def test_silentProposerUsesTCPAfterSixSeconds(self) -> None:
        self.pair()
        with self.flood(3, HandshakeCount()) as clients:
            self.wait(CLC_TIMEOUT - 1)
            self.assertEqual({there.mode for _, there in clients}, {""})
            self.wait(3)
            self.assertEqual({there.mode for _, there in clients}, {"TCP"})
            reasons = {there.transport.smc.fallbackReason for _, there in clients}
            self.assertEqual(reasons, {Diagnosis.TIMEOUT_CL})


def _same(there: Listener) -> Listener:
    return there


class FloodTests(LimitTestCase):
    """
    Many more handshakes at once than a listener may have.

    @ivar proposals: clients with the same name; C{names}: clients with different names.
    """

    proposals = 1000
    names = 300

    def test_incompleteHandshakesHoldMemoryOfHundredAtMost(self) -> None:
        here, there = self.pair()
        before = BufferPool.total
        [group] = self.groupsOf[self.server].groups()
        crowd = HandshakeCount()
        with self.flood(self.proposals, crowd, handshakes=int(100 / CLIENT_SHARE)) as clients:
            self.assertEqual(crowd.present, 100)
            self.assertLessEqual(BufferPool.total - before, 7 * 16 * 16_384)  # 16 rings in each
            for number in range(50):
                here.transport.write(b"%02d" % number)
            self.until(lambda: len(there.received) == 100)
            self.assertIsNone(here.reason)
            self.assertLessEqual(sum(buffer.used for buffer in group.pool), 101)
            self.wait(CLC_TIMEOUT + 2)
            self.assertEqual({end.mode for _, end in clients}, {"TCP"})
        self.assertEqual(crowd.present, 0)

    def test_differentNamesMakeNoMoreGroupsThanHandshakes(self) -> None:
        here, there = self.pair()
        crowd = HandshakeCount()
        with self.flood(self.names, crowd, isNew=True, handshakes=int(100 / CLIENT_SHARE)) as clients:
            self.wait(2.0)
            self.assertEqual((crowd.present, len(self.groupsOf[self.server].groups())), (100, 101))
            here.transport.write(b"hello")
            self.until(lambda: there.received == b"hello")
            self.wait(2 * CLC_TIMEOUT)
            self.assertEqual({end.mode for _, end in clients}, {"TCP"})
        self.assertEqual((crowd.present, len(self.groupsOf[self.server].groups())), (0, 1))


class CrowdTests(EndsTestCase):
    """C{handshakes} on real sockets, where announcements identify clients."""

    async def test_announcedClientOfBusyListenerUsesTCPImmediately(self) -> None:
        factory, port = await self.serve("smc:127.0.0.1:0:handshakes=0", Echo)
        began = unqueuedSeconds()
        client = await self.connect(f"smc:127.0.0.1:{port}")
        client.transport.write(b"hello")
        self.assertEqual(await client.receiving(5), b"hello")
        self.assertLess(unqueuedSeconds() - began, 2.0)
        [server] = factory.protocols
        self.assertEqual((client.transport.smc.mode, server.transport.smc.mode), ("TCP", "TCP"))
        self.assertEqual(server.transport.smc.fallbackReason, Diagnosis.MEM)
