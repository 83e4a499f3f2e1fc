"""
The collectors of a monitor: each makes the calls for a share of the ports.

Theory of operation. A port belongs to one of the connected collectors by its LID. Calls wait in a link, which
sends them in batches, up to a limit of outstanding ones. If a collector is lost, or returns nothing for
longer than an answer may take, its calls are returned, and the reader makes them again. Without any collector
the monitor makes the calls itself.

The reader also asks nodes itself for which a collector has no answer: its host may have lost its link to the
fabric, or cannot send. A collector to which no node answers, while some answer the monitor, is disconnected
for a while.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from math import inf
from typing import Any, Final, NamedTuple

from zope.interface import implementer

from twisted.application.internet import backoffPolicy, ClientService
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.interfaces import IAddress, IProtocolFactory, IReactorTime, IStreamClientEndpoint
from twisted.internet.protocol import connectionDone, Factory, Protocol
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.fabric.health import Finding
from txrdma.iba.path import IBPath
from txrdma.interfaces import IMADPort
from txrdma.kit.delayedcalls import Timer
from txrdma.kit.logs import errorText
from txrdma.kit.proofs import ProvedClientEndpoint
from txrdma.kit.strings import escaped
from txrdma.mad.agent import MADAgent
from txrdma.mad.core.transactions import Call
from txrdma.mad.errors import MADError, MADTimeoutError
from txrdma.monitor.collecting import wire
from txrdma.monitor.collecting.connection import MessageConnection
from txrdma.monitor.collecting.wire import PortsRequest, PortsResult

_log = Logger()

GRACE_SECONDS: Final = 5.0
"""Seconds, beyond the time for an answer, after which a collector that returns nothing is lost."""

FIRST_PAUSE: Final = 1.0
"""Seconds until a lost collector is connected again; doubled after each failure, up to L{LONGEST_PAUSE}."""

LONGEST_PAUSE: Final = 30.0

MISSING_SECONDS: Final = 30.0
"""Seconds without a collector after which it is reported missing."""

_MOST_CONTRADICTIONS: Final = 3
"""A collector is disconnected after this many nodes in a row that answer the monitor, but not it."""

Contradict = Callable[[], object]
"""Type of a function that records that a node did not answer its collector, but has answered the monitor."""


def _recordNothing() -> None:
    """Record nothing: other nodes answered the collector meanwhile, so only this one was away."""


_INDICES: Final = {(rpc, kind.attributeID): index for index, (rpc, kind) in enumerate(wire.READABLE)}


class CollectedCall(Call):
    """A call that a collector may make."""

    __slots__ = ()

    def collected(self, ports: Sequence[bytes | int], contradict: Contradict | None) -> None:
        """
        Process the result of L{CollectorPool.issueSeries}.

        @param ports: attributes of each port that was read, or the MAD status of the node's refusal.
        @param contradict: None if all ports were read; else there is no usable answer for the next one, for
            which the collector may be the reason.
        """
        raise NotImplementedError

    def silent(self, error: MADTimeoutError, contradict: Contradict) -> None:
        """Process the result of L{CollectorPool.issue} that the collector has no usable answer."""
        self.failed(error)

    def lost(self) -> None:
        """Make the call again, because its collector was lost before it returned a result."""
        raise NotImplementedError


class _PendingCall(NamedTuple):
    """A call with its path; C{attributes} and C{ports} are those of its request."""

    call: CollectedCall
    path: IBPath
    attributes: bytes
    ports: bytes
    isSeries: bool


class _Link(MessageConnection):
    """
    A connection with a collector, which makes calls; the number of outstanding calls is limited.

    @ivar waiting: calls that are not sent yet.
    """

    def __init__(self, collector: _Collector) -> None:
        self.waiting: dict[Call, _PendingCall] = {}
        self._collector = collector
        self._open: dict[int, _PendingCall] = {}
        self._identifiers = count(1)
        self._requests: list[PortsRequest] = []
        self._flushing, self._watching = Timer(collector.reactor), Timer(collector.reactor)
        self._received = self._contradictions = 0
        self._receivedAt = self._heardAt = -inf

    def issue(self, asked: _PendingCall) -> None:
        """Make a call now or later."""
        asked.call.forget = self._forget
        self.waiting[asked.call] = asked
        self._fill()

    def _forget(self, call: Call) -> None:
        """Remove a cancelled call, so that its result is ignored."""
        if self.waiting.pop(call, None) is None:
            asked = self._open.get(getattr(call, "identifier", 0))
            if asked is not None and asked.call is call:
                del self._open[call.identifier]

    def _fill(self) -> None:
        """Start calls up to the limit."""
        while self.waiting and len(self._open) < wire.MOST_CALLS:
            self._send(self.waiting.pop(next(iter(self.waiting))))

    def connectionMade(self) -> None:
        """Send the settings; the collector has proved that it has the key."""
        pool = self._collector.pool
        self.send(wire.encodeSettings(pool.timeoutSeconds, pool.retries))
        self._collector.joined(self)

    def messageReceived(self, message: bytes) -> None:
        self._received += 1
        self._receivedAt = self._collector.reactor.seconds()
        for result in wire.decodeResults(message):
            self._complete(result)

    def _send(self, asked: _PendingCall) -> None:
        call = asked.call
        call.identifier = next(self._identifiers) & 0xFFFFFFFF
        self._open[call.identifier] = asked
        self._collector.pool.sent += 1
        self._requests.append(PortsRequest(call.identifier, asked.path.dlid, asked.attributes, asked.ports))
        self._flushing.ensure(0, self._flush)

    def _flush(self) -> None:
        requests, self._requests = self._requests, []
        self.send(wire.encodeRequests(requests))
        if not self._watching.isPending:
            self._watch()

    def _complete(self, result: PortsResult) -> None:
        """Pass a result on; the next call starts first, so that the collector is never idle."""
        asked = self._open.pop(result.identifier, None)
        if asked is None:  # it was given up
            return
        call, path, name = asked.call, asked.path, asked.call.rpc.name
        isSilent = result.kind == wire.SILENT
        isRead = isSilent or result.kind == wire.COMPLETE
        try:
            self._fill()
            size = sum(wire.READABLE[index][1].size for index in asked.attributes)
            ports = wire.decodePorts(size, len(asked.ports), result.content) if isRead else []
        except BaseException:
            self._open[result.identifier] = asked  # connectionLost returns it
            raise
        if isSilent:
            self._collector.pool.late += self._collector.pool.retries + 1
        if ports:
            self._contradictions = 0
            self._heardAt = self._receivedAt
            self._collector.isDeaf = False
        if asked.isSeries:
            call.collected(ports, None if result.kind == wire.COMPLETE else self._contradict())
        elif not ports:
            why = "no answer to the collector" if isRead else result.content.decode("utf-8", "replace")
            call.silent(MADTimeoutError(f"{name}: {escaped(why)}", call.rpc, path), self._contradict())
        elif isinstance(ports[0], int):
            call.failed(MADError(call.rpc, path, ports[0], b"", b""))
        else:
            call.answered(call.kind.decode(ports[0], 0))

    def _contradict(self) -> Contradict:
        """Return what records that a node, silent to the collector, has answered the monitor after all."""
        isHeard = self._receivedAt - self._heardAt < self._collector.pool.silentSeconds
        return _recordNothing if isHeard else self._contradicted

    def _contradicted(self) -> None:
        """Count a node that has answered the monitor, but not the collector; disconnect after several."""
        self._contradictions += 1
        if self._contradictions == _MOST_CONTRADICTIONS and self._collector.link is self:
            self._collector.isDeaf = True
            self.end("nodes that answer this process do not answer the collector")

    def _watch(self) -> None:
        """End the connection unless something is received in time, as long as something is expected."""
        self._watching.start(self._collector.pool.mostSeconds, self._check, self._received)

    def _check(self, received: int) -> None:
        if self._open:
            if self._received == received:
                self.end("it returns nothing")
            else:
                self._watch()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Return all calls without a result to the pool."""
        self._flushing.stop()
        self._watching.stop()
        calls = [*self._open.values(), *self.waiting.values()]
        self._open.clear()
        self.waiting.clear()
        self._collector.left(calls)


