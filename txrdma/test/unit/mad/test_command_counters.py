"""
C{txrdma perfquery}, and arithmetic with counters.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from txrdma.fabric.rates import added, changed, counterNames, Increase, Rates
from txrdma.mad.layouts.pma import PortCounters, PortCountersExtended, PortXmitDataSL


class CountersTests(SynchronousTestCase):
    def test_added(self) -> None:
        one = PortCounters(portSelect=1, portRcvErrors=65000, linkDownedCounter=3)
        told = added([one, one], 255)
        self.assertEqual((told.portSelect, told.portRcvErrors, told.linkDownedCounter), (255, 65535, 6))
        lanes = PortXmitDataSL(portXmitDataSL=tuple(range(16)))
        self.assertEqual(added([lanes, lanes], 255).portXmitDataSL, tuple(range(0, 32, 2)))

    def test_changed(self) -> None:
        before = PortCounters(portXmitPkts=10, portRcvPkts=10)
        after = PortCounters(portXmitPkts=15, portRcvPkts=4)
        told = changed(before, after, ["portXmitPkts", "portRcvPkts"])
        self.assertEqual(told.counted, {"portXmitPkts": 5, "portRcvPkts": 4})
        self.assertEqual(told.cleared, ("portRcvPkts",))
        lanes = [PortXmitDataSL(portXmitDataSL=(base, *range(15))) for base in (5, 7)]
        told = changed(lanes[0], lanes[1], ["portXmitDataSL"])
        self.assertEqual(
            {name: value for name, value in told.counted.items() if value}, {"portXmitDataSL[0]": 2}
        )

    def test_full(self) -> None:
        top = (1 << 32) - 1
        before = PortCounters(portXmitData=top - 10, portRcvData=top, symbolErrorCounter=65535)
        after = PortCounters(portXmitData=top, portRcvData=3, symbolErrorCounter=65535)
        told = changed(before, after, ["portXmitData", "portRcvData", "symbolErrorCounter"])
        self.assertEqual(told.counted, {"portXmitData": 10, "portRcvData": 3, "symbolErrorCounter": 0})
        self.assertEqual(told.saturated, ("symbolErrorCounter", "portXmitData"))
        self.assertEqual(told.cleared, ("portRcvData",))

    def test_cleared(self) -> None:
        top = (1 << 32) - 1
        before = PortCounters(portXmitData=top - 99, linkDownedCounter=254, portRcvData=top // 2)
        after = PortCounters(portXmitData=100, linkDownedCounter=1, portRcvData=100)
        told = changed(before, after, ["portXmitData", "linkDownedCounter", "portRcvData"])
        self.assertEqual(told.counted, {"portXmitData": 100, "linkDownedCounter": 1, "portRcvData": 100})
        self.assertEqual(told.cleared, ("linkDownedCounter", "portXmitData", "portRcvData"))

    def test_rates(self) -> None:
        rates = Rates(1, 2.0, Increase({"portXmitData": 100, "portXmitPkts": 8}))
        told = rates.toDict()
        self.assertEqual((told["xmitBytesPerSecond"], told["xmitPktsPerSecond"]), (200.0, 4.0))
        self.assertEqual(told["rcvBytesPerSecond"], 0.0)
        self.assertEqual(Rates(1, 0.0, Increase({"portXmitData": 1})).perSecond("portXmitData"), 0.0)

    def test_names(self) -> None:
        names = counterNames(PortCountersExtended)
        self.assertEqual(names[0], "portXmitData")
        self.assertFalse({"portSelect", "counterSelect", "counterSelect2"} & set(names))
