"""
Events that the communication manager reports to the owner of a connection.

Follows InfiniBand Architecture vol. 1, 12.9.
"""

from __future__ import annotations

from txrdma.cm.layouts.messages import (
    APR,
    CMPath,
    DREQ,
    LAP,
    MessageKind,
    REJ,
    REP,
    REQ,
    RTU,
    SIDRREP,
    SIDRREQ,
)
from txrdma.kit.values import frozen


class Event:
    """The base class of all events."""

    __slots__ = ()


@frozen
class ConnectionRequested(Event):
    """A peer requests a connection: accept it, reject it, or delay it by an MRA."""

    request: REQ


@frozen
class ConnectionReplied(Event):
    """The peer accepts: make the queue pair ready to send, then call C{ready}, or reject."""

    reply: REP


@frozen
class ConnectionEstablished(Event):
    """
    The connection carries data in both directions.

    @ivar ready: the peer's RTU; None at the end that sent it, or if another message replaced a lost RTU.
    """

    ready: RTU | None


@frozen
class ConnectionRejected(Event):
    """The peer ends the connection by a REJ, before or after it is established."""

    rejection: REJ


@frozen
class ConnectionTimedOut(Event):
    """The peer did not answer any retransmission of a REQ or a REP."""

    message: MessageKind


@frozen
class ConnectionAbandoned(Event):
    """An exception in the connection manager, which is logged, has ended the connection."""


@frozen
class Disconnected(Event):
    """
    One end or both have sent a DREQ; call C{disconnect} unless this has been done.

    @ivar request: the peer's DREQ, with its private data; None if only this end has sent one.
    """

    request: DREQ | None


@frozen
class TimewaitOver(Event):
    """The time-wait is over: the connection's IDs and queue pair may be reused."""


@frozen
class AlternatePathRequested(Event):
    """A peer's LAP: accept its alternate path or reject it, by its transaction."""

    lap: LAP
    path: CMPath
    transactionID: int


@frozen
class AlternatePathCancelled(Event):
    """A reported LAP is obsolete: the peer has abandoned it, or the connection has ended."""

    transactionID: int


@frozen
class AlternatePathLoaded(Event):
    """The peer has accepted the alternate path, and both ends are ready to migrate."""

    path: CMPath
    response: APR


@frozen
class AlternatePathRejected(Event):
    """The peer has rejected the alternate path: there is none now."""

    response: APR


@frozen
class AlternatePathTimedOut(Event):
    """The peer did not answer any retransmission of the LAP: there is no alternate path now."""


@frozen
class AlternatePathAbandoned(Event):
    """The connection ended before the answer to a LAP arrived."""


@frozen
class PathMigrated(Event):
    """The alternate path is the primary one now, and there is no alternate path."""

    path: CMPath


@frozen
class MigrationUnexpected(Event):
    """The queue pair reports a migration, although there was no alternate path."""


@frozen
class QPDisarmed(Event):
    """An instruction for the queue pair: disarm it before the pending messages are sent."""


@frozen
class QPArmed(Event):
    """An instruction for the queue pair: load this alternate path, and arm it."""

    path: CMPath


@frozen
class ServiceRequested(Event):
    """A peer has sent a SIDR_REQ for the queue pair of a datagram service."""

    request: SIDRREQ


@frozen
class ServiceResolved(Event):
    """The answer to a SIDR_REQ was received; its status may be a refusal."""

    response: SIDRREP


@frozen
class ServiceTimedOut(Event):
    """No retransmission of a SIDR_REQ was answered."""


def ignoreEvent(connection: object, event: Event) -> None:
    """Do nothing: events of an abandoned connection are ignored."""
