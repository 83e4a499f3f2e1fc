"""Messages of workers, explanations of failures, and reports of C{txrdma verify}."""

from __future__ import annotations

import errno
import io
import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

from twisted.python.usage import UsageError
from twisted.trial.unittest import SkipTest, SynchronousTestCase

from txrdma.commands import btl_ping
from txrdma.commands.verify import CommandOptions
from txrdma.error import DeviceUnavailable
from txrdma.iba.types import GID, LID
from txrdma.iba.verbs import AtomicCapability, LinkLayer, NodeType
from txrdma.pingpong import session
from txrdma.sim.network import SimulatedNetwork
from txrdma.test.support.sysfs import SysFS
from txrdma.testing.reactors import ReactorClock
from txrdma.testing.verbs.quirks import OURS, RXE
from txrdma.verify.checks import Check, decoded, Measured, Outcome, Reporter
from txrdma.verify.host import Host
from txrdma.verify.problems import problem
from txrdma.verify.quirks import explanationOf, Known
from txrdma.verify.report import asMarkdown, asReport, namesOf, redacted
from txrdma.verify.streams import providersOf
from txrdma.verify.subject import kernelName, TestedPort
from txrdma.verify.suites import casesOf, quirksOf
from txrdma.verify.transports import clientDevice, connecting, listening, serverDevice
from txrdma.verify.worker import WorkerTask

PASSED = Check("verbs", "VerbsTests.test_send", Outcome.PASSED, seconds=0.5)
FAILED = Check(
    "verbs", "VerbsTests.test_read", Outcome.FAILED, "create queue pair: Cannot allocate memory", "x"
)
SKIPPED = Check("mad", "test_lost", Outcome.SKIPPED, "would remove a device of this host")
LATENCY = Measured("tcp:", 64, 12.34567, "us")
FACTS: dict[str, Any] = {"driver": "mlx5_core", "vendor": "0x02c9", "part": 4119, "firmware": "16.35.2000"}


def end(
    device: str = "pyverbs:mlx5_0", port: int = 1, address: str = "192.0.2.1", **changes: Any
) -> TestedPort:
    """Return a port of a device with the attributes of a simulated one."""
    simulated = SimulatedNetwork(ReactorClock()).device("192.0.2.1")
    attributes = replace(simulated.attributes, **changes)
    simulated.close()
    facts = {**FACTS, "netdev": "eth7"}
    gid = GID.fromIP("192.0.2.1")
    return TestedPort(
        device, port, "mlx5_core", gid, 3, LID(0), address, LinkLayer.ETHERNET, attributes, facts
    )


class OptionTests(SynchronousTestCase):
    def test_tcpPort(self) -> None:
        """Servers of C{verify}, C{btl-ping} and C{pingpong} can run on one host with their default ports."""
        self.assertEqual(len({CommandOptions()["tcp-port"], btl_ping.PORT, session.PORT}), 3)

    def test_output(self) -> None:
        """A folder that does not exist, or can't be looked up, is refused."""
        for folder in ("/no/such", "/" + "x" * 300):
            with self.assertRaisesRegex(UsageError, "its folder does not exist"):
                CommandOptions().parseOptions(["--output", f"{folder}/report"])

    def test_unwritable(self) -> None:
        """A report that can't be written is refused before the run, whose results it would lose."""
        prefix = Path(self.mktemp())
        prefix.with_name(f"{prefix.name}.md").mkdir()
        with self.assertRaisesRegex(UsageError, "a folder has this name"):
            CommandOptions().parseOptions(["--output", str(prefix)])
        with self.assertRaisesRegex(UsageError, "File name too long"):
            CommandOptions().parseOptions(["--output", 300 * "x"])
        missing = Path(self.mktemp())
        missing.with_name(f"{missing.name}.json").symlink_to("/no/such/folder")
        with self.assertRaisesRegex(UsageError, "its folder does not exist"):
            CommandOptions().parseOptions(["--output", str(missing)])
        writable: list[str] = []
        self.patch(os, "access", lambda path, mode: str(path) in writable)
        with self.assertRaisesRegex(UsageError, "no permission to write here; - is for none"):
            CommandOptions().parseOptions([])
        CommandOptions().parseOptions(["--output", "-"])
        CommandOptions().parseOptions(["--serve"])
        prefix = Path(self.mktemp())
        writable += [os.path.realpath(f"{prefix}.{kind}") for kind in ("json", "md")]
        for path in writable:
            Path(path).touch()
        CommandOptions().parseOptions(["--output", str(prefix)])

    def test_nowhere(self) -> None:
        """Without a working directory there is no folder for a report."""

        def getcwd() -> str:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

        self.patch(os, "getcwd", getcwd)
        with self.assertRaisesRegex(UsageError, "its folder does not exist"):
            CommandOptions().parseOptions([])
        CommandOptions().parseOptions(["--output", "-"])

    def test_parts(self) -> None:
        """A part that does not exist is an error that names those that exist."""
        for part in ("foo", ""):
            with self.assertRaisesRegex(UsageError, "expected some of verbs,rdma,btl,mad,streams,peer"):
                CommandOptions().parseOptions(["--parts", f"mad,{part}"])


