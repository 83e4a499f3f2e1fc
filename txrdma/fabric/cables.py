"""
Cables and optical modules at the ports of a fabric: maker, serial number, length, temperature, light.

They are read from devices of NVIDIA and Mellanox that let registers be read by datagrams. Both ends of a
cable have a module, and usually those of one cable have the same serial number.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final, Union

from txrdma.fabric.health import Finding
from txrdma.fabric.model import Fabric, Node, Port, PortKey
from txrdma.iba.path import MADEndPort
from txrdma.iba.types import GUID
from txrdma.kit.strings import escapedText
from txrdma.mad.errors import MADError
from txrdma.mad.paths import toLID
from txrdma.mad.registers import IB_PORT, MODULE, MODULE_PAGE, ModuleInfo, readRegister, REFUSALS
from txrdma.mad.rpcs import RPCs

HOT_CELSIUS: Final = 70.0
"""Temperature of a module from which it is reported, if it has no alarm of its own."""

RECENT_SECONDS: Final = 86400.0
"""Seconds for which an exchanged cable is reported."""

_KINDS: Final = {
    1: "active cable",
    2: "optical module",
    3: "copper",
    5: "twisted pair",
    6: "co-packaged",
    7: "optical engine",
    8: "laser source",
}
_UNPLUGGED: Final = 4
_CMIS: Final = frozenset((5, 6, 7, 8, 10))
"""Identifiers of modules whose memory follows CMIS."""

_CMIS_METRES: Final = (0.1, 1.0, 10.0, 100.0)
_CLASS_WATTS: Final = (1.0, 1.5, 2.0, 2.5, 3.5, 4.0, 4.5, 5.0)
_MEASURES_TEMPERATURE: Final = 1 << 0
_MEASURES_POWER: Final = 1 << 3

Cell = Union[str, int, float, None]


@dataclass(frozen=True, slots=True)
class Cable:
    """
    Cable or optical module at one port.

    @ivar kind: as C{"active cable"}; C{""} if unknown, like all texts.
    @ivar metres: length of the cable; None if unknown, like all numbers.
    @ivar celsius: temperature; C{hotCelsius} is the one of its alarm.
    @ivar receivedDBm: received power of each lane; C{lowDBm} is the one of its alarm.
    @ivar watts: maximum consumption.
    """

    kind: str = ""
    vendor: str = ""
    partNumber: str = ""
    revision: str = ""
    serial: str = ""
    metres: float | None = None
    celsius: float | None = None
    hotCelsius: float | None = None
    receivedDBm: tuple[int, ...] = ()
    lowDBm: int | None = None
    sentDBm: tuple[int, ...] = ()
    watts: float | None = None

    def __str__(self) -> str:
        known = [part for part in (self.vendor, self.partNumber) if part]
        return " ".join([*known, f"serial {self.serial}"] if self.serial else known) or "unknown cable"


def weakest(powers: tuple[int, ...], lanes: int) -> int | None:
    """
    Return the lowest power of a port's lanes, of those of its module; None if unknown.

    A module can have the lanes of several ports, and which are whose is unknown: those with the least light
    are assumed to belong to other ports.
    """
    used = sorted(powers, reverse=True)[: max(1, lanes)]
    return used[-1] if used else None


# Reading.


def plain(raw: bytes) -> str:
    """Return text of a register without the spaces and zeros around it."""
    return escapedText(raw.strip(b" \0"))


def cableOf(info: ModuleInfo) -> Cable | None:
    """Return a port's cable; None if none is plugged in."""
    if info.kind == _UNPLUGGED:
        return None
    isCMIS = info.identifier in _CMIS
    metres = float(info.length)
    if isCMIS:
        metres = round((info.length & 0x3F) * _CMIS_METRES[info.length >> 6], 1)
    watts = info.maxPower / 4 if isCMIS else None
    if watts is None and info.powerClass < len(_CLASS_WATTS):
        watts = _CLASS_WATTS[info.powerClass]
    hot = _signed(info.highTemperature) / 256
    low = _signed(info.lowRxPower)
    # Firmware that does not announce what modules measure still has the alarms of those that do.
    isMeasured = bool(info.monitors & _MEASURES_TEMPERATURE) or bool(info.highTemperature)
    isLit = bool(info.monitors & _MEASURES_POWER) or info.highRxPower != info.lowRxPower
    return Cable(
        _KINDS.get(info.kind, ""),
        vendor=plain(info.vendorName),
        partNumber=plain(info.partNumber),
        revision=plain(info.revision),
        serial=plain(info.serialNumber),
        metres=metres or None,
        celsius=round(_signed(info.temperature) / 256, 1) if isMeasured else None,
        hotCelsius=round(hot, 1) if isMeasured and hot > 0 else None,
        receivedDBm=tuple(map(_signed, info.rxPower)) if isLit else (),
        lowDBm=low if isLit and low < 0 else None,
        sentDBm=tuple(map(_signed, info.txPower)) if isLit else (),
        watts=watts or None,
    )


