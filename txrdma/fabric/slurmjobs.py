"""
Jobs of Slurm, from the output of C{squeue --json}, and the nodes on which they run.

Follows the job objects of Slurm's REST API. C{nodes} is a host list; C{job_state} is a text up to data parser
0.0.39 (Slurm 23.02), and later a list of texts.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Final

from txrdma.error import InvalidRequest
from txrdma.fabric.model import Fabric, Node
from txrdma.fabric.nodenames import NodeNames
from txrdma.fabric.slurm import hostName, hostNames, isHost
from txrdma.fabric.texts import printable, readText
from txrdma.kit.values import frozen

_HOLDING: Final = frozenset(("RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING"))
"""States of jobs that have nodes; those that have ended are listed with their former nodes."""


@frozen
class SlurmJob:
    """
    A job that has nodes.

    @ivar identifier: number of the job as a text, with that of its task in an array: C{"1234_7"}.
    @ivar hosts: names of its nodes.
    """

    identifier: str
    name: str
    user: str
    hosts: tuple[str, ...]


def parseJobs(text: str, name: str = "squeue --json") -> list[SlurmJob]:
    """
    Parse the output of C{squeue --json}; jobs without nodes, such as pending ones, are omitted.

    @param name: name of the file, for messages.
    @raise InvalidRequest: the text is something else.
    """
    try:
        return [_job(one) for one in json.loads(text)["jobs"] if _hasNodes(one)]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidRequest(f"{name}: this is not the output of squeue --json: {error!r}") from error


def readJobs(path: str) -> list[SlurmJob]:
    """Read jobs from a file with the output of C{squeue --json}; raise L{InvalidRequest} on a mistake."""
    return parseJobs(readText("jobs", path), f"jobs {path}")


def _hasNodes(job: dict[str, Any]) -> bool:
    states = job["job_state"]
    isHolding = not _HOLDING.isdisjoint([states] if isinstance(states, str) else states)
    return isHolding and bool(job.get("nodes"))


def _job(job: dict[str, Any]) -> SlurmJob:
    array, task = _number(job.get("array_job_id")), _number(job.get("array_task_id"))
    identifier = f"{array}_{task}" if array and task is not None else f"{int(job['job_id'])}"
    name, user = (printable(str(job.get(key) or "")) for key in ("name", "user_name"))
    return SlurmJob(identifier, name, user, tuple(hostNames(job["nodes"])))


def _number(value: Any) -> int | None:
    """Return a number that newer versions write as an object with C{set} and C{number}."""
    if isinstance(value, dict):
        value = value["number"] if value["set"] else None
    return None if value is None else int(value)


class HostsByName:
    """Nodes of a fabric by the names of their hosts: the first words of their names."""

    def __init__(self, fabric: Fabric, names: NodeNames) -> None:
        self._nodes: dict[str, list[Node]] = defaultdict(list)
        for node in fabric.nodes.values():
            if isHost(node):
                name = hostName(names.name(node.guid, node.description))
                for each in {name, name.partition(".")[0]} - {""}:
                    self._nodes[each].append(node)

    def nodes(self, name: str) -> list[Node]:
        """Return the adapters of a host by its name, with or without domain; empty if there is none."""
        return self._nodes.get(name) or self._nodes.get(name.partition(".")[0]) or []

    def of(self, jobs: Iterable[SlurmJob]) -> list[list[list[Node]]]:
        """Return the adapters of each host of each job; hosts that the fabric does not have are omitted."""
        return [[nodes for name in job.hosts if (nodes := self.nodes(name))] for job in jobs]

    def unknown(self, jobs: Iterable[SlurmJob]) -> list[str]:
        """Return the names of hosts of jobs that the fabric does not have, each once."""
        names = dict.fromkeys(name for job in jobs for name in job.hosts)
        return [name for name in names if not self.nodes(name)]
