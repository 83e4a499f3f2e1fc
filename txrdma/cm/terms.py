"""
Terms of connections for messages: what an end wants, what both agree on, and how they say so.

Depths, MTU and retries are agreed on by REQ and REP (IBA vol. 1, 12.7). Lengths of messages and credits are
no matter of these; ends that are willing to count credits put a greeting in front of their private data.
"""

from __future__ import annotations

from typing import Final

from zope.interface import implementer

from twisted.internet.interfaces import IAddress

from txrdma.cm.layouts.messages import REP, REQ
from txrdma.error import WireError
from txrdma.iba.types import GID, MTU, QPN
from txrdma.iba.verbs import DeviceLimits
from txrdma.kit.values import frozen
from txrdma.kit.wire import bits, Layout, wire

MAGIC: Final = 0x74784D01
"""The first bytes of a greeting, of version 1."""

KEEPALIVE: Final = 15.0
"""Seconds between probes of an idle peer, unless an endpoint is given others."""


@wire(12)
class Greeting(Layout):
    """
    The beginning of private data whose sender counts credits.

    C{receives} are posted for messages of C{messageBytes}; C{privateLength} bytes of a program's follow.
    """

    magic: int = bits(32)
    privateLength: int = bits(8)
    reserved: int = bits(8)
    receives: int = bits(16)
    messageBytes: int = bits(32)


@frozen
class Terms:
    """
    Terms that an end wants for a connection.

    @ivar messageBytes: the length of the longest message, in bytes.
    @ivar receives: messages that the peer may send before the protocol has taken the first of them.
    @ivar sends: requests that may be under way, and messages that wait before a producer is paused.
    @ivar reads: reads of either end that may be under way.
    @ivar mtu: the largest payload of packets; None is that of the port.
    @ivar retryCount: times that a packet is sent again without an answer, 0 to 7.
    @ivar rnrRetryCount: times that the peer sends again what found no receive, 0 to 7, where 7 is for ever.
    @ivar responseTimeout: the time that a CM takes to answer at most, a time's code.
    @ivar maxCMRetries: times that a message of the CM is sent again, 0 to 15.
    @ivar keepalive: seconds between probes of an idle peer; None is never.
    @ivar usesCredits: count credits with peers that do so, too; a client that does not sends no greeting.
    """

    messageBytes: int = 4096
    receives: int = 32
    sends: int = 32
    reads: int = 4
    mtu: MTU | None = None
    retryCount: int = 7
    rnrRetryCount: int = 7
    responseTimeout: int = 18
    maxCMRetries: int = 7
    usesCredits: bool = True
    keepalive: float | None = KEEPALIVE

    def within(self, limits: DeviceLimits) -> Terms:
        """The terms that a device can keep: with as many reads as it does."""
        most = min(self.reads, limits.maxRDAtomic, limits.maxDestRDAtomic)
        return Terms(
            *(self.messageBytes, self.receives, self.sends, most, self.mtu),
            *(self.retryCount, self.rnrRetryCount, self.responseTimeout, self.maxCMRetries, self.usesCredits),
            self.keepalive,
        )

    def greet(self, privateData: bytes, room: int) -> bytes:
        """
        Put a greeting in front of private data, if the end counts.

        @param room: bytes that the message has for private data.
        @raise ValueError: the message has no room for so much.
        """
        greeting = b""
        if self.usesCredits:
            greeting = Greeting(
                magic=MAGIC,
                privateLength=min(255, len(privateData)),
                receives=self.receives,
                messageBytes=self.messageBytes,
            ).encode()
        if len(greeting) + len(privateData) > room:
            raise ValueError(f"there is room for {room - len(greeting)} bytes of private data")
        return (greeting + privateData).ljust(room, b"\0")


@frozen
class Agreed:
    """
    Terms that both ends of a connection have agreed on, as one end sees them.

    @ivar messageBytes: the length of the longest message, in bytes.
    @ivar receives: those that the peer has posted for messages; None where it does not count.
    @ivar sends: requests of this end that may be under way.
    @ivar initiatorDepth: reads of this end that may be under way; C{responderResources}: those of the peer.
    @ivar retryCount: times that a packet is sent again without an answer.
    @ivar rnrRetryCount: times that this end sends again what found no receive; 7 is for ever.
    @ivar ackTimeout: the time after which a packet is sent again, a time's code.
    """

    messageBytes: int
    receives: int | None
    sends: int
    initiatorDepth: int
    responderResources: int
    mtu: MTU
    retryCount: int
    rnrRetryCount: int
    ackTimeout: int


def understood(privateData: bytes, terms: Terms) -> tuple[Greeting | None, bytes]:
    """Take a greeting, if there is one and it counts, and the program's private data behind it."""
    try:
        greeting = Greeting.decode(privateData)
    except WireError:
        return None, privateData
    if greeting.magic != MAGIC or not greeting.messageBytes:
        return None, privateData
    length = len(Greeting().encode())
    user = privateData[length : length + greeting.privateLength]
    return (greeting if terms.usesCredits else None), user


def agree(terms: Terms, greeting: Greeting | None, request: REQ, reply: REP, isActive: bool) -> Agreed:
    """
    Find what REQ, REP and the peer's greeting amount to.

    @param isActive: this end sent the REQ.
    """
    mine, theirs = (request, reply) if isActive else (reply, request)
    most = terms.messageBytes
    return Agreed(
        messageBytes=most if greeting is None else min(most, greeting.messageBytes),
        receives=None if greeting is None else greeting.receives,
        sends=terms.sends,
        initiatorDepth=min(mine.initiatorDepth, theirs.responderResources),
        responderResources=min(mine.responderResources, theirs.initiatorDepth),
        mtu=MTU(int(request.pathMTU)),
        retryCount=request.retryCount,
        rnrRetryCount=theirs.rnrRetryCount,
        ackTimeout=request.primary.localACKTimeout,
    )


@implementer(IAddress)
@frozen
class MessageAddress:
    """
    The address of an end.

    @ivar gid: of its port; None where it listens at all.
    @ivar serviceID: the service id that is listened to.
    @ivar host: its IP address, and C{port} its port, where it has these; else C{""} and 0.
    """

    gid: GID | None
    serviceID: int
    host: str = ""
    port: int = 0


@implementer(IAddress)
@frozen
class MessagePeer:
    """
    The other end of a connection.

    @ivar qpn: the number of its queue pair.
    @ivar privateData: its program's private data; without a greeting, padded with zeros.
    """

    address: MessageAddress
    qpn: QPN
    privateData: bytes
