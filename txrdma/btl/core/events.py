"""Packets that a module sends, and events that it reports to its user."""

from __future__ import annotations

from typing import Union

from typing_extensions import NamedTuple

from txrdma.btl.core.peer import Peer
from txrdma.kit.wire import Buffer


class Packet(NamedTuple):
    """
    A packet to send: C{head} followed by C{payload}. It must be copied before the module is called again.
    """

    peer: Peer
    channel: int
    head: bytes
    payload: Buffer


class MessageReceived(NamedTuple):
    """A received message. Its bytes are valid until the packet's buffer is reused."""

    peer: Peer
    tag: int
    data: memoryview


class PackReceived(NamedTuple):
    """Messages received in one packet, each a tag and its bytes: see L{MessageReceived}."""

    peer: Peer
    messages: list[tuple[int, memoryview]]


class SendCompleted(NamedTuple):
    """
    A message or put was acknowledged completely. If its tag is ordered, the receiver may still hold it until
    earlier messages arrive.
    """

    peer: Peer
    context: object


class SendFailed(NamedTuple):
    """A message has failed and is not retransmitted. Unless the peer refused it, it may have arrived."""

    peer: Peer
    context: object
    reason: str


class PeerClosed(NamedTuple):
    """The peer has closed the connection, or this end has closed it and all its messages have arrived."""

    peer: Peer


class ProbeReceived(NamedTuple):
    """A probe was received. Its nonce must be echoed over the TCP connection: see L{Module.probe}."""

    peer: Peer
    nonce: bytes


class PeerFailed(NamedTuple):
    """
    A peer was lost. The failures of its messages were reported before this event.

    @ivar error: the local exception that caused it, from this module or from the user's buffers, if any.
    """

    peer: Peer
    reason: str
    error: Exception | None = None


class ReceiveBufferRequested(NamedTuple):
    """The first long message to a peer is queued; a receive buffer would deliver it faster."""

    peer: Peer


Event = Union[
    MessageReceived,
    PackReceived,
    SendCompleted,
    SendFailed,
    PeerClosed,
    ProbeReceived,
    PeerFailed,
    ReceiveBufferRequested,
]
