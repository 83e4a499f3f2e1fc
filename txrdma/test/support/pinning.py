"""
Software devices that pin registered memory, as adapters do, in a process that may pin a number of bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from txrdma.error import ResourceExhausted
from txrdma.iba.verbs import Access
from txrdma.soft.device import SoftDevice

INLINE = 220
"""Maximum number of inline bytes of the device; longer requests are sent from registered memory."""


class Pinned:
    """
    The registered memory of one process.

    @ivar most: bytes that may be registered at the same time; C{peak} were at most.
    @ivar refused: registrations that were refused.
    """

    def __init__(self, most: int = 8 << 20) -> None:
        self.most = most
        self.peak = self.refused = 0
        self._regions: list[Any] = []

    def limit(self, device: SoftDevice) -> SoftDevice:
        """Count what is registered with a device from now on, and return the device."""
        device.limits = replace(device.limits, maxInline=INLINE)
        createDomain = device.createProtectionDomain

        def createProtectionDomain() -> Any:
            domain: Any = createDomain()
            allocate, register = domain.allocateMemory, domain.registerMemory

            def allocateMemory(length: int, access: Access) -> Any:
                return self._count(length, lambda: allocate(length, access))

            def registerMemory(buffer: memoryview, access: Access) -> Any:
                return self._count(buffer.nbytes, lambda: register(buffer, access))

            domain.allocateMemory, domain.registerMemory = allocateMemory, registerMemory
            return domain

        device.createProtectionDomain = createProtectionDomain  # type: ignore[method-assign]  # to count
        return device

    @property
    def total(self) -> int:
        self._regions = [each for each in self._regions if each.valid]
        return sum(each.length for each in self._regions)

    def _count(self, length: int, make: Callable[[], Any]) -> Any:
        total = self.total + length
        if total > self.most:
            self.refused += 1
            raise ResourceExhausted(f"{length} bytes more than ulimit -l allows")
        region = make()
        self._regions.append(region)
        self.peak = max(self.peak, total)
        return region
