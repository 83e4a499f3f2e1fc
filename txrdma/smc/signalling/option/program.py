"""
The eBPF program that adds SMC's TCP option to marked sockets, and detects the option of the peer.

Follows RFC 7609, 3.1 and appendix A. The source, with comments, is in C{tools/smcoption.py}, which prints the
instructions in L{CODE}; a unit test compares them.
"""

from __future__ import annotations

import struct
import sys
from base64 import b85decode
from collections.abc import Sequence
from contextlib import closing, ExitStack
from pathlib import Path
from typing import Final, NamedTuple

from txrdma.smc.signalling.option import bpf

WANTED: Final = 1
"""Flag in the storage of a socket: add the option. Set by processes; the program sets the other flags."""
SEEN: Final = 2
"""Flag in the storage of a socket: the peer's SYN or SYN-ACK had the option."""
NOTICED: Final = 4
"""Flag in the storage of a socket: the program was called when the marked socket connected or listened."""

STORAGE_BYTES: Final = 4

COUNTERS: Final = ("synsMarked", "synAcksMarked", "synAcksSeen", "synsSeen")
"""
The program's counters, of 8 bytes each, in this order.

SYNs and SYN-ACKs sent with the option, including retransmissions; then connections whose peer's SYN-ACK had
the option, and accepted connections whose peer's SYN had it.
"""

_COUNTER_BYTES: Final = 8
_PORTS: Final = 1 << 16
_LOAD_WIDE: Final = 0x18
"""The only opcode in the program that refers to a map."""

CODE: Final = b85decode(
    "zZL)h00000VPF6N000006#xhT0{{R36#yFm3jhEB6#zN_3IG5A6#!QN4gdfE6#!NM4*&oF6#$+91ONa46#&2h1poj5w*UYD0"
    "RR91l>h($00000d1AN#000006$1SK000007!d#f000000000000000w*vqG00000w*&wH00000g#Z8mYXATM6#(}C00000zX"
    "t#S00000VQ>Hd00000R{#J20RR916#(-"
    "800000VPaGO00000zaans00000R{;P3L;wH)X8`~J2mk;8M*#o;1poj5V;2Ab00000M*;u<KmY&$1pplY00000d1AN#00000"
    "6$0r0000007!d#f000000000000000w*vqG00000w*&wH00000g#Z8mYXATM6#(M@00000zXt#S00000VQ>Hd00000R{#J20"
    "RR916#(A<00000VPHf600000V+!#9000007!d#f0RR910000000000zoGyD000002Lb>9@c;k+g#Z8m0RR916#&-"
    "%00000w*deE0RR91+YkT%00000VPaGO00000zaans00000R{;P3L;wH)X8`~J2mk;8M*#o;1poj5V;2Ab00000M*;u<L;wH)"
    "zhM9X00000g#Z8mI{*Lx1pvzb00000VPFIR00000RRGBU3IG5AVPFUV00000RRG5S2LJ#7d1AN#000006#~Tn000007!d#f0"
    "00000000000000w*vqG00000w*&wH00000g#Z8mYXATM6#%~f00000zXt#S00000VQ>Hd00000R{#J20RR916#%;b00000VQ"
    ">Hd00000R{#J21ONa46#%#Y00000VPHf600000V+!#9000007!d#f0RR910000000000zoGyD000002Lb>9@c;k+g#Z8m0RR"
    "916#%dQ00000w*deE|NsC0+YkT%000001puu700000VQJI=00000zmNa`00000R{#J20ssI26#%IJ00000R|x<B5C8xGRS6F"
    "O00000d1AN#000006#}IH000007!d#f000000000000000w*vqG00000w*&wH00000g#Z8mYXATM6#$<900000zXt#S00000"
    "VQ>Hd00000R{#J20RR916#$z500000VPJ>=00000H2|3Z0ssI21ppZU00000VPFIR000006#$k00ssI2VPHf600000V+!#90"
    "00007!d#f0RR910000000000zoGyD000002Lb>9@c;k+g#Z8m0RR916#$L@00000c>n+a000006#$F>00000w*deE)ZzyI+y"
    "MXpAOHXWV;cDX00000w*deE*~0(;+yMXp5C8xGYa0Cj00000zhM9X00000zoGyD000002Lb>9`2YX^w*vqG1^@s6w*&wH0RR"
    "91g#Z8mjsO4v#Q=W)00000VPF6N000006#xYQ4*&oFzhM9X00000w*mkF1^@s6w*vqG00000g#Z8mkN^Mx1ps&d00000w*de"
    "E)ZzyI+yMXpAOHXWV;cDX00000w*deE*~0(;+yMXp5C8xGYa0Cj00000zhM9X00000zoGyD000002Lb>9`2YX^w*vqG1^@s6"
    "w*&wH00000g#Z8mj{pDw#Q<vm000007$E=v0ssI200000000006$t?V000002LS*82mk;8w*mkF0RR91+aUk|000001ps6J0"
    "0000d1AN#000006#`-"
    "Z000007!d#f000000000000000w*vqG00000w*&wH00000g#Z8mYXATM6#!fR00000zXt#S00000VQ>Hd00000R{#J20RR91"
    "6#!TN00000VR!%l00000w*deE)ZzyI+yMXpAOHXWV;cDX00000w*deE*~0(;+yMXp5C8xGYa0Cj00000zhM9X00000zoGyD0"
    "00002Lb>9`2YX^w*vqG1^@s6w*&wH00000g#Z8mjsO4v#Q-b-"
    "00000zkvV%00000M*#o;0ssI2V;2Ab000007$E=v0ssI200000000002LS*85C8xGw*mkF0RR91+aUk|000001pp%e00000d"
    "1AN#000006#_p0000007!d#f000000000000000w*vqG00000w*&wH00000g#Z8mYXATM6#zK@00000zXt#S00000VQ>Hd00"
    "000R{#J20RR916#z8<00000VR!%l00000w*deE)ZzyI+yMXpAOHXWV;cDX00000w*deE*~0(;+yMXp5C8xGYa0Cj00000zhM"
    "9X00000zoGyD000002Lb>9`2YX^w*vqG1^@s6w*&wH0RR91g#Z8mjsO4v#Q+Ha00000zkvV%00000M*#o;0ssI2V;2Ab0000"
    "07$E=v0ssI200000000002LS*87ytkOw*mkF0RR91+aUk|000001poj500000cL)Fg2mk;8R|o(AL;wH)VPaGO00000R{{V4"
    "yZ`_HPl5md000001prF_00000"
)
"""The instructions in little-endian order, with maps numbered as in L{relocate}."""


