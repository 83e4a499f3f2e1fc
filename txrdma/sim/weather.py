"""
Weather of a simulated fabric: traffic that comes and goes, cables that rot, links that flap, hosts that die.

Traffic is that of streams between hosts, which take the way that the forwarding tables have for them. All
that happens follows from the seed and the time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Final, NamedTuple

from twisted.internet.interfaces import IDelayedCall

from txrdma.fabric.excess import MOST_HOPS
from txrdma.fabric.routing import NO_PORT
from txrdma.sim.fabric.fabric import SimulatedFabric
from txrdma.sim.fabric.model.nodes import SimulatedNode, SimulatedPort

TURN_SECONDS: Final = 5.0
"""Seconds between changes of traffic and of the rotten cable."""

STREAMS_PER_HOST: Final = 1.5
"""Streams at a time, for each host of the fabric."""

_MOST_WORDS: Final = 2.5e9
_WORDS_IN_PACKET: Final = 1024
_CORRECTED: Final = {
    "portFECCorrectedSymbolCtr": 40.0,
    "portFECCorrectableBlockCtr": 38.0,
    **{f"fecCorrectableSymbolCtrLanes{lane}": 10.0 for lane in range(4)},
}
"""Symbols that error correction mends each second on a good link with four levels of voltage (PAM4)."""

_FIRST_ERRORS: Final = 0.02
_MOST_ERRORS: Final = 30.0
_ROT: Final = 1.25


class _Stream(NamedTuple):
    ports: list[SimulatedPort]
    words: float


class Weather:
    """
    Weather of one fabric, from L{start} to L{stop}.

    @ivar told: what has happened so far, with the times.
    """

    def __init__(self, fabric: SimulatedFabric, seed: int = 0) -> None:
        self.told: list[tuple[float, str]] = []
        self._fabric = fabric
        self._random = Random(seed)
        self._calls: dict[IDelayedCall, None] = {}
        self._streams: list[_Stream] = []
        self._busy: set[SimulatedPort] = set()
        hosts = [node for node in fabric.nodes.values() if not node.isSwitch and _linkOf(node) is not None]
        between = [
            port
            for node in fabric.nodes.values()
            if node.isSwitch
            for port in node.external
            if port.way is not None and port.way.node.isSwitch
        ]
        self._hosts = hosts[1:-1]  # the first is the monitor's, the last the subnet manager's
        self._between = between
        self._rotten = self._random.choice(between) if between else None
        self._errors = 0.0

    def start(self, hasFaults: bool = True) -> None:
        """Let the weather begin: traffic, then a fault of each kind, then by chance."""
        self._turn()
        if not hasFaults:
            return
        self._in(20.0, self._rot)
        self._in(35.0, self._flap)
        self._in(50.0, self._die)
        self._in(120.0, self._hang)

    def stop(self) -> None:
        """End the weather: things stay as they are."""
        for call in self._calls:
            call.cancel()
        self._calls.clear()

    def _in(self, seconds: float, happen: Callable[[], None]) -> None:
        def run() -> None:
            del self._calls[call]
            happen()

        call = self._fabric.clock.callLater(seconds, run)
        self._calls[call] = None

    def _tell(self, text: str) -> None:
        self.told.append((self._fabric.clock.seconds(), text))

    # Traffic.

    def _turn(self) -> None:
        self._in(TURN_SECONDS, self._turn)
        wanted = int(len(self._hosts) * STREAMS_PER_HOST)
        ended = max(1, wanted // 20)
        self._streams = self._streams[ended:] if len(self._streams) >= wanted else self._streams
        for _ in range(wanted - len(self._streams)):
            self._streams.append(self._stream())
        self._flow()
        if self._errors and self._rotten is not None:
            self._errors = min(_MOST_ERRORS, self._errors * _ROT)
            self._rotten.count().grow(
                self._fabric.clock.seconds(),
                symbolErrorCounter=self._errors,
                portRcvErrors=self._errors / 10,
                portFECUncorrectableBlockCtr=self._errors / 10,
            )

    def _stream(self) -> _Stream:
        begin, end = self._random.sample(self._hosts, 2)
        share: float = self._random.random() ** 3
        return _Stream(_way(self._fabric, begin, end), share * _MOST_WORDS)

    def _flow(self) -> None:
        """Let all ports on the way of a stream count its data."""
        now = self._fabric.clock.seconds()
        out: Counter[SimulatedPort] = Counter()
        into: Counter[SimulatedPort] = Counter()
        for stream in self._streams:
            for port in stream.ports:
                if port.way is None:
                    break
                out[port] += int(stream.words)
                into[port.way] += int(stream.words)
        for port in self._busy | out.keys() | into.keys():
            most = 4 * _MOST_WORDS
            sent, received = min(out[port], most), min(into[port], most)
            port.count().grow(
                now,
                **_CORRECTED,
                portXmitData=sent,
                portXmitPkts=sent / _WORDS_IN_PACKET,
                portUnicastXmitPkts=sent / _WORDS_IN_PACKET,
                portRcvData=received,
                portRcvPkts=received / _WORDS_IN_PACKET,
                portUnicastRcvPkts=received / _WORDS_IN_PACKET,
            )
        self._busy = set(out) | set(into)

    # Faults.

    def _rot(self) -> None:
        if self._rotten is not None:
            self._errors = _FIRST_ERRORS
            self._tell(f"the cable at {_named(self._rotten)} begins to rot")

    def _flap(self) -> None:
        """Let one link go down and up, four times, and another one some minutes later."""
        if not self._between:
            return
        port = self._random.choice([port for port in self._between if port is not self._rotten])
        self._tell(f"the link at {_named(port)} flaps")
        for time in range(4):
            self._in(time * 12.0, lambda: self._fabric.cut(port.node.identifier, port.number))
            self._in(time * 12.0 + 4.0, lambda: self._fabric.heal(port.node.identifier, port.number))
        self._in(self._random.uniform(300.0, 900.0), self._flap)

    def _die(self) -> None:
        """Let a host lose its power for a while."""
        host = self._random.choice(self._hosts)
        number = _linkOf(host)
        if number is not None:
            self._tell(f"{host.identifier} dies")
            self._fabric.cut(host.identifier, number)
            self._in(self._random.uniform(90.0, 240.0), lambda: self._fabric.heal(host.identifier, number))
        self._in(self._random.uniform(120.0, 600.0), self._die)

    def _hang(self) -> None:
        """Let a host answer nothing for a while, with its link up."""
        host = self._random.choice(self._hosts)
        self._tell(f"{host.identifier} hangs")
        self._fabric.silence(host.identifier)
        self._in(self._random.uniform(60.0, 180.0), lambda: self._fabric.revive(host.identifier))
        self._in(self._random.uniform(300.0, 900.0), self._hang)


def _linkOf(node: SimulatedNode) -> int | None:
    return next((port.number for port in node.external if port.way is not None), None)


def _named(port: SimulatedPort) -> str:
    return f"{port.node.identifier} port {port.number}"


def _way(fabric: SimulatedFabric, begin: SimulatedNode, end: SimulatedNode) -> list[SimulatedPort]:
    """Ports that packets leave by on their way between two hosts, as far as the tables lead."""
    first, last = _linkOf(begin), _linkOf(end)
    if first is None or last is None:
        return []
    lid = end.ports[last].lid
    found = [begin.ports[first]]
    while len(found) < MOST_HOPS:
        there = found[-1].way
        if there is None or not there.node.isSwitch:
            break
        table = fabric.linearOf(there.node)
        number = table[lid] if lid < len(table) else NO_PORT
        if number in (0, NO_PORT) or number > there.node.numPorts:
            break
        found.append(there.node.ports[number])
    return found
