"""
Configuration of the fabric monitor: a file in TOML, whose mistakes are told with their lines, all at once.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from datetime import date, datetime
from pathlib import Path
from typing import Any, Final

from txrdma.error import InvalidRequest
from txrdma.fabric.advice import ADVICE, Severity
from txrdma.fabric.errorcounters import counterName, shownName
from txrdma.fabric.excess import MOST_HOPS
from txrdma.kit.values import frozen
from txrdma.monitor.diagnosis.findinglog import FindingRules
from txrdma.monitor.diagnosis.tallies import Limit
from txrdma.monitor.diagnosis.thresholds import DEFAULT_FLAPS, DEFAULT_LIMITS, MOST_BIT_ERRORS
from txrdma.monitor.events.alerts import AlertRules, Silence
from txrdma.monitor.events.channels import MailSettings
from txrdma.monitor.files import FileSettings
from txrdma.monitor.listening import isLoopback, mistakeIn
from txrdma.monitor.reading.poller import DEFAULT_RULES
from txrdma.monitor.reading.settings import PollerSettings
from txrdma.monitor.series.exposition import METRICS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DEFAULT_LISTEN: Final = "tcp:9315:interface=127.0.0.1"

DEFAULT_SURVEY_SECONDS: Final = 900.0

_YEAR: Final = 365 * 86400.0
_MOST: Final = 1_000_000
_TABLE: Final = re.compile(r"\s*\[\[?\s*([^\[\]]+?)\s*\]\]?\s*(#.*)?$")
_KEY: Final = re.compile(r"\s*([A-Za-z0-9_.\"'-]+)\s*=")
_FORMATS: Final = ("alertmanager", "webhook")
_SEVERITIES: Final = {severity.name.lower(): severity for severity in Severity}


@frozen
class MonitorConfig:
    """
    Configuration of a fabric monitor.

    @ivar port: name of the management port; C{""} for the first that can be opened.
    @ivar listen: server endpoint string of its pages; C{""} for none.
    @ivar tokens: path of the file with tokens of who may read the pages; C{users} is that of names with their
        passwords. C{""} for none.
    @ivar counters: names of the counters that Prometheus is told.
    @ivar history: path of the file of its history, or URL of its database; C{""} for none.
    @ivar surveySeconds: time between surveys of the tables of a fabric that does not change; 0 for none.
    @ivar telling: rules for what is told to others.
    @ivar webhooks: names of webhooks, their URLs, formats, and Authorization headers or C{""}; C{mail} is
        None without mail, C{log} the path of the file of lines, C{""} for none.
    @ivar files: files for other programs, which are kept up to date.
    @ivar limits: limits for errors; C{flaps} is the one for links that go down, C{mostBitErrors} the rate of
        bit errors.
    @ivar topology: path of the file of the cables that are to be there; C{""} for none.
    """

    port: str
    listen: str
    tokens: str
    users: str
    counters: tuple[str, ...]
    history: str
    settings: PollerSettings
    rules: FindingRules
    limits: tuple[Limit, ...]
    flaps: Limit
    mostBitErrors: float
    surveySeconds: float
    topology: str
    telling: AlertRules
    webhooks: tuple[tuple[str, str, str, str], ...]
    mail: MailSettings | None
    log: str
    files: FileSettings


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


def _whole(least: int, most: int = _MOST) -> Callable[[object], int]:
    def check(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise _Mistake(f"a whole number from {least} to {most}")
        return value

    return check


def _seconds(least: float) -> Callable[[object], float]:
    def check(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= _YEAR:
            raise _Mistake(f"a number of seconds from {least:g} to {_YEAR:g}, a year")
        return float(value)

    return check


def _share(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1:
        raise _Mistake("a rate between 0 and 1, as 1e-14")
    return float(value)


def _counter(text: str) -> str:
    for name in METRICS:
        if name.lower() == text.lower():
            return name
    raise _Mistake(f"names of counters, of which {text!r} is none: {', '.join(map(shownName, METRICS))}")


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


def _url(value: object) -> str:
    text = _text(value)
    if not re.match(r"https?://[^/\s]+", text):
        raise _Mistake("a URL, as http://host:9093/api/v2/alerts")
    return text


def _databaseURL(value: object) -> str:
    text = _text(value)
    if "://" not in text:
        raise _Mistake("a URL, as postgresql+psycopg://user@host/fabric")
    return text


def _format(value: object) -> str:
    if value not in _FORMATS:
        raise _Mistake(" or ".join(map(repr, _FORMATS)))
    return str(value)


def _moment(value: object) -> float:
    """A time in seconds since 1970; without a time zone it is meant as the host's."""
    if isinstance(value, datetime):
        return value.timestamp()
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day).timestamp()
    raise _Mistake("a date or a time, as 2026-12-24T18:00:00Z, without quotes")