def relocate(code: bytes, maps: Sequence[int], byteOrder: str = sys.byteorder) -> bytes:
    """
    Convert instructions to the byte order of the kernel, and insert the descriptors of maps.

    @param code: little-endian instructions (RFC 9669, 3) that refer to maps by their index in C{maps}.
    @param maps: descriptors; for L{CODE} those of the socket storage, the listeners and the counters.
    """
    layout = "<BBhi" if byteOrder == "little" else ">BBhi"
    instructions = bytearray()
    for opcode, registers, offset, immediate in struct.iter_unpack("<BBhi", code):
        if opcode == _LOAD_WIDE:
            immediate = maps[immediate]
        if byteOrder == "big":
            registers = registers >> 4 | (registers & 15) << 4
        instructions += struct.pack(layout, opcode, registers, offset, immediate)
    return bytes(instructions)


class LoadedProgram(NamedTuple):
    """
    The program, attached to a cgroup. The kernel frees objects that are neither open nor pinned.

    @ivar sockets: flags by the descriptor of a socket.
    @ivar listeners: the number of marked listeners by port, 8 bytes each.
    @ivar counters: one entry, see L{COUNTERS}.
    @ivar link: keeps the program attached.
    """

    sockets: bpf.BPFMap
    listeners: bpf.BPFMap
    counters: bpf.BPFMap
    link: bpf.BPFLink

    def close(self) -> None:
        for handle in reversed(self):
            handle.close()


def load(cgroup: Path) -> LoadedProgram:
    """
    Load the program and attach it to a cgroup: sockets created in it, or below, can be marked from now on.

    @param cgroup: a directory of cgroup version 2.
    @raise OptionUnavailable: the kernel refuses; the message has the reason.
    """
    flags = bpf.NO_PREALLOCATION | bpf.CLONE
    # The map of sockets refers to its types, and the link to the program, so these are closed at once.
    with ExitStack() as undo, closing(bpf.loadIntegerType()) as types:
        create = bpf.BPFMap.create
        sockets = create("smc_sockets", bpf.SOCKET_STORAGE, STORAGE_BYTES, 0, flags, types)
        undo.callback(sockets.close)
        listeners = create("smc_listeners", bpf.ARRAY, _COUNTER_BYTES, _PORTS)
        undo.callback(listeners.close)
        counters = create("smc_counters", bpf.ARRAY, _COUNTER_BYTES * len(COUNTERS), 1)
        undo.callback(counters.close)
        maps = [sockets.fileno(), listeners.fileno(), counters.fileno()]
        with closing(bpf.loadProgram("smc_option", relocate(CODE, maps))) as program:
            link = bpf.BPFLink.create(program, cgroup)
        undo.pop_all()
    return LoadedProgram(sockets, listeners, counters, link)
