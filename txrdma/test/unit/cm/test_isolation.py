"""Failures of one connection or request, or of its device, which affect no other one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from gc import collect
from typing import Any
from unittest.mock import Mock, patch
from weakref import ref

from zope.interface import implementer

from twisted.internet.defer import Deferred
from twisted.internet.error import CannotListenError, ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.logger import formatEvent, globalLogPublisher
from twisted.python.failure import Failure

from txrdma.cm.connection import CMConnection
from txrdma.cm.connections import attempt
from txrdma.cm.connections.adapter import Adapter
from txrdma.cm.connections.datagrams import (
    DatagramClientEndpoint,
    DatagramProtocol,
    DatagramServerEndpoint,
)
from txrdma.cm.connections.longmessages import LongMessageReader
from txrdma.cm.connections.migration import PathMigration
from txrdma.cm.connections.receives import Part
from txrdma.cm.connections.sendqueue import Request, SendRegions
from txrdma.cm.connections.transport import RDMATransport
from txrdma.cm.core.events import ConnectionReplied, ConnectionRequested, Disconnected, Event
from txrdma.cm.errors import Rejected, Rejection
from txrdma.cm.interfaces import IPreparedProtocol
from txrdma.cm.layouts.messages import RejectReason, REP, REQ, SIDRREP, SIDRStatus
from txrdma.cm.terms import Terms
from txrdma.error import InvalidRequest, RDMAError, Refused, ResourceExhausted
from txrdma.iba.types import QPN
from txrdma.mad.agent import MADAgent
from txrdma.messages.keepalive import Keepalive
from txrdma.messages.protocol import MessageFactory
from txrdma.soft.core.queuepair import SoftQueuePair
from txrdma.soft.device import SoftDevice, SoftProtectionDomain
from txrdma.test.support import slow
from txrdma.test.support.cm.messaging import MessagingCase
from txrdma.test.unit.cm.test_ports import PortCase, SERVICE
from txrdma.testing.protocols import MessageRecorder

VERBS = (
    (SoftDevice, "createProtectionDomain"),
    (SoftDevice, "createChannel"),
    (SoftDevice, "createCompletionQueue"),
    (SoftProtectionDomain, "createQueuePair"),
    (SoftProtectionDomain, "allocateMemory"),
    (SoftQueuePair, "modify"),
    (SoftQueuePair, "postReceive"),
)
"""The verbs that connections use."""


@implementer(IPreparedProtocol)
class Unprepared(MessageRecorder):  # type: ignore[misc]  # on purpose
    """A protocol without the methods that it promises."""


class Unadaptable(MessageRecorder):
    """A protocol that raises when it is adapted to an interface."""

    def __conform__(self, interface: object) -> object:
        raise RuntimeError("simulated")


class PrivateDataTests(MessagingCase):
    """Private data that is too long fails the request, and nothing else."""

    def test_tooLongPrivateDataAtDisconnect(self) -> None:
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

    def test_tooLongPrivateDataInRejection(self) -> None:

        def reject() -> MessageRecorder:
            raise Rejection(RejectReason.CONSUMER_REJECT, bytes(149))

        self.serve(MessageFactory(reject))
        asked = self.ask()
        self.wait(lambda: asked.called, 1.0)
        error = self.failureResultOf(asked, Rejected).value
        self.assertEqual(error.status, RejectReason.NO_RESOURCES)
        self.assertNothingLeft()


class StoredEventTests(MessagingCase):
    """
    Stored log events do not keep the objects of a connection.

    Twisted stores the latest 200 events of a program that has not begun to log, and the traceback of an
    exception has the frames of all callers, with the memory that they use.
    """

    def test_lostMessage(self) -> None:
        client, _server = self.connected()
        real = MADAgent.send
        failures: list[ref[ResourceExhausted]] = []

        def send(agent: MADAgent, *arguments: Any, **keys: Any) -> Any:
            if failures:
                return real(agent, *arguments, **keys)
            error = ResourceExhausted("the send queue is full")
            failures.append(ref(error))
            raise error

        events: list[Any] = []
        observer: Any = events.append
        globalLogPublisher.addObserver(observer)
        self.addCleanup(globalLogPublisher.removeObserver, observer)
        self.patch(MADAgent, "send", send)
        client.transport.loseConnection()
        self.wait(lambda: client.lost)
        texts = "".join(map(formatEvent, events))
        self.assertIn("the send queue is full", texts)
        collect()
        self.assertIsNone(failures[0]())
        self.assertNothingLeft()


class ManagerTests(PortCase):
    """Requests that do not fit into their messages change nothing."""

    def test_unsuitableFieldsAreRefused(self) -> None:
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
            self.hostEvent(connection, event)

        def client(connection: CMConnection, event: Event) -> None:
            connections.append(connection)
            if isinstance(event, ConnectionReplied):
                refuses("RTU", connection.ready, bytes(225))
            self.clientEvent(connection, event)

        self.host.listen(SERVICE, host)
        request = REQ(serviceID=SERVICE, localQPN=QPN(21), remoteCMResponseTimeout=14, maxCMRetries=3)
        tooLong = request.replace(privateData=bytes(93))
        self.assertRaises(InvalidRequest, self.client.connect, tooLong, self.hostPath, client)
        self.assertEqual(len(self.client._core), 0)
        made = self.client.connect(request, self.hostPath, client)
        self.wait(lambda: made.state == "ESTABLISHED" and self.made[0].state == "ESTABLISHED")
        self.assertEqual(refused, ["REJ", "REJ", "MRA", "REP", "RTU"])
        connections.append(made)
        refuses("DREQ", made.disconnect, bytes(221))
        made.disconnect()
        self.wait(lambda: self.made[0].state in ("TIMEWAIT", "FREE"))

    def test_tooLongServiceAnswerIsLogged(self) -> None:
        self.host.serve(SERVICE, lambda question, path: SIDRREP(privateData=bytes(137)))
        self.assertRaises(InvalidRequest, self.client.resolve, SERVICE, self.hostPath, bytes(217))
        error = self.failure(self.client.resolve(SERVICE, self.hostPath), Refused)
        self.assertEqual(error.status, SIDRStatus.REJECTED)
        self.assertEqual(len(self.flushLoggedErrors()), 1)

    def test_unsendableMessageIsLogged(self) -> None:

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

        self.client._agent.send = fail  # type: ignore[method-assign]  # for the test
        for each in made:
            each.disconnect()
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)
        self.wait(lambda: all(each.state in ("TIMEWAIT", "FREE") for each in made))

    def test_failedTimerIsSetAgain(self) -> None:
        self.host.listen(SERVICE, self.hostEvent)
        with patch.object(self.client, "_send"):  # the first REQ is lost
            made = self.connect()
        with patch.object(self.client._core, "expired", side_effect=RuntimeError("simulated")):
            self.assertRaises(RuntimeError, self.wait, lambda: False)
        self.wait(lambda: made.state == "ESTABLISHED")


class DeviceTests(MessagingCase):
    """A queue pair whose device fails loses only its own connection."""

    def fails(self, owner: Any, name: str) -> None:
        self.patch(owner, name, Mock(side_effect=RDMAError("simulated")))

    def neighbors(self) -> tuple[MessageRecorder, MessageRecorder, MessageRecorder]:
        """Return the client and server of a connection, and the client of another one on the same devices."""
        client, server = self.connected()
        neighbor = self.result(self.again())
        self.wait(lambda: self.served[1].isMade)
        return client, server, neighbor

    def assertWorks(self, neighbor: MessageRecorder) -> None:
        """Assert that the other connection transfers messages both ways, and releases everything."""
        neighbor.transport.sendMessage(b"there")
        self.served[1].transport.sendMessage(b"and back")
        self.wait(lambda: self.served[1].messages and neighbor.messages)
        neighbor.transport.loseConnection()
        self.wait(lambda: neighbor.lost)
        neighbor.lost[0].trap(ConnectionDone)
        self.assertNothingLeft()

    def test_failedReceivePostEndsConnection(self) -> None:
        client, server, neighbor = self.neighbors()
        self.fails(server.transport._pair, "postReceive")
        client.transport.sendMessage(b"taken")
        self.wait(lambda: server.lost and client.lost)
        self.assertEqual(server.messages, [(b"taken", None)])
        server.lost[0].trap(ConnectionLost)
        self.assertIn("simulated", server.lost[0].getErrorMessage())
        self.assertWorks(neighbor)

    def test_errorInCompletionsEndsConnection(self) -> None:
        client, server, neighbor = self.neighbors()
        self.patch(server.transport, "_received", Mock(side_effect=RuntimeError("simulated")))
        client.transport.sendMessage(b"lost")
        self.wait(lambda: server.lost and client.lost)
        server.lost[0].trap(ConnectionLost)
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)
        self.assertWorks(neighbor)

    def test_refusedProbeEndsConnection(self) -> None:
        client, server = self.connected(Terms(keepalive=2.0))
        self.fails(client.transport._pair, "postSend")
        self.wait(lambda: client.lost and server.lost)
        client.lost[0].trap(ConnectionLost)
        self.assertIn("simulated", client.lost[0].getErrorMessage())
        self.assertNothingLeft()

    def test_raisingProbeIsRepeated(self) -> None:
        client, server = self.connected(Terms(keepalive=2.0))
        pair: Any = client.transport._pair
        post = pair.postSend

        def fail(*arguments: object) -> None:
            pair.postSend = post
            raise RuntimeError("simulated")

        pair.postSend = fail
        self.pause(3.0)
        self.assertEqual((len(self.flushLoggedErrors(RuntimeError)), client.lost), (1, []))
        self.network.partition(*(each[0] for each in self.addresses))
        self.wait(lambda: client.lost, 40.0)
        client.lost[0].trap(ConnectionLost)
        server.transport.abortConnection()
        self.assertNothingLeft()

    def test_failedReaderEndsAllItsConnections(self) -> None:
        client, _server, neighbor = self.neighbors()
        self.patch(client.transport, "broken", Mock(side_effect=RuntimeError("simulated")))
        client.transport._shared.fail(Failure(RDMAError("simulated")))
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)
        neighbor.lost[0].trap(ConnectionLost)
        client.transport.abortConnection()
        self.assertNothingLeft()


class EndTests(MessagingCase):
    """A connection is released and its end is reported, whatever raises an exception meanwhile."""

    def test_protocolThatCannotBeAdapted(self) -> None:
        client, server = self.connected()
        lost = Unadaptable()
        client.transport.protocol = lost
        client.transport.abortConnection()
        self.wait(lambda: lost.lost and server.lost)
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)
        self.assertNothingLeft()

    def test_errorBeforeTheEnd(self) -> None:
        """A connection whose queue pair has failed ends, for this reason, although an exception is raised."""
        client, server = self.connected()
        failing = FailsOnce(Adapter.holdUntilReported)
        with patch.object(Adapter, "holdUntilReported", lambda adapter: failing(adapter)):
            client.transport._queuePairFailed("simulated failure")
        self.wait(lambda: server.lost)
        (reason,) = client.lost
        self.assertIn("simulated failure", reason.getErrorMessage())
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)
        self.assertNothingLeft()

    def test_protocolThatExits(self) -> None:
        """C{connectionLost} is called once, also if it raises C{SystemExit}, and the end is complete."""
        client, server = self.connected()
        lost = Mock(side_effect=SystemExit)
        self.patch(client, "connectionLost", lost)
        client.transport.abortConnection()
        self.wait(lambda: server.lost)
        self.assertEqual(lost.call_count, 1)
        self.assertIs(client.transport._stopping, None)
        self.assertEqual(len(self.flushLoggedErrors(SystemExit)), 1)
        self.assertNothingLeft()

    def test_errorInAnyStep(self) -> None:
        steps = (
            *((Keepalive, "stop"), (SoftQueuePair, "close"), (Adapter, "detach"), (Part, "giveBack")),
            *((SendRegions, "close"), (Request, "release"), (LongMessageReader, "end")),
            *((CMConnection, "disconnect"), (PathMigration, "end"), (RDMATransport, "settle")),
        )
        for owner, name in steps:
            self.served.clear()
            client, server = self.connected()
            client.transport._prepareMigration()
            client.transport._reader = LongMessageReader(client.transport.adapter.receives)
            unsent = client.transport.send(b"lost")
            failing = FailsOnce(getattr(owner, name))
            with patch.object(owner, name, lambda *arguments: failing(*arguments)):  # noqa: B023
                client.transport.abortConnection()
                self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1, name)
                self.failureResultOf(unsent, ConnectionAborted)
                self.wait(lambda: client.lost and server.lost)  # noqa: B023
            self.assertEqual(len(client.lost), 1, name)
            self.assertNothingLeft()


class FailsOnce:
    """A function whose first call raises an exception at its end."""

    def __init__(self, function: Callable[..., object]) -> None:
        self._function, self._hasFailed = function, False

    def __call__(self, *arguments: object) -> object:
        result = self._function(*arguments)
        if self._hasFailed:
            return result
        self._hasFailed = True
        raise RuntimeError("simulated")


class AttemptTests(MessagingCase):
    """An attempt to connect that fails at any step releases everything."""

    def test_invalidPrivateDataFailsAttempt(self) -> None:
        refused = self.connectTo(privateData=Mock(side_effect=ResourceExhausted("simulated")))
        self.failureResultOf(refused, ResourceExhausted)
        self.assertNothingLeft(0.0)
        self.failureResultOf(self.connectTo(privateData=lambda transport: bytes(57)), InvalidRequest)
        self.assertNothingLeft(0.0)

    def test_errorInReplyFailsAttempt(self) -> None:
        """An unexpected exception while a REP is processed fails the attempt, which releases everything."""
        self.serve()
        self.patch(attempt, "negotiate", Mock(side_effect=RuntimeError("simulated")))
        asked = self.ask()
        self.wait(lambda: asked.called)
        self.failureResultOf(asked, RuntimeError)
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)
        self.assertNothingLeft()

    def test_unpreparedProtocolIsRejected(self) -> None:
        """A request is rejected, without a queue pair that stays, if the protocol lacks a required method."""
        self.serve(MessageFactory(Unprepared))
        asked = self.ask()
        self.wait(lambda: asked.called)
        self.failureResultOf(asked, Rejected)
        self.assertEqual(len(self.flushLoggedErrors(AttributeError)), 1)
        self.assertNothingLeft()

    @slow("each verb of each kind of endpoint fails once")
    def test_anyFailingVerbLeavesNothing(self) -> None:
        self.countAllCalls()
        self.serve()
        self.assertGreater(self.failEach(self.ask, lambda client: client.transport.abortConnection()), 15)
        self.assertNothingLeft()

    @slow("each verb of each kind of endpoint fails once")
    def test_anyFailingVerbLeavesNoDatagramService(self) -> None:
        self.countAllCalls()
        service = MessageFactory(DatagramProtocol)
        endpoint = DatagramServerEndpoint(self.clock, 7471, self.devices[0])
        steps = self.failEach(lambda: endpoint.listen(service), lambda port: port.stopListening())
        self.listenAt(service, DatagramServerEndpoint)
        ask = partial(self.connectTo, service, DatagramClientEndpoint)
        asked = self.failEach(ask, lambda client: client.transport.loseConnection())
        self.assertEqual([steps > 8, asked > 8], [True, True], (steps, asked))
        self.assertNothingLeft()

    def failEach(self, ask: Callable[[], Deferred[Any]], end: Callable[[Any], object]) -> int:
        """Repeat a request, with each verb failing in turn; return the number of verbs that it calls."""
        for number in range(100):
            self.calls, self.failing = 0, number
            asked = ask()
            self.wait(lambda asked=asked: asked.called)  # type: ignore[misc]  # mypy cannot infer the lambda
            asked.addCallbacks(end, lambda failure: failure.trap(RDMAError, CannotListenError))
            self.successResultOf(asked)
            self.pause(60.0)
            device = self.devices[0]
            tables = device._queuePairs, device.domains, device._completionQueues, device._channels
            self.assertEqual([len(each) for each in tables], [0, 0, 0, 0], number)
            if self.calls <= number:
                break
        self.failing = -1
        return number

    def countAllCalls(self) -> None:
        """Count the calls of all verbs."""
        self.calls, self.failing = 0, -1
        for owner, name in VERBS:
            self.countCalls(owner, name)

    def countCalls(self, owner: type, name: str) -> None:
        """Count the calls of a verb, and have the n-th one fail."""
        real = getattr(owner, name)

        def verb(instance: Any, *arguments: Any) -> Any:
            self.calls += 1
            if self.calls == self.failing + 1:
                raise ResourceExhausted(f"{name} fails")
            return real(instance, *arguments)

        self.patch(owner, name, verb)
