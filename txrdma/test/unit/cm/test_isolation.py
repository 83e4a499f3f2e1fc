"""
Failures of one connection or request of a program, or of its device, which do not affect any other one.
"""

from __future__ import annotations

from typing import Any

from txrdma.cm.connections.protocol import MessageFactory
from txrdma.cm.errors import Rejected, Rejection
from txrdma.cm.events import ConnectionReplied, ConnectionRequested, Disconnected, Event
from txrdma.cm.manager import CMConnection
from txrdma.cm.messages import RejectReason, REP, REQ, SIDRREP, SIDRStatus
from txrdma.error import InvalidRequest, Refused
from txrdma.iba.types import QPN
from txrdma.test.support.cm.messaging import MessagingCase
from txrdma.test.unit.cm.test_ports import PortCase, SERVICE
from txrdma.testing.protocols import MessageRecorder


class PrivateDataTests(MessagingCase):
    """Private data that no message has room for fail the request of the program, and nothing else."""

    def test_disconnect(self) -> None:
        """A connection that is closed with too much private data remains open, as do its neighbors."""
        client, server = self.connected()
        neighbor = self.result(self.again())
        self.assertRaises(InvalidRequest, client.transport.loseConnection, bytes(221))
        for each, number in ((client, 0), (neighbor, 1)):
            each.transport.sendMessage(b"still open")
            self.wait(lambda number=number: self.served[number].messages)  # type: ignore[misc]
        client.transport.loseConnection(bytes(220))
        self.wait(lambda: client.lost and server.lost)
        self.assertEqual(neighbor.lost, [])
        neighbor.transport.loseConnection()
        self.assertNothingLeft()

    def test_disconnectByCallback(self) -> None:
        """A protocol that closes with too much private data in a callback loses its own connection only."""
        client, server = self.connected()
        neighbor = self.result(self.again())
        server.messageReceived = lambda data, immediate: server.transport.loseConnection(bytes(221))  # type: ignore[assignment]
        client.transport.sendMessage(b"close")
        self.wait(lambda: client.lost and server.lost)
        self.assertEqual(len(self.flushLoggedErrors(InvalidRequest)), 1)
        neighbor.transport.sendMessage(b"still open")
        self.wait(lambda: self.served[1].messages)
        neighbor.transport.loseConnection()
        self.assertNothingLeft()

    def test_rejection(self) -> None:
        """A factory that rejects with too much private data still has its client rejected at once."""

        def reject() -> MessageRecorder:
            raise Rejection(RejectReason.CONSUMER_REJECT, bytes(149))

        port = self.serve(MessageFactory(reject))
        asked = self.ask()
        self.wait(lambda: asked.called, 1.0)
        error = self.failureResultOf(asked, Rejected).value
        self.assertEqual(error.status, RejectReason.NO_RESOURCES)
        port.stopListening()
        self.assertNothingLeft()


class ManagerTests(PortCase):
    """Requests to the manager that do not fit into their messages change nothing."""

    def test_opening(self) -> None:
        """REQ, REP, RTU and REJ with unsuitable fields are refused, and the connection is made by others."""
        refused: list[str] = []

        def refuses(what: str, function: Any, *arguments: object) -> None:
            before = connections[-1].state
            self.assertRaises(InvalidRequest, function, *arguments)
            self.assertEqual(connections[-1].state, before)
            refused.append(what)

        connections: list[CMConnection] = []

        def host(connection: CMConnection, event: Event) -> None:
            connections.append(connection)
            if isinstance(event, ConnectionRequested):
                refuses("REJ", connection.reject, RejectReason.CONSUMER_REJECT, b"", bytes(149))
                refuses("REJ", connection.reject, RejectReason.CONSUMER_REJECT, bytes(73))
                refuses("MRA", connection.delay, 32)
                refuses("REP", connection.accept, REP(privateData=bytes(197)))
            self.hearHost(connection, event)

        def client(connection: CMConnection, event: Event) -> None:
            connections.append(connection)
            if isinstance(event, ConnectionReplied):
                refuses("RTU", connection.ready, bytes(225))
            self.hearClient(connection, event)

        self.host.listen(SERVICE, host)
        request = REQ(serviceID=SERVICE, localQPN=QPN(21), remoteCMResponseTimeout=14, maxCMRetries=3)
        tooLong = request.replace(privateData=bytes(93))
        self.assertRaises(InvalidRequest, self.client.connect, tooLong, self.way, client)
        self.assertEqual(len(self.client._core), 0)
        made = self.client.connect(request, self.way, client)
        self.wait(lambda: made.state == "ESTABLISHED" and self.made[0].state == "ESTABLISHED")
        self.assertEqual(refused, ["REJ", "REJ", "MRA", "REP", "RTU"])
        connections.append(made)
        refuses("DREQ", made.disconnect, bytes(221))
        made.disconnect()
        self.wait(lambda: self.made[0].state in ("TIMEWAIT", "FREE"))

    def test_service(self) -> None:
        """A service whose answer does not fit into its message refuses, and the failure is logged."""
        self.host.serve(SERVICE, lambda question: SIDRREP(privateData=bytes(137)))
        self.assertRaises(InvalidRequest, self.client.resolve, SERVICE, self.way, bytes(217))
        answer = self.client.resolve(SERVICE, self.way)
        self.wait(lambda: answer.called)
        error = self.failureResultOf(answer, Refused).value
        self.assertEqual(error.status, SIDRStatus.REJECTED)
        self.assertEqual(len(self.flushLoggedErrors()), 1)

    def test_unsendable(self) -> None:
        """A message that cannot be sent is logged; timers and messages of other connections go on."""

        def accept(connection: CMConnection, event: Event) -> None:
            if isinstance(event, ConnectionRequested):
                connection.accept(REP(localQPN=QPN(next(self.numbers))))
            elif isinstance(event, Disconnected):
                connection.disconnect()

        self.host.listen(SERVICE, accept)
        made = [self.connect(), self.connect()]
        self.wait(lambda: all(each.state == "ESTABLISHED" for each in made))
        send = self.client._agent.send

        def fail(datagram: bytes, path: Any) -> None:
            self.client._agent.send = send  # type: ignore[method-assign]
            raise RuntimeError("simulated")

        self.client._agent.send = fail  # type: ignore[method-assign, assignment]
        for each in made:
            each.disconnect()
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)
        self.wait(lambda: all(each.state in ("TIMEWAIT", "FREE") for each in made))
