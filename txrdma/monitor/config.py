"""
Configuration of the fabric monitor: a TOML file. All errors are reported together, with line numbers.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from typing import Any, Final

from txrdma.error import InvalidRequest
from txrdma.fabric.advice import ADVICE, Severity
from txrdma.fabric.errorcounters import counterName, shownName
from txrdma.fabric.excess import MOST_HOPS
from txrdma.fabric.metricnames import METRICS
from txrdma.kit.listening import isLoopback, mistakeIn
from txrdma.kit.values import frozen
from txrdma.monitor.diagnosis.findinglog import FindingRules
from txrdma.monitor.diagnosis.tallies import TallyLimit
from txrdma.monitor.diagnosis.thresholds import DEFAULT_FLAPS, DEFAULT_LIMITS, MOST_BIT_ERRORS
from txrdma.monitor.events.alerts import AlertRules, Silence
from txrdma.monitor.events.channels import MailSettings
from txrdma.monitor.files import FileSettings
from txrdma.monitor.reading.poller import DEFAULT_RULES
from txrdma.monitor.reading.settings import PollerSettings
from txrdma.monitor.series.level import DEFAULT_LEVELS, EVENTS, Level
from txrdma.monitor.series.remotesettings import RemoteSettings

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DEFAULT_LISTEN: Final = "tcp:9315:interface=127.0.0.1"

DEFAULT_SURVEY_SECONDS: Final = 900.0

_YEAR: Final = 365 * 86400.0
_MOST: Final = 1_000_000
_LEAST_DAYS: Final = 0.05
_LEAST_SENT: Final = 2.0
_USED_LABELS: Final = ("__name__", "column", "guid", "port")
_TABLE: Final = re.compile(r"\s*\[\[?\s*([^\[\]]+?)\s*\]\]?\s*(#.*)?$")
_KEY: Final = re.compile(r"\s*([A-Za-z0-9_.\"'-]+)\s*=")
_FORMATS: Final = ("alertmanager", "webhook")
_SHARED: Final = frozenset(("web", "metrics", "fabrics"))
"""Tables that are for all fabrics."""

_SEVERITIES: Final = {severity.name.lower(): severity for severity in Severity}


@frozen
class MonitorConfig:
    """
    Configuration of a fabric monitor.

    @ivar fabric: name of the fabric where there are several; else C{""}.
    @ivar fabrics: configurations of several fabrics, which have no pages of their own; else empty.
    @ivar port: name of the management port; C{""} for the first that can be opened.
    @ivar listen: server endpoint string of its pages; C{""} for none.
    @ivar tokens: path of the file of access tokens; C{users} that of user names and passwords. C{""} for
        none.
    @ivar counters: names of the counters exported to Prometheus.
    @ivar history: path of the file of its history, or URL of its database; C{""} for none.
    @ivar standby: whether several monitors share the history, of which one writes and notifies.
    @ivar levels: levels of detail of the history, with their retention; C{events} is the retention of events.
    @ivar remote: engine that receives the history, too; None for none.
    @ivar surveySeconds: time between surveys of the tables of a fabric that does not change; 0 for none.
    @ivar alerts: rules for notifications.
    @ivar webhooks: names of webhooks, their URLs, formats, and Authorization headers or C{""}; C{mail} is
        None without mail, C{log} the path of the file of lines, C{""} for none.
    @ivar files: files for other programs, updated after each sweep.
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
    standby: bool
    levels: tuple[Level, ...]
    events: Level
    remote: RemoteSettings | None
    settings: PollerSettings
    rules: FindingRules
    limits: tuple[TallyLimit, ...]
    flaps: TallyLimit
    mostBitErrors: float
    surveySeconds: float
    topology: str
    alerts: AlertRules
    webhooks: tuple[tuple[str, str, str, str], ...]
    mail: MailSettings | None
    log: str
    files: FileSettings
    fabric: str = ""
    fabrics: tuple[MonitorConfig, ...] = ()


