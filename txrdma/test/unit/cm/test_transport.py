"""Connections for messages, on a simulated network: events of protocols, and release of resources."""

from __future__ import annotations

import mmap
from ctypes import addressof, c_char
from dataclasses import replace
from pathlib import Path
from secrets import randbelow
from typing import Any
from unittest import skipUnless
from unittest.mock import Mock

from twisted.internet.defer import CancelledError
from twisted.internet.error import ConnectionDone, ConnectionLost, TimeoutError
from twisted.internet.protocol import Factory

from txrdma.cm.connections._credits import FIRST_RECEIVES, SPARE
from txrdma.cm.connections.endpoints import USUAL
from txrdma.cm.connections.protocol import RDMAProtocol
from txrdma.cm.errors import PeerSilent, Rejected, Rejection
from txrdma.cm.layouts.messages import RejectReason, RTU
from txrdma.cm.manager import ConnectionManager
from txrdma.cm.rsocket.endpoints import RSocketClientEndpoint, RSocketServerEndpoint
from txrdma.cm.terms import LONGEST, Terms
from txrdma.error import InvalidRequest, ProtectionError
from txrdma.iba.types import MTU
from txrdma.iba.verbs import Completion, CompletionOpcode, Operation, SendRequest, Status
from txrdma.mad.ports import verbsport
from txrdma.messages.protocol import MessageFactory
from txrdma.sim.network import Faults
from txrdma.soft import device as softdevice
from txrdma.soft.core.memory import PAGE
from txrdma.soft.core.queuepair import SoftQueuePair
from txrdma.soft.core.recent import RecentNumbers
from txrdma.test.support.cm.messaging import MessagingCase, PORT
from txrdma.testing.protocols import MessageRecorder, ProducerRecorder, Recorder, Recorders


