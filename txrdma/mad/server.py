"""
Server of requests: handlers by class and method, whose results are answers.

Follows InfiniBand Architecture vol. 1, 13.4.6 (answers) and 13.4.7 (status). A request always gets an answer:
a request without a handler, or one that fails, is answered with a status. A datagram that is not a request,
by its length, queue pair or method, gets none.

Theory of operation. The agent passes each request to its servers in turn (C{requested}), until one accepts
it. That server calls its handlers in turn, until one does not return C{NotImplemented}. A handler that
answers later makes the request pending, by its sender and transaction: retransmissions of a pending request
are dropped, and pending requests are limited in number, bytes and time; one sender can only use its share of
the first two. Each way in which a handler ends, with a result, an exception or by its time, ends in
C{_answer}, or in nothing if the server has stopped or no answer is due.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, NamedTuple

from twisted.internet.defer import Deferred, fail, maybeDeferred
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.error import RDMAError, ResourceExhausted, WireError
from txrdma.iba.path import IBPath
from txrdma.interfaces import IMADHandler, IMADPort
from txrdma.kit.delayedcalls import cancelCall
from txrdma.kit.listeners import Listeners
from txrdma.kit.logs import errorText, RateLimitedLogger
from txrdma.kit.shares import ByteShares, Shares
from txrdma.mad.agent import MADAgent
from txrdma.mad.core.answers import TABLES
from txrdma.mad.core.frames import frame, Keys, managementPacket
from txrdma.mad.core.recent import Recent
from txrdma.mad.errors import MADRefusal
from txrdma.mad.layouts.attributes import ANSWERS, Attribute, attributeOf, ManagementClass, Method
from txrdma.mad.layouts.messages import (
    CommMgtFormat,
    formatOf,
    MADHeader,
    MADRequest,
    MADStatus,
    Notice,
    RMPPHeader,
    RMPPType,
    SMPFormatDirected,
    VendorOUIFormat,
)
from txrdma.mad.rpcs import nameOf

_log = Logger()

ANSWER_SECONDS: Final = 20.0
"""Seconds until a handler is cancelled: requesters have timed out long before."""

MOST_PENDING: Final = 2048
"""Maximum number of unanswered requests; further ones are answered with BUSY."""

MOST_PENDING_BYTES: Final = 32 << 20
"""Maximum number of bytes of unanswered requests."""

_LENGTH: Final = 256
_RESPONSE: Final = 0x80
_NO_RESOURCES: Final = 0x0100
_MANAGEMENT: Final = (ManagementClass.SUBN_LID, ManagementClass.SUBN_DIRECTED)

_NO_HANDLER: Final = (MADStatus.UNSUPPORTED_METHOD, MADStatus.UNSUPPORTED_METHOD_ATTRIBUTE)
"""Statuses that mean that another server may have a handler for the request."""

NoticeListener = Callable[[Notice, MADRequest], None]
"""Listener of notices: called with each notice, and its request with class and path."""

_RequestKind = tuple[int, int, int]
"""Requests of one kind: class, method and OUI."""

_RequestKey = tuple[object, ...]
"""Identity of a request: its sender, and its transaction."""


class _Pending(NamedTuple):
    """A request whose handler has not answered yet."""

    request: MADRequest
    sender: Hashable
    answer: Deferred[Any]
    timer: IDelayedCall


class MADServer:
    """
    Server of the requests received by an agent's port.

    Retransmissions of a request are recognised while its handler is running. Traps and reports are
    acknowledged, and passed to all listeners of notices, repeated ones only once.

    @ivar agent: the agent whose requests are answered.
    """

    def __init__(self, agent: MADAgent, *, answerSeconds: float = ANSWER_SECONDS) -> None:
        """
        @param agent: sends the answers, and is not closed by the server. An agent may have several servers:
            the first one with a handler that accepts a request answers it.
        @param answerSeconds: time after which a handler is cancelled, and BUSY answered.
        """
        self.answerSeconds = answerSeconds
        self.agent = agent
        self._reactor = agent.reactor
        self._handlers: dict[_RequestKind, dict[object, IMADHandler]] = {}
        self._pending: dict[_RequestKey, _Pending] = {}
        self._pendingShares, self._pendingBytes = Shares[_RequestKey](), ByteShares()
        self._ends = 0
        self._listeners: Listeners[[Notice, MADRequest]] = Listeners(
            _log, "{listener!r} raised when it was called with a notice"
        )
        self._notices: Recent[_RequestKey] = Recent()
        self._rateLimited = RateLimitedLogger(_log, clock=agent.seconds)
        self._leave = agent.serve(self.requested, self.ended)

    def stop(self) -> None:
        """Stop answering, and cancel all handlers."""
        self._leave()
        self.ended()

    @property
    def port(self) -> IMADPort:
        """Management port of the agent."""
        return self.agent.port

    def handle(
        self, managementClass: int, handler: IMADHandler, methods: Sequence[int], oui: int = 0
    ) -> Callable[[], None]:
        """
        Answer requests of this class with C{handler}; the returned function ends that.

        Several handlers may have the same class and method: they are called in turn, the newest first, until
        one does not return C{NotImplemented}.

        @param oui: OUI of a vendor, in the second range of vendors' classes.
        @raise txrdma.error.ResourceExhausted: another program on this host has registered for them.
        """
        unregister = self.agent.register(managementClass, methods, oui)
        keys = [(int(managementClass), int(method), oui) for method in methods]
        mark = object()
        for key in keys:
            self._handlers[key] = {mark: handler, **self._handlers.get(key, {})}

        def end() -> None:
            for key in keys:
                self._handlers[key].pop(mark, None)
            unregister()

        return end

    def listen(
        self, listener: NoticeListener, managementClass: int = 0, methods: Sequence[int] = ()
    ) -> Callable[[], None]:
        """
        Pass every trap and report to a listener; the returned function ends that.

        @param managementClass: also receive C{methods} of this class from the port: C{Method.TRAP} or
            C{Method.REPORT}.
        @raise txrdma.error.ResourceExhausted: another program on this host has registered for them.
        """
        unregister = self.agent.register(managementClass, methods)
        remove = self._listeners.add(listener)

        def end() -> None:
            remove()
            unregister()

        return end

    # Requests.

    def requested(self, datagram: bytes, message: bytes, path: IBPath, isLast: bool) -> bool:
        """Accept a request for a handler of this server: see L{txrdma.mad.requests.TakeRequest}."""
        try:
            request = _read(datagram, message, path)
        except WireError as error:
            self._warn("invalid request from {path}: {error}", path, error=errorText(error))
            return True
        header = request.header
        if (header.managementClass in _MANAGEMENT) != (path.dqpn == 0):
            self._warn("{path} sent a request to the wrong queue pair", path)  # IBA 13.5.1: no answer
            return True
        kind = (header.managementClass, header.method, _ouiOf(request))
        if not self._handlers.get(kind) and header.method in (Method.TRAP, Method.REPORT):
            return self._noticed(request, isLast)
        status = self._served(request, kind)
        if status in _NO_HANDLER and not isLast:
            return False
        if status:
            self._answer(request, None, status)
        return True

    def _served(self, request: MADRequest, kind: _RequestKind) -> int:
        """Call handlers for a request; return the status if none has accepted it, else 0."""
        header, handlers = request.header, tuple(self._handlers.get(kind, {}).items())
        if status := _unfit(request):
            if not handlers or header.method != Method.SEND or header.baseVersion != 1:
                return status  # a message of a CM has no answer with a status: its handler sends a message
        if not handlers:
            return MADStatus.UNSUPPORTED_METHOD
        call = nameOf(header.managementClass, header.method)
        if request.payload is None or call not in request.payload.rpcs:
            return MADStatus.UNSUPPORTED_METHOD_ATTRIBUTE
        who = _requestKey(request)
        if who in self._pending:
            return 0  # it is the same one, sent again
        if self._pending and not self._mayWait(request):
            return MADStatus.BUSY
        # A handler may stop the server, or remove other handlers.
        ends = self._ends
        for mark, handler in handlers:
            if mark not in self._handlers[kind]:
                continue  # another handler has removed it
            try:
                result = handler.handle(request)
            except Exception:
                answer: Deferred[Any] = fail()
            else:
                if result is None:
                    return 0  # nothing is to be answered: so it is with each message of a CM
                answer = maybeDeferred(lambda value: value, result)  # which may be a coroutine
            # Paused: the Deferred has fired with another one, whose result is still missing.
            if not answer.called or answer.paused:
                timer = self._reactor.callLater(self.answerSeconds, self._handlerTimedOut, who)
                self._addPending(who, request, answer, timer)
                answer.addBoth(self._answeredLater, who, answer)
                if self._ends != ends:  # the handler has stopped the server
                    self._cancelHandler(who)
            elif answer.result is NotImplemented:
                continue
            answer.addCallbacks(self._handled, self._failed, callbackArgs=(request,), errbackArgs=(request,))
            return 0
        return MADStatus.UNSUPPORTED_METHOD_ATTRIBUTE

    def _mayWait(self, request: MADRequest) -> bool:
        """Whether a request of this sender may become pending."""
        sender = self.port.endPort.senderOf(request.path)
        hasRoom = self._pendingBytes.hasRoom(sender, len(request.data), MOST_PENDING_BYTES)
        return hasRoom and self._pendingShares.hasRoom(sender, MOST_PENDING)

    def _addPending(
        self, who: _RequestKey, request: MADRequest, answer: Deferred[Any], timer: IDelayedCall
    ) -> None:
        if who in self._pending:  # a handler has passed it to this server again
            self._removePending(who)
        sender = self.port.endPort.senderOf(request.path)
        self._pending[who] = _Pending(request, sender, answer, timer)
        self._pendingShares.add(sender, who)
        self._pendingBytes.add(sender, len(request.data))

    def _answeredLater(self, result: Any, who: _RequestKey, answer: Deferred[Any]) -> Any:
        """Answer with the result of a Deferred of a handler, unless the request was abandoned."""
        pending = self._pending.get(who)
        if pending is None or pending.answer is not answer:
            return None
        self._removePending(who)
        return result

    def _handlerTimedOut(self, who: _RequestKey) -> None:
        request = self._pending[who].request
        text = "no handler has answered {path} within {seconds} seconds"
        self._warn(text, request.path, seconds=f"{self.answerSeconds:g}")
        self._cancelHandler(who)
        self._answer(request, None, MADStatus.BUSY)

    def _cancelHandler(self, who: _RequestKey) -> None:
        """Cancel a handler's work; its result is ignored."""
        pending = self._removePending(who)
        with _log.failuresHandled("a handler could not be cancelled"):
            pending.answer.cancel()

    def _removePending(self, who: _RequestKey) -> _Pending:
        pending = self._pending.pop(who)
        cancelCall(pending.timer)
        self._pendingShares.remove(pending.sender, who)
        self._pendingBytes.add(pending.sender, -len(pending.request.data))
        return pending

    def ended(self) -> None:
        """Cancel the work of all handlers, because the agent's port is lost."""
        self._ends += 1
        for who in tuple(self._pending):
            self._cancelHandler(who)

    def _noticed(self, request: MADRequest, isLast: bool) -> bool:
        """Pass a notice to all listeners; the last server answers it."""
        notice = request.payload
        isNotice = isinstance(notice, Notice)
        status = _unfit(request) or (0 if isNotice else MADStatus.UNSUPPORTED_METHOD_ATTRIBUTE)
        if isLast:
            self._answer(request, None if status else notice, status)
        if status or not isinstance(notice, Notice):
            return isLast
        sender = self.port.endPort.senderOf(request.path)
        if self._notices.isNew(_requestKey(request), notice.encode(), self.agent.seconds(), sender):
            self._listeners.notify(notice, request)
        return isLast

    # Answers.

    def _handled(self, result: object, request: MADRequest) -> None:
        if result is None:
            return
        try:
            self._answer(request, _payloadOf(result, request), 0)
        except Exception:
            _log.failure("the answer of a handler to {path} cannot be encoded", path=request.path)
            self._answer(request, None, _statusOfInvalid(request))

    def _failed(self, failure: Failure, request: MADRequest) -> None:
        if not failure.check(MADRefusal):
            _log.failure("a handler of a request of {path} raised an exception", failure, path=request.path)
            self._answer(request, None, _statusOfInvalid(request))
            return
        refusal = failure.value
        assert isinstance(refusal, MADRefusal)
        try:
            self._answer(request, refusal.payload, refusal.status)
        except Exception:
            _log.failure("the refusal of a handler to {path} cannot be encoded", path=request.path)
            self._answer(request, None, _statusOfInvalid(request))

    def _answer(self, request: MADRequest, payload: Attribute | list[Attribute] | None, status: int) -> None:
        """
        Send the answer to a request.

        @raise WireError: the result does not fit into an answer; not raised for a status alone.
        @raise txrdma.error.InvalidRequest: as for C{WireError}.
        """
        if request.header.method == Method.SEND:
            return  # nobody waits for an answer (IBA 13.4.5)
        datagram, message = _written(request, payload, status)
        try:
            self.agent.answer(datagram, request.path.reverse(), message)
        except (RDMAError, ValueError) as error:
            self._warn("can't send an answer to {path}: {error}", request.path, error=errorText(error))
            if message is not None and isinstance(error, ResourceExhausted):
                self._answer(request, None, MADStatus.BUSY)

    def _warn(self, text: str, path: IBPath, **fields: str) -> None:
        """Log a problem with a peer, at a limited rate."""
        self._rateLimited.warn((text, path.slid, path.sgid), text, path=path, **fields)