def _signed(number: int) -> int:
    return (number ^ 0x8000) - 0x8000


async def readCables(rpcs: RPCs, endPort: MADEndPort, node: Node, found: dict[PortKey, Cable]) -> None:
    """
    Query a node that has registers for the cables of its ports with a link, one after the other.

    @param found: receives the cables.
    @raise MADFailure: the node does not answer, or does not have the register.
    """
    for port in node.linked():
        lid = node.lid if node.isSwitch else port.lid
        if not port.number or not lid:
            continue
        chosen = ModuleInfo(localPort=port.number, portNumbering=IB_PORT, page=MODULE_PAGE)
        try:
            content = await readRegister(rpcs, toLID(endPort, lid), MODULE, chosen.encode())
        except MADError as error:
            if error.status in REFUSALS:
                raise
            continue  # this port alone
        cable = cableOf(ModuleInfo.decode(content[: ModuleInfo.size]))
        if cable is not None:
            found[node.guid, port.number] = cable


# Findings.


def moduleFindings(fabric: Fabric, cables: Mapping[PortKey, Cable]) -> Iterator[Finding]:
    """Return findings for modules that are too hot, or that receive too little light."""
    for (guid, number), cable in cables.items():
        port = fabric.portAt(guid, number)
        if port is None:
            continue
        limit = HOT_CELSIUS if cable.hotCelsius is None else cable.hotCelsius
        if cable.celsius is not None and cable.celsius >= limit:
            whose = "" if cable.hotCelsius is None else "its alarm is at "
            text = f"its module ({cable}) has {cable.celsius:.0f} degrees Celsius; {whose}{limit:.0f}"
            yield Finding("module-hot", str(port), text, guid, number)
        power = weakest(cable.receivedDBm, port.width)
        if power is not None and cable.lowDBm is not None and power <= cable.lowDBm:
            text = f"its module ({cable}) receives {power} dBm; its alarm is at {cable.lowDBm}"
            yield Finding("receive-power", str(port), text, guid, number)


_PIECE: Final = 2000
"""Number of cables that are compared between two pauses."""


