"""
The M_Keys of a simulated fabric's ports: whom they let pass, and for how long.

Follows InfiniBand Architecture vol. 1, 14.2.4.1 (protection levels) and 14.2.4.3 (the lease period).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from txrdma.sim.fabric.model.nodes import SimulatedPort

GET: Final = 0x01
_PROTECTION: Final = 34
"""Byte of a PortInfo whose highest bits are the M_Key's."""

_MOST: Final = 0xFFFF


class ManagementKeys:
    """All of them."""

    def __init__(
        self, seconds: Callable[[], float], violated: Callable[[SimulatedPort, bytes], None]
    ) -> None:
        """
        @param seconds: tells the time, for leases.
        @param violated: is told of requests with a wrong key.
        """
        self._seconds = seconds
        self._violated = violated
        self._until: dict[SimulatedPort, float] = {}

    @staticmethod
    def of(end: SimulatedPort) -> int:
        """The key of a port; 0 is none."""
        return int.from_bytes(end.info[:8], "big")

    def permits(self, end: SimulatedPort, method: int, mkey: int, datagram: bytes) -> bool:
        """
        Whether a request may be answered.

        The lease begins with the first wrong key and ends with the next right one; who lets it run out leaves
        the port unprotected, so that another manager can read the key.
        """
        if mkey == self.of(end):
            self._until.pop(end, None)
            return True
        self.expire(end)
        if method == GET and end.info[_PROTECTION] >> 6 < 2:
            return True
        violations = min(int.from_bytes(end.info[44:46], "big") + 1, _MOST)
        end.info[44:46] = violations.to_bytes(2, "big")
        period = int.from_bytes(end.info[26:28], "big")
        if period:
            self._until.setdefault(end, self._seconds() + period)
        self._violated(end, datagram)
        return False

    def hides(self, end: SimulatedPort, mkey: int) -> bool:
        """Whether who asks with this key may look, but does not see the port's own."""
        return end.info[_PROTECTION] & 0xC0 == 0x40 and mkey != self.of(end)

    def expire(self, end: SimulatedPort) -> None:
        """End the lease, if it is time."""
        until = self._until.get(end)
        if until is not None and until <= self._seconds():
            del self._until[end]
            end.info[_PROTECTION] &= 0x3F
