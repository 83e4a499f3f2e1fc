"""
Complete SMC connections over a bad network: tests of L{txrdma.testing.smc.scenario}, and regressions.
"""

from __future__ import annotations

from collections import deque
from random import Random
from typing import Any
from unittest import mock

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import RDMAError
from txrdma.iba.headers import Opcode
from txrdma.smc.flow.closing import LINGER_TIMEOUT
from txrdma.smc.group.buffers import Element
from txrdma.smc.group.group import LinkGroup
from txrdma.smc.group.groups import linkGroups
from txrdma.smc.group.link import Link
from txrdma.smc.handshake._machine import CLC_TIMEOUT, LATE_DECLINE_TIMEOUT
from txrdma.smc.handshake.outcomes import Outcomes
from txrdma.smc.handshake.proposing import ClientNegotiation
from txrdma.smc.terms.options import Options
from txrdma.smc.wire.clc import Accept, Confirm, Decline, decode, Diagnosis, Proposal
from txrdma.test.support.compiled import skipIfCompiled
from txrdma.test.support.smc.races import Listener, RaceTestCase
from txrdma.testing.outcome import Violation
from txrdma.testing.plantests import playingStored
from txrdma.testing.protocols import ProducerRecorder
from txrdma.testing.simulate import GENERATORS
from txrdma.testing.smc import scenario
from txrdma.testing.smc.canary import Canary
from txrdma.testing.smc.hosts import connectedSockets, Host, MemoryTCP
from txrdma.testing.smc.plans import drawStreams
from txrdma.testing.smc.scenario import DEVICE, playStreams


@playingStored("smc", "smc-shared-memory", "smc-two-ports")
class StoredTests(SynchronousTestCase):
    """
    Received bytes equal written ones, and connections close in order or fail at both ends.

    C{make simulate} draws more plans.
    """

    slowBecause = "it plays minutes of several hosts"

    def test_planRepeatsSimulationPacketByPacket(self) -> None:
        for name in ("smc", "smc-shared-memory", "smc-two-ports"):
            generator = GENERATORS[name]
            for seed in range(2):
                plan = generator.draw(seed)
                self.assertEqual(generator.play(plan), generator.play(plan))

    def test_digestDependsOnContentsOfPackets(self) -> None:
        plan = drawStreams(1)
        with mock.patch.object(scenario, "Random", lambda seed: Random(f"other {seed}")):
            other = playStreams(plan)
        self.assertNotEqual(playStreams(plan).digest, other.digest)


class CanaryTests(SynchronousTestCase):
    """Memory that detects writes outside of the granted range."""

    class Region:
        rkey = 1
        length = 1024

        def __init__(self) -> None:
            self.view = memoryview(bytearray(self.length))

    def test_onlyChangesOutsideGrantedRangeAreDetected(self) -> None:
        region = self.Region()
        canary = Canary(region, Random(1))
        canary.granted.add((256, 512))
        canary.check()
        region.view[256] ^= 1
        region.view[511] ^= 1
        canary.check()
        for at in (0, 255, 512, 1023):
            region.view[at] ^= 1
            self.assertRaises(Violation, canary.check)
            region.view[at] ^= 1


