"""C{txrdma verify}: runs the contracts and measurements on RDMA devices, and writes a report."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from socket import has_dualstack_ipv6
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python import usage

from txrdma.commands.common import options as common
from txrdma.commands.common.devicedescriptions import chosen
from txrdma.commands.common.interruption import Interruption
from txrdma.commands.common.options import INTERRUPTED
from txrdma.commands.common.progress import ProgressBar
from txrdma.commands.common.rows import printJSON, showRows
from txrdma.verify.environment import examine
from txrdma.verify.host import Host
from txrdma.verify.report import asMarkdown, asReport, namesOf, redacted
from txrdma.verify.serving import PORT, Serving
from txrdma.verify.subject import TestedPort
from txrdma.verify.suites import SUITES
from txrdma.verify.supervisor import WorkerSupervisor
from txrdma.verify.worker import WorkerTask

PARTS = (*SUITES, "streams", "peer")


def _parts(text: str) -> tuple[str, ...]:
    """Parse names of parts, separated by commas."""
    names = tuple(text.split(","))
    if set(names) - set(PARTS):
        raise ValueError(f"expected some of {','.join(PARTS)}")
    return names


def _reports(prefix: str) -> tuple[Path, Path]:
    """Return the files of a report, as JSON and as text."""
    return Path(f"{prefix}.json"), Path(f"{prefix}.md")


class CommandOptions(common.CommandOptions):
    """Options of C{txrdma verify}: the devices, and what is run."""

    isCancelledByInterrupts = False
    longdesc = (
        "Verify an RDMA device: what txrdma's tests require of verbs, of connections (rdma:), of datagrams "
        "(btl:) and of management datagrams, conversations over smc:, rsocket: and btl: as over tcp:, and "
        "latency and bandwidth. Both ends are the device on this host, or --to is the second one. With "
        "--serve and --peer they are two hosts, which exchange data and measure. Nothing on the host is "
        "changed. Prints a table, and writes a report without names, addresses and GUIDs to PREFIX.json and "
        "PREFIX.md. The exit status is 1 if a check has failed."
    )
    optFlags = [
        ["json", None, "JSON instead of tables."],
        ["quick", "q", "A part of the checks, in a few seconds."],
        ["serve", None, "Serve another host, until Ctrl-C."],
        ["full", None, "Report with names, addresses and GUIDs."],
    ]
    optParameters = [
        ["device", "d", "soft", "Device, such as pyverbs:mlx5_0."],
        ["port", "p", 1, "Port number of the device.", int],
        ["to", None, None, "Device of the other end. [default: the same device]"],
        ["to-port", None, None, "Port number of the other end. [default: that of the device, or 1]", int],
        ["peer", None, None, "Name or address of the host with --serve."],
        ["tcp-port", None, PORT, "TCP port of --serve, which also uses any free ports.", int],
        ["parts", None, None, f"Some of {','.join(PARTS)}. [default: all]", _parts],
        ["patience", None, 1.0, "Factor for time limits, on a slow host.", float],
        ["output", "o", "txrdma-verify", "PREFIX of the report; - for none."],
    ]

    def postOptions(self) -> None:
        self.checkRanges(
            ("port", 1, 255), ("to-port", 1, 255), ("tcp-port", 0, 65535), ("patience", 0.01, 1000)
        )
        if self["output"] != "-" and not self["serve"]:
            self._checkOutput()
        if self["serve"] and (self["peer"] or self["to"] or self["parts"]):
            raise usage.UsageError("--serve is for one device, without --peer, --to and --parts")
        if self["peer"] and (self["to"] or self["parts"]):
            raise usage.UsageError("with --peer the other end is that host's, and there is one part")

    def _checkOutput(self) -> None:
        """Refuse a report that can't be written, before the run."""
        for path in _reports(self["output"]):
            try:
                file = Path(os.path.realpath(path))
            except OSError:  # the working directory was deleted
                file = Path("missing", path)
            if not os.path.isdir(file.parent):
                raise usage.UsageError(f"--output {self['output']}: its folder does not exist")
            if os.path.isdir(file):
                raise usage.UsageError(f"--output {path}: a folder has this name")
            written = file
            try:
                file.stat()
            except FileNotFoundError:
                written = file.parent
            except OSError as error:
                raise usage.UsageError(f"--output {path}: {error.strerror}") from error
            if not os.access(written, os.W_OK):
                raise usage.UsageError(
                    f"--output {self['output']}: there is no permission to write here; - is for none"
                )

    def tasks(self) -> list[WorkerTask]:
        device = chosen(self["device"])
        other = chosen(self["to"]) if self["to"] else device
        port = self["to-port"] or (1 if self["to"] else self["port"])
        ends, ports, isQuick = (device, other), (self["port"], port), bool(self["quick"])
        patience = self["patience"]
        if self["peer"]:
            return [WorkerTask("peer", ends, ports, 0, isQuick, self["peer"], self["tcp-port"], patience)]
        return [
            WorkerTask(part, ends, ports, 0, isQuick, patience=patience) for part in self["parts"] or PARTS
        ]


