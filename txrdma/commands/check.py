"""C{txrdma check}: checks a fabric for faults, which it prints and reports by its exit status."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from txrdma.commands.common import sweeping
from txrdma.commands.common.interruption import endedBySignals
from txrdma.commands.common.progress import cooperative, ProgressBar
from txrdma.commands.common.rows import printJSON
from txrdma.commands.common.session import nodeNames, opened
from txrdma.commands.common.sweeping import recorded
from txrdma.commands.common.values import fileName
from txrdma.commands.errors import counted, ThresholdOptions
from txrdma.fabric.advice import adviceOn
from txrdma.fabric.cableplan import cableFindings, readCables
from txrdma.fabric.errorcorrection import correctionFindings
from txrdma.fabric.errorcounters import CounterReport, CounterSurvey, Thresholds
from txrdma.fabric.health import counterFindings, Finding, findings, managerFindings, recordedManagers
from txrdma.fabric.model import Fabric, Node
from txrdma.fabric.recording import RecordedRPCs
from txrdma.fabric.routechecks import routeFindings
from txrdma.fabric.tables import tableFindings, TableSurvey, unreadFindings
from txrdma.iba.path import MADEndPort
from txrdma.mad.rpcs import RPCs


class CommandOptions(ThresholdOptions):
    """Options of C{txrdma check}: the fabric, and the checks."""

    longdesc = (
        "Check a whole fabric: nodes that do not answer, links that are not active or have less width or "
        "speed than both ends have enabled, different MTUs, missing or duplicate LIDs and GUIDs, subnet "
        "managers, error counters, forwarding tables with dead ends or loops, P_Key and virtual lane "
        "tables that differ from the neighbour's, firmware older than that of similar nodes, hot modules, "
        "and ones that receive little light. Prints a line for each finding, also for what could not be "
        "read; the exit status is 0 without findings, 1 with findings, and 2 if the fabric could not be "
        "checked. With --load and no --device only the snapshot is checked, and nothing is sent; one of "
        "txrdma snapshot also has tables and counters."
    )
    failureStatus = 2
    optFlags = [
        ["no-errors", None, "Do not read counters."],
        ["no-tables", None, "Do not read forwarding tables, P_Keys, virtual lanes and firmware."],
        ["quiet", "q", "Print nothing if there are no findings."],
    ]
    optParameters = [
        ["topology", None, "", "File of the expected cables, in the format of ibnetdiscover.", fileName]
    ]


_UNREAD: Final = frozenset(
    (
        *("unreachable", "refused", "unprocessed", "incomplete", "left-out", "interrupted", "no-link"),
        *("counters-silent", "sm-silent", "adaptive-unknown"),
    )
)
"""Kinds of findings that mean that a part of the fabric was not read, and so not checked."""


async def run(reactor: Any, options: CommandOptions) -> None:
    """Run C{txrdma check}: sweep the fabric, print the findings, exit with 1 if there are any."""
    with endedBySignals():
        plan = readCables(options["topology"]) if options["topology"] else None
    thresholds = options.thresholds()

    def swept(fabric: Fabric) -> list[Finding]:
        return findings(fabric) + ([] if plan is None else list(cableFindings(fabric, plan)))

    isQueried = True
    if options["load"] and not options["device"]:
        recording = recorded(options["load"])
        fabric = nodeNames(options).put(recording.fabric)
        found = swept(fabric)
        if recording.answers:
            rpcs = RecordedRPCs(recording)

            async def count(nodes: list[Node]) -> CounterReport:
                return await CounterSurvey(rpcs, recording.endPort, thresholds).run(nodes)

            with endedBySignals():  # nothing waits for the reactor
                found += await _asked(rpcs, recording.endPort, fabric, options, thresholds, count)
        else:
            isQueried = False
            found += recordedManagers(fabric)
    else:
        with opened(reactor, options) as session:
            fabric = session.names.put(await sweeping.swept(session))

            async def countNow(nodes: list[Node]) -> CounterReport:
                return await counted(session, fabric, thresholds, nodes)

            found = swept(fabric)
            found += await _asked(
                *(session.agent, session.endPort, fabric, options, thresholds, countNow, reactor)
            )
    if options["json"]:
        printJSON(reportDict(fabric, found))
    elif found or not options["quiet"]:
        for each in found:
            print(f"{each.kind}: {each.where}: {each.text}")
        print(summary(fabric, found) + ("" if isQueried else "; the snapshot has no tables and counters"))
    if found:
        raise SystemExit(1)


async def _asked(
    rpcs: RPCs,
    endPort: MADEndPort,
    fabric: Fabric,
    options: CommandOptions,
    thresholds: Thresholds,
    count: Callable[[list[Node]], Awaitable[CounterReport]],
    reactor: Any = None,
) -> list[Finding]:
    """
    Return the findings that need requests to a swept fabric.

    @param count: reads the counters of nodes.
    @param reactor: handles Ctrl-C while routes are followed; None if it does not run meanwhile.
    """
    found = await managerFindings(rpcs, endPort, fabric)
    if not options["no-tables"]:
        tables = await TableSurvey(rpcs, endPort, fabric).run()
        found += unreadFindings(fabric, tables)
        found += filter(None, tableFindings(fabric, tables))
        with ProgressBar("following routes") as progress:
            cooperate = partial(cooperative, reactor, progress, len(fabric.nodes))
            found += await routeFindings(rpcs, endPort, fabric, tables.linear, cooperate, tables.adaptive)
    if not options["no-errors"]:
        # Nodes without a LID are findings already.
        found += counterFindings(await count([node for node in fabric.nodes.values() if node.lid]))
        found += await correctionFindings(rpcs, endPort, fabric, thresholds, options["outstanding"])
    return found


def summary(fabric: Fabric, found: list[Finding]) -> str:
    """Return a line with the numbers of nodes, links and findings."""
    switches = sum(node.isSwitch for node in fabric.nodes.values())
    links = sum(1 for _ in fabric.links())
    heading = f"{len(fabric.nodes)} nodes, {switches} of them switches, with {links} links"
    several = "s" if len(found) > 1 else ""
    unread = "; not all was read and checked" if any(each.kind in _UNREAD for each in found) else ""
    return f"{heading}: {f'{len(found)} finding{several}{unread}' if found else 'all is well'}"


def reportDict(fabric: Fabric, found: list[Finding]) -> dict[str, Any]:
    """Return the findings of a fabric for JSON."""
    return {
        "isWell": not found,
        "nodes": len(fabric.nodes),
        "switches": sum(node.isSwitch for node in fabric.nodes.values()),
        "links": sum(1 for _ in fabric.links()),
        "findings": [
            {
                "kind": each.kind,
                "where": each.where,
                "guid": None if each.guid is None else str(each.guid),
                "port": each.port,
                "text": each.text,
                "severity": adviceOn(each.kind).severity.name.lower(),
                "advice": adviceOn(each.kind).text,
            }
            for each in found
        ],
    }
