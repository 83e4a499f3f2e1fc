"""Jobs of Slurm that have nodes, from the output of C{squeue}, and their nodes in a fabric."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from txrdma.error import InvalidRequest
from txrdma.fabric.model import Node
from txrdma.fabric.nodenames import NodeNames
from txrdma.fabric.slurm import hostName, hostNames, isHost
from txrdma.fabric.texts import readText
from txrdma.kit.programs import outputOf
from txrdma.kit.strings import printable
from txrdma.kit.values import frozen

SQUEUE: Final = ("squeue", "-h", "-a", "-t", "R,S,CG,CF", "-o", "%i:%u:%N:%j")
"""Command that prints a line for each job that has nodes: its number, user, nodes and name."""

MOST_OUTPUT: Final = 16 << 20
"""Maximum size of the output of C{squeue}; a line has some hundred octets."""

_COLUMNS: Final = 4
_LONGEST: Final = 100


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


def parsedJobs(text: str, name: str = "squeue") -> Iterator[SlurmJob]:
    """
    Parse the output of L{SQUEUE}, job by job.

    @param name: name of the program or file, for messages.
    @raise InvalidRequest: the text is something else.
    """
    return (job for line in text.splitlines() if line.strip() and (job := _job(line, name)).hosts)


def _job(line: str, name: str) -> SlurmJob:
    parts = line.strip().split(":", _COLUMNS - 1)  # the last one is any text
    try:
        identifier, user, nodes, title = map(printable, parts)
        return SlurmJob(identifier, title, user, tuple(hostNames(nodes)))
    except ValueError as error:
        expected = f"expected the output of {SQUEUE[0]} {' '.join(SQUEUE[1:])}"
        raise InvalidRequest(f"{name}: {line[:_LONGEST]!r}: {expected} ({error})") from error


def readJobs(path: str) -> list[SlurmJob]:
    """Read jobs from a file with the output of L{SQUEUE}; raise L{InvalidRequest} on a mistake."""
    return list(parsedJobs(readText("jobs", path), f"jobs {path}"))


async def queueText(reactor: Any, command: Sequence[str], seconds: float) -> str:
    """
    Run a command like L{SQUEUE}, and return its output.

    @param seconds: time after which it is killed.
    @raise DeviceUnavailable: it is not installed, fails, takes longer, or prints more than L{MOST_OUTPUT}.
    """
    return (await outputOf(reactor, command, seconds, MOST_OUTPUT)).decode(errors="replace")


class HostsByName:
    """Nodes of a fabric by the names of their hosts: the first words of their names."""

    def __init__(self, names: NodeNames) -> None:
        self._names = names
        self._nodes: dict[str, list[Node]] = defaultdict(list)

    @classmethod
    def among(cls, nodes: Iterable[Node], names: NodeNames) -> HostsByName:
        """Return those among some nodes."""
        found = cls(names)
        for node in nodes:
            found.add(node)
        return found

    def add(self, node: Node) -> None:
        """Add a node, unless it is no host."""
        if isHost(node):
            name = hostName(self._names.name(node.guid, node.description))
            for each in {name, name.partition(".")[0]} - {""}:
                self._nodes[each].append(node)

    def nodes(self, name: str) -> list[Node]:
        """Return the adapters of a host by its name, with or without domain; empty if there is none."""
        return self._nodes.get(name) or self._nodes.get(name.partition(".")[0]) or []

    def of(self, job: SlurmJob) -> list[list[Node]]:
        """Return the adapters of each host of a job; hosts that the fabric does not have are omitted."""
        return [nodes for name in job.hosts if (nodes := self.nodes(name))]

    def unknown(self, jobs: Iterable[SlurmJob]) -> list[str]:
        """Return the names of hosts of jobs that the fabric does not have, each once."""
        names = dict.fromkeys(name for job in jobs for name in job.hosts)
        return [name for name in names if not self.nodes(name)]
