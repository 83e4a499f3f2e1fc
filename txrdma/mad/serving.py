"""
The other side of calls: handlers that answer requests, one for each class.

Follows InfiniBand Architecture vol. 1, 13.4.6 (what must be answered, and how) and 13.4.7 (status). A request
gets an answer whatever happens: what nobody serves, or what fails, becomes a status.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.error import WireError
from txrdma.iba.path import IBDRPath, IBPath
from txrdma.interfaces import IMADHandler
from txrdma.mad._frames import frame, Keys, managementPacket, NO_KEYS
from txrdma.mad.agent import MADAgent
from txrdma.mad.attributes import Attribute, attributeOf, ManagementClass, Method
from txrdma.mad.errors import MADRefusal
from txrdma.mad.messages import (
    formatOf,
    MADHeader,
    MADRequest,
    MADStatus,
    Notice,
    RMPPHeader,
    RMPPType,
    VendorOUIFormat,
)

_log = Logger()

_ANSWERS: Final = {
    Method.GET: Method.GET_RESP,
    Method.SET: Method.GET_RESP,
    Method.TRAP: Method.TRAP_REPRESS,
    Method.REPORT: Method.REPORT_RESP,
    Method.GET_TABLE: Method.GET_TABLE_RESP,
    Method.GET_TRACE_TABLE: Method.GET_TABLE_RESP,
    Method.GET_MULTI: Method.GET_MULTI_RESP,
    Method.DELETE: Method.DELETE_RESP,
}
_TABLES: Final = (Method.GET_TABLE_RESP, Method.GET_MULTI_RESP)
_NO_RESOURCES: Final = 0x0100

NoticeListener = Callable[[Notice, IBPath], None]
"""Is told of a notice, and the way that it came."""


class MADServer:
    """
    Answers the requests that come through an agent's port.

    Traps and reports are acknowledged, and go to those who listen for notices.
    """

    def __init__(self, agent: MADAgent) -> None:
        """
        @param agent: remains its owner's; all its requests are the server's from now on.
        """
        self._agent = agent
        self._handlers: dict[int, tuple[IMADHandler, frozenset[int]]] = {}
        self._listeners: dict[object, NoticeListener] = {}
        agent.serve(self._requested)

    def handle(
        self, managementClass: int, handler: IMADHandler, methods: Sequence[int], oui: int = 0
    ) -> Callable[[], None]:
        """
        Answer requests of this class by C{handler}; the answer ends it.

        @raise txrdma.error.ResourceExhausted: somebody else on this host takes them already.
        """
        unserve = self._agent.port.serve(managementClass, methods, oui)
        self._handlers[managementClass] = (handler, frozenset(methods))

        def end() -> None:
            if self._handlers.get(managementClass, (None,))[0] is handler:
                del self._handlers[managementClass]
            unserve()

        return end

    def listen(self, listener: NoticeListener) -> Callable[[], None]:
        """Tell of every trap and report; the answer ends it."""
        key = object()
        self._listeners[key] = listener

        def end() -> None:
            self._listeners.pop(key, None)

        return end

    def _requested(self, datagram: bytes, message: bytes, path: IBPath) -> None:
        try:
            request = _read(datagram, message, path)
        except WireError as error:
            _log.warn("{path} asks nonsense: {error}", path=path, error=error)
            return
        method = request.header.method
        if isinstance(request.payload, Notice) and method in (Method.TRAP, Method.REPORT):
            self._noticed(request, request.payload)
            return
        if method not in _ANSWERS:
            method = Method.GET  # whatever it was, the answer is an error
        entry = self._handlers.get(request.header.managementClass)
        if entry is None or request.header.method not in entry[1]:
            self._answer(request, None, MADStatus.UNSUPPORTED_METHOD)
            return
        if request.payload is None:
            self._answer(request, None, MADStatus.UNSUPPORTED_METHOD_ATTRIBUTE)
            return
        done: Deferred[Any] = maybeDeferred(entry[0].handle, request)
        done.addCallbacks(self._handled, self._failed, callbackArgs=(request,), errbackArgs=(request,))
        done.addErrback(lambda failure: _log.failure("while answering", failure))

    def _noticed(self, request: MADRequest, notice: Notice) -> None:
        self._answer(request, notice, 0)
        for listener in tuple(self._listeners.values()):
            try:
                listener(notice, request.path)
            except Exception:
                _log.failure("while {listener!r} heard a notice", listener=listener)

    def _handled(self, result: object, request: MADRequest) -> None:
        if isinstance(result, list) or isinstance(result, Attribute):
            self._answer(request, result, 0)
        elif result is not None:
            raise TypeError(f"a handler answered {result!r}")

    def _failed(self, failure: Failure, request: MADRequest) -> None:
        if failure.check(MADRefusal):
            refusal = failure.value
            assert isinstance(refusal, MADRefusal)
            self._answer(request, refusal.payload, refusal.status)
            return
        _log.failure("while a handler answered a request", failure)
        isSA = request.header.managementClass is ManagementClass.SUBN_ADM
        self._answer(request, None, _NO_RESOURCES if isSA else MADStatus.INVALID_FIELD)

    def _answer(self, request: MADRequest, said: Attribute | list[Attribute] | None, status: int) -> None:
        header = request.header
        answer = _ANSWERS.get(Method(header.method), Method.GET_RESP)
        path = request.path.reverse()
        if header.managementClass in (ManagementClass.SUBN_LID, ManagementClass.SUBN_DIRECTED):
            content = said.encode() if isinstance(said, Attribute) else request.data[:64]
            self._agent.answer(_managementAnswer(request, answer, content, status), path)
            return
        records = said if isinstance(said, list) else [] if said is None else [said]
        isTable = answer in _TABLES and not status
        distance = -(-records[0].size // 8) * 8 if records else 0
        content = b"".join(record.encode().ljust(distance if isTable else 0, b"\0") for record in records)
        if said is None and status:
            content = request.data[: 256 - formatOf(header.managementClass).dataOffset]  # type: ignore[attr-defined]  # every frame has it
        rmpp = RMPPHeader(version=1, type=RMPPType.DATA, active=True) if isTable else None
        datagram = frame(
            *(header.managementClass, answer, header.transactionID, header.attributeID),
            *(header.attributeModifier, b"" if isTable else content, _keys(request), 0),
            rmpp=rmpp,
            status=status,
            attributeOffset=distance // 8 if isTable else 0,
        )
        self._agent.answer(datagram, path, content if isTable else None)


def _read(datagram: bytes, message: bytes, path: IBPath) -> MADRequest:
    """
    What a request says.

    @raise WireError: it is too short, or contradicts itself.
    """
    header = MADHeader.decode(datagram)
    kind = attributeOf(header.managementClass, header.attributeID)
    payload = None if kind is None else kind.decode(message.ljust(kind.size, b"\0"))
    frame = formatOf(header.managementClass).decode(datagram.ljust(256, b"\0"))
    return MADRequest(header, frame, payload, message, path)


def _keys(request: MADRequest) -> Keys:
    """A vendor's answer says whose it is, as the request does."""
    return Keys(oui=request.frame.oui) if isinstance(request.frame, VendorOUIFormat) else NO_KEYS


def _managementAnswer(request: MADRequest, method: int, content: bytes, status: int) -> bytes:
    """The answer to a datagram of subnet management: along the same route."""
    header, path = request.header, request.path
    route = path if isinstance(path, IBDRPath) else IBPath()
    datagram = managementPacket(
        *(method, header.transactionID, header.attributeID, header.attributeModifier, content, route, 0)
    )
    return datagram[:4] + status.to_bytes(2, "big") + datagram[6:]
