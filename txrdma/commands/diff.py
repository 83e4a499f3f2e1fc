"""C{txrdma diff}: differences between two snapshots of a fabric."""

from __future__ import annotations

import sys
from typing import Any

from txrdma.commands.common import sweeping
from txrdma.commands.common.options import INTERRUPTED
from txrdma.commands.common.rows import printJSON
from txrdma.commands.common.session import nodeNames
from txrdma.error import DeviceUnavailable
from txrdma.fabric.differences import Difference, differences
from txrdma.fabric.model import described


class CommandOptions(sweeping.SweepOptions):
    """Options of C{txrdma diff}: two snapshots, or one snapshot to compare with the fabric."""

    synopsis = "[options] BEFORE [AFTER]"
    longdesc = (
        "Compare two snapshots written by discover (JSON or text): nodes, ports, links, states, rates "
        "and LIDs. Without AFTER, the second one is the present fabric. What one of them lacks because it "
        "was not read is not compared. The exit status is 0 if nothing has changed, 1 if something has, and "
        "2 if nothing has changed in what was read but something was not read, or the comparison failed."
    )
    failureStatus = 2

    def parseArgs(self, before: str, after: str = "") -> None:  # type: ignore[override]  # Twisted counts arguments
        self["before"], self["after"] = before, after


async def run(reactor: Any, options: CommandOptions) -> None:
    """Run C{txrdma diff}: print the differences, exit with 1 if there are any."""
    before = sweeping.recorded(options["before"]).fabric
    if options["after"]:
        after, names = sweeping.recorded(options["after"]).fabric, nodeNames(options)
    else:
        after, names = await sweeping.fabricOf(reactor, options)
    if sweeping.isInterrupted(after):
        sweeping.printProblems(after)
        raise SystemExit(INTERRUPTED)
    if not (options["after"] or options["load"]) and after.isLocalOnly and not before.isLocalOnly:
        sweeping.printProblems(after)
        raise DeviceUnavailable("the local port reaches no other node: nothing was compared")
    found = differences(names.put(before), names.put(after))
    if options["json"]:
        printJSON([differenceDict(each) for each in found])
    else:
        for each in found:
            print(each)
    for name, fabric in ((options["before"], before), (options["after"] or options["load"], after)):
        for line in described(fabric.problems):
            print(f"{name}: {line}" if name else line, file=sys.stderr)
    if found:
        raise SystemExit(1)
    if before.problems or after.problems:
        raise DeviceUnavailable("nothing differs in what was read, but something was not read")


def differenceDict(each: Difference) -> dict[str, Any]:
    """Return a difference for JSON."""
    return {
        "kind": each.kind,
        "guid": str(each.guid),
        "name": each.name,
        "port": each.port,
        "before": each.before or None,
        "after": each.after or None,
    }
