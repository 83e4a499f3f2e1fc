"""
Packets that arrive before the introduction of their sender.

Two modules choose names for each other and exchange them over the lifeline. The first packets of a peer may
arrive before its introduction; they are queued, so that the peer need not retransmit them.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from txrdma.kit.wire import Buffer

MOST_NAMES: Final = 128
"""Largest number of expected names; the oldest one is dropped for a new one."""

MOST_PACKETS: Final = 4
"""Packets that are queued for a name: the two probes, and some duplicates."""

Early = tuple[int, Hashable, bytes]
"""A packet with its channel and the address that it came from."""


class EarlyPackets:
    """The names of expected peers, with the queued packets of each."""

    __slots__ = ("_packets",)

    def __init__(self) -> None:
        self._packets: dict[int, list[Early]] = {}

    def expect(self, name: int) -> None:
        """Queue packets from the peer that got this name, until its introduction arrives (L{take})."""
        self._packets[name] = []
        if len(self._packets) > MOST_NAMES:
            del self._packets[next(iter(self._packets))]

    def queue(self, name: int, channel: int, address: Hashable, packet: Buffer) -> bool:
        """Queue a packet. Return whether its name is expected and the queue had space."""
        held = self._packets.get(name)
        if held is None or len(held) >= MOST_PACKETS:
            return False
        held.append((channel, address, bytes(packet)))
        return True

    def take(self, name: int) -> list[Early]:
        """Remove and return the packets of a name, which is no longer expected."""
        return self._packets.pop(name, [])
