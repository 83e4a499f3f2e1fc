"""
Shared by tests of the RoCE cores: packets as received by a port, and memory with keys.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from txrdma.iba.headers import AETH, AtomicETH, BTH, NAKCode, Opcode, RETH
from txrdma.iba.types import QPN, RKey
from txrdma.iba.verbs import Access, Completion, ReceiveRequest, Segment
from txrdma.soft.core.memory import Domain, KeyTable, Region
from txrdma.soft.rc._packets import ACKNOWLEDGE, Event, Incoming, Outgoing, PSN_MASK
from txrdma.soft.rc._requester import Requester
from txrdma.soft.rc._responder import Responder

EVERYTHING = Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ | Access.REMOTE_ATOMIC


def incoming(
    opcode: int,
    psn: int,
    payload: bytes = b"",
    extension: bytes = b"",
    *,
    acknowledge: bool = False,
    solicited: bool = False,
    packets: int = 1,
) -> Incoming:
    """
    Return a run of packets as received from datagrams with a valid ICRC.

    @param payload: of all packets, in equal parts.
    """
    size = len(payload) // packets
    pad = -size % 4
    parts = []
    for number in range(packets):
        asks = acknowledge and number == packets - 1
        bth = BTH(
            opcode=Opcode(opcode),
            solicited=solicited,
            pad=pad,
            destination=QPN(7),
            acknowledge=asks,
            psn=psn + number & PSN_MASK,
        )
        part = payload[number * size : (number + 1) * size]
        parts.append(bth.encode() + extension + part + bytes(pad + 4))
    return Incoming(int(opcode), solicited, pad, memoryview(b"".join(parts)), len(parts[0]), packets)


def arrived(run: Outgoing) -> Incoming:
    """Convert what one core has sent to what another one receives."""
    size = run.size if run.packets > 1 else max(len(run.payload), 1)
    parts = []
    for number in range(run.packets):
        part = bytes(run.payload[number * size : (number + 1) * size])
        pad = -len(part) % 4
        last = number == run.packets - 1
        word = run.psn + number & PSN_MASK | (ACKNOWLEDGE if run.acknowledge and last else 0)
        parts.append(
            bytes((run.opcode, run.solicited << 7 | pad << 4, 0xFF, 0xFF, 0, 0, 0, 7))
            + word.to_bytes(4, "big")
            + run.extension
            + part
            + bytes(pad + 4)
        )
    return Incoming(run.opcode, run.solicited, pad, memoryview(b"".join(parts)), len(parts[0]), run.packets)


def ack(psn: int, msn: int = 0) -> Incoming:
    """Return an acknowledgement of everything up to this PSN."""
    return incoming(Opcode.RC_ACKNOWLEDGE, psn, extension=AETH.ack(msn).encode())


def nak(psn: int, code: NAKCode) -> Incoming:
    return incoming(Opcode.RC_ACKNOWLEDGE, psn, extension=AETH.nak(0, code).encode())


def rnr(psn: int, timer: int = 1) -> Incoming:
    return incoming(Opcode.RC_ACKNOWLEDGE, psn, extension=AETH.rnrNAK(0, timer).encode())


def reth(address: int, rkey: int, length: int) -> bytes:
    """Return the header of RDMA requests."""
    return RETH(address=address, rkey=RKey(rkey), length=length).encode()


def atomicETH(address: int, rkey: int, operand: int, compare: int) -> bytes:
    """Return the header of atomic requests."""
    return AtomicETH(address=address, rkey=RKey(rkey), swap=operand, compare=compare).encode()


def completions(events: Sequence[Event]) -> list[Completion]:
    """Return the completions of the send queue."""
    return [event for event in events if isinstance(event, Completion)]


def requester(memory: Memory, **changes: Any) -> Requester:  # arguments of different types
    """Return a requester of an RC queue pair with timeout code 14 and seven retries."""
    usual = {"mtu": 256, "timeout": 14, "retryCount": 7, "rnrRetry": 7, "maxRDAtomic": 4}
    return Requester(QPN(7), memory.keys, memory.domain, **{**usual, **changes})


def responder(memory: Memory, receives: deque[ReceiveRequest], **changes: Any) -> Responder:
    """Return a responder of an RC queue pair that allows two outstanding READs or atomics."""
    usual = {"mtu": 256, "maxDestRDAtomic": 2, "minRNRTimer": 12}
    return Responder(QPN(7), memory.keys, memory.domain, receives, **{**usual, **changes})


class Memory:
    """A key table with one region, which has guards around it."""

    def __init__(self, length: int = 65536, access: Access = EVERYTHING) -> None:
        self.keys = KeyTable()
        self.domain = Domain()
        self.bytes = bytearray(b"\xee" * (length + 128))
        self.region: Region = self.keys.register(
            self.domain, memoryview(self.bytes)[64 : 64 + length], access
        )

    def segment(self, offset: int, length: int) -> Segment:
        """Return a segment of the region."""
        return self.region.segment(offset, length)

    def put(self, offset: int, data: bytes) -> None:
        """Write as the application does."""
        self.region.view[offset : offset + len(data)] = data

    def get(self, offset: int, length: int) -> bytes:
        """Read as the application does."""
        return bytes(self.region.view[offset : offset + length])
