"""Capture files for tests of C{txrdma decode}."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

from txrdma.iba.headers import BTH, DETH, Opcode
from txrdma.iba.pcap import CapturePosition, RoCECapture
from txrdma.iba.types import MACAddress, QPN
from txrdma.mad.core.frames import managementPacket
from txrdma.mad.layouts.attributes import Method
from txrdma.test.support.mad.commanding import CommandTestCase
from txrdma.test.support.mad.simulated import gmp

QUESTION = managementPacket(Method.GET, 0x1234, 0x0011, 0, b"", gmp(7), 0)
"""A request for the NodeInfo of LID 7."""

TRANSPORT = (
    BTH(opcode=Opcode.UD_SEND_ONLY, destination=QPN(1)).encode()
    + DETH(qkey=0x80010000, source=QPN(1)).encode()
)
HERE = CapturePosition("192.0.2.1", 50000, MACAddress.fromString("02:00:00:00:00:01"))
THERE = CapturePosition("192.0.2.2", 4791, MACAddress.fromString("02:00:00:00:00:02"))


def block(kind: int, body: bytes, order: str = "<") -> bytes:
    body += bytes(-len(body) % 4)
    length = struct.pack(order + "I", len(body) + 12)
    return struct.pack(order + "I", kind) + length + body + length


def packet(data: bytes, when: int = 0, number: int = 0, order: str = "<") -> bytes:
    head = struct.pack(order + "IIIII", number, when >> 32, when & 0xFFFFFFFF, len(data), len(data))
    return block(6, head + data, order)


class CaptureTestCase(CommandTestCase):
    def put(self, *parts: bytes) -> str:
        path: str = self.mktemp()
        Path(path).write_bytes(b"".join(parts))
        return path

    def roce(self, transports: Iterable[bytes] = (TRANSPORT + QUESTION,)) -> str:
        """Return a capture of RoCE v2."""
        path: str = self.mktemp()
        with open(path, "wb") as file:
            capture = RoCECapture(file)
            for number, transport in enumerate(transports):
                capture.packet(HERE, THERE, transport, 1.0 + number)
        return path
