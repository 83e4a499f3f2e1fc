"""
Configuration of the fabric monitor: a file in TOML, whose mistakes are told with their lines, all at once.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from txrdma.error import InvalidRequest
from txrdma.fabric.advice import ADVICE, Severity
from txrdma.fabric.errorcounters import counterName, shownName
from txrdma.monitor._tallies import Limit
from txrdma.monitor.exposition import FAMILIES
from txrdma.monitor.judging import DEFAULT_FLAPS, DEFAULT_LIMITS
from txrdma.monitor.ledger import LedgerRules
from txrdma.monitor.poller import DEFAULT_RULES, PollerSettings
from txrdma.values import frozen

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DEFAULT_LISTEN: Final = "tcp:9315:interface=127.0.0.1"

_LOOPBACK: Final = re.compile(r"(unix:.+|tcp:\d+:(.*:)?interface=(127(\.\d+){3}|\\:\\:1|localhost)(:.*)?)$")
_TABLE: Final = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(#.*)?$")
_KEY: Final = re.compile(r"\s*([A-Za-z0-9_.\"'-]+)\s*=")
_SEVERITIES: Final = {severity.name.lower(): severity for severity in Severity}


@frozen
class MonitorConfig:
    """
    Configuration of a fabric monitor.

    @ivar port: name of the management port; C{""} for the first that can be opened.
    @ivar listen: server endpoint string of its pages; C{""} for none.
    @ivar counters: names of the counters that Prometheus is told.
    @ivar history: path of the file of its history; C{""} for none.
    @ivar limits: limits for errors; C{flaps} is the one for links that go down.
    """

    port: str
    listen: str
    counters: tuple[str, ...]
    history: str
    settings: PollerSettings
    rules: LedgerRules
    limits: tuple[Limit, ...]
    flaps: Limit


class _Mistake(Exception):
    """A value that cannot be; the message tells what is wanted."""


# Kinds of values.


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise _Mistake("a text")
    return value


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise _Mistake("true or false")
    return value


def _whole(least: int) -> Callable[[object], int]:
    def check(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise _Mistake(f"a whole number from {least} on")
        return value

    return check


def _seconds(least: float) -> Callable[[object], float]:
    def check(value: object) -> float:
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or not least <= value < float("inf")
        ):
            raise _Mistake(f"a number of seconds from {least:g} on")
        return float(value)

    return check


def _listen(value: object) -> str:
    text = _text(value)
    if text and not _LOOPBACK.match(text):
        raise _Mistake(
            f"an endpoint on loopback, as {DEFAULT_LISTEN}, since everybody who reaches it may read"
        )
    return text


def _counter(text: str) -> str:
    for name in FAMILIES:
        if name.lower() == text.lower():
            return name
    raise _Mistake(f"names of counters, of which {text!r} is none: {', '.join(map(shownName, FAMILIES))}")


def _counters(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise _Mistake("a list of names of counters")
    return tuple(dict.fromkeys(_counter(each) for each in value))


def _kind(text: str) -> str:
    if text not in ADVICE:
        raise _Mistake(f"kinds of findings, of which {text!r} is none: {', '.join(sorted(ADVICE))}")
    return text


def _kinds(value: object) -> frozenset[str]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise _Mistake("a list of kinds of findings")
    return frozenset(_kind(each) for each in value)


def _severity(value: object) -> Severity:
    severity = _SEVERITIES.get(value) if isinstance(value, str) else None
    if severity is None:
        raise _Mistake(" or ".join(map(repr, _SEVERITIES)))
    return severity


_SCALARS: Final[Mapping[str, Callable[[object], Any]]] = {
    "port": _text,
    "web.listen": _listen,
    "metrics.counters": _counters,
    "history.file": _text,
    "poll.interval": _seconds(0.1),
    "poll.sweep": _seconds(1.0),
    "poll.settle": _seconds(0.1),
    "poll.look": _seconds(1.0),
    "poll.timeout": _seconds(0.01),
    "poll.outstanding": _whole(1),
    "poll.notices": _truth,
    "findings.clear": _seconds(0.0),
    "findings.ignored": _kinds,
}
"""Keys with one value, and what checks and converts it."""

_LIMIT: Final[Mapping[str, Callable[[object], Any]]] = {"most": _whole(0), "seconds": _seconds(1.0)}
_TABLES: Final = {key.partition(".")[0] for key in _SCALARS if "." in key} | {"limits", "findings.severity"}


class _Reader:
    """
    Reader of a file's values, which collects its mistakes.

    @ivar mistakes: lines with mistakes, and what is wrong there.
    """

    def __init__(self, text: str, content: Mapping[str, Any]) -> None:
        self.mistakes: list[tuple[int, str]] = []
        self.values: dict[str, Any] = {}
        self.severities: dict[str, Severity] = {}
        self.limits: dict[str, dict[str, Any]] = {}
        self._lines = _linesOf(text)
        self._walk("", content)

    def _mistake(self, key: str, text: str) -> None:
        self.mistakes.append((self._lines.get(key, 0), f"{key}: {text}"))

    def _walk(self, head: str, table: Mapping[str, Any]) -> None:
        for name, value in table.items():
            key = f"{head}{name}"
            if head == "findings.severity.":
                self._checked(key, name, value, self.severities)
            elif head == "limits.":
                self._limit(key, name, value)
            elif key in _SCALARS:
                self._take(key, _SCALARS[key], value, self.values, key)
            elif key in _TABLES and isinstance(value, dict):
                self._walk(f"{key}.", value)
            elif key in _TABLES:
                self._mistake(key, "is a table")
            else:
                self._mistake(key, "there is no such key")

    def _take(
        self, key: str, check: Callable[[object], Any], value: object, into: dict[str, Any], name: str
    ) -> None:
        try:
            into[name] = check(value)
        except _Mistake as mistake:
            self._mistake(key, f"is {mistake}, not {value!r}")

    def _checked(self, key: str, kind: str, value: object, into: dict[str, Severity]) -> None:
        try:
            self._take(key, _severity, value, into, _kind(kind))
        except _Mistake as mistake:
            self._mistake(key, f"is one of the {mistake}")

    def _limit(self, key: str, name: str, value: object) -> None:
        try:
            counter = counterName(name)
        except InvalidRequest as error:
            self._mistake(key, str(error))
            return
        if not isinstance(value, dict):
            self._mistake(key, "is a table with most and seconds")
            return
        into = self.limits.setdefault(counter, {})
        for part, given in value.items():
            if part in _LIMIT:
                self._take(f"{key}.{part}", _LIMIT[part], given, into, part)
            else:
                self._mistake(f"{key}.{part}", "there is no such key")

    def limit(self, usual: Limit) -> Limit:
        """Limit for a counter, with what the file changes of it."""
        given = self.limits.get(usual.counter, {})
        return Limit(usual.counter, given.get("most", usual.most), given.get("seconds", usual.seconds))


def _linesOf(text: str) -> dict[str, int]:
    """Numbers of the lines that tables and keys are first named in: TOML's parser tells none."""
    found: dict[str, int] = {}
    head = ""
    for number, line in enumerate(text.splitlines(), 1):
        table = _TABLE.match(line)
        if table is not None:
            name = _plain(table[1])
            head = f"{name}."
            found.setdefault(name, number)
            continue
        key = _KEY.match(line)
        if key is not None:
            found.setdefault(f"{head}{_plain(key[1])}", number)
    return found


