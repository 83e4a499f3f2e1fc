"""
C{txrdma connections}: what the connections of C{smc:} endpoints in all processes of this user are doing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TYPE_CHECKING

from twisted.internet.task import deferLater
from twisted.python import usage

from txrdma.commands.options import TellingOptions
from txrdma.commands.tables import lines, makeTable, show, size
from txrdma.smc.insight.control import Answer, askAll, IReactor

if TYPE_CHECKING:
    from rich.table import Table


class CommandOptions(TellingOptions):
    """How often, and with how much patience."""

    longdesc = "Tell the live connections of smc: endpoints in all processes of this user on this host."
    optFlags = [["watch", "w", "Tell again and again, until Ctrl-C."]]
    optParameters = [
        ["interval", "i", 1.0, "Seconds between two looks of --watch.", float],
        ["timeout", "t", 3.0, "Seconds to wait for a process that does not answer.", float],
    ]

    def postOptions(self) -> None:
        for name in ("interval", "timeout"):
            if not 0.05 <= self[name] <= 86400:
                raise usage.UsageError(f"--{name} {self[name]:g}: say from 0.05 to 86400 seconds")


def flat(answers: Sequence[Answer]) -> list[dict[str, object]]:
    """One entry for each connection and silent peer, or for a process that did not answer."""
    entries: list[dict[str, object]] = []
    for answer in answers:
        if answer.error:
            entries.append({"pid": answer.pid, "error": answer.error})
        entries.extend(
            {"pid": answer.pid, "command": answer.command, **connection} for connection in answer.connections
        )
        entries.extend({"pid": answer.pid, "command": answer.command, **peer} for peer in answer.silent)
    return entries


def _traffic(entry: dict[str, Any]) -> str:
    """What has gone through a connection, and where its ring buffers stand."""
    parts = [f"sent {size(entry.get('bytesSent'))}, received {size(entry.get('bytesReceived'))}"]
    if entry.get("mode") != "TCP" and "writes" in entry:  # the kernel's own stack does not count them
        parts += [
            f"{entry.get('writes')} RDMA writes",
            f"CDC {entry.get('messagesSent')} sent, {entry.get('messagesReceived')} received",
        ]
    cursors = entry.get("cursors")
    if cursors:
        ours, peers = size(entry["bufferSize"]), size(entry["peerBufferSize"])
        parts += [
            f"in {cursors['arrived']}, read {cursors['consumed']}, ring {ours}",
            f"out {cursors['produced']}, read {cursors['peerConsumed']}, ring {peers}",
        ]
    return "\n".join(parts)


def connectionsTable(entries: Sequence[dict[str, Any]]) -> Table:
    """What L{flat} gives, as a table."""
    from rich.markup import escape

    table = makeTable("process", "connection", "mode", "traffic and cursors")
    for entry in entries:
        if "error" in entry:
            table.add_row(str(entry["pid"]), escape(entry["error"]))
            continue
        if "mode" not in entry:
            process = lines(entry["pid"], " ".join(entry["command"][1:])[:40])
            told = f"no answer: not asked for {entry['seconds']:.0f} s more"
            table.add_row(*map(escape, (process, f"to {entry['peer']}", "TCP", told)))
            continue
        mode, reason, diagnosis = entry.get("mode"), entry.get("fallbackReason"), entry.get("peerDiagnosis")
        cells = (
            lines(entry["pid"], " ".join(entry["command"][1:])[:40]),
            lines(entry.get("role"), entry.get("local"), f"to {entry.get('peer')}"),
            lines(
                mode if mode == "TCP" else f"{mode} {entry.get('state')}",
                entry.get("eid") and f"version {entry.get('version')} by {entry.get('eid')}",
                reason and f"because of {reason}",
                diagnosis and f"peer said {diagnosis}",
                f"{entry.get('device')} {entry.get('route')}".strip(),
                entry.get("linkGroup"),
            ),
            _traffic(entry),
        )
        table.add_row(*map(escape, cells))
    return table


async def carryOut(reactor: IReactor, options: CommandOptions) -> None:
    """C{txrdma connections}: once, or again and again."""
    while True:
        entries = flat(await askAll(reactor, options["timeout"]))
        if options["json"]:
            print(json.dumps(entries) if options["watch"] else json.dumps(entries, indent=2), flush=True)
        elif entries:
            show(connectionsTable(entries))
        else:
            print("No process of yours has a connection of an smc: endpoint.", flush=True)
        if not options["watch"]:
            return
        await deferLater(reactor, options["interval"])
