"""Congestion: how long ports wait for credits, the cause of these waits, and counters that are full."""

from __future__ import annotations

from txrdma.fabric.congestion import congestionFindings, CreditWait, waitShare
from txrdma.fabric.discovery import Sweep
from txrdma.fabric.model import Fabric, Port
from txrdma.mad.layouts.messages import MADStatus
from txrdma.mad.layouts.pma import PortRcvConCtrl, PortVLXmitWaitCounters
from txrdma.monitor.series.exposition import exposed, guidText
from txrdma.monitor.web.metrics import Metrics
from txrdma.monitor.web.tables import PORTS
from txrdma.monitor.web.watch import Watch
from txrdma.sim.fabric.agents import pma
from txrdma.sim.nets.fattree import fatTree
from txrdma.sim.nets.netfile import Net
from txrdma.test.support.mad.simulated import FabricTestCase
from txrdma.test.unit.monitor.test_poller import PollerTestCase

ROWS = [("left", 2, 0.5), ("right", 3, 0.25)]


class WaitTests(FabricTestCase):
    """Ticks are a share of time that does not depend on the width of the link, or on the length of a tick."""

    def setUp(self) -> None:
        super().setUp()
        fabric: Fabric = self.answerTo(Sweep(self.agent).run(), 3)
        self.port = fabric.nodes[self.fabric.node("left").guid].port(2)

    def test_share(self) -> None:
        """
        Ticks of 32 octets are those of a lane, at 4x HDR: 25 GB/s of data. NVIDIA's switches since Quantum
        report ticks of 8 octets, which are those of the port. No port waits for more than all of the time.
        """
        self.assertEqual((self.port.width, self.port.speed), (4, "HDR"))
        for ticks, tick, share in ((25e9 / 4 / 32, 31, 1.0), (5e9 / 4 / 32, 31, 0.2), (1e12, 31, 1.0)):
            self.assertAlmostEqual(waitShare(self.port, ticks, tick) or 0, share)
        raw = bytearray(self.port.node.raw)
        raw[-3:] = b"\x00\x02\xc9"
        self.port.node.raw = bytes(raw)
        self.assertEqual(self.port.node.vendorID, 0x0002C9)
        self.assertAlmostEqual(waitShare(self.port, 5e9 / 8, 7) or 0, 0.2)


class CauseTests(FabricTestCase):
    """The cause of congestion is found by following waiting ports; the others are its victims."""

    def net(self) -> Net:
        return fatTree(hosts=8, radix=4)

    def setUp(self) -> None:
        self.at = ""
        super().setUp()
        self.swept: Fabric = self.answerTo(Sweep(self.agent).run(), 30)
        self.loads: dict[Port, float] = {}

    def agentAt(self, name: str, number: int | None = None):  # type: ignore[no-untyped-def]  # of any host
        return super().agentAt("", number)

    def host(self, at: int) -> Port:
        """Return the port of a host."""
        return sorted(self.swept.hosts(), key=lambda node: node.guid.raw)[at].linked()[0]

    @staticmethod
    def peer(port: Port) -> Port:
        assert port.peer is not None
        return port.peer

    def up(self, port: Port) -> Port:
        """Return the first port of a switch that leads to another switch."""
        return next(one for one in port.node.linked() if self.peer(one).node.isSwitch)

    def found(self, **waits: float) -> list[tuple[str, str, str]]:
        ports = {"root": self.peer(self.host(0)), "up": self.peer(self.up(self.peer(self.host(0))))}
        ports["host"] = self.host(0)
        several = {
            (ports[name].node.guid, ports[name].number): CreditWait(share, (0, 2) if name == "root" else ())
            for name, share in waits.items()
        }
        return [
            (one.kind, one.where, one.text) for one in congestionFindings(self.swept, several, self.loads.get)
        ]

    def test_slowHost(self) -> None:
        """A host that takes packets slowly is the cause; ports that lead to its switch are victims."""
        root = self.peer(self.host(0))
        ((kind, where, text),) = self.found(root=0.6, up=0.3)
        self.assertEqual((kind, where), ("slow-receiver", str(root)))
        self.assertIn(f"it waits 60% of the time for {self.host(0)}, on virtual lanes 0, 2", text)
        victim = self.peer(self.up(root))
        self.assertTrue(text.endswith(f"because of it wait {victim} (30%)"), text)

    def test_full(self) -> None:
        """A link with full load is the cause of other ports' waits, and does not wait itself."""
        root = self.peer(self.host(0))
        self.loads[root] = 0.97
        ((kind, where, text),) = self.found(up=0.4)
        self.assertEqual((kind, where), ("link-full", str(root)))
        self.assertIn("carries 97% of what it can; because of it wait", text)

    def test_noCause(self) -> None:
        """If no cause is found behind it, the switch that gives no credits is named."""
        ((kind, where, text),) = self.found(up=0.4)
        self.assertEqual((kind, where), ("congestion", str(self.peer(self.up(self.peer(self.host(0)))))))
        self.assertNotIn("because", text)

    def test_little(self) -> None:
        """Ports that wait for less than a tenth of the time are not congested."""
        self.assertEqual(self.found(root=0.09, up=0.05), [])

    def test_circle(self) -> None:
        """Ports that wait for each other in a circle are one finding, at the port that waits longest."""
        switch = self.peer(self.host(0)).node
        waits = {}
        for leaf in self.swept.switches():
            for port in leaf.linked():
                if self.peer(port).node.isSwitch:
                    waits[leaf.guid, port.number] = CreditWait(0.9 if leaf is switch else 0.5)
        found = congestionFindings(self.swept, waits, self.loads.get)
        self.assertEqual([(one.kind, one.guid) for one in found], [("congestion", switch.guid)])