class MessageTests(SynchronousTestCase):
    def test_messages(self) -> None:
        """Each message is one line, from which its content is decoded."""
        out = io.StringIO()
        reporter = Reporter(out)
        reporter.total(3)
        reporter.started("test_send")
        reporter.check(FAILED)
        reporter.measured(LATENCY)
        lines = out.getvalue().encode().splitlines()
        self.assertEqual([decoded(line) for line in lines], [3, "test_send", FAILED, LATENCY])

    def test_other(self) -> None:
        for line in (b"Segmentation fault", b"[]", b'{"total": "x"}', b'{"check": 1}'):
            self.assertRaises(ValueError, decoded, line)

    def test_task(self) -> None:
        """A task is decoded from the last argument of its command line."""
        task = WorkerTask("peer", ("soft", "pyverbs:mlx5_0"), (1, 2), 7, True, "192.0.2.1", 18517)
        self.assertEqual(WorkerTask.decode(task.command()[-1]), task)


class KnownTests(SynchronousTestCase):
    def test_fields(self) -> None:
        """An explanation applies if every given field matches."""
        whole = Known("why", "mlx5*", "", 0x2C9, 4119, r"16\.", "verbs/*", "allocate")
        self.assertTrue(whole.matches(FAILED, FACTS))
        for change in (
            {"driver": "mlx4*"},
            {"nodeType": "RNIC"},
            {"vendor": 0x8086},
            {"part": 4123},
            {"firmware": r"20\."},
            {"check": "btl/*"},
            {"symptom": "timeout"},
        ):
            self.assertFalse(replace(whole, **change).matches(FAILED, FACTS), change)

    def test_list(self) -> None:
        """Failures in the list are explained; others are not."""
        self.assertIn("ulimit -l", explanationOf(FAILED, [FACTS]))
        self.assertEqual(explanationOf(replace(FAILED, text="other bytes"), [FACTS]), "")
        unwritable = Check(
            "streams", "start", Outcome.FAILED, "No usable temporary directory found in ['/tmp']"
        )
        self.assertIn("TMPDIR", explanationOf(unwritable, [FACTS]))
        late = Check("btl", "x", Outcome.FAILED, "no")
        self.assertEqual(explanationOf(late, [FACTS]), "")
        self.assertIn("iWARP", explanationOf(late, [FACTS, {**FACTS, "nodeType": "RNIC"}]))

    def test_permitted(self) -> None:
        """Permitted differences depend on the driver."""
        self.assertEqual((quirksOf("soft"), quirksOf("rxe")), (OURS, RXE))
        self.assertTrue(quirksOf("mlx5_core").needsPeerForRTR)