def _address(value: object) -> str:
    text = _text(value)
    if not re.fullmatch(r"[^\s@,]+@[^\s@,]+", text):
        raise _Mistake("an address of mail, as fabric@example.org")
    return text


def _addresses(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise _Mistake("a list of addresses of mail")
    return tuple(map(_address, value))


_SCALARS: Final[Mapping[str, Callable[[object], Any]]] = {
    "port": _text,
    "web.listen": _text,
    "web.tokens": _text,
    "web.users": _text,
    "metrics.counters": _counters,
    "history.file": _text,
    "history.url": _databaseURL,
    "poll.interval": _seconds(0.1),
    "poll.sweep": _seconds(1.0),
    "poll.settle": _seconds(0.1),
    "poll.look": _seconds(1.0),
    "poll.timeout": _seconds(0.01),
    "poll.outstanding": _whole(1),
    "poll.nodes": _whole(2),
    "poll.hops": _whole(1, MOST_HOPS),
    "poll.notices": _truth,
    "poll.survey": _seconds(0.0),
    "files.slurm": _text,
    "files.unfit": _text,
    "files.node-names": _text,
    "findings.clear": _seconds(0.0),
    "findings.bit-errors": _share,
    "findings.topology": _text,
    "telling.delay": _seconds(0.0),
    "telling.group": _seconds(0.0),
    "telling.severity": _severity,
    "telling.log": _text,
    "telling.mail.host": _text,
    "telling.mail.port": _whole(1, 65535),
    "telling.mail.from": _address,
    "telling.mail.to": _addresses,
    "telling.mail.user": _text,
    "telling.mail.password-file": _text,
    "findings.ignored": _kinds,
}
"""Keys with one value, and what checks and converts it."""

_NAMED: Final[Mapping[str, Mapping[str, Callable[[object], Any]]]] = {
    "telling.webhooks": {"url": _url, "format": _format, "authorization-file": _text},
    "telling.silences": {"kind": _text, "where": _text, "until": _moment},
}
"""Tables of tables, whose names are free, and the keys of each of these."""

_LIMIT: Final[Mapping[str, Callable[[object], Any]]] = {"most": _whole(0, 1 << 63), "seconds": _seconds(1.0)}
_TABLES: Final = {"limits", "findings.severity", *_NAMED} | {
    key[:at] for key in _SCALARS for at, letter in enumerate(key) if letter == "."
}


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
        self.named: dict[str, dict[str, dict[str, Any]]] = {}
        self._wrong: set[str] = set()
        self._lines = _linesOf(text)
        self._walk("", content)

    def _mistake(self, key: str, text: str) -> None:
        self._wrong.add(key)
        self.mistakes.append((self._lineOf(key), f"{key}: {text}"))

    def _lineOf(self, key: str) -> int:
        """Line of a key, or of what it is within: a table may be in one line, with all of its keys or one."""
        while key and key not in self._lines:
            parts = [line for name, line in self._lines.items() if name.startswith(f"{key}.")]
            if parts:
                return min(parts)
            key = key.rpartition(".")[0]
        return self._lines.get(key, 1)

    def _walk(self, head: str, table: Mapping[str, Any]) -> None:
        for name, value in table.items():
            key = f"{head}{name}"
            if head == "findings.severity.":
                self._checked(key, name, value, self.severities)
            elif head == "limits.":
                self._limit(key, name, value)
            elif head[:-1] in _NAMED:
                self._named(head[:-1], key, name, value)
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

    def _named(self, table: str, key: str, name: str, value: object) -> None:
        if not isinstance(value, dict):
            self._mistake(key, "is a table")
            return
        into = self.named.setdefault(table, {}).setdefault(name, {})
        checks = _NAMED[table]
        for part, given in value.items():
            if part in checks:
                self._take(f"{key}.{part}", checks[part], given, into, part)
            else:
                self._mistake(f"{key}.{part}", "there is no such key")
        if "url" in checks and "url" not in value:
            self._mistake(key, "has no url")

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

    def complete(self) -> None:
        """Check for keys that are missing beside others."""
        if self.values.get("history.file") and self.values.get("history.url"):
            self._mistake("history.url", "there is a history.file, too: which of them is it?")
        mail = {key for key in self.values if key.startswith("telling.mail.")}
        for key in ("telling.mail.host", "telling.mail.from", "telling.mail.to"):
            if mail and key not in self.values and key not in self._wrong:
                self._mistake("telling.mail", f"has no {key.rpartition('.')[2]}")

    def checkAccess(self) -> None:
        """Refuse pages that everybody in the network could read."""
        listen = self.values.get("web.listen", "")
        mistake = mistakeIn(listen) if listen else ""
        if mistake:
            self._mistake("web.listen", f"{listen!r} is no endpoint: {mistake}")
        elif not (isLoopback(listen or DEFAULT_LISTEN) or self._isGuarded):
            self._mistake(
                "web.listen",
                f"{listen!r} is beyond this host, where everybody could read: give web.tokens or web.users, "
                f"or listen on loopback, as {DEFAULT_LISTEN}",
            )

    @property
    def _isGuarded(self) -> bool:
        return bool(self.values.get("web.tokens") or self.values.get("web.users"))

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
    reader.complete()
    reader.checkAccess()
    if reader.mistakes:
        said = [f"{name}, line {line}: {mistake}" for line, mistake in sorted(reader.mistakes)]
        raise InvalidRequest("\n".join(said))
    values = reader.values
    usual = PollerSettings()
    settings = PollerSettings(
        intervalSeconds=values.get("poll.interval", usual.intervalSeconds),
        sweepSeconds=values.get("poll.sweep", usual.sweepSeconds),
        settleSeconds=values.get("poll.settle", usual.settleSeconds),
        stateSeconds=values.get("poll.look", usual.stateSeconds),
        timeoutSeconds=values.get("poll.timeout", usual.timeoutSeconds),
        maxOutstanding=values.get("poll.outstanding", usual.maxOutstanding),
        mostNodes=values.get("poll.nodes", usual.mostNodes),
        maxHops=values.get("poll.hops", usual.maxHops),
        wantsNotices=values.get("poll.notices", usual.wantsNotices),
    )
    rules = FindingRules(
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
        tokens=values.get("web.tokens", ""),
        users=values.get("web.users", ""),
        counters=values.get("metrics.counters", METRICS),
        history=values.get("history.url") or values.get("history.file", ""),
        settings=settings,
        rules=rules,
        limits=tuple(map(reader.limit, DEFAULT_LIMITS)) + more,
        flaps=reader.limit(DEFAULT_FLAPS),
        mostBitErrors=values.get("findings.bit-errors", MOST_BIT_ERRORS),
        surveySeconds=values.get("poll.survey", DEFAULT_SURVEY_SECONDS),
        topology=values.get("findings.topology", ""),
        telling=_alertRules(reader),
        webhooks=tuple(
            (
                *(webhook, given["url"], given.get("format", "alertmanager")),
                _secretIn(given.get("authorization-file", ""), f"authorization of webhook {webhook}"),
            )
            for webhook, given in reader.named.get("telling.webhooks", {}).items()
        ),
        mail=_mail(values),
        log=values.get("telling.log", ""),
        files=FileSettings(
            values.get("files.slurm", ""),
            values.get("files.unfit", ""),
            values.get("files.node-names", ""),
        ),
    )


def _alertRules(reader: _Reader) -> AlertRules:
    values, usual = reader.values, AlertRules()
    return AlertRules(
        delaySeconds=values.get("telling.delay", usual.delaySeconds),
        groupSeconds=values.get("telling.group", usual.groupSeconds),
        least=values.get("telling.severity", usual.least),
        silences=tuple(Silence(**given) for given in reader.named.get("telling.silences", {}).values()),
    )


def _secretIn(path: str, name: str) -> str:
    """Secret in a file, on one line; C{""} without a path."""
    if not path:
        return ""
    try:
        secret = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{name}: {error}") from error
    if len(secret.splitlines()) != 1:
        raise InvalidRequest(f"{name}: {path} has no line, or several")
    return secret


def _mail(values: Mapping[str, Any]) -> MailSettings | None:
    if "telling.mail.host" not in values:
        return None
    return MailSettings(
        values["telling.mail.host"],
        values["telling.mail.from"],
        values["telling.mail.to"],
        values.get("telling.mail.port", 25),
        values.get("telling.mail.user", ""),
        _secretIn(values.get("telling.mail.password-file", ""), "password of mail"),
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
