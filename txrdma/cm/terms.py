"""
Terms and addresses of message connections, and the greeting by which two ends of txrdma recognize each other.

REQ and REP negotiate depths, MTU and retries (IBA vol. 1, 12.7), but not message lengths and credits. An end
that uses credits puts a greeting into the last bytes of the private data. Other programs begin at the first
byte and know the length of their data, so they do not read it; and only a peer that has sent a greeting gets
one.
"""

from __future__ import annotations

from operator import index
from typing import Final

from txrdma.cm.layouts.messages import REP, REQ
from txrdma.error import InvalidRequest
from txrdma.iba.types import MTU
from txrdma.iba.verbs import DeviceLimits
from txrdma.kit.values import frozen, replace
from txrdma.kit.wire import bits, Layout, wire

REQ_MAGIC: Final = 0x74784D02
"""The last four bytes of a REQ's private data if it contains a greeting (version 2)."""

REP_MAGIC: Final = 0x74784D03
"""The same of a REP. It differs, so that private data that a peer only returns is not a greeting."""

LONGEST: Final = 16 << 20
"""Bytes of the longest message that an end accepts, if it reads long messages."""

RANGES: Final = {
    "messageBytes": (0, 1 << 30),  # 0 for protocols that post to the queue pair themselves
    "receives": (1, 0xFFFC),  # four more are posted, and software devices have 65,536
    "sends": (1, 0xFFFC),  # likewise
    "reads": (0, 255),
    "retryCount": (0, 7),
    "rnrRetryCount": (0, 7),
    "responseTimeout": (0, 31),
    "maxCMRetries": (0, 15),
    "longest": (0, 1 << 30),
}
"""The least and greatest value of each number in L{Terms}, and of the keys of endpoint strings for them."""

_GREETING_BYTES: Final = 16
_NAME_BYTES: Final = 16

KEEPALIVE: Final = 15.0
"""Seconds between probes of an idle peer, by default."""


def checkSeconds(name: str, seconds: float) -> None:
    """Raise L{InvalidRequest} unless this is a time above 0."""
    if not seconds > 0:
        raise InvalidRequest(f"{name} is a number of seconds above 0, not {seconds}")


@wire(_GREETING_BYTES)
class Greeting(Layout):
    """
    The end of private data whose sender uses credits.

    C{receives} are posted for messages of C{messageBytes}; longer ones, up to C{longest} bytes, are read by
    the receiver. C{privateLength} bytes of private data are the program's.
    """

    receives: int = bits(16)
    reserved: int = bits(8)
    privateLength: int = bits(8)
    messageBytes: int = bits(32)
    longest: int = bits(32)
    magic: int = bits(32)


@frozen
class Terms:
    """
    Terms that an end requests for a connection. L{InvalidRequest} is raised for those out of range.

    @ivar messageBytes: the length of posted receives, in bytes, up to 1 GiB.
    @ivar receives: posted receives: messages that the peer may send before the protocol has handled any, 1 to
        65532.
    @ivar sends: requests that may be outstanding, and messages that wait before a producer is paused, 1 to
        65532.
    @ivar reads: outstanding RDMA reads of either end, 0 to 255.
    @ivar mtu: path MTU; None for that of the port.
    @ivar retryCount: retransmissions of an unacknowledged packet, 0 to 7.
    @ivar rnrRetryCount: retransmissions of the peer after receiver-not-ready, 0 to 7; 7 is unlimited.
    @ivar responseTimeout: maximum response time of a CM: 4.096 us times 2 to this power, 0 to 31.
    @ivar maxCMRetries: retransmissions of a CM message, 0 to 15.
    @ivar keepalive: seconds between probes of an idle peer; None disables them.
    @ivar usesCredits: use credits if the peer does; a client sends no greeting otherwise.
    @ivar longest: the length of the longest message that this end accepts, in bytes, up to 1 GiB, if the peer
        sends a greeting: those longer than C{messageBytes} are read from the peer's memory, which needs
        C{reads}.
    @ivar mayReload: an alternate path can be replaced before a migration to it, if both ends allow that. The
        device must be able to give up a loaded path.
    """

    messageBytes: int = 4096
    receives: int = 32
    sends: int = 32
    reads: int = 4
    mtu: MTU | None = None
    retryCount: int = 7
    rnrRetryCount: int = 7
    responseTimeout: int = 18
    maxCMRetries: int = 15
    usesCredits: bool = True
    keepalive: float | None = KEEPALIVE
    longest: int = LONGEST
    mayReload: bool = False

    def __post_init__(self) -> None:
        for name, (least, most) in RANGES.items():
            value = getattr(self, name)
            if not least <= index(value) <= most:
                raise InvalidRequest(f"{name} is from {least} to {most}, not {value}")
        if self.mtu is not None and self.mtu not in MTU.__members__.values():
            raise InvalidRequest(f"{self.mtu!r} is not an MTU")
        if self.keepalive is not None:
            checkSeconds("keepalive", self.keepalive)

    def answering(self, greeting: Greeting | None) -> Terms:
        """Return these terms for a peer with this greeting: without one, the peer uses no credits."""
        usesCredits = greeting is not None
        return self if usesCredits == self.usesCredits else replace(self, usesCredits=usesCredits)

    def within(self, limits: DeviceLimits) -> Terms:
        """Return these terms with at most as many reads as a device supports."""
        reads = min(self.reads, limits.maxRDAtomic, limits.maxDestRDAtomic)
        return self if reads == self.reads else replace(self, reads=reads)

    def withGreeting(self, privateData: bytes, maximum: int, magic: int) -> bytes:
        """
        Pad private data, and put a greeting into the last bytes if this end uses credits.

        @param maximum: length of the private data of the message, in bytes.
        @param magic: L{REQ_MAGIC} or L{REP_MAGIC}.
        @raise InvalidRequest: the private data is too long.
        """
        greeting = b""
        if self.usesCredits:
            greeting = Greeting(
                receives=self.receives,
                privateLength=min(255, len(privateData)),
                messageBytes=self.messageBytes,
                longest=self.longest,
                magic=magic,
            ).encode()
        most = maximum - len(greeting)
        if len(privateData) > most:
            raise InvalidRequest(f"private data has at most {most} bytes, not {len(privateData)}")
        return privateData.ljust(most, b"\0") + greeting


