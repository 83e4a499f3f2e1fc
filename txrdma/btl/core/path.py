"""
The paths to a peer, and the messages and segments that are sent on them.

A path is a port of this end, an address of the peer, and the state of the network between them.

Each path has its own congestion window and its own round trips, so that a faster one carries more. A path is
silent when nothing that was sent on it has arrived for too long. While another path works, only probes are
sent on a silent one: copies of a segment that was acknowledged before, which the peer acknowledges again.
L{txrdma.btl.core.window} detects silence, and sends what is in flight there again on the others.
"""

from __future__ import annotations

from typing import Final

from txrdma.btl.core.congestion import Congestion
from txrdma.btl.core.marks import Marks
from txrdma.btl.core.roundtrip import RoundTripEstimate
from txrdma.btl.wire import decodePack, encodePack, ENTRY_LENGTH, FRAG, HEADER_LENGTH, PACK, ROOM_UNKNOWN
from txrdma.kit.wire import Buffer

COMMAND: Final = 0
"""The channel of acknowledgements and of very small messages."""

DATA: Final = 1
"""The channel of everything else, and of all retransmissions."""

PROBE_ATTEMPT: Final = 0x7F
"""Number of the transmission of a probe on the first path; those of other paths have lower numbers."""


FAILURES_ONLY: Final = object()
"""The context of a message of which only a failure is reported."""

_ALONE: Final = 1 << 62
_GOLDEN_RATIO: Final = 0.618034


class Message:
    """
    A message, a put or several small messages in one packet, until everything has arrived.

    @ivar kind: kind of its segment, if it fits into one.
    @ivar total: length in bytes, of which C{begun} were cut into segments; C{waiting}: number of
        unacknowledged segments.
    @ivar packed: bytes of the packet with an entry for one more message, without that message's bytes; larger
        than any packet if no other message may join.
    @ivar tags: tags of the messages in a packet of several, until it is sealed; C{bodies}: their bytes.
    @ivar contexts: the contexts of its senders, returned with the result.
    @ivar path: the only path that it may use; None for any.
    """

    __slots__ = (
        *("begun", "bodies", "contexts", "data", "fragment", "isOver", "kind", "offset", "packed", "path"),
        *("region", "tag", "tags", "total", "waiting"),
    )

    def __init__(
        self,
        kind: int,
        tag: int,
        data: Buffer,
        context: object,
        region: int = 0,
        offset: int = 0,
    ) -> None:
        self.kind, self.tag, self.data, self.region, self.offset = kind, tag, data, region, offset
        self.contexts = [] if context is None else [context]
        self.total = len(data)
        self.packed = HEADER_LENGTH + 2 * ENTRY_LENGTH + self.total if kind == FRAG else _ALONE
        self.fragment = self.begun = self.waiting = 0
        self.isOver = False
        self.path: Path | None = None

    def open(self) -> None:
        """Become the first message of a packet of several; others are appended to its lists."""
        self.kind = PACK
        self.tags: list[int] = [self.tag]
        self.bodies: list[Buffer] = [self.data]

    def seal(self) -> None:
        """Encode the packet of several messages, after which none can join."""
        self.tag, self.data = len(self.bodies), encodePack(self.tags, self.bodies)
        self.tags, self.bodies = [], []

    def allTags(self) -> list[int]:
        """Return the tags of the messages in the packet."""
        if self.kind != PACK:
            return [self.tag]
        return self.tags or [tag for tag, _data in decodePack(self.tag, memoryview(self.data)) or ()]


class Sent:
    """
    A segment from its first transmission until it has arrived.

    @ivar ordinal: number of the segment, which unlike C{sequence} begins with zero and does not wrap.
    @ivar number: number of its latest transmission, at C{sentAt} seconds on C{channel} of C{path}.
    @ivar isLost: whether it waits for its retransmission; C{isLate}: only because of the timer.
    @ivar placed: position of its bytes in the peer's receive buffer; -1 if the packet contains them.
    """

    __slots__ = (
        *("channel", "fragment", "isArrived", "isLate", "isLost", "kind", "message", "number", "offset"),
        *("ordinal", "path", "payload", "placed", "region", "sentAt", "sequence", "tag", "total", "tries"),
    )

    path: Path

    def __init__(
        self,
        kind: int,
        tag: int,
        payload: Buffer,
        message: Message | None,
        fragment: int = 0,
        total: int = 0,
        region: int = 0,
        offset: int = 0,
    ) -> None:
        self.kind, self.tag, self.payload, self.message = kind, tag, payload, message
        self.fragment, self.total, self.region, self.offset = fragment, total, region, offset
        self.sequence = self.ordinal = self.number = self.channel = self.tries = 0
        self.placed = -1
        self.sentAt = 0.0
        self.isArrived = self.isLate = self.isLost = False


