"""C{txrdma linkgroups}: SMC-R link groups in all processes of this user, with their links and buffers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from txrdma.commands.common.tables import lines, size
from txrdma.commands.common.watching import entriesBy, processTable, watch, WatchingOptions
from txrdma.smc.status.control import NAMESPACE
from txrdma.unix.answers import IUNIXReactor


class CommandOptions(WatchingOptions):
    """Options of C{txrdma linkgroups}: interval and timeout."""

    longdesc = (
        "List the link groups of txrdma's own SMC-R stack in all processes of this user on this host: "
        "role, version, EID, peer, links with both ends, connections, and buffer usage. For groups of "
        "the kernel's stack, use smcr linkgroup."
    )


def flat(answers: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return entries for JSON and tables: one for each link group, and process that did not answer."""
    return entriesBy(answers, lambda answer: answer.get("linkGroups", ()))


def _terms(group: dict[str, Any]) -> str:
    version = f"2.{group['release']}" if group["version"] > 1 else str(group["version"])
    return lines(
        f"{group['role']}, {group['state']}",
        f"version {version}" + (f" by {group['eid']}" if group["eid"] else ""),
        "" if group["isDirect"] else "behind a router",
        f"{group['connections']} of {group['maxConnections']} connections",
    )


def _link(link: dict[str, Any]) -> str:
    return lines(
        f"{link['number']} {link['state']}: {link['device']} port {link['port']}, {link['route']}",
        f"  {link['gid']} QP {link['qpn']:#x}",
        f"  to {link['peerGID']} QP {link['peerQPN']:#x}",
        f"  {link['connections']} connections, MTU {link['mtu']}, {link['messagesSent']} messages sent",
    )


def _buffers(buffers: Sequence[dict[str, Any]]) -> str:
    return lines(
        *(f"{each['used']} of {each['elements']} rings of {size(each['elementSize'])}" for each in buffers)
    )


def _cells(entry: dict[str, Any]) -> tuple[str, ...]:
    return (
        lines(entry["name"], entry["peer"] and f"to {entry['peer']}", f"peer ID {entry['peerID']}"),
        _terms(entry),
        "\n".join(map(_link, entry["links"])),
        _buffers(entry["buffers"]),
    )


groupsTable = partial(processTable, ("group", "terms", "links", "buffers"), _cells)


async def run(reactor: IUNIXReactor, options: CommandOptions) -> None:
    """Run C{txrdma linkgroups}, once or repeatedly."""
    empty = "No process of yours has a link group of SMC-R."
    await watch(reactor, options, NAMESPACE, flat, groupsTable, empty)
