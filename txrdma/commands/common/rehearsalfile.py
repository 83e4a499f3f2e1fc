"""Files of planned faults (TOML): what is rehearsed, and which findings are expected."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from txrdma.commands.common.rehearsal import Expectation, RehearsalPlan
from txrdma.error import InvalidRequest
from txrdma.fabric.advice import ADVICE
from txrdma.fabric.errorcounters import counterName
from txrdma.kit.logs import reasonText
from txrdma.sim.fabric.agents.pma import NAMES
from txrdma.sim.faultplan import Fault, FAULTS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_TIME: Final = re.compile(r"(?:\d+(?:\.\d+)?[smhd])+")
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_WARM_UP: Final = 300.0
_AFTER: Final = 900.0
"""Usual time from the last fault to the end of a rehearsal."""

_LONGEST: Final = 366 * 86400.0
_MOST_TIMES: Final = 10_000
_KEYS: Final = ("snapshot", "config", "history", "warm-up", "duration", "fault")
_OF_FAULT: Final = (
    *("kind", "at", "node", "port", "for", "times", "every", "down", "counter", "rate", "rates", "expect"),
)
_OF_EXPECTATION: Final = ("kind", "where", "within", "notified")


@dataclass(frozen=True, slots=True)
class RehearsalFile:
    """
    Contents of a file.

    @ivar snapshot: path of the snapshot; C{config} and C{history} are those of the configuration and the
        history. C{""} for none.
    """

    snapshot: str
    config: str
    history: str
    plan: RehearsalPlan


def readRehearsal(path: str) -> RehearsalFile:
    """
    Read a file; paths in it are relative to its folder.

    @raise InvalidRequest: it cannot be read, or has a mistake.
    """
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
        return _parsed(content, os.path.dirname(path))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"{path}: {reasonText(error)}") from error


def _parsed(content: Mapping[str, Any], folder: str) -> RehearsalFile:
    _known("the file", content, _KEYS)
    given = content.get("fault", [])
    if not isinstance(given, list) or not given or not all(isinstance(one, dict) for one in given):
        raise ValueError("it has no faults: each is a section [[fault]]")
    faults, expectations = [], []
    for number, one in enumerate(given, 1):
        try:
            fault = _fault(one)
            expectations += _expectations(fault, one.get("expect", []))
        except ValueError as error:
            raise ValueError(f"fault {number}: {error}") from error
        faults.append(fault)
    last = max(_endOf(fault) for fault in faults)
    duration = _seconds("duration", content["duration"]) if "duration" in content else last + _AFTER
    warmUp = _seconds("warm-up", content.get("warm-up", _WARM_UP))
    plan = RehearsalPlan(tuple(faults), tuple(expectations), warmUp, duration)
    snapshot, config, history = (_path(folder, name, content.get(name, "")) for name in _KEYS[:3])
    return RehearsalFile(snapshot, config, history, plan)


def _endOf(fault: Fault) -> float:
    lasting = fault.times * fault.everySeconds if fault.kind == "flap" else fault.forSeconds or 0.0
    return fault.atSeconds + lasting


def _known(where: str, content: Mapping[str, Any], keys: tuple[str, ...]) -> None:
    unknown = [key for key in content if key not in keys]
    if unknown:
        raise ValueError(f"{where} has the unknown key {unknown[0]}; there are {', '.join(keys)}")


def _path(folder: str, name: str, value: object) -> str:
    text = _text(name, value)
    return os.path.join(folder, text) if text and "://" not in text else text


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise ValueError(f"{name} is a text, not {value!r}")
    return value


def _number(name: str, value: object, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most:
        raise ValueError(f"{name} is a number from 0 to {most:g}, not {value!r}")
    return float(value)


def _whole(name: str, value: object, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError(f"{name} is a whole number from 0 to {most}, not {value!r}")
    return value


def _seconds(name: str, value: object) -> float:
    """Return a time in seconds, or as C{"1h30m"}."""
    if isinstance(value, str) and _TIME.fullmatch(value):
        value = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(value))
    if isinstance(value, str):
        raise ValueError(f"{name} is a time as 90 or '1h30m', not {value!r}")
    return _number(name, value, _LONGEST)


def _counter(name: str) -> str:
    for known in NAMES:
        if known.lower() == name.lower():
            return known
    try:
        return counterName(name)
    except InvalidRequest as error:
        raise ValueError(str(error)) from error


def _fault(given: Mapping[str, Any]) -> Fault:
    _known("it", given, _OF_FAULT)
    kind = given.get("kind")
    if kind not in FAULTS:
        raise ValueError(f"kind is one of {', '.join(FAULTS)}, not {kind!r}")
    for key in ("at", "node"):
        if key not in given:
            raise ValueError(f"it has no {key}")
    rates = given.get("rates", {})
    if not isinstance(rates, dict):
        raise ValueError("rates is a table of counters and numbers per second")
    if "counter" in given:
        rates = {**rates, _text("counter", given["counter"]): given.get("rate", 1.0)}
    if (kind == "errors") != bool(rates):
        raise ValueError("counter and rate, or rates, are for errors, which need them")
    every = _seconds("every", given.get("every", 30.0))
    down = _seconds("down", given.get("down", min(4.0, every / 2)))
    if down >= every:
        raise ValueError(f"down is less than every, which is {every:g} s")
    return Fault(
        kind=kind,
        atSeconds=_seconds("at", given["at"]),
        node=_text("node", given["node"]),
        port=_whole("port", given["port"], 254) if "port" in given else None,
        forSeconds=_seconds("for", given["for"]) if "for" in given else None,
        times=_whole("times", given.get("times", 4), _MOST_TIMES),
        everySeconds=every,
        downSeconds=down,
        rates={_counter(name): _number(name, rate, 2.0**63) for name, rate in rates.items()},
    )


def _expectations(fault: Fault, given: object) -> list[Expectation]:
    if not isinstance(given, list):
        raise ValueError("expect is a list of kinds of findings, or of tables with kind")
    found = []
    for one in given:
        table = {"kind": one} if isinstance(one, str) else one
        if not isinstance(table, dict):
            raise ValueError(f"expect has {one!r}, which is neither a kind nor a table")
        _known("expect", table, _OF_EXPECTATION)
        kind, isNotified = table.get("kind"), table.get("notified", False)
        if kind not in ADVICE:
            raise ValueError(f"there is no finding {kind!r}, but {', '.join(sorted(ADVICE))}")
        if not isinstance(isNotified, bool):
            raise ValueError(f"notified is true or false, not {isNotified!r}")
        within = _seconds("within", table["within"]) if "within" in table else None
        found.append(Expectation(fault, kind, _text("where", table.get("where", "")), within, isNotified))
    return found