class OpeningTests(MessagingCase):
    def test_negotiatedTerms(self) -> None:
        terms = Terms(messageBytes=1000, receives=5, reads=2, mtu=MTU.MTU_512, retryCount=5, rnrRetryCount=6)
        client, server = self.connected(terms, Terms(messageBytes=3000, receives=9, reads=3))
        here, there = client.transport.agreed, server.transport.agreed
        self.assertEqual((here.messageBytes, there.messageBytes), (1000, 1000))
        self.assertEqual((here.receives, there.receives), (9, 5))
        self.assertEqual((here.mtu, there.mtu), (MTU.MTU_512, MTU.MTU_512))
        self.assertEqual((here.initiatorDepth, here.responderResources), (2, 2))
        self.assertEqual((there.initiatorDepth, there.responderResources), (2, 2))
        self.assertEqual((here.retryCount, there.retryCount), (5, 5))
        self.assertEqual((here.rnrRetryCount, there.rnrRetryCount), (7, 6))
        pair: Any = client.transport._pair
        attributes = pair.query()
        self.assertEqual((attributes.pathMTU, attributes.retryCount), (MTU.MTU_512, 5))
        self.assertEqual((attributes.maxRDAtomic, attributes.maxDestRDAtomic), (2, 2))

    def test_privateDataBothWays(self) -> None:
        factory = Recorders(lambda: self.made(b"welcome\0\0"))
        self.serve(factory)
        client = self.result(self.ask(privateData=b"\0hello\0"))
        self.assertEqual(factory.addresses[0].privateData, b"\0hello\0")
        self.assertEqual(factory.addresses[0].qpn, client.transport.qpn)
        self.wait(lambda: self.served[0].isMade)
        self.assertEqual(client.transport.getPeer().privateData, b"welcome\0\0")
        self.assertEqual(client.transport.getPeer().qpn, self.served[0].transport.qpn)
        self.assertEqual(client.transport.getHost().gid, self.path().sgid)
        self.assertEqual(self.served[0].transport.getPeer().gid, self.path().sgid)

    def test_factoryRejects(self) -> None:
        self.serve(MessageFactory(Mock(side_effect=Rejection(RejectReason.CONSUMER_REJECT, b"not today"))))
        error = self.failure(self.ask(), Rejected)
        self.assertEqual(error.status, RejectReason.CONSUMER_REJECT)
        self.assertEqual(error.privateData, b"not today")
        self.assertNothingLeft()

    def test_factoryStopsListening(self) -> None:
        """A factory may stop listening after its first connection, which continues."""

        def build() -> MessageRecorder:
            port.stopListening()
            return self.made()

        port = self.serve(MessageFactory(build))
        client = self.result(self.ask())
        client.transport.sendMessage(b"to the only one")
        self.wait(lambda: self.served[0].messages)
        self.closed(client, self.served[0])
        self.assertNothingLeft()

    def test_factoryStopsListeningAndRejects(self) -> None:
        """A factory that stops listening and returns no protocol rejects the client."""
        port = self.serve(MessageFactory(lambda: port.stopListening() and None))
        error = self.failure(self.ask(), Rejected)
        self.assertEqual(error.status, RejectReason.CONSUMER_REJECT)
        self.assertNothingLeft()

    def test_rejectedMTUIsRetriedSmaller(self) -> None:
        self.serve(terms=Terms(mtu=MTU.MTU_512))
        client = self.result(self.ask())
        self.wait(lambda: self.served[-1].isMade)
        for end in (client, self.served[-1]):
            self.assertEqual(end.transport.agreed.mtu, MTU.MTU_512)
        client.transport.loseConnection()
        self.wait(lambda: client.lost)
        self.assertNothingLeft()

    def test_endBeforeEstablished(self) -> None:
        """
        A protocol is not connected to a transport that has ended before.

        The first message of a peer, which replaces a lost RTU, is invalid, and is read at the end of another
        connection.
        """
        beside, other = self.connected()
        port = self.serve()
        real = ConnectionManager._send

        def send(manager: ConnectionManager, message: object, *arguments: Any) -> None:
            if not isinstance(message, RTU):
                real(manager, message, *arguments)

        self.patch(ConnectionManager, "_send", send)
        client = self.result(self.ask())
        port.stopListening()
        other.transport._shared.reader.stop()
        tooMany = SendRequest(0, Operation.RDMA_WRITE_WITH_IMMEDIATE, immediate=1000)
        client.transport._sends.postOverhead(client.transport._pair, tooMany)
        self.pause(0.01)
        self.closed(beside, other)
        self.wait(lambda: client.lost)
        server = self.served[1]
        self.assertEqual((server.isMade, server.lost), (False, []))
        self.assertNothingLeft()

    def test_unusableMTURejectionEnds(self) -> None:
        reported: list[int] = []

        def refuse() -> RDMAProtocol:
            advice = advices.pop(0)
            reported.append(advice)
            raise Rejection(RejectReason.INVALID_PATH_MTU, b"", bytes([advice]))

        self.serve(MessageFactory(refuse))
        for advices in ([0], [3], [6], [255], [2, 2], [2, 5], [2, 1, 0]):
            reported.clear()
            expected = list(advices)
            asked = self.ask(Terms(mtu=MTU.MTU_4096))
            self.pause(1.0)
            error = self.failureResultOf(asked, Rejected).value
            self.assertEqual((error.status, reported), (RejectReason.INVALID_PATH_MTU, expected))
        self.assertNothingLeft()

    def reuseNumber(self) -> tuple[list[int], MessageRecorder]:
        """
        Let the client's next queue pair have the number of the last one, as if the device reused it at once.

        @return: a list from which this number is removed when it is used, and another connection's protocol.
        """
        client, server = self.connected()
        beside: MessageRecorder = self.result(self.again())  # so that the devices remain open
        numbers = [client.transport.qpn]
        self.closed(client, server)
        self.devices[0]._oldNumbers = RecentNumbers(1)
        self.patch(softdevice, "randbelow", lambda most: numbers.pop() if numbers else randbelow(most))
        return numbers, beside

    def test_staleQueuePairIsReplaced(self) -> None:
        """If the local queue pair's number is still in use at the peer, another queue pair is used."""
        numbers, beside = self.reuseNumber()
        (number,) = numbers
        again = self.result(self.again())
        self.assertEqual(numbers, [])
        self.assertNotEqual(again.transport.qpn, number)
        self.assertEqual(again.transport.connection.request.localQPN, again.transport.qpn)
        self.result(again.transport.send(b"hello"))
        for each in (again, beside):
            each.transport.loseConnection()
        self.wait(lambda: again.lost and beside.lost)
        self.assertNothingLeft()

    def test_staleQueuePairOfStreamIsReplaced(self) -> None:
        """The memory of a stream, of which the private data informs the peer, is allocated again."""
        numbers, beside = self.reuseNumber()
        made = Recorders()
        connected = made.next()
        self.listenAt(made, RSocketServerEndpoint)
        client = self.result(self.connectTo(Factory.forProtocol(Recorder), RSocketClientEndpoint))
        self.assertEqual(numbers, [])
        client.transport.write(b"to the server")
        server = self.result(connected)
        server.transport.write(b"to the client")
        self.assertEqual(self.result(client.receiving(13)), b"to the client")
        self.assertEqual(self.result(server.receiving(13)), b"to the server")
        for each in (client, beside):
            each.transport.loseConnection()
        self.wait(lambda: client.lost.called and beside.lost)
        self.assertNothingLeft()

    def test_queuePairsUseThePartitionOfThePath(self) -> None:
        tables = [0xFFFF, 0x8005, 0x8007], [0x0007, 0xFFFF]
        for device, table in zip(self.devices, tables, strict=True):
            self.patch(device, "pkeys", lambda port, table=table: table)
        self.patch(softdevice, "PKEYS", tables[0])  # partitions that can be requested
        self.patch(verbsport, "partitionIndex", lambda table, pkey: 0)  # of management, in both tables
        self.serve()
        client = self.result(self.ask(pkey=0x8007))
        self.wait(lambda: self.served[-1].isMade)
        pairs: list[Any] = [each.transport._pair for each in (client, self.served[-1])]
        self.assertEqual([pair.query().pkeyIndex for pair in pairs], [2, 0])
        error = self.failure(self.ask(pkey=0x8005), Rejected)
        self.assertEqual(error.status, RejectReason.UNSUPPORTED_REQUEST)
        self.assertIn(
            "partition 0x8006", str(self.failureResultOf(self.ask(pkey=0x8006), InvalidRequest).value)
        )

    def test_timeout(self) -> None:
        """An attempt fails after its timeout or the last unanswered REQ, and releases everything."""
        self.network.partition(*(each[0] for each in self.addresses))
        self.failure(self.ask(Terms(responseTimeout=10, maxCMRetries=2)), PeerSilent)
        for timeout in (0.5, 3.0):
            begun = self.clock.seconds()
            self.failure(self.connectBy(self.path(), timeout=timeout), PeerSilent)
            self.assertApproximates(self.clock.seconds() - begun, timeout, 0.1)
        self.assertNothingLeft()

    def test_timeoutOfStream(self) -> None:
        """A stream's attempt fails after the timeout in its string, as over TCP."""
        self.network.partition(*(each[0] for each in self.addresses))
        begun, host = self.clock.seconds(), self.addresses[1][0]
        endpoint = RSocketClientEndpoint(self.clock, host, PORT, self.devices[0], timeout=3.0)
        self.failure(endpoint.connect(Factory()), TimeoutError)
        self.assertApproximates(self.clock.seconds() - begun, 3.0, 0.1)
        self.assertNothingLeft()

    def test_endsWaitForEachOther(self) -> None:
        """An end whose process is stopped for fifteen seconds during the opening connects afterwards."""
        self.serve()
        for each in self.addresses:
            answer = self.ask()
            self.network.sleep(each[0])
            self.pause(15.0)
            self.assertNoResult(answer)
            self.network.wake(each[0])
            client = self.result(answer)
            self.result(client.transport.send(b"hello"))


