"""
Shared memory as Wireshark shows it: the packets that RoCE v2 would have carried in its stead.

Follows InfiniBand Architecture vol. 1, 9.2 (headers), 9.4 and 9.7 (operations, sequence numbers, answers).
Only devices that record anything have these lanes; their peers tell them of what they do to their memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from txrdma.error import ProtectionError
from txrdma.iba.headers import AETH, AtomicAckETH, AtomicETH, BTH, ImmDt, NAKCode, Opcode, RETH
from txrdma.iba.pcap import RoCECapture
from txrdma.iba.roce import RoCEPacket
from txrdma.iba.types import DEFAULT_PKEY, MACAddress, MTU, QPN, RKey
from txrdma.iba.verbs import AsyncEventKind, Operation, SendRequest, Status
from txrdma.soft._route import Owner
from txrdma.soft.shared._lane import Lane
from txrdma.soft.shared._layout import (
    ASKED_BYTES,
    CONTINUED,
    KIND,
    Kind,
    MORE,
    REMOTE_READ,
    REMOTE_WRITE,
    RESULT_COUNT,
    RESULTS,
    SOLICITED,
    Surroundings,
    TOLD_BYTES,
)
from txrdma.wire import Layout

Place = tuple[str, int, MACAddress]
"""IP address, UDP port and MAC address of a device."""

_PSN: Final = 0xFFFFFF
_KEY: Final = 0xFFFFFFFF
_ADDRESS: Final = (1 << 64) - 1

_SEND: Final = (
    Opcode.RC_SEND_ONLY,
    Opcode.RC_SEND_FIRST,
    Opcode.RC_SEND_MIDDLE,
    Opcode.RC_SEND_LAST,
)
_SEND_WITH_IMMEDIATE: Final = (
    Opcode.RC_SEND_ONLY_WITH_IMMEDIATE,
    Opcode.RC_SEND_FIRST,
    Opcode.RC_SEND_MIDDLE,
    Opcode.RC_SEND_LAST_WITH_IMMEDIATE,
)
_WRITE: Final = (
    Opcode.RC_RDMA_WRITE_ONLY,
    Opcode.RC_RDMA_WRITE_FIRST,
    Opcode.RC_RDMA_WRITE_MIDDLE,
    Opcode.RC_RDMA_WRITE_LAST,
)
_WRITE_WITH_IMMEDIATE: Final = (
    Opcode.RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE,
    Opcode.RC_RDMA_WRITE_FIRST,
    Opcode.RC_RDMA_WRITE_MIDDLE,
    Opcode.RC_RDMA_WRITE_LAST_WITH_IMMEDIATE,
)
_RESPONSE: Final = (
    Opcode.RC_RDMA_READ_RESPONSE_ONLY,
    Opcode.RC_RDMA_READ_RESPONSE_FIRST,
    Opcode.RC_RDMA_READ_RESPONSE_MIDDLE,
    Opcode.RC_RDMA_READ_RESPONSE_LAST,
)
_OPCODES: Final = {
    Operation.SEND: _SEND,
    Operation.SEND_WITH_IMMEDIATE: _SEND_WITH_IMMEDIATE,
    Operation.RDMA_WRITE: _WRITE,
    Operation.RDMA_WRITE_WITH_IMMEDIATE: _WRITE_WITH_IMMEDIATE,
}
_ATOMIC: Final = {
    Operation.COMPARE_AND_SWAP: Opcode.RC_COMPARE_SWAP,
    Operation.FETCH_AND_ADD: Opcode.RC_FETCH_ADD,
}
_NO_RESULTS: Final[Iterator[int]] = iter(())
_NAKS: Final = {
    Status.REM_INV_REQ_ERR: NAKCode.INVALID_REQUEST,
    Status.REM_ACCESS_ERR: NAKCode.REMOTE_ACCESS_ERROR,
    Status.REM_OP_ERR: NAKCode.REMOTE_OPERATIONAL_ERROR,
}


class Message(NamedTuple):
    """
    A request of a work queue, by whichever side.

    @ivar data: what is sent or written, or for a read what the answer brings.
    @ivar numbers: what an atomic adds or swaps in, and what it compares with.
    """

    operation: Operation
    data: bytes
    address: int = 0
    rkey: RKey = RKey(0)
    immediate: int = 0
    solicited: bool = False
    numbers: tuple[int, int] = (0, 0)


class Direction:
    """
    The requests of one queue pair, and the answers to them.

    @param psn: the first sequence number.
    @param write: records a packet: whether it is a request, then the packet.
    """

    def __init__(
        self, requester: QPN, responder: QPN, psn: int, mtu: MTU, write: Callable[[bool, bytes], None]
    ) -> None:
        self._requester = requester
        self._responder = responder
        self._psn = psn
        self._size = mtu.bytes
        self._write = write
        self._msn = 0
        self._unanswered: deque[tuple[int, bool]] = deque()  # and whether it is an atomic

    def request(self, message: Message, allowed: bool = True) -> bool:
        """
        Record a request, and when it is a read, its answer.

        @param allowed: a read is answered.
        @return: whether it will be acknowledged, or refused.
        """
        first = self._psn
        data = message.data
        count = 1 if message.operation in _ATOMIC else max(1, -(-len(data) // self._size))
        self._psn += count
        reth = RETH(address=message.address, rkey=message.rkey, length=len(data))
        if message.operation is Operation.RDMA_READ:
            self._packet(True, Opcode.RC_RDMA_READ_REQUEST, first, (reth,), b"", True)
            if allowed:
                self._respond(first, data)
                return False
            self._unanswered.append((first, False))
            return True
        if message.operation in _ATOMIC:
            swap, compare = (number & _ADDRESS for number in message.numbers)
            eth = AtomicETH(address=message.address, rkey=message.rkey, swap=swap, compare=compare)
            self._packet(True, _ATOMIC[message.operation], first, (eth,), b"", True)
            self._unanswered.append((first, True))
            return True
        immediate = ImmDt(immediate=message.immediate)
        for index, opcode, part in self._parts(_OPCODES[message.operation], data):
            extensions: tuple[Layout, ...] = ()
            if "WRITE" in opcode.name and index == 0:
                extensions = (reth,)
            if "IMMEDIATE" in opcode.name:
                extensions += (immediate,)
            last = index == count - 1
            self._packet(True, opcode, first + index, extensions, part, last, last and message.solicited)
        self._unanswered.append((first + count - 1, False))
        return True

    def _respond(self, first: int, data: bytes) -> None:
        """The answer to a read; what was asked for before is acknowledged by it."""
        self._msn += 1
        aeth = AETH.ack(self._msn & _PSN)
        for index, opcode, part in self._parts(_RESPONSE, data):
            middle = opcode is Opcode.RC_RDMA_READ_RESPONSE_MIDDLE
            self._packet(False, opcode, first + index, () if middle else (aeth,), part)

    def acknowledge(self, count: int, results: Iterator[int] = _NO_RESULTS) -> None:
        """
        Record the answers to so many requests more, which have been carried out.

        @param results: of the atomics among them.
        """
        silent: int | None = None
        for _ in range(count):
            psn, isAtomic = self._unanswered.popleft()
            self._msn += 1
            silent = None if isAtomic else psn
            if isAtomic:
                answer = AtomicAckETH(original=next(results))
                self._packet(False, Opcode.RC_ATOMIC_ACKNOWLEDGE, psn, (self._ack, answer), b"")
        if silent is not None:
            self._packet(False, Opcode.RC_ACKNOWLEDGE, silent, (self._ack,), b"")

    @property
    def _ack(self) -> AETH:
        return AETH.ack(self._msn & _PSN)

    def refuse(self, code: NAKCode) -> None:
        """The oldest request is refused."""
        if self._unanswered:
            psn, _ = self._unanswered.popleft()
            aeth = AETH.nak(self._msn & _PSN, code)
            self._packet(False, Opcode.RC_ACKNOWLEDGE, psn, (aeth,), b"")

    def _parts(self, opcodes: tuple[Opcode, ...], data: bytes) -> list[tuple[int, Opcode, bytes]]:
        only, first, middle, last = opcodes
        size = self._size
        if len(data) <= size:
            return [(0, only, data)]
        count = -(-len(data) // size)
        kinds = [first, *[middle] * (count - 2), last]
        return [(index, kind, data[index * size : (index + 1) * size]) for index, kind in enumerate(kinds)]

    def _packet(
        self,
        isRequest: bool,
        opcode: Opcode,
        psn: int,
        extensions: tuple[Layout, ...],
        payload: bytes,
        acknowledge: bool = False,
        solicited: bool = False,
    ) -> None:
        bth = BTH(
            opcode=opcode,
            solicited=solicited,
            migration=True,
            pkey=DEFAULT_PKEY,
            destination=self._responder if isRequest else self._requester,
            acknowledge=acknowledge,
            psn=psn & _PSN,
        )
        self._write(isRequest, RoCEPacket(bth, extensions, payload).encode())


class Recorder:
    """
    Records both directions between two devices.

    @param both: record what the peer asks for, too; not when the peer is this device itself.
    """

    def __init__(
        self, capture: RoCECapture, here: Place, there: Place, both: bool, now: Callable[[], float]
    ) -> None:
        self.both = both
        self._capture = capture
        self._here = here
        self._there = there
        self._now = now

    def ours(self, isRequest: bool, packet: bytes) -> None:
        """A packet of the direction in which we ask."""
        self._record(self._here, self._there, isRequest, packet)

    def theirs(self, isRequest: bool, packet: bytes) -> None:
        """A packet of the direction in which the peer asks."""
        self._record(self._there, self._here, isRequest, packet)

    def _record(self, asking: Place, answering: Place, isRequest: bool, packet: bytes) -> None:
        ends = (asking, answering) if isRequest else (answering, asking)
        self._capture.packet(*ends, packet, self._now())


class RecordedLane(Lane):
    """A lane whose traffic is recorded."""

    __slots__ = (
        "_answered",
        "_arrived",
        "_notesTaken",
        "_ours",
        "_parts",
        "_positions",
        "_recorder",
        "_theirs",
    )

    def __init__(
        self,
        owner: Owner,
        surroundings: Surroundings,
        box: memoryview,
        recorder: Recorder,
        shared: bool = False,
    ) -> None:
        self._recorder = recorder
        self._ours: Direction | None = None
        self._theirs: Direction | None = None
        self._positions: deque[int] = deque()  # of our requests that are not answered
        self._parts: list[bytes] = []
        self._answered = 0  # atomics of ours
        self._arrived = 0
        self._notesTaken = 0
        super().__init__(owner, surroundings, box, shared)
        self._shorts = {}  # every record is looked at closely

    @property
    def direct(self) -> None:
        """None: recorded messages go by requests and receives, one by one."""
        return None

    @property
    def wantsNotes(self) -> bool:
        """Whether the peer tells us of each access to our memory."""
        return self._recorder.both

    # What we ask for.

    def _asking(self) -> Direction:
        if self._ours is None:
            attributes, peer = self._owner.attributes, self._peer
            self._ours = self._direction(self._number, peer, attributes.sqPSN, self._recorder.ours)
        return self._ours

    def _answering(self) -> Direction:
        if self._theirs is None:
            attributes, peer = self._owner.attributes, self._peer
            self._theirs = self._direction(peer, self._number, attributes.rqPSN, self._recorder.theirs)
        return self._theirs

    @property
    def _peer(self) -> QPN:
        return self._owner.attributes.destinationQPN or QPN(0)

    def _direction(
        self, requester: QPN, responder: QPN, psn: int | None, write: Callable[[bool, bytes], None]
    ) -> Direction:
        mtu = self._owner.attributes.pathMTU or MTU.MTU_1024
        return Direction(requester, responder, psn or 0, mtu, write)

    def post(self, requests: Sequence[SendRequest]) -> None:
        """Carry these out, in order."""
        if self._held:
            self._postLater(requests)
        else:
            self._postSlowly(iter(requests), False)

    def _carryOut(self, request: SendRequest) -> bool:
        if not super()._carryOut(request):
            return False
        refused = self._failing and self._outstanding[-1][4] in _NAKS
        if self._failing and not refused:
            return True  # it was never sent
        message = Message(
            request.operation,
            b"".join(self._gather(request)),
            request.remoteAddress,
            request.rkey,
            request.immediate,
            request.solicited,
            (request.operand, request.compare),
        )
        if self._asking().request(message, not refused):
            self._positions.append(self._produced)
        return True

    def _retire(self) -> bool:
        count = 0
        while self._positions and self._positions[0] <= self._acknowledged:
            self._positions.popleft()
            count += 1
        self._asking().acknowledge(count, self._results())
        return super()._retire()

    def _results(self) -> Iterator[int]:
        """The results of our atomics, in the order of their answers."""
        while True:
            self._answered += 1
            yield self._inWords[RESULTS + (self._answered - 1) % RESULT_COUNT]

    def _fail(self, status: Status, event: AsyncEventKind | None) -> None:
        code = _NAKS.get(status)
        if code is not None:
            self._asking().refuse(code)
        super()._fail(status, event)

    # What the peer asks for.

    def poll(self) -> None:
        """Look for what has arrived, and for what the peer has consumed."""
        self._notesTaken = 0
        super().poll()
        if self._arrived:
            arrived, self._arrived = self._arrived, 0
            self._answering().acknowledge(arrived)

    def _receive(self, control: int, immediate: int, data: memoryview) -> bool:
        if self._recorder.both:
            kind = control & KIND
            solicited = bool(control & SOLICITED)
            if kind == Kind.WRITE_WITH_IMMEDIATE and len(data) == TOLD_BYTES:
                self._sawAccess(Operation.RDMA_WRITE_WITH_IMMEDIATE, data, immediate, solicited)
            elif kind in (Kind.SEND, Kind.SEND_WITH_IMMEDIATE):
                if not control & CONTINUED:
                    self._parts.clear()
                self._parts.append(bytes(data))
                if not control & MORE:
                    operation = Operation.SEND if kind == Kind.SEND else Operation.SEND_WITH_IMMEDIATE
                    content = b"".join(self._parts)
                    self._answering().request(Message(operation, content, 0, RKey(0), immediate, solicited))
        if not super()._receive(control, immediate, data):
            return False
        if self._recorder.both and not control & MORE:
            self._arrived += 1
        return True

    def _execute(self, control: int, operation: int, asked: memoryview) -> bool:
        isRecorded = self._recorder.both and len(asked) == ASKED_BYTES and operation in _ATOMIC
        if isRecorded:
            address, rkey, *numbers = (
                int.from_bytes(asked[at : at + 8], "little") for at in range(0, ASKED_BYTES, 8)
            )
            what = Operation(operation), b"", address, RKey(rkey & _KEY)
            self._answering().request(Message(*what, numbers=(numbers[0], numbers[1])))
            self._answering().acknowledge(self._arrived)
            self._arrived = 0
        if not super()._execute(control, operation, asked):
            return False
        if isRecorded:
            result = self._outWords[RESULTS + (self._executed - 1) % RESULT_COUNT]
            self._answering().acknowledge(1, iter((result,)))
        return True

    def _refuse(self, status: Status) -> None:
        if self._recorder.both:
            self._answering().acknowledge(self._arrived)
            self._arrived = 0
            self._answering().refuse(_NAKS[status])
        super()._refuse(status)

    def _noted(self, operation: int, told: memoryview) -> bool:
        if operation not in (Operation.RDMA_WRITE, Operation.RDMA_READ) or len(told) != TOLD_BYTES:
            return super()._noted(operation, told)
        self._notesTaken += 1
        if self._notesTaken > self._ring // 32:  # more than there can be, unless they come very quickly
            self._surroundings.watch()
            return False
        self._sawAccess(Operation(operation), told, 0, False)
        if operation == Operation.RDMA_WRITE:
            self._arrived += 1
        return True

    def _sawAccess(self, operation: Operation, told: memoryview, immediate: int, solicited: bool) -> None:
        """The peer has reached our memory: look there what it did."""
        length, address, rkey = (int.from_bytes(told[at : at + 8], "little") for at in (0, 8, 16))
        need = REMOTE_READ if operation is Operation.RDMA_READ else REMOTE_WRITE
        owner = self._owner
        try:
            data = bytes(owner.keys.remote(owner.domain, rkey, address, length, need))
        except ProtectionError:
            data = b""  # it is gone already
        message = Message(operation, data, address & _ADDRESS, RKey(rkey & _KEY), immediate, solicited)
        self._answering().request(message)

    def _tellFault(self, status: Status) -> None:
        code = _NAKS.get(status)
        if code is not None and self._recorder.both:
            self._answering().acknowledge(self._arrived)
            self._arrived = 0
            self._answering().refuse(code)
        super()._tellFault(status)
