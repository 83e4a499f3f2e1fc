"""
The filter that selects one of the sockets at UDP port 4791 for a packet: a program of classic BPF.

See bpf(4) and the kernel's C{Documentation/networking/filter.rst} for the instructions, and socket(7) for
SO_ATTACH_REUSEPORT_CBPF. The program sees the UDP payload, and returns the position of a socket. A packet
that is too short is passed to position 0.
"""

from __future__ import annotations

import ctypes
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Final

from txrdma.soft.host._management import ATTRIBUTE, BODY, CLASS, CMAttribute, COMM_MGT, REMOTE_ID

POSITION: Final = 12
"""Offset in a probe of the position to which it is sent. A probe has queue pair number 0."""

_SO_ATTACH_REUSEPORT_CBPF: Final = 51

_LOAD_WORD: Final = 0x20
_LOAD_HALF: Final = 0x28
_LOAD_BYTE: Final = 0x30
_AND: Final = 0x54
_JUMP: Final = 0x05
_JUMP_IF_EQUAL: Final = 0x15
_RETURN: Final = 0x06
_RETURN_ACCUMULATOR: Final = 0x16

_DESTINATION: Final = 5
_Instruction = tuple[int, int, int, int]


def filterProgram(positions: Mapping[int, int], home: int) -> list[_Instruction]:
    """
    Return the program for these positions of sockets.

    @param positions: by share.
    @param home: the position for packets without a share, and for requests for a service.
    @return: instructions: code, jumps if true and if false, operand.
    """
    toHome, toTable = 17, 18  # indices of instructions
    # Jumps count from the next instruction: from instruction n to m by m - n - 1.
    program: list[_Instruction] = [
        (_LOAD_BYTE, 0, 0, _DESTINATION),  # 0: the share in the number of the destination queue pair
        (_JUMP_IF_EQUAL, 0, toTable - 2, 0),
        (_LOAD_WORD, 0, 0, _DESTINATION - 1),  # 2: no share, so the whole number
        (_AND, 0, 0, 0xFFFFFF),
        (_JUMP_IF_EQUAL, 0, 2, 0),
        (_LOAD_BYTE, 0, 0, POSITION),  # 5: queue pair 0: a probe for this position
        (_RETURN_ACCUMULATOR, 0, 0, 0),
        (_LOAD_BYTE, 0, 0, CLASS),  # 7: queue pair 1: a management datagram
        (_JUMP_IF_EQUAL, 0, toHome - 9, COMM_MGT),
        (_LOAD_HALF, 0, 0, ATTRIBUTE),
        (_JUMP_IF_EQUAL, toHome - 11, 0, CMAttribute.REQ),
        (_JUMP_IF_EQUAL, toHome - 12, 0, CMAttribute.SIDR_REQ),
        (_JUMP_IF_EQUAL, 0, 2, CMAttribute.SIDR_REP),
        (_LOAD_BYTE, 0, 0, BODY),  # 13: the share in the request ID
        (_JUMP, 0, 0, toTable - 15),
        (_LOAD_BYTE, 0, 0, REMOTE_ID),  # 15: the share in the remote communication ID
        (_JUMP, 0, 0, toTable - 17),
        (_RETURN, 0, 0, home),  # 17
    ]
    for share, position in sorted(positions.items()):  # 18: the position of the share in the accumulator
        program += [(_JUMP_IF_EQUAL, 0, 1, share), (_RETURN, 0, 0, position)]
    return [*program, (_RETURN, 0, 0, home)]


def attachFilter(bound: socket.socket, program: Sequence[_Instruction]) -> None:
    """Install a program for all sockets at the address and port of this one; raises OSError."""
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *each) for each in program))
    described = struct.pack("HP", len(program), ctypes.addressof(code))
    bound.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_REUSEPORT_CBPF, described)
