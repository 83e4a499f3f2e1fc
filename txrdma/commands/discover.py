"""
C{txrdma discover}: what a fabric consists of.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any, Final

from twisted.python import usage

from txrdma.commands.fabrics import tellJSON
from txrdma.commands.nodenames import NodeNames, readNodeNames
from txrdma.commands.sweeping import fabricOf, SweepOptions, tellProblems
from txrdma.commands.topologies import dotText, fabricDict, listing, netText, slurmText
from txrdma.error import DeviceUnavailable
from txrdma.mad.fabric import Fabric

_TEXTS: Final[dict[str, Callable[[Fabric, NodeNames], Iterable[str]]]] = {
    "text": listing,
    "dot": dotText,
    "slurm": slurmText,
    "net": lambda fabric, names: netText(fabric, names).splitlines(),
}
FORMATS: Final = ("text", "json", "dot", "svg", "slurm", "net")


class CommandOptions(SweepOptions):
    """Which form to tell it in."""

    longdesc = (
        "Tell all nodes, ports and links: as text like ibnetdiscover's, as JSON, as a graph for Graphviz "
        "(dot) or drawn by it (svg), as Slurm's topology.conf (slurm), or as a net file for simulators "
        "(net). What could not be found out is told on standard error, and then the exit status is 1."
    )
    optParameters = [["format", "f", "text", "One of " + ", ".join(FORMATS) + "."]]

    def postOptions(self) -> None:
        super().postOptions()
        if self["json"]:
            self["format"] = "json"
        if self["format"] not in FORMATS:
            raise usage.UsageError(f"--format {self['format']}: there are {', '.join(FORMATS)}")


async def carryOut(reactor: Any, options: CommandOptions) -> None:
    """C{txrdma discover}."""
    fabric = await fabricOf(reactor, options)
    names = readNodeNames(options["node-names"])
    if options["format"] == "json":
        tellJSON(fabricDict(fabric, names))
    elif options["format"] == "svg":
        sys.stdout.write(await drawn(reactor, "\n".join(dotText(fabric, names))))
    else:
        sys.stdout.write("\n".join(_TEXTS[options["format"]](fabric, names)) + "\n")
    tellProblems(fabric)
    if fabric.problems:
        sys.stdout.flush()
        raise SystemExit(1)


async def drawn(reactor: Any, graph: str) -> str:
    """
    The graph as SVG, by Graphviz.

    @raise DeviceUnavailable: there is none here, or it cannot.
    """
    from twisted.internet.utils import getProcessOutputAndValue  # slow to import, and seldom needed

    said: bytes
    complaint: bytes
    try:
        said, complaint, status = await getProcessOutputAndValue(
            "/usr/bin/env", ("dot", "-Tsvg"), reactor=reactor, stdinBytes=graph.encode()
        )
    except OSError as error:
        raise DeviceUnavailable(f"Graphviz' dot: {error}") from error
    if status:
        raise DeviceUnavailable(f"Graphviz' dot: {complaint.decode(errors='replace').strip()}")
    return said.decode()
