#!/usr/bin/env python3
"""
Assemble the eBPF program that sets SMC's TCP option, and print the instructions in base 85.

The output is the value of C{CODE} in C{txrdma/smc/signalling/option/program.py}.

The source is in LLVM's syntax for eBPF, so that C{llvm-mc} can check it. The instruction set is that of RFC
9669; offsets and helper numbers are those of C{linux/bpf.h} for C{BPF_PROG_TYPE_SOCK_OPS}.

The kernel calls the program when a TCP socket of the cgroup connects or listens, and for later events of
sockets that asked for these calls (C{bpf_sock_ops_cb_flags_set}). A process marks a socket by setting WANTED
in its socket storage. An accepted socket inherits a copy of its listener's storage. For a SYN-ACK the kernel
does not pass the listening socket, only its port: therefore the program counts marked listeners by port, and
leaves the SYN-ACKs of other listeners as they are.

Maps are numbered: 0 is the socket storage, 1 the number of marked listeners by port, 2 the counters.
"""

from __future__ import annotations

import re
import struct
import textwrap
from base64 import b85encode
from collections.abc import Callable
from typing import Any, Final

MARKED: Final = """
    r2 = *(u64 *)(r6 + 184)             ; bpf_sock_ops.sk
    if r2 == 0 goto end
    ld_pseudo r1, 1, 0
    r3 = 0
    r4 = 0
    call 107                            ; sk_storage_get
    if r0 == 0 goto end
    r7 = r0
    r0 = *(u32 *)(r7 + 0)
    r0 &= 1                             ; WANTED
    if r0 == 0 goto end
"""
"""Set r7 to the storage of the socket, or end where the socket is not marked."""

LISTENERS: Final = """
    r0 = *(u32 *)(r6 + 68)              ; local_port
    *(u32 *)(r10 - 16) = r0
    ld_pseudo r1, 1, 1
    r2 = r10
    r2 += -16
    call 1                              ; map_lookup_elem
    if r0 == 0 goto end
"""
"""Set r0 to the address of the number of marked listeners at the local port."""

OPTION: Final = """
    r1 = 0xfe06e2d4                     ; kind 254, length 6, "SMCR" in EBCDIC
    r1 = be32 r1
    *(u32 *)(r10 - 8) = r1
    r1 = 0xc3d9
    r1 = be16 r1
    *(u16 *)(r10 - 4) = r1
    r1 = r6
    r2 = r10
    r2 += -8
    r3 = 6
"""
"""Set r1 to r3 to the arguments of load_hdr_opt and store_hdr_opt."""

REQUEST_CALLS: Final = """
    r2 = *(u32 *)(r6 + 84)              ; bpf_sock_ops_cb_flags: those of other programs stay
    r1 = r2
    r1 &= 0x44                          ; STATE, WRITE_HDR_OPT
    r1 <<= 8                            ; the storage saves them for "established"
    r1 |= 5                             ; WANTED | NOTICED
    *(u32 *)(r7 + 0) = r1
"""
"""Begin to add to the calls that the kernel makes for this socket: r2 has the flags."""


def established(counter: int, flags: int) -> str:
    """Record whether the peer's segment had the option, and end the calls for this socket."""
    return f"""
    {MARKED}
    r8 = *(u32 *)(r7 + 0)
    {OPTION}
    r4 = {flags}
    call 142                            ; load_hdr_opt
    if r0 s< 0 goto restore
    r1 = r8
    r1 |= 2                             ; SEEN
    *(u32 *)(r7 + 0) = r1
    ld_pseudo r1, 2, 2
    r1 += {8 * counter}
    r2 = 1
    lock *(u64 *)(r1 + 0) += r2
    goto restore
"""


SOURCE: Final = f"""
    r6 = r1
    r0 = *(u32 *)(r6 + 0)               ; op
    if r0 == 3 goto connect             ; TCP_CONNECT_CB
    if r0 == 11 goto listen             ; TCP_LISTEN_CB
    if r0 == 10 goto state              ; STATE_CB
    if r0 == 14 goto segment            ; HDR_OPT_LEN_CB
    if r0 == 15 goto segment            ; WRITE_HDR_OPT_CB
    if r0 == 4 goto active              ; ACTIVE_ESTABLISHED_CB
    if r0 == 5 goto passive             ; PASSIVE_ESTABLISHED_CB
end:
    r0 = 1                              ; leave the reply to other programs or to the kernel
    exit

connect:
    {MARKED}
    {REQUEST_CALLS}
    r2 |= 0x40                          ; WRITE_HDR_OPT
    goto request

listen:
    {MARKED}
    {LISTENERS}
    r1 = 1
    lock *(u64 *)(r0 + 0) += r1
    {REQUEST_CALLS}
    r2 |= 0x44                          ; STATE, WRITE_HDR_OPT
request:
    r1 = r6
    call 59                             ; sock_ops_cb_flags_set
    goto end

state:
    r0 = *(u32 *)(r6 + 4)               ; args[0]: the old state
    if r0 != 10 goto end                ; TCP_LISTEN
    r0 = *(u32 *)(r6 + 8)               ; args[1]: the new state
    if r0 != 7 goto end                 ; TCP_CLOSE
    {MARKED}
    r0 = *(u32 *)(r7 + 0)
    r0 &= 4                             ; NOTICED: not set if it was marked after it began to listen
    if r0 == 0 goto end
    {LISTENERS}
    r1 = -1
    lock *(u64 *)(r0 + 0) += r1
    goto end

segment:
    r9 = *(u32 *)(r6 + 212)             ; skb_tcp_flags
    r0 = r9
    r0 &= 2                             ; SYN
    if r0 == 0 goto end
    r9 &= 16                            ; ACK
    if r9 != 0 goto answer
    {MARKED}
    r0 = *(u32 *)(r6 + 136)             ; total_retrans
    if r0 >= 2 goto end                 ; a middlebox may drop SYNs that have the option
    goto add
answer:
    r0 = *(u32 *)(r6 + 4)               ; args[0]
    if r0 == 2 goto end                 ; BPF_WRITE_HDR_TCP_SYNACK_COOKIE: the kernel forgets the SYN
    {LISTENERS}
    r0 = *(u64 *)(r0 + 0)
    if r0 == 0 goto end
    {OPTION}
    r4 = 1                              ; BPF_LOAD_HDR_OPT_TCP_SYN
    call 142                            ; load_hdr_opt
    if r0 s< 0 goto end
add:
    r0 = *(u32 *)(r6 + 0)
    if r0 == 15 goto write
    r1 = r6
    r2 = 6
    r3 = 0
    call 144                            ; reserve_hdr_opt
    goto end
write:
    {OPTION}
    r4 = 0
    call 143                            ; store_hdr_opt
    if r0 s< 0 goto end
    ld_pseudo r1, 2, 2
    if r9 == 0 goto count
    r1 += 8
count:
    r2 = 1
    lock *(u64 *)(r1 + 0) += r2
    goto end

active:
    {established(2, 0)}
passive:
    {established(3, 1)}
restore:
    r8 >>= 8
    r8 &= 0x44
    r2 = *(u32 *)(r6 + 84)
    r2 &= -0x45
    r2 |= r8
    goto request
"""

