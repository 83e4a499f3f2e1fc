"""Long messages, which the receiver reads: limits, order, cancellation, and peers that break the rules."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any
from unittest.mock import Mock

from twisted.internet.error import ConnectionDone, ConnectionLost

from txrdma.cm.connections.endpoints import USUAL
from txrdma.cm.connections.longmessages import HAS_READ
from txrdma.cm.connections.sendqueue import ANNOUNCEMENT, OUTSTANDING, Request
from txrdma.cm.terms import LONGEST, Terms
from txrdma.error import InvalidRequest, ResourceExhausted
from txrdma.iba.headers import Opcode
from txrdma.iba.verbs import Operation, SendRequest
from txrdma.messages.memory import MemoryName
from txrdma.sim.network import Faults
from txrdma.test.support.cm.messaging import MessagingCase
from txrdma.testing.protocols import MessageRecorder

CONTENT = Random(1).randbytes(200_000)
"""Bytes of messages."""


class LimitTests(MessagingCase):
    """The length of the longest message is known when the connection is established."""

    def test_limits(self) -> None:
        """Each end knows the limit of its peer, and does not exceed it."""
        for client, server, limits in (
            (USUAL, replace(USUAL, longest=70_000), (70_000, LONGEST)),
            (replace(USUAL, usesCredits=False), USUAL, (4096, 4096)),
            (USUAL, replace(USUAL, reads=0), (4096, 4096)),
            (USUAL, replace(USUAL, messageBytes=8), (8, 8)),
        ):
            transports = [end.transport for end in self.connected(client, server)]
            for transport, limit in zip(transports, limits, strict=True):
                self.assertEqual(transport.agreed.longest, limit)
                self.assertRaises(InvalidRequest, transport.send, bytes(limit + 1))

    def test_longestMessageArrives(self) -> None:
        """A message of exactly the limit arrives; one that is a byte longer is refused by its sender."""
        client, server = self.connected(USUAL, replace(USUAL, longest=len(CONTENT)))
        self.result(client.transport.send(CONTENT, 3))
        self.assertRaises(InvalidRequest, client.transport.sendMessage, CONTENT + b"x")
        self.assertTrue(server.messages == [(CONTENT, 3)])


class LongMessageTests(MessagingCase):
    def test_manyLongMessagesWithFewReceives(self) -> None:
        """No request arrives without a posted receive, and both ends deliver all messages in order."""
        for seed in range(4):
            random = Random(seed)
            terms = [
                Terms(64, random.randrange(1, 6), random.randrange(1, 6), 1, rnrRetryCount=0)
                for _ in range(2)
            ]
            ends = self.connected(*terms)
            self.network.faults = Faults(0.01, 0.01, jitterSeconds=0.001) if seed % 2 else Faults()
            sent = [
                [CONTENT[: random.choice((0, 64, 65, 5000))] + bytes([n]) * (n % 3) for n in range(60)]
                for _ in ends
            ]
            for end, messages in zip(ends, sent, strict=True):
                for message in messages:
                    end.transport.sendMessage(message)
            self.wait(lambda ends=ends: len(ends[0].messages) == len(ends[1].messages) == 60, 60)  # type: ignore[misc]  # a lambda
            for end, messages in zip(ends[::-1], sent, strict=True):
                self.assertTrue([data for data, _ in end.messages] == messages, f"seed {seed}")
            ends[0].transport.loseConnection()
            self.wait(lambda ends=ends: ends[1].lost)  # type: ignore[misc]  # a lambda
            self.network.faults = Faults()
            if not seed % 2:  # an acknowledgement may be lost
                ends[1].lost[0].trap(ConnectionDone)
        self.assertNothingLeft(200)

    def test_sendFiresWhenThePeerHasTheMessage(self) -> None:
        """C{send} fires when the bytes are read, and then the memory is released."""
        client, server = self.connected()
        server.transport.pauseProducing()
        sent = [client.transport.send(CONTENT) for _ in range(OUTSTANDING + 2)]
        self.pause(1.0)
        self.assertEqual([each.called for each in sent], [False] * len(sent))
        self.assertEqual(len(client.transport._regions._regions), OUTSTANDING)
        server.transport.resumeProducing()
        for each in sent:
            self.result(each)
        self.wait(lambda: len(server.messages) == len(sent))
        self.assertEqual(len(client.transport._regions._regions), 0)

    def test_pausedWhileReading(self) -> None:
        """A message that was read while the protocol was paused is delivered when it resumes."""
        client, server = self.connected()
        done = client.transport.send(CONTENT)
        client.transport.sendMessage(b"behind")
        self.wait(lambda: server.transport._life.isReading)
        server.transport.pauseProducing()
        self.result(done)
        self.pause(1.0)
        self.assertEqual(server.messages, [])
        server.transport.resumeProducing()
        self.assertTrue(server.messages == [(CONTENT, None), (b"behind", None)])

    def test_closedBySenderOnFaultyNetwork(self) -> None:
        """A receiver ends with C{ConnectionDone}, even if the acknowledgement of its report is lost."""
        for seed in range(12):
            self.network.reseed(seed)
            client, server = self.connected()
            self.network.faults = Faults(0.2)
            client.transport.sendMessage(CONTENT[:5000])
            self.closed(client, server, 100)
            self.network.faults = Faults()
            self.assertEqual((server.ends, len(server.messages)), (["ConnectionDone"], 1), f"seed {seed}")
        self.assertNothingLeft(200)

    def test_closedByReceiver(self) -> None:
        """If a receiver closes in C{messageReceived}, the sender of the message gets C{ConnectionDone}."""
        client, server = self.connected()
        server.messageReceived = lambda data, immediate: server.transport.loseConnection()  # type: ignore[method-assign]  # for the test
        client.transport.sendMessage(CONTENT)
        self.wait(lambda: client.lost and server.lost)
        self.assertEqual((client.ends, server.ends), (["ConnectionDone"], ["ConnectionDone"]))
        self.assertNothingLeft()

    def test_receiverClosesBeforeItIsRead(self) -> None:
        """C{send} fails for an unread message and those behind it. The receiver gets C{ConnectionDone}."""
        client, server = self.connected()
        self.result(client.transport.send(b"before"))
        sent = [client.transport.send(data) for data in (CONTENT, b"behind", CONTENT, b"last")]
        self.wait(lambda: server.transport._life.isReading)
        self.network.drop(lambda packet: packet.bth.opcode is Opcode.RC_RDMA_READ_REQUEST, 10)
        self.pause(0.01)
        self.assertEqual([each.called for each in sent], [False] * 4)
        server.transport.loseConnection()
        self.wait(lambda: client.lost and server.lost)
        self.assertEqual((client.ends, server.ends), (["ConnectionLost"], ["ConnectionDone"]))
        self.assertEqual(server.messages, [(b"before", None)])
        for each in sent:
            self.failureResultOf(each, ConnectionLost)
        self.assertNothingLeft()

    def test_messageBetweenLongOnes(self) -> None:
        """C{send} fires for a message when the long one before it is read; one behind it may be unread."""
        client, server = self.connected()
        received = server.messageReceived

        def messageReceived(data: bytes, immediate: int | None) -> None:
            received(data, immediate)
            if data == b"between":
                server.transport.pauseProducing()

        server.messageReceived = messageReceived  # type: ignore[method-assign]  # for the test
        sent = [client.transport.send(data) for data in (CONTENT, b"between", CONTENT, b"last")]
        self.result(sent[1])
        self.pause(1.0)
        self.assertEqual([each.called for each in sent], [True, True, False, False])
        server.transport.resumeProducing()
        self.result(sent[3])
        self.assertEqual(len(server.messages), 4)

    def test_fewMessagesBehindLongOne(self) -> None:
        """As many messages are sent behind an unread long one as requests may be posted."""
        client, server = self.connected(replace(USUAL, sends=4))
        for _ in range(40):  # until the peer has posted all its receives
            self.result(client.transport.send(b"before"))
        server.transport.pauseProducing()
        sent = [client.transport.send(data) for data in (CONTENT, *(b"behind",) * 20)]
        self.pause(1.0)
        self.assertEqual(len(client.transport._sends.waiting), 16)
        server.transport.resumeProducing()
        self.result(sent[-1])
        self.assertEqual(len(server.messages), 40 + len(sent))

    def test_senderAborts(self) -> None:
        """If the sender aborts while a message is read, later messages are not delivered either."""
        client, server = self.connected()
        client.transport.sendMessage(CONTENT)
        client.transport.sendMessage(b"behind")
        self.wait(lambda: server.transport._life.isReading)
        client.transport.abortConnection()
        self.wait(lambda: server.lost)
        self.assertEqual((server.messages, server.ends), ([], ["ConnectionLost"]))
        self.assertNothingLeft()

    def test_senderAbortsBeforeItIsRead(self) -> None:
        """When the peer aborts, a paused receiver gets connectionLost instead of the queued messages."""
        client, server = self.connected()
        server.transport.pauseProducing()
        done = client.transport.send(CONTENT)
        client.transport.sendMessage(b"behind")
        self.pause(1.0)
        client.transport.abortConnection()
        self.failureResultOf(done)
        self.pause(1.0)
        server.transport.resumeProducing()
        self.assertEqual((server.messages, server.ends), ([], ["ConnectionLost"]))
        self.assertNothingLeft()

    def test_cancelled(self) -> None:
        """A cancelled message is not sent, unless it was already announced."""
        client, server = self.connected()
        server.transport.pauseProducing()
        sent = [client.transport.send(bytes([n]) * 5000) for n in range(OUTSTANDING + 3)]
        self.pause(1.0)
        for each in (sent[0], sent[OUTSTANDING + 1]):
            each.cancel()
            self.failureResultOf(each)
        server.transport.resumeProducing()
        for each in (*sent[1 : OUTSTANDING + 1], sent[-1]):
            self.result(each)
        found = [data[0] for data, _ in server.messages]
        self.assertEqual(found, [n for n in range(len(sent)) if n != OUTSTANDING + 1])
        self.closed(client, server)
        self.assertNothingLeft()

    def test_memoryIsShort(self) -> None:
        """A receiver without memory closes this connection only."""
        client, server = self.connected()
        others = self.result(self.again())
        self.patch(
            server.transport.adapter.receives, "take", Mock(side_effect=ResourceExhausted("no memory"))
        )
        client.transport.sendMessage(CONTENT)
        self.wait(lambda: client.lost and server.lost)
        self.assertIn("no memory", server.lost[0].getErrorMessage())
        self.result(others.transport.send(b"still here"))

    def test_messageIsSentWithoutMemoryThatPeersCanMap(self) -> None:
        """A sender without descriptors registers memory of its own."""
        client, server = self.connected()
        domain = client.transport.adapter.domain
        self.patch(domain, "allocateMemory", Mock(side_effect=ResourceExhausted("no descriptor")))
        self.result(client.transport.send(CONTENT))
        self.assertEqual(server.messages, [(CONTENT, None)])

    def test_senderWithoutMemory(self) -> None:
        """A sender without any memory closes this connection."""
        client, server = self.connected()
        domain = client.transport.adapter.domain
        self.patch(domain, "allocateMemory", Mock(side_effect=ResourceExhausted("no memory")))
        self.patch(domain, "registerMemory", Mock(side_effect=MemoryError))
        client.transport.sendMessage(CONTENT)
        self.wait(lambda: client.lost and server.lost)
        self.assertIn("no memory", client.lost[0].getErrorMessage())


class LiarTests(MessagingCase):
    """A violation by the peer ends only the violated connection."""

    def post(self, end: MessageRecorder, operation: Operation, immediate: int = 0, data: Any = None) -> None:
        """Send a request that the transport would not send."""
        end.transport._ask(Request(SendRequest(0, operation, immediate=immediate), True, data))

    def test_wrongNames(self) -> None:
        """An invalid announcement ends the receiver's connection with the reason."""

        def name(address: int, key: int, length: int) -> bytes:
            return MemoryName(address=address, key=key, length=length).encode()

        for data, expected in (
            (name(4096, 1, LONGEST + 1), f"a message of {LONGEST + 1} bytes"),
            (name(4096, 1, 4096), "a message of 4096 bytes"),
            (b"hello", "without a name"),
            (name(0, 0, 5000) + b"x", "a message of 5000 bytes"),
            (name(1, 2, 5000), "REM_ACCESS_ERR"),
        ):
            client, server = self.connected()
            self.post(client, Operation.RDMA_WRITE_WITH_IMMEDIATE, ANNOUNCEMENT)
            self.post(client, Operation.SEND, 0, data)
            self.wait(lambda c=client, s=server: c.lost and s.lost)  # type: ignore[misc]  # a lambda
            self.assertIn(expected, server.lost[0].getErrorMessage())
            self.assertEqual(server.messages, [])
            self.assertNothingLeft()

    def test_unexpectedReport(self) -> None:
        """A report that a message was read ends the connection, unless the message was sent."""
        client, server = self.connected()
        self.post(client, Operation.RDMA_WRITE_WITH_IMMEDIATE, HAS_READ)
        self.wait(lambda: client.lost and server.lost)
        self.assertEqual(server.ends, ["ConnectionLost"])
        self.assertIn("was not sent", server.lost[0].getErrorMessage())

    def test_announcementsOnly(self) -> None:
        """Announcements without a name use credits, and have no other effect."""
        client, server = self.connected()
        for _ in range(200):
            self.post(client, Operation.RDMA_WRITE_WITH_IMMEDIATE, ANNOUNCEMENT)
        self.pause(1.0)
        server.transport.sendMessage(CONTENT)
        self.wait(lambda: client.messages)
        self.assertEqual((client.ends, server.ends, server.messages), ([], [], []))

    def test_announcementWithoutGreeting(self) -> None:
        """An end that reads no long messages treats an announcement as an invalid return of credits."""
        client, server = self.connected(USUAL, replace(USUAL, reads=0))
        self.post(client, Operation.RDMA_WRITE_WITH_IMMEDIATE, ANNOUNCEMENT)
        self.wait(lambda: client.lost and server.lost)
        server.lost[0].trap(ConnectionLost)
        self.assertIn("more credits", server.lost[0].getErrorMessage())
