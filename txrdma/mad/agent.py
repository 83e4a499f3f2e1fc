"""
Remote procedure calls by management datagrams: each returns a Deferred.

Follows InfiniBand Architecture vol. 1, 13.4 (datagrams), 13.4.8.1 (redirection) and 13.5.4 (transactions).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from secrets import randbits
from struct import Struct
from typing import Any, Final

from zope.interface import implementer

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from txrdma.error import DeviceUnavailable, InvalidRequest, RDMAError, WireError
from txrdma.iba.path import GMP_QKEY, IBDRPath, IBPath
from txrdma.iba.types import LID, PKey, QPN
from txrdma.interfaces import IMADAgent, IMADPort, IMADReceiver
from txrdma.mad._frames import frame, Keys, managementPacket, NO_KEYS
from txrdma.mad._long import Failed, isLong, LongMessages, Received, RMPP_CLASSES
from txrdma.mad._transaction import Transaction, Transactions
from txrdma.mad.attributes import Attribute, ManagementClass, Method, RPC, RPCS
from txrdma.mad.errors import MADClassError, MADError, MADTimeoutError, MADTransferError
from txrdma.mad.messages import ClassPortInfo, formatOf, MADStatus, SAFormat
from txrdma.mad.rpcs import RPCs
from txrdma.mad.sa import PathRecord, Query
from txrdma.mad.values import lifetimeSeconds

_log = Logger()

RETRIES: Final = 3
RESPONSE_TIME: Final = 16
"""How long agents take to answer unless they say otherwise, a time's code: 0.27 seconds."""

MOST_REDIRECTIONS: Final = 4

_HEAD: Final = Struct(">xBxBH2xQ")
_ATTRIBUTE: Final = Struct(">16xH")
_RESPONSE: Final = 0x80
_TRAP_REPRESS: Final = 0x07
_DIRECTED: Final = ManagementClass.SUBN_DIRECTED
_SUBN: Final = ManagementClass.SUBN_LID
_ADM: Final = ManagementClass.SUBN_ADM
_NO_DIRECTION: Final = 0x7FFF
_TABLES: Final = (Method.GET_TABLE_RESP, Method.GET_MULTI_RESP)

_OFFSETS: Final = {number: formatOf(number).dataOffset for number in range(256)}  # type: ignore[attr-defined]  # every frame has it


class Call(Transaction):
    """
    A call on its way.

    @ivar kind: what the answer's payload is.
    @ivar redirections: how often somebody else was named.
    """

    __slots__ = ("_deferred", "content", "forget", "keys", "kind", "mask", "modifier", "redirections", "rpc")

    def __init__(
        self,
        rpc: RPC,
        kind: type[Attribute],
        content: bytes,
        modifier: int,
        keys: Keys,
        mask: int,
        forget: Callable[[Call], None],
    ) -> None:
        self.rpc = rpc
        self.kind = kind
        self.content = content
        self.modifier = modifier
        self.keys = keys
        self.mask = mask
        self.redirections = 0
        self.forget = forget
        self._deferred: Deferred[Any] | None = None

    def awaited(self) -> Deferred[Any]:
        """What will tell of its end."""
        self._deferred = Deferred(self._cancelled)
        return self._deferred

    def answered(self, answer: object) -> None:
        """It has ended well."""
        deferred, self._deferred = self._deferred, None
        if deferred is not None:
            deferred.callback(answer)

    def failed(self, error: Exception) -> None:
        """It has not."""
        deferred, self._deferred = self._deferred, None
        if deferred is not None:
            deferred.errback(error)

    def _cancelled(self, deferred: Deferred[Any]) -> None:
        self._deferred = None
        self.forget(self)