class _Mistake(Exception):
    """An invalid value; the message says what is expected."""


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


def _days(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not _LEAST_DAYS <= value <= _MOST:
        raise _Mistake(f"days, from {_LEAST_DAYS} to {_MOST}")
    return int(value * 86400)


def _megabytes(value: object) -> int:
    return _whole(1)(value) << 20


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


def _kindKey(text: str) -> str:
    try:
        return _kind(text)
    except _Mistake as mistake:
        raise _Mistake(f"is one of the {mistake}") from None


def _counterKey(text: str) -> str:
    try:
        return counterName(text)
    except InvalidRequest as error:
        raise _Mistake(str(error)) from None


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


def _timestamp(value: object) -> float:
    """Return a time in seconds since 1970; without a time zone it is the host's local time."""
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


def _label(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or name in _USED_LABELS:
        raise _Mistake(f"is a name of letters, digits and _, and none of {', '.join(_USED_LABELS)}")
    return name


def _header(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9-]+", name):
        raise _Mistake("is no name of a header")
    return name


def _line(value: object) -> str:
    text = _text(value)
    if not text or not text.isprintable():
        raise _Mistake("a text on one line")
    return text


def _fabricName(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}", name):
        raise _Mistake("is no name of a fabric: up to 32 letters, digits, _ and -")
    return name


_Check = Callable[[object], Any]

_ANY: Final = "*"
"""Name in a schema of what a table with names of the user's choice has."""

_WEBHOOK: Final = {
    "url": ("url", _url),
    "format": ("format", _format),
    "authorization-file": ("authorizationFile", _text),
}
_SCHEMA: Final[Mapping[str, Any]] = {
    "port": ("port", _text),
    "fabrics": {_ANY: (_fabricName, {})},
    "web": {"listen": ("listen", _text), "tokens": ("tokens", _text), "users": ("users", _text)},
    "metrics": {"counters": ("counters", _counters)},
    "history": {
        "file": ("file", _text),
        "url": ("url", _databaseURL),
        "standby": ("standby", _truth),
        **{
            level.name: {"days": ("retentionSeconds", _days), "megabytes": ("mostOctets", _megabytes)}
            for level in (*DEFAULT_LEVELS, EVENTS)
        },
    },
    "remote-write": {
        "url": ("url", _url),
        "spill": ("spill", _text),
        "megabytes": ("mostOctets", _megabytes),
        "query-url": ("queryURL", _url),
        "timeout": ("timeoutSeconds", _seconds(0.1)),
        "authorization-file": ("authorizationFile", _text),
        "labels": {_ANY: (_label, _line)},
        "headers": {_ANY: (_header, _line)},
    },
    "poll": {
        "interval": ("intervalSeconds", _seconds(0.1)),
        "sweep": ("sweepSeconds", _seconds(1.0)),
        "settle": ("settleSeconds", _seconds(0.1)),
        "states": ("stateSeconds", _seconds(1.0)),
        "timeout": ("timeoutSeconds", _seconds(0.01)),
        "outstanding": ("maxOutstanding", _whole(1)),
        "nodes": ("mostNodes", _whole(2)),
        "hops": ("maxHops", _whole(1, MOST_HOPS)),
        "notices": ("wantsNotices", _truth),
        "survey": ("surveySeconds", _seconds(0.0)),
    },
    "files": {"slurm": ("slurm", _text), "unfit": ("unfit", _text), "node-names": ("nodeNames", _text)},
    "findings": {
        "clear": ("clearSeconds", _seconds(0.0)),
        "bit-errors": ("mostBitErrors", _share),
        "topology": ("topology", _text),
        "ignored": ("ignored", _kinds),
        "severity": {_ANY: (_kindKey, _severity)},
    },
    "limits": {
        _ANY: (_counterKey, {"most": ("most", _whole(0, 1 << 63)), "seconds": ("seconds", _seconds(1.0))})
    },
    "alerts": {
        "delay": ("delaySeconds", _seconds(0.0)),
        "group": ("groupSeconds", _seconds(0.0)),
        "severity": ("least", _severity),
        "log": ("log", _text),
        "mail": {
            "host": ("host", _text),
            "port": ("port", _whole(1, 65535)),
            "from": ("sender", _address),
            "to": ("receivers", _addresses),
            "user": ("user", _text),
            "password-file": ("passwordFile", _text),
        },
        "webhooks": {_ANY: (str, _WEBHOOK)},
        "silences": {
            _ANY: (str, {"kind": ("kind", _text), "where": ("where", _text), "until": ("until", _timestamp)})
        },
    },
}
"""
Keys of the file. A table is a mapping; a value is the name of the setting, and the function that checks and
converts it. Behind L{_ANY} stands a function that checks the name, and what the name has.
"""


class _Reader:
    """
    Reads the values of a file, and collects its mistakes.

    @ivar values: settings by the names in L{_SCHEMA}, in nested tables.
    @ivar mistakes: lines with mistakes, and the mistakes.
    """

    def __init__(self, text: str, content: Mapping[str, Any], head: str = "", isWhole: bool = True) -> None:
        """
        @param head: beginning of the keys of a fabric, whose settings come before those for all fabrics.
        @param isWhole: whether nothing else belongs to this content.
        """
        self.mistakes: list[tuple[int, str]] = []
        self._head = head
        self._wrong: set[str] = set()
        self._lines = _linesOf(text)
        self.values = self._table("", content, _SCHEMA)
        if isWhole:
            self._complete()
        self._checkAccess()

    def table(self, *names: str) -> dict[str, Any]:
        """Return a copy of a table; empty if the file does not have it."""
        found: Any = self.values
        for name in names:
            found = found.get(name, {})
        return dict(found)

    def _mistake(self, key: str, text: str) -> None:
        self._wrong.add(key)
        own = f"{self._head}{key}"
        shown = own if own in self._lines or key not in self._lines else key
        self.mistakes.append((self._lineOf(shown), f"{shown}: {text}"))

    def separate(self, fabric: str, taken: dict[str, str]) -> None:
        """
        Report files and databases that another fabric has, too.

        @param taken: fabrics by the files and databases that they have.
        """
        history, remote = self.table("history"), self.table("remote-write")
        found = {f"files.{name}": path for name, path in self.table("files").items()}
        found["history"] = history.get("url") or history.get("file")
        found["remote-write.spill"] = remote.get("spill")
        for key, path in found.items():
            if path and taken.setdefault(path, fabric) != fabric:
                self._mistake(key, f"fabric {taken[path]} has {path}, too: it may contain {{fabric}}")

    def _lineOf(self, key: str) -> int:
        """Return the line of a key, or of the table around it, which may be on one line."""
        while key and key not in self._lines:
            parts = [line for name, line in self._lines.items() if name.startswith(f"{key}.")]
            if parts:
                return min(parts)
            key = key.rpartition(".")[0]
        return self._lines.get(key, 1)

    def _table(self, head: str, table: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
        """Return the valid settings of a table."""
        found: dict[str, Any] = {}
        for name, value in table.items():
            key = f"{head}{name}"
            try:
                setting, known = _known(name, schema)
                if isinstance(known, dict):
                    if not isinstance(value, dict):
                        raise _Mistake("is a table")
                    found.setdefault(setting, {}).update(self._table(f"{key}.", value, known))
                else:
                    found[setting] = _checked(known, value)
            except _Mistake as mistake:
                self._mistake(key, str(mistake))
        return found

    def _require(self, table: str, values: Mapping[str, Any], **settings: str) -> None:
        """Check that a table has some keys, which are given by their settings."""
        for setting, name in settings.items():
            if setting not in values and f"{table}.{name}" not in self._wrong:
                self._mistake(table, f"has no {name}")

    def _complete(self) -> None:
        """Report keys that are missing beside others, or exclude each other."""
        history, mail = self.table("history"), self.table("alerts", "mail")
        if history.get("file") and history.get("url"):
            self._mistake("history.url", "there is a history.file, too: which of them is it?")
        if history.get("standby") and not (history.get("file") or history.get("url")):
            self._mistake(
                "history.standby", "monitors share a history.file or history.url, of which there is none"
            )
        if mail:
            self._require("alerts.mail", mail, host="host", sender="from", receivers="to")
        remote = self.table("remote-write")
        if remote:
            self._require("remote-write", remote, url="url", spill="spill")
            if self.table("poll").get("intervalSeconds", _LEAST_SENT) < _LEAST_SENT:
                least = f"{_LEAST_SENT:g} s, as samples have whole seconds"
                self._mistake("poll.interval", f"with remote-write it is at least {least}")
        for name, webhook in self.table("alerts", "webhooks").items():
            self._require(f"alerts.webhooks.{name}", webhook, url="url")

    def _checkAccess(self) -> None:
        """Refuse pages that everybody in the network could read."""
        web = self.table("web")
        listen = web.get("listen", "")
        mistake = mistakeIn(listen) if listen else ""
        if mistake:
            self._mistake("web.listen", f"{listen!r} is not an endpoint: {mistake}")
        elif not (isLoopback(listen or DEFAULT_LISTEN) or web.get("tokens") or web.get("users")):
            self._mistake(
                "web.listen",
                f"{listen!r} is beyond this host, where everybody could read: give web.tokens or web.users, "
                f"or listen on loopback, as {DEFAULT_LISTEN}",
            )

    def limit(self, usual: TallyLimit) -> TallyLimit:
        """Return the limit for a counter, with the changes of the file."""
        given = self.table("limits", usual.counter)
        return TallyLimit(usual.counter, given.get("most", usual.most), given.get("seconds", usual.seconds))


def _known(name: str, schema: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the setting of a key, and the schema or the check of its value."""
    if _ANY in schema:
        check, known = schema[_ANY]
        return check(name), known
    if name not in schema:
        raise _Mistake("there is no such key")
    known = schema[name]
    return known if isinstance(known, tuple) else (name, known)


def _checked(check: _Check, value: object) -> Any:
    try:
        return check(value)
    except _Mistake as mistake:
        raise _Mistake(f"is {mistake}, not {value!r}") from None


def _linesOf(text: str) -> dict[str, int]:
    """Return the line numbers at which tables and keys first appear, which TOML's parser does not report."""
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
    @raise InvalidRequest: there are mistakes; the message has a line for each, with its line number.
    """
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidRequest(f"{name}: {error}") from error
    sections = content.get("fabrics")
    if not isinstance(sections, dict) or not all(isinstance(one, dict) for one in sections.values()):
        sections = {}
    named = {**content, "fabrics": dict.fromkeys(sections, {})} if sections else content
    reader = _Reader(text, named, isWhole=not sections)
    parts: dict[str, _Reader] = {}
    taken: dict[str, str] = {}
    for fabric, section in sections.items():
        common = {key: value for key, value in content.items() if key != "fabrics"}
        head = f"fabrics.{fabric}."
        part = parts[fabric] = _Reader(text, _merged(common, section, fabric), head)
        part.separate(fabric, taken)
        for key in _SHARED & section.keys():
            part.mistakes.append((part._lineOf(head + key), f"{head}{key}: is one for all fabrics"))
    mistakes = {mistake for each in (reader, *parts.values()) for mistake in each.mistakes}
    if mistakes:
        lines = [f"{name}, line {line}: {mistake}" for line, mistake in sorted(mistakes)]
        raise InvalidRequest("\n".join(lines))
    fabrics = tuple(replace(_configOf(part, fabric), listen="") for fabric, part in parts.items())
    return replace(_configOf(reader, ""), fabrics=fabrics)


def _merged(common: Any, own: Any, fabric: str) -> Any:
    """Return the settings of a fabric: its own, and those for all fabrics, where texts have its name."""
    if isinstance(common, dict) and isinstance(own, dict):
        return {key: _merged(common.get(key), own.get(key), fabric) for key in {**common, **own}}
    value = common if own is None else own
    if isinstance(value, dict):
        return {key: _merged(None, one, fabric) for key, one in value.items()}
    return value.replace("{fabric}", fabric) if isinstance(value, str) else value


def _configOf(reader: _Reader, fabric: str) -> MonitorConfig:
    """Return the configuration that was read without mistakes."""
    web, history, poll = reader.table("web"), reader.table("history"), reader.table("poll")
    found, alerts = reader.table("findings"), reader.table("alerts")
    known = {limit.counter for limit in (*DEFAULT_LIMITS, DEFAULT_FLAPS)}
    more = tuple(
        reader.limit(TallyLimit(counter, 0, 3600.0))
        for counter in reader.table("limits")
        if counter not in known
    )
    return MonitorConfig(
        port=reader.values.get("port", ""),
        listen=web.get("listen", DEFAULT_LISTEN),
        tokens=web.get("tokens", ""),
        users=web.get("users", ""),
        counters=reader.table("metrics").get("counters", METRICS),
        history=history.get("url") or history.get("file", ""),
        standby=history.get("standby", False),
        levels=tuple(replace(level, **history.get(level.name, {})) for level in DEFAULT_LEVELS),
        events=replace(EVENTS, **history.get(EVENTS.name, {})),
        remote=_remote(reader.table("remote-write"), fabric),
        surveySeconds=poll.pop("surveySeconds", DEFAULT_SURVEY_SECONDS),
        settings=PollerSettings(**poll),
        rules=FindingRules(
            DEFAULT_RULES.raiseSeconds,
            clearSeconds=found.get("clearSeconds", DEFAULT_RULES.clearSeconds),
            ignored=found.get("ignored", frozenset()),
            severities=found.get("severity", {}),
        ),
        limits=tuple(map(reader.limit, DEFAULT_LIMITS)) + more,
        flaps=reader.limit(DEFAULT_FLAPS),
        mostBitErrors=found.get("mostBitErrors", MOST_BIT_ERRORS),
        topology=found.get("topology", ""),
        webhooks=tuple(
            (
                *(webhook, given["url"], given.get("format", "alertmanager")),
                _secretIn(given.get("authorizationFile", ""), f"authorization of webhook {webhook}"),
            )
            for webhook, given in alerts.pop("webhooks", {}).items()
        ),
        mail=_mail(alerts.pop("mail", {})),
        log=alerts.pop("log", ""),
        alerts=AlertRules(
            silences=tuple(Silence(**given) for given in alerts.pop("silences", {}).values()), **alerts
        ),
        files=FileSettings(**reader.table("files")),
        fabric=fabric,
    )


def _secretIn(path: str, name: str) -> str:
    """Return the secret in a file, which has one line; C{""} without a path."""
    if not path:
        return ""
    try:
        secret = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{name}: {error}") from error
    if len(secret.splitlines()) != 1:
        raise InvalidRequest(f"{name}: {path} has no line, or several")
    return secret


def _mail(given: dict[str, Any]) -> MailSettings | None:
    if not given:
        return None
    password = _secretIn(given.pop("passwordFile", ""), "password of mail")
    return MailSettings(**given, password=password)


def _remote(given: dict[str, Any], fabric: str) -> RemoteSettings | None:
    if not given:
        return None
    if fabric:
        given["labels"] = {"fabric": fabric, **given.get("labels", {})}
    authorization = _secretIn(given.pop("authorizationFile", ""), "authorization of remote-write")
    pairs: dict[str, Any] = {name: tuple(given.pop(name, {}).items()) for name in ("labels", "headers")}
    return RemoteSettings(**given, **pairs, authorization=authorization)


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