@implementer(IStreamClientEndpoint)
class _Collector(Factory):
    """
    A collector, and the connection to it, if there is one.

    @ivar link: the connection; None while there is none.
    @ivar isDeaf: no node has answered the collector since some answered this process instead.
    """

    noisy = False
    isDeaf = False

    def __init__(self, pool: CollectorPool, name: str, endpoint: IStreamClientEndpoint) -> None:
        self.name = name
        self.reactor = pool.reactor
        self.link: _Link | None = None
        self.pool = pool
        self._endpoint = ProvedClientEndpoint(self.reactor, endpoint, wire.MONITOR, wire.COLLECTOR, pool.key)
        self._missingSince = self.reactor.seconds()
        pauses = backoffPolicy(FIRST_PAUSE / 2, LONGEST_PAUSE, 2.0, jitter=lambda: 0.0)
        self._service = ClientService(self, self, pauses, self.reactor)
        self.start = self._service.startService

    def buildProtocol(self, addr: IAddress | None) -> Protocol:
        return _Link(self)

    def connect(self, factory: IProtocolFactory) -> Deferred[Any]:
        """Connect with the collector, later if no node answers it, and log the reason if that fails."""
        if self.isDeaf:
            connected = deferLater(self.reactor, LONGEST_PAUSE, self._endpoint.connect, factory)
        else:
            connected = self._endpoint.connect(factory)
        return connected.addErrback(self._failed)

    def _failed(self, failure: Failure) -> Failure:
        _log.debug("no connection with {name}: {why}", name=self.name, why=errorText(failure.value))
        return failure

    def stop(self) -> Deferred[None]:
        """Close the connection; fires when it is closed."""
        stopped: Deferred[None] = self._service.stopService()
        if self.link is not None:
            self.link.transport.abortConnection()
        return stopped

    def joined(self, link: _Link) -> None:
        """Both ends have proved that they have the key."""
        _log.info("the collector {name} is connected", name=self.name)
        self.link = link

    def left(self, calls: Sequence[_PendingCall]) -> None:
        """Make the calls of a lost connection again, by other collectors or by this process."""
        if self.link is not None:
            self.link = None
            self._missingSince = self.reactor.seconds()
            _log.warn("the collector {name} is lost", name=self.name)
        for each in calls:
            each.call.lost()

    def findings(self) -> list[Finding]:
        """Return a finding if the collector is missing, or has lost its link to the fabric."""
        if self.isDeaf:
            text = "no node of the fabric answers it; other processes read its ports"
            return [Finding("collector-missing", self.name, text)]
        seconds = self.reactor.seconds() - self._missingSince
        if self.link is not None or seconds < MISSING_SECONDS:
            return []
        text = f"there has been no connection for {seconds:.0f} s; other processes read its ports"
        return [Finding("collector-missing", self.name, text)]