@implementer(IMADAgent, IMADReceiver)
class MADAgent(RPCs):
    """
    Calls through one port.

    @ivar timeoutSeconds: how long answers are awaited; None is as long as the port's subnet may take (IBA
        13.4.6.2), which a call can say otherwise.
    @ivar retries: how often a request is sent again.
    """

    def __init__(
        self,
        reactor: IReactorTime,
        port: IMADPort,
        *,
        timeoutSeconds: float | None = None,
        retries: int = RETRIES,
        keys: Keys = NO_KEYS,
    ) -> None:
        """
        @param port: is the agent's from now on, and closed with it.
        @param keys: of calls that say none.
        """
        self.port = port
        self.timeoutSeconds = timeoutSeconds
        self.retries = retries
        self.keys = keys
        self._reactor = reactor
        self._seconds = reactor.seconds
        self._send = port.send
        self._transactions: Transactions[Call] = Transactions(
            port.transactionIDBits, randbits(port.transactionIDBits)
        )
        self._begin = self._transactions.begin
        self._newIdentifier = self._transactions.newIdentifier
        self._timer: IDelayedCall | None = None
        self._timerAt = 0.0
        self._closed = ""
        self._patience: dict[int | None, float] = {}
        self._long = LongMessages(port.transactionIDBits)
        self._longTimer: IDelayedCall | None = None
        self._server: Callable[[bytes, bytes, IBPath], None] | None = None
        port.start(self)

    def __repr__(self) -> str:
        return f"<MADAgent {self.port.name} {len(self._transactions)} outstanding>"

    # IMADAgent

    def call(
        self,
        rpc: str,
        payload: Any,
        path: IBPath,
        attributeModifier: int = 0,
        *,
        timeoutSeconds: float | None = None,
        retries: int | None = None,
        keys: Keys | None = None,
        componentMask: int = 0,
    ) -> Deferred[Any]:
        """Make a call: see L{RPCs.call}."""
        try:
            call = self._made(rpc, payload, attributeModifier, keys or self.keys, componentMask)
            call.timeoutSeconds = self._patienceFor(path) if timeoutSeconds is None else timeoutSeconds
            call.retriesLeft = self.retries if retries is None else retries
            self._issue(call, path)
        except RDMAError as error:
            return fail(error)
        if self._closed:  # the port was lost by sending
            return fail(DeviceUnavailable(self._closed))
        return succeed(None) if call.rpc.answer is None else call.awaited()

    def issue(self, call: Call, path: IBPath) -> None:
        """
        Make a call that was put together already, and that hears of its end itself: for who makes very many.

        @raise RDMAError: nothing was sent, and C{call} hears nothing.
        """
        call.keys = self.keys
        call.forget = self._forget
        call.timeoutSeconds = self._patienceFor(path)
        call.retriesLeft = self.retries
        self._issue(call, path)

    def close(self) -> None:
        """Give up all calls, and close the port. Twice is fine."""
        self._end("the agent is closed")
        self.port.close()

    def _made(self, name: str, payload: Any, modifier: int, keys: Keys, mask: int) -> Call:
        rpc = RPCS.get(name)
        if rpc is None:
            raise InvalidRequest(f"there is no call {name}")
        content = b""
        kind = payload
        if type(payload) is Query:
            payload, mask = payload
        if not isinstance(payload, type):
            kind = type(payload)
            content = payload.encode()
        if name not in kind.rpcs:
            raise InvalidRequest(f"{kind.__name__} is not for {name}, but for {', '.join(sorted(kind.rpcs))}")
        if kind.vendorClass is not None:
            rpc = replace(rpc, managementClass=kind.vendorClass)
            keys = keys._replace(oui=kind.oui)
        return Call(rpc, kind, content, modifier, keys, mask, self._forget)

    def _forget(self, call: Call) -> None:
        """Nobody wants the answer any more."""
        self._transactions.end(call)
        if call.rpc.managementClass in RMPP_CLASSES and not self._closed:
            self._long.forget(call.datagram)
            self._longTurn()

    def _issue(self, call: Call, path: IBPath) -> None:
        """Send it for the first time, or to somebody else."""
        if self._closed:
            raise DeviceUnavailable(self._closed)
        identifier = call.identifier = self._newIdentifier()
        datagram = call.datagram = self._datagram(call, path, identifier)
        call.path = path
        if call.rpc.answer is None:
            self._send(datagram, path)
            return
        self._begin(call, self._seconds())
        try:
            if call.rpc.method is Method.GET_MULTI and not self.port.doesRMPP:
                self._long.send(datagram, call.content, path, self._seconds())
                self._longTurn()
            else:
                self._send(datagram, path, call.timeoutSeconds)
        except RDMAError:
            self._transactions.end(call)
            raise
        if self._timer is None or call.deadline < self._timerAt:
            self._reschedule()

    @staticmethod
    def _datagram(call: Call, path: IBPath, identifier: int) -> bytes:
        rpc, keys = call.rpc, call.keys
        if rpc.managementClass is _SUBN:
            return managementPacket(
                rpc.method, identifier, call.kind.attributeID, call.modifier, call.content, path, keys.mkey
            )
        if isinstance(path, IBDRPath):
            raise InvalidRequest(f"{rpc.name} cannot go by a directed route")
        return frame(
            *(rpc.managementClass, rpc.method, identifier, call.kind.attributeID, call.modifier),
            *(call.content, keys, call.mask),
        )

    def _patienceFor(self, path: IBPath) -> float:
        """Twice the time that a packet may be on its way, and that for the answer (IBA 13.4.6.2)."""
        if self.timeoutSeconds is not None:
            return self.timeoutSeconds
        code = path.packetLifeTime
        known = self._patience.get(code)
        if known is None:
            way = lifetimeSeconds(self.port.endPort.subnetTimeout if code is None else code)
            known = self._patience[code] = 2 * way + lifetimeSeconds(RESPONSE_TIME)
        return known

    # IMADReceiver

    def received(self, datagram: bytes, envelope: object) -> None:
        """A datagram has come."""
        if len(datagram) < 24:
            return
        managementClass, method, status, identifier = _HEAD.unpack_from(datagram)
        if not method & _RESPONSE and method != _TRAP_REPRESS:
            self._requested(datagram, envelope)
            return
        call = self._transactions.find(identifier)
        if managementClass in RMPP_CLASSES and isLong(datagram) and not self.port.doesRMPP:
            self._longAnswer(call, datagram, envelope)
            return
        if call is None:
            return  # late, or not ours
        if managementClass == _DIRECTED:
            status &= _NO_DIRECTION
        if managementClass != call.datagram[1] or method != call.rpc.answer:
            return
        if status:
            self._refused(call, status, datagram)
            return
        self._transactions.end(call)
        try:
            answer = self._answer(call, managementClass, datagram)
        except WireError as error:
            call.failed(MADClassError(str(error), call.rpc, call.path, call.datagram, datagram))
            return
        call.answered(answer)

    def serve(self, server: Callable[[bytes, bytes, IBPath], None]) -> None:
        """
        Hand requests to this.

        @param server: gets the datagram, or a long message's first one; what it holds for the attribute; and
            the way that it took.
        """
        self._server = server

    def answer(self, datagram: bytes, path: IBPath, message: bytes | None = None) -> None:
        """
        Answer a request: C{path} leads to who has asked.

        @param message: what the datagram is the first frame of, when it is a long one.
        """
        if self._closed:
            return
        if message is None or self.port.doesRMPP:
            self._send(datagram if message is None else whole(datagram, message), path)
        else:
            self._long.send(datagram, message, path, self._seconds())
            self._longTurn()

    def _requested(self, datagram: bytes, envelope: object) -> None:
        """Somebody asks us, or goes on with a long message."""
        path = self.port.pathOf(envelope)
        if isLong(datagram) and not self.port.doesRMPP:
            self._longReceived(datagram, path)
        elif self._server is not None:
            offset = _OFFSETS[datagram[1]]
            self._server(datagram, datagram[offset:], path)

    # Long messages.

    def _longReceived(self, datagram: bytes, path: IBPath) -> None:
        try:
            self._long.received(datagram, path, self._seconds())
        except WireError as error:
            _log.warn("{path} sends nonsense: {error}", path=path, error=error)
        self._longTurn(path)

    def _longTurn(self, path: IBPath | None = None) -> None:
        """Send what is to be sent, and tell what has ended."""
        for packet in self._long.outgoing():
            self._send(packet.datagram, packet.path)
        for event in self._long.events():
            if isinstance(event, Received):
                self._longArrived(event, path)
            elif isinstance(event, Failed):
                call = self._transactions.find(event.transactionID)
                if call is not None:
                    self._transactions.end(call)
                    why = f"{call.rpc.name}: the long message ended by {event.status.name}"
                    call.failed(MADTransferError(why, event.status, call.rpc, call.path, call.datagram))
            else:
                call = self._transactions.find(event.transactionID)
                if call is not None and call.rpc.method is Method.GET_MULTI:
                    self._long.turn(call.datagram, call.path)
        self._rescheduleLong()

    def _longArrived(self, event: Received, path: IBPath | None) -> None:
        first = event.first
        if not first[3] & _RESPONSE:
            if self._server is not None and path is not None:
                self._server(first, event.message, path)
            return
        call = self._transactions.find(_HEAD.unpack_from(first)[3])
        if call is None:
            return
        self._transactions.end(call)
        try:
            kind = PathRecord if call.rpc.method is Method.GET_MULTI else call.kind
            records = recordsOf(kind, first, event.message)
        except WireError as error:
            call.failed(MADClassError(str(error), call.rpc, call.path, call.datagram, first))
            return
        call.answered(records)

    def _rescheduleLong(self) -> None:
        if self._closed:
            return  # by who got an answer just now
        deadline = self._long.deadline()
        if self._longTimer is not None:
            self._longTimer.cancel()
            self._longTimer = None
        if deadline is not None:
            delay = max(0.0, deadline - self._seconds())
            self._longTimer = self._reactor.callLater(delay, self._longExpired)

    def _longExpired(self) -> None:
        self._longTimer = None
        self._long.expired(self._seconds())
        self._longTurn()

    def _longAnswer(self, call: Call | None, datagram: bytes, envelope: object) -> None:
        """A packet of a long answer, or about a long question."""
        path = self.port.pathOf(envelope)
        if call is not None:
            self._transactions.extend(call, self._seconds() + call.timeoutSeconds)
        elif not self._long.expects(datagram, path):
            return  # late
        self._longReceived(datagram, path)

    def undeliverable(self, datagram: bytes, reason: str) -> None:
        """The system says that one of ours went nowhere."""
        call = self._transactions.find(_HEAD.unpack_from(datagram)[3])
        if call is not None:
            again, late = self._transactions.undeliverable(call, self._seconds())
            self._goOn(again, late, reason)

    def portLost(self, reason: str) -> None:
        """The port is gone."""
        self._end(reason)

    @staticmethod
    def _answer(call: Call, managementClass: int, datagram: bytes) -> Attribute | list[Attribute]:
        kind = call.kind
        (attributeID,) = _ATTRIBUTE.unpack_from(datagram)
        if attributeID != kind.attributeID:
            raise WireError(kind.__name__, 16, f"the answer is of attribute {attributeID:#06x}")
        offset = _OFFSETS[managementClass]
        if call.rpc.answer in _TABLES:  # a port that joins long messages brings them whole
            return recordsOf(kind, datagram, datagram[offset:])
        if len(datagram) < offset + kind.size:
            datagram = datagram.ljust(offset + kind.size, b"\0")
        return kind.decode(datagram, offset)

    def _refused(self, call: Call, status: int, datagram: bytes) -> None:
        """BUSY, redirected, or an error."""
        said = MADStatus(status)
        if said.isBusy and self._transactions.busy(call, self._seconds()):
            self._reschedule()
            return
        self._transactions.end(call)
        if said.isRedirect and call.redirections < MOST_REDIRECTIONS:
            call.redirections += 1
            try:
                self._issue(call, redirected(call.path, datagram))
            except RDMAError as error:
                call.failed(error)
            return
        call.failed(MADError(call.rpc, call.path, status, call.datagram, datagram))

    # Time.

    def _reschedule(self) -> None:
        deadline = self._transactions.deadline()
        if deadline is None:
            return
        if self._timer is not None:
            if self._timerAt <= deadline:
                return
            self._timer.cancel()
        self._timerAt = deadline
        self._timer = self._reactor.callLater(max(0.0, deadline - self._seconds()), self._expired)

    def _expired(self) -> None:
        self._timer = None
        again, late = self._transactions.expired(self._seconds())
        self._goOn(again, late, "no answer")
        self._reschedule()

    def _goOn(self, again: Sequence[Call], late: Sequence[Call], why: str) -> None:
        for call in again:
            try:
                self._send(call.datagram, call.path, call.timeoutSeconds)
            except RDMAError as error:
                self._transactions.end(call)
                call.failed(error)
        for call in late:
            if call.rpc.managementClass in RMPP_CLASSES:
                self._forget(call)
            call.failed(MADTimeoutError(f"{call.rpc.name}: {why}", call.rpc, call.path, call.datagram))

    def _end(self, reason: str) -> None:
        if self._closed:
            return
        self._closed = reason
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._longTimer is not None:
            self._longTimer.cancel()
            self._longTimer = None
        for call in self._transactions.clear():
            call.failed(DeviceUnavailable(reason))


