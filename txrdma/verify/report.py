"""
Reports of verifications: a dictionary for JSON, and Markdown for a bug report.

Unless a report is to be full, it contains no names, addresses, GUIDs or paths.
"""

from __future__ import annotations

import getpass
import os
import platform
import re
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import txrdma
from txrdma.verify.checks import Check, Measured, Outcome
from txrdma.verify.host import Host
from txrdma.verify.problems import HostProblem
from txrdma.verify.quirks import explanationOf
from txrdma.verify.subject import TestedPort

_HIDDEN: Final = (
    (re.compile(r"(?<![\w:])(?:[0-9a-fA-F]{2}[:-]){5}[0-9a-fA-F]{2}(?![\w:])"), "MAC"),
    (re.compile(r"\b(?!127\.)\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}\b"), "IPv4"),
    # In endpoint strings colons have a backslash, perftest prints 16 numbers, and a port may follow.
    (re.compile(r"(?<!\w)(?:[0-9a-fA-F]{0,4}\\{0,3}:){2,}[0-9a-fA-F]{0,4}(?!\w)"), "GID"),
    (re.compile(r"\b(?:0x)?(?:[0-9a-fA-F]{16}){1,2}\b"), "GUID"),
)
_SHORTEST_NAME: Final = 2


def asReport(
    ends: Sequence[TestedPort],
    problems: Sequence[HostProblem],
    checks: Sequence[Check],
    measurements: Sequence[Measured],
    isInterrupted: bool,
    host: Host,
) -> dict[str, Any]:
    """Return the report of a run."""
    facts = [end.facts for end in ends]
    counts: dict[str, Counter[str]] = {}
    for check in checks:
        counts.setdefault(check.part, Counter())[check.outcome.value] += 1
    return {
        "txrdma": txrdma.__version__,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "distribution": _distribution(host),
        "rdmaCore": host.verbsRelease,
        "devices": facts,
        "isLoopback": len(facts) == 1,
        "isInterrupted": isInterrupted,
        "problems": [each.asDict() for each in problems],
        "parts": {
            part: {each.value: count[each.value] for each in Outcome} for part, count in counts.items()
        },
        "failures": [
            {
                "check": each.path,
                "text": each.text,
                "explanation": explanationOf(each, facts),
                "detail": each.detail,
            }
            for each in checks
            if each.outcome is Outcome.FAILED
        ],
        "skipped": [
            {"check": each.path, "text": each.text} for each in checks if each.outcome is Outcome.SKIPPED
        ],
        "measurements": [
            {"over": each.over, "bytes": each.size, "value": round(each.value, 3), "unit": each.unit}
            for each in measurements
        ],
    }


def _distribution(host: Host) -> str:
    for line in host.text("etc/os-release").splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip('"')
    return ""


def namesOf(ends: Sequence[TestedPort], host: Host) -> dict[str, str]:
    """Return the names that must not be in a report, each with its replacement."""
    names = {str(Path(txrdma.__file__).parent.parent): "..."}
    with suppress(RuntimeError):  # a container's user may have no home
        names[str(Path.home())] = "~"
    with suppress(OSError):  # it was deleted
        names[os.getcwd()] = "."
    for name in (socket.gethostname(), socket.gethostname().partition(".")[0]):
        names[name] = "HOST"
    with suppress(KeyError, OSError):
        names[getpass.getuser()] = "USER"
    for number, end in enumerate(ends, 1):
        names[end.kernelName] = f"DEVICE{number}"
        names[end.facts["netdev"]] = f"INTERFACE{number}"
    for device in host.devices():
        names.setdefault(device.name, "DEVICE")
    for netdev in host.names("sys/class/net"):
        names.setdefault(netdev, "INTERFACE")
    return {name: stand for name, stand in names.items() if len(name) >= _SHORTEST_NAME}


def redacted(value: Any, names: Mapping[str, str]) -> Any:
    """Return a copy of a report whose texts contain none of the names, and no addresses or GUIDs."""
    if isinstance(value, dict):
        return {key: redacted(each, names) for key, each in value.items()}
    if isinstance(value, list):
        return [redacted(each, names) for each in value]
    if not isinstance(value, str):
        return value
    for name in sorted(names, key=len, reverse=True):
        value = re.sub(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", names[name], value)
    for pattern, stand in _HIDDEN:
        value = pattern.sub(stand, value)
    return value


def asMarkdown(report: Mapping[str, Any]) -> str:
    """Return a report as Markdown, for a bug report."""
    lines = ["# txrdma verify", ""]
    if report["isInterrupted"]:
        lines += ["The run was interrupted: this report is partial.", ""]
    general = ("txrdma", "python", "kernel", "machine", "distribution", "rdmaCore")
    lines += _table(("host", ""), [(name, report[name]) for name in general])
    for number, facts in enumerate(report["devices"], 1):
        lines += _table((f"device {number}", ""), list(facts.items()))
    lines += _table(
        ("part", "passed", "failed", "skipped"),
        [(part, *counts.values()) for part, counts in report["parts"].items()],
    )
    lines += _table(("measured", "bytes", "value", "unit"), [row.values() for row in report["measurements"]])
    lines += _table(
        ("problem of the host", "what", "command"),
        [(each["where"] or each["kind"], each["text"], f"`{each['fix']}`") for each in report["problems"]],
    )
    for failure in report["failures"]:
        lines += [f"## {failure['check']}", "", failure["text"], ""]
        if failure["explanation"]:
            lines += [f"*Known:* {failure['explanation']}", ""]
        if failure["detail"]:
            lines += ["```", failure["detail"].rstrip().replace("```", "'''"), "```", ""]
    return "\n".join(lines)


def _table(heading: Sequence[str], rows: Sequence[Any]) -> list[str]:
    if not rows:
        return []
    cells = [[str(cell).replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    lines = [heading, ["---"] * len(heading), *cells]
    return ["| " + " | ".join(line) + " |" for line in lines] + [""]
