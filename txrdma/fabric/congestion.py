"""
Congestion: the share of time for which ports wait for credits, and the causes.

Follows InfiniBand Architecture vol. 1, 16.1.3.5 (PortXmitWait), 16.1.3.2 (ticks), annex A10.6.1 (FECN, BECN).
A port waits while the next switch or host has no buffer for its packets. If that is a switch, its own output
ports that wait or are full are the cause, and so on, until a host that takes packets too slowly, or a link
that is fully used. All ports on the path to the cause are victims.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from heapq import nlargest
from typing import Final

from txrdma.fabric.adaptive import MELLANOX
from txrdma.fabric.health import Finding
from txrdma.fabric.model import Fabric, Port, PortKey
from txrdma.fabric.rates import dataRate
from txrdma.fabric.texts import listed
from txrdma.kit.graphs import origins

CONGESTED: Final = 0.1
"""Share of time for which a port waits above which it is congested."""

FULL: Final = 0.9
"""Share of its data rate above which a link is full."""

MOST_CAUSES: Final = 200
"""Largest number of causes that are reported: those with most victims."""

_TICK_OF_PORT: Final = 7
"""Tick of NVIDIA's switches from Quantum on, which count octets of the port and not of a lane."""


@dataclass(frozen=True, slots=True)
class CreditWait:
    """
    The waits of a port for credits, and the congestion marks that it received.

    @ivar share: share of time, up to 1; 0 for a port that only receives marks.
    @ivar lanes: virtual lanes that have waited; empty if the port does not count by lane.
    @ivar fecn: share of received packets with FECN, C{becn} with BECN; None if that is unknown.
    """

    share: float
    lanes: tuple[int, ...] = ()
    fecn: float | None = None
    becn: float | None = None


def waitShare(port: Port, ticksPerSecond: float, tick: int) -> float | None:
    """
    Return the share of time for which a port waits; None if the data rate of its link is unknown.

    A tick is a multiple of the time in which one lane sends an octet.

    @param tick: field Tick of the port's PortSamplesControl.
    """
    rate = dataRate(port)
    octets = ticksPerSecond * (tick + 1)
    if not (tick == _TICK_OF_PORT and port.node.isSwitch and port.node.vendorID == MELLANOX):
        octets *= port.width
    return min(1.0, octets / rate) if rate else None


def congestionFindings(
    fabric: Fabric, waits: Mapping[PortKey, CreditWait], load: Callable[[Port], float | None]
) -> list[Finding]:
    """
    Return a finding for each cause of congestion, at the port to which packets for it are sent.

    @param waits: ports that wait.
    @param load: returns the share of its data rate that a port sends; None if unknown.
    """
    return list(_Congestion(fabric, waits, load).findings())


class _Congestion:
    """One search for causes: from each port that waits, along the ports for which it waits, to the last."""

    def __init__(
        self, fabric: Fabric, waits: Mapping[PortKey, CreditWait], load: Callable[[Port], float | None]
    ) -> None:
        self._waits = waits
        self._load = load
        self._congested: dict[Port, CreditWait] = {}
        for (guid, number), wait in waits.items():
            port = fabric.portAt(guid, number)
            if port is not None and port.peer is not None and wait.share >= CONGESTED:
                self._congested[port] = wait

    def findings(self) -> Iterator[Finding]:
        """Return a finding for each cause, of those with most victims."""

        def size(one: tuple[Port, list[Port]]) -> tuple[int, float]:
            return len(one[1]), self._share(one[0])

        for cause, victims in nlargest(MOST_CAUSES, self._victims().items(), key=size):
            kind, text = self._describe(cause)
            if victims:
                shown = sorted(victims, key=lambda each: (-self._share(each), str(each)))
                names = listed([f"{each} ({self._share(each):.0%})" for each in shown])
                text += f"; because of it wait {names}"
            yield Finding(kind, str(cause), text, cause.node.guid, cause.number)

    def _victims(self) -> dict[Port, list[Port]]:
        """Return the causes, each with the ports that wait because of it: those to which it is nearest."""
        behind: dict[Port, list[Port]] = defaultdict(list)
        causes: dict[Port, list[Port]] = {}
        for port in self._congested:
            following = list(self._following(port))
            for each in following:
                behind[each].append(port)
                if each not in self._congested:
                    causes[each] = []
            if not following:
                causes[port] = []
        known: dict[Port, Port] = {}

        def unknown(port: Port) -> list[Port]:
            return [each for each in behind.get(port, ()) if each not in known]

        known.update(origins(causes, unknown))
        left = [port for port in self._congested if port not in known]
        for port in sorted(left, key=lambda each: (-self._share(each), str(each))):
            if port not in known:  # they wait in a circle: the one that waits longest
                known.update(origins([port], unknown))
        for port, cause in known.items():
            several = causes.setdefault(cause, [])
            if port is not cause:
                several.append(port)
        return causes

    def _following(self, port: Port) -> Iterator[Port]:
        """Return the output ports of the next switch that wait or are full."""
        peer = port.peer
        if peer is None or not peer.node.isSwitch:
            return
        for out in peer.node.linked():
            if out is not peer and (out in self._congested or self._isFull(out)):
                yield out

    def _share(self, port: Port) -> float:
        wait = self._congested.get(port)
        return 0.0 if wait is None else wait.share

    def _isFull(self, port: Port) -> bool:
        return (self._load(port) or 0.0) >= FULL

    def _describe(self, port: Port) -> tuple[str, str]:
        """Return the kind of a cause, and its description."""
        wait, peer, load = self._congested.get(port), port.peer, self._load(port)
        if wait is None or self._isFull(port):
            return "link-full", f"its link to {peer} carries {load:.0%} of what it can"
        parts = [f"it waits {wait.share:.0%} of the time for {peer}"]
        if wait.lanes:
            parts.append(f"on virtual lanes {', '.join(map(str, wait.lanes))}")
        ends = ((peer, "FECN"), (port, "BECN"))
        for end, mark in ends:
            known = None if end is None else self._waits.get((end.node.guid, end.number))
            share = None if known is None else known.fecn if mark == "FECN" else known.becn
            if share:
                parts.append(f"{end} receives {mark} in {share:.0%} of its packets")
        isHost = peer is not None and not peer.node.isSwitch
        return "slow-receiver" if isHost else "congestion", ", ".join(parts)
