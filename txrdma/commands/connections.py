"""C{txrdma connections}: live connections of C{smc:} endpoints in all processes of this user."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, TYPE_CHECKING

from txrdma.commands.common.tables import lines, size
from txrdma.commands.common.watching import entriesBy, processTable, watch, WatchingOptions
from txrdma.smc.status.control import NAMESPACE
from txrdma.unix.answers import IUNIXReactor

if TYPE_CHECKING:
    from rich.table import Table


class CommandOptions(WatchingOptions):
    """Options of C{txrdma connections}: interval, timeout and level of detail."""

    longdesc = "List the live connections of smc: endpoints in all processes of this user on this host."
    optFlags = [["debug", "d", "Also show tokens, flags and the ends of links, as smcss -d and -R do."]]


def flat(answers: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return entries for JSON and tables: connections, silent peers, and processes that did not answer."""
    return entriesBy(answers, lambda answer: [*answer.get("connections", ()), *answer.get("silent", ())])


def _traffic(entry: dict[str, Any]) -> str:
    """Return the table cell with a connection's traffic and the cursors of its ring buffers."""
    parts = [f"sent {size(entry.get('bytesSent'))}, received {size(entry.get('bytesReceived'))}"]
    if entry.get("mode") != "TCP" and "writes" in entry:  # the kernel's stack does not count them
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


def _details(entry: dict[str, Any]) -> list[str]:
    """Return the details that C{smcss -d} and C{-R} add: inode, tokens, flags, and the ends of the link."""
    parts = [f"inode {entry['inode']}"] if entry.get("inode") else []
    if "token" in entry:
        peers = f", peer's {entry['peerToken']:08x}" if "peerToken" in entry else ""
        parts.append(f"token {entry['token']:08x}{peers}")
    if "backlog" in entry:
        parts.append(f"{size(entry['backlog'])} unsent")
    if entry.get("blocks"):
        parts.append(f"waited {entry['blocks']} times for buffer space, {entry['blockedSeconds']:.3f} s")
    for direction, flags in entry.get("flags", {}).items():
        parts.append(f"flags {direction}: {', '.join(flags) or 'none'}")
    if "link" in entry:
        link = entry["link"]
        number = f"link {link['number']}, " if "number" in link else ""
        parts += [f"{number}port {link['port']}, {link['gid']}", f"to {link['peerGID']}"]
    return parts


def connectionsTable(entries: Sequence[dict[str, Any]], isDetailed: bool = False) -> Table:
    """Return a table of the entries that L{flat} returns."""
    columns = ("connection", "mode", "traffic and cursors")
    return processTable(columns, partial(_cells, isDetailed=isDetailed), entries)


def _cells(entry: dict[str, Any], isDetailed: bool) -> tuple[str, ...]:
    if "mode" not in entry:
        pause = f"no answer: not queried for {entry['seconds']:.0f} s more"
        return f"to {entry['peer']}", "TCP", pause
    mode, reason, diagnosis = entry["mode"], entry.get("fallbackReason"), entry.get("peerDiagnosis")
    state = "" if mode == "TCP" else f" {entry.get('state')} {entry.get('shutdown', '')}"
    return (
        lines(entry.get("role"), entry.get("local"), f"to {entry.get('peer')}"),
        lines(
            f"{mode}{state}".rstrip(),
            entry.get("eid") and f"version {entry.get('version')} by {entry.get('eid')}",
            reason and f"reason: {reason}",
            diagnosis and f"peer's diagnosis: {diagnosis}",
            f"{entry.get('device')} {entry.get('route')}".strip(),
            entry.get("linkGroup"),
        ),
        lines(_traffic(entry), *(_details(entry) if isDetailed else ())),
    )


async def run(reactor: IUNIXReactor, options: CommandOptions) -> None:
    """Run C{txrdma connections}, once or repeatedly."""
    table = partial(connectionsTable, isDetailed=bool(options["debug"]))
    empty = "No process of yours has a connection of an smc: endpoint."
    await watch(reactor, options, NAMESPACE, flat, table, empty)
