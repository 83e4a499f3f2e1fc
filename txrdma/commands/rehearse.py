"""C{txrdma rehearse}: rehearses faults and alerts of a fabric in a simulation, or over its history."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final

from twisted.python import usage

from txrdma.commands.blast_radius import chosenJobs
from txrdma.commands.common.interruption import endedBySignals
from txrdma.commands.common.options import CommandOptions as BaseOptions
from txrdma.commands.common.progress import ProgressBar, worked
from txrdma.commands.common.rehearsal import Expectation, Happening, Rehearsal
from txrdma.commands.common.rehearsalfile import readRehearsal, RehearsalFile
from txrdma.commands.common.rows import printJSON
from txrdma.commands.common.sweeping import printProblems, recorded
from txrdma.commands.common.values import fileName
from txrdma.error import InvalidRequest
from txrdma.fabric.blastradius import BlastRadius, Element, Loss
from txrdma.fabric.lossjson import lossDict
from txrdma.fabric.nodenames import NodeNames
from txrdma.fabric.recording import Recording
from txrdma.fabric.slurm import hostList
from txrdma.fabric.slurmjobs import HostsByName, SlurmJob
from txrdma.fabric.texts import listed
from txrdma.monitor.config import MonitorConfig, parseConfig, readConfig
from txrdma.monitor.series.historystore import HistoryStore
from txrdma.monitor.whatif import PastAlert, sentByKind, WhatIf
from txrdma.sim.faultplan import Fault

_LEVEL: Final = "minutes"
_BACKGROUND_SECONDS: Final = 86400
_DAYS: Final = 28.0
_MOST_DAYS: Final = 1100.0
_NAMES: Final = NodeNames({})
_TEXT: Final = "An example is in the documentation: docs/monitor-rehearsals.md."


class CommandOptions(BaseOptions):
    """Options of C{txrdma rehearse}: the planned faults, the fabric, its configuration and its history."""

    synopsis = "[options] [RULES]"
    longdesc = (
        "Run the fabric monitor on a simulation of the fabric of a snapshot, with the faults in the file "
        "RULES (TOML), and print which findings it raises and which alerts it would send, and when. The "
        "exit status is 0 if all expected findings were raised, 1 if one was not, and 2 if the rehearsal "
        "failed. Faults of links and nodes are listed with the hosts that they cut off, each by itself, and "
        "with the Slurm jobs on these. Without RULES, print the alerts that the configuration would send "
        "by a history. "
        f"Nothing is sent to a fabric, and no alert is sent. {_TEXT}"
    )
    failureStatus = 2
    optFlags = [
        ["strict", None, "The exit status is also 1 if there are findings that were not expected."],
        ["squeue", None, "Read the jobs of Slurm by running squeue."],
        ["json", None, "JSON instead of text."],
    ]
    optParameters = [
        ["load", "l", "", "Snapshot of the fabric, or net file. [default: that of RULES]", fileName],
        ["config", "c", "", "Configuration of the monitor (TOML). [default: that of RULES]", fileName],
        ["fabric", None, "", "Name of the fabric, if the configuration has several."],
        ["history", None, "", "History: a file or URL. With RULES, its traffic and errors are simulated."],
        ["jobs", "j", "", "Read the jobs of Slurm from a file with the output of squeue.", fileName],
        ["days", None, _DAYS, "Without RULES: days of the history, the last ones.", float],
    ]

    def parseArgs(self, rules: str = "") -> None:
        self["rules"] = rules

    def postOptions(self) -> None:
        self.checkRanges(("days", 0.01, _MOST_DAYS))
        if not self["rules"] and not self["history"]:
            raise usage.UsageError("expected RULES, or --history for the alerts of the past")
        for name in ("strict", "squeue", "jobs"):
            if self[name] and not self["rules"]:
                raise usage.UsageError(f"--{name} is for RULES")
        if self["jobs"] and self["squeue"]:
            raise usage.UsageError("--jobs excludes --squeue")


def configOf(path: str, fabric: str) -> MonitorConfig:
    """
    Return the configuration of one fabric; the default one without a path.

    @raise InvalidRequest: it has mistakes, or the fabric is not in it.
    """
    config = readConfig(path) if path else parseConfig("")
    if not config.hasSections and not fabric:
        return config
    for one in config.fabrics:
        if one.fabric == fabric:
            return one
    names = ", ".join(one.fabric for one in config.fabrics) or "none"
    raise InvalidRequest(f"--fabric {fabric or '(none)'}: the fabrics of the configuration are {names}")


async def run(reactor: Any, options: CommandOptions) -> None:
    """Run C{txrdma rehearse}: rehearse the faults, or evaluate the history."""
    if options["rules"]:
        await _rehearse(reactor, options)
    else:
        await _evaluate(reactor, options)


# Rehearsals.


async def _rehearse(reactor: Any, options: CommandOptions) -> None:
    with endedBySignals():
        file = readRehearsal(options["rules"])
        config = configOf(options["config"] or file.config, options["fabric"])
    jobs = await chosenJobs(reactor, options)
    snapshot = options["load"] or file.snapshot
    if not snapshot:
        raise InvalidRequest(f"{options['rules']} has no snapshot: give --load; txrdma snapshot writes one")
    recording = recorded(snapshot)
    background = _background(options["history"] or file.history)
    with endedBySignals():
        rehearsal = Rehearsal(recording, config, file.plan, time.time(), background)
    with ProgressBar("rehearsing") as progress:
        losses = await worked(reactor, _losses(rehearsal, recording, jobs), progress)
        await worked(reactor, rehearsal.run(), progress)
    if options["json"]:
        lost = [{"fault": str(fault), **lossDict([one], loss, _NAMES, jobs)} for fault, one, loss in losses]
        printJSON({**_rehearsalDict(rehearsal, file), "losses": lost})
    else:
        for happening in rehearsal.happenings:
            print(_line(happening))
        for fault, _element, loss in losses:
            print(f"{fault}: {_lossText(loss, jobs)}")
        for line in _summary(rehearsal, file):
            print(line)
    printProblems(recording.fabric)
    tables = recording.linearTables()
    unread = [str(node) for node in recording.fabric.switches() if node.guid not in tables] if tables else []
    if unread:
        text = f"the forwarding tables of {listed(unread)} were not read: simulated ones replace them"
        print(text, file=sys.stderr)
    if rehearsal.missing or (options["strict"] and rehearsal.unexpected):
        raise SystemExit(1)


def _losses(
    rehearsal: Rehearsal, recording: Recording, jobs: Sequence[SlurmJob]
) -> Generator[None, None, list[tuple[Fault, Element, Loss]]]:
    """Compute, in short steps, what is lost by each fault of a link or node, while it lasts, by itself."""
    fabric = recording.fabric
    radius, hosts = (
        BlastRadius(fabric, recording.linearTables()),
        HostsByName.among(fabric.nodes.values(), _NAMES),
    )
    mapped = [hosts.of(job) for job in jobs]
    yield from radius.steps()
    found = []
    for fault, element in rehearsal.elements(fabric):
        if radius.has(element):
            found.append((fault, element, (yield from radius.without([element], mapped))))
    return found


def _lossText(loss: Loss, jobs: Sequence[SlurmJob]) -> str:
    names = hostList(node.description or str(node.guid) for node in loss.cutOff)
    cutOff = "1 host" if len(loss.cutOff) == 1 else f"{len(loss.cutOff)} hosts"
    text = f"{cutOff} cut off: {names}" if loss.cutOff else "no host is cut off"
    if not jobs:
        return text
    stopped = [jobs[one.job].identifier for one in loss.jobs if one.cutOff]
    return f"{text}; {len(stopped)} of {len(jobs)} jobs lose hosts: {listed(stopped) or 'none'}"


def _background(where: str) -> dict[Any, dict[str, float]]:
    """Return the rates of all counters in the last day of a history; empty without a history."""
    if not where:
        return {}
    with endedBySignals():
        store = HistoryStore(where, isReader=True)
        try:
            span = store.span(_LEVEL)
            return {} if span is None else store.rates(span[1] - _BACKGROUND_SECONDS, span[1], _LEVEL)
        finally:
            store.close()


def _clock(seconds: float) -> str:
    sign, whole = "-" if seconds < 0 else "", round(abs(seconds))
    return f"{sign}{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def _line(one: Happening) -> str:
    head = f"{_clock(one.at):>9}  {one.what:<13}"
    if one.what == "fault":
        return f"{head}  {one.text}"
    end = "" if one.isExpected is None else " [expected]" if one.isExpected else " [not expected]"
    return f"{head}  {one.severity} {one.kind}: {one.where}: {one.text}{end}"


def _summary(rehearsal: Rehearsal, file: RehearsalFile) -> Iterator[str]:
    for one in rehearsal.missing:
        what = "neither raised nor sent" if one.isNotified else "not raised"
        yield f"missing: {one}, because of {one.fault}, was {what}"
    expected = len(file.plan.expectations)
    yield (
        f"{expected - len(rehearsal.missing)} of {expected} expectations were met; "
        f"{len(rehearsal.unexpected)} findings were not expected"
    )


def _rehearsalDict(rehearsal: Rehearsal, file: RehearsalFile) -> dict[str, Any]:
    def described(one: Expectation) -> dict[str, Any]:
        fault = one.fault
        return {
            "kind": one.kind,
            "where": one.where or fault.where,
            "within": one.withinSeconds,
            "notified": one.isNotified,
            "fault": str(fault),
            "at": fault.atSeconds,
        }

    return {
        "isWell": not rehearsal.missing,
        "happenings": [asdict(one) for one in rehearsal.happenings],
        "expectations": [described(one) for one in file.plan.expectations],
        "missing": [described(one) for one in rehearsal.missing],
        "unexpected": len(rehearsal.unexpected),
    }


# The past.


async def _evaluate(reactor: Any, options: CommandOptions) -> None:
    with endedBySignals():
        config = configOf(options["config"], options["fabric"])
        fabric = recorded(options["load"]).fabric if options["load"] else None
        store = HistoryStore(options["history"], isReader=True)
    try:
        span = store.span(_LEVEL)
        if span is None:
            raise InvalidRequest(f"history {options['history']}: it has no minutes yet")
        begin, end = max(span[0], span[1] - options["days"] * 86400), span[1]
        whatIf = WhatIf(store, config, begin, end, fabric)
        with ProgressBar("evaluating hours") as progress:
            await worked(reactor, whatIf.run(), progress)
    finally:
        store.close()
    would, were = sentByKind(whatIf.alerts), whatIf.sent
    if options["json"]:
        alerts = [{"at": one.at, "raised": one.alert.isRaised, **one.alert.finding} for one in whatIf.alerts]
        printJSON({"begin": begin, "end": end, "alerts": alerts, "kinds": would, "sent": were})
        return
    for one in whatIf.alerts:
        print(_alertLine(one))
    print(f"From {_date(begin)} to {_date(end)}:")
    for kind in sorted({*would, *were}):
        print(f"{kind}: {would.get(kind, 0)} alerts by this configuration, {were.get(kind, 0)} were sent")
    print(f"{sum(would.values())} alerts by this configuration, {sum(were.values())} were sent")


def _date(at: float) -> str:
    return datetime.fromtimestamp(at).isoformat(" ", "seconds")


def _alertLine(one: PastAlert) -> str:
    found = one.alert.finding
    head = f"{_date(one.at)}  {'alert' if one.alert.isRaised else 'cleared':<7}"
    return f"{head}  {found['severity']} {found['kind']}: {found['where']}: {found['text']}"