class CollectorPool:
    """
    Makes the calls of a monitor by its collectors.

    @ivar agent: makes calls in this process.
    @ivar sent: calls that were sent to collectors; C{late}: time-outs that they have reported.
    """

    def __init__(
        self,
        reactor: IReactorTime,
        agent: MADAgent,
        collectors: Mapping[str, IStreamClientEndpoint],
        key: bytes,
        timeoutSeconds: float,
        retries: int,
        maxOutstanding: int,
    ) -> None:
        """@param maxOutstanding: number of calls that the agent may make at a time."""
        self.reactor, self.key = reactor, key
        self.timeoutSeconds, self.retries = timeoutSeconds, retries
        self.sent = self.late = 0
        self.agent = agent
        self._maxOutstanding = maxOutstanding
        self._collectors = [_Collector(self, name, endpoint) for name, endpoint in collectors.items()]

    def change(self, timeoutSeconds: float, maxOutstanding: int) -> None:
        """Use another time-out, for which collectors connect again, and another bound for the agent."""
        self._maxOutstanding = maxOutstanding
        if timeoutSeconds != self.timeoutSeconds:
            self.timeoutSeconds = timeoutSeconds
            for link in self._links:
                link.transport.abortConnection()

    @property
    def silentSeconds(self) -> float:
        """The longest time until a node is silent: after BUSY a call pauses as long as its retries take."""
        return 2 * self.timeoutSeconds * (self.retries + 1)

    @property
    def mostSeconds(self) -> float:
        """The longest time without a result."""
        return self.silentSeconds + GRACE_SECONDS

    @property
    def port(self) -> IMADPort:
        """The management port of this process."""
        return self.agent.port

    @property
    def _links(self) -> list[_Link]:
        return [each.link for each in self._collectors if each.link is not None]

    @property
    def mostCalls(self) -> int:
        """The number of calls that the reader may make at a time with the connected collectors."""
        return wire.MOST_CALLS * len(self._links) or self._maxOutstanding

    def start(self) -> None:
        """Connect, and reconnect when a connection ends, until L{stop}."""
        for each in self._collectors:
            each.start()

    def stop(self) -> Deferred[Any]:
        """Close all connections."""
        return gatherResults([each.stop() for each in self._collectors])

    def issue(self, call: CollectedCall, path: IBPath, timeoutSeconds: float, retries: int) -> None:
        """Make a call by the collector of its port, with the pool's time-out; by the agent without one."""
        if not self._issue(call, path, [call.kind.attributeID], bytes((call.modifier,)), isSeries=False):
            self.agent.issue(call, path, timeoutSeconds, retries)

    def issueSeries(self, call: CollectedCall, path: IBPath, attributes: Iterable[int], ports: bytes) -> bool:
        """Read the attributes with these IDs of the ports of a LID. Returns False without a collector."""
        return self._issue(call, path, attributes, ports, isSeries=True)

    def _issue(
        self, call: CollectedCall, path: IBPath, attributes: Iterable[int], ports: bytes, isSeries: bool
    ) -> bool:
        links = self._links
        if links:
            indices = bytes(_INDICES[call.rpc.name, each] for each in attributes)
            links[path.dlid % len(links)].issue(_PendingCall(call, path, indices, ports, isSeries))
        return bool(links)

    def findings(self) -> list[Finding]:
        """Return findings about missing collectors."""
        return [found for each in self._collectors for found in each.findings()]