class CaseTests(SynchronousTestCase):
    def names(self, part: str, *ends: TestedPort) -> set[str]:
        return {case.id() for case in casesOf(part, (ends[0], ends[-1]))}

    def test_kernel(self) -> None:
        """Queue pair 1 of the kernel is tested only for devices of the kernel."""
        self.assertTrue(any("KernelMADTests" in name for name in self.names("mad", end())))
        self.assertFalse(any("KernelMADTests" in name for name in self.names("mad", end("soft"))))

    def test_kernelPathsAreIPv6(self) -> None:
        """Paths of the kernel's queue pair 1 have IPv6 GIDs on Ethernet, and LIDs on InfiniBand."""
        gids = [GID.fromIP(f"fe80::{number}") for number in (1, 2)]
        ends = [replace(end(), gid6=gid) for gid in gids]
        case: Any = self.kernelMADs(ends[0], ends[1])
        path = case.pathTo(1)
        self.assertEqual((path.sgid, path.dgid, path.dqpn), (gids[0], gids[1], 1))
        infiniband = [replace(each, linkLayer=LinkLayer.INFINIBAND, lid=LID(7)) for each in ends]
        path = self.kernelMADs(infiniband[0], infiniband[1]).pathTo(1)
        self.assertEqual((path.dlid, path.dgid), (7, None))

    def test_kernelNeedsIPv6(self) -> None:
        """Tests of the kernel's queue pair 1 are skipped if an Ethernet port has only IPv4 addresses."""
        only = replace(end(), gid6=None)
        self.assertRaises(SkipTest, self.kernelMADs(only, replace(end(), gid6=GID.fromIP("fe80::2"))).setUp)

    def test_managementNeedsPermission(self) -> None:
        """Tests of ports that this user may not open are skipped; other errors are failures."""
        only = replace(end(), gid6=GID.fromIP("fe80::2"))
        for case in (self.kernelMADs(only, only), next(casesOf("mad", (only, only)))):
            for cause, expected in ((PermissionError(), SkipTest), (OSError(), DeviceUnavailable)):
                error = DeviceUnavailable("umad0")
                error.__cause__ = cause
                self.patch(case, "makePort", Mock(side_effect=error))
                self.assertRaises(expected, case.setUp)

    def kernelMADs(self, *ends: TestedPort) -> Any:
        """Return a test of the kernel's queue pair 1."""
        cases = casesOf("mad", (ends[0], ends[1]))
        return next(case for case in cases if "KernelMADTests" in case.id())

    def test_order(self) -> None:
        """Tests have the same order in each process."""
        first, second = ([case.id() for case in casesOf("verbs", (end(), end()))] for _ in range(2))
        self.assertEqual(first, second)
        self.assertGreater(len(first), 100)

    def test_patience(self) -> None:
        """Time limits of tests and of conversations are multiplied."""
        usual, patient = (next(casesOf("btl", (end(), end()), factor)) for factor in (1.0, 4.0))
        self.assertEqual(vars(type(patient))["slowness"], 4 * vars(type(usual))["slowness"])
        smc, patientSMC = (providersOf((end(), end()), factor)[0] for factor in (1.0, 4.0))
        self.assertEqual(patientSMC.patience, 4 * smc.patience)

    def test_unsupported(self) -> None:
        """Tests of features that a device lacks are skipped, with a reason."""
        limited = end(atomics=AtomicCapability.NONE, nodeType=NodeType.RNIC)
        reasons = {}
        for case in casesOf("verbs", (limited, limited)):
            if case._testMethodName in ("test_compareAndSwap", "test_datagram"):
                result = case.defaultTestResult()
                case.run(result)
                reasons.update({test.id().rpartition(".")[2]: reason for test, reason in result.skipped})
        self.assertEqual(
            reasons,
            {"test_compareAndSwap": "the device has no atomics", "test_datagram": "iWARP has no datagrams"},
        )


class TransportTests(SynchronousTestCase):
    def test_adapter(self) -> None:
        """An adapter is named in each string, with its colon escaped."""
        strings = listening(end(), "127.0.0.1")
        self.assertEqual(strings["tcp"], "tcp:0:interface=127.0.0.1")
        self.assertEqual(strings["rsocket"], r"rsocket:192.0.2.1:0:device=pyverbs\:mlx5_0")
        self.assertEqual(
            connecting("smc", end(), "192.0.2.9", 80), r"smc:192.0.2.9:80:device=pyverbs\:mlx5_0"
        )
        self.assertEqual(connecting("tcp", end(), "192.0.2.9", 80), "tcp:192.0.2.9:80")
        self.assertEqual((serverDevice(end()), clientDevice(end(), "192.0.2.9")), ("pyverbs:mlx5_0",) * 2)

    def test_noAddress(self) -> None:
        """Without an IP address there is no C{rsocket:}."""
        self.assertEqual(sorted(listening(end(address=""), "127.0.0.1")), ["btl", "smc", "tcp"])

    def test_software(self) -> None:
        """The software device is that of endpoints without a device name."""
        soft = end("soft", address="127.0.0.1")
        self.assertEqual(listening(soft, "127.0.0.1")["smc"], "smc:127.0.0.1:0")
        self.assertEqual(connecting("smc", soft, "127.0.0.1", 80), "smc:127.0.0.1:80")
        self.assertEqual(serverDevice(soft), "soft:127.0.0.1")


