"""
Faults and traffic of a simulated fabric: degrading cables, flapping links, hosts that lose power or hang.

Traffic consists of streams between hosts, along the routes of the forwarding tables. The seed and the time
determine everything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Final, NamedTuple

from twisted.internet.interfaces import IDelayedCall

from txrdma.sim.fabric.fabric import SimulatedFabric
from txrdma.sim.fabric.model.forwarding import exits
from txrdma.sim.fabric.model.nodes import SimulatedNode, SimulatedPort

TURN_SECONDS: Final = 5.0
"""Seconds between changes of the traffic and of the degraded cable."""

STREAMS_PER_HOST: Final = 1.5
"""Concurrent streams per host of the fabric."""

_MAX_WORDS: Final = 2.5e9
_WORDS_IN_PACKET: Final = 1024
_CORRECTED: Final = {
    "portFECCorrectedSymbolCtr": 40.0,
    "portFECCorrectableBlockCtr": 38.0,
    **{f"fecCorrectableSymbolCtrLanes{lane}": 10.0 for lane in range(4)},
}
"""Symbols per second that forward error correction corrects on a good PAM4 link."""

_FIRST_ERRORS: Final = 0.02
_MAX_ERRORS: Final = 30.0
_DEGRADATION: Final = 1.25
_LEAST_DBM: Final = -14
"""Received power to which the light in the degraded cable falls; its alarm is at -10 dBm."""


class _Stream(NamedTuple):
    ports: list[SimulatedPort]
    words: float


class FaultGenerator:
    """
    Generator of traffic and faults in one fabric, from L{start} to L{stop}.

    @ivar log: time and text of each fault so far.
    """

    def __init__(self, fabric: SimulatedFabric, seed: int = 0) -> None:
        self.log: list[tuple[float, str]] = []
        self._fabric = fabric
        self._random = Random(seed)
        self._calls: dict[IDelayedCall, None] = {}
        self._streams: list[_Stream] = []
        self._busy: set[SimulatedPort] = set()
        hosts = [node for node in fabric.nodes.values() if not node.isSwitch and _linkOf(node) is not None]
        trunks = [
            port
            for node in fabric.nodes.values()
            if node.isSwitch
            for port in node.external
            if port.neighbor is not None and port.neighbor.node.isSwitch
        ]
        self._hosts = hosts[1:-1]  # the first runs the monitor, the last the subnet manager
        self._trunks = trunks
        self._degraded = self._random.choice(trunks) if trunks else None
        self._errors = 0.0
        self._light = 0

    def start(self, hasFaults: bool = True) -> None:
        """Start traffic and, unless disabled, one fault of each kind, followed by random faults."""
        self._update()
        if not hasFaults:
            return
        self._callLater(20.0, self._degradeCable)
        self._callLater(35.0, self._flap)
        if self._hosts:
            self._callLater(50.0, self._powerOff)
            self._callLater(120.0, self._hang)

    def stop(self) -> None:
        """Cancel scheduled changes of traffic and faults; current ones remain."""
        for call in self._calls:
            call.cancel()
        self._calls.clear()

    def _callLater(self, seconds: float, action: Callable[[], None]) -> None:
        def run() -> None:
            del self._calls[call]
            action()

        call = self._fabric.clock.callLater(seconds, run)
        self._calls[call] = None

    def _record(self, text: str) -> None:
        self.log.append((self._fabric.clock.seconds(), text))

    # Traffic.

    def _update(self) -> None:
        """Replace a twentieth of the streams, and let the degraded cable get worse."""
        self._callLater(TURN_SECONDS, self._update)
        wanted = int(len(self._hosts) * STREAMS_PER_HOST) if len(self._hosts) > 1 else 0
        ended = max(1, wanted // 20)
        self._streams = self._streams[ended:] if len(self._streams) >= wanted else self._streams
        for _ in range(wanted - len(self._streams)):
            self._streams.append(self._stream())
        self._flow()
        if self._errors and self._degraded is not None:
            self._errors = min(_MAX_ERRORS, self._errors * _DEGRADATION)
            self._degraded.count().grow(
                self._fabric.clock.seconds(),
                symbolErrorCounter=self._errors,
                portRcvErrors=self._errors / 10,
                portFECUncorrectableBlockCtr=self._errors / 10,
            )
            if self._degraded.module:
                self._light = max(_LEAST_DBM, self._light - 1)
                lanes = (self._light & 0xFFFF, 0, 0, 0, *[-40 & 0xFFFF] * 4)
                self._fabric.haveModule(self._degraded.node.identifier, self._degraded.number, rxPower=lanes)

    def _stream(self) -> _Stream:
        begin, end = self._random.sample(self._hosts, 2)
        share: float = self._random.random() ** 3
        return _Stream(_portsBetween(begin, end), share * _MAX_WORDS)

    def _flow(self) -> None:
        """Count the data of each stream at all ports of its route."""
        now = self._fabric.clock.seconds()
        out: Counter[SimulatedPort] = Counter()
        into: Counter[SimulatedPort] = Counter()
        for stream in self._streams:
            for port in stream.ports:
                if port.neighbor is None:
                    break
                out[port] += int(stream.words)
                into[port.neighbor] += int(stream.words)
        for port in self._busy | out.keys() | into.keys():
            most = 4 * _MAX_WORDS
            sent, received = min(out[port], most), min(into[port], most)
            counters = port.count()
            counters.grow(now, **_CORRECTED)
            counters.carry(now, (sent, received), (sent / _WORDS_IN_PACKET, received / _WORDS_IN_PACKET))
        self._busy = set(out) | set(into)

    # Faults.

    def _degradeCable(self) -> None:
        if self._degraded is not None:
            self._errors = _FIRST_ERRORS
            self._record(f"the cable at {_nameOf(self._degraded)} begins to degrade")

    def _flap(self) -> None:
        """Take one link down and up four times, and schedule the same for another link."""
        if not self._trunks:
            return
        port = self._random.choice([port for port in self._trunks if port is not self._degraded])
        self._record(f"the link at {_nameOf(port)} flaps")
        for time in range(4):
            self._callLater(time * 12.0, lambda: self._fabric.cut(port.node.identifier, port.number))
            self._callLater(time * 12.0 + 4.0, lambda: self._fabric.heal(port.node.identifier, port.number))
        self._callLater(self._random.uniform(300.0, 900.0), self._flap)

    def _powerOff(self) -> None:
        """Power a host off for 90 to 240 seconds, and schedule the same for another host."""
        host = self._random.choice(self._hosts)
        number = _linkOf(host)
        if number is not None:
            self._record(f"{host.identifier} loses power")
            self._fabric.cut(host.identifier, number)
            self._callLater(
                self._random.uniform(90.0, 240.0), lambda: self._fabric.heal(host.identifier, number)
            )
        self._callLater(self._random.uniform(120.0, 600.0), self._powerOff)

    def _hang(self) -> None:
        """Let a host ignore all requests for 60 to 180 seconds, with its link up."""
        host = self._random.choice(self._hosts)
        self._record(f"{host.identifier} hangs")
        self._fabric.silence(host.identifier)
        self._callLater(self._random.uniform(60.0, 180.0), lambda: self._fabric.revive(host.identifier))
        self._callLater(self._random.uniform(300.0, 900.0), self._hang)


def _linkOf(node: SimulatedNode) -> int | None:
    return next((port.number for port in node.external if port.neighbor is not None), None)


def _nameOf(port: SimulatedPort) -> str:
    return f"{port.node.identifier} port {port.number}"


def _portsBetween(begin: SimulatedNode, end: SimulatedNode) -> list[SimulatedPort]:
    """Return the output ports on the route between two hosts, as far as the forwarding tables lead."""
    first, last = _linkOf(begin), _linkOf(end)
    return [] if first is None or last is None else list(exits(begin.ports[first], end.ports[last].lid))
