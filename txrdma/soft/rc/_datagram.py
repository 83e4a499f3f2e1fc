"""
The core of a datagram queue pair: packets to send, and receives for received packets.

Theory of operation. C{post} queues requests, and C{outgoing} turns them into packets; for peers on this host
C{write} and C{put} write packets into shared memory instead. Received packets are queued in an inbox, or
copied into the oldest receive with the 40 bytes of a GRH; without a receive they are dropped. A receive with
a wrong key fails, and ends the queue pair.

Follows InfiniBand Architecture vol. 1, 9.8.3 (unreliable datagrams) and 11.4.2.1 (GRH). Nothing here reads a
clock or a socket; see L{txrdma.soft.rc.roce} for that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final, NamedTuple, TYPE_CHECKING

from txrdma.error import ProtectionError
from txrdma.iba.headers import Opcode
from txrdma.iba.types import QPN
from txrdma.iba.verbs import (
    AddressVector,
    Buffer,
    Completion,
    CompletionOpcode,
    Operation,
    ReceiveRequest,
    Segment,
    SendRequest,
    Status,
)
from txrdma.soft.core.pieces import gathered, joined, scatter
from txrdma.soft.rc._packets import (
    BTH_LENGTH,
    Event,
    Failed,
    FRAME,
    heading,
    ICRC_LENGTH,
    Incoming,
    Outgoing,
    PSN_MASK,
    Received,
    Retired,
    WORD,
)
from txrdma.soft.shared.datagramlane import DatagramLane

if TYPE_CHECKING:
    from txrdma.soft.core.directdatagrams import DirectDatagrams
    from txrdma.soft.core.memory import Domain, KeyTable

GRH_LENGTH: Final = 40

_RECEIVE: Final = CompletionOpcode.RECEIVE
_SUCCESS: Final = Status.SUCCESS
_SEND_ONLY: Final = int(Opcode.UD_SEND_ONLY)
_SEND_ONLY_WITH_IMMEDIATE: Final = int(Opcode.UD_SEND_ONLY_WITH_IMMEDIATE)

START: Final = Struct(">QIII")
"""BTH and DETH: the eight bytes that are equal in all packets, then PSN, Q_Key and source queue pair."""

_AROUND: Final = START.size + ICRC_LENGTH
_ONLY: Final = _SEND_ONLY << 56
_PLAIN: Final = Operation.SEND

_DETH: Final = Struct(">II")

_CONTROLLED: Final = 0x80000000
"""A Q_Key with this bit in a request selects the Q_Key of the queue pair (IBA 10.2.5)."""


class Datagram(NamedTuple):
    """A datagram to send, and its destination."""

    address: AddressVector
    destination: QPN
    packet: Outgoing


class _Posted(NamedTuple):
    """
    The parts of a posted request that are needed while it waits to be sent.

    @ivar head: the first inline bytes; C{body}: the others, None if the bytes are those of C{segments}.
    """

    identifier: int
    address: AddressVector
    destination: QPN
    qkey: int
    signaled: bool
    solicited: bool
    immediate: int | None
    head: bytes
    body: Buffer | None
    segments: Sequence[Segment]


def _retained(inline: Sequence[Buffer]) -> tuple[bytes, Buffer | None]:
    """
    Return the head and the body of inline bytes, which the poster cannot change any more.

    A body of C{bytes} is not copied, which saves a tenth of the sender's time in C{btl-bulk-striped}.
    """
    if len(inline) == 2:
        head, body = inline
        if type(body) is bytes or (
            type(body) is memoryview and type(body.obj) is bytes and body.format == "B" and body.ndim == 1
        ):
            return bytes(head), body
    return b"", joined(inline) if inline else None


class Datagrams:
    """A UD queue pair; C{dropped} counts datagrams without a suitable receive or the right Q_Key."""

    def __init__(
        self,
        number: QPN,
        keys: KeyTable,
        domain: Domain,
        receives: deque[ReceiveRequest],
        *,
        mtu: int,
        psn: int,
        qkey: int,
    ) -> None:
        self._number = number
        self._keys = keys
        self._domain = domain
        self._receives = receives
        self._mtu, self._longest = mtu, GRH_LENGTH + mtu
        self._begin = self._psn = psn
        self.qkey = qkey
        self._posted: deque[_Posted] = deque()
        self._events: list[Event] = []
        self._stopped = False
        # The destination of the last C{put}, and the part of the BTH that all its packets have in common.
        self._lastDestination, self._lastHead = -1, 0
        self.dropped = 0

    def retune(self, qkey: int, psn: int | None) -> None:
        """Change the Q_Key, and the PSN of the next datagram."""
        self.qkey = qkey
        if psn is not None and psn != self._begin:
            self._begin = self._psn = psn

    # Interface of the core.

    def post(self, requests: Sequence[SendRequest], now: float) -> None:
        """Queue datagrams, each of which has an address."""
        posted: list[_Posted] = []
        for request in requests:
            assert request.address is not None
            posted.append(
                _Posted(
                    request.identifier,
                    request.address.address,
                    QPN(request.remoteQPN & 0xFFFFFF),
                    self.qkey if request.remoteQKey & _CONTROLLED else request.remoteQKey & 0xFFFFFFFF,
                    request.signaled,
                    bool(request.solicited),
                    request.immediate if request.operation is Operation.SEND_WITH_IMMEDIATE else None,
                    *_retained(request.inline),
                    tuple(request.segments),
                )
            )
        self._posted += posted  # all are valid: the list is refused as a whole

    def write(
        self, requests: Sequence[SendRequest], laneTo: Callable[[AddressVector, int], DatagramLane | None]
    ) -> tuple[int, int]:
        """
        Write the first requests that are plain and have a lane; return their number and bytes (hot loop).
        """
        if self._posted or self._stopped:
            return 0, 0
        latest: AddressVector | None = None
        lane: DatagramLane | None = None
        domain, local, mtu, number = self._domain, self._keys.local, self._mtu, self._number
        done = size = head = 0
        destination = -1
        psn = self._psn
        try:
            for request in requests:
                assert request.address is not None
                address = request.address.address
                if address is not latest or request.remoteQPN != destination:  # a batch often has only one
                    if lane is not None:
                        lane.announce()
                    latest, destination = address, request.remoteQPN
                    lane, head = laneTo(address, destination), _ONLY | heading(destination)
                inline, segments = request.inline, request.segments
                # From the first request that does not qualify on, the caller posts them all, which keeps
                # their order.
                if lane is None or request.operation is not _PLAIN:
                    break
                if inline:
                    pieces: Sequence[Buffer] = inline
                    length = sum(map(len, inline))
                elif len(segments) == 1:
                    payload = local(domain, segments[0], False)
                    pieces, length = (payload,), len(payload)
                else:
                    break
                if length > mtu:
                    break
                qkey = request.remoteQKey
                qkey = self.qkey if qkey & _CONTROLLED else qkey & 0xFFFFFFFF
                pad = -length & 3
                # The solicited bit and the pad count of the BTH (IBA 9.2). Pad and ICRC take space, but are
                # not written.
                start = START.pack(head | bool(request.solicited) << 55 | pad << 52, psn, qkey, number)
                lane.put((start, *pieces), _AROUND + length + pad)
                psn = psn + 1 & PSN_MASK
                size += _AROUND + length + pad
                done += 1
                if request.signaled:
                    self._events.append(
                        Completion(request.identifier, Status.SUCCESS, CompletionOpcode.SEND, number, length)
                    )
        except (ProtectionError, TypeError, ValueError):
            pass  # a wrong key, inline data that are not plain bytes, or a field of a wrong type
        self._psn = psn
        if lane is not None:
            lane.announce()
        return done, size

    def put(self, lane: DatagramLane, destination: int, qkey: int, head: Buffer, body: Buffer) -> int:
        """Write a datagram immediately; return the size of its packet, or 0 if it has to be posted."""
        length = len(head) + len(body)
        if self._posted or self._stopped or length > self._mtu:
            return 0
        pad = -length & 3
        size = _AROUND + length + pad
        psn = self._psn
        self._psn = psn + 1 & PSN_MASK
        key = self.qkey if qkey & _CONTROLLED else qkey & 0xFFFFFFFF
        if destination != self._lastDestination:
            self._lastDestination, self._lastHead = destination, _ONLY | heading(destination)
        start = START.pack(self._lastHead | pad << 52, psn, key, self._number)
        lane.put((start, head, body), size)
        lane.announce()
        return size

    def hold(
        self,
        inbox: DirectDatagrams,
        payload: Buffer,
        qkey: int,
        number: int,
        source: bytes,
        isSolicited: bool,
        codepoint: int = 0,
    ) -> None:
        """Queue a datagram in an inbox; drop it if its Q_Key is wrong, or the inbox is full."""
        received = inbox.received
        if qkey != self.qkey or self._stopped or len(payload) > self._mtu or len(received) >= inbox.most:
            self.dropped += 1
            return
        received.append(((source, number & 0xFFFFFF), memoryview(bytes(payload)), codepoint))
        if not inbox.isTaking:
            inbox.ring(isSolicited)

    def receivedInto(self, inbox: DirectDatagrams, run: Incoming, source: bytes, codepoint: int) -> bool:
        """Queue received datagrams in an inbox; False if they have immediate data, and need receives."""
        if run.opcode != _SEND_ONLY:
            return False
        data, stride = run.data, run.stride
        length = stride - FRAME - _DETH.size - run.pad
        for begin in range(BTH_LENGTH, run.packets * stride, stride):
            if length < 0:
                self.dropped += 1
                continue
            qkey, number = _DETH.unpack_from(data, begin)
            start = begin + _DETH.size
            self.hold(inbox, data[start : start + length], qkey, number, source, run.solicited, codepoint)
        return True

    def received(self, run: Incoming, header: bytes, now: float) -> None:
        """Process received datagrams; C{header} are the 40 bytes of the GRH."""
        if self._stopped or run.opcode not in (_SEND_ONLY, _SEND_ONLY_WITH_IMMEDIATE):
            self.dropped += run.packets
            return
        for number in range(run.packets):
            if self._stopped or not self._take(run, number * run.stride + BTH_LENGTH, header):
                self.dropped += 1

    def outgoing(self, now: float) -> list[Datagram]:
        """Take the packets to send; emit them before the next call of this core."""
        datagrams: list[Datagram] = []
        if not self._posted:
            return datagrams
        waiting, events, mtu, number = self._posted, self._events, self._mtu, self._number
        taken = 0
        try:
            while waiting and not self._stopped:
                posted = waiting.popleft()
                taken += 1
                try:
                    payload = self._payload(posted)
                except ProtectionError:
                    self._failed(posted, Status.LOC_PROT_ERR)
                    break
                length = len(posted.head) + len(payload)
                if length > mtu:
                    self._failed(posted, Status.LOC_LEN_ERR)
                    break
                extension = _DETH.pack(posted.qkey, number)
                opcode = _SEND_ONLY
                if posted.immediate is not None:
                    extension += WORD.pack(posted.immediate & 0xFFFFFFFF)
                    opcode = _SEND_ONLY_WITH_IMMEDIATE
                if posted.head:
                    extension += posted.head
                packet = Outgoing(opcode, self._psn, 1, extension, payload, mtu, False, posted.solicited)
                datagrams.append(Datagram(posted.address, posted.destination, packet))
                self._psn = self._psn + 1 & PSN_MASK
                if posted.signaled:
                    events.append(self._completion(posted, Status.SUCCESS, length))
        except Exception:
            waiting.appendleft(posted)  # to be flushed
            raise
        if taken:
            events.append(Retired(taken))
        return datagrams

    def events(self) -> list[Event]:
        events = self._events
        if events:
            self._events = []
        return events

    def flush(self) -> list[tuple[int, CompletionOpcode]]:
        """Stop, and return uncompleted requests, oldest first."""
        self._stopped = True
        left = [(posted.identifier, CompletionOpcode.SEND) for posted in self._posted]
        self._posted.clear()
        return left

    # Internals.

    def _payload(self, posted: _Posted) -> Buffer:
        if posted.body is not None:
            return posted.body
        segments = posted.segments
        if len(segments) == 1:  # common case
            return self._keys.local(self._domain, segments[0], False)
        pieces = [self._keys.local(self._domain, segment, False) for segment in segments]
        return gathered(pieces, 0, sum(map(len, pieces))) if pieces else b""

    def _completion(self, posted: _Posted, status: Status, length: int = 0) -> Completion:
        return Completion(posted.identifier, status, CompletionOpcode.SEND, self._number, length)

    def _failed(self, posted: _Posted, status: Status) -> None:
        """Complete a failed datagram, and flush later ones (IBA 10.3.1.6)."""
        events: list[Event] = [self._completion(posted, status)]
        for other in self._posted:
            events += (self._completion(other, Status.WR_FLUSH_ERR), Retired(1))
        self._events += events
        self._posted.clear()

    def _take(self, run: Incoming, start: int, header: bytes) -> bool:
        """Fill a receive with the datagram whose DETH begins at C{start} (IBA 9.8.3.1)."""
        withImmediate = run.opcode == _SEND_ONLY_WITH_IMMEDIATE
        extension = _DETH.size + (WORD.size if withImmediate else 0)
        length = run.stride - FRAME - extension - run.pad
        if not 0 <= length <= self._mtu or not self._receives:
            return False
        qkey, source = _DETH.unpack_from(run.data, start)
        immediate: int | None = None
        if withImmediate:
            (immediate,) = WORD.unpack_from(run.data, start + _DETH.size)
        start += extension
        completion = self._fill(run.data[start : start + length], qkey, source, immediate, header)
        if completion is None:
            return False
        self._events.append(Received(completion, run.solicited))
        if completion.status is Status.SUCCESS:
            return True
        self._stopped = True
        self._events.append(Failed(None))
        return False

    def take(self, payload: memoryview, qkey: int, source: int, header: bytes) -> Completion | None:
        """
        Fill a receive with a datagram without immediate and its GRH; return the completion, if any. One with
        an error ends the queue pair.
        """
        receives, end = self._receives, GRH_LENGTH + len(payload)
        if receives and qkey == self.qkey and end <= self._longest and not self._stopped:
            receive = receives[0]
            segments = receive.segments
            if len(segments) == 1 and self._keys.fill(self._domain, segments[0], header, payload, end):
                receives.popleft()
                return Completion(
                    receive.identifier,
                    _SUCCESS,
                    _RECEIVE,
                    self._number,
                    end,
                    None,
                    source & 0xFFFFFF,  # type: ignore[arg-type]  # a QPN, which is not called for each packet
                    True,
                )
        completion = None if self._stopped else self._fill(payload, qkey, source, None, header)
        if completion is None or completion.status is not Status.SUCCESS:
            self.dropped += 1
            self._stopped = self._stopped or completion is not None
        return completion

    def _fill(
        self, payload: memoryview, qkey: int, source: int, immediate: int | None, header: bytes
    ) -> Completion | None:
        """Fill a receive (IBA 9.8.3.1); None if no receive fits."""
        length = len(payload)
        if qkey != self.qkey or length > self._mtu or not self._receives:
            return None
        receive = self._receives[0]
        segments = receive.segments
        try:
            if len(segments) == 1:  # common case
                pieces = [self._keys.local(self._domain, segments[0], True)]
                payloadLength = len(pieces[0])
            else:
                pieces = [self._keys.local(self._domain, segment, True) for segment in segments]
                payloadLength = sum(map(len, pieces))
        except ProtectionError:
            self._receives.popleft()
            return Completion(receive.identifier, Status.LOC_PROT_ERR, _RECEIVE, self._number)
        if GRH_LENGTH + length > payloadLength:
            return None  # the receive waits for one that fits (IBA 9.9.3, class D)
        self._receives.popleft()
        if len(pieces) == 1:
            pieces[0][:GRH_LENGTH] = header
            pieces[0][GRH_LENGTH : GRH_LENGTH + length] = payload
        else:
            scatter(pieces, 0, header)
            scatter(pieces, GRH_LENGTH, payload)
        return Completion(
            receive.identifier,
            Status.SUCCESS,
            _RECEIVE,
            self._number,
            GRH_LENGTH + length,
            immediate,
            QPN(source & 0xFFFFFF),
            True,
        )
