"""Programs that wait for messages by tag: C{receive} and C{receiveMany}."""

from __future__ import annotations

import struct
from array import array

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.logger import capturedLogs, formatEvent
from twisted.python.failure import Failure

from txrdma.btl import transport
from txrdma.btl.core.flow import MESSAGE, WINDOW
from txrdma.btl.errors import MessageFailed
from txrdma.btl.inbox import MOST_TAGS, MOST_UNRECEIVED
from txrdma.btl.transport import _RECEIVED, _UNLIMITED
from txrdma.error import InvalidRequest
from txrdma.sim.network import Faults
from txrdma.test.support.btl.hosts import HostsCase, TAG
from txrdma.test.unit.btl import test_receivebuffers

WAITED = 7


class ReceiveTests(HostsCase):
    """Messages whose tag has no handler."""

    def test_order(self) -> None:
        """Messages are received in order, whether the program or the message comes first."""
        client, server = self.connected()
        early = [server.transport.receive(WAITED) for _ in range(2)]
        data = [bytes([number]) * size for number, size in enumerate((0, 10, 3000, 200_000, 5))]
        for each in data:
            client.transport.post(WAITED, each)
        self.wait(lambda: all(each.called for each in early))
        self.pause(0.1)
        later = [server.transport.receive(WAITED) for _ in range(3)]
        self.assertEqual([self.successResultOf(each) for each in (*early, *later)], data)

    def test_loop(self) -> None:
        """A coroutine receives each message once, with its own answer in between."""
        client, server = self.connected()

        async def double() -> None:
            while True:
                data = await server.transport.receive(WAITED)
                await server.transport.send(WAITED, 2 * data)

        loop = Deferred.fromCoroutine(double())
        for number in range(20):
            client.transport.post(WAITED, b"%d" % number)
        answers = [self.outcome(client.transport.receive(WAITED)) for _ in range(20)]
        self.assertEqual(answers, [2 * (b"%d" % number) for number in range(20)])
        client.transport.loseConnection()
        self.wait(lambda: loop.called)
        self.failureResultOf(loop, MessageFailed)

    def test_orderOfRequests(self) -> None:
        """Callbacks that request further messages get them in the order of the requests."""
        client, server = self.connected()
        received: list[bytes] = []

        def receive() -> None:
            receiving = server.transport.receive(WAITED).addCallback(received.append).addCallback(again)
            receiving.addErrback(lambda failure: failure.trap(MessageFailed))  # when the test ends

        def again(_: None) -> None:
            if len(received) < 1000:  # more than the stack could hold
                receive()

        receive()
        receive()
        data = [b"%d" % number for number in range(1001)]
        client.transport.sendMany(WAITED, data)
        self.wait(lambda: len(received) == len(data))
        self.assertEqual(received, data)

    def test_endOfRequests(self) -> None:
        """A callback's request after the last message of a connection that has ended fails."""
        client, server = self.connected()
        self.outcome(client.transport.sendMany(WAITED, [b"one", b"two"]))
        client.transport.loseConnection()
        self.wait(lambda: server.lost)
        later: list[Deferred[bytes]] = []
        first = server.transport.receive(WAITED)
        first.addCallback(lambda _: later.extend(server.transport.receive(WAITED) for _ in range(2)))
        self.assertEqual(self.successResultOf(later[0]), b"two")
        self.failureResultOf(later[1], MessageFailed)

    def test_into(self) -> None:
        """A message is stored in an array, and its length is reported."""
        client, server = self.connected()
        for count in (3, 50_000):
            items, stored = array("d", range(count)), array("d", bytes(8 * count + 16))
            waiting = server.transport.receive(WAITED, into=stored)
            self.outcome(client.transport.send(WAITED, items))
            self.assertEqual(self.successResultOf(waiting), 8 * count)
            self.assertEqual(stored[:count], items)
            self.outcome(client.transport.send(WAITED, items))
            stored = array("d", bytes(8 * count))
            self.assertEqual(self.outcome(server.transport.receive(WAITED, stored)), 8 * count)
            self.assertEqual(stored, items)
            stored.append(1.0)  # it is not in use any more

    def test_tooLong(self) -> None:
        """A message that does not fit into the buffer fails, and can be received afterwards."""
        client, server = self.connected()
        early = server.transport.receive(WAITED, bytearray(4))
        second = server.transport.receive(WAITED)
        client.transport.post(WAITED, b"five!")
        self.wait(lambda: early.called)
        self.failureResultOf(early, InvalidRequest)
        self.assertEqual(self.outcome(second), b"five!")
        self.outcome(client.transport.send(WAITED, b"again"))
        self.failureResultOf(server.transport.receive(WAITED, bytearray(4)), InvalidRequest)
        self.assertEqual(self.outcome(server.transport.receive(WAITED)), b"again")

    def test_tooLongForHandler(self) -> None:
        """A program that learns that a message does not fit can set a handler, which gets that message."""
        client, server = self.connected()
        taken: list[bytes] = []
        early = server.transport.receive(WAITED, bytearray(4))
        handler = lambda data: taken.append(bytes(data))  # noqa: E731
        early.addErrback(lambda _: server.transport.setHandler(WAITED, handler))
        for data in (b"five!", b"further"):
            self.outcome(client.transport.send(WAITED, data))
        self.assertEqual(taken, [b"five!", b"further"])
        self.assertEqual(server.transport._inbox._bytes, 0)

    def test_many(self) -> None:
        """All messages that have arrived are received at once."""
        client, server = self.connected()
        for number in range(100):
            client.transport.post(WAITED, b"%d" % number)
        self.pause(0.1)
        found = self.outcome(server.transport.receiveMany(WAITED))
        self.assertEqual(found, [b"%d" % number for number in range(100)])
        waiting = server.transport.receiveMany(WAITED)
        self.assertNoResult(waiting)
        client.transport.post(WAITED, b"last")
        self.assertEqual(self.outcome(waiting), [b"last"])

    def test_lateReport(self) -> None:
        """A report of received messages may arrive after that of the handler that was set then."""
        client, server = self.connected()
        self.outcome(client.transport.send(WAITED, bytes(WINDOW // 2)))
        self.pause(0.1)
        self.world.network.drop(lambda packet: True, 1)
        self.outcome(server.transport.receive(WAITED))  # is reported
        self.pause(1e-6)
        taken: list[bytes] = []
        server.transport.setHandler(WAITED, lambda data: taken.append(bytes(data)))
        self.pause(1.0)
        self.outcome(client.transport.send(WAITED, b"further"))
        self.assertEqual(taken, [b"further"])

    def test_urgentAfterShort(self) -> None:
        """A long urgent message may overtake a short one that the window has admitted before."""
        client, server = self.connected()
        client.transport.post(TAG, bytes(1 << 20))
        client.transport.post(WAITED, b"short")
        long = client.transport.sendPriority(WAITED, bytes(2 * WINDOW))
        self.outcome(long)
        self.pause(0.1)
        found = [self.outcome(server.transport.receive(WAITED)) for _each in range(2)]
        self.assertEqual(list(map(len, found)), [2 * WINDOW, 5])

    def test_cancelled(self) -> None:
        """A cancelled request loses no message and releases its buffer."""
        client, server = self.connected()
        into = bytearray(10)
        first = server.transport.receive(WAITED, into)
        second = server.transport.receive(WAITED)
        first.cancel()
        self.failureResultOf(first, CancelledError)
        into.append(0)
        client.transport.post(WAITED, b"for the second")
        self.assertEqual(self.outcome(second), b"for the second")

    def test_window(self) -> None:
        """A sender waits while the program does not receive; other tags continue, and nothing is lost."""
        client, server = self.connected()
        count, size = 40, 300_000
        sent = [client.transport.send(WAITED, bytes([number]) * size) for number in range(count)]
        self.pause(2.0)
        here = server.transport._inbox._bytes
        self.assertLessEqual(here, WINDOW + size + MESSAGE)
        self.assertEqual(sum(each.called for each in sent), here // size)
        client.transport.sendPriority(WAITED, b"urgent, but not beyond the window")
        self.outcome(client.transport.send(TAG, b"beside"))
        self.assertEqual(server.tagged, [(TAG, b"beside")])
        for number in range(here // size):
            self.assertEqual(self.outcome(server.transport.receive(WAITED)), bytes([number]) * size)
        rest = [self.outcome(server.transport.receive(WAITED)) for _ in range(count + 1 - here // size)]
        self.assertEqual(sorted(map(len, rest))[:2], [33, size])
        self.assertEqual([each[0] for each in rest if len(each) == size], list(range(here // size, count)))
        self.wait(lambda: all(each.called for each in sent))
        self.assertEqual((client.transport._outbox.bytes, server.transport._inbox._bytes), (0, 0))

    def test_handlerLater(self) -> None:
        """A handler gets queued messages of its tag first, and then those beyond the window."""
        client, server = self.connected()
        count, size = 10, 1_000_000
        for number in range(count):
            client.transport.post(WAITED, bytes([number]) * size)
        self.pause(2.0)
        taken: list[int] = []
        server.transport.setHandler(WAITED, lambda data: taken.append(data[0]), inOrder=True)
        self.assertEqual(taken, list(range(len(taken))))
        self.wait(lambda: len(taken) == count)
        self.assertEqual(taken, list(range(count)))
        self.assertRaises(InvalidRequest, server.transport.receive, WAITED)

    def test_givenBack(self) -> None:
        """Messages that were given back are received again first, or handled, and windows remain correct."""
        client, server = self.connected()
        everything = [bytes([number]) * 1_000_000 for number in range(10)]
        for each in everything:
            client.transport.post(WAITED, each)
        for count in (2, 1, 3):
            taken = [self.outcome(server.transport.receive(WAITED)) for _ in range(count)]
            server.transport.giveBack(WAITED, taken)
            server.transport.giveBack(WAITED, [self.outcome(server.transport.receive(WAITED))])
            self.pause(0.1)  # the peer sends more, since the first messages were reported as received
        received = [self.outcome(server.transport.receive(WAITED)) for _ in everything]
        self.assertTrue(received == everything, "messages differ")
        self.assertEqual(server.transport._inbox._bytes, 0)
        handled: list[bytes] = []
        server.transport.setHandler(WAITED, lambda data: handled.append(bytes(data)))
        server.transport.giveBack(WAITED, [b"last"])
        self.assertEqual(handled, [b"last"])
        self.pause(0.1)
        self.assertEqual((client.ends, server.ends), ([], []))

    def test_badCalls(self) -> None:
        """Invalid tags and buffers are refused immediately."""
        _client, server = self.connected()
        transport = server.transport
        self.assertRaises(InvalidRequest, transport.receive, -1)
        self.assertRaises(InvalidRequest, transport.receiveMany, TAG)
        self.assertRaises(InvalidRequest, transport.receive, WAITED, b"read-only")
        self.assertRaises(InvalidRequest, transport.receive, WAITED, memoryview(bytearray(8))[::2])
        waiting = transport.receive(WAITED)
        self.assertRaises(InvalidRequest, transport.setHandler, WAITED, lambda data: None)
        waiting.cancel()
        self.failureResultOf(waiting, CancelledError)


class EndTests(HostsCase):
    """The end of a connection with messages that were not received."""

    def test_queued(self) -> None:
        """After the peer has closed, queued messages can still be received."""
        client, server = self.connected()
        client.transport.post(WAITED, b"last")
        client.transport.loseConnection()
        self.wait(lambda: server.lost)
        self.assertEqual(server.why(), "ConnectionDone")
        self.assertEqual(self.outcome(server.transport.receive(WAITED)), b"last")
        into = bytearray(5)
        self.failureResultOf(server.transport.receive(WAITED, into), MessageFailed)
        into.append(0)

    def test_waiting(self) -> None:
        """Requests fail when the connection ends, and messages beyond the window with them."""
        client, server = self.connected()
        waiting = [server.transport.receive(WAITED + 1), server.transport.receive(WAITED + 1, bytearray(5))]
        failures: list[Failure] = []
        for _ in range(10):
            client.transport.send(WAITED, bytes(1_000_000)).addErrback(failures.append)
        self.pause(2.0)
        self.assertEqual(failures, [])
        server.transport.loseConnection()
        self.wait(lambda: client.lost and server.lost)
        for each in waiting:
            self.failureResultOf(each, MessageFailed)
        self.assertEqual(failures[-1].type, MessageFailed)
        self.assertEqual(client.why(), ConnectionLost.__name__)
        self.assertNothingLeft()

    def test_aborted(self) -> None:
        """An aborted connection drops its queued messages."""
        client, server = self.connected()
        self.outcome(client.transport.send(WAITED, b"dropped"))
        server.transport.abortConnection()
        self.wait(lambda: server.lost)
        self.failureResultOf(server.transport.receive(WAITED), MessageFailed)

    def test_closing(self) -> None:
        """A connection closes in order when the peer has received the messages that wait for its window."""
        client, server = self.connected()
        for _ in range(10):
            client.transport.post(WAITED, bytes(1_000_000))
        client.transport.loseConnection()
        self.pause(1.0)
        self.assertFalse(client.lost)
        for _ in range(10):
            self.assertEqual(len(self.outcome(server.transport.receive(WAITED))), 1_000_000)
        self.wait(lambda: client.lost and server.lost)
        self.assertEqual((client.why(), server.why()), (ConnectionDone.__name__,) * 2)


class HandlerOrderTests(HostsCase):
    """The order of a tag with a handler, on a network that reorders packets."""

    faults = Faults(jitterSeconds=0.001)

    def test_changed(self) -> None:
        """The last call of C{setHandler} determines whether messages are delivered in order."""
        client, server = self.connected()
        everything = [bytes([number]) * 900 for number in range(250)]
        for inOrder in (False, True, False, True):
            received: list[bytes] = []
            server.transport.setHandler(WAITED, lambda data: received.append(bytes(data)), inOrder)  # noqa: B023  # used in this round only
            self.outcome(client.transport.sendMany(WAITED, everything))
            self.assertEqual(sorted(received), everything)
            self.assertEqual(received == everything, inOrder)


class LiarTests(HostsCase):
    """Peers that violate the rules of windows lose only their own connection."""

    def test_window(self) -> None:
        """A peer may not exceed the window of a tag."""
        self.assertRefused(*[(WAITED, bytes(1_000_000))] * 10)

    def test_tags(self) -> None:
        """A peer may not use too many tags that the program does not receive."""
        self.assertRefused(*[(100 + number, b"x") for number in range(MOST_TAGS + 1)])

    def test_logged(self) -> None:
        """A peer that violates the rules in one connection after the other is logged once a minute."""
        self.patch(transport._rateLimited, "_entries", {})
        with capturedLogs() as logs:
            for _ in range(3):
                self.assertRefused(*[(100 + number, b"x") for number in range(MOST_TAGS + 1)])
        texts = [text for text in map(formatEvent, logs) if "violated the protocol" in text]
        self.assertEqual(len(texts), 1)

    def test_receivedTags(self) -> None:
        """Tags with a handler, or with a received message, are not counted."""
        client, server = self.connected()
        for tag in range(100, 121):
            self.outcome(client.transport.send(tag, b"x"))
            if tag % 2:
                server.transport.setHandler(tag, lambda data: None)
            else:
                self.assertEqual(self.outcome(server.transport.receive(tag)), b"x")
        for number in range(MOST_TAGS):
            self.outcome(client.transport.send(200 + number, b"x"))
        self.assertRefused((9999, b"x"), ends=(client, server))

    def test_bytes(self) -> None:
        """A peer may not send more bytes than the limit before they are received, in any number of tags."""
        client, server = self.connected()
        self.assertEqual(server.transport._inbox.mostBytes, MOST_UNRECEIVED)
        server.transport._inbox.mostBytes = 10_000
        self.assertRefused(*[(100 + number, bytes(1000)) for number in range(11)], ends=(client, server))

    def test_reports(self) -> None:
        """A peer may not report messages that were not sent, nor handlers of invalid tags."""
        self.assertRefused((_RECEIVED, struct.pack(">HQ", WAITED, 1)))
        self.assertRefused((_RECEIVED, b"short"))
        self.assertRefused((_UNLIMITED, struct.pack(">H", _UNLIMITED)))


class OneHostReceiveTests(test_receivebuffers.OneHostCase, ReceiveTests):
    """The tests between two processes of one host, where long messages use shared memory."""