class Transmissions:
    """
    The transmissions to one peer on one channel of a path.

    @ivar trail: transmissions, each with its number, the oldest first.
    @ivar newest: number of the newest one that has arrived; C{progress}: time when the last one arrived.
        Timers begin again then (RFC 6298, 5.3).
    """

    __slots__ = ("newest", "progress", "roundTrip", "trail")

    def __init__(self) -> None:
        self.trail: list[tuple[int, Sent]] = []  # an empty deque takes 700 bytes
        self.newest = 0
        self.progress = 0.0
        self.roundTrip = RoundTripEstimate()


class Path:
    """
    A path to a peer.

    @ivar number: index in the peer's paths; C{port}: number of the port of the module.
    @ivar channels: the transmissions on the command and the data channel.
    @ivar marks: congestion marks of datagrams in both directions.
    @ivar inFlight: number of segments that are neither acknowledged nor lost.
    @ivar room: number of segments that the peer's buffers can accept, as it has reported last.
    @ivar opensAt: time before which no further segment is sent, because the congestion window is very small;
        else zero.
    @ivar arrivedFrom: time at which the newest segment that has arrived was sent.
    @ivar isSilent: whether nothing has arrived for too long, so that other paths are used; C{isClosed}:
        whether it cannot be used any more.
    @ivar probeAt: time of the next probe of a silent path; C{isProbeDue}: whether it has to be sent.
    """

    __slots__ = (
        *("_phase", "_probe", "arrivedFrom", "channels", "congestion", "inFlight", "isClosed"),
        *("isProbeDue", "isSilent", "marks", "number", "opensAt", "port", "probeAt", "room"),
    )

    def __init__(self, number: int, port: int, phase: float = 0.0) -> None:
        """@param phase: any number, different from those of other senders."""
        self.number, self.port, self._phase = number, port, phase
        self.channels = (Transmissions(), Transmissions())
        self.congestion, self.marks = Congestion(), Marks()
        self.inFlight, self.room = 0, ROOM_UNKNOWN
        self.arrivedFrom = self.opensAt = self.probeAt = 0.0
        self.isSilent = self.isClosed = self.isProbeDue = False
        self._probe: tuple[int, float] | None = None  # sequence number and time of the last probe

    def isFree(self) -> bool:
        """Return whether another segment may be sent. Record if the congestion window prevents it."""
        if self.opensAt or self.inFlight >= self.congestion.size:
            self.congestion.filled()
            return False
        return self.inFlight < self.room

    def space(self, number: int, now: float) -> None:
        """Delay the next segment after this transmission, as a window below L{NARROWEST} requires."""
        interval = self.congestion.interval(self.channels[DATA].roundTrip.smoothed)
        spread = 2 * ((self._phase + number * _GOLDEN_RATIO) % 1.0)  # senders must not act in step
        self.opensAt = now + spread * interval

    def cost(self) -> float:
        """Return the seconds in which the next segment would arrive, roughly, for a comparison of paths."""
        roundTrip = self.channels[DATA].roundTrip.smoothed
        return roundTrip * (1 + (self.inFlight + 1) / self.congestion.size)

    def measured(self, channel: int, seconds: float, now: float) -> None:
        """
        Measure the round trip of a segment whose transmission is known (which is better than Karn's rule).
        """
        self.channels[channel].roundTrip.measured(seconds, now)
        beside = self.channels[1 - channel].roundTrip
        if not beside.hasOwn:  # the other channel uses it until it has a sample of its own
            beside.measured(seconds, now, False)
        if channel == DATA:
            self.congestion.measured(seconds)

    def timedOut(self, hasOthers: bool, now: float) -> None:
        """Note that a timer has expired. C{hasOthers}: whether another path works."""
        self.congestion.timedOut()
        self.marks.timedOut()
        if hasOthers:
            self.isSilent, self.probeAt = True, now

    def answered(self) -> None:
        """Use the path again, because a segment that was sent on it has arrived."""
        self.isSilent = self.isProbeDue = False
        self._probe = None

    def expired(self, now: float) -> None:
        """Let a segment or a probe be sent if it is time for it."""
        if self.opensAt <= now:
            self.opensAt = 0.0
        if self.isSilent and self.probeAt <= now:
            self.isProbeDue = True
            self.probeAt = now + self.channels[DATA].roundTrip.timeout

    def probe(self, sequence: int, now: float) -> int:
        """Note that a probe with this sequence number is sent. Return the number of its transmission."""
        self.isProbeDue = False
        self._probe = sequence, now
        self.channels[DATA].roundTrip.expired()
        return PROBE_ATTEMPT - self.number

    def hasAnsweredProbe(self, sequence: int, attempt: int, now: float) -> bool:
        """Return whether an acknowledgement of this transmission is that of the last probe."""
        probe = self._probe
        if probe is None or probe[0] != sequence or attempt != PROBE_ATTEMPT - self.number:
            return False
        self.channels[DATA].roundTrip.answered()
        self.measured(DATA, now - probe[1], now)
        self.answered()
        return True
