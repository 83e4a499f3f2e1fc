"""Counters of forward error correction: reading, metrics and findings."""

from __future__ import annotations

from struct import pack
from typing import Any

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from txrdma.fabric.discovery import Sweep
from txrdma.fabric.errorcorrection import correctionFindings, namesOf, valuesOf
from txrdma.fabric.errorcounters import parseThresholds, UNCORRECTABLE
from txrdma.fabric.portcounters import Meter
from txrdma.mad.layouts.messages import MADStatus
from txrdma.mad.layouts.pma import PortExtendedSpeedsCounters, PortExtendedSpeedsCountersRSFEC
from txrdma.mad.layouts.smp import NodeInfo, PortInfo
from txrdma.mad.layouts.values import FECMode
from txrdma.monitor.config import parseConfig
from txrdma.monitor.diagnosis.thresholds import DEFAULT_LIMITS
from txrdma.monitor.reading.fec import layoutOf, LONGEST_REFUSED_SECONDS
from txrdma.monitor.reading.settings import PollerSettings
from txrdma.monitor.series.exposition import CounterExposition, exposed
from txrdma.monitor.web.tables import PORTS
from txrdma.monitor.web.watch import Watch
from txrdma.sim.fabric.agents import pma
from txrdma.sim.fabric.model.nodes import SimulatedPort
from txrdma.sim.nets.fattree import fatTree
from txrdma.sim.nets.netfile import Net
from txrdma.test.support import slow
from txrdma.test.support.mad.simulated import FabricTestCase
from txrdma.test.unit.monitor.test_exposition import parsed, portKey
from txrdma.test.unit.monitor.test_poller import PollerTestCase, withStatus

FULL = 0xFFFF_FFFF


class FormTests(SynchronousTestCase):
    def test_lanes(self) -> None:
        """The older layout has the sums of the lanes in use, then the counters of each lane."""
        raw = pack(">x7B8s2H12H24I", *[1] * 7, bytes(8), 3, 4, *range(12), *range(100, 112), *range(5, 17))
        reported = PortExtendedSpeedsCounters.decode(raw)
        names = dict(zip(namesOf(type(reported), 4), valuesOf(reported, 4), strict=True))
        self.assertEqual(names[UNCORRECTABLE], 5 + 6 + 7 + 8)
        self.assertEqual(names["portFECCorrectableBlockCtr"], 406)
        self.assertEqual((names["syncHeaderErrorCounter"], names["unknownBlockCounter"]), (3, 4))
        self.assertEqual(names["errorDetectionCounterLanes3"], 3)
        self.assertEqual(names["fecCorrectableBlockCounterLanes0"], 100)
        self.assertEqual(names["fecUncorrectableBlockCounterLanes3"], 8)
        self.assertNotIn("errorDetectionCounterLanes4", names)

    def test_reedSolomon(self) -> None:
        """The RS-FEC layout has the counters of the port, then the symbols of each lane."""
        raw = pack(">x7B8s2H24s12I48s3I", *[1] * 7, bytes(8), 3, 4, b"", *range(12), b"", 7, 8, 9)
        reported = PortExtendedSpeedsCountersRSFEC.decode(raw)
        names = dict(zip(namesOf(type(reported), 2), valuesOf(reported, 2), strict=True))
        self.assertEqual(
            names,
            {
                UNCORRECTABLE: 8,
                "portFECCorrectableBlockCtr": 7,
                "portFECCorrectedSymbolCtr": 9,
                "syncHeaderErrorCounter": 3,
                "unknownBlockCounter": 4,
                "fecCorrectableSymbolCtrLanes0": 0,
                "fecCorrectableSymbolCtrLanes1": 1,
            },
        )

    def test_full(self) -> None:
        """A sum is full when the counter of one lane is full."""
        reported = PortExtendedSpeedsCounters(fecCorrectableBlockCounterLanes=(FULL, 1, *[0] * 10))
        self.assertEqual(valuesOf(reported, 4)[1], FULL)
        reported = PortExtendedSpeedsCounters(fecCorrectableBlockCounterLanes=(FULL - 1,) * 12)
        self.assertEqual(valuesOf(reported, 4)[1], FULL)