class MessageTests(MessagingCase):
    """Data in both directions."""

    def test_writeIsReportedToPeer(self) -> None:
        client, server = self.connected()
        shared = server.transport.share(100)
        self.result(client.transport.write(shared.name, b"hello", 10))
        self.assertEqual((bytes(shared.view[9:16]), server.writes), (b"\0hello\0", []))
        self.result(client.transport.write(shared.name, b"hello", immediate=99))
        self.wait(lambda: server.writes)
        self.assertEqual((server.writes, bytes(shared.view[:5])), ([(5, 99)], b"hello"))
        self.assertRaises(InvalidRequest, client.transport.write, shared.name, b"", 0, 1)
        self.assertEqual(server.messages, [])

    def test_readsRefusedByPeer(self) -> None:
        client, server = self.connected(serverTerms=Terms(reads=0))
        name = server.transport.share(8).name
        self.assertRaises(InvalidRequest, client.transport.read, name, 8)
        self.assertRaises(InvalidRequest, client.transport.fetchAndAdd, name, 1)

    def test_invalidRequestsAreRefused(self) -> None:
        client, _server = self.connected()
        self.assertRaises(InvalidRequest, client.transport.sendMessage, bytes(LONGEST + 1))
        self.assertRaises(InvalidRequest, client.transport.registerProducer, ProducerRecorder(), False)

    def test_closedMemoryEndsBothEnds(self) -> None:
        client, server = self.connected()
        shared = server.transport.share(8)
        shared.close()
        reading, behind = client.transport.read(shared.name, 8), client.transport.send(b"behind")
        self.wait(lambda: client.lost and server.lost)
        self.failureResultOf(reading, ProtectionError)
        self.failureResultOf(behind, ConnectionLost)
        client.lost[0].trap(ConnectionLost)
        self.assertIn("REM_ACCESS_ERR", client.lost[0].getErrorMessage())
        self.failureResultOf(client.transport.read(shared.name, 8), ConnectionLost)
        self.assertRaises(InvalidRequest, server.transport.share, 8)
        self.assertNothingLeft()

    def test_receivesIncreaseWithUse(self) -> None:
        """An end doubles its posted receives when half of them are used; without credits it posts all."""
        client, server = self.connected()
        usual, first = USUAL.receives + SPARE, FIRST_RECEIVES + SPARE
        self.assertEqual([len(end.transport._pair.receives) for end in (client, server)], [first] * 2)
        posted: list[int] = []
        for _ in range(14):
            client.transport.sendMessage(b"x")
            self.wait(lambda: len(server.messages) > len(posted))
            posted.append(len(server.transport._pair.receives))
        self.assertEqual(posted, [8] + [12] * 4 + [20] * 8 + [usual])
        self.assertEqual(len(client.transport._pair.receives), first)
        for _ in range(FIRST_RECEIVES + 1):
            server.transport.sendMessage(b"x")
        self.wait(lambda: len(client.messages) == FIRST_RECEIVES + 1)
        self.assertEqual(len(client.transport._pair.receives), usual)
        ends = self.connected(replace(USUAL, usesCredits=False), USUAL)
        self.assertEqual([len(end.transport._pair.receives) for end in ends], [usual] * 2)

    def test_idleConnectionsShareTheirEmptyQueue(self) -> None:
        """A connection that has sent its messages has no deque, which takes 0.7 KiB."""
        client, server = self.connected()
        self.result(client.transport.send(b"x"))
        self.assertIs(client.transport._sends.waiting, server.transport._sends.waiting)

    def test_attributesShareTheirKeys(self) -> None:
        """CPython shares the keys of up to 30 attributes; one more takes 1.4 KiB of each instance."""
        for end in self.connected():
            self.assertLessEqual(len(vars(end.transport)), 30)

    def test_faultyNetworkDeliversOnceInOrder(self) -> None:
        for seed in range(4):
            self.network.reseed(seed)
            client, server = self.connected(Terms(2000, 4, 4), Terms(2000, 3, 5))
            self.network.faults = Faults(0.05, 0.05, 0.01, jitterSeconds=0.001)
            messages = [bytes([index]) * (index * 20) for index in range(100)]
            for message in messages:
                client.transport.sendMessage(message, len(message))
            self.closed(client, server, 100)
            self.network.faults = Faults()
            self.assertEqual(server.messages, [(message, len(message)) for message in messages])
            for each in (client, server):
                each.lost[0].trap(ConnectionDone)
        self.assertNothingLeft(200)

    def test_peerWithoutCredits(self) -> None:
        client, server = self.connected(Terms(64, 2, 8, usesCredits=False), Terms(64, 2, 8))
        self.assertIsNone(client.transport.agreed.receives)
        self.assertIsNone(server.transport.agreed.receives)
        for index in range(50):
            client.transport.sendMessage(bytes([index]))
            server.transport.sendMessage(bytes([index]))
        self.wait(lambda: len(server.messages) == len(client.messages) == 50)
        self.assertEqual(b"".join(data for data, _ in server.messages), bytes(range(50)))