_SIZES: Final = {"8": 0x10, "16": 0x08, "32": 0x00, "64": 0x18}
_ARITHMETIC: Final = {"=": 0xB7, "+=": 0x07, "&=": 0x57, "|=": 0x47, "<<=": 0x67, ">>=": 0x77}
_CONDITIONS: Final = {"==": 0x15, "!=": 0x55, ">=": 0x35, "s<": 0xC5}

_Fields = tuple[Any, ...]
"""Opcode, destination, source, offset or label, and immediate."""


def _number(text: str) -> int:
    return int(text.replace(" ", ""), 0)


_MEMORY: Final = r"\*\(u(8|16|32|64) \*\)\(r(\d+) ([+-] \d+)\)"

_FORMS: Final[list[tuple[str, Callable[..., _Fields]]]] = [
    ("exit", lambda: (0x95, 0, 0, 0, 0)),
    (r"call (\d+)", lambda helper: (0x85, 0, 0, 0, helper)),
    (r"goto (\w+)", lambda label: (0x05, 0, 0, label, 0)),
    (r"if r(\d+) (\S+) (\d+) goto (\w+)", lambda a, how, n, label: (_CONDITIONS[how], a, 0, label, n)),
    (r"r(\d+) (\S*=) r(\d+)", lambda to, how, a: (_ARITHMETIC[how] | 8, to, a, 0, 0)),
    (r"r(\d+) (\S*=) (-?\w+)", lambda to, how, n: (_ARITHMETIC[how], to, 0, 0, n)),
    (r"r(\d+) = be(16|32) r\1", lambda to, bits: (0xDC, to, 0, 0, bits)),
    (rf"r(\d+) = {_MEMORY}", lambda to, bits, base, offset: (0x61 | _SIZES[bits], to, base, offset, 0)),
    (rf"{_MEMORY} = r(\d+)", lambda bits, base, offset, a: (0x63 | _SIZES[bits], base, a, offset, 0)),
    (rf"lock {_MEMORY} \+= r(\d+)", lambda bits, base, at, a: (0xC3 | _SIZES[bits], base, a, at, 0)),
    (r"ld_pseudo r(\d+), (\d), (\d+)", lambda to, kind, n: (0x18, to, kind, 0, n)),
]


def lines(source: str) -> tuple[list[str], dict[str, int]]:
    """
    Return the instructions of a source without comments, and the positions of its labels.

    C{ld_pseudo} counts as two instructions: the second is an empty line.
    """
    instructions: list[str] = []
    labels: dict[str, int] = {}
    for line in source.splitlines():
        text = line.partition(";")[0].strip()
        if text.endswith(":"):
            labels[text[:-1]] = len(instructions)
        elif text:
            instructions += [text, ""] if text.startswith("ld_pseudo") else [text]
    return instructions, labels


def assemble(source: str = SOURCE) -> bytes:
    """
    Encode a program for a little-endian machine, 8 bytes for each instruction.

    @raise ValueError: a line is not an instruction, or its label is unknown.
    """
    instructions, labels = lines(source)
    code = b""
    for at, text in enumerate(instructions):
        if not text:
            code += bytes(8)
            continue
        matches = ((fields, re.fullmatch(pattern, text)) for pattern, fields in _FORMS)
        words = next((fields(*found.groups()) for fields, found in matches if found), None)
        if words is None:
            raise ValueError(f"no instruction: {text}")
        opcode, to, base, offset, immediate = words
        distance = labels[offset] - at - 1 if offset in labels else _number(str(offset))
        code += struct.pack("<BBh", opcode, int(to) | int(base) << 4, distance)
        code += (_number(str(immediate)) % (1 << 32)).to_bytes(4, "little")
    return code


if __name__ == "__main__":
    print("\n".join(textwrap.wrap(b85encode(assemble()).decode(), 96)))
