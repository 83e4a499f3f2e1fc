"""
Counters and states of ports in Prometheus' text format, version 0.0.4.

Families have the names of node_exporter without C{node_}: the same name is the same counter in the same unit,
for all ports of a fabric instead of those of a host. Ports have the labels C{guid} and C{port}. Node names
are not unique and change, so they are in C{infiniband_node_info}.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import accumulate, chain, count, islice
from types import MappingProxyType
from typing import Final, NamedTuple
from zlib import compress, decompress

from txrdma.fabric.errorcorrection import LANES
from txrdma.fabric.linkspeeds import NOMINAL_GIGABITS
from txrdma.fabric.metricnames import CAUSE_FAMILIES, CORRECTION_FAMILIES, FAMILIES, LANE_FAMILIES, METRICS
from txrdma.fabric.model import Fabric, Node, Port, PortKey
from txrdma.fabric.portcounters import CounterLayout, Meter
from txrdma.iba.types import GUID
from txrdma.monitor.reading.details import CAUSES

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

PIECE: Final = 1000
"""Largest number of series of a piece of text."""

DURATION_BOUNDS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Upper bounds of the buckets of a L{Histogram}, in seconds."""

_NAME: Final = "\0"
_LANE: Final = "\1"
_BYTES_PER_GIGABIT: Final = 125e6
_ESCAPED: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def guidText(guid: GUID) -> str:
    """Return a GUID in the format of infiniband-diags and exporters: C{"0x0002c90300010002"}."""
    return f"{int(guid):#018x}"


def labels(**values: object) -> str:
    """Return the labels of a series, escaped: C{'{guid="0x0002c90300010002",port="7"}'}, or C{""}."""
    pairs = ",".join(f'{name}="{str(value).translate(_ESCAPED)}"' for name, value in values.items())
    return f"{{{pairs}}}" if pairs else ""


def _ofPort(portKey: PortKey, common: Mapping[str, str], **more: object) -> str:
    return labels(**common, guid=guidText(portKey[0]), port=portKey[1], **more)


class Family(NamedTuple):
    """
    A metric family.

    @ivar name: name of the metric.
    @ivar head: lines with its description and type.
    @ivar isAlways: whether a scrape has the head even without series.
    @ivar pieces: lines of its series, each piece with those of at most L{PIECE} ports, made when it is taken.
    """

    name: str
    head: str
    pieces: Iterable[str]
    isAlways: bool = False


def family(name: str, kind: str, text: str, series: Iterable[tuple[str, object]]) -> Family:
    """
    Return a metric family.

    @param kind: type of the metric: C{"gauge"}, C{"counter"} or C{"histogram"}.
    @param series: labels as L{labels} makes them, and the value, of each series.
    """
    head = f"# HELP {name} {text}.\n# TYPE {name} {kind}\n"
    return Family(name, head, _lines(name, iter(series)), isAlways=True)


def _lines(name: str, series: Iterator[tuple[str, object]]) -> Iterator[str]:
    while piece := list(islice(series, PIECE)):
        yield "".join([f"{name}{label} {value}\n" for label, value in piece])


class Histogram:
    """A metric family with the number of durations in each bucket, and their sum."""

    def __init__(self, name: str, text: str) -> None:
        self._name = name
        self._text = text
        self._seconds = 0.0
        self._buckets = [0] * (len(DURATION_BOUNDS) + 1)

    def add(self, seconds: float) -> None:
        """Add a duration."""
        self._seconds += seconds
        self._buckets[bisect_left(DURATION_BOUNDS, seconds)] += 1

    def family(self) -> Family:
        """Return the metric family of all durations until now."""
        bounds, below = (*DURATION_BOUNDS, "+Inf"), list(accumulate(self._buckets))
        series = [(f"_bucket{labels(le=bound)}", many) for bound, many in zip(bounds, below, strict=True)]
        whole = [("_sum", f"{self._seconds:.6f}"), ("_count", below[-1])]
        return family(self._name, "histogram", self._text, [*series, *whole])


class RetainedPieces:
    """Pieces of text that are made once, when they are first taken, and are retained compressed."""

    def __init__(self, pieces: Iterable[str]) -> None:
        self._pieces = iter(pieces)
        self._known: list[bytes] = []

    def __iter__(self) -> Iterator[str]:
        for number in count():
            if number == len(self._known):
                piece = next(self._pieces, None)
                if piece is None:
                    return
                self._known.append(compress(piece.encode("utf-8", "replace"), 1))
            yield decompress(self._known[number]).decode()


