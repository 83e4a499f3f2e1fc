"""Faults of a simulated fabric at planned times, unlike those of L{txrdma.sim.faultgenerator}."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from twisted.internet.interfaces import IDelayedCall

from txrdma.iba.types import GUID
from txrdma.sim.fabric.fabric import SimulatedFabric
from txrdma.sim.fabric.model.nodes import SimulatedPort

FAULTS: Final = ("flap", "cut", "errors", "lost", "hang", "reset")
"""Kinds of faults."""


@dataclass(frozen=True, slots=True)
class Fault:
    """
    A planned fault.

    @ivar kind: one of L{FAULTS}. C{flap}: a link goes down several times. C{cut}: a link is down. C{errors}:
        counters grow. C{lost}: all links of a node are down. C{hang}: its agents do not answer. C{reset}: its
        counters, or those of one port, are set to zero.
    @ivar atSeconds: its time, from the beginning of the plan.
    @ivar node: name, description or GUID of the node.
    @ivar port: number of the port; None for the first one with a link, or for all where the kind permits it.
    @ivar forSeconds: time until it ends; None for no end.
    @ivar times: number of times that a link flaps; C{everySeconds}: time between them, of which it is down
        for C{downSeconds}.
    @ivar rates: growth of counters per second.
    """

    kind: str
    atSeconds: float
    node: str
    port: int | None = None
    forSeconds: float | None = None
    times: int = 4
    everySeconds: float = 30.0
    downSeconds: float = 4.0
    rates: Mapping[str, float] = field(default_factory=dict)

    @property
    def where(self) -> str:
        """Its location, for readers."""
        return self.node if self.port is None else f"{self.node} port {self.port}"

    def __str__(self) -> str:
        text = f"{self.kind} at {self.where}"
        if self.kind == "flap":
            return f"{text}: {self.times} times, every {self.everySeconds:g} s"
        if self.rates:
            rates = ", ".join(f"{name} {rate:g} each second" for name, rate in self.rates.items())
            text = f"{text}: {rates}"
        return text if self.forSeconds is None else f"{text} for {self.forSeconds:g} s"


class FaultPlan:
    """
    Causes the faults of a plan in a fabric, from L{start} to L{stop}. Where faults overlap, the last one to
    end heals the link, or revives the node.

    @ivar log: called with the text of each fault when it begins and ends.
    """

    def __init__(
        self, fabric: SimulatedFabric, faults: Iterable[Fault], log: Callable[[str], object] = len
    ) -> None:
        """@raise ValueError: there is no such node, port or counter."""
        self._fabric = fabric
        self._faults = list(faults)
        self._log = log
        self._calls: list[IDelayedCall] = []
        self._active = Counter[object]()  # faults by cut port or hanging node
        for fault in self._faults:
            self.portOf(fault)
            if fault.rates:
                self._grow(fault, dict.fromkeys(fault.rates, 0.0))

    def portOf(self, fault: Fault) -> SimulatedPort:
        """Return the port of a fault; raise C{ValueError} if there is none."""
        if fault.port is not None:
            return self._fabric.port(fault.node, fault.port)
        node = self._fabric.node(fault.node)
        return next((port for port in node.external if port.neighbor is not None), node.external[0])

    def guidsOf(self, fault: Fault) -> set[GUID]:
        """Return the GUIDs of a fault's node and of the neighbour whose link it concerns."""
        port = self.portOf(fault)
        found = {port.node.guid}
        if port.peer is not None and fault.kind in ("flap", "cut", "errors"):
            found.add(port.peer.node.guid)
        return found

    def _place(self, fault: Fault) -> tuple[str, int]:
        port = self.portOf(fault)
        return port.node.identifier, port.number

    def _grow(self, fault: Fault, rates: Mapping[str, float]) -> None:
        name, number = self._place(fault)
        self._fabric.growCounters(name, number, **rates)

    def start(self) -> None:
        """Schedule all faults; the plan begins now."""
        for fault in self._faults:
            self._later(fault.atSeconds, self._begin, fault)

    def stop(self) -> None:
        """Cause no further faults; those that have begun remain. Idempotent."""
        for call in self._calls:
            if call.active():
                call.cancel()
        self._calls.clear()

    def _later(self, seconds: float, function: Callable[..., object], *arguments: Any) -> None:
        self._calls.append(self._fabric.clock.callLater(seconds, function, *arguments))

    def _begin(self, fault: Fault) -> None:
        self._log(str(fault))
        fabric, place = self._fabric, self._place(fault)
        node = fabric.node(fault.node)
        ends: list[Callable[[], object]] = []
        if fault.kind == "flap":
            for time in range(fault.times):
                self._later(time * fault.everySeconds, self._cut, *place)
                self._later(time * fault.everySeconds + fault.downSeconds, self._heal, *place)
            return
        if fault.kind in ("cut", "lost"):
            ports = [port for port in node.external if port.neighbor is not None or self._active[port]]
            for number in [place[1]] if fault.kind == "cut" else [port.number for port in ports]:
                self._cut(node.identifier, number)
                ends.append(partial(self._heal, node.identifier, number))
        elif fault.kind == "hang":
            self._active[node] += 1
            fabric.silence(fault.node)
            ends.append(partial(self._revive, fault.node))
        elif fault.kind == "errors":
            self._grow(fault, fault.rates)
            ends.append(partial(self._grow, fault, dict.fromkeys(fault.rates, 0.0)))
        else:
            assert fault.kind == "reset", fault.kind
            for port in node.external if fault.port is None else [self.portOf(fault)]:
                port.count().clear(fabric.clock.seconds())
        if fault.forSeconds is not None:
            self._later(fault.forSeconds, self._end, fault, ends)

    def _cut(self, name: str, number: int) -> None:
        port = self._fabric.port(name, number)
        self._active.update((port, port.peer))
        self._fabric.cut(name, number)

    def _heal(self, name: str, number: int) -> None:
        port = self._fabric.port(name, number)
        self._active.subtract((port, port.peer))
        if not self._active[port]:
            self._fabric.heal(name, number)

    def _revive(self, name: str) -> None:
        node = self._fabric.node(name)
        self._active[node] -= 1
        if not self._active[node]:
            self._fabric.revive(name)

    def _end(self, fault: Fault, ends: Iterable[Callable[[], object]]) -> None:
        self._log(f"end of {fault.kind} at {fault.where}")
        for end in ends:
            end()
