"""
Several managers of a simulated subnet: one is the master, others stand by.
"""

from __future__ import annotations

from typing import Any

from txrdma.iba.path import IBPath
from txrdma.mad.errors import MADError
from txrdma.mad.layouts import sa, smp
from txrdma.mad.layouts.values import SMState
from txrdma.sim.fabric.sm.election import ACKNOWLEDGE, DISABLE, HANDOVER, STANDBY
from txrdma.test.support.mad.simulated import FabricTestCase, gmp


class StandbyTests(FabricTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.other = self.fabric.standBy("c")
        self.addCleanup(self.fabric.close)

    def state(self, name: str) -> SMState:
        info: smp.SMInfo = self.told(self.agent.SubnGet(smp.SMInfo, IBPath(dlid=self.lid(name))), 0)
        return info.smState

    def states(self) -> tuple[str, str]:
        return self.state("c").name, self.state("d").name

    def command(self, name: str, command: int, state: SMState = SMState.MASTER) -> Any:
        return self.agent.SubnSet(smp.SMInfo(smState=state), IBPath(dlid=self.lid(name)), command)

    def smLID(self, name: str) -> int:
        return int.from_bytes(self.fabric.port(name).end.info[18:20], "big")

    def test_both(self) -> None:
        self.pump(30)
        self.assertEqual(self.states(), ("STANDBY", "MASTER"))
        records = self.told(self.agent.SubnAdmGetTable(sa.SMInfoRecord, gmp(self.lid("d"))))
        self.assertEqual({one.lid: one.smInfo.smState.name for one in records}[self.lid("c")], "STANDBY")
        self.assertEqual(len(records), 2)

    def test_death(self) -> None:
        lids = {name: self.lid(name) for name in ("a", "b", "c", "left", "right")}
        self.fabric.silence("d")
        self.pump(5)
        self.assertEqual(self.state("c"), SMState.MASTER)
        self.assertEqual({name: self.lid(name) for name in lids}, lids)
        self.assertEqual({self.smLID(name) for name in lids}, {lids["c"]})
        path = IBPath(dlid=lids["b"])
        self.assertEqual(self.told(self.agent.SubnGet(smp.NodeDescription, path)).text, "b")
        (record,) = self.told(
            self.agent.SubnAdmGetTable(sa.NodeRecord.query(lid=lids["b"]), gmp(self.smLID("a")))
        )
        self.assertEqual(record.nodeDescription.text, "b")

    def test_return(self) -> None:
        self.fabric.silence("d")
        self.pump(5)
        self.fabric.revive("d")
        self.assertEqual(self.states(), ("MASTER", "MASTER"))
        self.pump(10)
        self.assertEqual(self.states(), ("STANDBY", "MASTER"))
        self.assertEqual({self.smLID(name) for name in "abcd"}, {self.lid("d")})

    def test_guid(self) -> None:
        third = self.fabric.standBy("b", priority=4)
        self.assertLess(int(third.port.guid), int(self.fabric.port("d").guid))
        self.pump(10)
        self.assertEqual((self.state("b"), self.state("d")), (SMState.MASTER, SMState.STANDBY))

    def test_priority(self) -> None:
        self.fabric.standBy("b", priority=9)
        self.assertEqual(self.state("d"), SMState.MASTER)
        self.pump(5)
        self.assertEqual((self.state("b"), self.state("d")), (SMState.MASTER, SMState.STANDBY))
        self.assertEqual(self.smLID("left"), self.lid("b"))

    def test_apart(self) -> None:
        for number in (3, 4):
            self.fabric.cut("left", number)
        self.fabric.cut("b", 2)
        third = self.fabric.standBy("a")
        self.pump(5)
        self.assertEqual((third.state, self.state("a")), (SMState.MASTER, SMState.MASTER))
        self.fabric.heal("b", 2)
        self.fabric.heal("left", 3)
        self.pump(20)
        states = [one.state.name for one in (third, self.other)]
        self.assertEqual(sorted([*states, self.state("d").name]), ["MASTER", "STANDBY", "STANDBY"])
        self.assertEqual(len({self.smLID(name) for name in "abcd"}), 1)

    def test_commands(self) -> None:
        for command in (ACKNOWLEDGE, STANDBY, 0, 9):
            self.assertEqual(self.refused(self.command("c", command), MADError, 0).status, 0x1C)
        self.assertEqual(self.refused(self.command("d", DISABLE), MADError, 0).status, 0x1C)
        self.assertEqual(self.refused(self.command("c", DISABLE, SMState.STANDBY), MADError, 0).status, 0x1C)
        self.assertEqual(self.refused(self.command("a", HANDOVER), MADError, 0).status, 0x0C)
        self.assertEqual(self.told(self.command("c", DISABLE), 0).smState, SMState.NOT_ACTIVE)
        self.fabric.silence("d")
        self.pump(10)
        self.assertEqual(self.state("c"), SMState.NOT_ACTIVE)
        self.assertEqual(self.told(self.command("c", STANDBY), 0).smState, SMState.STANDBY)
        self.pump(5)
        self.assertEqual(self.state("c"), SMState.MASTER)

    def test_unasked(self) -> None:
        self.told(self.command("c", HANDOVER), 0)
        self.assertEqual(self.state("c"), SMState.MASTER)

    def test_twice(self) -> None:
        for name in ("c", "d"):
            self.assertRaises(ValueError, self.fabric.standBy, name)
