"""
The log event at the end of every connection, with the same keys for all kinds of connections.

Connections may end at any rate, so at most L{PER_SECOND} events per second are written, after a burst of
L{BURST}. An event has the number of connections since the previous one that were not logged (C{suppressed}).
Metrics count all of them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from twisted.internet.address import UNIXAddress
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IAddress
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.kit.logs import errorText

NAMESPACE: Final = "txrdma.connection"
"""C{log_namespace} of the events."""

BURST: Final = 100
"""Events that may be written at once."""

PER_SECOND: Final = 10.0
"""Average number of events per second that are written."""

_TEXT: Final = (
    "{kind} connection with {peer} ended after {seconds} s: {ending}; {route}, {bytesSent} bytes sent, "
    "{bytesReceived} received"
)


def describe(address: IAddress | None) -> str:
    """Return an address as text: C{127.0.0.1:80}, C{[::1]:80}, or C{unix:PATH}."""
    host, port = getattr(address, "host", "?"), getattr(address, "port", "?")
    if isinstance(address, UNIXAddress):
        return f"unix:{os.fsdecode(address.name or b'')}"
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"


def endingOf(reason: Failure) -> str:
    """Return how a connection ended: C{done}, C{aborted}, C{lost}, or C{failed} by another exception."""
    for ending, error in (("done", ConnectionDone), ("aborted", ConnectionAborted), ("lost", ConnectionLost)):
        if reason.check(error) is not None:
            return ending
    return "failed"


class ConnectionLog:
    """
    Writes the events of ended connections, and limits their rate.

    @ivar suppressed: number of events that were not written since the last one that was.
    """

    def __init__(self, log: Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log, self._clock = log, clock
        self._left, self._refilledAt = float(BURST), clock()
        self.suppressed = 0

    def _mayWrite(self) -> bool:
        """Take one event from the token bucket; return False if it is empty."""
        now = self._clock()
        self._left = min(self._left + (now - self._refilledAt) * PER_SECOND, BURST)
        self._refilledAt = now
        if self._left < 1.0:
            self.suppressed += 1
            return False
        self._left -= 1.0
        return True

    def ended(self, reason: Failure, fieldsOf: Callable[[], Mapping[str, Any]]) -> None:
        """
        Write the event of a connection, unless there were too many.

        @param reason: the argument of C{connectionLost}.
        @param fieldsOf: called if the event is written; returns the fields that L{connectionFields} makes.
        """
        if not self._mayWrite():
            return
        text, suppressed = _TEXT, self.suppressed
        self.suppressed = 0
        with self._log.failuresHandled("can't log the end of a connection"):
            fields = fieldsOf()
            if fields["fallbackReason"]:
                text += "; not SMC-R, because {fallbackReason}"
            if suppressed:
                text += " ({suppressed} other connections were not logged)"
            ending, message = endingOf(reason), errorText(reason.value)
            self._log.info(text, **fields, ending=ending, reason=message, suppressed=suppressed)


def connectionFields(
    kind: str,
    role: str,
    route: str,
    addresses: tuple[IAddress, IAddress],
    counts: tuple[int, int],
    seconds: float,
    fallbackReason: str = "",
) -> dict[str, Any]:
    """
    Return the fields of an event; C{docs/observability.md} documents them.

    @param kind: the prefix of the endpoint string.
    @param addresses: the local address and the peer's.
    @param counts: bytes sent and received.
    @param seconds: duration of the connection; reported as 0 if the system time was set back by more.
    """
    host, peer = map(describe, addresses)
    sent, received = counts
    return {
        "kind": kind,
        "role": role,
        "route": route,
        "host": host,
        "peer": peer,
        "bytesSent": sent,
        "bytesReceived": received,
        "seconds": round(max(seconds, 0.0), 6),
        "fallbackReason": fallbackReason,
    }


connectionLog: Final = ConnectionLog(Logger(NAMESPACE))
"""The log of this process."""


class ConnectionRecord:
    """
    Data for the event of a connection that its owner does not have at the end.

    @ivar bytesSent: counted by the owner; so is C{bytesReceived}.
    """

    __slots__ = ("_isClient", "_route", "_since", "bytesReceived", "bytesSent")

    def __init__(self, isClient: bool, route: str, now: float) -> None:
        """@param now: time at which the protocol was connected, in seconds of the reactor's clock."""
        self._isClient, self._route, self._since = isClient, route, now
        self.bytesSent = self.bytesReceived = 0

    def ended(self, kind: str, addresses: tuple[IAddress, IAddress], reason: Failure, now: float) -> None:
        """Write the event; for the parameters see L{connectionFields}."""
        role, counts = "client" if self._isClient else "server", (self.bytesSent, self.bytesReceived)
        duration = now - self._since
        connectionLog.ended(
            reason, lambda: connectionFields(kind, role, self._route, addresses, counts, duration)
        )
