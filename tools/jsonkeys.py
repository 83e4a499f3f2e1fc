"""
The keys of the JSON that commands print.

They are read from the functions and classes that make it. Fields of management datagrams are not among them:
they have the names of the specification.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import EnumMeta
from importlib import import_module
from inspect import getsource
from typing import Any, Final

_PROCESSES: Final = (
    "unix.answers._askProcess commands.common.watching.entriesBy commands.common.counted.withSums"
)
SOURCES: Final = {
    "doctor": "commands.doctor verify.problems.HostProblem.asDict",
    "connections": (
        f"{_PROCESSES} smc.stream.connectionstatus smc.stream.connectionstatus._ATTRIBUTES smc.kernel.status"
    ),
    "linkgroups": f"{_PROCESSES} smc.status.report.describeGroup smc.status.report.describeLink",
    "smc-stats": f"{_PROCESSES} smc.status.statistics.statistics",
    "smc-option": "smc.signalling.option.installing.Installation",
    "cm-stats": f"{_PROCESSES} cm.status.report commands.cm_stats.KINDS commands.cm_stats.WHATS",
    "btl-stats": (
        f"{_PROCESSES} btl.status.report btl.module.ModulePort.counters.fget btl.core.counters.ModuleCounters"
    ),
    "resolve": "commands.resolve.serviceDict commands.resolve.resolved",
    "devices": (
        "commands.common.devicedescriptions commands.common.devicedescriptions._DEVICE "
        "commands.common.devicedescriptions._PORT commands.common.devicedescriptions._KERNELS "
        "commands.common.devicechoice.DeviceChoice iba.verbs.DeviceLimits"
    ),
    "pnet": "commands.pnet.described",
    "discover": (
        "commands.formats.snapshot fabric.snapshots.dump fabric.snapshots.problemDicts "
        "fabric.snapshots.nodeDict fabric.snapshots.portDict"
    ),
    "snapshot": "commands.snapshot._summary",
    "rehearse": (
        "commands.rehearse commands.common.rehearsal.Happening monitor.diagnosis.findinglog.Entry.toDict "
        "fabric.lossjson"
    ),
    "nodes": "fabric.snapshots.nodeDict commands.nodes.INVENTORY",
    "cables": "commands.cables.CABLE_COLUMNS",
    "links": "commands.links.linkDict commands.links._endDict",
    "check": "commands.check.reportDict",
    "monitor": (
        "commands.monitor._toJSON monitor.reading.statistics.PollerStatistics "
        "monitor.diagnosis.findinglog.Entry.toDict fabric.linktraffic.Load.toDict"
    ),
    "fabric-users": "commands.fabric_users.usersOf",
    "errors": "commands.errors.reportDict",
    "diff": "commands.diff.differenceDict",
    "trace": "commands.trace.run commands.trace.hopDict",
    "routes": "commands.routes.tablesDict fabric.routeuse",
    "blast-radius": "fabric.lossjson",
    "ping": "commands.ping.Pings.toDict",
    "sysstat": "commands.sysstat.KINDS",
    "saquery": "commands.saquery._dict",
    "smpquery": "commands.smpquery.run commands.smpquery._address",
    "perfquery": "commands.perfquery._print fabric.rates.Rates.toDict",
    "sminfo": "commands.sminfo.run",
    "portstate": ("commands.portstate._entryOf commands.portstate._everywhere commands.portstate._oneOfMany"),
    "decode": "commands.decode._dict commands.decode._decode commands.dissect.capture.Explanation.toDict",
    "query": "commands.query.show",
    "verify": (
        "verify.report.asReport verify.problems.HostProblem.asDict verify.subject.TestedPort.read "
        "verify.checks.Outcome"
    ),
    "pingpong": "pingpong.report.asDict pingpong.report.LATENCY_NAMES pingpong.statistics.Bin",
    "btl-ping": "commands.btl_ping.result",
}
"""The modules, functions, classes and constants below C{txrdma} that make the JSON of each command."""


def _named(dotted: str) -> Any:
    """Return a module or what is in it."""
    names = f"txrdma.{dotted}".split(".")
    for length in range(len(names), 0, -1):
        try:
            found: Any = import_module(".".join(names[:length]))
        except ModuleNotFoundError:
            continue
        for name in names[length:]:
            found = getattr(found, name)
        return found
    raise ImportError(dotted)


def _keysOf(thing: Any) -> Iterator[str]:
    """Yield the keys of dictionaries in a source, the fields of a class, or the names in a constant."""
    if isinstance(thing, str):
        yield from thing.split()
    elif isinstance(thing, (tuple, list, dict)):
        yield from thing
    elif isinstance(thing, EnumMeta):
        yield from (each.value for each in thing)
    elif isinstance(thing, type) and hasattr(thing, "named"):
        yield from thing().named()
    elif isinstance(thing, type) and is_dataclass(thing):
        yield from (each.name for each in fields(thing))
    else:
        for node in ast.walk(ast.parse(textwrap.dedent(getsource(thing)))):
            keys: list[ast.expr | None] = []
            if isinstance(node, ast.Dict):
                keys = list(node.keys)
            elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
                keys = [node.slice]
            yield from (
                key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)
            )


def jsonKeys(command: str) -> list[str]:
    """Return the keys of a command's JSON."""
    return sorted({key for dotted in SOURCES[command].split() for key in _keysOf(_named(dotted))})
