"""
M_Keys of a simulated fabric's ports: protection against SMPs, and the lease period.

Follows InfiniBand Architecture vol. 1, 14.2.4.1 (protection levels) and 14.2.4.3 (the lease period).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from txrdma.kit.rawfields import peek, poke
from txrdma.mad.layouts.smp import PortInfo
from txrdma.sim.fabric.model.nodes import SimulatedPort

GET: Final = 0x01
_MOST: Final = 0xFFFF


_mkey, _leasePeriod = peek(PortInfo, "mkey"), peek(PortInfo, "mkeyLeasePeriod")
_protection, _setProtection = peek(PortInfo, "mkeyProtectBits"), poke(PortInfo, "mkeyProtectBits")
_violations, _setViolations = peek(PortInfo, "mkeyViolations"), poke(PortInfo, "mkeyViolations")


class ManagementKeys:
    """M_Keys of all ports of a simulated fabric, with their leases."""

    def __init__(
        self, seconds: Callable[[], float], violated: Callable[[SimulatedPort, bytes], None]
    ) -> None:
        """
        @param seconds: returns the current time, for leases.
        @param violated: called with the port and the SMP whose M_Key is wrong.
        """
        self._seconds = seconds
        self._violated = violated
        self._until: dict[SimulatedPort, float] = {}

    @staticmethod
    def of(end: SimulatedPort) -> int:
        """Return the M_Key of a port; 0 if it has none."""
        return int(_mkey(end.info))

    def permits(self, end: SimulatedPort, method: int, mkey: int, datagram: bytes) -> bool:
        """
        Return whether an SMP may be answered, by its M_Key.

        The lease begins with the first wrong M_Key and ends with the next right one. When the lease expires,
        the port becomes unprotected, so that another SM can read the M_Key.
        """
        if mkey == self.of(end):
            self._until.pop(end, None)
            return True
        self.expire(end)
        if method == GET and _protection(end.info) < 2:
            return True
        _setViolations(end.info, min(_violations(end.info) + 1, _MOST))
        period = _leasePeriod(end.info)
        if period:
            self._until.setdefault(end, self._seconds() + period)
        self._violated(end, datagram)
        return False

    def hides(self, end: SimulatedPort, mkey: int) -> bool:
        """Return whether an SMP with this M_Key may read PortInfo, but not the port's M_Key."""
        return _protection(end.info) == 1 and mkey != self.of(end)

    def expire(self, end: SimulatedPort) -> None:
        """End the protection of a port whose lease has expired."""
        until = self._until.get(end)
        if until is not None and until <= self._seconds():
            del self._until[end]
            _setProtection(end.info, 0)
