"""Tables of RDMA devices, from descriptions by L{txrdma.commands.common.devicedescriptions}."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TYPE_CHECKING

from txrdma.commands.common.devicedescriptions import Description
from txrdma.commands.common.tables import lines, makeTable

if TYPE_CHECKING:
    from rich.table import Table

_TABLES: Final = frozenset({"gids", "gidTable", "pkeys", "kernel", "port"})
_HEXADECIMAL: Final = frozenset({"capabilities", "vendorID", "hardwareVersion"})
_LABELS: Final = {
    "badPKeys": "bad P_Keys",
    "badQKeys": "bad Q_Keys",
    "lid": "LID",
    "lidMask": "LID mask (LMC)",
    "mac": "MAC",
    "netdev": "interface",
    "pkeys": "P_Keys",
    "smLID": "SM LID",
    "smServiceLevel": "SM service level",
}
_BYTES: Final = frozenset({"maxMessageLength", "maxMemoryRegionLength", "maxInline"})


def devicesTable(descriptions: Sequence[Description]) -> Table:
    """Return a table of devices with a row for each port."""
    from rich.markup import escape

    table = makeTable("device", "port", "state", "interface", "MAC", "MTU", "GIDs")
    for device in descriptions:
        name = escape(device["device"])
        if "error" in device:
            table.add_row(name, "", escape(device["error"]))
        for port in device.get("ports", ()):
            table.add_row(
                *(name, str(port["port"]), port["state"], escape(port["netdev"]), port["mac"] or ""),
                *(str(port["activeMTU"] or ""), lines(*port["gids"])),
            )
    return table


def deviceTables(device: Description) -> list[Table]:
    """Return tables of all known values of a device."""
    tables = [_deviceTable(device)]
    if device.get("limits"):
        tables.append(_pairs(f"limits of {device['device']}", device["limits"]))
    for port in device.get("ports", ()):
        tables += _portTables(device["device"], port)
    return tables


def _deviceTable(device: Description) -> Table:
    rows = {"error": device["error"]} if "error" in device else {}
    rows.update(device.get("attributes") or {})
    rows["ports"] = len(device["ports"]) if "ports" in device else None
    rows.update(_named("of the kernel: ", device.get("kernel")))
    return _pairs(f"device {device['device']}", rows)


def _portTables(name: str, port: Description) -> list[Table]:
    rows = {key: value for key, value in port.items() if key not in _TABLES}
    rows.update(_named("of the kernel: ", port.get("kernel")))
    rows["pkeys"] = ", ".join(f"{entry['index']}: {entry['pkey']:#06x}" for entry in port["pkeys"])
    where = f"port {port['port']} of {name}"
    return [_pairs(where, rows), *([_gidTable(where, port["gidTable"])] if port["gidTable"] else [])]


def _gidTable(where: str, entries: Sequence[Description]) -> Table:
    from rich.markup import escape

    table = makeTable("index", "GID", "type", "interface", title=f"GIDs of {where}")
    for entry in entries:
        table.add_row(str(entry["index"]), entry["gid"], entry["type"], escape(entry["netdev"]))
    return table


def _pairs(title: str, rows: Mapping[str, Any]) -> Table:
    """Return a table with a row for each known value."""
    from rich.markup import escape

    table = makeTable("what", "value", title=escape(title))
    for key, value in rows.items():
        if value not in (None, ""):
            table.add_row(escape(_words(key)), escape(_shown(key, value)))
    return table


def _named(prefix: str, values: Mapping[str, Any] | None) -> dict[str, Any]:
    return {f"{prefix}{key}": value for key, value in (values or {}).items()}


def _words(key: str) -> str:
    """Split a key into words: C{pathMTU} into C{path MTU}, C{maxRDAtomic} into C{max RD atomic}."""
    if key in _LABELS:
        return _LABELS[key]
    parts = re.findall(r"[A-Z]{2,}(?![a-z])|[A-Z]?[^A-Z]+|[A-Z]", key)
    return " ".join(part if part.isupper() else part.lower() for part in parts)


def _shown(key: str, value: Any) -> str:
    if key in _HEXADECIMAL:
        return f"{value:#x}"
    if key == "rate":
        return f"{value / 1e9:g} Gb/s" if value else "not known"
    if key == "width":
        return f"{value}X" if value else "not known"
    if key in _BYTES:
        return f"{value} bytes"
    return str(value)
