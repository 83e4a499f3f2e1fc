"""
First packets of peers that are to come.

Two modules choose names for each other and exchange them over the lifeline. The first packets of a peer may
arrive before its introduction: they are held until it is known, and need not be sent again.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from txrdma.kit.wire import Buffer

MOST_NAMES: Final = 128
"""Names that are expected at a time; the oldest one is forgotten for another one."""

MOST_PACKETS: Final = 4
"""Packets that are kept for a name: the two probes, and a few that come twice."""

Early = tuple[int, Hashable, bytes]
"""A packet with its channel and the address that it came from."""


class EarlyPackets:
    """The names of peers that are to come, with the first packets of each."""

    __slots__ = ("_packets",)

    def __init__(self) -> None:
        self._packets: dict[int, list[Early]] = {}

    def expect(self, name: int) -> None:
        """Keep packets of this name from now on, until they are taken."""
        self._packets[name] = []
        if len(self._packets) > MOST_NAMES:
            del self._packets[next(iter(self._packets))]

    def keep(self, name: int, channel: int, address: Hashable, packet: Buffer) -> bool:
        """Hold a packet; True if its name is expected and there was space."""
        held = self._packets.get(name)
        if held is None or len(held) >= MOST_PACKETS:
            return False
        held.append((channel, address, bytes(packet)))
        return True

    def take(self, name: int) -> list[Early]:
        """Take the packets of a name, which is expected no more."""
        return self._packets.pop(name, [])
