"""
Counters and states of ports in Prometheus' text format, version 0.0.4.

Families have the names of node_exporter without C{node_}: the same name is the same counter in the same unit,
for all ports of a fabric instead of those of a host. Ports have the labels C{guid} and C{port}. Node names
are not unique and change, so they are in C{infiniband_node_info}.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from txrdma.fabric.errorcorrection import LANES
from txrdma.fabric.linkspeeds import NOMINAL_GIGABITS
from txrdma.fabric.metricnames import CAUSE_FAMILIES, CORRECTION_FAMILIES, FAMILIES, LANE_FAMILIES, METRICS
from txrdma.fabric.model import Fabric, Node, Port
from txrdma.fabric.portcounters import CounterLayout, Meter
from txrdma.iba.types import GUID
from txrdma.monitor.diagnosis.thresholds import PortKey
from txrdma.monitor.reading.details import CAUSES

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_BYTES_PER_GIGABIT: Final = 125e6
_ESCAPED: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def guidText(guid: GUID) -> str:
    """Return a GUID as infiniband-diags and exporters write it: C{"0x0002c90300010002"}."""
    return f"{int(guid):#018x}"


def labels(**values: object) -> str:
    """Return the labels of a series, escaped: C{'{guid="0x0002c90300010002",port="7"}'}, or C{""}."""
    pairs = ",".join(f'{name}="{str(value).translate(_ESCAPED)}"' for name, value in values.items())
    return f"{{{pairs}}}" if pairs else ""


def _ofPort(portKey: PortKey, common: Mapping[str, str]) -> str:
    return labels(**common, guid=guidText(portKey[0]), port=portKey[1])


def family(name: str, kind: str, text: str, series: Iterable[tuple[str, object]]) -> str:
    """
    Return the text of a metric family.

    @param kind: type of the metric: C{"gauge"} or C{"counter"}.
    @param series: labels as L{labels} makes them, and the value, of each series.
    """
    head = f"# HELP {name} {text}.\n# TYPE {name} {kind}\n"
    return head + "".join([f"{name}{label} {value}\n" for label, value in series])


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
    """
    Return the descriptions of all error correction counters, by name; those of lanes have the lane's number.
    """
    return {name: shown.text for name, shown in _shown(CORRECTION_FAMILIES)}


class _Group:
    """
    Ports that have the same layout of counters and have answered, in a fixed order.

    Only the numbers change from scrape to scrape, so a family is one format string for all ports. That takes
    a tenth of the time of formatting each line.
    """

    __slots__ = ("_common", "_formats", "_labels", "_texts", "layout", "portKeys")

    def __init__(
        self, layout: CounterLayout, portKeys: list[PortKey], common: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self._common = common
        self.layout = layout
        self.portKeys = portKeys
        self._labels: list[str] = []
        self._formats: dict[str, str] = {}
        self._texts: dict[str, tuple[Sequence[int], str]] = {}

    def text(self, counter: str, shown: _Shown, values: Sequence[int]) -> str:
        """Return the series of one counter for all ports. Most texts are constant, and cached."""
        before = self._texts.get(counter)
        if before is not None and before[0] == values:
            return before[1]
        text = self._made(counter, shown, values)
        self._texts[counter] = (values, text)
        return text

    def _made(self, counter: str, shown: _Shown, values: Sequence[int]) -> str:
        layout, name = self.layout, shown.name
        unit = layout.unit(counter)
        if not self._labels:
            self._labels = [_ofPort(portKey, self._common) for portKey in self.portKeys]
        labels = self._labels
        if shown.lane is not None:
            labels = [f'{label[:-1]},lane="{shown.lane}"}}' for label in labels]
        if unit != 1 or not shown.standsFull:
            at = layout.indices[counter]
            known = [not layout.isFull(at, value) for value in set(values)]
            if not all(known):
                return "".join(
                    f"{name}{label} {value * unit}\n"
                    for label, value in zip(labels, values, strict=True)
                    if not layout.isFull(at, value)
                )
            values = [value * unit for value in values]
        form = self._formats.get(counter)
        if form is None:
            form = self._formats[counter] = "".join([f"{name}{label} %d\n" for label in labels])
        return form % tuple(values)


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
        self._groups: dict[CounterLayout, _Group] = {}

    def families(self, meters: Mapping[PortKey, Meter]) -> Iterator[str]:
        """
        Yield the text of each family, so that those of a large fabric can be written with pauses between
        them.
        """
        present: dict[CounterLayout, tuple[list[PortKey], list[tuple[int, ...]]]] = {}
        for portKey, meter in meters.items():
            if meter.values and not meter.isSilent:
                portKeys, readings = present.setdefault(meter.layout, ([], []))
                portKeys.append(portKey)
                readings.append(meter.values)
        known, self._groups = self._groups, {}
        columns = []
        for layout, (portKeys, readings) in present.items():
            group = known.get(layout)
            if group is None or group.portKeys != portKeys:
                group = _Group(layout, portKeys, self._common)
            self._groups[layout] = group
            columns.append((group, dict(zip(layout.names, zip(*readings, strict=True), strict=True))))
        last = ""
        for counter, shown in self._families.items():
            parts = [
                group.text(counter, shown, values[counter]) for group, values in columns if counter in values
            ]
            text = "".join(parts)
            if text and shown.name != last:
                last = shown.name
                text = f"# HELP {last} {shown.text}.\n# TYPE {last} counter\n{text}"
            if text:
                yield text


def causeText(
    causes: Mapping[PortKey, Mapping[str, int]],
    counters: Collection[str],
    common: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[str]:
    """
    Return the text of each metric family of causes, for ports that have dropped packets and report causes.

    @param counters: counters to export; causes are exported with their sum.
    """
    for counter in counters:
        for cause, text in CAUSES.get(counter, {}).items():
            series = [
                (_ofPort(portKey, common), byCause[cause])
                for portKey, byCause in causes.items()
                if cause in byCause
            ]
            if series:
                yield family(f"infiniband_{CAUSE_FAMILIES[cause]}_total", "counter", text, series)


# States.


def fabricTexts(
    fabric: Fabric, nameOf: Callable[[Node], str], common: Mapping[str, str] = MappingProxyType({})
) -> list[str]:
    """
    Return the families of names, links, states and rates of a fabric, the same until the next sweep.

    @param nameOf: returns the name of a node.
    @param common: labels of all series.
    """
    nodes = fabric.ordered()
    ports = [port for node in nodes for port in node.ports.values() if port.raw]
    named = [
        labels(
            **common,
            guid=guidText(node.guid),
            name=nameOf(node),
            type=node.type.name.lower(),
            lid=int(node.lid),
        )
        for node in nodes
    ]
    linked = [
        labels(
            **common,
            guid=guidText(port.node.guid),
            port=port.number,
            peer_guid=guidText(peer.node.guid),
            peer_port=peer.number,
        )
        for port in ports
        if (peer := port.peer) is not None
    ]
    where = [(port, _ofPort((port.node.guid, port.number), common)) for port in ports]
    return [
        family("infiniband_node_info", "gauge", "Node by its GUID", ((one, 1) for one in named)),
        family("infiniband_link_info", "gauge", "Link by one of its ends", ((one, 1) for one in linked)),
        family(
            "infiniband_state_id",
            "gauge",
            "State: 0 no change, 1 down, 2 initialize, 3 armed, 4 active, 5 active defer",
            ((label, int(port.state)) for port, label in where),
        ),
        family(
            "infiniband_physical_state_id",
            "gauge",
            "Physical state: 0 no change, 1 sleep, 2 polling, 3 disabled, 4 training, 5 link up, "
            "6 error recovery, 7 phy test",
            ((label, int(port.physicalState)) for port, label in where),
        ),
        family(
            "infiniband_rate_bytes_per_second",
            "gauge",
            "Rate of the link at its present width and speed",
            ((label, _rate(port)) for port, label in where),
        ),
    ]


def _rate(port: Port) -> int:
    return int(port.width * NOMINAL_GIGABITS.get(port.activeSpeed, 0.0) * _BYTES_PER_GIGABIT)