def exposed(families: Iterable[Family | None]) -> Iterator[str]:
    """
    Yield the text of a scrape in pieces; families of one name are one family.

    @param families: families, and None for a pause, which yields an empty piece.
    """
    several: dict[str, list[Family]] = {}
    for one in families:
        if one is None:
            yield ""
        else:
            several.setdefault(one.name, []).append(one)
    for same in several.values():
        head = same[0].head
        for piece in chain.from_iterable(one.pieces for one in same):
            if piece:
                yield head + piece
                head = ""
        if head and same[0].isAlways:
            yield head


# Counters.


class _Shown(NamedTuple):
    """
    A counter as exported to Prometheus.

    @ivar name: name of its family; C{text}: its description.
    @ivar lane: number of the lane that it counts; None for the whole port.
    @ivar standsFull: whether it is exported at its maximum, because it counts rare errors.
    """

    name: str
    text: str
    lane: int | None = None
    standsFull: bool = True


def _shown(counters: Iterable[str]) -> Iterator[tuple[str, _Shown]]:
    """Yield those counters of readings that are exported; those of one family follow each other."""
    for counter in counters:
        if counter in FAMILIES:
            name, text = FAMILIES[counter]
            yield counter, _Shown(f"infiniband_{name}_total", text)
            continue
        name, text = CORRECTION_FAMILIES[counter]
        lanes = range(LANES) if counter in LANE_FAMILIES else [None]
        for lane in lanes:
            shown = _Shown(f"infiniband_{name}_total", text, lane, standsFull=False)
            yield counter if lane is None else f"{counter}{lane}", shown


def correctionMeanings() -> dict[str, str]:
    """Return the descriptions of error correction counters, with those of each lane by its number."""
    return {name: shown.text for name, shown in _shown(CORRECTION_FAMILIES)}


class _Group(NamedTuple):
    """
    At most L{PIECE} ports that answer and have the same layout of counters, with their readings.

    @ivar template: text of a counter of these ports without the numbers, which alone change from scrape to
        scrape: one format string for all ports.
    """

    layout: CounterLayout
    readings: list[tuple[int, ...]]
    template: str

    def text(self, counter: str, shown: _Shown) -> str:
        """Return the series of one counter."""
        layout, template = self.layout, self.template
        at, unit = layout.indices[counter], layout.unit(counter)
        values = [reading[at] for reading in self.readings]
        if unit != 1 or not shown.standsFull:
            full = {value for value in set(values) if layout.isFull(at, value)}
            if full:
                lines = zip(template.splitlines(True), values, strict=True)
                template = "".join([line for line, value in lines if value not in full])
                values = [value for value in values if value not in full]
            values = [value * unit for value in values]
        lane = "" if shown.lane is None else f',lane="{shown.lane}"'
        return template.replace(_NAME, shown.name).replace(_LANE, lane) % tuple(values)


def _templateOf(portKeys: list[PortKey], common: Mapping[str, str]) -> str:
    made = [_ofPort(portKey, common)[:-1] for portKey in portKeys]
    return "".join([f"{_NAME}{label}{_LANE}}} %d\n" for label in made])


