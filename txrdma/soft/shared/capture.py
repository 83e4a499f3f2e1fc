"""
Shared memory as Wireshark shows it: the packets that RoCE v2 would have carried in its stead.

Follows InfiniBand Architecture vol. 1, 9.2 (headers), 9.4 and 9.7 (operations, sequence numbers, answers).
Only lanes of devices that record anything have such an observer; their peers tell them of what they do to
their memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from txrdma.error import ProtectionError
from txrdma.iba.headers import AETH, AtomicAckETH, AtomicETH, BTH, ImmDt, NAKCode, Opcode, RETH
from txrdma.iba.pcap import RoCECapture
from txrdma.iba.roce import RoCEPacket
from txrdma.iba.types import DEFAULT_PKEY, MACAddress, MTU, QPN, RKey
from txrdma.iba.verbs import Operation, SendRequest, Status
from txrdma.kit.wire import Layout
from txrdma.soft._route import Owner
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

Place = tuple[str, int, MACAddress]
"""IP address, UDP port and MAC address of a device."""

_PSN: Final = 0xFFFFFF
_KEY: Final = 0xFFFFFFFF
_ADDRESS: Final = (1 << 64) - 1


def _run(kind: str, told: str = "") -> tuple[Opcode, ...]:
    """The opcodes of the only packet of a message, and of the first, middle and last of several."""
    return tuple(Opcode[f"RC_{kind}_{part}"] for part in ("ONLY" + told, "FIRST", "MIDDLE", "LAST" + told))


_RESPONSE: Final = _run("RDMA_READ_RESPONSE")
_OPCODES: Final = {
    Operation.SEND: _run("SEND"),
    Operation.SEND_WITH_IMMEDIATE: _run("SEND", "_WITH_IMMEDIATE"),
    Operation.RDMA_WRITE: _run("RDMA_WRITE"),
    Operation.RDMA_WRITE_WITH_IMMEDIATE: _run("RDMA_WRITE", "_WITH_IMMEDIATE"),
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


class LaneRecorder:
    """
    Records the traffic of one lane, which shows its recorder all that passes, both ways.

    @ivar wantsNotes: whether the peer is to tell of each access to our memory.
    """

    def __init__(
        self,
        owner: Owner,
        surroundings: Surroundings,
        ring: int,
        capture: RoCECapture,
        ends: tuple[Place, Place],
        now: Callable[[], float],
    ) -> None:
        """
        @param ring: bytes of the peer's ring.
        @param ends: our device and the peer's. Where they are one and the same, each lane records what it
            asks for, and nothing else.
        """
        self.wantsNotes = ends[0] != ends[1]
        self._owner = owner
        self._surroundings = surroundings
        self._mostNotes = ring // 32  # there can't be more at once, unless they come very quickly
        self._capture = capture
        self._ends = ends
        self._now = now
        self._ours: Direction | None = None
        self._theirs: Direction | None = None
        self._positions: deque[int] = deque()  # of our requests that are not answered
        self._parts: list[bytes] = []
        self._answered = 0  # atomics of ours
        self._arrived = 0
        self._notes = 0

    def _asking(self) -> Direction:
        if self._ours is None:
            self._ours = self._direction(True)
        return self._ours

    def _answering(self) -> Direction:
        if self._theirs is None:
            self._theirs = self._direction(False)
        return self._theirs

    def _direction(self, isOurs: bool) -> Direction:
        attributes, number = self._owner.attributes, self._owner.number
        peer = attributes.destinationQPN or QPN(0)
        here, there = self._ends

        def write(isRequest: bool, packet: bytes) -> None:
            ends = (here, there) if isRequest is isOurs else (there, here)
            self._capture.packet(*ends, packet, self._now())

        mtu = attributes.pathMTU or MTU.MTU_1024
        if isOurs:
            return Direction(number, peer, attributes.sqPSN or 0, mtu, write)
        return Direction(peer, number, attributes.rqPSN or 0, mtu, write)

    # What we ask for.

    def asked(self, request: SendRequest, data: bytes, isRefused: bool, position: int) -> None:
        """Record a request of ours, which is carried out, or would be refused by the peer."""
        message = Message(
            request.operation,
            data,
            request.remoteAddress,
            request.rkey,
            request.immediate,
            request.solicited,
            (request.operand, request.compare),
        )
        if self._asking().request(message, not isRefused):
            self._positions.append(position)

    def answered(self, position: int, words: memoryview) -> None:
        """The peer has consumed up to there; C{words} of its box have the results of atomics."""
        count = 0
        while self._positions and self._positions[0] <= position:
            self._positions.popleft()
            count += 1
        self._asking().acknowledge(count, self._results(words))

    def _results(self, words: memoryview) -> Iterator[int]:
        """The results of our atomics, in the order of their answers."""
        while True:
            self._answered += 1
            yield words[RESULTS + (self._answered - 1) % RESULT_COUNT]

    def refused(self, status: Status) -> None:
        """The peer has refused our oldest request."""
        self._asking().refuse(_NAKS[status])

    # What the peer asks for.

    def came(self, control: int, immediate: int, data: memoryview) -> None:
        """A record is looked at."""
        if not self.wantsNotes:
            return
        kind = control & KIND
        solicited = bool(control & SOLICITED)
        if kind == Kind.ATOMIC:
            if len(data) == ASKED_BYTES and immediate in _ATOMIC:
                address, rkey, *numbers = (
                    int.from_bytes(data[at : at + 8], "little") for at in range(0, ASKED_BYTES, 8)
                )
                what = Operation(immediate), b"", address, RKey(rkey & _KEY)
                self._answering().request(Message(*what, numbers=(numbers[0], numbers[1])))
                self._acknowledge()
        elif kind == Kind.WRITE_WITH_IMMEDIATE:
            if len(data) == TOLD_BYTES:
                self._sawAccess(Operation.RDMA_WRITE_WITH_IMMEDIATE, data, immediate, solicited)
        else:
            if not control & CONTINUED:
                self._parts.clear()
            self._parts.append(bytes(data))
            if not control & MORE:
                operation = Operation.SEND if kind == Kind.SEND else Operation.SEND_WITH_IMMEDIATE
                content = b"".join(self._parts)
                self._answering().request(Message(operation, content, 0, RKey(0), immediate, solicited))

    def took(self, control: int, result: int) -> None:
        """The record that came is consumed; C{result} is that of the latest atomic."""
        if not self.wantsNotes:
            return
        if control & KIND == Kind.ATOMIC:
            self._answering().acknowledge(1, iter((result,)))
        elif not control & MORE:
            self._arrived += 1

    def isNote(self, operation: int, told: memoryview) -> bool:
        """Whether this is a note of an access to our memory, as the peer was asked for."""
        return operation in (Operation.RDMA_WRITE, Operation.RDMA_READ) and len(told) == TOLD_BYTES

    def noted(self, operation: int, told: memoryview) -> bool:
        """The peer has reached our memory. False: look at this record again later."""
        self._notes += 1
        if self._notes > self._mostNotes:
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

    def looked(self) -> None:
        """There is nothing more to look at for now: what was consumed is acknowledged."""
        self._notes = 0
        if self._arrived:
            self._acknowledge()

    def _acknowledge(self) -> None:
        arrived, self._arrived = self._arrived, 0
        self._answering().acknowledge(arrived)

    def refuses(self, status: Status) -> None:
        """We refuse the peer's oldest request."""
        if self.wantsNotes:
            self._acknowledge()
            self._answering().refuse(_NAKS[status])