def _read(datagram: bytes, message: bytes, path: IBPath) -> MADRequest:
    """Decode a request; raise L{WireError} if it is too short, or contradicts itself."""
    isWhole = len(datagram) == _LENGTH and datagram[1] == ManagementClass.COMM_MGT
    frame = formatOf(datagram[1]).decode(datagram) if isWhole else None
    header = frame.header if isinstance(frame, CommMgtFormat) else MADHeader.decode(datagram)
    kind = attributeOf(header.managementClass, header.attributeID)
    if kind is not None and kind.dataOffset is not None:
        message = datagram[kind.dataOffset :]
    payload = None if kind is None else kind.decode(message.ljust(kind.size, b"\0"))
    if frame is None:
        frame = formatOf(header.managementClass).decode(datagram.ljust(_LENGTH, b"\0"))
    return MADRequest(header, frame, payload, message, path)


def _unfit(request: MADRequest) -> int:
    """Return the status for a request of an unsupported version; else 0."""
    header = request.header
    version = formatOf(header.managementClass).classVersion
    return MADStatus.UNSUPPORTED_VERSION if (header.baseVersion, header.classVersion) != (1, version) else 0


def _requestKey(request: MADRequest) -> _RequestKey:
    header, path = request.header, request.path
    about = (header.managementClass, header.method, header.transactionID, header.attributeID)
    route = request.frame.returnPath if isinstance(request.frame, SMPFormatDirected) else b""
    return path.slid, path.sgid, path.sqpn, route, *about


