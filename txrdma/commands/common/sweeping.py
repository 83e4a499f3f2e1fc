"""Fabrics for commands: from a sweep of a whole fabric or a part of it, or from a snapshot."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any, Final, TYPE_CHECKING

from twisted.internet.defer import CancelledError
from twisted.python import usage

from txrdma.commands.common.interruption import endedBySignals
from txrdma.commands.common.options import INTERRUPTED
from txrdma.commands.common.progress import ProgressBar
from txrdma.commands.common.session import FabricOptions, nodeNames, opened, Session
from txrdma.commands.common.values import count, fileName
from txrdma.error import InvalidRequest
from txrdma.fabric.discovery import MAX_OUTSTANDING, Sweep
from txrdma.fabric.model import described, Fabric, Node, Problem
from txrdma.fabric.nodenames import NodeNames
from txrdma.fabric.recording import Recording
from txrdma.fabric.snapshots import parseRecording, writeSnapshot
from txrdma.fabric.sweepbounds import MOST_HOPS, MOST_NODES
from txrdma.fabric.texts import readText
from txrdma.iba.path import IBDRPath
from txrdma.iba.types import GUID

if TYPE_CHECKING:
    from txrdma.fabric.lidsweep import LIDSweep
    from txrdma.fabric.sasweep import SASweep

METHODS = ("dr", "lid", "sa")
INTERRUPTED_SWEEP: Final = "interrupted"
"""The kind of the problem that records the interruption of a sweep."""


class SweepOptions(FabricOptions):
    """Options for a sweep of a whole fabric, or for a snapshot."""

    optParameters = [
        ["by", None, "dr", "Use directed routes (dr), LIDs (lid), or the SA (sa)."],
        ["outstanding", "o", MAX_OUTSTANDING, "Maximum number of outstanding requests.", count],
        ["hops", None, None, "Maximum number of hops. [default: 63]", count],
        ["nodes", None, MOST_NODES, "Maximum number of nodes; further ones are left out.", count],
        ["from", None, "", "Begin at the switch at the end of this directed route, not at the local port."],
        [
            *("load", None, "", "Read a snapshot, JSON, text or net file instead of querying the fabric."),
            fileName,
        ],
        ["save", None, "", "Write a snapshot of the fabric to this file.", fileName],
    ]

    def postOptions(self) -> None:
        if self["sa"]:
            self["by"] = "sa"
        if self["by"] not in METHODS:
            raise usage.UsageError(f"--by {self['by']}: expected one of {', '.join(METHODS)}")
        if self["from"] and self["by"] != "dr":
            raise usage.UsageError(f"--from {self['from']}: it needs --by dr")
        if self["load"] and self["save"]:
            raise usage.UsageError(
                "--save: a snapshot is written of a fabric; copy the file of --load instead"
            )
        if not self["nodes"]:
            raise usage.UsageError("--nodes 0: expected 1 or more")
        if not self["outstanding"]:
            raise usage.UsageError("--outstanding 0: expected 1 or more")


class PartOptions(SweepOptions):
    """Options for a sweep of a whole fabric, or of a node and its neighbourhood."""

    synopsis = "[options] [TARGET]"
    optParameters = [
        ["hops", None, None, "Maximum number of hops. [default: 0 with a TARGET, otherwise 63]", count]
    ]

    def parseArgs(self, target: str = "") -> None:
        self["target"] = target

    def postOptions(self) -> None:
        super().postOptions()
        if self["target"] and self["from"]:
            raise usage.UsageError("--from excludes TARGET, at which the sweep begins")


@contextmanager
def asking(reactor: Any, options: FabricOptions, needsTables: bool = False) -> Iterator[Session]:
    """
    Open a session like L{opened}; with C{--load} and no C{--device}, a simulation of the snapshot answers, if
    it has tables. It also answers for what the snapshot lacks, but C{readings} of the session does not.

    @param needsTables: refuse a snapshot without tables instead of opening a port.
    """
    recording = recorded(options["load"]) if options["load"] and not options["device"] else None
    if recording is not None and recording.answers:
        from txrdma.sim.twin import Twin  # rarely needed

        with endedBySignals():
            twin = Twin(reactor, [recording])
        with closing(twin), opened(reactor, options, twin.attach()) as session:
            session.loaded = recording
            yield session
        return
    if recording is not None and needsTables:
        raise InvalidRequest(f"snapshot {options['load']}: it has no tables; txrdma snapshot writes one")
    with opened(reactor, options) as session:
        yield session


async def fabricOf(reactor: Any, options: SweepOptions, withLinks: bool = True) -> tuple[Fabric, NodeNames]:
    """
    Return the fabric of the options, swept now or loaded from a snapshot, and the node-name map.

    The fabric of an interrupted sweep is partial, and has a problem that records the interruption.
    """
    if options["load"]:
        names = nodeNames(options)
        return recalled(options, names), names
    with opened(reactor, options) as session:
        return await swept(session, isPartial=True, withLinks=withLinks), session.names


async def swept(session: Session, isPartial: bool = False, withLinks: bool = True) -> Fabric:
    """
    Sweep the fabric, or a part of it, by the session's options; show progress on a terminal.

    Problems are recorded in the fabric. With C{--save}, a snapshot is written. With C{--load}, nodes of which
    other nodes have the LIDs now are left out.

    @param isPartial: return the partial fabric of an interrupted sweep; otherwise only print its size.
    @param withLinks: for a part, also discover the links of its outermost nodes.
    """
    options = session.options
    if options["load"]:
        if session.loaded is not None:
            return recalled(options, session.names, session.loaded.fabric)
        fabric = recalled(options, session.names)
        await dropMoved(session, fabric, fabric.nodes)
        return fabric
    if options.get("target"):
        return await _sweptAround(session, isPartial, withLinks)
    start = await _startPath(session, options["from"]) if options["from"] else IBDRPath()
    with ProgressBar("asking") as progress:
        sweep = _sweep(session, start, progress if progress.isShown else None)
        try:
            with unswept():
                fabric = await (sweep.run(start) if isinstance(sweep, Sweep) else sweep.run())
        except CancelledError:
            if not _isReported(sweep.fabric, isPartial):
                raise
            return sweep.fabric
    if fabric.problems and not fabric.isLocalOnly:
        await session.checkLink()
    if fabric.isLocalOnly and options["hops"] != 0:
        from txrdma.fabric.health import isolation  # rarely needed

        fabric.problems += isolation(fabric)
    if options["save"]:
        writeSnapshot(fabric, options["save"])
    return fabric


async def movedNodes(session: Session, nodes: Iterable[Node]) -> list[tuple[Node, str]]:
    """Return the nodes of which another one has a LID now; none for a snapshot, or a port without SMPs."""
    from txrdma.fabric.asking import moved

    if session.loaded is not None or not session.agent.port.hasSMI:
        return []
    return await moved(session.agent, session.endPort, list(nodes), session.options["outstanding"])


async def dropMoved(session: Session, fabric: Fabric, read: dict[GUID, Any]) -> None:
    """Remove what was read of nodes whose LIDs others have now; each of these is a problem of the fabric."""
    for node, text in await movedNodes(session, [fabric.nodes[guid] for guid in read]):
        del read[node.guid]
        fabric.problems.append(Problem("contradiction", str(node), f"it is left out: {text}"))


def _isReported(fabric: Fabric, isPartial: bool) -> bool:
    """Return C{isPartial}, after recording or printing that a sweep was interrupted."""
    text = f"{len(fabric.nodes)} nodes were found before"
    if isPartial:
        fabric.problems.append(Problem(INTERRUPTED_SWEEP, "the sweep", text))
    else:
        print(f"{INTERRUPTED_SWEEP}: {text}; they are not shown", file=sys.stderr)
    return isPartial


async def _sweptAround(session: Session, isPartial: bool, withLinks: bool) -> Fabric:
    """Sweep the selected part, without requests to other nodes."""
    from txrdma.fabric.neighbourhood import Neighbourhood
    from txrdma.fabric.parts import part
    from txrdma.mad.satransactor import SATransactor

    options = session.options
    method, hops = options["by"], options["hops"] or 0
    rpcs = SATransactor(session.agent, session.endPort) if method == "sa" else session.agent
    start = await session.toManagement(options["target"])
    with ProgressBar("asking") as progress:
        most = options["outstanding"], options["nodes"]
        sweep = Neighbourhood(rpcs, session.endPort, hops, withLinks, method != "dr", *most)
        sweep.progress = progress if progress.isShown else None
        try:
            await sweep.run(start)
        except CancelledError:
            if not _isReported(sweep.fabric, isPartial):
                raise
    if options["save"] and not isInterrupted(sweep.fabric):
        writeSnapshot(sweep.fabric, options["save"])
    return sweep.fabric if sweep.first is None else part(sweep.fabric, sweep.first, hops)


async def _startPath(session: Session, target: str) -> IBDRPath:
    path = await session.toManagement(target)
    if not isinstance(path, IBDRPath):
        raise InvalidRequest(f"--from {target}: expected a directed route, as DR 0,1")
    return path


def _sweep(session: Session, start: IBDRPath, progress: ProgressBar | None) -> Sweep | SASweep | LIDSweep:
    options = session.options
    if options["by"] == "dr":
        most = MOST_HOPS if options["hops"] is None else options["hops"]
        hops = min(most + len(start.drPath), MOST_HOPS)
        return Sweep(*(session.agent, options["outstanding"], hops, progress), mostNodes=options["nodes"])
    from txrdma.fabric.lidsweep import LIDSweep
    from txrdma.fabric.sasweep import SASweep

    sweep: SASweep | LIDSweep
    if options["by"] == "sa":
        sweep = SASweep(session.agent, options["nodes"])
    else:
        sweep = LIDSweep(session.agent, session.endPort, options["outstanding"], options["nodes"])
    sweep.progress = progress
    return sweep


@contextmanager
def unswept() -> Iterator[None]:
    """
    Disable Python's cyclic garbage collection in a context: a sweep creates many long-lived objects.

    Existing objects are also excluded from later collections. With 10,000 hosts, collection took a seventh
    of a sweep's time.
    """
    wasEnabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if hasattr(gc, "freeze"):  # not in PyPy
            gc.freeze()
        if wasEnabled:
            gc.enable()


def recorded(path: str) -> Recording:
    """
    Load a snapshot: from C{txrdma snapshot}, JSON from C{--save} or C{discover --json}, or a net file, as
    C{discover} prints it. Only the first has tables and counters.

    @raise InvalidRequest: the file cannot be read, or is not a snapshot.
    """
    with endedBySignals():
        text = readText("snapshot", path)
        try:
            recording = parseRecording(text)
            if recording is not None:
                recording.fabric.problems = [*map(_asRecorded, recording.fabric.problems)]
                return recording
            from txrdma.sim.netfabrics import readFabric  # rarely needed

            fabric = readFabric(text, path)
            if not fabric.nodes:
                raise ValueError("no nodes")
            return Recording(fabric)
        except ValueError as error:
            raise InvalidRequest(f"snapshot {path}: {error}") from error


def _asRecorded(problem: Problem) -> Problem:
    """
    Return a problem that a snapshot has recorded, as this command reports it: if a sweep was interrupted, it
    was that of the command that wrote the snapshot.
    """
    if problem.kind != INTERRUPTED_SWEEP:
        return problem
    return Problem("incomplete", problem.where, f"it was interrupted: {problem.text}")


def recalled(options: FabricOptions, names: NodeNames, fabric: Fabric | None = None) -> Fabric:
    """
    Load the snapshot of C{--load}, or the part of it around the target, which must be in it.

    @param fabric: the fabric of the snapshot, if it is loaded already.
    """
    fabric = recorded(options["load"]).fabric if fabric is None else fabric
    target = options.get("target")
    if not target:
        return fabric
    from txrdma.fabric.parts import located, part

    return part(fabric, located(fabric, target, names), options["hops"] or 0)


def printProblems(fabric: Fabric) -> None:
    """Print the problems of a fabric on standard error, one per line."""
    for line in described(fabric.problems):
        print(line, file=sys.stderr)


def endWith(fabric: Fabric) -> None:
    """Print the problems of a fabric, and exit if there are any, or if the sweep was interrupted."""
    printProblems(fabric)
    if fabric.problems:
        raise SystemExit(INTERRUPTED if isInterrupted(fabric) else 1)


def isInterrupted(fabric: Fabric) -> bool:
    """Return whether the sweep of a fabric was interrupted."""
    return any(problem.kind == INTERRUPTED_SWEEP for problem in fabric.problems)
