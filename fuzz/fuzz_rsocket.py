"""
Fuzz targets of rsockets.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Final

import harness

from txrdma.cm.rsocket._core import decodePeerData, RSocket, Sizes
from txrdma.cm.rsocket._mapping import MappedRange
from txrdma.cm.rsocket._requests import SendMemory
from txrdma.cm.rsocket.messages import (
    ConnectionData,
    Control,
    immediate,
    ImmediateKind,
    LittleMapped,
    LittleTarget,
    Mapped,
    MAPPED_BYTES,
    MAPPINGS,
    meaning,
    Target,
    TARGET_BYTES,
)
from txrdma.error import PeerViolation, RDMAError, WireError
from txrdma.iba.types import LKey, RKey
from txrdma.iba.verbs import Operation, SendRequest

_SIZES: Final = Sizes(receives=16, sends=16, receiveBuffer=4096, sendBuffer=2048, mappings=4)
_ADDRESS: Final = 0x7F00_0000_1000  # of this end's memory for the peer
_LOCAL: Final = 0x7F00_2000_0000
_KEY: Final = RKey(0x1234)
_CONNECTION_BYTES: Final = 40
_STEP_BYTES: Final = 32
_PATHS: Final = 3  # the first byte: registered memory, inline, or shared memory, which is inline as well
_TARGETS: Final = 2 * TARGET_BYTES  # of a table, before its entries for mapped memory
_IS_LITTLE: Final = sys.byteorder == "little"
_target: Final = LittleTarget if _IS_LITTLE else Target
_mapped: Final = LittleMapped if _IS_LITTLE else Mapped


class _Victim:
    """
    An end whose peer sends any message and writes anything into the table.

    @ivar announced: memory that the peer has announced for the stream, as addresses and lengths.
    @ivar mapped: memory that the peer has mapped, likewise.
    """

    def __init__(self, path: int, peer: ConnectionData) -> None:
        self._remote = bytearray(_SIZES.remote)
        self._sent = memoryview(bytearray(_SIZES.local))
        memory = None if path % _PATHS else SendMemory(self._sent, _LOCAL, LKey(0x77))
        self._core = RSocket(_SIZES, memoryview(self._remote), memory)
        self._core.begin(self._core.greeting(_ADDRESS, _KEY), peer, path % _PATHS == 2)
        self._peer = peer
        self._outstanding: list[int] = []
        self._own: list[int] = []
        self.announced = {(peer.bufferAddress, peer.bufferLength)}
        self.mapped: set[tuple[int, int]] = set()

    def step(self, raw: bytes) -> None:
        """Perform one step, post what can be posted, and check all that is bounded."""
        kind, argument, content = raw[0] % 8, raw[1], raw[2:]
        core = self._core
        if kind == 0:
            self._remote[: _SIZES.table] = self._written(argument, content)
        elif kind in (1, 2):
            self._arrived(int.from_bytes(content[:4], "big"), int.from_bytes(content[4:8], "big"))
        elif kind == 3:
            core.write(bytes(argument * 32))
        elif kind == 4:
            data = core.read()
            assert len(data) <= _SIZES.receiveBuffer
        elif kind == 5:
            done = self._outstanding[:argument]
            del self._outstanding[: len(done)]
            if done:
                core.completed(done[-1])
        elif kind == 6:
            self._mapMemory(argument, content)
        else:
            (core.closeWriting, core.close, core.probe, core.drop)[argument % 4]()
        for request in core.outgoing():
            self._check(request)
        assert len(self._outstanding) <= _SIZES.sends, "more requests than the send queue has entries"
        assert 0 <= core.unread <= _SIZES.receiveBuffer
        assert len(core.mappings.peerRanges) <= _SIZES.mappings
        core.events.clear()

    def _written(self, at: int, content: bytes) -> bytes:
        """Return the table after the peer has written into it."""
        table = self._remote[: _SIZES.table]
        begin = at % len(table)
        table[begin : begin + len(content)] = content[: len(table) - begin]
        return bytes(table)

    def _arrived(self, number: int, length: int) -> None:
        """Take a message: C{length} bytes were written, whatever the immediate data say."""
        table = self._remote[: _SIZES.table]
        operation, value = meaning(number)
        if operation == ImmediateKind.CREDITS:
            for begin in range(0, _TARGETS, TARGET_BYTES):
                target = _target.decode(table[begin : begin + TARGET_BYTES])
                self.announced.add((target.address, target.length))
        elif operation == ImmediateKind.MAPPING and value < _SIZES.mappings:
            begin = _TARGETS + value * MAPPED_BYTES
            entry = _mapped.decode(table[begin : begin + MAPPED_BYTES])
            self.mapped.add((entry.address, entry.length))
        self._core.arrived(number, length)

    def _mapMemory(self, argument: int, content: bytes) -> None:
        """Map memory for the peer, close some, or write to that of the peer."""
        core = self._core
        if argument % 4 == 0:
            core.mappings.check(argument, content[0])
            self._own.append(core.mappings.map(MappedRange(argument, content[0], _ADDRESS, _KEY)))
        elif argument % 4 == 1 and self._own:
            core.unmap(self._own.pop(0))
        elif core.mappings.peerRanges:
            place = core.mappings.peerRanges[argument % len(core.mappings.peerRanges)]
            number = core.mappings.write(place.offset, bytes(min(place.length, 3000)))
            if number is not None and argument % 4 == 3:
                core.mappings.cancel(number)

    def _check(self, request: SendRequest) -> None:
        """Raise an exception if a request would harm this end or the peer."""
        self._outstanding.append(request.identifier)
        length = sum(map(len, request.inline))
        for address, count, _ in request.segments:
            assert _LOCAL <= address and address + count <= _LOCAL + len(self._sent)
            length += count
        end = request.remoteAddress + length
        assert 0 <= request.remoteAddress < 1 << 64, "no 64-bit address"
        if request.operation is Operation.RDMA_WRITE:
            ranges = self.mapped
        else:
            operation, value = meaning(request.immediate)
            if operation == ImmediateKind.DATA:
                assert 0 < value == length
                ranges = self.announced
            else:
                assert operation in (ImmediateKind.CREDITS, ImmediateKind.MAPPING, ImmediateKind.CONTROL)
                ranges = {(self._peer.tableAddress, _tableBytes(self._peer))}
        if length:
            assert any(begin <= request.remoteAddress and end <= begin + room for begin, room in ranges), (
                f"{length} bytes at {request.remoteAddress:#x} are in no memory that the peer has announced"
            )


def _tableBytes(peer: ConnectionData) -> int:
    return peer.tableLength * TARGET_BYTES + peer.room * MAPPED_BYTES


def _receiveMessages(raw: bytes) -> None:
    """An end posts no request outside the announced memory, and keeps its limits, whatever its peer does."""
    try:
        victim = _Victim(raw[0] if raw else 0, decodePeerData(raw[1 : 1 + _CONNECTION_BYTES]))
        for at in range(1 + _CONNECTION_BYTES, len(raw), _STEP_BYTES):
            victim.step(raw[at : at + _STEP_BYTES].ljust(_STEP_BYTES, b"\0"))
    except (WireError, PeerViolation, RDMAError):
        pass  # the connection ends


def _step(kind: int, argument: int = 0, content: bytes = b"") -> bytes:
    return (bytes((kind, argument)) + content).ljust(_STEP_BYTES, b"\0")


def _message(kind: ImmediateKind, value: int, length: int = 0) -> bytes:
    return _step(1, 0, immediate(kind, value).to_bytes(4, "big") + length.to_bytes(4, "big"))


def _connections() -> Iterator[bytes]:
    # What librdmacm sends on a little-endian host, as its documentation has it.
    yield bytes.fromhex(
        "01020180 00000008 00007f0011223344 aabbccdd 00000002 00007f0055667788 aabbccde 00010000"
    )
    yield ConnectionData(version=1, flags=MAPPINGS, credits=16, mappings=4, tableLength=2).encode()


def _conversations() -> Iterator[bytes]:
    """Return what honest peers send: of each kind of message some, then the close of either end."""
    connection = next(_connections())
    entry = _mapped(offset=100, address=1 << 32, rkey=_KEY, length=200).encode()
    steps = (
        _step(3, 200),
        _step(5, 8),
        _step(0, 16, _target(address=0x7F00_5566_9788, rkey=_KEY, length=0x10000).encode()),
        _message(ImmediateKind.CREDITS, 400, TARGET_BYTES),
        *(_message(ImmediateKind.DATA, 1024, 1024), _step(4)) * 4,
        _message(ImmediateKind.CREDITS, 401),
        _step(0, _TARGETS, entry),
        _message(ImmediateKind.MAPPING, 0, MAPPED_BYTES),
        *(_step(6, argument, b"\x10") for argument in (4, 2, 3, 1)),
        _step(5, 8),
        _message(ImmediateKind.CONTROL, Control.KEEPALIVE),
        _message(ImmediateKind.CONTROL, Control.SHUTDOWN),
        _step(3, 8),
        _step(7, 0),
        _message(ImmediateKind.CONTROL, Control.DISCONNECT),
    )
    for path in range(_PATHS):
        yield bytes((path,)) + connection + b"".join(steps)
    top = ConnectionData(version=1, credits=16, tableLength=2, bufferLength=9999)
    yield b"\1" + top.replace(bufferAddress=(1 << 64) - 96).encode() + _step(3, 2) * 3
    table = top.replace(tableAddress=(1 << 64) - _tableBytes(top))
    offer = _message(ImmediateKind.DATA, 1, 1) + _step(4)
    yield from (
        b"\1" + table.replace(tableAddress=table.tableAddress + more).encode() + offer for more in (0, 1)
    )


TARGETS = {
    "rsocket connection": harness.decoder(decodePeerData, _connections),
    "rsocket messages": harness.Target(_receiveMessages, _conversations),
}