def _ouiOf(request: MADRequest) -> int:
    return request.frame.oui if isinstance(request.frame, VendorOUIFormat) else 0


def _statusOfInvalid(request: MADRequest) -> int:
    """Return the status for an exception in a handler; only subnet administration has one."""
    isSA = request.header.managementClass is ManagementClass.SUBN_ADM
    return _NO_RESOURCES if isSA else MADStatus.INVALID_FIELD


def _answerTo(request: MADRequest) -> int:
    method = request.header.method
    return ANSWERS.get(method, method | _RESPONSE)


def _payloadOf(result: object, request: MADRequest) -> Attribute | list[Attribute]:
    """Result of a handler; raise C{TypeError} if it cannot be an answer."""
    if isinstance(result, Attribute):
        return result
    if isinstance(result, list) and _answerTo(request) in TABLES:
        if len({type(record) for record in result}) <= 1 and all(isinstance(r, Attribute) for r in result):
            return result
    raise TypeError(f"a handler answered {result!r} to {request.header.method.name}")


def _written(
    request: MADRequest, payload: Attribute | list[Attribute] | None, status: int
) -> tuple[bytes, bytes | None]:
    """Datagram of an answer, and the whole message if it is an RMPP transfer."""
    header = request.header
    answer = _answerTo(request)
    if header.managementClass in _MANAGEMENT:
        content = payload.encode() if isinstance(payload, Attribute) else request.data[:64]
        return _managementAnswer(request, answer, content, status), None
    records = payload if isinstance(payload, list) else [] if payload is None else [payload]
    isTable = answer in TABLES and not status
    distance = -(-records[0].size // 8) * 8 if records else 0
    content = b"".join(record.encode().ljust(distance if isTable else 0, b"\0") for record in records)
    if payload is None and status:
        content = request.data[: 256 - formatOf(header.managementClass).dataOffset]
    rmpp = RMPPHeader(version=1, type=RMPPType.DATA, active=True) if isTable else None
    datagram = frame(
        *(header.managementClass, answer, header.transactionID, header.attributeID),
        *(header.attributeModifier, b"" if isTable else content, Keys(oui=_ouiOf(request)), 0),
        rmpp=rmpp,
        status=status,
        attributeOffset=distance // 8 if isTable else 0,
    )
    return datagram, content if isTable else None


def _managementAnswer(request: MADRequest, method: int, content: bytes, status: int) -> bytes:
    """Answer to an SMP; on a directed route with the request's route and the direction bit (IBA 14.2.2)."""
    header, asked = request.header, request.frame
    if isinstance(asked, SMPFormatDirected):
        returning = asked.header.replace(method=Method(method), returning=True, status=status & 0x7FFF)
        return asked.replace(header=returning, mkey=0, payload=content.ljust(64, b"\0")).encode()
    datagram = managementPacket(
        method, header.transactionID, header.attributeID, header.attributeModifier, content, IBPath(), 0
    )
    return datagram[:4] + status.to_bytes(2, "big") + datagram[6:]
