"""
Packets that a module sends, and events that it reports to its program.
"""

from __future__ import annotations

from typing import Union

from typing_extensions import NamedTuple

from txrdma.btl._peer import Peer
from txrdma.kit.wire import Buffer


class Packet(NamedTuple):
    """A packet to send: C{head} and C{payload}, one behind the other; copied before the next call."""

    peer: Peer
    channel: int
    head: bytes
    payload: Buffer


class MessageReceived(NamedTuple):
    """A message of a peer; its bytes are valid until the packet's buffer is used again."""

    peer: Peer
    tag: int
    data: memoryview


class PackReceived(NamedTuple):
    """Messages of a peer that came in one packet, each a tag and its bytes: see L{MessageReceived}."""

    peer: Peer
    messages: list[tuple[int, memoryview]]


class SendCompleted(NamedTuple):
    """All of a message, or of a put, has arrived; where its tag wants order it may wait there for others."""

    peer: Peer
    context: object


class SendFailed(NamedTuple):
    """A message will not be sent again; unless it was refused it may have arrived."""

    peer: Peer
    context: object
    reason: str


class PeerClosed(NamedTuple):
    """A peer has ended, or all that was sent to it has arrived before this end was closed."""

    peer: Peer


class ProbeReceived(NamedTuple):
    """A probe of a peer, which waits for its nonce to be echoed by another route: see L{Module.probe}."""

    peer: Peer
    nonce: bytes


class PeerLost(NamedTuple):
    """
    A peer was given up: its messages have failed before this.

    @ivar error: the exception of this module, or of the program's buffers, that is to blame, if there is one.
    """

    peer: Peer
    reason: str
    error: Exception | None = None


class ReceiveBufferWanted(NamedTuple):
    """The first long message to a peer is queued; a receive buffer would deliver it sooner."""

    peer: Peer


Event = Union[
    MessageReceived,
    PackReceived,
    SendCompleted,
    SendFailed,
    PeerClosed,
    ProbeReceived,
    PeerLost,
    ReceiveBufferWanted,
]
