"""C{txrdma pnet}: the table of physical networks, by which C{device=auto} finds an interface's RDMA port."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import Any, Final

from twisted.python import usage

from txrdma.commands.common import options as commandOptions
from txrdma.commands.common.interruption import endedBySignals
from txrdma.commands.common.options import columns
from txrdma.commands.common.rows import printJSON
from txrdma.commands.common.values import fileName
from txrdma.error import InvalidRequest
from txrdma.ports.pnet import changing, kernelTable, Networks, readText, tableFile, writeText
from txrdma.ports.pnettable import parseTable, PNETEntry, Table, withEntry, withoutEntries

_SHOW, _ADD, _REMOVE = "show", "add", "remove"
_COUNTS: Final[dict[str, tuple[int, float]]] = {_SHOW: (0, 0), _ADD: (2, inf), _REMOVE: (1, inf)}
"""The minimum and maximum number of arguments of each action."""


class CommandOptions(commandOptions.CommandOptions):
    """Options of C{txrdma pnet}: an action on the table, and the members to add or remove."""

    synopsis = "[options] [show | add NETWORK MEMBER ... | remove NETWORK [MEMBER ...]]"
    longdesc = (
        "A physical network has a name (its PNET ID), network interfaces, and RDMA ports for their "
        "connections: txrdma pnet add NET1 eth0 mlx5_0/1. An interface in no network uses the RDMA ports "
        "of the same hardware. show prints the table of the file, the kernel's table (as smc_pnet does), "
        "which applies where the file has no entry, and the resulting ports of each interface. A member "
        "of NETWORK is an interface, or a port as DEVICE/PORT; remove without members removes the "
        "network."
    )
    optFlags = [["json", None, "JSON instead of lines."]]
    optParameters = [
        ["file", "f", None, "Path of the table. [default: $TXRDMA_PNET or /etc/txrdma/pnet.conf]", fileName]
    ]

    def parseArgs(self, action: str = _SHOW, *rest: str) -> None:
        if action not in _COUNTS:
            raise usage.UsageError("expected show, add or remove")
        fewest, most = _COUNTS[action]
        if not fewest <= len(rest) <= most:
            raise usage.UsageError(f"{action}: expected {self.synopsis.removeprefix('[options] ')}")
        self["action"] = action
        self["network"], self["members"] = (rest[0], rest[1:]) if rest else ("", ())


async def run(reactor: object, options: CommandOptions) -> None:
    """Run C{txrdma pnet}: change or print the table."""
    path = Path(options["file"]) if options["file"] else tableFile()
    try:
        if options["action"] == _ADD:
            path.parent.mkdir(parents=True, exist_ok=True)
        if options["action"] != _SHOW:
            with endedBySignals(), changing(path):
                writeText(path, _changed(readText(path), options))
        table = parseTable(readText(path))
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"{path}: {error}") from error
    kernels = _kernels()
    if options["action"] != _SHOW and not options["json"]:
        return
    found = described(path, table, kernels, Networks.read())
    if options["json"]:
        printJSON(found)
    else:
        print(*linesOf(found), sep="\n")


def _changed(text: str, options: CommandOptions) -> str:
    network = options["network"]
    if options["action"] == _REMOVE:
        return withoutEntries(text, network, options["members"])
    for member in options["members"]:
        text = withEntry(text, PNETEntry.of(network, member))
    return text


def _kernels() -> Table:
    """Return the kernel's table, or an empty one if it cannot be read."""
    try:
        return kernelTable()
    except OSError:
        return ()


def described(path: Path, table: Table, kernels: Table, seen: Networks) -> dict[str, Any]:
    """Return the tables, and the resulting RDMA port of each interface, for JSON."""
    here = Networks(seen.ports, (table, kernels), seen.interfaces, seen.root)
    return {
        "file": str(path),
        "entries": [
            {"network": each.network, "member": each.member, "source": source}
            for source, entries in (("file", table), ("kernel", kernels))
            for each in entries
        ],
        "interfaces": [
            {
                "interface": interface.name,
                "network": finding.network,
                "port": None if finding.port is None else finding.port.name,
                "why": finding.reason,
            }
            for interface in here.interfaces
            for finding in (here.portOf(interface),)
        ],
    }


def linesOf(found: dict[str, Any]) -> list[str]:
    """Return the result of L{described} as lines of text."""
    rows = [(each["network"], each["member"], each["source"]) for each in found["entries"]]
    lines = (
        list(columns(("network", "member", "from"), *rows)) if rows else [f"  {found['file']} names nothing"]
    )
    rows = [(each["interface"], each["port"] or "none", each["why"]) for each in found["interfaces"]]
    return [*lines, "", *columns(("interface", "port", "why"), *rows)]
