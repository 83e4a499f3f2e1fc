"""The file of the fabric monitor's configuration: its keys, and all mistakes in it, with their lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from txrdma.fabric.sweepbounds import MOST_HOPS
from txrdma.kit.serverstrings import isLoopback, mistakeIn
from txrdma.kit.webaccess import UNIX
from txrdma.monitor import configvalues as values
from txrdma.monitor.configvalues import counter, days, InvalidValue, megabytes, seconds, string, wholeNumber
from txrdma.monitor.diagnosis.tallies import TallyLimit
from txrdma.monitor.series.level import DEFAULT_LEVELS, EVENTS

DEFAULT_LISTEN: Final = "tcp:9315:interface=127.0.0.1"

_LEAST_SENT: Final = 2.0

_TABLE: Final = re.compile(r"\s*\[\[?([^\[\]]+)\]\]?\s*(#.*)?$")
_KEY: Final = re.compile(r"\s*([A-Za-z0-9_.\"'-]+)\s*=")

_MODE: Final = re.compile(r":mode=([0-7]+)(:|$)")
_OTHERS_WRITE: Final = 0o002
"""Right to connect to a UNIX socket, of users who neither own it nor are in its group."""

_Check = Callable[[object], Any]

_ANY: Final = "*"
"""Name in a schema for the contents of a table whose names the user chooses."""

_WEBHOOK: Final = {
    "url": values.url,
    "format": values.webhookFormat,
    "authorization-file": ("authorizationFile", string),
}
_SILENCE: Final = {"kind": string, "where": string, "until": values.timestamp, "times": values.windows}
SCHEMA: Final[Mapping[str, Any]] = {
    "port": string,
    "fabrics": {
        _ANY: (
            values.fabricName,
            {"url": values.siteURL, "authorization-file": ("authorizationFile", string)},
        )
    },
    "web": {
        "listen": string,
        "tokens": string,
        "users": string,
        "proxy": {
            "addresses": values.proxyAddresses,
            "user-header": ("userHeader", values.headerName),
            "role-header": ("roleHeader", values.headerName),
            "operators": values.roles,
        },
    },
    "metrics": {"counters": values.counters},
    "history": {
        "file": string,
        "url": values.databaseURL,
        "standby": values.boolean,
        **{
            level.name: {"days": ("retentionSeconds", days), "megabytes": ("mostOctets", megabytes)}
            for level in (*DEFAULT_LEVELS, EVENTS)
        },
    },
    "remote-write": {
        "url": values.url,
        "spill": string,
        "megabytes": ("mostOctets", megabytes),
        "query-url": ("queryURL", values.url),
        "timeout": ("timeoutSeconds", seconds(0.1)),
        "authorization-file": ("authorizationFile", string),
        "labels": {_ANY: (values.labelName, values.lineOfText)},
        "headers": {_ANY: (values.headerName, values.lineOfText)},
    },
    "poll": {
        "interval": ("intervalSeconds", seconds(0.1)),
        "sweep": ("sweepSeconds", seconds(1.0)),
        "settle": ("settleSeconds", seconds(0.1)),
        "states": ("stateSeconds", seconds(1.0)),
        "timeout": ("timeoutSeconds", seconds(0.01)),
        "outstanding": ("maxOutstanding", wholeNumber(1)),
        "nodes": ("mostNodes", wholeNumber(2)),
        "hops": ("maxHops", wholeNumber(1, MOST_HOPS)),
        "notices": ("wantsNotices", values.boolean),
        "survey": ("surveySeconds", seconds(0.0)),
        "collectors": values.clientEndpoints,
        "collector-key-file": ("collectorKeyFile", string),
    },
    "files": {"slurm": string, "unfit": string, "node-names": ("nodeNames", string)},
    "slurm": {"jobs": values.command},
    "findings": {
        "clear": ("clearSeconds", seconds(0.0)),
        "bit-errors": ("mostBitErrors", values.errorRate),
        "topology": string,
        "ignored": values.findingKinds,
        "severity": {_ANY: (values.findingKind, values.severity)},
    },
    "limits": {_ANY: (counter, {"most": wholeNumber(0, 1 << 63), "seconds": seconds(1.0)})},
    "alerts": {
        "delay": ("delaySeconds", seconds(0.0)),
        "group": ("groupSeconds", seconds(0.0)),
        "severity": ("least", values.severity),
        "log": string,
        "syslog": {"address": values.syslogAddress, "facility": values.facility},
        "mail": {
            "host": values.host,
            "port": wholeNumber(1, 65535),
            "from": ("sender", values.mailAddress),
            "to": ("receivers", values.mailAddresses),
            "user": string,
            "password-file": ("passwordFile", string),
        },
        "webhooks": {_ANY: (str, _WEBHOOK)},
        "silences": {_ANY: (str, _SILENCE)},
    },
}
"""
Keys of the file. A table is a mapping; a value is the function that checks and converts it, after the name of
the setting if that is not the key. L{_ANY} has a function that checks the name, and the schema of its value.
"""


class ConfigReader:
    """
    Reads the values of a file, and collects its mistakes.

    @ivar values: settings by the names in L{SCHEMA}, in nested tables.
    @ivar mistakes: lines with mistakes, and the mistakes.
    """

    def __init__(self, text: str, content: Mapping[str, Any], head: str = "", isWhole: bool = True) -> None:
        """
        @param head: beginning of the keys of a fabric, whose settings come before those for all fabrics.
        @param isWhole: whether this content is the whole configuration.
        """
        self.mistakes: list[tuple[int, str]] = []
        self._head = head
        self._wrong: set[str] = set()
        self._lines = _linesOf(text)
        self.values = self._table("", content, SCHEMA)
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
        self.mistakes.append((self.lineOf(shown), f"{shown}: {text}"))

    def separate(self, fabric: str, taken: dict[str, str]) -> None:
        """Report files, databases and collectors that another fabric has, too: those in C{taken}."""
        collectors = (("poll.collectors", one) for one in self.table("poll").get("collectors", ()))
        for key, path in (*self._paths(), *collectors):
            if taken.setdefault(path, fabric) != fabric:
                self._mistake(key, f"fabric {taken[path]} has {path}, too: it may contain {{fabric}}")

    def _paths(self) -> list[tuple[str, str]]:
        """Return the paths and databases that this fabric alone may write, with their keys."""
        history, files = self.table("history"), self.table("files")
        found = [
            ("history", history.get("url") or history.get("file")),
            ("remote-write.spill", self.table("remote-write").get("spill")),
            *((f"files.{key}", files.get(_known(key, SCHEMA["files"])[0])) for key in SCHEMA["files"]),
        ]
        return [(key, path) for key, path in found if path]

    def lineOf(self, key: str) -> int:
        """Return the line of a key, or of its table, which may be on one line."""
        while key and key not in self._lines:
            parts = [line for name, line in self._lines.items() if name.startswith(f"{key}.")]
            if parts:
                return min(parts)
            key = key.rpartition(".")[0]
        return self._lines.get(key, 1)

    def _table(self, head: str, table: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in table.items():
            key = f"{head}{name}"
            try:
                setting, known = _known(name, schema)
                if isinstance(known, dict):
                    if not isinstance(value, dict):
                        raise InvalidValue("is a table")
                    found.setdefault(setting, {}).update(self._table(f"{key}.", value, known))
                else:
                    found[setting] = _checked(known, value)
            except InvalidValue as mistake:
                self._mistake(key, str(mistake))
        return found

    def _require(self, table: str, values: Mapping[str, Any], **settings: str) -> None:
        """Check that a table has the keys of these settings."""
        for setting, name in settings.items():
            if setting not in values and f"{table}.{name}" not in self._wrong:
                self._mistake(table, f"has no {name}")

    def _complete(self) -> None:
        """Report missing keys that others need, and keys that exclude each other."""
        history, mail = self.table("history"), self.table("alerts", "mail")
        if history.get("file") and history.get("url"):
            self._mistake("history.url", "there is a history.file, too: which of them is it?")
        if history.get("standby") and not (history.get("file") or history.get("url")):
            self._mistake("history.standby", "needs history.file or history.url, which the monitors share")
        poll = self.table("poll")
        if poll.get("collectors"):
            self._require("poll", poll, collectorKeyFile="collector-key-file")
        proxy, syslog = self.table("web", "proxy"), self.table("alerts", "syslog")
        if proxy or "proxy" in self.table("web"):
            self._require("web.proxy", proxy, addresses="addresses")
        if syslog or "syslog" in self.table("alerts"):
            self._require("alerts.syslog", syslog, address="address")
        if mail:
            self._require("alerts.mail", mail, host="host", sender="from", receivers="to")
        remote = self.table("remote-write")
        if remote:
            self._require("remote-write", remote, url="url", spill="spill")
            if self.table("poll").get("intervalSeconds", _LEAST_SENT) < _LEAST_SENT:
                least = f"{_LEAST_SENT:g} s, as samples have whole seconds"
                self._mistake("poll.interval", f"with remote-write it is at least {least}")
        used: dict[str, str] = {}
        for key, path in self._paths():
            if used.setdefault(path, key) != key:
                self._mistake(key, f"{used[path]} is {path}, too")
        for name, webhook in self.table("alerts", "webhooks").items():
            self._require(f"alerts.webhooks.{name}", webhook, url="url")

    def _checkAccess(self) -> None:
        """Refuse pages that everybody in the network could read."""
        web = self.table("web")
        listen = web.get("listen", "")
        mistake = mistakeIn(listen) if listen else ""
        if mistake:
            self._mistake("web.listen", f"{listen!r} is not an endpoint: {mistake}")
        elif not (isLoopback(listen or DEFAULT_LISTEN) or any(map(web.get, ("tokens", "users", "proxy")))):
            self._mistake(
                "web.listen",
                f"{listen!r} is beyond this host, where everybody could read: give web.tokens, web.users or "
                f"web.proxy, or listen on loopback, as {DEFAULT_LISTEN}",
            )
        elif UNIX in self.table("web", "proxy").get("addresses", ()) and listen.startswith("unix:"):
            mode = _MODE.search(listen)
            if mode is None or int(mode[1], 8) & _OTHERS_WRITE:
                self._mistake(
                    "web.listen",
                    f"{listen!r} is open to all users of this host, whom web.proxy believes: add :mode=660",
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
        raise InvalidValue("there is no such key")
    known = schema[name]
    return known if isinstance(known, tuple) else (name, known)


def _checked(check: _Check, value: object) -> Any:
    try:
        return check(value)
    except InvalidValue as mistake:
        raise InvalidValue(f"is {mistake}, not {value!r}") from None


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
