"""C{txrdma discover}: all nodes, ports and links of a fabric, in several formats."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.error import ProcessExitedAlready
from twisted.internet.protocol import ProcessProtocol
from twisted.python import usage
from twisted.python.failure import Failure

from txrdma.commands.common import sweeping
from txrdma.commands.common.options import INTERRUPTED
from txrdma.commands.common.rows import printJSON
from txrdma.commands.formats.dot import dotText
from txrdma.commands.formats.ibnetdiscover import listing
from txrdma.commands.formats.snapshot import snapshotDict
from txrdma.error import DeviceUnavailable
from txrdma.fabric.chassis import chassis
from txrdma.fabric.model import Fabric
from txrdma.fabric.nodenames import NodeNames, nodeNamesText


def _slurm(fabric: Fabric, names: NodeNames) -> Iterable[str]:
    from txrdma.fabric.slurm import slurmText  # rarely needed

    return slurmText(fabric, names)


def _slurmYAML(fabric: Fabric, names: NodeNames) -> Iterable[str]:
    from txrdma.fabric.slurm import slurmYAML  # rarely needed

    return slurmYAML(fabric, names)


def _net(fabric: Fabric, names: NodeNames) -> Iterable[str]:
    """Return the lines of a net file, from which simulators create the same fabric."""
    from txrdma.sim.netfabrics import netOf  # rarely needed

    return netOf(fabric, names).text().splitlines()


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


class _Drawing(ProcessProtocol):
    """
    A process of Graphviz' C{dot} that draws a graph.

    @ivar status: fires with its exit status, or None if a signal has ended it. If cancelled, it is killed.
    """

    def __init__(self, graph: bytes) -> None:
        self._graph = graph
        self._outputs = {1: bytearray(), 2: bytearray()}
        self.status: Deferred[int | None] = Deferred(lambda _: self._kill())

    @property
    def drawing(self) -> str:
        return self._outputs[1].decode()

    @property
    def complaint(self) -> str:
        return self._outputs[2].decode(errors="replace").strip()

    def connectionMade(self) -> None:
        process: Any = self.transport
        process.write(self._graph)
        process.closeStdin()

    def childDataReceived(self, descriptor: int, data: bytes) -> None:
        self._outputs[descriptor] += data

    def processEnded(self, reason: Failure) -> None:
        ended: Any = reason.value
        if not self.status.called:  # it was not cancelled
            self.status.callback(ended.exitCode)

    def _kill(self) -> None:
        process: Any = self.transport
        with suppress(ProcessExitedAlready):
            process.signalProcess("KILL")


async def drawn(reactor: Any, graph: str) -> str:
    """
    Draw a graph as SVG by Graphviz.

    @raise DeviceUnavailable: Graphviz is not installed, or its C{dot} fails.
    """
    program = shutil.which("dot")
    if program is None:
        raise DeviceUnavailable(
            "--format svg needs Graphviz' dot: install it (apt or dnf install graphviz), or "
            "use --format dot and draw its output elsewhere"
        )
    drawing = _Drawing(graph.encode())
    try:
        reactor.spawnProcess(drawing, program, [program, "-Tsvg"], {})
        status = await drawing.status
    except OSError as error:
        raise DeviceUnavailable(f"Graphviz' dot: {error}") from error
    if status != 0:
        raise DeviceUnavailable(f"Graphviz' dot: {drawing.complaint or 'a signal has ended it'}")
    return drawing.drawing