class ReportTests(SynchronousTestCase):
    def report(self) -> dict[str, Any]:
        problems = [problem("no-driver", "eth7", "a | b", module="mlx5_ib")]
        host = Host(Path(self.mktemp()))
        checks = [PASSED, FAILED, SKIPPED]
        return asReport([end()], problems, checks, [LATENCY], True, host)

    def test_contents(self) -> None:
        """A report counts results, and has failures with their explanations."""
        report = self.report()
        self.assertEqual(
            report["parts"],
            {
                "verbs": {"passed": 1, "failed": 1, "skipped": 0},
                "mad": {"passed": 0, "failed": 0, "skipped": 1},
            },
        )
        (failure,) = report["failures"]
        self.assertEqual(failure["check"], "verbs/VerbsTests.test_read")
        self.assertIn("ulimit -l", failure["explanation"])
        self.assertEqual(
            report["measurements"], [{"over": "tcp:", "bytes": 64, "value": 12.346, "unit": "us"}]
        )

    def test_markdown(self) -> None:
        """Markdown has tables, failures, and that the run was interrupted."""
        text = asMarkdown(self.report())
        for part in (
            "this report is partial",
            "| driver | mlx5_core |",
            "| verbs | 1 | 1 | 0 |",
            "| tcp: | 64 | 12.346 | us |",
            "| eth7 | a \\| b | `sudo modprobe mlx5_ib` |",
            "## verbs/VerbsTests.test_read",
            "*Known:* The limit of pinned memory",
        ):
            self.assertIn(part, text)

    def test_names(self) -> None:
        """Names of this host, of its user, and of all its devices and interfaces are replaced."""
        self.patch(socket, "gethostname", lambda: "node7.example.com")
        sysfs = SysFS(self.mktemp() + "/sys")
        for name in ("mlx5_0", "mlx5_1"):
            sysfs.device(name)
        for name in ("eth7", "eth8", "v0"):
            sysfs.netdev(name)
        names = namesOf([end()], Host(sysfs.root.parent))
        expected = {
            "mlx5_0": "DEVICE1",
            "mlx5_1": "DEVICE",
            "eth7": "INTERFACE1",
            "eth8": "INTERFACE",
            "v0": "INTERFACE",
        }
        self.assertEqual({**names, **expected}, names)
        self.assertEqual((names["node7"], names["node7.example.com"]), ("HOST", "HOST"))

    def test_nowhere(self) -> None:
        """Neither the user's home nor the working directory needs to exist."""
        self.patch(Path, "home", Mock(side_effect=RuntimeError()))
        self.patch(os, "getcwd", Mock(side_effect=FileNotFoundError()))
        self.assertNotIn("~", namesOf([end()], Host(Path("/nowhere"))).values())

    def test_redacted(self) -> None:
        """Names, addresses and GUIDs are replaced in all texts; other values are not changed."""
        names = {"mlx5_0": "DEVICE1", "node7": "HOST", "/home/alice": "~"}
        for text, expected in (
            ("pyverbs:mlx5_0 of node7.example.com", "pyverbs:DEVICE1 of HOST.example.com"),
            ("mlx5_01 and node77", "mlx5_01 and node77"),
            ("/home/alice/x.py", "~/x.py"),
            ("from 192.0.2.7 to 127.0.0.1", "from IPv4 to 127.0.0.1"),
            ("gid fe80::b859:9f03:12:3456, ::1", "gid GID, GID"),
            ("fe80:0000:0000:0000:b859:9f03:0012:3456", "GID"),
            ("Couldn't listen on 2001:db8:1:2:3:4:5:6:18517: x", "Couldn't listen on GID:18517: x"),
            ("rdma:fe80::1:7471 and [fe80::1]:18517", "rdma:GID and [GID]:18517"),
            (r"smc:2001\:db8\:\:1:18517:device=soft\:fe80\\\:\\\:1", r"smc:GID:18517:device=soft\GID"),
            ("GID: 254:128:00:00:00:00:00:00:02:16:62:255:254:171:205:239", "GID: GID"),
            ("guid b859:9f03:0012:3456 0xb8599f0300123456", "guid GID GUID"),
            ("fe80000000000000b8599f0300123456", "GUID"),
            ("mac 02:00:00:00:00:01", "mac MAC"),
            ("firmware 16.35.2000, 100 Gb/s, 6.12.1", "firmware 16.35.2000, 100 Gb/s, 6.12.1"),
        ):
            self.assertEqual(redacted(text, names), expected)
        self.assertEqual(redacted({"a": [1, None, "node7"]}, names), {"a": [1, None, "HOST"]})


class SubjectTests(SynchronousTestCase):
    def test_kernelName(self) -> None:
        """A device of the kernel has the same name in both forms of its device string."""
        for device, name in (("pyverbs:mlx5_0", "mlx5_0"), ("pyverbs:name=mlx5_0", "mlx5_0"), ("soft", "")):
            self.assertEqual(kernelName(device), name)