def redirected(path: IBPath, datagram: bytes) -> IBPath:
    """
    The path to whom an answer names instead of the one who was asked (IBA 13.4.8.1).

    @raise WireError: it is too short.
    """
    info = ClassPortInfo.decode(datagram, _OFFSETS[datagram[1]])
    hasGID = any(info.redirectGID.raw)
    return IBPath(
        slid=path.slid,
        dlid=LID(info.redirectLID) or path.dlid,
        serviceLevel=info.redirectServiceLevel,
        sgid=path.sgid,
        dgid=info.redirectGID if hasGID and (path.hasGRH or not info.redirectLID) else None,
        trafficClass=info.redirectTrafficClass,
        flowLabel=info.redirectFlowLabel,
        pkey=PKey(info.redirectPKey) or path.pkey,
        dqpn=QPN(info.redirectQPN) or QPN(1),
        qkey=info.redirectQKey or GMP_QKEY,
        packetLifeTime=path.packetLifeTime,
    )


def recordsOf(kind: type[Attribute], first: bytes, message: bytes) -> list[Attribute]:
    """
    The records of a table.

    @param first: its first datagram, whose header says how far they are apart.
    @raise WireError: they do not fill it.
    """
    if first[1] != ManagementClass.SUBN_ADM:
        return [kind.decode(message.ljust(kind.size, b"\0"))]
    distance = SAFormat.decode(first[:256].ljust(256, b"\0")).attributeOffset * 8 or -(-kind.size // 8) * 8
    if distance < kind.size:
        raise WireError(kind.__name__, 44, f"records of {kind.size} bytes are {distance} apart")
    if not message:
        return []
    count = (len(message) + distance - kind.size) // distance
    decode = kind.decode
    return [decode(message, number * distance) for number in range(count)]


def whole(first: bytes, message: bytes) -> bytes:
    """A long message as ports take it that cut it themselves: the headers, then all of it."""
    return first[: _OFFSETS[first[1]]] + message
