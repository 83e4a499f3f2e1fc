"""
The client of a verification: exchanges data with a L{Serving<txrdma.verify.serving.Serving>}, and measures.

The events that a protocol gets over each stream are compared with C{tcp:}; so are latency and bandwidth.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from statistics import median
from typing import Any, Final

from twisted.internet.defer import Deferred, TimeoutError
from twisted.internet.endpoints import clientFromString, connectProtocol, HostnameEndpoint
from twisted.internet.error import ConnectError, DNSLookupError
from twisted.internet.protocol import connectionDone, Protocol
from twisted.python.failure import Failure

from txrdma.cm.connections.endpoints import RDMAClientEndpoint
from txrdma.error import DeviceUnavailable, WireError
from txrdma.kit.strings import printable
from txrdma.kit.values import frozen
from txrdma.messages.protocol import MessageFactory
from txrdma.pingpong.link import TestSide
from txrdma.pingpong.measurement import Measurement
from txrdma.pingpong.plan import Measure, Transfer
from txrdma.pingpong.run import Running, Series
from txrdma.pingpong.session import connect
from txrdma.testing.protocols import HalfCloseRecorder, MessageRecorder, Recorder
from txrdma.testing.streams.scriptedprotocol import servedBy
from txrdma.verbs.devices import openDevice
from txrdma.verify.checks import Check, Measured, Outcome, Reporter
from txrdma.verify.serving import ECHO, SINK
from txrdma.verify.subject import TestedPort
from txrdma.verify.transports import clientDevice, connecting

STREAMS: Final = ("tcp", "smc", "rsocket", "btl")
"""Kinds of streams; the first is the reference of the others."""

_KINDS: Final = (*STREAMS, "rdma", "pingpong")
_ADDRESS: Final = re.compile(r"([0-9A-Fa-f.:]+(%[0-9A-Za-z._-]+)?)?")
_LONGEST_REASON: Final = 200
_SERVED: Final = {"tcp": "TCP", "smc": "SMC-R", "rsocket": "RSocketTransport", "btl": "BTLTransport"}
"""The beginning of the name of the transport that must be used, and not another one silently."""

MOST_RECEIVED: Final = 1 << 20
"""Maximum bytes that are stored of a connection of a server: an offer, or an echo."""

_ECHOED: Final = 300_000
_MESSAGES: Final = 200
_SMALL: Final = 64
_CHUNK: Final = 1 << 16
_STEP_BYTES: Final = 4 << 20
_SECONDS: Final = 20.0
_SERVER: Final = "txrdma verify --serve"


class Misbehavior(Exception):
    """Raised if a stream or a message connection did not behave as required."""


class LimitedRecorder(Recorder):
    """Records data of the server, up to a limit, at which the connection is aborted."""

    def dataReceived(self, data: bytes) -> None:
        if len(self.received) + len(data) > MOST_RECEIVED:
            self.transport.abortConnection()
        else:
            super().dataReceived(data)


class _HalfCloseReceived(LimitedRecorder, HalfCloseRecorder):
    """Like L{LimitedRecorder}, on a connection that stays open when one direction is closed."""


@contextmanager
def _closing(connected: Any) -> Iterator[None]:
    """Close the connection of a protocol at the end of a block; abort it if the block fails."""
    try:
        yield
    except BaseException:
        connected.transport.abortConnection()
        raise
    connected.transport.loseConnection()


async def _before(end: LimitedRecorder, awaited: Deferred[Any]) -> None:
    """
    Wait for an event of a connection.

    @raise Misbehavior: the connection ends first.
    """

    def ended(_: object) -> None:
        if not awaited.called:
            awaited.errback(_closedEarly(end.reason))

    end.lost.addCallback(ended)
    await awaited


def _closedEarly(reason: Failure) -> Misbehavior:
    return Misbehavior(f"the server closed the connection early: {reason.getErrorMessage()}")


class RoundTripTimer(Protocol):
    """
    Sends a small message, waits for its echo, and so on.

    @ivar done: fires with the seconds of each; fails with L{Misbehavior} if the connection ends first.
    """

    def __init__(self, seconds: float) -> None:
        self.done: Deferred[list[float]] = Deferred()
        self._until = time.monotonic() + seconds
        self._times: list[float] = []
        self._got = 0

    def connectionMade(self) -> None:
        self._write(ECHO + bytes(_SMALL))

    def _write(self, data: bytes) -> None:
        assert self.transport is not None
        self._sent = time.perf_counter()
        self.transport.write(data)

    def dataReceived(self, data: bytes) -> None:
        self._got += len(data)
        if self._got < _SMALL:
            return
        self._got = 0
        self._times.append(time.perf_counter() - self._sent)
        if time.monotonic() < self._until:
            self._write(bytes(_SMALL))
        else:
            self.done.callback(self._times)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if not self.done.called:
            self.done.errback(_closedEarly(reason))


@frozen
class ServerOffer:
    """
    The offer of a server: its address and ports.

    @ivar address: IP address of its RDMA port; C{""} if it has none.
    @ivar ports: port numbers by the kind of connection.
    @ivar missing: reasons for which it cannot listen, by the kind of connection.
    """

    address: str
    ports: dict[str, int]
    missing: dict[str, str]


def decodeOffer(line: bytes) -> ServerOffer:
    """
    Decode the line of a server; its values become parts of endpoint strings.

    @raise WireError: the line is not an offer.
    """
    try:
        found = json.loads(line)
        address, missing = found["address"], found["missing"]
        ports = {kind: found[kind] for kind in _KINDS if kind in found}
        reasons = {kind: missing[kind] for kind in _KINDS if kind in missing}
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise WireError("offer", 0, f"not that of {_SERVER}: {error!r}") from None
    if not isinstance(missing, dict) or not all(isinstance(reason, str) for reason in reasons.values()):
        raise WireError("offer", 0, "its reasons are not text")
    if not isinstance(address, str) or not _ADDRESS.fullmatch(address):
        raise WireError("offer", 0, f"{address!r} is not an IP address")
    for port in ports.values():
        if type(port) is not int or not 0 < port < 1 << 16:
            raise WireError("offer", 0, f"{port!r} is not a port number")
    texts = {kind: printable(reason[:_LONGEST_REASON]) for kind, reason in reasons.items()}
    return ServerOffer(address, ports, texts)


class MeasuringClient:
    """
    Exchanges data with a server from one device.

    @ivar host: name or IP address of the server.
    """

    def __init__(
        self, reactor: Any, reporter: Reporter, end: TestedPort, host: str, seconds: float, patience: float
    ) -> None:
        """
        @param seconds: duration of each measurement.
        @param patience: factor for time limits.
        """
        self._limit = _SECONDS * patience + 4 * seconds
        self._reactor = reactor
        self._reporter = reporter
        self._end = end
        self._seconds = seconds
        self.host = host

    async def run(self, port: int, first: int = 0) -> None:
        """
        Run all checks of a server, given the port of its control connection.

        @raise DeviceUnavailable: there is no server.
        @raise WireError: it sends no offer, or an invalid one.
        """
        try:
            control = await connectProtocol(
                HostnameEndpoint(self._reactor, self.host, port), LimitedRecorder()
            )
        except (ConnectError, DNSLookupError) as error:
            text = f"no server at TCP port {port} of {self.host}: {error}"
            raise DeviceUnavailable(f"{text} Start {_SERVER} there.") from error
        try:
            await control.lost.addTimeout(self._limit, self._reactor)
        except TimeoutError:
            control.transport.abortConnection()
            raise WireError(
                "offer", 0, f"the server has not sent it in {self._limit:g} s; is it {_SERVER}?"
            ) from None
        offer = decodeOffer(bytes(control.received))
        self._calls: list[str] = []
        checks: list[tuple[str, Callable[[], Any]]] = []
        for kind in STREAMS:
            address = offer.address if kind == "rsocket" else self.host
            self._add(checks, offer, kind, self._stream, address)
        self._add(checks, offer, "rdma", self._messages, offer.address)
        self._add(checks, offer, "pingpong", self._verbs, self.host)
        self._reporter.total(len(checks))
        for name, check in checks[first:]:
            self._reporter.started(name)
            await self._checked(name, check)

    def _add(self, checks: list[Any], offer: ServerOffer, kind: str, check: Any, address: str) -> None:
        if kind in offer.ports:
            checks.append((kind, lambda: check(kind, address, offer.ports[kind])))
        elif kind in offer.missing:
            checks.append((kind, lambda: self._missing(offer.missing[kind])))

    async def _missing(self, reason: str) -> None:
        raise Misbehavior(f"the server cannot listen: {reason}")

    async def _checked(self, name: str, check: Callable[[], Any]) -> None:
        begun = time.monotonic()
        outcome, text = Outcome.PASSED, ""
        try:
            await Deferred.fromCoroutine(check()).addTimeout(self._limit, self._reactor)
        except Exception as error:
            outcome, text = Outcome.FAILED, f"{type(error).__name__}: {error}"
        self._reporter.check(Check("peer", name, outcome, text, seconds=time.monotonic() - begun))

    # Streams

    async def _stream(self, kind: str, host: str, port: int) -> None:
        endpoint = clientFromString(self._reactor, connecting(kind, self._end, host, port))
        calls = await self._echoed(kind, endpoint)
        self._calls = self._calls or calls  # those of tcp: come first
        if calls != self._calls:
            raise Misbehavior(f"the protocol got {', '.join(calls)}; over TCP {', '.join(self._calls)}")
        timer = await connectProtocol(endpoint, RoundTripTimer(self._seconds))
        with _closing(timer):
            times = await timer.done
        self._measured(f"{kind}:", _SMALL, median(times) / 2 * 1e6, "us")
        await self._bandwidth(kind, endpoint)

    async def _echoed(self, kind: str, endpoint: Any) -> list[str]:
        """Send data, compare its echo, close one direction, and return the events that the protocol got."""
        recorder = await connectProtocol(endpoint, _HalfCloseReceived())
        used = servedBy(recorder.transport)
        data = Random(kind).randbytes(_ECHOED)
        with _closing(recorder):
            recorder.transport.write(ECHO + data[: _ECHOED // 2])
            await _before(recorder, recorder.receiving(_ECHOED // 2))
            recorder.transport.write(data[_ECHOED // 2 :])
            recorder.transport.loseWriteConnection()
            await _before(recorder, recorder.readEnded)
            recorder.transport.loseConnection()
            await recorder.lost
        if not used.startswith(_SERVED[kind]):
            raise Misbehavior(f"served by {used} instead of {_SERVED[kind]}")
        if recorder.received != data:
            raise Misbehavior(f"the echo of {_ECHOED} bytes is wrong: {len(recorder.received)} bytes")
        ends = ("readEnded", "writeEnded")
        seen = [name for name in ends if getattr(recorder, name).called]
        return [*seen, recorder.reason.type.__name__]

    async def _bandwidth(self, kind: str, endpoint: Any) -> None:
        recorder = await connectProtocol(endpoint, LimitedRecorder())
        with _closing(recorder):
            recorder.transport.write(SINK)
            begun, count = time.perf_counter(), 0
            while time.perf_counter() - begun < self._seconds:
                count += 1
                recorder.transport.write(_STEP_BYTES.to_bytes(8, "big"))
                for _ in range(_STEP_BYTES // _CHUNK):
                    recorder.transport.write(bytes(_CHUNK))
                await _before(recorder, recorder.receiving(count))
            seconds = time.perf_counter() - begun
        self._measured(f"{kind}:", _CHUNK, count * _STEP_BYTES / seconds / 1e6, "MB/s")

    def _measured(self, over: str, size: int, value: float, unit: str) -> None:
        self._reporter.measured(Measured(over, size, value, unit))

    # Messages, and verbs

    async def _messages(self, kind: str, host: str, port: int) -> None:
        device = clientDevice(self._end, host)
        endpoint = RDMAClientEndpoint(self._reactor, host, port, device)
        client: Any = await endpoint.connect(MessageFactory(_Counting))
        sent = [(bytes([number % 251]) * (number * 37), number) for number in range(_MESSAGES)]
        with _closing(client):
            for data, immediate in sent:
                client.transport.sendMessage(data, immediate)
            await client.done
        if client.messages != sent:
            raise Misbehavior("echoed messages were changed or reordered")

    async def _verbs(self, kind: str, host: str, port: int) -> None:
        device = self._end.device
        side = TestSide(self._reactor, lambda _: openDevice(self._reactor, device), port=self._end.port)
        client = await connect(HostnameEndpoint(self._reactor, host, port), side)
        try:
            transfers = [Transfer.SEND, Transfer.WRITE, Transfer.READ]
            if not self._end.isIWARP:
                transfers.append(Transfer.UD)
            series = Series(transfers, seconds=self._seconds, check=True)
            await Running(client, series, self._verbsMeasured).run()
        finally:
            client.close()

    def _verbsMeasured(self, found: Measurement) -> None:
        if found.wrong:
            raise Misbehavior(f"{found.wrong} of {found.messages} messages had wrong contents")
        if not found.messages:
            return  # the host was too busy for one message in this time
        if found.test.measure is Measure.LATENCY:
            value, unit = found.samples.summary().median / 1000, "us"
        else:
            value, unit = found.bandwidth / 1e6, "MB/s"
        self._measured(found.test.transfer.value, found.test.size, value, unit)


class _Counting(MessageRecorder):
    """Records echoes, and fires C{done} when all have arrived; further messages are ignored."""

    def __init__(self) -> None:
        super().__init__()
        self.done: Deferred[None] = Deferred()

    def messageReceived(self, data: bytes, immediate: int | None) -> None:
        if not self.done.called:
            super().messageReceived(data, immediate)
            if len(self.messages) == _MESSAGES:
                self.done.callback(None)

    def connectionLost(self, reason: Any) -> None:
        super().connectionLost(reason)
        if not self.done.called:
            self.done.errback(_closedEarly(reason))