class SlotTests(MessageTests):
    """The tests of L{MessageTests} on devices that send from registered memory, as adapters do."""

    def setUp(self) -> None:
        super().setUp()
        for device in self.devices:
            device.limits = replace(device.limits, maxInline=64)

    def test_cancelledWritesReturnTheirMemory(self) -> None:
        """A write that is cancelled while it waits for a credit returns its registered memory."""
        client, server = self.connected()
        name = server.transport.share(100).name
        server.transport.pauseProducing()
        for _ in range(FIRST_RECEIVES):
            client.transport.sendMessage(b"x")
        regions: list[int] = []
        for _ in range(20):
            waiting = client.transport.write(name, bytes(100), 0, 1)
            regions.append(len(self.devices[0].keys))
            waiting.cancel()
            self.failureResultOf(waiting, CancelledError)
        self.assertEqual(set(regions), {regions[0]})


class InlineTests(MessagingCase):
    """Messages on devices that accept all bytes inline."""

    def test_bytesToSendNeedNoMemory(self) -> None:
        """Software devices send the program's bytes when posted, without copying to registered memory."""
        client, server = self.connected()
        shared, data = server.transport.share(8), bytearray(b"first")
        regions = len(self.devices[0].keys)
        client.transport.sendMessage(b"x")
        written = client.transport.write(shared.name, data)
        self.assertEqual(len(self.devices[0].keys), regions)
        data[:] = b"other"
        self.result(written)
        self.assertEqual((bytes(shared.view), server.messages), (b"first\0\0\0", [(b"x", None)]))

    def test_bufferOfCancelledWrite(self) -> None:
        """A cancelled write releases its buffer, whether it was queued or posted."""
        client, server = self.connected(Terms(64, 4, 1))
        shared, buffers = server.transport.share(8), [bytearray(b"12345678") for _ in range(2)]
        for request, data in [(client.transport.write(shared.name, each), each) for each in buffers]:
            request.addErrback(lambda _, data=data: data.pop())
            request.cancel()
            self.assertEqual(self.successResultOf(request), ord("8"))

    def test_bufferOfRefusedWrite(self) -> None:
        """A write that the queue pair refuses releases its buffer."""
        client, server = self.connected(Terms(64, 4, 1))
        shared, data = server.transport.share(8), bytearray(b"12345678")
        client.transport.write(shared.name, b"posted")
        request = client.transport.write(shared.name, data).addErrback(lambda _: data.pop())
        self.patch(client.transport._pair, "postSend", Mock(side_effect=InvalidRequest))
        self.wait(lambda: client.lost)
        self.assertEqual(self.successResultOf(request), ord("8"))


