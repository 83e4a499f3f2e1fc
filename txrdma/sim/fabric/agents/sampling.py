"""
Sampling of counters at a simulated fabric's ports: their growth in an interval.

Follows InfiniBand Architecture vol. 1, 16.1.3.2 (PortSamplesControl), 16.1.3.4 (PortSamplesResult), 16.1.4.12
(PortSamplesResultExtended). Each adapter port, and each switch, samples one port at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from txrdma.kit.rawfields import peek
from txrdma.mad.layouts.pma import PortSamplesControl, PortSamplesResult, PortSamplesResultExtended
from txrdma.mad.layouts.smp import PortInfo
from txrdma.mad.layouts.values import EXTENDED_GIGABITS, GIGABITS, LinkSpeed, LinkSpeedExtended
from txrdma.sim.fabric.model.nodes import SimulatedPort

CONTROL: Final = PortSamplesControl.attributeID
RESULT: Final = PortSamplesResult.attributeID
EXTENDED: Final = PortSamplesResultExtended.attributeID
ATTRIBUTES: Final = frozenset((CONTROL, RESULT, EXTENDED))

DONE, STARTING, SAMPLING = 0, 1, 2
"""Values of the field SampleStatus in PortSamplesControl."""

SAMPLED: Final = {1: "portXmitData", 2: "portRcvData", 3: "portXmitPkts", 4: "portRcvPkts", 5: "portXmitWait"}
"""Counters that can be sampled, by CounterSelect code: those that every port has."""

CLOCK_NANOSECONDS: Final = 4.0
"""Approximate length of a tick, which is rounded to the unit of the field: the time of ten bits on a lane."""

_32_BITS: Final = 4
_64_BITS: Final = 2
_MOST: Final = {RESULT: (1 << 32) - 1, EXTENDED: (1 << 64) - 1}


_speedActive, _extendedActive = peek(PortInfo, "linkSpeedActive"), peek(PortInfo, "linkSpeedExtActive")


def tickOf(port: SimulatedPort) -> tuple[int, float]:
    """Return the length of a port's sampling tick: the value of the field Tick, and seconds."""
    extended = _extendedActive(port.info)
    gigabits = (
        EXTENDED_GIGABITS.get(LinkSpeedExtended(extended), 0.0)
        if extended
        else GIGABITS.get(LinkSpeed(_speedActive(port.info)), 0.0)
    ) or 2.5
    tick = max(0, min(255, round(CLOCK_NANOSECONDS * gigabits / 10) - 1))
    return tick, (tick + 1) * 10 / gigabits * 1e-9


class _Sampler:
    """The current or the last sample of an end port."""

    def __init__(self, port: SimulatedPort, control: PortSamplesControl) -> None:
        self.port = port
        self.control = control
        self.status = STARTING
        self.counts = [0] * len(control.counterSelects)

    def sample(self, now: float) -> list[int]:
        counters = self.port.counters
        names = (SAMPLED.get(select) for select in self.control.counterSelects)
        return [0 if name is None or counters is None else counters.value(name, now) for name in names]


class Samplers:
    """Sampling at all ports of a simulated fabric, at most one sample for each end port at a time."""

    def __init__(self, seconds: Callable[[], float], later: Callable[..., None]) -> None:
        """
        @param seconds: returns the current time.
        @param later: schedules a call after some seconds.
        """
        self._seconds = seconds
        self._later = later
        self._samplers: dict[SimulatedPort, _Sampler] = {}

    def set(self, end: SimulatedPort, port: SimulatedPort, control: PortSamplesControl) -> None:
        """Begin to sample a port, unless the end port samples already (IBA 16.1.3.2, SampleStatus)."""
        before = self._samplers.get(end)
        if before is not None and before.status != DONE:
            return
        sampler = self._samplers[end] = _Sampler(port, control)
        self._later(control.sampleStart * tickOf(port)[1], self._begin, sampler)

    def _begin(self, sampler: _Sampler) -> None:
        sampler.status = SAMPLING
        sampler.counts = sampler.sample(self._seconds())
        self._later(sampler.control.sampleInterval * tickOf(sampler.port)[1], self._end, sampler)

    def _end(self, sampler: _Sampler) -> None:
        sampler.status = DONE
        now = sampler.sample(self._seconds())
        sampler.counts = [max(0, end - begin) for begin, end in zip(sampler.counts, now, strict=True)]

    def control(self, end: SimulatedPort, port: SimulatedPort) -> PortSamplesControl:
        """Return the PortSamplesControl of a port, with the settings and the status of its sample."""
        sampler = self._samplers.get(end)
        values: dict[str, Any] = {}
        status = DONE
        if sampler is not None and sampler.port is port:
            status = sampler.status
            names = ("opCode", "sampleStart", "sampleInterval", "tag", "counterSelects")
            values = {name: getattr(sampler.control, name) for name in names}
        return PortSamplesControl(
            portSelect=port.number,
            tick=tickOf(port)[0],
            counterWidth=_32_BITS,
            counterMasks0=(1,) * 10,
            counterMask10To14=0o11111,
            sampleStatus=status,
            **values,
        )

    def result(self, end: SimulatedPort, attribute: int) -> PortSamplesResult | PortSamplesResultExtended:
        """Return the results of an end port's sample; zeros until it is done."""
        sampler = self._samplers.get(end)
        status, tag, counts = DONE, 0, [0] * 15
        if sampler is not None:
            status, tag = sampler.status, sampler.control.tag
            if status == DONE:
                counts = sampler.counts
        counted = tuple(min(count, _MOST[attribute]) for count in counts)
        if attribute == RESULT:
            return PortSamplesResult(tag=tag, sampleStatus=status, counters=counted)
        return PortSamplesResultExtended(
            tag=tag, sampleStatus=status, extendedWidth=_64_BITS, counters=counted
        )
