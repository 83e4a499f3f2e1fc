"""Jobs of Slurm from the output of C{squeue --json}, and host lists."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import InvalidRequest
from txrdma.fabric.model import Fabric
from txrdma.fabric.nodenames import NodeNames
from txrdma.fabric.slurm import hostList, hostNames, MOST_NAMES
from txrdma.fabric.slurmjobs import HostsByName, parseJobs, readJobs
from txrdma.iba.types import GUID
from txrdma.iba.verbs import NodeType
from txrdma.mad.layouts.smp import NodeInfo


def setNumber(number: int | None) -> dict[str, Any]:
    """Return a number as data parsers from 0.0.39 on write it."""
    return {"set": number is not None, "infinite": False, "number": number or 0}


def squeue(*jobs: dict[str, Any], release: str = "24.11.5") -> str:
    """Return the output of C{squeue --json} of a release of Slurm, with the fields that are relevant here."""
    version = {"data_parser": "data_parser/v0.0.42", "accounting_storage": "accounting_storage/slurmdbd"}
    meta = {"plugin": version, "command": ["squeue", "--json"], "slurm": {"release": release}}
    return json.dumps({"jobs": jobs, "meta": meta, "errors": [], "warnings": []})


def job(number: int, nodes: str, *states: str, **more: Any) -> dict[str, Any]:
    """Return a job as Slurm from 23.11 on writes it."""
    resources = {"select_type": ["CPU"], "nodes": {"count": 1, "list": nodes}} if nodes else None
    return {
        "account": "physics",
        "array_job_id": setNumber(0),
        "array_task_id": setNumber(None),
        "het_job_id": setNumber(0),
        "job_id": number,
        "job_resources": resources,
        "job_state": list(states or ("RUNNING",)),
        "name": f"job {number}",
        "node_count": setNumber(1),
        "nodes": nodes,
        "partition": "batch",
        "user_name": "ada",
        **more,
    }


class JobTests(SynchronousTestCase):
    def test_states(self) -> None:
        """Jobs that have nodes count: also suspended and completing ones, and no pending or former ones."""
        text = squeue(
            job(1, "h[00000-00001]"),
            job(2, "", "PENDING"),
            job(3, "h00003", "COMPLETED"),
            job(4, "h00004", "COMPLETED", "COMPLETING"),
            job(5, "h00005", "SUSPENDED"),
        )
        found = {one.identifier: one.hosts for one in parseJobs(text)}
        self.assertEqual(found, {"1": ("h00000", "h00001"), "4": ("h00004",), "5": ("h00005",)})

    def test_arrays(self) -> None:
        """A task of an array has the number of the array and its own."""
        text = squeue(job(8, "a1", array_job_id=setNumber(7), array_task_id=setNumber(3)))
        self.assertEqual([one.identifier for one in parseJobs(text)], ["7_3"])

    def test_older(self) -> None:
        """Older versions write numbers without C{set}, and one state as a text."""
        old = {"job_id": 9, "job_state": "RUNNING", "nodes": "cs75", "array_job_id": 0, "array_task_id": None}
        (one,) = parseJobs(squeue({**old, "name": "x", "user_name": "bkd"}, release="21.08.5"))
        self.assertEqual((one.identifier, one.name, one.user, one.hosts), ("9", "x", "bkd", ("cs75",)))

    def test_mistakes(self) -> None:
        """Something else is refused, with the name of the file."""
        for text in (
            "",
            "[]",
            "{}",
            '{"jobs": 7}',
            '{"jobs": [7]}',
            '{"jobs": [{}]}',
            squeue(job(1, "h[1-")),
        ):
            self.assertIn("squeue --json", str(self.assertRaises(InvalidRequest, parseJobs, text)))
        path = Path(self.mktemp())
        self.assertIn(str(path), str(self.assertRaises(InvalidRequest, readJobs, str(path))))
        path.write_text("no JSON")
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
        fabric = Fabric()
        for number, name in enumerate(("n1 mlx5_0", "n1 mlx5_1", "n2.example.org HCA-1", "leaf"), 1):
            kind = NodeType.SWITCH if name == "leaf" else NodeType.CHANNEL_ADAPTER
            guid = GUID.fromInt(number)
            fabric.add(NodeInfo(nodeType=kind, nodeGUID=guid, numPorts=1))[0].description = name
        hosts = HostsByName(fabric, NodeNames())
        for name, count in (("n1", 2), ("n1.example.org", 2), ("n2", 1), ("n2.example.org", 1), ("leaf", 0)):
            self.assertEqual(len(hosts.nodes(name)), count, name)
        jobs = parseJobs(squeue(job(1, "n[1-3]"), job(2, "n3")))
        self.assertEqual([[len(nodes) for nodes in one] for one in hosts.of(jobs)], [[2, 1], []])
        self.assertEqual(hosts.unknown(jobs), ["n3"])
