"""
An assembler of eBPF programs, as much of it as a sock_ops program of a page needs.

Follows RFC 9669 (the BPF instruction set), and for maps and helpers the kernel's C{linux/bpf.h}. Instructions
are in this host's byte order: a host makes them for its own kernel.
"""

from __future__ import annotations

import enum
import sys
from typing import Final, Union

from txrdma.kit.wire import bits, Layout, wire

_LOWER: Final = (1 << 32) - 1


@wire(8, little=sys.byteorder == "little")
class Instruction(Layout):
    """An instruction of eBPF (RFC 9669, 3)."""

    opcode: int = bits(8)
    destination: int = bits(4)
    source: int = bits(4)
    offset: int = bits(16)
    immediate: int = bits(32)


class Register(enum.IntEnum):
    """A register: R0 has results, R1 to R5 arguments, R6 to R9 outlive calls, R10 is the stack's end."""

    R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10 = range(11)


Operand = Union[Register, int]
"""A register, or a number that fits into 32 bits."""


class Jump(enum.IntEnum):
    """Condition of a jump: the opcode, which compares 64 bits, without the source's bit."""

    EQUAL = 0x15
    NOT_EQUAL = 0x55
    AT_LEAST = 0x35
    """Unsigned: the register has the number or more."""
    LESS_SIGNED = 0xC5
    """Signed: a result of a helper that is less than 0 is an error."""


_SIZES: Final = {1: 0x10, 2: 0x08, 4: 0x00, 8: 0x18}
"""The bits in an opcode for so many bytes."""

_LOAD, _STORE, _ATOMIC = 0x61, 0x63, 0xC3
_FROM_REGISTER: Final = 0x08
_MOVE, _ADD, _AND, _OR, _SHIFT_LEFT, _SHIFT_RIGHT = 0xB7, 0x07, 0x57, 0x47, 0x67, 0x77
_JUMP, _CALL, _EXIT, _LOAD_WIDE = 0x05, 0x85, 0x95, 0x18
_MAP, _MAP_VALUE = 1, 2


class Assembler:
    """
    A program in the making: each method appends one instruction.

    Jumps name labels, which may be set before or after them.
    """

    def __init__(self) -> None:
        self._instructions: list[Instruction] = []
        self._labels: dict[str, int] = {}
        self._jumps: dict[int, str] = {}

    def label(self, name: str) -> None:
        """
        Give the place of the next instruction a name, for jumps.

        @raise ValueError: the name is taken.
        """
        if name in self._labels:
            raise ValueError(f"label {name!r} is set twice")
        self._labels[name] = len(self._instructions)

    # Numbers

    def move(self, to: Register, value: Operand) -> None:
        """C{to = value}; a number keeps its sign in 64 bits."""
        self._arithmetic(_MOVE, to, value)

    def add(self, to: Register, value: Operand) -> None:
        """C{to += value}, for numbers and for pointers."""
        self._arithmetic(_ADD, to, value)

    def keepBits(self, to: Register, value: Operand) -> None:
        """C{to &= value}: keep the bits that both have."""
        self._arithmetic(_AND, to, value)

    def setBits(self, to: Register, value: Operand) -> None:
        """C{to |= value}: set the bits that either has."""
        self._arithmetic(_OR, to, value)

    def shiftLeft(self, to: Register, places: int) -> None:
        """C{to <<= places}, in 64 bits."""
        self._arithmetic(_SHIFT_LEFT, to, places)

    def shiftRight(self, to: Register, places: int) -> None:
        """C{to >>= places}, in 64 bits, with zeros from the left."""
        self._arithmetic(_SHIFT_RIGHT, to, places)

    # Memory

    def load(self, to: Register, base: Register, offset: int, size: int = 4) -> None:
        """Load C{size} bytes (1, 2, 4 or 8) at C{base + offset} into C{to}; its other bits become 0."""
        self._append(_LOAD | _SIZES[size], to, base, offset)

    def store(self, base: Register, offset: int, value: Register, size: int = 4) -> None:
        """Store the lowest C{size} bytes (1, 2, 4 or 8) of a register at C{base + offset}."""
        self._append(_STORE | _SIZES[size], base, value, offset)

    def addAtomically(self, base: Register, offset: int, value: Register) -> None:
        """Add a register to the 8 bytes at C{base + offset}, as one with what other processors do there."""
        self._append(_ATOMIC | _SIZES[8], base, value, offset)

    def loadMap(self, to: Register, descriptor: int) -> None:
        """Load the address of a map, by its open descriptor: the argument of helpers that want a map."""
        self._append(_LOAD_WIDE, to, _MAP, 0, descriptor)
        self._append(0, 0, 0, 0, 0)

    def loadMapValue(self, to: Register, descriptor: int, offset: int) -> None:
        """Load the address of a byte in the value of an array map that has one entry only."""
        self._append(_LOAD_WIDE, to, _MAP_VALUE, 0, descriptor)
        self._append(0, 0, 0, 0, offset)

    # Where to go on

    def jump(self, label: str) -> None:
        """Go on at a label."""
        self._jumps[len(self._instructions)] = label
        self._append(_JUMP, 0, 0)

    def jumpIf(self, register: Register, when: Jump, value: Operand, label: str) -> None:
        """Go on at a label if a register compares so to a register or a number."""
        self._jumps[len(self._instructions)] = label
        self._arithmetic(when, register, value)

    def call(self, helper: int) -> None:
        """Call a helper, by its number in C{linux/bpf.h}: R1 to R5 are lost, R0 has its result."""
        self._append(_CALL, 0, 0, 0, helper)

    def exit(self) -> None:
        """End the program; R0 is its result."""
        self._append(_EXIT, 0, 0)

    # The end

    def assemble(self) -> bytes:
        """
        Encode the program as the kernel takes it, 8 bytes for each instruction.

        @raise ValueError: a jump names a label that is not set, or is too far from it.
        """
        code = bytearray()
        for at, instruction in enumerate(self._instructions):
            if at in self._jumps:
                label = self._jumps[at]
                if label not in self._labels:
                    raise ValueError(f"label {label!r} is not set")
                instruction = Instruction(
                    opcode=instruction.opcode,
                    destination=instruction.destination,
                    source=instruction.source,
                    offset=_signed16(self._labels[label] - at - 1),
                    immediate=instruction.immediate,
                )
            code += instruction.encode()
        return bytes(code)

    def _arithmetic(self, opcode: int, to: Register, value: Operand) -> None:
        if isinstance(value, Register):
            self._append(opcode | _FROM_REGISTER, to, value)
        else:
            self._append(opcode, to, 0, 0, value)

    def _append(
        self, opcode: int, destination: int, source: int, offset: int = 0, immediate: int = 0
    ) -> None:
        if not -(1 << 31) <= immediate <= _LOWER:
            raise ValueError(f"{immediate:#x} does not fit into 32 bits")
        self._instructions.append(
            Instruction(
                opcode=opcode,
                destination=destination,
                source=source,
                offset=_signed16(offset),
                immediate=immediate & _LOWER,
            )
        )


def _signed16(offset: int) -> int:
    if not -(1 << 15) <= offset < 1 << 15:
        raise ValueError(f"an offset of {offset} does not fit into 16 bits")
    return offset & 0xFFFF
