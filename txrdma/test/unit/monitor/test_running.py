"""Running a monitor: reloading, systemd, files for schedulers, and the terminal."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from twisted.internet import reactor as theReactor
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.selectreactor import SelectReactor
from twisted.internet.task import deferLater
from twisted.trial.unittest import SkipTest, SynchronousTestCase

from txrdma.commands import monitor as command
from txrdma.fabric.advice import Severity
from txrdma.fabric.health import Finding
from txrdma.fabric.linktraffic import busiest
from txrdma.fabric.model import Fabric
from txrdma.fabric.nodenames import parseNodeNames
from txrdma.iba.types import GUID
from txrdma.iba.verbs import NodeType
from txrdma.monitor import files as filesModule
from txrdma.monitor.config import parseConfig
from txrdma.monitor.diagnosis.fabricstate import fabricOf, Link, NodeState
from txrdma.monitor.diagnosis.findinglog import Entry, FindingRules, Key
from txrdma.monitor.diagnosis.tallies import TallyLimit
from txrdma.monitor.diagnosis.topologywatch import TopologyWatch
from txrdma.monitor.files import Adapters, addAdapters, FileSettings, MaintainedFiles, unfitHosts
from txrdma.monitor.reading.poller import DEFAULT_RULES
from txrdma.monitor.reading.settings import PollerSettings
from txrdma.monitor.reading.surveyor import TABLES
from txrdma.tap.monitor import MonitorService
from txrdma.tap.steadyclock import SteadyClock
from txrdma.test.support.tables import shown
from txrdma.test.unit.monitor.test_poller import PollerTestCase

reactor: Any = theReactor


class SteadyClockTests(SynchronousTestCase):
    """The time of day is set, forward and back."""

    def setUp(self) -> None:
        self.wall, self.steady = 1e9, 0.0
        self.clock = SteadyClock(lambda: self.wall, lambda: self.steady)

    def passed(self, seconds: float) -> float:
        """Let time pass, and return how much of it the clock has advanced."""
        before = self.clock()
        self.wall += seconds
        self.steady += seconds
        return self.clock() - before

    def test_setBack(self) -> None:
        """A clock set back advances until it agrees with the time of day; set forward, it follows at once."""
        before = self.clock()
        self.wall += 3600.0
        self.assertEqual(self.clock() - before, 3600.0)
        self.assertEqual(self.passed(10.0), 10.0)
        self.wall -= 3600.0
        self.assertAlmostEqual(self.passed(10.0), 9.0)
        self.assertAlmostEqual(self.passed(100.0), 90.0)
        self.wall -= 3600.0  # and again
        self.assertAlmostEqual(self.passed(10.0), 9.0)
        for _ in range(80):
            self.assertGreaterEqual(self.passed(1000.0), 900.0)
        self.assertEqual(self.clock(), self.wall)
        self.assertEqual(self.passed(1.0), 1.0)
        self.wall -= 10.0
        self.assertAlmostEqual(self.passed(1.0), 0.9)

    def test_ahead(self) -> None:
        """A clock that was set back reports by how much it is ahead, until it agrees again."""
        self.assertEqual((self.passed(10.0), self.clock.aheadSeconds()), (10.0, 0.0))
        self.wall -= 3600.0
        self.passed(1000.0)
        self.assertAlmostEqual(self.clock.aheadSeconds(), 3500.0)
        self.passed(40_000.0)
        self.assertEqual(self.clock.aheadSeconds(), 0.0)

    def test_aheadFinding(self) -> None:
        """A monitor whose clock is ahead raises a finding with advice."""
        ahead = [7200.0]
        config = parseConfig('port = "sim:fattree:4"\nweb.listen = ""\nfindings.clear = 0')
        service = MonitorService(reactor, config, aheadSeconds=lambda: ahead[0])
        self.addCleanup(service._agent.close)
        self.successResultOf(Deferred.fromCoroutine(service._read(0.0)))
        [entry] = service.poller.findings.log.open.values()
        self.assertEqual(entry.finding.kind, "clock-ahead")
        self.assertIn("7200 s ahead", entry.finding.text)
        self.assertIn("restart the monitor", entry.advice)
        ahead[0] = 1.0
        self.successResultOf(Deferred.fromCoroutine(service._read(0.0)))
        self.assertEqual(dict(service.poller.findings.log.open), {})

    def test_withoutSurveys(self) -> None:
        """Without surveys, as after a change of the configuration, what they have found is cleared."""
        for survey, remain in ((900, 1), (0, 0)):
            text = f'port = "sim:fattree:4"\nweb.listen = ""\nfindings.clear = 0\npoll.survey = {survey}'
            service = MonitorService(reactor, parseConfig(text))
            self.addCleanup(service._agent.close)
            findings = service.poller.findings
            findings.log.rules = FindingRules({}, clearSeconds=0.0)
            findings.report(TABLES, [Finding("credit-loop", "leaf", "it is one")])
            self.successResultOf(Deferred.fromCoroutine(service._read(0.0)))
            self.assertEqual(len(findings.log.open), remain)

    def test_timers(self) -> None:
        """A reactor with such a clock runs due calls although the time of day was set back."""
        reactor: Any = SelectReactor()
        self.addCleanup(reactor.removeAll)
        reactor.seconds = self.clock
        done: list[str] = []
        reactor.callLater(10.0, done.append, "it")
        self.wall -= 3600.0
        for _ in range(12):
            self.passed(1.0)
            reactor.iterate(0)
        self.assertEqual(done, ["it"])


class ChangeTests(PollerTestCase):
    def test_change(self) -> None:
        """Intervals and limits change; the known fabric and findings remain."""
        self.started()
        self.fabric.setCounters("left", 3, symbolErrorCounter=60)
        self.fabric.cut("c")
        self.pump(20.0)
        self.assertEqual({kind for _what, kind, _where in self.output()}, {"symbol-errors", "node-gone"})
        meters, turns = dict(self.poller.meters), self.poller.statistics.turns
        self.poller.change(
            PollerSettings(intervalSeconds=1.0),
            FindingRules(DEFAULT_RULES.raiseSeconds, ignored=frozenset(("node-gone",))),
            lambda fabric: [],
        )
        self.pump(60.0)
        self.assertGreater(self.poller.statistics.turns, turns + 40)
        self.assertEqual({portKey: self.poller.meters[portKey] for portKey in meters}, meters)
        self.assertEqual(self.output(), [("cleared", "node-gone", "c")])

    def test_sooner(self) -> None:
        """Shorter intervals apply at once: a round and a sweep that were due in hours are made soon."""
        self.settings = PollerSettings(intervalSeconds=3600.0, sweepSeconds=86400.0)
        self.poller = self.made()
        self.started()
        self.pump(20.0)
        turns, sweeps = self.poller.statistics.turns, self.poller.statistics.sweeps
        changed = PollerSettings(intervalSeconds=30.0, sweepSeconds=300.0)
        self.poller.change(changed, DEFAULT_RULES, lambda fabric: [])
        self.pump(20.0)
        self.assertEqual(self.poller.statistics.turns, turns + 1)
        self.pump(300.0)
        self.assertEqual(self.poller.statistics.sweeps, sweeps + 1)

    def test_limits(self) -> None:
        """Counts for an unchanged limit continue; others are dropped."""
        symbols, flaps = self.limits[0], self.thresholds._flaps
        self.thresholds.change([symbols, TallyLimit("portRcvErrors", 10, 600.0)], flaps, None)
        self.started()
        self.fabric.setCounters("left", 3, symbolErrorCounter=9, portRcvErrors=9)
        self.pump(20.0)
        self.thresholds.change([symbols], flaps, None)
        self.fabric.setCounters("left", 3, symbolErrorCounter=18, portRcvErrors=18)
        self.pump(20.0)
        self.assertEqual(self.output(), [("raised", "symbol-errors", "left")])


class FileTests(PollerTestCase):
    def test_files(self) -> None:
        """The topology, unfit hosts and names are written, and written again when they change."""
        folder = Path(self.mktemp())
        folder.mkdir()
        paths = {name: folder / name for name in ("slurm", "unfit", "names")}
        files = MaintainedFiles(self.clock, FileSettings(*map(str, paths.values())))
        self.started()
        self.successResultOf(Deferred.fromCoroutine(files.update(self.poller)))
        self.assertIn("SwitchName=left Nodes=a,b\n", paths["slurm"].read_text())
        self.assertEqual(paths["unfit"].read_text(), "")
        names = parseNodeNames(paths["names"].read_text())
        self.assertEqual(names.name(self.fabric.node("left").guid), "left")
        before = paths["slurm"].stat().st_ino
        self.successResultOf(Deferred.fromCoroutine(files.update(self.poller)))
        self.assertEqual(paths["slurm"].stat().st_ino, before)
        self.fabric.cut("c")
        self.fabric.setCounters("left", 2, symbolErrorCounter=60)
        self.pump(30.0)
        self.successResultOf(Deferred.fromCoroutine(files.update(self.poller)))
        lines = paths["unfit"].read_text().splitlines()
        self.assertEqual([line.partition(":")[0] for line in lines], ["b\tsymbol-errors", "c\tnode-gone"])
        self.assertIn("SwitchName=right Nodes=b\n", paths["slurm"].read_text())
        self.assertEqual(sorted(path.name for path in folder.iterdir()), ["names", "slurm", "unfit"])
        files.change(FileSettings(slurm=str(folder / "topology.yaml")))
        self.successResultOf(Deferred.fromCoroutine(files.update(self.poller)))
        self.assertIn('- switch: "right"\n        nodes: "b"\n', (folder / "topology.yaml").read_text())

    def test_withoutLink(self) -> None:
        """A monitor that starts before its link is up does not empty the files of a former one."""
        folder = Path(self.mktemp())
        folder.mkdir()
        paths = [folder / name for name in ("slurm", "unfit", "names")]
        for path in paths:
            path.write_text("of a former monitor")
        files = MaintainedFiles(self.clock, FileSettings(*map(str, paths)))
        self.fabric.cut("a")
        self.started()
        self.assertEqual(len(self.sweptFabric.nodes), 1)
        self.successResultOf(Deferred.fromCoroutine(files.update(self.poller)))
        self.assertEqual({path.read_text() for path in paths}, {"of a former monitor"})
        self.fabric.heal("a")
        self.pump(400.0)
        self.successResultOf(Deferred.fromCoroutine(files.update(self.poller)))
        self.assertIn("SwitchName=left Nodes=a,b\n", paths[0].read_text())

    def test_deleted(self) -> None:
        """A file that somebody has deleted is written again in the next round."""
        folder = Path(self.mktemp())
        folder.mkdir()
        paths = [folder / name for name in ("slurm", "unfit", "names")]
        files = MaintainedFiles(self.clock, FileSettings(*map(str, paths)))
        self.started()
        self.successResultOf(Deferred.fromCoroutine(files.update(self.poller)))
        before = [path.read_text() for path in paths]
        for path in paths:
            path.unlink()
        self.successResultOf(Deferred.fromCoroutine(files.update(self.poller)))
        self.assertEqual([path.read_text() for path in paths], before)

    def test_rights(self) -> None:
        """A file keeps the rights that an operator has given it, whatever the umask of the monitor."""
        folder = Path(self.mktemp())
        folder.mkdir()
        path, other = folder / "unfit", folder / "other"
        files = MaintainedFiles(self.clock, FileSettings(unfit=str(path)))
        self.started()
        self.addCleanup(os.umask, os.umask(0o077))
        self.successResultOf(Deferred.fromCoroutine(files.update(self.poller)))
        self.assertEqual(path.stat().st_mode & 0o777, 0o600)
        path.chmod(0o664)
        self.loseHost()
        self.successResultOf(Deferred.fromCoroutine(files.update(self.poller)))
        self.assertIn("node-gone", path.read_text())
        self.assertEqual(path.stat().st_mode & 0o777, 0o664)
        path.unlink()
        other.write_text("")
        other.chmod(0o666)
        path.symlink_to("other")
        self.fabric.heal("c")
        self.pump(90.0)
        self.successResultOf(Deferred.fromCoroutine(files.update(self.poller)))
        self.assertEqual((path.is_symlink(), path.stat().st_mode & 0o777), (False, 0o600))

    def test_group(self) -> None:
        """A file keeps the group that an operator has given it, if this process may set it."""
        group = next((each for each in os.getgroups() if each != os.getgid()), 1)
        folder = Path(self.mktemp())
        folder.mkdir()
        path = folder / "unfit"
        path.write_text("")
        path.chmod(0o640)
        try:
            os.chown(path, -1, group)
        except PermissionError as error:
            raise SkipTest("this process has no other group") from error
        former = path.stat()
        self.started()
        files = MaintainedFiles(self.clock, FileSettings(unfit=str(path)))
        self.successResultOf(Deferred.fromCoroutine(files.update(self.poller)))
        self.assertNotEqual(path.stat().st_ino, former.st_ino)
        self.assertEqual((path.stat().st_gid, path.stat().st_mode), (former.st_gid, former.st_mode))

        def refuse(*args: object) -> None:
            raise PermissionError

        self.patch(os, "fchown", refuse)
        self.loseHost()
        self.successResultOf(Deferred.fromCoroutine(files.update(self.poller)))
        self.assertIn("node-gone", path.read_text())

    def test_links(self) -> None:
        """A link that another user of the folder has put at the temporary file's path is not followed."""
        folder = Path(self.mktemp())
        folder.mkdir()
        other = folder / "other"
        other.write_text("precious")
        (folder / "names.new").symlink_to("other")
        files = MaintainedFiles(self.clock, FileSettings(nodeNames=str(folder / "names")))
        self.started()
        self.successResultOf(Deferred.fromCoroutine(files.update(self.poller)))
        self.assertEqual(other.read_text(), "precious")
        self.assertIn("left", (folder / "names").read_text())
        self.assertEqual(sorted(path.name for path in folder.iterdir()), ["names", "other"])

    def inPieces(self, path: Path) -> MaintainedFiles:
        """Return files that are written in pieces, one of which has the names of nodes."""
        self.patch(filesModule, "_PIECE", 2)
        self.started()
        return MaintainedFiles(self.clock, FileSettings(nodeNames=str(path)))

    def test_interrupted(self) -> None:
        """Long files are written in pieces, between which the reactor serves others, also after an end."""
        path = Path(self.mktemp())
        files = self.inPieces(path)
        for isInterrupted in (True, False):
            done = Deferred.fromCoroutine(files.update(self.poller))
            self.assertNoResult(done)
            self.assertFalse(path.exists())
            if isInterrupted:
                done.cancel()
                self.failureResultOf(done, CancelledError)
        self.clock.advance(0.0)
        self.successResultOf(done)
        self.assertEqual(len(path.read_text().splitlines()), len(self.sweptFabric.nodes))

    def test_changedMeanwhile(self) -> None:
        """A file removed from the configuration while it is written causes no finding afterwards."""
        files = self.inPieces(Path(self.mktemp()) / "nowhere")
        done = Deferred.fromCoroutine(files.update(self.poller))
        files.change(FileSettings())
        self.clock.advance(0.0)
        self.successResultOf(done)
        self.assertEqual(files.findings(), [])

    def pausing(self, settings: FileSettings) -> tuple[MaintainedFiles, Deferred[None], Deferred[None]]:
        """Return files that are being written, the pause that this waits for, and its end."""
        pause: Deferred[None] = Deferred()
        self.patch(filesModule, "_NODES", 1)
        self.patch(filesModule, "deferLater", lambda clock, seconds: pause)
        files = MaintainedFiles(self.clock, settings)
        done = Deferred.fromCoroutine(files.update(self.poller))
        self.assertNoResult(done)
        return files, pause, done

    def written(self, files: MaintainedFiles, pause: Deferred[None], done: Deferred[None]) -> None:
        """Write the files to the end, and once more in the next round."""
        pause.callback(None)
        self.successResultOf(done)
        self.successResultOf(Deferred.fromCoroutine(files.update(self.poller)))

    def test_sweptMeanwhile(self) -> None:
        """If a sweep replaces the fabric while a file is written, the other files get the new fabric."""
        self.started()
        slurm, before = Path(self.mktemp()), self.poller.fabric
        writing = self.pausing(FileSettings(slurm=str(slurm), unfit=self.mktemp()))
        self.fabric.cut("c")
        self.poller.sweeps.runIn(0.0)
        self.pump(1.0)
        self.assertIsNot(self.poller.fabric, before)
        self.written(*writing)
        self.assertIn("SwitchName=right Nodes=b\n", slurm.read_text())

    def test_reloadedMeanwhile(self) -> None:
        """A file that is added to the configuration while others are written is written, too."""
        self.started()
        slurm, unfit = Path(self.mktemp()), self.mktemp()
        files, *writing = self.pausing(FileSettings(unfit=unfit))
        files.change(FileSettings(slurm=str(slurm), unfit=unfit))
        self.written(files, *writing)
        self.assertIn("SwitchName=left Nodes=a,b\n", slurm.read_text())

    def unfit(self, fabric: Fabric) -> dict[str, str]:
        adapters: Adapters = {}
        addAdapters(adapters, fabric.nodes.values())
        opened = self.poller.findings.log.open.values()
        return unfitHosts(fabric, opened, adapters, self.poller.topologyWatch)

    def test_hostsInPieces(self) -> None:
        """Hosts are examined in pieces, once for each state of the fabric; the file is the same."""
        self.started()
        self.fabric.cut("c")
        self.pump(30.0)
        self.patch(filesModule, "_NODES", 1)
        path = Path(self.mktemp())
        files = MaintainedFiles(self.clock, FileSettings(unfit=str(path)))
        pauses: list[object] = []

        def wait(*given: Any) -> Deferred[Any]:
            pauses.append(given)
            return deferLater(*given)

        self.patch(filesModule, "deferLater", wait)
        for expected in (len(self.sweptFabric.nodes), 0):
            pauses.clear()
            done = Deferred.fromCoroutine(files.update(self.poller))
            self.clock.advance(0.0)
            self.successResultOf(done)
            self.assertEqual(len(pauses), expected)
            self.assertEqual(path.read_text().partition("\t")[0], "c")

    def test_namesakes(self) -> None:
        """A host that takes the name of another or of a lost host makes no other host unfit."""
        self.started()
        self.fabric.setCounters("left", 2, symbolErrorCounter=60)  # of b
        self.loseHost()
        fabric = self.sweptFabric
        self.assertEqual(sorted(self.unfit(fabric)), ["b", "c"])
        one = fabric.nodes[self.fabric.node("a").guid]
        one.description = "c"
        self.assertEqual(sorted(self.unfit(fabric)), ["b"])
        one.description = "b"
        self.assertEqual(sorted(self.unfit(fabric)), ["c"])

    def test_otherHost(self) -> None:
        """A host at the port of a former one is not unfit by what was found at that port before it came."""
        self.fabric.cut("c")
        self.started()
        self.fabric.setCounters("left", 2, symbolErrorCounter=60)  # of b
        self.pump(30.0)
        self.assertEqual(list(self.unfit(self.sweptFabric)), ["b"])
        left, c = (self.fabric.port(*at) for at in (("left", 2), ("c", 1)))
        self.fabric.cut("left", 2)
        assert left.peer is not None and c.peer is not None
        left.peer.peer = c.peer.peer = None
        left.peer, c.peer = c, left
        self.fabric.heal("left", 2)
        self.pump(25.0)
        port = self.sweptFabric.portAt(*self.portKey("left", 2))
        assert port is not None and port.peer is not None
        self.assertEqual(port.peer.node.description, "c")
        self.assertIn("symbol-errors", {key.kind for key in self.poller.findings.log.open})
        self.assertEqual(self.unfit(self.sweptFabric), {})
        self.pump(60.0)
        self.fabric.setCounters("left", 2, symbolErrorCounter=160)  # of c
        self.pump(20.0)
        self.assertEqual(list(self.unfit(self.sweptFabric)), ["c"])

    def test_lostLink(self) -> None:
        """A host with a lost link is unfit, whichever end of the link has the lower GUID."""
        types = {"s": NodeType.SWITCH, "h": NodeType.CHANNEL_ADAPTER, "t": NodeType.SWITCH}
        for names in ("sht", "hst"):
            guids = {name: GUID.fromInt(number) for number, name in enumerate(names, 1)}
            nodes = {guid: NodeState(f"{name} ({guid})", "", types[name]) for name, guid in guids.items()}
            links: list[Link] = []
            for number, name in enumerate("st", 1):
                one, other = sorted([(guids[name], 1), (guids["h"], number)])
                links.append((one, other))
            watch, fabric = TopologyWatch(), fabricOf(nodes, links[1:])
            for now, swept in enumerate((fabricOf(nodes, links), fabric)):
                list(watch.follow(swept, now))
            (found,) = watch.findings()
            adapters: Adapters = {}
            addAdapters(adapters, fabric.nodes.values())
            key = Key("sweep", found.kind, str(found.guid), 1)
            entry = Entry(key, found, Severity.WARNING, "", 1.0, 1.0)
            self.assertEqual(list(unfitHosts(fabric, [entry], adapters, watch)), ["h"], names)

    def test_unnamed(self) -> None:
        """A missing host without a name makes none unfit that has the name C{"a"}."""
        self.fabric.node("a").description, self.fabric.node("c").description = "a HCA-1", ""
        self.started()
        self.loseHost()
        self.assertEqual(self.output(), [("raised", "node-gone", "a node")])
        self.assertEqual(self.unfit(self.sweptFabric), {})

    def test_longNames(self) -> None:
        """A faulty host that claims another's name makes that unfit only as its second adapter."""
        self.started()
        self.fabric.setCounters("left", 2, symbolErrorCounter=60)  # of b
        self.pump(30.0)
        fabric = self.sweptFabric
        first, faulty = (fabric.nodes[self.fabric.node(name).guid] for name in "ab")
        for others, keys, unfit in (
            ("a", "a x", []),
            ("a x", "a x", []),
            ("a x", "a", []),
            ("a mlx5_0", "a mlx5_1", ["a"]),
        ):
            first.description, faulty.description = others, keys
            self.assertEqual(list(self.unfit(fabric)), unfit, (others, keys))

    def test_nowhere(self) -> None:
        """Each file that cannot be written is a finding until it can; the other files are written."""
        folder = Path(self.mktemp())
        folder.mkdir()
        paths = {name: str(folder / name / "x") for name in ("slurm", "unfit")}
        files = MaintainedFiles(self.clock, FileSettings(**paths, nodeNames=str(folder / "names")))
        self.started()
        self.successResultOf(Deferred.fromCoroutine(files.update(self.poller)))
        self.assertEqual(
            {(one.kind, one.where) for one in files.findings()},
            {("file-failed", one) for one in paths.values()},
        )
        self.assertTrue((folder / "names").exists())
        for name in paths:
            (folder / name).mkdir()
        self.successResultOf(Deferred.fromCoroutine(files.update(self.poller)))
        self.assertEqual(files.findings(), [])
        self.assertTrue(all(Path(path).exists() for path in paths.values()))

    def test_fit(self) -> None:
        """Faults of switches alone make no host unfit."""
        self.started()
        self.fabric.cut("left", 3)
        self.pump(30.0)
        self.assertEqual(len(self.poller.findings.log.open), 1)
        self.assertEqual(self.unfit(self.sweptFabric), {})

    def test_absentOthers(self) -> None:
        """Missing switches, routers and aggregation nodes are no hosts, also when they have just returned."""
        self.fabric.node("b").description = "tree Aggregation Node"
        self.started()
        path = Path(self.mktemp())
        files = MaintainedFiles(self.clock, FileSettings(unfit=str(path)))
        for change in (self.fabric.cut, self.fabric.heal):
            for port in (("d", 1), ("c", 1), ("left", 2), ("left", 3), ("left", 4)):
                change(*port)
            self.pump(25.0)
            gone = {
                entry.finding.where.partition(" (")[0]
                for entry in self.poller.findings.log.open.values()
                if entry.finding.kind == "node-gone"
            }
            self.assertEqual(gone, {"c", "d", "right", "tree Aggregation Node"})
            self.successResultOf(Deferred.fromCoroutine(files.update(self.poller)))
            self.assertEqual([line.partition("\t")[0] for line in path.read_text().splitlines()], ["c"])
        self.assertEqual(len(self.sweptFabric.nodes), 6)


class TerminalTests(PollerTestCase):
    def screen(self) -> str:
        return shown(command.screenOf(self.poller, 3))

    def test_screen(self) -> None:
        """Findings and busy links are shown, names without control characters."""
        self.fabric.growCounters("left", 3, portXmitData=1e9)
        self.started()
        self.fabric.node("c").description = "c\x1b[2J"
        self.loseHost()
        output = self.screen()
        self.assertIn("node-gone", output)
        self.assertIn("32.00", output)
        self.assertNotIn("\x1b", output)

    def test_idle(self) -> None:
        """A fabric without traffic shows a sentence instead of an empty table."""
        self.started()
        self.assertIn("no link carries data", self.screen())
        self.assertNotIn("Gbit/s", self.screen())

    def test_loads(self) -> None:
        """Loads are fractions of the link's data rate, the busiest first."""
        self.fabric.growCounters("left", 3, portXmitData=1e9)
        self.fabric.growCounters("left", 4, portXmitData=2e9)
        self.started()
        first, second = busiest(self.sweptFabric, self.poller.sent, 5)
        self.assertEqual((first.gigabits, second.gigabits), (64.0, 32.0))
        self.assertAlmostEqual(first.share or 0.0, 64.0 / (4 * 50.0))
