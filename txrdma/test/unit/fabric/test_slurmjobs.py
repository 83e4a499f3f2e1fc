"""Jobs of Slurm from the output of C{squeue}, and host lists."""

from __future__ import annotations

from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import InvalidRequest
from txrdma.fabric.model import Fabric
from txrdma.fabric.nodenames import NodeNames
from txrdma.fabric.slurm import hostList, hostNames, MOST_NAMES
from txrdma.fabric.slurmjobs import HostsByName, parsedJobs, readJobs, SlurmJob
from txrdma.iba.types import GUID
from txrdma.iba.verbs import NodeType
from txrdma.mad.layouts.smp import NodeInfo


def squeue(*jobs: str) -> str:
    """Return the output of squeue for jobs as C{"7:a,c"}, a number and nodes."""
    parts = (job.partition(":") for job in jobs)
    return "".join(f"{number}:ada:{nodes}:job {number}\n" for number, _, nodes in parts)


class JobTests(SynchronousTestCase):
    def test_jobs(self) -> None:
        """Each line is a job; a name may have colons, and a job without nodes is omitted."""
        text = "7_3:ada:h[00000-00001],b:run: all:x\n\n8:bob::waits\n9+1:eve:c:\x1b[2J\n"
        first, last = list(parsedJobs(text))
        self.assertEqual(first, SlurmJob("7_3", "run: all:x", "ada", ("h00000", "h00001", "b")))
        self.assertEqual((last.identifier, last.name.isprintable()), ("9+1", True))
        self.assertEqual(list(parsedJobs("")), [])

    def test_mistakes(self) -> None:
        """Something else is refused, with the name of the file and what is expected."""
        for text in ("nothing", "[]", "1:2:3", "1:ada:h[1-:x", '{"jobs": []}'):
            error = str(self.assertRaises(InvalidRequest, list, parsedJobs(text)))
            self.assertIn("%i:%u:%N:%j", error)
        path = Path(self.mktemp())
        self.assertIn(str(path), str(self.assertRaises(InvalidRequest, readJobs, str(path))))
        path.write_text("no jobs")
        self.assertIn(str(path), str(self.assertRaises(InvalidRequest, readJobs, str(path))))


class HostListTests(SynchronousTestCase):
    def test_names(self) -> None:
        """Ranges have leading zeros, and a name may have several."""
        for text, names in (
            ("", []),
            ("login1", ["login1"]),
            ("h[0-2,7],login1", ["h0", "h1", "h2", "h7", "login1"]),
            ("h[08-10]", ["h08", "h09", "h10"]),
            ("r[1-2]n[3-4]-ib", ["r1n3-ib", "r1n4-ib", "r2n3-ib", "r2n4-ib"]),
        ):
            self.assertEqual(hostNames(text), names, text)
        names = hostNames("h[00000-00017,00020],login1")
        self.assertEqual(hostList(names), "h[00000-00017,00020],login1")

    def test_mistakes(self) -> None:
        """Unbalanced brackets, empty ranges and lists without end are refused."""
        for text in ("h[1-", "h1]", "h[]", "h[a]", "h[2-1]", f"h[0-{MOST_NAMES}]", "h[0-9999][0-9999]"):
            self.assertRaises(ValueError, hostNames, text)


class HostsTests(SynchronousTestCase):
    def test_adapters(self) -> None:
        """A host has the adapters whose descriptions begin with its name, with or without the domain."""
        fabric, hosts = Fabric(), HostsByName(NodeNames())
        for number, name in enumerate(("n1 mlx5_0", "n1 mlx5_1", "n2.example.org HCA-1", "leaf"), 1):
            kind = NodeType.SWITCH if name == "leaf" else NodeType.CHANNEL_ADAPTER
            guid = GUID.fromInt(number)
            fabric.add(NodeInfo(nodeType=kind, nodeGUID=guid, numPorts=1))[0].description = name
        for node in fabric.nodes.values():
            hosts.add(node)
        for name, count in (("n1", 2), ("n1.example.org", 2), ("n2", 1), ("n2.example.org", 1), ("leaf", 0)):
            self.assertEqual(len(hosts.nodes(name)), count, name)
        jobs = list(parsedJobs(squeue("1:n[1-3]", "2:n3")))
        self.assertEqual([[len(nodes) for nodes in hosts.of(one)] for one in jobs], [[2, 1], []])
        self.assertEqual(hosts.unknown(jobs), ["n3"])
