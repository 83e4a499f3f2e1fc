"""C{txrdma errors}: lists ports with error counters above their thresholds."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Final

from twisted.internet.defer import CancelledError
from twisted.python import usage

from txrdma.commands.common.interruption import endedBySignals
from txrdma.commands.common.progress import ProgressBar
from txrdma.commands.common.rows import hexGUID, printJSON
from txrdma.commands.common.session import confirmed, Session, TARGET
from txrdma.commands.common.sweeping import (
    asking,
    endWith,
    INTERRUPTED_SWEEP,
    movedNodes,
    PartOptions,
    SweepOptions,
    swept,
)
from txrdma.commands.common.values import fileName
from txrdma.commands.links import linkText
from txrdma.commands.nodes import chosen
from txrdma.fabric.errorcounters import (
    ALL_PORTS,
    COMMON,
    Counted,
    CounterReport,
    CounterSurvey,
    readThresholds,
    shownName,
    Thresholds,
)
from txrdma.fabric.model import Fabric, Problem
from txrdma.fabric.nodenames import NodeNames


class ThresholdOptions(SweepOptions):
    """Base of the options of commands that compare error counters with thresholds."""

    optFlags = [["suppress-common", None, "Ignore counters that grow in healthy fabrics, too."]]
    optParameters = [
        [
            *("thresholds", "T", ""),
            *("File: lines as PortXmitDiscards=100. [default: that of infiniband-diags]", fileName),
        ],
        ["suppress", None, "", "Counters to ignore, separated by commas."],
    ]

    def thresholds(self) -> Thresholds:
        """Return the thresholds of the options; raise C{InvalidRequest} for an invalid file or counter."""
        names = [name for name in self["suppress"].split(",") if name.strip()]
        with endedBySignals():
            thresholds = readThresholds(self["thresholds"])
        return thresholds.suppressing([*names, *(COMMON if self["suppress-common"] else ())])


class CommandOptions(ThresholdOptions, PartOptions):
    """Options of C{txrdma errors}: the counters and the nodes."""

    longdesc = (
        "Read the error counters of all ports, and list those above their thresholds, as ibqueryerrors "
        "does. Counters without a threshold are listed if they are not zero, except PortXmitWait. The "
        "exit status is 1 if there are errors, or nodes that do not answer. With a TARGET, only the "
        "target and the nodes at most --hops links away are queried. With --load of a snapshot with "
        f"counters and no --device nothing is sent. {TARGET}."
    )
    optFlags = [
        ["data", None, "Also show the data and packet counters of ports with errors."],
        ["counters", None, "Show only the data and packet counters, of all ports."],
        ["details", None, "Also show the kinds of errors and discards, if the port counts them."],
        ["report-port", "r", "Also show the link of each listed port."],
        ["clear", "k", "Clear the error counters of all ports after reading them, also those not listed."],
        ["clear-data", "K", "Clear the data and packet counters of all ports, also without showing them."],
        ["yes", "y", "Do not ask for confirmation before counters are cleared."],
        ["hosts", None, "Only channel adapters."],
        ["switches", None, "Only switches."],
        ["routers", None, "Only routers."],
    ]

    def postOptions(self) -> None:
        super().postOptions()
        if self["clear"] and self["counters"]:
            raise usage.UsageError("--clear: with --counters error counters are not read")
        if (self["clear"] or self["clear-data"]) and self["load"]:
            raise usage.UsageError("--clear: nodes of a snapshot may have other LIDs now; omit --load")


async def run(reactor: Any, options: CommandOptions) -> None:
    """Run C{txrdma errors}: read, print and clear counters, exit with 1 if there are errors."""
    thresholds = options.thresholds()
    clear = " ".join(word for word, flag in (("errors", "clear"), ("data", "clear-data")) if options[flag])
    if clear:
        confirmed(f"clear the counters of {clear.replace(' ', ' and ')} of {_where(options)}", options["yes"])
    with asking(reactor, options) as session:
        fabric = await swept(session, withLinks=options["report-port"])
        report = await counted(
            *(session, fabric, thresholds),
            nodes=chosen(fabric, options),
            withData=bool(options["data"]),
            dataOnly=bool(options["counters"]),
            withDetails=bool(options["details"]),
            clear=clear,
        )
    if options["json"]:
        printJSON(reportDict(report, session.names))
    else:
        for line in described(report, session.names, thresholds, options["counters"], options["report-port"]):
            print(line)
    endWith(fabric)
    if report.bad or report.silent:
        raise SystemExit(1)


def _where(options: CommandOptions) -> str:
    target, hops = options["target"], options["hops"]
    if not target:
        return "all ports"
    return f"the ports of {target}{f' and all nodes {hops} hops around it' if hops else ''}"


async def counted(
    session: Session, fabric: Fabric, thresholds: Thresholds, nodes: Any = None, **options: Any
) -> CounterReport:
    """
    Read the counters of the given nodes, by default of all nodes; show progress on a terminal.

    After an interruption, counters that were cleared are returned, and the fabric has a problem.
    """
    wanted = list(fabric.nodes.values() if nodes is None else nodes)
    isClearing = bool(options.get("clear"))
    # LIDs may have been assigned anew since the sweep.
    others = dict(await movedNodes(session, wanted)) if isClearing else {}
    with ProgressBar("asking for counters") as progress:
        survey = CounterSurvey(
            *(session.readings, session.endPort, thresholds),
            progress=progress if progress.isShown else None,
            maxOutstanding=session.options["outstanding"],
            **options,
        )
        try:
            report = await survey.run(node for node in wanted if node not in others)
        except CancelledError:
            text = f"the counters of {survey.done} nodes were read before"
            if not isClearing:
                print(f"{INTERRUPTED_SWEEP}: {text}; they are not shown", file=sys.stderr)
                raise
            fabric.problems.append(Problem(INTERRUPTED_SWEEP, "clearing", text))
            return survey.report
    if not isClearing:
        others = dict(await movedNodes(session, {each.node: None for each in report.ports}))
        report.ports = [each for each in report.ports if each.node not in others]
    report.silent += others.items()
    if report.silent:
        await session.checkLink()
    return report


def described(
    report: CounterReport,
    names: NodeNames,
    thresholds: Thresholds,
    dataOnly: bool = False,
    withLinks: bool = False,
) -> Iterator[str]:
    """Yield the lines of a report, in the format of ibqueryerrors."""
    last = None
    for each in report.ports:
        name = names.name(each.node.guid, each.node.description)
        if each.node is not last:
            last = each.node
            yield f'{"Data Counters" if dataOnly else "Errors"} for {int(each.node.guid):#x} "{name}"'
        port = each.node.port(0 if each.number == ALL_PORTS else each.number)
        number = "ALL" if each.number == ALL_PORTS else each.number
        yield f"   GUID {int(port.guid):#x} port {number}: {' '.join(_values(each))}"
        if withLinks and each.number != ALL_PORTS:
            yield f"       Link info: {linkText(port, names)}"
    for node, why in report.silent:
        yield f'No answer from {hexGUID(node.guid)} "{names.name(node.guid, node.description)}": {why}'
    bad = {each.node.guid for each in report.bad}
    yield ""
    yield f"## Summary: {report.nodesChecked} nodes checked, {len(bad)} bad nodes found"
    ports = f"{report.portsChecked} ports checked, {len(report.bad)} ports have errors beyond threshold"
    yield f"##          {ports}"
    limits = "".join(f"[{shownName(name)} = {limit}]" for name, limit in thresholds.limits.items())
    yield f"## Thresholds: {limits}".rstrip()
    yield f"## Suppressed: {' '.join(map(shownName, sorted(thresholds.suppressed)))}".rstrip()


_UNITS: Final = ("", "K", "M", "G", "T", "P", "E")


def _values(each: Counted) -> Iterator[str]:
    for name, value in each.errors.items():
        yield f"[{shownName(name)} == {_readable(value, 1) if each.isWide else value}]"
    for name, value in each.details.items():
        yield f"[{shownName(name)} == {value}]"
    for name, value in each.data.items():
        if not value and each.errors:
            continue
        yield f"[{shownName(name)} == {_readable(value, 4 if name.endswith('Data') else 1)}]"


def _readable(value: int, size: int) -> str:
    """Return a count, and its approximate amount for units of C{size} bytes: C{"4096 (16.000KB)"}."""
    scaled, unit = float(value * size), 0
    while (scaled > 1024 or (scaled == 1024 and size == 1)) and unit < len(_UNITS) - 1:
        scaled /= 1024
        unit += 1
    return f"{value} ({scaled:5.3f}{_UNITS[unit]}{'B' if size > 1 else ''})"


def reportDict(report: CounterReport, names: NodeNames) -> dict[str, Any]:
    """Return a report for JSON. The port of a sum over all ports is null."""
    return {
        "nodesChecked": report.nodesChecked,
        "portsChecked": report.portsChecked,
        "ports": [
            {
                "guid": str(each.node.guid),
                "name": names.name(each.node.guid, each.node.description),
                "port": None if each.number == ALL_PORTS else each.number,
                "errors": each.errors,
                "details": each.details,
                "data": each.data,
            }
            for each in report.ports
        ],
        "silent": [
            {"guid": str(node.guid), "name": names.name(node.guid, node.description), "reason": why}
            for node, why in report.silent
        ],
    }
