"""
Fallback to TCP: connects the user's protocol to the TCP connection of a handshake.

From then on bytes pass only through Twisted's transport, except for late CLC messages, which are removed.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, cast

from twisted.internet.error import ConnectionLost
from twisted.internet.interfaces import IProtocol, IReactorFDSet, IReactorTime
from twisted.internet.tcp import Connection
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.python.log import callWithContext

from txrdma.error import Refused
from txrdma.kit.twistedprivate import require
from txrdma.smc.common.names import prefixFor
from txrdma.smc.common.reactoruse import reactorUse
from txrdma.smc.stream.connectionstatus import logEnd, markTCP
from txrdma.smc.terms.offer import Role

_log = Logger()

require(__name__)

Foreign = Callable[[bytes], tuple[int, bool]]
"""
Returns how many of the first bytes are CLC, and whether all that follows is the protocol's.

Raises C{Refused} if no bytes on TCP can be the protocol's: the connection is then lost.
"""


class _Reactor(IReactorFDSet, IReactorTime):
    """Interfaces of the reactor that are used here."""


class _Leftover:
    """
    Bytes read before the protocol was connected, which the first C{doRead} delivers.

    C{doRead} is called here, since the socket may never become readable again.
    """

    def __init__(self, transport: Connection, data: bytes) -> None:
        self._transport = transport
        self._data = data
        self._startReading = transport.startReading
        # mypy: methods are replaced on the instance, as Twisted's own clients and abortConnection do.
        transport.doRead = self._doRead  # type: ignore[method-assign,assignment]
        transport.startReading = self._started  # type: ignore[method-assign]

    def _started(self) -> None:
        self._startReading()  # type: ignore[no-untyped-call]  # Twisted's
        cast(_Reactor, self._transport.reactor).callLater(0, self.deliver)

    def deliver(self) -> None:
        """Call C{doRead} if the transport is reading and the bytes are not delivered yet."""
        transport = self._transport
        reactor = cast(_Reactor, transport.reactor)
        if transport.__dict__.get("doRead") != self._doRead or not transport.connected:
            return
        if transport in reactor.getReaders():
            callWithContext({"system": transport.logstr}, self._read)

    def _read(self) -> None:
        try:
            self._transport.doRead()
        except BaseException:
            _log.failure("Unhandled Error")  # the reactor's message
            _disconnect(self._transport)

    def _doRead(self) -> Exception | None:
        transport = self._transport
        del transport.doRead
        del transport.startReading
        return transport._dataReceived(self._data)


class _CLCStripper:
    """Strips late CLC messages from the TCP stream, by a method of the socket below TLS."""

    def __init__(self, transport: Connection, foreign: Foreign) -> None:
        self._transport = transport
        self._foreign = foreign
        self._unread = b""
        # mypy: replaced on the instance, as above.
        transport._dataReceived = self._dataReceived  # type: ignore[method-assign,assignment]

    def _dataReceived(self, data: bytes) -> Exception | None:
        self._unread += data
        try:
            # No data means that the connection has ended: the rest is the protocol's.
            count, isSure = self._foreign(self._unread) if data else (0, True)
        except Refused:
            transport = self._transport
            del transport._dataReceived
            # Close by a reset, since the peer would take a FIN for an orderly end.
            close = transport._closeSocket
            transport._closeSocket = lambda orderly: close(False)  # type: ignore[method-assign,no-untyped-call]
            return ConnectionLost()
        transport, rest = self._transport, self._unread[count:]
        cast(Any, transport).smc.discount(count)
        self._unread = rest
        if not isSure:
            return None
        del transport._dataReceived
        why = transport._dataReceived(rest) if rest else None
        return why if data else transport._dataReceived(b"")


def runOnTCP(
    transport: Connection,
    protocol: IProtocol,
    role: str,
    reason: Enum | None,
    peerDiagnosis: Enum | int | None = None,
    leftover: bytes = b"",
    foreign: Foreign | None = None,
) -> None:
    """
    Connect a protocol to the TCP transport of a handshake.

    @param leftover: received bytes of the protocol.
    @param foreign: recognizes late CLC; None if there can be none.
    """
    markTCP(transport, role, reason, peerDiagnosis, len(leftover))
    _holdUse(transport)
    transport.logstr = prefixFor(transport, protocol)
    transport.protocol = protocol
    if foreign is not None:
        _CLCStripper(transport, foreign)
    waiting = _Leftover(transport, leftover) if leftover else None
    try:
        # The transport provides ITransport, but IProtocol has no types for that.
        callWithContext({"system": transport.logstr}, protocol.makeConnection, cast(Any, transport))
    except BaseException:
        _log.failure("Unhandled error in makeConnection")  # Twisted's TCP ports leave the connection open
        if role == Role.CLIENT.value:  # its reactors disconnect clients; but here a shared signal may call
            _disconnect(transport)
    if waiting is not None:
        waiting.deliver()


def _disconnect(transport: Connection) -> None:
    """End a connection by the current exception, as reactors do; C{connectionLost} may raise another one."""
    reason = Failure()
    with _log.failuresHandled("Unhandled Error"):
        transport.connectionLost(reason)


def _holdUse(transport: Connection) -> None:
    """
    Hold a use of the reactor as long as the connection lives, so that C{txrdma connections} lists it, and
    log its end.
    """
    reactor = cast(_Reactor, transport.reactor)
    use, since = reactorUse(reactor).hold(), reactor.seconds()
    lost = transport.connectionLost

    def connectionLost(reason: Failure) -> None:
        transport.__dict__.pop("connectionLost", None)  # called twice if a protocol aborts and raises
        if transport.connected:
            logEnd(transport, reason, lambda: reactor.seconds() - since)
        try:
            lost(reason)
        finally:
            use.release()

    # mypy: replaced on the instance, as above.
    transport.connectionLost = connectionLost  # type: ignore[method-assign]
