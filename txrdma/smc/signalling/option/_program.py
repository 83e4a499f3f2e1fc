"""
The sock_ops program that puts SMC's TCP option into SYN and SYN-ACK of marked sockets, and sees the peer's.

Follows RFC 7609, 3.1 and appendix A (option 254 with the identifier of RFC 6994), and C{linux/bpf.h} for
C{BPF_PROG_TYPE_SOCK_OPS}. The kernel calls the program for every TCP socket of the cgroup that it is attached
to when that socket connects, listens or is established; and for segments of sockets that asked for it only.

A process marks a socket that it has, by a number of L{WANTED} in the socket's storage. Storage of sockets,
C{BPF_MAP_TYPE_SK_STORAGE}, lives and ends with them, and an accepted socket gets a copy of its listener's.
A SYN-ACK is made for a listener, but the kernel does not show the program which one then, only its port. So
marked listeners are counted by port: SYN-ACKs of other listeners, of which another program may have asked to
be called, stay as they are.
"""

from __future__ import annotations

import sys
from typing import Final

from txrdma.smc.signalling.option._assembler import Assembler, Jump, Register

OPTION: Final = bytes.fromhex("fe06e2d4c3d9")
"""The option: kind 254, 6 bytes, the identifier "SMCR" in EBCDIC."""

WANTED: Final = 1
"""In a socket's storage: who has the socket wants the option. Written by processes, nothing else is."""
SEEN: Final = 2
"""In a socket's storage: the peer's SYN or SYN-ACK had the option."""
NOTICED: Final = 4
"""In a socket's storage: the program was called for the marked socket when it connected or listened."""

STORAGE_BYTES: Final = 4
PORTS: Final = 1 << 16
"""Entries of the array that counts marked listeners, of 8 bytes each, by port."""

COUNTERS: Final = ("synsMarked", "synAcksMarked", "synAcksSeen", "synsSeen")
"""
The counters of the program, 8 bytes each, in this order.

SYNs and SYN-ACKs that were sent with the option, resent ones included; then connections of ours whose peer's
SYN-ACK had it, and accepted ones whose peer's SYN had it.
"""

_FRUITLESS: Final = 2
"""A SYN that is sent again so often goes without the option: the way may swallow those that have it."""

# enum of C{linux/bpf.h}: what a program is called for
_CONNECT, _ACTIVE, _PASSIVE, _STATE, _LISTEN, _LENGTH, _WRITE = 3, 4, 5, 10, 11, 14, 15

# struct bpf_sock_ops: offsets
_OP, _ARGUMENT, _SECOND_ARGUMENT, _PORT, _FLAGS, _RESENT, _SOCKET, _TCP_FLAGS = 0, 4, 8, 68, 84, 136, 184, 212

_CALL_FOR_STATES, _CALL_FOR_OPTIONS = 1 << 2, 1 << 6
_CALLS: Final = _CALL_FOR_STATES | _CALL_FOR_OPTIONS
_KEPT: Final = 8
"""The calls that another program had asked for before us stand in the storage, shifted by so many bits."""

_SYN, _ACK = 0x02, 0x10
_IS_COOKIE: Final = 2
"""The argument for a SYN-ACK with a SYN cookie: the kernel will remember nothing of the SYN."""
_IN_SYN: Final = 1
"""Look into the SYN that led to the socket, and not into the segment at hand."""
_STATE_CLOSE, _STATE_LISTEN = 7, 10

# Helpers
_LOOK_UP, _SET_CALLS, _GET_STORAGE, _LOAD_OPTION, _STORE_OPTION, _RESERVE = 1, 59, 107, 142, 143, 144

_OPTION_AT: Final = -8
_KEY_AT: Final = -16
"""Places on the stack."""

R0, R1, R2, R3, R4, _R5, R6, R7, R8, R9, R10 = Register


