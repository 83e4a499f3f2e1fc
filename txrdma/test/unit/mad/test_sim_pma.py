"""
Performance management of simulated fabrics: counters that are told, set, and grow.
"""

from __future__ import annotations

from typing import Any

from txrdma.mad.errors import MADError
from txrdma.mad.layouts import pma
from txrdma.test.support.mad.simulated import FabricTestCase, gmp


class CounterTests(FabricTestCase):
    def get(self, payload: Any, name: str = "left") -> Any:
        return self.told(self.agent.PerformanceGet(payload, gmp(self.lid(name))))

    def set(self, payload: Any, name: str = "left") -> Any:
        return self.told(self.agent.PerformanceSet(payload, gmp(self.lid(name))))

    def test_allPorts(self) -> None:
        for port in (1, 2, 3):
            self.fabric.setCounters("left", port, portXmitPkts=port, linkDownedCounter=100)
        total = self.get(pma.PortCounters(portSelect=0xFF))
        self.assertEqual((total.portXmitPkts, total.linkDownedCounter), (6, 255))

    def test_ports(self) -> None:
        for name, port in (("c", 0), ("c", 2), ("c", 255), ("left", 9)):
            asked = self.agent.PerformanceGet(pma.PortCounters(portSelect=port), gmp(self.lid(name)))
            self.assertEqual(self.refused(asked, MADError).status, 0x1C, (name, port))
        self.assertEqual(self.get(pma.PortCounters(portSelect=1), "c").portSelect, 1)

    def test_growth(self) -> None:
        self.fabric.setCounters("left", 1, portXmitData=1000)
        self.fabric.growCounters("left", 1, portXmitData=100.0, symbolErrorCounter=0.5)
        self.pump(10)
        start = self.clock.seconds()
        first = self.get(pma.PortCountersExtended(portSelect=1))
        self.assertEqual((first.portXmitData, first.symbolErrorCounter), (2000, 5))
        self.fabric.growCounters("left", 1, portXmitData=0)
        grown = int(1000 + 100 * self.clock.seconds())
        self.pump(10)
        self.assertEqual(self.get(pma.PortCountersExtended(portSelect=1)).portXmitData, grown)
        self.assertEqual(start, 10)

    def test_traffic(self) -> None:
        self.fabric.traffic(1e6, 1e3)
        self.pump(10)
        here = self.get(pma.PortCountersExtended(portSelect=1))
        at = self.clock.seconds()
        self.fabric.growCounters("left", 1, portXmitPkts=0)  # and hold it, to compare
        self.assertGreater(here.portXmitPkts, 0)
        there = self.fabric.counters("a", 1)
        self.assertEqual(there.value("portRcvData", 10.0), here.portXmitData)
        self.assertEqual(self.get(pma.PortCountersExtended(portSelect=8)).portXmitData, 0)
        self.assertGreater(at, 10)

    def test_details(self) -> None:
        details: tuple[tuple[Any, dict[str, int]], ...] = (
            (pma.PortRcvErrorDetails, {"portVLMappingErrors": 3}),
            (pma.PortXmitDiscardDetails, {"portSwHOQLifetimeLimitDiscards": 4}),
            (pma.PortVLXmitWaitCounters, {"portVLXmitWait5": 6}),
            (pma.PortExtendedSpeedsCounters, {"fecCorrectableBlockCounterLanes3": 9}),
        )
        for kind, names in details:
            self.fabric.setCounters("right", 1, **names)
            told = self.get(kind(portSelect=1), "right").toDict()
            ((name, value),) = names.items()
            plain = name.rstrip("0123456789")
            found = told[plain]
            self.assertEqual(found if plain == name else found[int(name[len(plain) :])], value)

    def test_linkDowned(self) -> None:
        self.fabric.cut("c", 1)
        self.fabric.heal("c", 1)
        self.pump()
        for name in ("c", "right"):
            self.assertEqual(self.get(pma.PortCounters(portSelect=1), name).linkDownedCounter, 1)