class CongestionTests(PollerTestCase):
    """The poller finds lasting congestion, and reads its virtual lanes and marks, which metrics include."""

    def setUp(self) -> None:
        super().setUp()
        self.fabric.countWide()

    def wait(self, name: str, number: int, share: float) -> None:
        """Let a port with a link of 4x HDR wait for a share of the time."""
        tick = pma.tickOf(self.fabric.port(name, number))
        self.fabric.growCounters(name, number, portXmitWait=share * 25e9 / 4 / (tick + 1))

    def test_slowHost(self) -> None:
        """A slow host is raised after some minutes, with its victims, lanes and marks, and is cleared."""
        self.fabric.traffic(1e6, 1e3)
        self.wait("left", 2, 0.5)
        self.wait("right", 3, 0.25)
        self.fabric.setCounters("left", 2, portVLXmitWait0=7, portVLXmitWait3=9)
        rate = 1e3
        self.fabric.growCounters("b", 1, portPktRcvFECN=rate / 10, portRcvPkts=rate)
        self.fabric.growCounters("left", 2, portPktRcvBECN=rate / 20, portRcvPkts=rate)
        self.started(100.0)
        self.assertEqual(self.output(), [])
        self.pump(240.0)
        self.assertEqual(self.output(), [("raised", "slow-receiver", "left")])
        (entry,) = self.poller.findings.log.open.values()
        text = entry.finding.text
        marks = ("FECN in 10% of", "BECN in 5% of")
        for part in ("50% of the time", "virtual lanes 0, 3", *marks, "because of it wait right"):
            self.assertIn(part, text)
        watch = Watch(self.poller, None, self.clock.seconds)
        context = watch.context()
        rows = [PORTS.toDict(context, port) for port in self.sweptFabric.ports() if context.waitShare(port)]
        self.assertEqual([(row["name"], row["port"], round(row["wait"], 2)) for row in rows], ROWS)
        text = "".join(exposed(Metrics(watch).families()))
        guid = guidText(self.fabric.node("left").guid)
        self.assertIn(f'infiniband_port_transmit_wait_ratio{{guid="{guid}",port="2"}} 0.50', text)
        self.wait("left", 2, 0.0)
        self.wait("right", 3, 0.0)
        self.pump(240.0)
        self.assertEqual(self.output(), [("cleared", "slow-receiver", "left")])
        self.assertEqual(self.poller.congestion.waits, {})

    def test_unheard(self) -> None:
        """While no node answers, former waits raise nothing and are not shown; a known finding remains."""
        waiting = (("left", 2), ("right", 1))
        self.wait(*waiting[0], 0.5)
        self.started(300.0)
        self.assertEqual(self.output(), [("raised", "slow-receiver", "left")])
        self.wait(*waiting[1], 0.5)
        self.pump(70.0)
        self.assertEqual(len(self.poller.congestion.current()), 4)
        self.fabric._resweepSeconds = None
        self.fabric.cut("a")
        self.fabric.heal("a")
        self.pump(600.0)
        kinds = {(what, kind) for what, kind, _where in self.output()}
        self.assertIn(("raised", "counters-silent"), kinds)
        self.assertEqual({kind for _what, kind in kinds if kind == "slow-receiver"}, set())
        self.assertEqual(self.poller.congestion.current(), {})
        self.fabric.sweep()
        self.pump(300.0)
        found = [(what, kind, where) for what, kind, where in self.output() if kind == "slow-receiver"]
        self.assertEqual(found, [("raised", "slow-receiver", "right")])

    def test_optional(self) -> None:
        """Agents without optional counters are queried once for them; the share is known nevertheless."""
        optional = (PortVLXmitWaitCounters.attributeID, PortRcvConCtrl.attributeID)
        self.patch(pma, "GROUPS", {key: one for key, one in pma.GROUPS.items() if key not in optional})
        self.wait("left", 2, 0.5)
        self.started(400.0)
        self.assertEqual(self.output(), [("raised", "slow-receiver", "left")])
        wait = self.poller.congestion.waits[self.portKey("left", 2)]
        self.assertAlmostEqual(wait.share, 0.5, 1)
        self.assertEqual((wait.lanes, wait.fecn), ((), None))

    def test_passing(self) -> None:
        """Agents that are busy when optional counters are read are queried again."""
        end = self.refuse(MADStatus.INVALID_FIELD, PortVLXmitWaitCounters, PortRcvConCtrl)
        self.wait("left", 2, 0.5)
        self.fabric.setCounters("left", 2, portVLXmitWait3=9)
        self.started(400.0)
        wait = self.poller.congestion.waits[self.portKey("left", 2)]
        self.assertEqual((wait.lanes, wait.fecn), ((), None))
        end()
        self.pump(120.0)
        self.assertEqual(self.poller.congestion.waits[self.portKey("left", 2)].lanes, (3,))

    def test_narrow(self) -> None:
        """If counters of waits have 32 bits and are full, there is one finding about them."""
        self.fabric.node("left").countsWide = False
        self.wait("left", 2, 0.5)
        self.wait("left", 3, 0.5)
        self.started(400.0)
        self.assertEqual(self.output(), [("raised", "counter-full", "PortXmitWait")])
        (entry,) = self.poller.findings.log.open.values()
        self.assertIn("it is full at 2 ports", entry.finding.text)
        for number in (2, 3):
            self.wait("left", number, 0.0)
            self.fabric.setCounters("left", number, portXmitWait=0)
        self.pump(120.0)
        self.assertEqual(self.output(), [("cleared", "counter-full", "PortXmitWait")])

    def test_narrowWithoutLink(self) -> None:
        """A counter of waits that is full does not count when its port has no link any more."""
        self.fabric.node("left").countsWide = False
        self.wait("left", 2, 0.5)
        self.started(400.0)
        self.assertEqual(self.output(), [("raised", "counter-full", "PortXmitWait")])
        self.fabric.cut("left", 2)
        self.pump(200.0)
        self.assertIn(("cleared", "counter-full", "PortXmitWait"), self.output())

    def test_full(self) -> None:
        """Counters of errors that are full are a finding with the command that clears them."""
        self.fabric.node("left").countsWide = False
        self.fabric.setCounters("left", 3, symbolErrorCounter=65535)
        self.started()
        self.assertEqual(self.output(), [("raised", "counter-full", "left")])
        (entry,) = self.poller.findings.log.open.values()
        lid = self.lid("left")
        self.assertEqual(
            entry.finding.text,
            f"SymbolErrorCounter cannot count further; this clears it: txrdma errors --clear {lid}",
        )
        self.fabric.setCounters("left", 3, symbolErrorCounter=0)
        self.pump(60.0)
        self.assertEqual(self.output(), [("cleared", "counter-full", "left")])

    def test_fullAndGone(self) -> None:
        """Nobody is asked to clear the full counters of a node that is gone."""
        self.fabric.node("c").countsWide = False
        self.fabric.setCounters("c", 1, symbolErrorCounter=65535)
        self.started()
        self.assertEqual(self.output(), [("raised", "counter-full", "c")])
        self.fabric.cut("c")
        self.pump(100.0)
        self.assertEqual(self.output(), [("raised", "node-gone", "c"), ("cleared", "counter-full", "c")])
        self.fabric.heal("c")
        self.pump(100.0)
        self.assertEqual(self.output(), [("raised", "counter-full", "c"), ("cleared", "node-gone", "c")])

    def test_fillsUp(self) -> None:
        """A counter that becomes full is reported together with the errors that filled it."""
        self.fabric.node("left").countsWide = False
        self.started()
        self.fabric.setCounters("left", 3, linkDownedCounter=300)
        self.pump(20.0)
        self.assertIn(("raised", "counter-full", "left"), self.output())
