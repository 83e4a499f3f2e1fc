"""C{txrdma snapshot}: writes a fabric with its tables and counters to a file."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from twisted.python import usage

from txrdma.commands.common import sweeping
from txrdma.commands.common.interruption import endedBySignals
from txrdma.commands.common.progress import cooperative, ProgressBar
from txrdma.commands.common.rows import printJSON
from txrdma.commands.common.session import opened
from txrdma.fabric.model import Problem
from txrdma.fabric.recorder import expectedCalls, record
from txrdma.fabric.recording import Recording
from txrdma.fabric.snapshots import VERSION, writeRecording


class CommandOptions(sweeping.SweepOptions):
    """Options of C{txrdma snapshot}: the fabric, and the file."""

    synopsis = "[options] FILE"
    longdesc = (
        "Write a fabric with its tables to FILE, as compressed JSON: nodes, ports and links, forwarding and "
        "multicast tables, virtual lanes and their arbitration, P_Keys, firmware, cables, subnet managers, "
        "and all counters. Nothing is cleared or changed. check, cables, discover, nodes, links and diff "
        "read the file by --load FILE, all commands by --device sim:FILE, which simulates the fabric; "
        "twistd fabric-monitor --replay FILE shows it, and rehearse tries faults in it. It contains names, "
        "GUIDs and, with --mkey, M_Keys. The exit status is 1 if parts of the fabric did not answer."
    )

    def parseArgs(self, file: str) -> None:  # type: ignore[override]  # Twisted counts arguments
        if not file:
            raise usage.UsageError("expected FILE")
        self["file"] = file

    def postOptions(self) -> None:
        super().postOptions()
        if self["load"]:
            raise usage.UsageError("--load: a snapshot is written of a fabric; copy the file instead")


async def run(reactor: Any, options: CommandOptions) -> None:
    """Run C{txrdma snapshot}: sweep the fabric, read its tables and counters, and write the file."""
    with opened(reactor, options) as session:
        began = time.time()
        fabric = await sweeping.swept(session)
        expected = expectedCalls(fabric)
        problems: list[Problem] = []
        with ProgressBar("reading tables") as progress:
            recording = await record(
                *(session.agent, session.endPort, fabric, began, options["outstanding"]),
                lambda calls: progress.named("reading tables", min(calls, expected), expected),
                partial(cooperative, reactor, partial(progress.named, "following routes"), len(fabric.nodes)),
                problems,
            )
    with endedBySignals():
        writeRecording(recording, options["file"])
    if options["json"]:
        printJSON(_summary(recording, options["file"]))
    else:
        summary = _summary(recording, options["file"])
        print("{file}: {nodes} nodes, {links} links, {answers} answers".format(**summary))
    fabric.problems += problems
    sweeping.endWith(fabric)


def _summary(recording: Recording, file: str) -> dict[str, Any]:
    fabric = recording.fabric
    return {
        "file": file,
        "version": VERSION,
        "at": recording.at,
        "nodes": len(fabric.nodes),
        "links": sum(1 for _ in fabric.links()),
        "answers": sum(map(len, recording.answers.values())),
    }
