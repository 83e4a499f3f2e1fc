"""Counters and congestion control of simulated fabrics."""

from __future__ import annotations

from typing import Any

from txrdma.mad.core.frames import Keys
from txrdma.mad.errors import MADError, MADTimeoutError
from txrdma.mad.layouts import congestion, pma
from txrdma.mad.layouts.messages import ClassPortInfo
from txrdma.test.support.mad.simulated import FabricTestCase, gmp


class CongestionTests(FabricTestCase):
    def get(self, name: str, kind: Any, modifier: int = 0, key: int = 0) -> Any:
        return self.agent.CongMgtGet(kind, gmp(self.lid(name)), modifier, keys=Keys(ccKey=key), retries=0)

    def set(self, name: str, content: Any, modifier: int = 0, key: int = 0) -> Any:
        return self.agent.CongMgtSet(content, gmp(self.lid(name)), modifier, keys=Keys(ccKey=key), retries=0)

    def test_settings(self) -> None:
        for name, last, content in (
            ("left", 0, congestion.SwitchCongestionSetting(controlMap=3, threshold=9, markingRate=7)),
            ("left", 0, congestion.SwitchPortCongestionSetting.decode(bytes(range(16)) * 8)),
            ("c", 0, congestion.CACongestionSetting.decode(bytes(range(33)) * 4)),
            ("c", 1, congestion.CongestionControlTable.decode(b"\1\2\0\0" + bytes(range(64)) * 2)),
        ):
            kind = type(content)
            self.assertEqual(self.answerTo(self.get(name, kind, last)), kind())
            self.assertEqual(self.answerTo(self.set(name, content, last)).encode(), content.encode())
            self.assertEqual(self.answerTo(self.get(name, kind, last)).encode(), content.encode())
            self.assertEqual(self.refused(self.get(name, kind, last + 1), MADError).status, 0x1C)

    def test_unsupported(self) -> None:
        for name, kind in (
            ("left", congestion.CongestionControlTable),
            ("left", congestion.CACongestionSetting),
            ("c", congestion.SwitchPortCongestionSetting),
            ("c", congestion.SwitchCongestionSetting),
        ):
            for call in (self.get(name, kind), self.set(name, kind())):
                self.assertEqual(self.refused(call, MADError).status, 0x0C, (name, kind))

    def test_information(self) -> None:
        self.assertEqual(self.answerTo(self.get("left", congestion.CongestionInfo)).controlTableCap, 0)
        self.assertEqual(self.answerTo(self.get("c", congestion.CongestionInfo)).controlTableCap, 2)
        self.assertEqual(self.answerTo(self.get("c", ClassPortInfo)).classVersion, 2)
        now = round(self.clock.seconds() / 1.024e-6)
        for name, kind, who in (
            ("left", congestion.SwitchCongestionLog, "SWITCH"),
            ("c", congestion.CACongestionLog, "CA"),
        ):
            log = self.answerTo(self.get(name, kind), 0)
            self.assertEqual((log.logType.name, log.currentTimeStamp), (who, now))
        self.pump(1.024)
        reported = self.answerTo(self.get("c", congestion.TimeStamp), 0)
        self.assertEqual(reported.timestamp, now + 1_000_000)

    def test_key(self) -> None:
        self.answerTo(self.set("c", congestion.CongestionKeyInfo(ccKey=42, ccKeyProtectBit=True)))
        self.refused(self.set("c", congestion.CACongestionSetting(), key=41), MADTimeoutError)
        for key, shown in ((0, 0), (42, 42)):
            info = self.answerTo(self.get("c", congestion.CongestionKeyInfo, key=key))
            self.assertEqual((info.ccKey, info.ccKeyProtectBit, info.ccKeyViolations), (shown, True, 1))
        self.answerTo(self.set("c", congestion.CACongestionSetting(), key=42))


class CounterTests(FabricTestCase):
    def get(self, payload: Any, name: str = "left") -> Any:
        return self.answerTo(self.agent.PerformanceGet(payload, gmp(self.lid(name))))

    def set(self, payload: Any, name: str = "left") -> Any:
        return self.answerTo(self.agent.PerformanceSet(payload, gmp(self.lid(name))))

    def test_tick(self) -> None:
        reported = self.get(pma.PortSamplesControl(portSelect=1), "c")
        # 4 ns of a lane of HDR are 212.5 bits: the time of 21 units of ten bits.
        self.assertEqual((reported.portSelect, reported.tick), (1, 20))
        for name, port in (("left", 9), ("left", 255), ("c", 2)):
            asked = pma.PortSamplesControl(portSelect=port)
            call = self.agent.PerformanceGet(asked, gmp(self.lid(name)))
            self.assertEqual(self.refused(call, MADError).status, 0x1C)

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
        self.fabric.growCounters("left", 1, portXmitPkts=0)  # stops the growth, to compare
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
            reported = self.get(kind(portSelect=1), "right").toDict()
            ((name, value),) = names.items()
            plain = name.rstrip("0123456789")
            found = reported[plain]
            self.assertEqual(found if plain == name else found[int(name[len(plain) :])], value)

    def test_misspelt(self) -> None:
        """Only counters that some attribute has can be set and can grow."""
        for change in (self.fabric.setCounters, self.fabric.growCounters):
            error = self.assertRaises(ValueError, change, "left", 1, symbolErrors=1, portRcvErrors=1)
            self.assertIn("counter symbolErrors", str(error))

    def test_linkDowned(self) -> None:
        self.fabric.cut("c", 1)
        self.fabric.heal("c", 1)
        self.pump()
        for name in ("c", "right"):
            self.assertEqual(self.get(pma.PortCounters(portSelect=1), name).linkDownedCounter, 1)
