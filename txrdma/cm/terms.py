"""
Terms and addresses of message connections, and the greeting by which two ends negotiate credits.

REQ and REP negotiate depths, MTU and retries (IBA vol. 1, 12.7), but not message lengths and credits. An end
that uses credits puts a greeting in front of its private data.
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
    The header of private data whose sender uses credits.

    C{receives} are posted for messages of C{messageBytes}; C{privateLength} bytes of the program follow.
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
    @ivar receives: posted receives: messages that the peer may send before the protocol has handled any.
    @ivar sends: requests that may be outstanding, and messages that wait before a producer is paused.
    @ivar reads: outstanding RDMA reads of either end.
    @ivar mtu: path MTU in bytes; None for that of the port.
    @ivar retryCount: retransmissions of an unacknowledged packet, 0 to 7.
    @ivar rnrRetryCount: retransmissions of the peer after receiver-not-ready, 0 to 7; 7 is unlimited.
    @ivar responseTimeout: maximum response time of a CM: 4.096 us times 2 to this power.
    @ivar maxCMRetries: retransmissions of a CM message, 0 to 15.
    @ivar keepalive: seconds between probes of an idle peer; None disables them.
    @ivar usesCredits: use credits if the peer does; a client sends no greeting otherwise.
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
        """These terms, with as many reads as a device supports."""
        most = min(self.reads, limits.maxRDAtomic, limits.maxDestRDAtomic)
        return Terms(
            *(self.messageBytes, self.receives, self.sends, most, self.mtu),
            *(self.retryCount, self.rnrRetryCount, self.responseTimeout, self.maxCMRetries, self.usesCredits),
            self.keepalive,
        )

    def withGreeting(self, privateData: bytes, maximum: int) -> bytes:
        """
        Put a greeting in front of private data, if this end uses credits.

        @param maximum: length of the private data of the message, in bytes.
        @raise ValueError: the private data is too long.
        """
        greeting = b""
        if self.usesCredits:
            greeting = Greeting(
                magic=MAGIC,
                privateLength=min(255, len(privateData)),
                receives=self.receives,
                messageBytes=self.messageBytes,
            ).encode()
        if len(greeting) + len(privateData) > maximum:
            raise ValueError(
                f"private data has {maximum - len(greeting)} bytes at most, not {len(privateData)}"
            )
        return (greeting + privateData).ljust(maximum, b"\0")


@frozen
class Agreed:
    """
    Negotiated terms of a connection, from the view of one end.

    @ivar messageBytes: the length of the longest message, in bytes.
    @ivar receives: receives of the peer; None if credits are not used.
    @ivar sends: requests of this end that may be outstanding.
    @ivar initiatorDepth: outstanding reads of this end; C{responderResources}: those of the peer.
    @ivar retryCount: retransmissions of an unacknowledged packet.
    @ivar rnrRetryCount: retransmissions of this end after receiver-not-ready; 7 is unlimited.
    @ivar ackTimeout: acknowledgement timeout: 4.096 us times 2 to this power.
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


def splitGreeting(privateData: bytes, terms: Terms) -> tuple[Greeting | None, bytes]:
    """
    Split private data into the greeting, if credits are used, and the data of the program without padding.

    Messages do not contain the length of private data. Without a greeting all zeros at the end are padding.
    """
    try:
        greeting = Greeting.decode(privateData)
    except WireError:
        return None, privateData.rstrip(b"\0")
    if greeting.magic != MAGIC or not greeting.messageBytes:
        return None, privateData.rstrip(b"\0")
    length = len(Greeting().encode())
    user = privateData[length : length + greeting.privateLength]
    return (greeting if terms.usesCredits else None), user


def negotiate(terms: Terms, greeting: Greeting | None, request: REQ, reply: REP, isActive: bool) -> Agreed:
    """
    Derive the terms from REQ, REP and the peer's greeting.

    @param isActive: whether this end sent the REQ.
    """
    own, peer = (request, reply) if isActive else (reply, request)
    most = terms.messageBytes
    return Agreed(
        messageBytes=most if greeting is None else min(most, greeting.messageBytes),
        receives=None if greeting is None else greeting.receives,
        sends=terms.sends,
        initiatorDepth=min(own.initiatorDepth, peer.responderResources),
        responderResources=min(own.responderResources, peer.initiatorDepth),
        mtu=MTU(int(request.pathMTU)),
        retryCount=request.retryCount,
        rnrRetryCount=peer.rnrRetryCount,
        ackTimeout=request.primary.localACKTimeout,
    )


@implementer(IAddress)
@frozen
class MessageAddress:
    """
    The address of an end.

    @ivar gid: of its port; None for a listener at all ports.
    @ivar serviceID: of the listener.
    @ivar host: IP address, or C{""}; C{port}: port number, or 0.
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
    @ivar privateData: private data of its program, without zeros at the end if it sent no greeting.
    """

    address: MessageAddress
    qpn: QPN
    privateData: bytes