def _plain(name: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in name.split("."))


def parseConfig(text: str, name: str = "fabric-monitor.toml") -> MonitorConfig:
    """
    Parse the text of a configuration.

    @param name: name of the file, for messages.
    @raise InvalidRequest: there are mistakes: each is a line of the message, with the number of its line.
    """
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidRequest(f"{name}: {error}") from error
    reader = _Reader(text, content)
    if reader.mistakes:
        said = [f"{name}, line {line}: {mistake}" for line, mistake in sorted(reader.mistakes)]
        raise InvalidRequest("\n".join(said))
    values = reader.values
    usual = PollerSettings()
    settings = PollerSettings(
        intervalSeconds=values.get("poll.interval", usual.intervalSeconds),
        sweepSeconds=values.get("poll.sweep", usual.sweepSeconds),
        settleSeconds=values.get("poll.settle", usual.settleSeconds),
        lookSeconds=values.get("poll.look", usual.lookSeconds),
        timeoutSeconds=values.get("poll.timeout", usual.timeoutSeconds),
        maxOutstanding=values.get("poll.outstanding", usual.maxOutstanding),
        wantsNotices=values.get("poll.notices", usual.wantsNotices),
    )
    rules = LedgerRules(
        DEFAULT_RULES.raiseSeconds,
        clearSeconds=values.get("findings.clear", DEFAULT_RULES.clearSeconds),
        ignored=values.get("findings.ignored", frozenset()),
        severities=reader.severities,
    )
    known = {limit.counter for limit in (*DEFAULT_LIMITS, DEFAULT_FLAPS)}
    more = tuple(reader.limit(Limit(counter, 0, 3600.0)) for counter in reader.limits if counter not in known)
    return MonitorConfig(
        port=values.get("port", ""),
        listen=values.get("web.listen", DEFAULT_LISTEN),
        counters=values.get("metrics.counters", tuple(FAMILIES)),
        history=values.get("history.file", ""),
        settings=settings,
        rules=rules,
        limits=tuple(map(reader.limit, DEFAULT_LIMITS)) + more,
        flaps=reader.limit(DEFAULT_FLAPS),
    )


def readConfig(path: str) -> MonitorConfig:
    """
    Read a configuration from a file.

    @raise InvalidRequest: the file cannot be read, or has mistakes.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{path}: {error}") from error
    return parseConfig(text, path)