class EndTests(MessagingCase):
    """The end of connections, by either end."""

    def test_flushBeforeDREPIsNoLoss(self) -> None:
        client, server = self.connected()
        pair: Any = client.transport._pair
        flushed = Completion(0, Status.WR_FLUSH_ERR, CompletionOpcode.RECEIVE, pair.number)
        for end, expected in ((client, ConnectionDone), (server, ConnectionLost)):
            if end is client:
                end.transport.sendMessage(b"last")
                end.transport.loseConnection()
                self.wait(lambda: client.transport._cm.state == "DREQ_SENT")
            end.transport.completed([flushed])
            end.lost[0].trap(expected)
        self.assertNothingLeft()

    def test_flushFoundWithDREPIsNoLoss(self) -> None:
        """The peer's queue pair may have closed before the DREP is handled, which polls completions first."""
        client, _ = self.connected()
        transport: Any = client.transport
        flushed = Completion(0, Status.WR_FLUSH_ERR, CompletionOpcode.RECEIVE, transport.qpn)
        transport.loseConnection()
        self.wait(lambda: transport._cm.state == "DREQ_SENT")
        self.patch(transport._shared, "poll", lambda every: transport.completed([flushed]))
        self.wait(lambda: client.lost)
        client.lost[0].trap(ConnectionDone)
        self.assertNothingLeft()

    def test_passiveEndAnswersBeforeItIsGone(self) -> None:
        client, server = self.connected()
        client.transport.sendMessage(b"last")
        client.transport.loseConnection(b"farewell")
        self.wait(lambda: client.lost and server.lost, 0.1)
        self.assertNothingLeft(0.1)

    def test_crossedEnds(self) -> None:
        client, server = self.connected()
        for each in (client, server):
            each.transport.loseConnection()
        self.wait(lambda: client.lost and server.lost)
        self.assertNothingLeft()

    def test_pausingAfterEachMessageGetsAll(self) -> None:
        for terms in (USUAL, replace(USUAL, usesCredits=False), replace(USUAL, keepalive=0.5)):
            client, server = self.connected(terms, terms)
            take = server.messageReceived

            def takeOne(
                data: bytes, immediate: int | None, take: Any = take, server: MessageRecorder = server
            ) -> None:
                take(data, immediate)
                server.transport.pauseProducing()
                self.clock.callLater(1.0, server.transport.resumeProducing)

            server.messageReceived = takeOne  # type: ignore[method-assign]  # for the test
            for number in range(32):
                client.transport.sendMessage(b"%d" % number)
            self.closed(client, server, 60.0)
            self.assertEqual([data for data, _ in server.messages], [b"%d" % each for each in range(32)])
            for each in (client, server):
                each.lost[0].trap(ConnectionDone)
        self.assertNothingLeft()

    def test_drainingReceiverLearnsOfUnsent(self) -> None:
        client, server = self.connected(Terms(64, 4, 4), Terms(64, 4, 4))
        client.transport.pauseProducing()
        for _ in range(9):
            server.transport.sendMessage(b"too many")
        server.transport.pauseProducing()
        for _ in range(4):
            client.transport.sendMessage(b"in time")
        self.pause(0.1)
        client.transport.loseConnection()
        self.pause(60.0)
        self.assertEqual((server.messages, server.lost), ([], []))
        server.transport.resumeProducing()
        self.assertEqual(server.messages, [(b"in time", None)] * 4)
        server.lost[0].trap(ConnectionLost)
        self.assertNothingLeft()

    def test_sentAfterPeerClosed(self) -> None:
        """An end that sends when its peer has closed learns of the loss, unless it has closed as well."""
        for closes, reason in ((False, ConnectionLost), (True, ConnectionDone)):
            client, server = self.connected()
            server.transport.pauseProducing()
            client.transport.sendMessage(b"unread")
            client.transport.loseConnection()
            self.wait(lambda c=client: c.lost)  # type: ignore[misc]  # a lambda
            if closes:
                server.transport.loseConnection()
            server.transport.sendMessage(b"in vain")
            server.transport.resumeProducing()
            self.wait(lambda s=server: s.lost)  # type: ignore[misc]  # a lambda
            self.assertEqual(server.messages, [] if closes else [(b"unread", None)])
            server.lost[0].trap(reason)
        self.assertNothingLeft()

    def test_nothingIsPostedForClosedPeer(self) -> None:
        """Once the peer has closed in order, neither requests nor receives are posted."""
        client, server = self.connected()
        server.transport.pauseProducing()
        for _ in range(4):
            client.transport.sendMessage(b"in time")
        client.transport.loseConnection()
        self.wait(lambda: client.lost)
        posted: list[str] = []
        for name in ("postSend", "postReceive"):
            self.patch(SoftQueuePair, name, lambda pair, requests, name=name: posted.append(name))
        server.messageReceived = lambda data, immediate: server.transport.sendMessage(b"late")  # type: ignore[method-assign]  # for the test
        server.transport.resumeProducing()
        self.wait(lambda: server.lost)
        self.assertEqual(posted, [])
        self.assertNothingLeft()

    def test_busyPeer(self) -> None:
        """A message arrives at a peer whose program was busy for half a minute."""
        client, server = self.connected()
        self.devices[1].setPortEnabled(1, False)
        client.transport.sendMessage(b"whenever you like")
        self.pause(30.0)
        self.assertEqual(client.lost, [])
        self.devices[1].setPortEnabled(1, True)
        self.wait(lambda: server.messages, 2.0)

    @skipUnless(hasattr(mmap, "MADV_REMOVE"), "this system cannot free pages of shared memory")
    def test_idleConnectionReturnsMemoryOfReceives(self) -> None:
        """Receives of an idle connection use no memory; memory in use is not released."""
        terms = Terms(messageBytes=4096, keepalive=2.0)
        client, server = self.connected(terms, terms)
        memory: Any = server.transport._memory._region.memory

        def pages() -> int:
            """Return the pages in use of the mapping (proc_pid_smaps(5))."""
            lines = iter(Path("/proc/self/smaps").read_text().splitlines())
            start = f"{addressof(c_char.from_buffer(memory.view)):08x}-"
            next(line for line in lines if line.startswith(start))
            used = next(line for line in lines if line.startswith("Rss:"))
            return int(used.split()[1]) * 1024 // PAGE

        for count in range(40):
            client.transport.sendMessage(b"%d" % count * 2000)
            self.wait(lambda count=count: len(server.messages) > count)  # type: ignore[misc]  # a lambda
        self.assertGreater(pages(), 20)
        self.pause(5.0)
        self.assertLessEqual(pages(), 2)
        self.pause(2.0)
        server.transport.pauseProducing()
        trim = server.transport._pair.trim
        for count in range(20):
            client.transport.sendMessage(b"%d" % count * 2000)
            self.pause(0.0001)
            trim()
        self.pause(5.0)
        server.transport.resumeProducing()
        messages = [b"%d" % count * 2000 for count in (*range(40), *range(20))]
        self.assertEqual([data for data, _ in server.messages], messages)

    def test_keepaliveDetectsVanishedPeer(self) -> None:
        client, server = self.connected(Terms(keepalive=2.0), Terms(keepalive=None))
        self.pause(30.0)
        self.assertEqual((client.lost, server.lost, server.writes), ([], [], []))
        self.network.partition(*(each[0] for each in self.addresses))
        self.wait(lambda: client.lost, 40.0)
        client.lost[0].trap(ConnectionLost)
        self.pause(60.0)
        self.assertEqual(server.lost, [])
        server.transport.abortConnection()
        self.assertNothingLeft()

    def test_endStopsProbes(self) -> None:
        client, server = self.connected(Terms(keepalive=2.0), Terms(keepalive=3.0))
        self.closed(client, server)
        self.assertNothingLeft()
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_dataReplacesLostRTU(self) -> None:
        self.serve()
        asked = self.ask()
        self.network.drop(lambda packet: b"\x00\x14" in bytes(packet.payload)[16:18], times=1)
        client = self.result(asked)
        self.pause(0.05)
        self.assertEqual((self.network.dropped, self.served[0].isMade), (1, False))
        client.transport.sendMessage(b"first")
        self.wait(lambda: self.served[0].messages, 0.05)
        self.assertTrue(self.served[0].isMade)
