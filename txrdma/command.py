"""
The C{txrdma} command: what this host has, and what its connections are doing.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Any, TYPE_CHECKING

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater, react
from twisted.python import usage

from txrdma.error import RDMAError
from txrdma.smc.introspection import Answer, askAll, IReactor
from txrdma.verbs.devices import availableDevices, openDevice

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


class _Options(usage.Options):
    def opt_version(self) -> None:
        """Tell the version, then stop."""
        print(f"txrdma {version('txrdma')}")
        raise SystemExit(0)


class _TellingOptions(_Options):
    """Options of a command that tells something."""

    optFlags = [["json", None, "JSON instead of a table."]]


class ConnectionsOptions(_TellingOptions):
    synopsis = "[options]"
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


class DevicesOptions(_TellingOptions):
    synopsis = "[options]"
    longdesc = "Tell the RDMA devices that could be opened here, by the name to use in device=..."


class Options(_Options):
    synopsis = "Usage: txrdma [options] command [command's options]"
    longdesc = "What this host has for RDMA, and what its connections are doing."
    subCommands = [
        ["connections", None, ConnectionsOptions, "Live SMC-R and fallback connections on this host."],
        ["devices", None, DevicesOptions, "RDMA devices that could be used here."],
    ]

    def postOptions(self) -> None:
        if self.subCommand is None:
            raise usage.UsageError("which command? There are: connections, devices")


def flat(answers: Sequence[Answer]) -> list[dict[str, object]]:
    """One entry for each connection, or for a process that did not answer."""
    entries: list[dict[str, object]] = []
    for answer in answers:
        if answer.error:
            entries.append({"pid": answer.pid, "error": answer.error})
        entries.extend(
            {"pid": answer.pid, "command": answer.command, **connection} for connection in answer.connections
        )
    return entries


def _table(*columns: str) -> Table:
    try:
        from rich.table import Table
    except ImportError:
        raise SystemExit("Tables need rich: pip install 'txrdma[cli]'. Or use --json.") from None
    table = Table(*columns, header_style="bold", expand=False)
    for column in table.columns:
        column.overflow = "fold"
    return table


def _show(what: RenderableType) -> None:
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=200)  # a pipe has no width, and rows shall not be folded there
    console.print(what)


def _size(count: object) -> str:
    """A number of bytes, for people."""
    from rich.filesize import decimal

    return decimal(count) if isinstance(count, int) else "?"


def _lines(*lines: object) -> str:
    """One cell of several lines; empty ones are left out."""
    return "\n".join(str(line) for line in lines if line not in ("", None))


def _traffic(entry: dict[str, Any]) -> str:
    """What has gone through a connection, and where its ring buffers stand."""
    lines = [f"sent {_size(entry.get('bytesSent'))}, received {_size(entry.get('bytesReceived'))}"]
    if entry.get("mode") != "TCP":
        lines += [
            f"{entry.get('writes')} RDMA writes",
            f"CDC {entry.get('messagesSent')} sent, {entry.get('messagesReceived')} received",
        ]
    cursors = entry.get("cursors")
    if cursors:
        ours, peers = _size(entry["bufferSize"]), _size(entry["peerBufferSize"])
        lines += [
            f"in {cursors['arrived']}, read {cursors['consumed']}, ring {ours}",
            f"out {cursors['produced']}, read {cursors['peerConsumed']}, ring {peers}",
        ]
    return "\n".join(lines)


def connectionsTable(entries: Sequence[dict[str, Any]]) -> Table:
    """What L{flat} gives, as a table."""
    from rich.markup import escape

    table = _table("process", "connection", "mode", "traffic and cursors")
    for entry in entries:
        if "error" in entry:
            table.add_row(str(entry["pid"]), escape(entry["error"]))
            continue
        mode, reason, diagnosis = entry.get("mode"), entry.get("fallbackReason"), entry.get("peerDiagnosis")
        cells = (
            _lines(entry["pid"], " ".join(entry["command"][1:])[:40]),
            _lines(entry.get("role"), entry.get("local"), f"to {entry.get('peer')}"),
            _lines(
                mode if mode == "TCP" else f"{mode} {entry.get('state')}",
                reason and f"because of {reason}",
                diagnosis and f"peer said {diagnosis}",
                f"{entry.get('device')} {entry.get('route')}".strip(),
                entry.get("linkGroup"),
            ),
            _traffic(entry),
        )
        table.add_row(*map(escape, cells))
    return table


async def connections(reactor: IReactor, options: usage.Options) -> None:
    """C{txrdma connections}: once, or again and again."""
    while True:
        entries = flat(await askAll(reactor, options["timeout"]))
        if options["json"]:
            print(json.dumps(entries) if options["watch"] else json.dumps(entries, indent=2), flush=True)
        elif entries:
            _show(connectionsTable(entries))
        else:
            print("No process of yours has a connection of an smc: endpoint.", flush=True)
        if not options["watch"]:
            return
        await deferLater(reactor, options["interval"])


def describeDevice(reactor: object, name: str) -> dict[str, object]:
    """What a device of that name has, or why it can't be opened."""
    try:
        device = openDevice(reactor, name)
    except (RDMAError, ValueError, OSError) as error:
        return {"device": name, "error": str(error)}
    try:
        ports = []
        for number in range(1, device.portCount + 1):
            port = device.portAttributes(number)
            ports.append(
                {
                    "port": number,
                    "state": port.state.name,
                    "netdev": port.netdev,
                    "mac": None if port.mac is None else str(port.mac),
                    "maxMTU": port.maxMTU.bytes,
                    "activeMTU": port.activeMTU.bytes,
                    "rate": port.rate,
                    "gids": [str(gid) for gid in device.gids(number)],
                }
            )
        return {"device": name, "ports": ports, "limits": asdict(device.limits)}
    finally:
        device.close()


def devicesTable(entries: Sequence[dict[str, Any]]) -> Table:
    """What L{describeDevice} gives, as a table."""
    from rich.markup import escape

    table = _table("device", "port", "state", "interface", "MAC", "MTU", "GIDs")
    for entry in entries:
        name = escape(entry["device"])
        if "error" in entry:
            table.add_row(name, "", escape(entry["error"]))
            continue
        for port in entry["ports"]:
            table.add_row(
                *(name, str(port["port"]), port["state"], escape(port["netdev"]), port["mac"] or ""),
                *(str(port["activeMTU"]), _lines(*port["gids"])),
            )
    return table


async def devices(reactor: IReactor, options: usage.Options) -> None:
    """C{txrdma devices}."""
    entries = [describeDevice(reactor, name) for name in availableDevices()]
    if options["json"]:
        print(json.dumps(entries, indent=2))
    else:
        _show(devicesTable(entries))


async def _carryOut(reactor: IReactor, options: Options) -> None:
    command = devices if options.subCommand == "devices" else connections
    try:
        await command(reactor, options.subOptions)
        sys.stdout.flush()
    except BrokenPipeError:  # "| head" has seen enough; what is still buffered must not fail at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run(reactor: IReactor, options: Options) -> Deferred[None]:
    """Carry out the command of parsed options."""
    return Deferred.fromCoroutine(_carryOut(reactor, options))


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script."""
    options = Options()  # type: ignore[no-untyped-call]  # of Twisted's
    try:
        options.parseOptions(sys.argv[1:] if arguments is None else arguments)  # type: ignore[no-untyped-call]
    except usage.UsageError as error:
        raise SystemExit(f"txrdma: {error}\nTry: txrdma --help") from None
    react(run, (options,))


if __name__ == "__main__":
    main()
