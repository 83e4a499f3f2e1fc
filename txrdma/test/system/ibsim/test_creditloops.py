"""
Credit loops of a torus that OpenSM has routed: with LASH and torus-2QoS there is none.
"""

from __future__ import annotations

from pathlib import Path

from txrdma.commands.common.rehearsal import Rehearsal, RehearsalPlan
from txrdma.fabric.creditloops import Channel, findLaneCycle, Lanes, LaneSurvey, Link
from txrdma.fabric.discovery import Sweep
from txrdma.fabric.model import Port
from txrdma.fabric.recorder import record
from txrdma.fabric.recording import RecordedRPCs
from txrdma.fabric.routechecks import RouteCheck, routeFindings
from txrdma.fabric.routeuse import Linear
from txrdma.fabric.tables import TableSurvey
from txrdma.iba.types import LID
from txrdma.mad.layouts.sa import PathRecord
from txrdma.mad.rpcs import RPCs
from txrdma.monitor.config import parseConfig
from txrdma.sim.faultplan import Fault
from txrdma.test.system.ibsim.fabric import IbsimTestCase

PATHS_OF = LaneSurvey.pathsOf
SIZE = 5


def guid(x: int, y: int) -> str:
    """Return the GUID of a switch."""
    return f"0x2000{x}{y}"


def torus() -> str:
    """Return a torus of 5 by 5 switches with a host each, as a net file."""
    lines = []
    for x in range(SIZE):
        for y in range(SIZE):
            right, up = f"s{(x + 1) % SIZE}{y}", f"s{x}{(y + 1) % SIZE}"
            links = (f'[1] "{right}"[2]', f'[3] "{up}"[4]', f'[5] "h{x}{y}"[1]')
            lines += [f"switchguid={guid(x, y)}", f'Switch 8 "s{x}{y}"', *links, ""]
    hosts = [f'Hca 1 "h{x}{y}"\n' for x in range(SIZE) for y in range(SIZE)]
    return "\n".join([*lines, *hosts])


class SingleSurvey(LaneSurvey):
    """Requests one path at a time: ibsim does not deliver answers of several records from OpenSM."""

    async def pathsOf(self, rpcs: RPCs, source: Port) -> None:
        """Query the service levels of all paths from a port."""
        for lid in self.lids:
            if lid != source.lid:
                query = PathRecord.query(slid=source.lid, dlid=LID(lid), reversible=True, numbPath=1)
                self.add(source, await rpcs.SubnAdmGet(query))


class TorusTestCase(IbsimTestCase):
    """A torus whose links depend on each other in cycles by the forwarding tables alone."""

    net = torus()
    hasSM = True

    async def survey(self) -> tuple[Linear, Lanes, list[Link]]:
        """Return forwarding tables, the lanes of all paths, and links that depend on each other in cycles."""
        agent = self.agentAt("h00")
        end = agent.port.endPort
        fabric = await Sweep(agent).run()
        tables = await TableSurvey(agent, end, fabric).run()
        check = RouteCheck(fabric, tables.linear)
        for _step in check.steps():
            pass
        self.assertNotEqual(check.cyclic, {})
        lanes = await SingleSurvey(agent, end, fabric, tables.linear, check.cyclic).run()
        self.assertEqual(len(lanes.levels), SIZE**2 * (SIZE**2 - 1))
        return tables.linear, lanes, list(check.cyclic)

    @staticmethod
    def loop(linear: Linear, lanes: Lanes, links: list[Link]) -> list[Channel]:
        """Return a credit loop; empty if there is none."""
        found: list[Channel] = []
        for _step in findLaneCycle(linear, lanes, links, found):
            pass
        return found


class LayerTests(TorusTestCase):
    """LASH, which gives each path a service level and so a virtual lane."""

    smConfiguration = "routing_engine lash"

    async def test_lash(self) -> None:
        """There is no credit loop, but there is one if all service levels share a lane."""
        linear, lanes, links = await self.survey()
        self.assertGreater(len(set(lanes.levels.values())), 1)
        self.assertEqual(self.loop(linear, lanes, links), [])
        lanes.mappings = dict.fromkeys(lanes.mappings, (0,) * 16)
        self.assertNotEqual(self.loop(linear, lanes, links), [])

    async def test_rehearsal(self) -> None:
        """A rehearsal has no findings without a fault, and OpenSM's routes before and after one."""
        linear, lanes, _links = await self.survey()
        agent = self.agentAt("h00")
        end = agent.port.endPort
        self.patch(LaneSurvey, "pathsOf", SingleSurvey.pathsOf)
        recording = await record(agent, end, await Sweep(agent).run(), 0.0, 32)
        self.assertEqual(recording.linearTables().keys(), linear.keys())
        levels: dict[int, list[bytes]] = {}
        for (source, dlid), level in lanes.levels.items():
            path = PathRecord(slid=source.lid, dlid=LID(dlid), serviceLevel=level)
            levels.setdefault(source.lid, []).append(path.encode())
        answers = {(lid, 1): several for lid, several in levels.items()}
        recording.answers["SubnAdmGetTable", "PathRecord"] = {**answers}
        self.patch(LaneSurvey, "pathsOf", PATHS_OF)
        checked = await routeFindings(RecordedRPCs(recording), end, recording.fabric, linear)
        kinds = {one.kind for one in checked}
        self.assertNotIn("credit-loop", kinds)
        for faults in ((), (Fault("flap", 60.0, "s22", 1, times=1),)):
            plan = RehearsalPlan(faults, (), 60.0, 300.0)
            rehearsal = Rehearsal(recording, parseConfig("[poll]\nsurvey = 100"), plan, 0.0)
            tables = rehearsal.fabric.linearOf
            for _step in rehearsal.run():
                pass
            self.assertLessEqual({one.kind for one in rehearsal.happenings}, {*kinds, "", "link-gone"})
            for guid, table in linear.items():
                here = rehearsal.fabric.node(f"{int(guid):#018x}")
                self.assertEqual(bytes(tables(here)[: len(table)]), table)


class OneLaneTests(TorusTestCase):
    smConfiguration = "routing_engine minhop"

    async def test_minhop(self) -> None:
        linear, lanes, links = await self.survey()
        self.assertNotEqual(self.loop(linear, lanes, links), [])


class DimensionTests(TorusTestCase):
    """Torus-2QoS, which routes by dimension, with another lane for paths across the ends of a dimension."""

    def setUp(self) -> None:
        ends = (("xp", 1, 0), ("yp", 0, 1))
        links = [f"{name}_link {guid(0, 0)} {guid(x, y)}" for name, x, y in ends]
        path = Path(self.mktemp()).absolute()
        path.write_text("\n".join([f"torus {SIZE} {SIZE} 1", *links, ""]))
        self.smConfiguration = f"routing_engine torus-2QoS\nqos TRUE\ntorus_config {path}"
        super().setUp()

    async def test_dimensions(self) -> None:
        """There is no credit loop, but there is one if all service levels share a lane."""
        linear, lanes, links = await self.survey()
        self.assertIn("torus-2QoS tables configured on all switches", self.fabric.log("opensm.log"))
        self.assertGreater(len(set(lanes.levels.values())), 1)
        self.assertEqual(self.loop(linear, lanes, links), [])
        lanes.mappings = dict.fromkeys(lanes.mappings, (0,) * 16)
        self.assertNotEqual(self.loop(linear, lanes, links), [])