def assembleProgram(sockets: int, listeners: int, counters: int) -> bytes:
    """
    Encode the program for a kernel of this host.

    @param sockets: the descriptor of the map with the sockets' storage.
    @param listeners: of the array of L{PORTS} numbers of 8 bytes, marked listeners by port.
    @param counters: of the array whose only entry is L{COUNTERS}.
    """
    return _Program(sockets, listeners, counters).assemble()


class _Program:
    """The parts of the program. R6 is the kernel's C{struct bpf_sock_ops}, R7 the socket's storage."""

    def __init__(self, sockets: int, listeners: int, counters: int) -> None:
        self._sockets = sockets
        self._listeners = listeners
        self._counters = counters
        self._code = Assembler()

    def assemble(self) -> bytes:
        code = self._code
        code.move(R6, R1)
        code.load(R0, R6, _OP)
        parts = {
            _CONNECT: self._connect,
            _LISTEN: self._listen,
            _STATE: self._state,
            _LENGTH: self._segment,
            _WRITE: self._segment,
            _ACTIVE: self._active,
            _PASSIVE: self._passive,
        }
        for op, part in parts.items():
            code.jumpIf(R0, Jump.EQUAL, op, part.__name__)
        self._end()
        for part in dict.fromkeys(parts.values()):
            code.label(part.__name__)
            part()
        return code.assemble()

    def _end(self) -> None:
        """Result 1: whatever the kernel asked is answered by the next program, or by the kernel itself."""
        self._code.label("end")
        self._code.move(R0, 1)
        self._code.exit()

    # A socket begins, a listener ends

    def _connect(self) -> None:
        self._needMark()
        self._askFor(_CALL_FOR_OPTIONS)

    def _listen(self) -> None:
        self._needMark()
        self._countListener(1)
        self._askFor(_CALL_FOR_OPTIONS | _CALL_FOR_STATES)

    def _state(self) -> None:
        code = self._code
        code.load(R0, R6, _ARGUMENT)
        code.jumpIf(R0, Jump.NOT_EQUAL, _STATE_LISTEN, "end")
        code.load(R0, R6, _SECOND_ARGUMENT)
        code.jumpIf(R0, Jump.NOT_EQUAL, _STATE_CLOSE, "end")
        self._needMark()
        code.load(R0, R7, 0)
        code.keepBits(R0, NOTICED)  # else it was marked too late, and another program wants its states
        code.jumpIf(R0, Jump.EQUAL, 0, "end")
        self._countListener(-1)
        code.jump("end")

    def _needMark(self) -> None:
        """Have the storage of the socket in R7, or end: it has none, or it is not marked."""
        code = self._code
        code.load(R2, R6, _SOCKET, 8)
        code.jumpIf(R2, Jump.EQUAL, 0, "end")
        code.loadMap(R1, self._sockets)
        code.move(R3, 0)
        code.move(R4, 0)
        code.call(_GET_STORAGE)
        code.jumpIf(R0, Jump.EQUAL, 0, "end")
        code.move(R7, R0)
        code.load(R0, R7, 0)
        code.keepBits(R0, WANTED)
        code.jumpIf(R0, Jump.EQUAL, 0, "end")

    def _countListener(self, difference: int) -> None:
        self._findPort()
        self._code.move(R1, difference)
        self._code.addAtomically(R0, 0, R1)

    def _findPort(self) -> None:
        """Have the address of the number of listeners at the socket's port in R0."""
        code = self._code
        code.load(R0, R6, _PORT)
        code.store(R10, _KEY_AT, R0)
        code.loadMap(R1, self._listeners)
        code.move(R2, R10)
        code.add(R2, _KEY_AT)
        code.call(_LOOK_UP)
        code.jumpIf(R0, Jump.EQUAL, 0, "end")

    def _askFor(self, calls: int) -> None:
        """Be called for more of this socket; remember of what another program wanted to be called anyway."""
        code = self._code
        code.load(R2, R6, _FLAGS)
        code.move(R1, R2)
        code.keepBits(R1, _CALLS)
        code.shiftLeft(R1, _KEPT)
        code.setBits(R1, WANTED | NOTICED)
        code.store(R7, 0, R1)
        code.setBits(R2, calls)
        code.move(R1, R6)
        code.call(_SET_CALLS)
        code.jump("end")

    # A segment is made: its length is asked for, then it is written

    def _segment(self) -> None:
        code = self._code
        code.load(R9, R6, _TCP_FLAGS)
        code.move(R0, R9)
        code.keepBits(R0, _SYN)
        code.jumpIf(R0, Jump.EQUAL, 0, "end")
        code.keepBits(R9, _ACK)
        code.jumpIf(R9, Jump.NOT_EQUAL, 0, "SYN-ACK")
        self._needMark()
        code.load(R0, R6, _RESENT)
        code.jumpIf(R0, Jump.AT_LEAST, _FRUITLESS, "end")
        code.jump("add")
        code.label("SYN-ACK")
        self._needOptionInSYN()
        code.label("add")
        code.load(R0, R6, _OP)
        code.jumpIf(R0, Jump.EQUAL, _WRITE, "write")
        code.move(R1, R6)
        code.move(R2, len(OPTION))
        code.move(R3, 0)
        code.call(_RESERVE)
        code.jump("end")
        code.label("write")
        self._withOption(_STORE_OPTION, 0)
        code.jumpIf(R0, Jump.LESS_SIGNED, 0, "end")
        code.jumpIf(R9, Jump.NOT_EQUAL, 0, "SYN-ACK written")
        self._count("synsMarked")
        code.jump("end")
        code.label("SYN-ACK written")
        self._count("synAcksMarked")
        code.jump("end")

    def _needOptionInSYN(self) -> None:
        """End unless a marked listener answers a SYN that had the option, and the kernel remembers that."""
        code = self._code
        code.load(R0, R6, _ARGUMENT)
        code.jumpIf(R0, Jump.EQUAL, _IS_COOKIE, "end")
        self._findPort()
        code.load(R0, R0, 0, 8)
        code.jumpIf(R0, Jump.EQUAL, 0, "end")
        self._withOption(_LOAD_OPTION, _IN_SYN)
        code.jumpIf(R0, Jump.LESS_SIGNED, 0, "end")

    def _withOption(self, helper: int, flags: int) -> None:
        """Look for the option, or store it; R0 is negative when it is not there, or has no room."""
        code = self._code
        code.move(R1, int.from_bytes(OPTION[:4], sys.byteorder))
        code.store(R10, _OPTION_AT, R1)
        code.move(R1, int.from_bytes(OPTION[4:], sys.byteorder))
        code.store(R10, _OPTION_AT + 4, R1, 2)
        code.move(R1, R6)
        code.move(R2, R10)
        code.add(R2, _OPTION_AT)
        code.move(R3, len(OPTION))
        code.move(R4, flags)
        code.call(helper)

    # A connection is established

    def _active(self) -> None:
        self._established(0, "synAcksSeen")

    def _passive(self) -> None:
        self._established(_IN_SYN, "synsSeen")

    def _established(self, where: int, counter: str) -> None:
        """Keep whether the peer's segment had the option, and be called for nothing more of this socket."""
        code = self._code
        self._needMark()
        code.load(R8, R7, 0)
        self._withOption(_LOAD_OPTION, where)
        code.jumpIf(R0, Jump.LESS_SIGNED, 0, f"not {counter}")
        code.move(R1, R8)
        code.setBits(R1, SEEN)
        code.store(R7, 0, R1)
        self._count(counter)
        code.label(f"not {counter}")
        code.shiftRight(R8, _KEPT)
        code.keepBits(R8, _CALLS)
        code.load(R2, R6, _FLAGS)
        code.keepBits(R2, ~_CALLS)
        code.setBits(R2, R8)
        code.move(R1, R6)
        code.call(_SET_CALLS)
        code.jump("end")

    def _count(self, counter: str) -> None:
        code = self._code
        code.loadMapValue(R1, self._counters, 8 * COUNTERS.index(counter))
        code.move(R2, 1)
        code.addAtomically(R1, 0, R2)
