"""
The collector: makes calls for a monitor, and returns the results.

It is stateless: a monitor that loses its collectors makes the calls itself, and each answer is a complete
reading of its counters.
"""

from __future__ import annotations

from collections import deque
from functools import cache
from typing import Any, Final

from zope.interface import implementer

from twisted.internet.interfaces import IAddress, IPushProducer, IReactorTime, IStreamServerEndpoint
from twisted.internet.protocol import connectionDone, Factory, Protocol
from twisted.python.failure import Failure

from txrdma.error import DeviceUnavailable, WireError
from txrdma.kit.delayedcalls import Timer
from txrdma.kit.proofs import ProvedServerEndpoint
from txrdma.kit.tcpkeepalive import keepAlive
from txrdma.mad.agent import MADAgent
from txrdma.mad.core.answers import rawKind
from txrdma.mad.core.frames import NO_KEYS
from txrdma.mad.core.transactions import Call
from txrdma.mad.errors import MADError, MADTimeoutError
from txrdma.mad.layouts.attributes import RPCS
from txrdma.mad.layouts.messages import ClassPortInfo
from txrdma.mad.paths import toLID
from txrdma.mad.portwatch import PortEvent, PortLost
from txrdma.monitor.collecting import wire
from txrdma.monitor.collecting.connection import MessageConnection
from txrdma.monitor.collecting.wire import PortsRequest, PortsResult

MOST_MONITORS: Final = 8
"""Maximum number of monitors that are connected to a collector."""

MESSAGE_BYTES: Final = 65536
"""Bytes of results after which a message ends."""

TCP_KEEP_ALIVE: Final = (60, 20, 3)
"""Seconds of silence before a monitor's host is probed, seconds between probes, and number of probes."""

BEAT_SECONDS: Final = 1.0
"""Least time in seconds between keepalive messages, which are sent while calls progress."""

_MOST_TEXT: Final = 200


def collectorEndpoint(
    reactor: IReactorTime, endpoint: IStreamServerEndpoint, key: bytes
) -> ProvedServerEndpoint:
    """Return an endpoint for a L{CollectorFactory}, to which only monitors with a key can connect."""
    keys = [b"", key]  # by rank: only monitors connect to a collector
    return ProvedServerEndpoint(reactor, endpoint, wire.COLLECTOR, keys, lambda rank, address: None)


_KINDS: Final = tuple(
    # The agent follows redirections in a ClassPortInfo, which it has to decode.
    (RPCS[rpc], kind if kind is ClassPortInfo else rawKind(kind))
    for rpc, kind in wire.READABLE
)


@cache
def _argumentsOf(what: int, port: int) -> tuple[bytes, int]:
    """Return the payload of a request for an attribute of a port, and the attribute modifier."""
    kind: Any = wire.READABLE[what][1]
    return (kind(portSelect=port).encode(), 0) if what in wire.COUNTERS else (b"", port)


class _Reading(Call):
    """A request of a monitor: calls for the attributes of several ports, one after the other."""

    __slots__ = ("at", "connection", "parts", "read", "request")

    def __init__(self, connection: CollectorProtocol, request: PortsRequest) -> None:
        super().__init__(*_KINDS[request.attributes[0]], b"", 0, NO_KEYS, 0)
        self.connection = connection
        self.request = request
        self.at = 0
        self.parts: list[bytes] = []
        self.read: list[bytes] = []

    def issue(self) -> None:
        """Make the next call."""
        what = self.request.attributes[len(self.parts)]
        self.rpc, self.kind = _KINDS[what]
        self.content, self.modifier = _argumentsOf(what, self.request.ports[self.at])
        self.connection.issue(self, self.request.lid)

    def answered(self, answer: Any) -> None:
        self.parts.append(answer.encode() if isinstance(answer, ClassPortInfo) else answer)
        if len(self.parts) == len(self.request.attributes):
            self._next(wire.READ, *self.parts)
        else:
            self.issue()

    def failed(self, error: Exception) -> None:
        """
        Record a refusal and read the next port; after other failures, complete the request with the reason.

        If the management port is lost, end the connection, so that other collectors make the calls.
        """
        if isinstance(error, DeviceUnavailable):
            self.connection.unavailable(self, str(error))
        elif isinstance(error, MADError):
            self._next(wire.REFUSED, error.status.to_bytes(2, "big"))
        elif isinstance(error, MADTimeoutError):
            self._completed(wire.SILENT, *self.read)
        else:
            self._completed(wire.FAILED, str(error)[:_MOST_TEXT].encode())

    def _next(self, *content: bytes) -> None:
        self.read += content
        self.parts.clear()
        self.at += 1
        if self.at < len(self.request.ports):
            self.issue()
        else:
            self._completed(wire.COMPLETE, *self.read)

    def _completed(self, kind: int, *content: bytes) -> None:
        self.connection.completed(self, PortsResult(self.request.identifier, kind, b"".join(content)))