class RaceTests(RaceTestCase):
    """Rare orders of events on a real network; each is a regression."""

    def test_unconfirmingClientLeavesNoLinkAndBlocksNobody(self) -> None:
        _, _, sockets = self.connect(latency=0.1)
        groups = linkGroups(self.server, DEVICE)
        self.until(groups.links)
        sockets[0].wire.freeze()
        self.until(lambda: not groups.links(), 20)
        here, there, _ = self.connect()
        self.wait(1)
        self.assertEqual((here.mode, there.mode), ("SMC-R", "SMC-R"))

    def test_bytesAfterEndOfTCPAreDiscarded(self) -> None:
        here, there, sockets = self.connect()
        self.until(lambda: here.mode and there.mode)
        sockets[0].wire.freeze()
        sockets[0].wasReset()
        self.until(lambda: here.reason)
        there.transport.write(b"are you still there?")
        self.wait(5)
        self.assertEqual(here.reason, ConnectionLost)
        self.assertEqual(here.received, b"")

    def afterReset(self) -> tuple[Listener, Listener]:
        """
        Connect twice. TCP of the first connection is reset at the client only, as by a middlebox, while its
        server is alive and receives no message of the client by RDMA. Return the ends of the second.
        """
        self.here, self.there, sockets = self.connect()
        self.until(lambda: self.here.mode and self.there.mode)
        (link,) = linkGroups(self.server, DEVICE).links()
        (self.element,) = (each._element for each in self.streamsOf(self.client))
        self.isCut = True
        self.world.network.drop(
            lambda each: (
                self.isCut and each.bth.destination == link.qpn and each.bth.opcode is Opcode.RC_SEND_ONLY
            ),
            1 << 30,
        )
        sockets[0].wire.freeze()
        sockets[0].wasReset()
        self.until(lambda: self.here.reason)
        self.assertEqual(self.here.reason, ConnectionLost)
        here, there = Listener(lambda self: self.transport.pauseProducing()), Listener()
        self.connect(here, there)
        self.until(lambda: here.mode and there.mode)
        return here, there

    def streamsOf(self, host: Host) -> list[Any]:
        """Return the connections of a host that have a buffer."""
        (group,) = linkGroups(host, DEVICE).groups()
        return [flow.owner for flow in group.flows.values()]

    def test_bufferIsNotReusedWhilePeerMayWriteIntoIt(self) -> None:
        """After a reset of TCP, a peer that is alive and still writes does not change other connections."""
        here, there = self.afterReset()
        there.transport.write(b"second" * 100)
        self.wait(0.1)
        self.there.transport.write(b"first!" * 100)
        self.wait(0.1)
        here.transport.resumeProducing()
        self.until(lambda: len(here.received) == 600)
        self.assertEqual(here.received, b"second" * 100)

    def test_bufferIsReusedAfterPeersEnd(self) -> None:
        """The buffer of a connection whose TCP was reset is free when the peer has answered the abort."""
        self.afterReset()
        free = self.element.buffer._free
        self.assertNotIn(self.element.index, free)
        self.isCut = False
        self.until(lambda: self.there.reason)
        self.until(lambda: self.element.index in free)

    def test_bufferOfSilentPeerIsNotReused(self) -> None:
        """The buffer of a connection whose TCP was reset is not reused if the peer never answers."""
        here, _there = self.afterReset()
        (stream,) = (each for each in self.streamsOf(self.client) if each._element is self.element)
        stream.expired()
        self.assertNotIn(self.element.index, self.element.buffer._free)
        self.assertNotIn(stream, self.streamsOf(self.client))
        self.assertEqual(here.reason, None)

    def test_linkEndBetweenAcceptAndConfirmFallsBack(self) -> None:
        first, _ = self.pair()
        here, there, _ = self.connect(Listener(lambda self: self.transport.write(b"hello")), latency=0.2)
        groups = linkGroups(self.server, DEVICE)
        [group] = groups.groups()
        [link] = group.links
        self.until(lambda: len(group.core.connections) == 2)
        for host in (self.client, self.server):
            for each in linkGroups(host, DEVICE).groups():
                each.close("for the test")
        self.until(lambda: here.mode and there.mode, 20)
        self.wait(2)
        self.assertEqual((here.mode, there.mode), ("TCP", "TCP"))
        self.assertEqual(there.received, b"hello")

    def test_connectionWithoutLinkEndsWithItsProcess(self) -> None:
        here, there, sockets = self.connect()
        self.until(lambda: here.mode and there.mode)
        sockets[0].wire.freeze()
        (link,) = linkGroups(self.client, DEVICE).links()
        monitor = here.transport.stream._monitor
        monitor.linkLost = lambda mayHaveExited: None  # it waits
        link.broken("for the test")
        self.assertIsNone(here.reason)
        self.client.removeReader(monitor.tcp)  # as if TCP had ended as well
        self.client.stop()
        self.assertEqual(here.reason, ConnectionLost)

    def test_pollingForOneAcknowledgementMayCompleteAnother(self) -> None:
        groups = linkGroups(self.client, DEVICE)

        class Delivering:
            hasReceivedEnd = False
            isAsking = False

            def hasDelivered(self, total: int) -> bool:
                if not Delivering.isAsking:
                    Delivering.isAsking = True
                    groups.checkStopped()
                return True

        stopped: Deferred[None] = Deferred()
        groups._stopped = stopped
        groups._targets = {Delivering(): 1, Delivering(): 1}  # type: ignore[dict-item]  # they are no streams
        groups.checkStopped()
        self.successResultOf(stopped)
        self.assertEqual(groups._targets, {})

    def test_routeIsKnownAfterLinksEnd(self) -> None:
        here, there = self.pair()
        status = here.transport.smc
        (link,) = linkGroups(self.client, DEVICE).links()
        link.broken("for the test")
        self.until(lambda: here.reason)
        self.assertEqual(status.route, "rocev2")

    def test_serverIsNotifiedOfAbortInConnectionMade(self) -> None:
        first, _, _ = self.connect()
        self.until(lambda: first.mode)  # with an existing link no end waits for the other
        here, there, _ = self.connect(Listener(lambda self: self.transport.abortConnection()))
        self.until(lambda: here.reason and there.reason)
        self.assertEqual((here.reason, there.reason), (ConnectionAborted, ConnectionLost))
        self.assertEqual((here.mode, there.mode), ("SMC-R", "SMC-R"))

    def test_abortInConnectionMadeIsReportedAfterPeersAbort(self) -> None:
        self.connect()
        self.wait(1)  # the next connection uses the same link, where an abort overtakes the Confirm on TCP
        here, there = (Listener(lambda self: self.transport.abortConnection()) for _ in range(2))
        self.connect(here, there, latency=0.1)
        self.until(lambda: here.reason and there.reason)
        self.assertEqual((here.reason, there.reason), (ConnectionAborted, ConnectionAborted))
        self.assertEqual((here.mode, there.mode), ("SMC-R", "SMC-R"))

    def answerAfterClose(self, length: int) -> object:
        """Let a client close, and the server answer it and close; return the server's reason."""
        here, there = self.pair()
        here.transport.loseConnection()
        self.until(lambda: here.reason and there.hasEnded)
        there.transport.write(b"x" * length)
        there.transport.loseConnection()
        self.until(lambda: there.reason)
        return there.reason

    def test_lastAnswerToClosedPeerEndsInOrderAsOverTCP(self) -> None:
        self.assertEqual(self.answerAfterClose(5), ConnectionDone)

    def test_lastAnswerOfProducerToClosedPeerIsLost(self) -> None:
        """A producer that is registered while its end closes may write more."""
        here, there = self.pair()
        here.transport.loseConnection()
        self.until(lambda: here.reason and there.hasEnded)
        there.transport.registerProducer(ProducerRecorder(), True)
        there.transport.write(b"x")
        there.transport.loseConnection()
        self.until(lambda: there.reason)
        self.assertEqual(there.reason, ConnectionLost)

    def test_longAnswerToClosedPeerIsLostAsOverTCP(self) -> None:
        self.assertEqual(self.answerAfterClose(300_000), ConnectionLost)

    def test_closeBeforeConfirmDoesNotEndServersTCPInOrder(self) -> None:
        self.connect()
        self.wait(1)  # the next connection uses the same link, where the client may write immediately
        here, there, sockets = self.connect()
        self.until(lambda: here.mode)
        sockets[0].wire.freeze()
        here.transport.write(b"last words")
        here.transport.loseConnection()
        self.wait(LINGER_TIMEOUT + 5)
        sockets[0].wire.thaw()
        self.until(lambda: there.reason)
        self.assertEqual((here.reason, there.mode, there.reason), (ConnectionDone, "TCP", ConnectionLost))

    def finish(self) -> Listener:
        """
        Let a client write, close and end its process while the server has not read a message of their link;
        return the server's protocol.
        """
        here, there, _ = self.connect()
        groups = linkGroups(self.server, DEVICE)
        self.until(groups.links)
        (link,) = groups.links()
        self.until(lambda: link._reader in self.server.getReaders())
        link._reader.stop()
        self.until(lambda: here.mode)
        here.transport.write(b"last words")
        here.transport.loseConnection()
        self.until(lambda: here.reason)
        self.assertEqual((here.mode, here.reason), ("SMC-R", ConnectionDone))
        self.client.stop()
        self.wait(0.1)
        self.assertEqual(there.mode, "")
        return there

    def test_bytesOfProcessThatEndsInHandshakeArrive(self) -> None:
        there = self.finish()
        (link,) = linkGroups(self.server, DEVICE).links()
        link._reader.start()
        self.until(lambda: there.hasEnded)
        self.assertEqual((there.mode, there.received), ("SMC-R", b"last words"))
        there.transport.loseConnection()
        self.until(lambda: there.reason)
        self.assertEqual(there.reason, ConnectionDone)

    def test_linkFailureAfterClientLeftIsNoOrderlyEnd(self) -> None:
        there = self.finish()
        (link,) = linkGroups(self.server, DEVICE).links()
        self.patch(link._reader, "poll", lambda: False)  # as if the adapter had failed
        link.broken("for the test")
        self.wait(20)
        self.assertEqual((there.mode, there.hasEnded, there.reason), ("", False, None))

    def test_linkFailureAfterCloseResetsTCP(self) -> None:
        here, there, sockets = self.connect()
        self.until(lambda: here.mode and there.mode)
        self.world.network.partition(self.client.address, self.server.address)
        here.transport.write(b"last words")
        here.transport.loseConnection()
        self.wait(0.01)
        (link,) = linkGroups(self.client, DEVICE).links()
        link.broken("for the test")
        self.until(lambda: here.reason and there.reason)
        self.assertEqual((here.reason, there.reason), (ConnectionLost, ConnectionLost))
        self.assertEqual((there.received, there.hasEnded), (b"", False))

    def test_serverThatFallsBackAloneReportsNoOrderlyEnd(self) -> None:
        first, _ = self.pair()
        here, there, sockets = self.connect(
            Listener(lambda self: self.transport.write(b"hello")), latency=0.2
        )
        self.until(lambda: here.mode)
        [group] = linkGroups(self.server, DEVICE).groups()
        group.close("for the test")
        self.until(lambda: sockets[1].isClosed, 20)
        self.assertEqual((here.mode, here.reason), ("SMC-R", ConnectionLost))
        self.assertFalse(there.hasEnded)
        self.assertIn(there.reason, (None, ConnectionLost))

    def test_writerToKilledProcessIsNotifiedOfItsEnd(self) -> None:
        here, there, sockets = self.connect(latency=0.05)
        for end in self.negotiations:
            end._decline(Diagnosis.MEM)
        self.until(lambda: here.mode and there.mode)
        here.transport.pauseProducing()
        there.transport.write(bytes(100_000))
        self.wait(0.001)
        self.client.die(silently=False)
        self.until(lambda: there.reason)
        self.assertEqual(there.reason, ConnectionLost)

    def test_impostorGetsItsOwnGroupAndCannotRetireOthers(self) -> None:
        first, _ = self.pair()
        [remoteGroup] = linkGroups(self.server, DEVICE).groups()
        (reported,) = linkGroups(self.client, DEVICE).candidates
        impostor = Host(self.world, "198.51.100.3", lambda: None)
        socket = self.connectSocket(self.accepting(self.options, Listener()), impostor)
        socket.send(self.proposal())
        self.until(lambda: socket.isReadable)
        accept = decode(socket.recv(1000))
        assert isinstance(accept, Accept)
        self.assertTrue(accept.firstContact)
        self.assertEqual(len(remoteGroup.core.connections), 1)
        socket.send(Decline(reported.peerID, Diagnosis.SYNCERR, outOfSync=True).encode())
        self.wait(1)
        self.assertEqual(linkGroups(self.server, DEVICE).groups(), [remoteGroup])
        again, _ = self.pair()
        self.assertEqual(len(remoteGroup.core.connections), 2)

    def test_serverThatNamesAnothersGroupIsDeclined(self) -> None:
        first, _ = self.pair()
        [remoteGroup] = linkGroups(self.client, DEVICE).groups()
        reported = linkGroups(self.server, DEVICE)
        [group] = reported.groups()
        [link] = group.links
        impostor = Host(self.world, "198.51.100.3", lambda: None)
        sockets = connectedSockets(self.world, Random(1), self.client, impostor, 50_000, 1e-3)
        here = Listener()
        asking = ClientNegotiation(
            self.client, Options(device=DEVICE, agreed=True), Outcomes("client"), lambda: here
        )
        MemoryTCP(sockets[0], asking).begin()
        self.until(lambda: sockets[1].isReadable)
        assert isinstance(decode(sockets[1].recv(1000)), Proposal)
        (buffer,) = group.pool
        lie = link.accept(Element(buffer, 1), 5, False, b"")
        sockets[1].send(lie.encode())
        self.until(lambda: here.mode)
        self.assertEqual((here.mode, len(remoteGroup.core.connections)), ("TCP", 1))
        self.until(lambda: sockets[1].isReadable)
        answer = decode(sockets[1].recv(1000))
        assert isinstance(answer, Decline)
        self.assertEqual((answer.diagnosis, remoteGroup.core.usable), (Diagnosis.SYNCERR, True))

    def test_clientThatWaitsForBufferFollowsServersDecline(self) -> None:
        first, _ = self.pair()
        here, there, _ = self.connect(
            Listener(lambda self: self.transport.write(b"hello")),
            Listener(lambda self: self.transport.write(b"welcome")),
        )
        self.until(lambda: self.negotiations[1]._stream)
        reserved: Deferred[Element] = Deferred()
        self.patch(LinkGroup, "reserve", lambda group, *_: reserved)
        self.until(lambda: here.mode and there.mode, CLC_TIMEOUT + LATE_DECLINE_TIMEOUT + 0.1)
        self.wait(0.1)
        self.assertEqual((here.mode, there.mode), ("TCP", "TCP"))
        self.assertEqual((here.received, there.received), (b"welcome", b"hello"))
        self.assertTrue(reserved.called, "the wait for the buffer has ended")

    def test_confirmAndDeclineReadAtOnceMeanTCP(self) -> None:
        first, _ = self.pair()
        here, there, sockets = self.connect(Listener(lambda self: self.transport.write(b"hello")))
        asking, accepting = self.negotiations
        self.until(lambda: accepting._stream)
        prepared: Deferred[None] = Deferred()
        self.patch(Link, "prepare", lambda link, answer: prepared)
        self.until(lambda: asking._work)
        asking._decline(Diagnosis.MEM)
        prepared.callback(None)
        self.server.sleep()
        self.wait(0.1)
        came = sockets[1]._buffer
        self.assertEqual([type(decode(raw)) for raw in came], [Confirm, Decline])
        sockets[1]._buffer = deque([b"".join(came)])
        self.server.wake()
        self.until(lambda: here.mode and there.received)
        self.assertEqual((here.mode, there.mode, there.received), ("TCP", "TCP", b"hello"))

    def test_lateDeclinesAreNoData(self) -> None:
        here, there, sockets = self.connect(
            Listener(lambda self: self.transport.write(b"hello")), latency=0.2
        )
        self.until(linkGroups(self.server, DEVICE).links)
        sockets[0].wire.freeze()
        for end in self.negotiations:
            end._decline(Diagnosis.MEM)
        self.until(lambda: here.mode and there.mode)
        there.transport.write(b"welcome")
        self.wait(3)
        sockets[0].wire.thaw()
        self.wait(1)
        self.assertEqual((here.mode, there.mode), ("TCP", "TCP"))
        self.assertEqual((here.received, there.received), (b"welcome", b"hello"))

    def test_lastBytesReachEndThatWaitsForLateDecline(self) -> None:
        for output in (b"", b"\xe2", b"bye"):

            def writeAndClose(listener: Listener, output: bytes = output) -> None:
                listener.transport.write(output)
                listener.transport.loseConnection()

            here, there, _ = self.connect(Listener(writeAndClose), latency=0.2)
            self.until(linkGroups(self.server, DEVICE).links)
            self.negotiations[1]._decline(Diagnosis.MEM)
            self.wait(1)
            self.assertEqual((there.mode, there.received, there.hasEnded), ("TCP", output, True))

    def test_lastBytesOfPlainClientReachEndThatWaitsForDecline(self) -> None:
        for output in (b"", b"\xe2", b"bye"):
            there = Listener()
            socket = self.connectSocket(self.accepting(Options(device=DEVICE), there), latency=0.1)
            if output:
                socket.send(output)
            socket.shutdown(1)
            self.wait(1)
            self.assertEqual((there.mode, there.received, there.hasEnded), ("TCP", output, True))

    def test_pausedEndsThatCloseWithFullRingsEndWithoutDelivery(self) -> None:
        here, there = self.pair()
        for end in (here, there):
            end.transport.pauseProducing()
            end.transport.write(bytes(100_000))
            end.transport.loseConnection()
        self.until(lambda: here.reason and there.reason)
        self.assertIn(ConnectionDone, (here.reason, there.reason))

    def test_clientMayWriteAndCloseBeforeConfirm(self) -> None:
        first, _ = self.pair()
        here, there, _ = self.connect(latency=0.2)
        self.until(lambda: here.mode)
        for number in range(150):
            here.transport.write(b"%4d" % number)
            self.wait(1e-4)
        here.transport.loseConnection()
        self.wait(1e-3)
        self.assertEqual(there.mode, "")
        self.until(lambda: there.hasEnded)
        self.assertEqual(there.received, b"".join(b"%4d" % number for number in range(150)))

    def test_linkRetiredWhileNotifyingPeerGetsNoConnection(self) -> None:
        first, _ = self.pair()
        groups = linkGroups(self.client, DEVICE)
        groups.ringSize = lambda: 32768  # type: ignore[method-assign]  # which is not there yet
        [group] = groups.groups()
        [link] = group.links
        here, there, _ = self.connect()
        self.until(lambda: group.pool.announced)
        group.retire()
        self.until(lambda: here.mode and there.mode)
        self.assertEqual((here.mode, there.mode), ("TCP", "TCP"))
        self.assertIs(first.reason, None)

    def test_groupThatCannotAnnounceBufferIsReplaced(self) -> None:
        """The failure of a link without connections may not be noticed before the next connection."""
        skipIfCompiled()
        for each in self.pair():
            each.transport.loseConnection()
        self.wait(1)
        [group] = self.groupsOf[self.server].groups()
        sending: Any = group.links[0]
        refused = mock.Mock(side_effect=RDMAError("the queue pair has failed"))
        with mock.patch.object(type(sending._queuePair), "postSend", refused):
            here, there, _ = self.connect(rcvbuf=65536)
            self.until(lambda: group.isOver)
        self.until(lambda: here.mode and there.mode)
        self.assertEqual((here.mode, there.mode), ("SMC-R", "SMC-R"))

    def test_allUnusedBuffersButOneAreReleased(self) -> None:
        here, there = self.pair()
        [group] = linkGroups(self.client, DEVICE).groups()
        for _ in range(3):
            buffer = group.pool.grow(16384, group.domainOf(group.links[0].port))
            buffer.isAgreed = True
            buffer.give(buffer.take(), quiet=False)
        here.transport.loseConnection()
        there.transport.loseConnection()
        self.wait(1)
        self.assertEqual([buffer.isWhole for buffer in group.pool], [True])

    def test_bufferOfConnectionThatEndedEarlyIsReleased(self) -> None:
        first, _ = self.pair()
        groups = linkGroups(self.client, DEVICE)
        [group] = groups.groups()
        for _ in range(2):
            buffer = group.pool.grow(32768, group.domainOf(group.links[0].port))
            group.pool.announce(buffer)
            group.core.confirmRKey(buffer.rkey, buffer.region.address, self.client.seconds())
        group._turnCore()
        self.wait(1)
        self.assertEqual(sorted(buffer.size for buffer in group.pool), [16384, 32768])
