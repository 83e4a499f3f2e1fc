"""
Put a protocol on a TCP connection that has been ours for a while: what falling back to TCP comes to.

From then on nothing of ours is in the way of the bytes, but for CLC that may still be under way.
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
from txrdma.smc.common.names import prefixFor
from txrdma.smc.common.reactoruse import reactorUse
from txrdma.smc.stream.connectionstatus import markTCP

_log = Logger()

Foreign = Callable[[bytes], tuple[int, bool]]
"""
Says how many of some first bytes are not the protocol's, and whether all that follows is.

Raises C{Refused} when nothing that is said by TCP can be the protocol's: the connection is lost.
"""


class _Reactor(IReactorFDSet, IReactorTime):
    """The interfaces of the reactor that a TCP transport here is used with."""


class _Leftover:
    """
    Bytes that were read before the protocol was there.

    They are given to it by the first C{doRead}, so pausing, TLS and the order of things work as with any
    others; since nothing may come from the socket any more, that C{doRead} is ours to call.
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
        """Call C{doRead} if the transport is reading and nobody did it before."""
        transport = self._transport
        reactor = cast(_Reactor, transport.reactor)
        if transport.__dict__.get("doRead") != self._doRead or not transport.connected:
            return
        if transport in reactor.getReaders():
            callWithContext({"system": transport.logstr}, self._read)

    def _read(self) -> None:
        """Do what the reactor does, which calls the protocol by its name in the log."""
        try:
            self._transport.doRead()
        except BaseException:
            _log.failure("Unhandled Error")  # as the reactor says it
            self._transport.connectionLost(Failure())

    def _doRead(self) -> Exception | None:
        transport = self._transport
        del transport.doRead
        del transport.startReading
        return transport._dataReceived(self._data)


class _CLCStripper:
    """
    Takes what is not for the protocol from the beginning of what the socket brings.

    It sits where bytes come out of the socket, so TLS gets what is left of them, too.
    """

    def __init__(self, transport: Connection, foreign: Foreign) -> None:
        self._transport = transport
        self._foreign = foreign
        self._held = b""
        # mypy: replaced on the instance, as above.
        transport._dataReceived = self._dataReceived  # type: ignore[method-assign,assignment]

    def _dataReceived(self, data: bytes) -> Exception | None:
        self._held += data
        try:
            # At the end, what is there is what there is.
            count, isSure = self._foreign(self._held) if data else (0, True)
        except Refused:
            transport = self._transport
            del transport._dataReceived
            # By a reset: the peer would take a FIN for an end in order.
            close = transport._closeSocket
            transport._closeSocket = lambda orderly: close(False)  # type: ignore[method-assign,no-untyped-call]  # as above, of Twisted's
            return ConnectionLost()
        transport, rest = self._transport, self._held[count:]
        self._held = rest
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
    Connect a protocol with a TCP transport that has been serving another one.

    @param leftover: what the other one had received and did not want.
    @param foreign: finds out which of the first bytes that still come are not the protocol's.
    """
    markTCP(transport, role, reason, peerDiagnosis)
    _holdPresence(transport)
    transport.logstr = prefixFor(transport, protocol)
    transport.protocol = protocol
    if foreign is not None:
        _CLCStripper(transport, foreign)
    waiting = _Leftover(transport, leftover) if leftover else None
    # ITransport is what it is, IProtocol has no types for it.
    callWithContext({"system": transport.logstr}, protocol.makeConnection, cast(Any, transport))
    if waiting is not None:
        waiting.deliver()


def _holdPresence(transport: Connection) -> None:
    """C{txrdma connections} tells of this process as long as the connection lives."""
    use = reactorUse(transport.reactor).hold()
    lost = transport.connectionLost

    def connectionLost(reason: Failure) -> None:
        transport.__dict__.pop("connectionLost", None)  # who aborts and then raises is told twice by Twisted
        try:
            lost(reason)
        finally:
            use.release()

    # mypy: replaced on the instance, as above.
    transport.connectionLost = connectionLost  # type: ignore[method-assign]
