"""
Packets as received by UDP port 4791: from the BTH on.
"""

from __future__ import annotations


def toQueuePair(number: int, length: int = 64) -> bytes:
    """Return a packet to a queue pair, with zeros elsewhere."""
    return bytes(5) + number.to_bytes(3, "big") + bytes(length - 8)


def message(attribute: int, body: bytes, managementClass: int = 7) -> bytes:
    """Return a management datagram to queue pair 1."""
    mad = bytes((1, managementClass, 2, 3)) + bytes(12) + attribute.to_bytes(2, "big") + bytes(6)
    return toQueuePair(1, 20) + mad + body.ljust(232, b"\0") + bytes(4)
