"""The perftest peer: both ends by txrdma, messages recorded from perftest, and invalid peers."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost

from txrdma.cm.connections.endpoints import IBClientEndpoint
from txrdma.cm.errors import Rejected
from txrdma.error import InvalidRequest
from txrdma.messages.protocol import MessageFactory
from txrdma.test.support.cm.messaging import MessagingCase, SERVICE
from txrdma.testing.perftest import connect, Ends, MEMORY, serve, TERMS, Test
from txrdma.testing.protocols import MessageRecorder

LENGTH, COUNT = 1000, 7
CONTENTS = bytes(range(200)) * 10


class PerftestTests(MessagingCase):
    def client(self) -> IBClientEndpoint:
        return IBClientEndpoint(self.clock, SERVICE, self.path(), self.devices[0], TERMS)

    def server(self, test: Test) -> Deferred[Any]:
        return Deferred.fromCoroutine(serve(self.ends(terms=TERMS), test, CONTENTS))

    def played(self, test: Test) -> tuple[Any, Any]:
        """Run a test with both ends; return the results of the client and the server."""
        server = self.server(test)
        client = self.result(Deferred.fromCoroutine(connect(self.clock, self.client(), test, LENGTH, COUNT)))
        found = client, self.result(server)
        self.assertNothingLeft()
        return found

    def test_write(self) -> None:
        """The server's memory has the bytes of the last write; the server reports the client's numbers."""
        client, server = self.played(Test.WRITE)
        self.assertEqual(server.memory[:LENGTH], bytes([COUNT - 1]) * LENGTH)
        self.assertEqual(server.memory[LENGTH : len(CONTENTS)], CONTENTS[LENGTH:])
        self.assertEqual(len(server.memory), MEMORY)
        self.assertEqual(server.reported, (LENGTH, COUNT))
        self.assertGreater(client.seconds, 0)

    def test_read(self) -> None:
        """The client reads the server's memory."""
        client, server = self.played(Test.READ)
        self.assertEqual(client.read, CONTENTS[:LENGTH])
        self.assertIsNone(server.reported)

    def test_send(self) -> None:
        """The server receives all messages."""
        _, server = self.played(Test.SEND)
        self.assertEqual(server.messages, [LENGTH] * COUNT)

    def test_noServer(self) -> None:
        """Without a server, a client retries for some seconds, and then fails."""
        self.serve(serviceID=SERVICE + 1)
        ended = Deferred.fromCoroutine(connect(self.clock, self.client(), Test.SEND, LENGTH, COUNT))
        begun = self.clock.seconds()
        self.failure(ended, Rejected)
        self.assertGreater(self.clock.seconds() - begun, 5.0)
        self.assertNothingLeft()

    def impolite(self, *messages: bytes) -> tuple[Deferred[Any], MessageRecorder]:
        """Have a client send messages without waiting for answers; return the server's result."""
        server = self.server(Test.WRITE)
        client = self.result(self.client().connect(MessageFactory(MessageRecorder)))
        for message in messages:
            client.transport.sendMessage(message)
        self.wait(lambda: server.called)
        return server, client

    def test_manyAtOnce(self) -> None:
        """A peer that sends many messages without waiting for answers is disconnected."""
        server, _ = self.impolite(*(bytes(length) for length in (16, 4, 4, 2, *[56] * 20)))
        self.failureResultOf(server, ConnectionAborted, ConnectionLost, ConnectionDone)
        self.assertNothingLeft()

    def test_otherVersion(self) -> None:
        """A version of another length is invalid."""
        server, client = self.impolite(b"5.0")
        self.failureResultOf(server, InvalidRequest)
        self.wait(lambda: client.lost)
        self.assertNothingLeft()


class EndsTests(MessagingCase):
    def test_layout(self) -> None:
        """The layout is that of C{struct pingpong_dest} on x86-64, in network byte order."""
        ends = Ends(lid=1, reads=2, qpn=3, psn=4, key=5, address=6, srqn=7, gidIndex=8)
        numbers = [1, 2, 3, 4, 5, 0, 0, 6, 0, 0, 0, 0, 7, 8]
        self.assertEqual(ends.encode(), b"".join(number.to_bytes(4, "big") for number in numbers))