@implementer(IPushProducer)
class CollectorProtocol(MessageConnection):
    """A connection from a monitor."""

    factory: CollectorFactory

    def __init__(self, factory: CollectorFactory) -> None:
        self.factory = factory
        self._isFilling = self._isPaused = self._hasProgressed = False
        self._timeoutSeconds, self._retries = 0.0, 0
        self._waiting: deque[PortsRequest] = deque()
        self._running: dict[_Reading, None] = {}
        self._results: list[PortsResult] = []
        self._flushing, self._beating = Timer(factory.reactor), Timer(factory.reactor)

    def connectionMade(self) -> None:
        """Wait for the settings; the monitor has proved that it has the key."""
        keepAlive(self.transport, *TCP_KEEP_ALIVE)  # its host may die while nothing is sent
        self.transport.registerProducer(self, True)

    def pauseProducing(self) -> None:
        """Start no more calls, because the monitor does not read their results."""
        self._isPaused = True

    def resumeProducing(self) -> None:
        self._isPaused = False
        self._fill()

    def stopProducing(self) -> None:
        """Do nothing: the connection is lost."""

    def messageReceived(self, message: bytes) -> None:
        if self._timeoutSeconds:
            self._ask(message)
        else:
            self._timeoutSeconds, self._retries = wire.decodeSettings(message)

    def _ask(self, message: bytes) -> None:
        for request in wire.decodeRequests(message):
            if len(self._waiting) + len(self._running) >= wire.MOST_CALLS:
                raise WireError("collector", 0, f"more than {wire.MOST_CALLS} calls at a time")
            self._waiting.append(request)
        self._fill()
        if self._running:
            self._beating.ensure(BEAT_SECONDS, self._beat)

    def _beat(self) -> None:
        """Show that calls progress, because a slow node may delay results."""
        if self._running:
            if self._hasProgressed:
                self._hasProgressed = False
                self.send(b"")
            self._beating.start(BEAT_SECONDS, self._beat)

    def _fill(self) -> None:
        """Make calls up to the limit; one that ends at once returns to the outer loop."""
        if self._isFilling:
            return
        self._isFilling = True
        try:
            while self._waiting and not self._isPaused and len(self._running) < self.factory.maxOutstanding:
                call = _Reading(self, self._waiting.popleft())
                self._running[call] = None
                try:
                    call.issue()
                except BaseException:
                    self._running.pop(call, None)  # what was not issued cannot be cancelled
                    raise
        finally:
            self._isFilling = False

    def issue(self, call: _Reading, lid: int) -> None:
        """Make a call, after the one before it has completed."""
        self._hasProgressed = True
        agent = self.factory.agent
        agent.issue(call, toLID(agent.port.endPort, lid), self._timeoutSeconds, self._retries)

    def completed(self, call: _Reading, result: PortsResult) -> None:
        """Send a result, together with the others of this iteration of the reactor."""
        if call not in self._running:  # the connection has ended
            return
        del self._running[call]
        self._results.append(result)
        self._flushing.ensure(0, self._flush)
        self._fill()

    def unavailable(self, call: _Reading, reason: str) -> None:
        """End the connection, because there is no port for the call."""
        self._running.pop(call, None)
        self.end(reason)

    def _flush(self) -> None:
        results, self._results = self._results, []
        message: list[PortsResult] = []
        size = 0
        for result in results:
            message.append(result)
            size += len(result.content)
            if size >= MESSAGE_BYTES:  # the receiver copies the incomplete message with each further piece
                self.send(wire.encodeResults(message))
                message, size = [], 0
        if message:
            self.send(wire.encodeResults(message))

    def end(self, reason: str) -> None:
        self._forget()
        super().end(reason)

    def _forget(self) -> None:
        """Cancel all calls and timers."""
        self._waiting.clear()
        running, self._running = self._running, {}
        for call in running:
            call.forget(call)
        self._flushing.stop()
        self._beating.stop()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._forget()
        self.factory.connections.discard(self)


class CollectorFactory(Factory):
    """
    Makes the connections of a collector.

    @ivar connections: the open connections.
    """

    noisy = False

    def __init__(self, reactor: IReactorTime, agent: MADAgent, maxOutstanding: int) -> None:
        """
        @param agent: makes the calls; the factory does not close it.
        @param maxOutstanding: maximum number of outstanding calls of a connection.
        """
        self.reactor, self.agent, self.maxOutstanding = reactor, agent, maxOutstanding
        self.connections: set[CollectorProtocol] = set()
        self._isPortLost = False
        self._unwatch = agent.watch(self._portChanged)

    def _portChanged(self, event: PortEvent) -> None:
        self._isPortLost = isinstance(event, PortLost)

    def close(self) -> None:
        """Close all connections."""
        self._unwatch()
        for connection in list(self.connections):
            connection.end("the collector ends")

    def buildProtocol(self, addr: IAddress | None) -> Protocol | None:
        """Return the protocol of a connection; None closes it: there is no port, or too many connections."""
        if self._isPortLost or len(self.connections) >= MOST_MONITORS:
            return None
        protocol = CollectorProtocol(self)
        self.connections.add(protocol)
        return protocol