class CorrectionTestCase(PollerTestCase):
    """A small fat tree, whose links are HDR."""

    at = "h00000"
    limits = DEFAULT_LIMITS
    mostBitErrors = 1e-14
    settings = PollerSettings(intervalSeconds=30.0)

    def net(self) -> Net:
        return fatTree(4, 4)

    def counted(self, name: str, number: int) -> dict[str, int | None]:
        meter = self.poller.corrections.meters[self.portKey(name, number)]
        return {counter: meter.value(counter) for counter in meter.layout.names}

    def watched(self) -> list[int]:
        """Record the numbers of ports whose error correction is queried from now on."""
        asked: list[int] = []

        def watch(port: SimulatedPort, number: int, reply: Any) -> Any:
            if number == 0x1F:
                asked.append(port.number)
            return reply

        self.answering(watch)
        return asked

    @property
    def linked(self) -> int:
        """The number of ports with a link."""
        return 2 * len(list(self.sweptFabric.links()))


class ReadingTests(CorrectionTestCase):
    """Which ports are read, how often, and with which layout."""

    def known(self, name: str) -> None:
        """Make a node a device that is known to have the older layout."""
        node = self.fabric.node(name)
        node.info = NodeInfo.decode(node.info).replace(deviceID=0x1003, vendorID=0x2C9).encode()

    def test_unknown(self) -> None:
        """Nodes that do not report the capability are not read."""
        self.known("h00002")
        asked = self.watched()
        self.started(200.0)
        self.assertEqual(set(self.poller.corrections.meters), {self.portKey("h00002", 1)})
        self.assertLess(len(asked), 10)

    def test_reedSolomon(self) -> None:
        """Ports with RS-FEC are read with that layout, each once per cycle, and only for lanes in use."""
        self.fabric.correct()
        self.fabric.setCounters(
            *("leaf0000", 1), portFECCorrectedSymbolCtr=9, fecCorrectableSymbolCtrLanes3=5
        )
        self.started(100.0)
        self.assertEqual(len(self.poller.corrections.meters), self.linked)
        reported = self.counted("leaf0000", 1)
        self.assertEqual(reported["portFECCorrectedSymbolCtr"], 9)
        self.assertEqual(reported["fecCorrectableSymbolCtrLanes3"], 5)
        self.assertNotIn("fecCorrectableSymbolCtrLanes4", reported)
        asked = self.watched()
        self.pump(60.0)
        self.assertIn(len(asked), range(self.linked, 2 * self.linked))  # a cycle of few nodes is shorter

    def test_lanes(self) -> None:
        """Ports with another code, and devices known to lack the capability, have the older layout."""
        self.fabric.correct("leaf0000", mode=FECMode.FIRECODE)
        self.known("h00002")
        for name in ("leaf0000", "h00002"):
            self.fabric.setCounters(name, 1, fecUncorrectableBlockCounterLanes1=2)
        self.started(100.0)
        for name in ("leaf0000", "h00002"):
            reported = self.counted(name, 1)
            self.assertEqual(
                (reported[UNCORRECTABLE], reported["fecUncorrectableBlockCounterLanes1"]), (2, 2)
            )
            self.assertNotIn("portFECCorrectedSymbolCtr", reported)

    def test_modeRefused(self) -> None:
        """If a port does not report its FEC mode, the speed decides: HDR always uses RS-FEC."""
        self.fabric.correct("leaf0000")
        self.fabric.port("leaf0000", 1).tables = None
        self.started(100.0)
        self.assertIn("portFECCorrectableBlockCtr", self.counted("leaf0000", 1))
        self.assertIn("fecCorrectableSymbolCtrLanes0", self.counted("leaf0000", 1))

    def test_formAnew(self) -> None:
        """The FEC mode is read again when the link has come up again."""
        self.fabric.correct("leaf0000", mode=FECMode.FIRECODE)
        self.started(100.0)
        self.assertNotIn("portFECCorrectedSymbolCtr", self.counted("leaf0000", 1))
        self.fabric.correct("leaf0000")
        self.fabric.cut("leaf0000", 1)
        self.pump(5.0)
        self.fabric.heal("leaf0000", 1)
        self.pump(150.0)
        self.assertIn("portFECCorrectedSymbolCtr", self.counted("leaf0000", 1))

    def test_unable(self) -> None:
        """A node that refuses the attribute is not read again, and causes no finding."""
        self.patch(pma, "GROUPS", {key: group for key, group in pma.GROUPS.items() if key != 0x1F})
        self.fabric.correct()
        asked = self.watched()
        self.started(100.0)
        self.assertEqual(len(asked), len(self.sweptFabric.nodes))
        self.pump(600.0)
        self.assertEqual(len(asked), len(self.sweptFabric.nodes))
        self.assertEqual((self.poller.corrections.meters, self.output()), ({}, []))

    @slow("it polls a fabric for hours")
    def test_passing(self) -> None:
        """After a temporary refusal, as during link training, the port is read again at growing intervals."""
        self.fabric.correct()
        refused = (MADStatus.BUSY, MADStatus.INVALID_FIELD)
        end = self.answering(
            lambda port, number, reply: (
                withStatus(reply, refused[port.number % 2]) if number == 0x1F else reply
            )
        )
        self.started(100.0)
        self.assertEqual(self.poller.corrections.meters, {})
        asked = self.watched()
        self.pump(3600.0)
        self.assertLessEqual(len(asked), 4 * 8 * self.linked)
        end()
        self.pump(LONGEST_REFUSED_SECONDS + 100.0)
        self.assertEqual(len(self.poller.corrections.meters), self.linked)

    def test_silent(self) -> None:
        """A node that ignores only this attribute is soon not queried for it any more, and not silent."""
        self.fabric.correct()
        self.answering(lambda port, number, reply: None if number == 0x1F else reply)
        self.started(400.0)
        asked = self.watched()
        self.pump(600.0)
        self.assertEqual((asked, self.output()), ([], []))
        self.assertEqual(self.poller.statistics.silences, 0)

    def test_slow(self) -> None:
        """Ports of slow links are not read."""
        self.fabric.correct()
        for node in self.fabric.nodes.values():
            for port in node.external:
                port.info[:] = PortInfo.decode(port.info).replace(linkSpeedExtActive=0).encode()
        asked = self.watched()
        self.started(100.0)
        self.assertEqual((asked, self.poller.corrections.meters), ([], {}))

    def test_gaps(self) -> None:
        """Silent or lost nodes have no values, and are removed together with the fabric."""
        self.fabric.correct()
        self.started(100.0)
        at = self.portKey("h00001", 1)
        self.assertIsNotNone(self.poller.corrections.meters[at].value(UNCORRECTABLE))
        self.fabric.silence("h00001")
        self.pump(100.0)
        self.assertIsNone(self.poller.corrections.meters[at].value(UNCORRECTABLE))
        self.fabric.cut("h00001")
        self.pump(100.0)
        self.assertNotIn(at, self.poller.corrections.meters)
        self.fabric.heal("h00001")
        self.fabric.revive("h00001")
        self.pump(400.0)
        self.assertIsNotNone(self.poller.corrections.meters[at].value(UNCORRECTABLE))