async def run(reactor: Any, options: CommandOptions) -> None:
    """Run C{txrdma verify}."""
    if options["serve"]:
        await _serve(reactor, options)
        return
    tasks = options.tasks()
    named = dict.fromkeys(zip(tasks[0].devices, tasks[0].ports, strict=True))
    ends = [TestedPort.read(reactor, *each) for each in named]
    host = Host()
    problems = examine(host)
    with ProgressBar("verify") as bar:
        supervisor = WorkerSupervisor(reactor, bar.named)
        async with Interruption(reactor) as interruption:
            interruption.then = supervisor.interrupt
            await supervisor.run(tasks)
    found = asReport(
        ends, problems, supervisor.checks, supervisor.measurements, supervisor.isInterrupted, host
    )
    if not options["full"]:
        found = redacted(found, namesOf(ends, host))
    _write(found, options)
    if interruption.has:
        raise SystemExit(INTERRUPTED)
    if found["failures"] or not supervisor.checks:
        raise SystemExit(1)


async def _serve(reactor: Any, options: CommandOptions) -> None:
    """Serve clients of other hosts until Ctrl-C."""
    end = TestedPort.read(reactor, chosen(options["device"]), options["port"])
    over: Deferred[None] = Deferred()
    async with Interruption(reactor) as interruption:
        interruption.then = lambda: over.callback(None)
        serving = Serving(reactor, end, "::" if has_dualstack_ipv6() else "0.0.0.0")
        port = await serving.start(options["tcp-port"])
        print(f"serving: txrdma verify --peer ADDRESS --tcp-port {port}", file=sys.stderr, flush=True)
        for kind, reason in serving.offer["missing"].items():
            print(f"without {kind}: {reason}", file=sys.stderr, flush=True)
        await over
        await serving.stop()


def _write(found: dict[str, Any], options: CommandOptions) -> None:
    """Print a report, and write its files."""
    if options["json"]:
        printJSON(found)
    else:
        _print(found)
    if options["output"] != "-":
        texts = (json.dumps(found, indent=2) + "\n", asMarkdown(found))
        for path, text in zip(_reports(options["output"]), texts, strict=True):
            path.write_text(text, encoding="utf-8")
            print(f"report: {path}", file=sys.stderr)


def _print(found: dict[str, Any]) -> None:
    rows = [(part, *counts.values()) for part, counts in found["parts"].items()]
    showRows(("part", "passed", "failed", "skipped"), rows)
    if found["measurements"]:
        print()
        showRows(
            ("measured", "bytes", "value", "unit"), [tuple(row.values()) for row in found["measurements"]]
        )
    for failure in found["failures"]:
        print(f"\n{failure['check']}: {failure['text']}")
        if failure["explanation"]:
            print(f"  known: {failure['explanation']}")
    if found["failures"]:
        print("\nA slow or busy host may exceed time limits, which --patience multiplies.")
    needed = [each for each in found["problems"] if each["isNeeded"]]
    for each in needed:
        print(f"\nhost: {each['where']}: {each['text']}\n  {each['fix']}")
    if found["isInterrupted"]:
        print("\ninterrupted: the report is partial")