@frozen
class Agreed:
    """
    Negotiated terms of a connection, as one end sees them.

    @ivar messageBytes: the length of the longest message that fits into a receive of either end, in bytes.
    @ivar longest: the length of the longest message that this end may send, in bytes.
    @ivar longestReceived: the length of the longest message that this end reads, or 0.
    @ivar receives: receives of the peer; None if credits are not used.
    @ivar sends: requests of this end that may be outstanding.
    @ivar initiatorDepth: outstanding reads of this end; C{responderResources}: those of the peer.
    @ivar retryCount: retransmissions of an unacknowledged packet.
    @ivar rnrRetryCount: retransmissions of this end after receiver-not-ready; 7 is unlimited.
    """

    messageBytes: int
    longest: int
    longestReceived: int
    receives: int | None
    sends: int
    initiatorDepth: int
    responderResources: int
    mtu: MTU
    retryCount: int
    rnrRetryCount: int


def splitGreeting(privateData: bytes, terms: Terms, magic: int) -> tuple[Greeting | None, bytes]:
    """
    Split private data into the greeting, if credits are used, and the data of the program without padding.

    Messages do not contain the length of private data. Without a greeting all zeros at the end are padding.

    @param magic: L{REQ_MAGIC} or L{REP_MAGIC}.
    """
    user, found = privateData[:-_GREETING_BYTES], privateData[-_GREETING_BYTES:]
    if len(found) == _GREETING_BYTES:
        greeting = Greeting.decode(found)
        if greeting.magic == magic and greeting.messageBytes and greeting.privateLength <= len(user):
            return (greeting if terms.usesCredits else None), user[: greeting.privateLength]
    return None, privateData.rstrip(b"\0")


def negotiate(terms: Terms, greeting: Greeting | None, request: REQ, reply: REP, isActive: bool) -> Agreed:
    """Derive the terms from REQ, REP and the peer's greeting. C{isActive}: whether this end sent the REQ."""
    own, peer = (request, reply) if isActive else (reply, request)
    initiatorDepth = min(own.initiatorDepth, peer.responderResources)
    responderResources = min(own.responderResources, peer.initiatorDepth)
    messageBytes = longest = terms.messageBytes
    longestReceived = 0
    if greeting is not None:
        messageBytes = longest = min(messageBytes, greeting.messageBytes)
        if messageBytes >= _NAME_BYTES:  # long messages are announced by the name of their memory
            longest = max(longest, greeting.longest if responderResources else 0)
            longestReceived = terms.longest if initiatorDepth else 0
    return Agreed(
        messageBytes=messageBytes,
        longest=longest,
        longestReceived=longestReceived,
        receives=None if greeting is None else greeting.receives,
        sends=terms.sends,
        initiatorDepth=initiatorDepth,
        responderResources=responderResources,
        mtu=MTU(int(request.pathMTU)),
        retryCount=request.retryCount,
        rnrRetryCount=peer.rnrRetryCount,
    )