class CableWatch:
    """
    Watch of the serial numbers of cables.

    @ivar cables: last known cable of each port, also of ports whose link is gone; what is measured is that of
        the last survey, or unknown.
    @ivar exchanged: time and former cable of ports whose cable was exchanged recently.
    @ivar former: watch of a former process, with which the next survey is compared, too; else None.
    """

    def __init__(self) -> None:
        self.cables: dict[PortKey, Cable] = {}
        self.exchanged: dict[PortKey, tuple[float, Cable]] = {}
        self.former: CableWatch | None = None
        self._doubtful: dict[PortKey, float] = {}
        self._changed: set[PortKey] = set()

    def takeChanged(self, most: int) -> list[PortKey]:
        """Return some ports with another serial number than at the last call, or in the former process."""
        changed = list(islice(self._changed, most))
        self._changed.difference_update(changed)
        return changed

    def cameUp(self, ports: Iterable[PortKey], now: float) -> None:
        """Record that links came up: their ports may have other cables, which the next survey reads."""
        former = self.former.cables if self.former is not None else {}
        self._doubtful.update((key, now) for key in ports if key in self.cables or key in former)

    def serialOf(self, port: Port) -> str | None:
        """Return the serial number of a port's cable; C{""} if it is unknown, None until it is read again."""
        portKey = port.node.guid, port.number
        isFormer = self.former is not None and portKey in self.former.cables and portKey not in self.cables
        return None if isFormer or portKey in self._doubtful else _serialIn(self.cables, portKey)

    def reading(self, cables: Mapping[PortKey, Cable], known: Collection[GUID], now: float) -> Iterator[None]:
        """
        Compare the cables of a survey with those before; yield for pauses, and store them at the end.

        @param known: nodes of the fabric; the ports of others are forgotten, and cables that are not read
            again within a day after their link came up, or after the start.
        @param now: time at which the survey began.
        """
        former = CableWatch() if self.former is None else self.former
        stored = self.cables if self.former is None else former.cables
        unread = {**self.cables, **former.cables}
        exchanged: dict[PortKey, tuple[float, Cable]] = {}
        left = iter(cables.items())
        while some := list(islice(left, _PIECE)):
            for portKey, cable in some:
                before = unread.pop(portKey, None)
                if stored is not self.cables:
                    before = self.cables.get(portKey, before)
                if before is not None and before.serial and cable.serial and before.serial != cable.serial:
                    exchanged[portKey] = (now, before)
                if _serialIn(stored, portKey) != cable.serial:
                    self._changed.add(portKey)
            yield
        self._doubtful.update((portKey, now) for portKey in unread if portKey not in self.cables)
        kept = {
            portKey: replace(cable, celsius=None, receivedDBm=(), sentDBm=())
            for portKey, cable in unread.items()
            if portKey[0] in known and now - self._doubtful.get(portKey, now) < RECENT_SECONDS
        }
        self._changed.update(portKey for portKey in unread if portKey not in kept)
        self.cables = {**kept, **cables}
        self._doubtful = {
            portKey: at
            for portKey, at in self._doubtful.items()
            if portKey in self.cables and (at >= now or portKey in kept)
        }
        self.exchanged = {
            portKey: (at, before)
            for portKey, (at, before) in {**former.exchanged, **self.exchanged, **exchanged}.items()
            if portKey in self.cables and now - at < RECENT_SECONDS
        }
        if self.former is former:
            self.former = None

    def findings(self, fabric: Fabric) -> Iterator[Finding]:
        """Return a finding for each cable that was exchanged recently; it says where the former one is."""
        places: dict[str, list[Port]] = {}
        for (guid, number), cable in self.cables.items():
            port = fabric.portAt(guid, number) if self.exchanged else None
            if port is not None and cable.serial:
                places.setdefault(cable.serial, []).append(port)
        for (guid, number), (_at, before) in self.exchanged.items():
            port = fabric.portAt(guid, number)
            if port is not None:
                now = " and ".join(map(str, places.get(before.serial, ())))
                moved = f", which is at {now} now" if now else ""
                text = f"its cable is {self.cables[guid, number]} now, and was {before}{moved}"
                yield Finding("cable-changed", str(port), text, guid, number)


def _serialIn(cables: Mapping[PortKey, Cable], portKey: PortKey) -> str:
    cable = cables.get(portKey)
    return "" if cable is None else cable.serial


# Tables.

CABLE_CELLS: Final[tuple[tuple[str, Callable[[Cable, int], Cell]], ...]] = (
    ("kind", lambda cable, _: cable.kind or None),
    ("vendor", lambda cable, _: cable.vendor or None),
    ("partNumber", lambda cable, _: cable.partNumber or None),
    ("revision", lambda cable, _: cable.revision or None),
    ("serial", lambda cable, _: cable.serial or None),
    ("metres", lambda cable, _: cable.metres),
    ("celsius", lambda cable, _: cable.celsius),
    ("hotCelsius", lambda cable, _: cable.hotCelsius),
    ("receivedDBm", lambda cable, lanes: weakest(cable.receivedDBm, lanes)),
    ("lowDBm", lambda cable, _: cable.lowDBm),
    ("sentDBm", lambda cable, lanes: weakest(cable.sentDBm, lanes)),
    ("watts", lambda cable, _: cable.watts),
)
"""Columns of a table of cables after those of the port, and their values, for the number of its lanes."""

CABLE_COLUMNS: Final = ("guid", "name", "port", "peerName", "peerPort", *(name for name, _ in CABLE_CELLS))
"""All columns of a table of cables."""


def cablePorts(nodes: Iterable[Node]) -> Iterator[Port]:
    """Return the ports of nodes with a link, each of which has an end of a cable."""
    return (port for node in nodes for port in node.linked() if port.number)


def cableRow(port: Port, cable: Cable | None, nameOf: Callable[[Node], str]) -> list[Cell]:
    """Return the cells of a port, in the order of L{CABLE_COLUMNS}; None where a value is unknown."""
    peer = port.peer
    ends: list[Cell] = [f"{int(port.node.guid):#018x}", nameOf(port.node), port.number]
    ends += [None, None] if peer is None else [nameOf(peer.node), peer.number]
    return [*ends, *(None if cable is None else of(cable, port.width) for _name, of in CABLE_CELLS)]
