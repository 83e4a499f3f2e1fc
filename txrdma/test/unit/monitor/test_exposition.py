"""Metrics for Prometheus, verified with the parser of prometheus_client."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from txrdma.fabric.discovery import Sweep
from txrdma.fabric.metricnames import FAMILIES
from txrdma.fabric.model import Fabric, PortKey
from txrdma.fabric.portcounters import CounterLayout, Meter
from txrdma.iba.types import GUID
from txrdma.monitor.series import exposition
from txrdma.monitor.series.exposition import CounterExposition, exposed, fabricFamilies, labels, PIECE
from txrdma.test.support.mad.simulated import FabricTestCase

WIDE = CounterLayout({"portXmitData": 64, "symbolErrorCounter": 64}, {"portXmitData": 4})
NARROW = CounterLayout({"symbolErrorCounter": 16, "portXmitData": 32}, {"portXmitData": 4})
FULL = 0xFFFF_FFFF

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parsed(text: str) -> Samples:
    """Return all samples of a scrape; no family appears twice."""
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError:
        raise SkipTest("prometheus_client is not installed: pip install 'txrdma[prometheus]'") from None
    found: Samples = {}
    names = []
    for family in text_string_to_metric_families(text):
        names.append(family.name)
        for sample in family.samples:
            found[sample.name, frozenset(sample.labels.items())] = sample.value
    assert len(names) == len(set(names)), names
    return found


def portKey(guid: int, port: int) -> PortKey:
    """Return a port of a node."""
    return GUID(guid.to_bytes(8, "big")), port


def metered(layout: CounterLayout, *values: int) -> Meter:
    """Return a meter that was read once."""
    meter = Meter(layout)
    meter.read(values, 1.0)
    return meter


class CounterExpositionTests(SynchronousTestCase):
    def text(self, meters: dict[PortKey, Meter], exposition: CounterExposition | None = None) -> str:
        return "".join(exposed((exposition or CounterExposition()).families(meters)))

    def test_text(self) -> None:
        """A family has its header and a line for each port; data is in octets."""
        text = self.text({portKey(16, 1): metered(WIDE, 100, 7), portKey(16, 2): metered(WIDE, 0, 0)})
        lines = text.splitlines()
        self.assertEqual(lines[1], "# TYPE infiniband_port_data_transmitted_bytes_total counter")
        self.assertEqual(
            lines[2:4],
            [
                'infiniband_port_data_transmitted_bytes_total{guid="0x0000000000000010",port="1"} 400',
                'infiniband_port_data_transmitted_bytes_total{guid="0x0000000000000010",port="2"} 0',
            ],
        )
        self.assertEqual(len(parsed(text)), 4)

    def test_unknown(self) -> None:
        """A silent port and full data counters have no series; full error counters have one."""
        meters = {
            portKey(1, 1): metered(NARROW, 0xFFFF, FULL),
            portKey(1, 2): metered(NARROW, 3, 5),
            portKey(1, 3): metered(NARROW, 3, 5),
            portKey(1, 4): Meter(WIDE),
        }
        meters[portKey(1, 3)].missed()
        self.assertEqual(
            sorted((name, dict(label)["port"], value) for (name, label), value in self.samples(meters)),
            [
                ("infiniband_port_data_transmitted_bytes_total", "2", 20.0),
                ("infiniband_symbol_error_total", "1", 65535.0),
                ("infiniband_symbol_error_total", "2", 3.0),
            ],
        )

    def samples(
        self, meters: dict[PortKey, Meter]
    ) -> list[tuple[tuple[str, frozenset[tuple[str, str]]], float]]:
        return list(parsed(self.text(meters)).items())

    def test_pauses(self) -> None:
        """The names of few ports are written between two pauses, also if ports have many layouts."""
        names: list[PortKey] = []
        ofPort = exposition._ofPort

        def named(key: PortKey, common: dict[str, str]) -> str:
            names.append(key)
            return ofPort(key, common)

        self.patch(exposition, "_ofPort", named)
        counters = [f"counter{number}" for number in range(12)]
        layouts = [CounterLayout(dict.fromkeys(counters[: number + 1], 64)) for number in range(12)]
        ports = (portKey(guid, 1) for guid in range(1, 1 << 20))
        meters = {next(ports): metered(one, *[1] * len(one.names)) for one in layouts for _ in range(PIECE)}
        made = []
        for family in CounterExposition().families(meters):
            if family is None:
                made.append(len(names))
                names.clear()
        self.assertEqual(len(names), 0)
        self.assertEqual(sum(made), 12 * PIECE)
        self.assertLessEqual(max(made), 2 * PIECE)

    def test_chosen(self) -> None:
        """Only the requested families are returned; an unknown family is an error."""
        text = self.text({portKey(1, 1): metered(WIDE, 1, 2)}, CounterExposition(["symbolErrorCounter"]))
        self.assertEqual(list(parsed(text).values()), [2.0])
        self.assertRaises(KeyError, CounterExposition, ["nonsense"])

    COUNTS = st.integers(0, 50)
    METERS = st.dictionaries(
        st.tuples(st.integers(1, 5), st.integers(0, 3)),
        st.tuples(st.booleans(), st.booleans(), COUNTS, st.one_of(COUNTS, st.just(FULL))),
        max_size=12,
    )

    @settings(max_examples=30, deadline=None)
    @given(st.lists(METERS, min_size=1, max_size=4))
    def test_anyScrapes(self, scrapes: list[dict[tuple[int, int], tuple[bool, bool, int, int]]]) -> None:
        """For any sequence of added, removed and silent ports, the series equal the meters' values."""
        exposition = CounterExposition()
        for ports in scrapes:
            meters = {}
            for (guid, port), (isWide, isSilent, errors, data) in ports.items():
                meter = metered(WIDE, data, errors) if isWide else metered(NARROW, errors, data)
                if isSilent:
                    meter.missed()
                meters[portKey(guid, port)] = meter
            wanted: Samples = {}
            for (guid, port), meter in zip(ports, meters.values(), strict=True):
                where = frozenset({("guid", f"{guid:#018x}"), ("port", str(port))})
                for counter, (short, _text) in FAMILIES.items():
                    value = meter.value(counter)
                    if value is not None:
                        wanted[f"infiniband_{short}_total", where] = value
            self.assertEqual(parsed(self.text(meters, exposition)), wanted)


