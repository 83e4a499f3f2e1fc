"""
Counters of a simulated port: numbers that are set, and numbers that grow with time.

Follows InfiniBand Architecture vol. 1, 16.1.3.5 (PortCounters) and 16.1.4.11 (PortCountersExtended). Both
read one set of numbers; a counter of 8, 16 or 32 bits stops at its maximum.
"""

from __future__ import annotations


class SimulatedCounters:
    """
    Counters of a simulated port, named as in performance management; data in units of four bytes.

    @ivar encoded: encoded attributes, by their layouts, while no counter grows: this saves a quarter of a
        rehearsal's time.
    """

    __slots__ = ("_now", "_rates", "_values", "encoded")

    def __init__(self) -> None:
        self.encoded: dict[object, bytes] = {}
        self._values: dict[str, float] = {}
        self._rates: dict[str, float] = {}
        self._now = 0.0

    def value(self, name: str, now: float) -> int:
        """Return the current value of a counter."""
        stored = self._values.get(name, 0.0)
        rate = self._rates.get(name)
        return int(stored if rate is None else stored + rate * (now - self._now))

    @property
    def isGrowing(self) -> bool:
        """Return whether any counter grows."""
        return bool(self._rates)

    def set(self, now: float | None = None, /, **values: int) -> None:
        """Set counters to these values."""
        self.encoded.clear()
        if now is not None:
            self._settle(now)
        for name, value in values.items():
            self._values[name] = value

    def clear(self, now: float) -> None:
        """Set all counters to zero; they continue to grow."""
        self._settle(now)
        self._values.clear()

    def add(self, **values: int) -> None:
        """Increase counters by these numbers."""
        self.encoded.clear()
        for name, value in values.items():
            self._values[name] = self._values.get(name, 0) + value

    def grow(self, now: float, /, **rates: float) -> None:
        """Let counters grow at these rates per second from now on; 0 stops a counter."""
        self._settle(now)
        for name, rate in rates.items():
            if rate:
                self._rates[name] = rate
            else:
                self._rates.pop(name, None)

    def carry(self, now: float, words: tuple[float, float], packets: tuple[float, float]) -> None:
        """Let the counters of traffic grow at these rates per second: those of sent and received data."""
        self.grow(
            now,
            portXmitData=words[0],
            portXmitPkts=packets[0],
            portUnicastXmitPkts=packets[0],
            portRcvData=words[1],
            portRcvPkts=packets[1],
            portUnicastRcvPkts=packets[1],
        )

    def _settle(self, now: float) -> None:
        """Add the growth until now to the values, before rates or values change."""
        self.encoded.clear()
        for name, rate in self._rates.items():
            self._values[name] = self._values.get(name, 0.0) + rate * (now - self._now)
        self._now = now
