"""C{txrdma discover}: all nodes, ports and links of a fabric, in several formats."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable
from typing import Any, Final

from twisted.python import usage

from txrdma.commands.common import sweeping
from txrdma.commands.common.options import INTERRUPTED
from txrdma.commands.common.rows import printJSON
from txrdma.commands.formats.dot import dotText
from txrdma.commands.formats.ibnetdiscover import listing
from txrdma.commands.formats.snapshot import snapshotDict
from txrdma.error import DeviceUnavailable
from txrdma.fabric.chassis import chassis
from txrdma.fabric.model import Fabric
from txrdma.fabric.nodenames import NodeNames, nodeNamesText, quotable
from txrdma.kit.programs import outputOf

_DRAW_SECONDS: Final = 86_400.0
"""Seconds after which Graphviz is killed: it draws large fabrics for hours."""

_MOST_DRAWN: Final = 1 << 30
"""Largest number of octets of a drawing."""


def _slurm(fabric: Fabric, names: NodeNames) -> Iterable[str]:
    from txrdma.fabric.slurm import slurmText  # rarely needed

    return slurmText(fabric, names)


def _slurmYAML(fabric: Fabric, names: NodeNames) -> Iterable[str]:
    from txrdma.fabric.slurm import slurmYAML  # rarely needed

    return slurmYAML(fabric, names)


def _net(fabric: Fabric, names: NodeNames) -> Iterable[str]:
    """Return the lines of a net file, from which simulators create the same fabric."""
    from txrdma.sim.netfabrics import netOf  # rarely needed

    quoted = {node.guid: quotable(names.name(node.guid, node.description)) for node in fabric.nodes.values()}
    return netOf(fabric, NodeNames(quoted)).text().splitlines()


def _names(fabric: Fabric, names: NodeNames) -> Iterable[str]:
    return nodeNamesText(names.put(fabric))


_TEXTS: Final[dict[str, Callable[[Fabric, NodeNames], Iterable[str]]]] = {
    "text": listing,
    "dot": dotText,
    "slurm": _slurm,
    "slurm-yaml": _slurmYAML,
    "net": _net,
    "names": _names,
}
FORMATS: Final = ("text", "json", "dot", "svg", "slurm", "slurm-yaml", "net", "names")


class CommandOptions(sweeping.SweepOptions):
    """Options of C{txrdma discover}: the sweep, and the format."""

    longdesc = (
        "List all nodes, ports and links: as text like ibnetdiscover's, as JSON, as a graph for Graphviz "
        "(dot) or drawn by it (svg), as Slurm's topology.conf (slurm) or topology.yaml (slurm-yaml), as a "
        "net file for simulators (net), or as a node-name map (names). Text, JSON and net files can be "
        "loaded again. If something could not be discovered, an error is printed and the exit status is 1."
    )
    optFlags = [["chassis", "g", "In text, group nodes by chassis, chassis first."]]
    optParameters = [["format", "f", "text", "One of " + ", ".join(FORMATS) + "."]]

    def postOptions(self) -> None:
        super().postOptions()
        if self["json"]:
            self["format"] = "json"
        if self["format"] not in FORMATS:
            raise usage.UsageError(f"--format {self['format']}: expected one of {', '.join(FORMATS)}")


async def run(reactor: Any, options: CommandOptions) -> None:
    """Run C{txrdma discover}: print the fabric in the selected format."""
    fabric, names = await sweeping.fabricOf(reactor, options)
    form = options["format"]
    if form == "json":
        printJSON(snapshotDict(fabric, names))
    elif form == "svg":
        if sweeping.isInterrupted(fabric):  # do not draw after Ctrl-C, since drawing also takes time
            sweeping.printProblems(fabric)
            raise SystemExit(INTERRUPTED)
        sys.stdout.write(await drawn(reactor, "\n".join(dotText(fabric, names))))
    elif form == "text" and options["chassis"]:
        sys.stdout.write("\n".join(listing(fabric, names, chassis(fabric))) + "\n")
    else:
        sys.stdout.write("\n".join(_TEXTS[form](fabric, names)) + "\n")
    sweeping.endWith(fabric)


async def drawn(reactor: Any, graph: str) -> str:
    """
    Draw a graph as SVG by Graphviz.

    @raise DeviceUnavailable: Graphviz is not installed, or its C{dot} fails.
    """
    if shutil.which("dot") is None:
        raise DeviceUnavailable(
            "--format svg needs Graphviz' dot: install it (apt or dnf install graphviz), or "
            "use --format dot and draw its output elsewhere"
        )
    return (await outputOf(reactor, ("dot", "-Tsvg"), _DRAW_SECONDS, _MOST_DRAWN, graph.encode())).decode()