class FabricTextTests(FabricTestCase):
    def swept(self) -> Fabric:
        fabric: Fabric = self.answerTo(Sweep(self.agent).run(), 30)
        return fabric

    def test_states(self) -> None:
        """Each port has its state and rate, each node its name, each link its ends."""
        self.fabric.cut("c")
        found = parsed("".join(exposed(fabricFamilies(self.swept(), lambda node: node.description))))
        guid = f"{int(self.fabric.node('left').guid):#018x}"
        where = frozenset({("guid", guid), ("port", "2")})
        self.assertEqual(found["infiniband_state_id", where], 4)
        self.assertEqual(found["infiniband_physical_state_id", where], 5)
        self.assertEqual(found["infiniband_rate_bytes_per_second", where], 4 * 50e9 / 8)
        names = {dict(label)["name"] for name, label in found if name == "infiniband_node_info"}
        self.assertEqual(names, {"left", "right", "a", "b", "d"})
        peers = {
            (dict(label)["port"], dict(label)["peer_port"])
            for name, label in found
            if name == "infiniband_link_info" and dict(label)["guid"] == guid
        }
        self.assertEqual(peers, {("1", "1"), ("2", "1"), ("3", "3"), ("4", "4")})

    @settings(max_examples=30, deadline=None)
    @given(st.text(max_size=64))
    def test_anyName(self, name: str) -> None:
        """A node's name may contain any bytes: it is escaped and adds no line."""
        text = f"infiniband_node_info{labels(guid='0x1', name=name)} 1\n"
        self.assertEqual(text.count("\n"), 1)
        if all(letter.isprintable() or letter in ' "\\' for letter in name):
            (label,) = [dict(label) for _name, label in parsed(text)]
            self.assertEqual(label["name"], name)