class CounterExposition:
    """
    The counters of all ports as text.

    Ports that do not answer have no series, nor have counters of data or error correction at their maximum,
    since their value is unknown and not zero.
    """

    def __init__(
        self, counters: Iterable[str] = METRICS, common: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """
        @param counters: names of the counters to export; each of them is one series per port.
        @param common: labels of all series.
        @raise KeyError: a counter is unknown.
        """
        self._families = dict(_shown(counters))
        self._common = common
        self._templates: dict[tuple[CounterLayout, int], tuple[list[PortKey], str]] = {}

    def families(self, meters: Mapping[PortKey, Meter]) -> Iterator[Family | None]:
        """Yield each family, with the current readings, and None for pauses."""
        byLayout: dict[CounterLayout, list[tuple[PortKey, Meter]]] = {}
        for number, one in enumerate(zip(list(meters), list(meters.values()), strict=True), 1):
            byLayout.setdefault(one[1].layout, []).append(one)
            if not number % (10 * PIECE):
                yield None
        known, self._templates = self._templates, {}
        groups = []
        for layout, ports in byLayout.items():
            for first in range(0, len(ports), PIECE):
                portKeys, readings = [], []
                for portKey, meter in ports[first : first + PIECE]:
                    if meter.values and not meter.isSilent and meter.layout == layout:
                        portKeys.append(portKey)
                        readings.append(meter.values)
                before, template = known.get((layout, first), ([], ""))
                if before != portKeys:
                    template = _templateOf(portKeys, self._common)
                self._templates[layout, first] = portKeys, template
                groups.append(_Group(layout, readings, template))
                if not len(groups) % 2:
                    yield None
        for counter, shown in self._families.items():
            head = f"# HELP {shown.name} {shown.text}.\n# TYPE {shown.name} counter\n"
            yield Family(shown.name, head, _texts(counter, shown, groups))


def _texts(counter: str, shown: _Shown, groups: list[_Group]) -> Iterator[str]:
    return (group.text(counter, shown) for group in groups if counter in group.layout.indices)


def causeFamilies(
    causes: Mapping[PortKey, Mapping[str, int]],
    counters: Collection[str],
    common: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Family]:
    """Yield a metric family for each cause of these counters, with the ports that report it."""
    for counter in counters:
        for cause, text in CAUSES.get(counter, {}).items():
            series = _caused(causes, cause, common)
            found = family(f"infiniband_{CAUSE_FAMILIES[cause]}_total", "counter", text, series)
            yield found._replace(isAlways=False)


def _caused(
    causes: Mapping[PortKey, Mapping[str, int]], cause: str, common: Mapping[str, str]
) -> Iterator[tuple[str, object]]:
    for portKey, byCause in list(causes.items()):
        if cause in byCause:
            yield _ofPort(portKey, common), byCause[cause]


# States.


def fabricFamilies(
    fabric: Fabric, nameOf: Callable[[Node], str], common: Mapping[str, str] = MappingProxyType({})
) -> list[Family]:
    """
    Return the families of names, links, states and rates of a fabric, the same until the next sweep.

    @param nameOf: returns the name of a node.
    @param common: labels of all series.
    """

    def ofPorts(value: Callable[[Port], object]) -> Iterator[tuple[str, object]]:
        return (
            (_ofPort((port.node.guid, port.number), common), value(port))
            for port in fabric.ports()
            if port.raw
        )

    def ofNodes() -> Iterator[tuple[str, object]]:
        for node in list(fabric.nodes.values()):
            named = {"guid": guidText(node.guid), "name": nameOf(node), "type": node.type.name.lower()}
            yield labels(**common, **named, lid=int(node.lid)), 1

    linked = (
        _ofPort(
            (port.node.guid, port.number), common, peer_guid=guidText(peer.node.guid), peer_port=peer.number
        )
        for port in fabric.ports()
        if port.raw and (peer := port.peer) is not None
    )
    series = {
        "node_info": ("Node by its GUID", ofNodes()),
        "link_info": ("Link by one of its ends", ((one, 1) for one in linked)),
        **{name: (text, ofPorts(value)) for name, (text, value) in _OF_PORTS.items()},
    }
    families = [family(f"infiniband_{name}", "gauge", *one) for name, one in series.items()]
    return [one._replace(pieces=RetainedPieces(one.pieces)) for one in families]


def _rate(port: Port) -> int:
    return int(port.width * NOMINAL_GIGABITS.get(port.activeSpeed, 0.0) * _BYTES_PER_GIGABIT)


_STATES: Final = "State: 0 no change, 1 down, 2 initialize, 3 armed, 4 active, 5 active defer"
_PHYSICAL_STATES: Final = (
    "Physical state: 0 no change, 1 sleep, 2 polling, 3 disabled, 4 training, 5 link up, "
    "6 error recovery, 7 phy test"
)
_OF_PORTS: Final[Mapping[str, tuple[str, Callable[[Port], object]]]] = {
    "state_id": (_STATES, lambda port: int(port.state)),
    "physical_state_id": (_PHYSICAL_STATES, lambda port: int(port.physicalState)),
    "rate_bytes_per_second": ("Rate of the link at its present width and speed", _rate),
}