class FindingTests(CorrectionTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.fabric.correct()
        self.started(100.0)

    def grow(self, count: int) -> None:
        self.fabric.setCounters("leaf0000", 1, portFECUncorrectableBlockCtr=count)
        self.pump(100.0)

    def test_corrected(self) -> None:
        """Corrected symbols and blocks are not a finding: with PAM4 there are always some."""
        self.fabric.setCounters("leaf0000", 1, portFECCorrectedSymbolCtr=FULL - 4 * 10**8)
        self.fabric.growCounters(
            *("leaf0000", 1), portFECCorrectedSymbolCtr=4e5, portFECCorrectableBlockCtr=3e5
        )
        self.pump(200.0)
        self.assertAlmostEqual(self.rawRate() or 0.0, 4e5 / (4 * 53.125e9), 9)
        self.pump(1000.0)  # the counter is full after a thousand
        self.assertEqual(self.output(), [])
        self.assertIsNone(self.rawRate())
        reported = self.counted("leaf0000", 1)
        self.assertEqual(reported["portFECCorrectedSymbolCtr"], FULL)
        meter = self.poller.corrections.meters[self.portKey("leaf0000", 1)]
        self.assertIsNone(meter.rate("portFECCorrectedSymbolCtr"))

    def rawRate(self) -> float | None:
        """Return the bit error rate before correction, as pages show it."""
        context = Watch(self.poller, None, self.clock.seconds).context()
        port = self.sweptFabric.nodes[self.fabric.node("leaf0000").guid].port(1)
        rate: float | None = PORTS.toDict(context, port)["rawBitErrorRate"]
        return rate

    @slow("it polls a fabric for hours")
    def test_uncorrectable(self) -> None:
        """Uncorrectable blocks are a finding by their rate, and another by their number; both are cleared."""
        self.grow(2)
        self.assertEqual(self.output(), [])
        self.grow(3)
        self.assertEqual(self.output(), [("raised", "symbol-ber", "leaf0000")])
        ((entry),) = self.poller.findings.log.open.values()
        self.assertIn("3 blocks beyond correction in 12 minutes", entry.finding.text)
        bits = 4 * 53.125e9 * 720  # of HDR; each block has at least eight wrong symbols
        self.assertIn(f"at least {3 * 8 / bits:.1e}", entry.finding.text)
        self.grow(11)
        self.assertEqual(self.output(), [("raised", "fec-uncorrectable", "leaf0000")])
        found = {one.finding.kind: one for one in self.poller.findings.log.open.values()}
        self.assertEqual(
            found["fec-uncorrectable"].finding.text,
            "PortFECUncorrectableBlockCtr 11 in an hour, 10 are allowed",
        )
        self.assertIn("Reseat", found["fec-uncorrectable"].advice)
        self.pump(1.25 * 3600.0)
        self.assertEqual(
            {one[:2] for one in self.output()}, {("cleared", "symbol-ber"), ("cleared", "fec-uncorrectable")}
        )

    def test_both(self) -> None:
        """A link with symbol errors and uncorrectable blocks has one bit error finding."""
        self.fabric.setCounters("leaf0000", 1, portFECUncorrectableBlockCtr=4, symbolErrorCounter=7)
        self.pump(100.0)
        self.assertEqual(self.output(), [("raised", "symbol-ber", "leaf0000")])

    def test_reset(self) -> None:
        """A counter reset does not hide flapping, and later growth counts."""
        self.grow(9)
        self.output()
        for at in range(4):
            self.fabric.cut("leaf0000", 3)
            self.pump(2.0)
            self.fabric.heal("leaf0000", 3)
            self.fabric.setCounters("leaf0000", 3, portFECCorrectableBlockCtr=100 - at)
            self.pump(70.0)
        self.assertIn("flapping", {kind for _what, kind, _where in self.output()})

    def test_otherNode(self) -> None:
        """Counts of another node with its LID are not a node's, also if a sweep meanwhile loses the node."""
        for hasLeft in (False, True):
            self.setUp()
            node = self.fabric.node("h00001")
            corrections, whose = self.poller.corrections, self.fabric.sma._gets[0x0011]
            judge = type("Judge", (), {"isConcerned": lambda *_: True, "count": self.fail})()
            self.patch(corrections, "_thresholds", judge)
            self.fabric.setCounters("h00001", 1, portFECUncorrectableBlockCtr=5)

            def other(port: Any, modifier: int, whose: Any = whose, hasLeft: bool = hasLeft) -> bytes:
                content: bytes = whose(port, modifier)
                if port.node.description != "h00001":
                    return content
                if hasLeft:
                    self.poller.corrections.retain(())
                return content.replace(port.node.guid.raw, self.fabric.node("h00002").guid.raw)

            self.fabric.sma._gets[0x0011] = other
            self.assertIn((node.guid, 1), corrections.meters)
            known = self.sweptFabric.nodes[node.guid]
            done = Deferred.fromCoroutine(corrections.read(known, self.agent, self.agent.port.endPort, 0.5))
            self.pump(1.0)
            self.assertIsNone(self.successResultOf(done))
            self.assertNotIn((node.guid, 1), corrections.meters)


class ReportingTests(SynchronousTestCase):
    """Error correction in configuration, thresholds and Prometheus."""

    def test_configured(self) -> None:
        """The limit and the metrics are configured like those of other counters."""
        config = parseConfig(
            "[limits]\nPortFECUncorrectableBlockCtr = {most = 0, seconds = 60}\n"
            '[metrics]\ncounters = ["PortFECUncorrectableBlockCtr", "FecCorrectableSymbolCtrLanes"]\n'
        )
        (limit,) = [one for one in config.limits if one.counter == UNCORRECTABLE]
        self.assertEqual((limit.most, limit.seconds), (0, 60.0))
        self.assertEqual(config.counters, (UNCORRECTABLE, "fecCorrectableSymbolCtrLanes"))
        self.assertEqual(parseThresholds("PortFECUncorrectableBlockCtr=5").limits, {UNCORRECTABLE: 5})

    def test_text(self) -> None:
        """Both layouts use one metric family with a label for the lane; a full counter has no series."""
        modern = Meter(layoutOf(PortExtendedSpeedsCountersRSFEC, 2))
        modern.read((1, 2, FULL, 0, 0, 10, 11), 0.0)
        older = Meter(layoutOf(PortExtendedSpeedsCounters, 1))
        older.read((5, 6, 0, 0, 7, 6, 5), 0.0)
        text = "".join(exposed(CounterExposition().families({portKey(1, 1): modern, portKey(2, 1): older})))
        samples = [(name, dict(key), value) for (name, key), value in parsed(text).items()]
        found = {(name, key.get("lane"), key["guid"][-1]): value for name, key, value in samples}
        self.assertEqual(found["infiniband_port_fec_uncorrectable_blocks_total", None, "1"], 1.0)
        self.assertEqual(found["infiniband_port_fec_uncorrectable_blocks_total", None, "2"], 5.0)
        self.assertEqual(found["infiniband_port_fec_lane_corrected_symbols_total", "1", "1"], 11.0)
        self.assertEqual(found["infiniband_port_fec_lane_uncorrectable_blocks_total", "0", "2"], 5.0)
        self.assertNotIn(("infiniband_port_fec_corrected_symbols_total", None, "1"), found)
        self.assertEqual(text.count("# TYPE infiniband_port_fec_lane_corrected_symbols_total "), 1)


class CheckTests(FabricTestCase):
    """C{txrdma check}, which reads the fabric once."""

    def test_check(self) -> None:
        """Ports with uncorrectable blocks are reported, unless a threshold allows them."""
        self.fabric.correct("left")
        self.fabric.setCounters("left", 2, portFECUncorrectableBlockCtr=7, portFECCorrectedSymbolCtr=99)
        done = Sweep(self.agent).run()
        self.pump(5.0)
        fabric = self.successResultOf(done)
        for text, count in (("", 1), ("PortFECUncorrectableBlockCtr=7", 0)):
            found = Deferred.fromCoroutine(
                correctionFindings(self.agent, self.agent.port.endPort, fabric, parseThresholds(text), 16)
            )
            self.pump(5.0)
            reported = self.successResultOf(found)
            expected = ("fec-uncorrectable", 2, "PortFECUncorrectableBlockCtr 7")
            self.assertEqual([(one.kind, one.port, one.text) for one in reported], [expected] * count)

    def test_refused(self) -> None:
        """A port that refuses the query does not hide the other ports of its switch."""
        self.fabric.correct("left")
        self.fabric.setCounters("left", 2, portFECUncorrectableBlockCtr=7)
        done = Sweep(self.agent).run()
        self.pump(5.0)
        fabric = self.successResultOf(done)
        agents = self.fabric.wire._pma
        answer = agents.answer

        def refuse(port: SimulatedPort, datagram: bytes) -> bytearray:
            reply = answer(port, datagram)
            isAsked = datagram[16:18] == PortExtendedSpeedsCountersRSFEC.attributeID.to_bytes(2, "big")
            if isAsked and port.node.isSwitch and datagram[65] == 1:
                reply[4:6] = MADStatus.INVALID_FIELD.to_bytes(2, "big")
            return reply

        self.patch(agents, "answer", refuse)
        found = Deferred.fromCoroutine(
            correctionFindings(self.agent, self.agent.port.endPort, fabric, parseThresholds(""), 16)
        )
        self.pump(5.0)
        self.assertEqual(
            [(one.kind, one.port) for one in self.successResultOf(found)], [("fec-uncorrectable", 2)]
        )

    def test_silent(self) -> None:
        """Counters that an agent announces and does not return are a finding."""
        self.fabric.correct("left")
        done = Sweep(self.agent).run()
        self.pump(5.0)
        fabric = self.successResultOf(done)
        agents = self.fabric.wire._pma
        answer = agents.answer

        def ignore(port: SimulatedPort, datagram: bytes) -> bytearray | None:
            isAsked = datagram[16:18] == PortExtendedSpeedsCountersRSFEC.attributeID.to_bytes(2, "big")
            return None if isAsked and port.node.isSwitch else answer(port, datagram)

        self.patch(agents, "answer", ignore)
        found = Deferred.fromCoroutine(
            correctionFindings(self.agent, self.agent.port.endPort, fabric, parseThresholds(""), 16)
        )
        self.pump(60.0)
        [one] = self.successResultOf(found)
        self.assertEqual((one.kind, one.port), ("counters-silent", 1))
        self.assertIn("error correction: PerformanceGet: no answer", one.text)
