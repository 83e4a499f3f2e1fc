"""Configuration of the fabric monitor: a TOML file. All errors are reported together, with line numbers."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from twisted.logger import Logger

from txrdma.error import InvalidRequest
from txrdma.fabric.metricnames import METRICS
from txrdma.kit.logs import reasonText
from txrdma.kit.strings import printable
from txrdma.kit.values import frozen
from txrdma.kit.webaccess import ProxyRules
from txrdma.monitor.configfile import ConfigReader, DEFAULT_LISTEN
from txrdma.monitor.diagnosis.findinglog import FindingRules
from txrdma.monitor.diagnosis.tallies import TallyLimit
from txrdma.monitor.diagnosis.thresholds import DEFAULT_FLAPS, DEFAULT_LIMITS, MOST_BIT_ERRORS
from txrdma.monitor.events.alerts import AlertRules, Silence
from txrdma.monitor.events.channels import MailSettings
from txrdma.monitor.events.syslog import SyslogSettings
from txrdma.monitor.files import FileSettings
from txrdma.monitor.reading.poller import DEFAULT_RULES
from txrdma.monitor.reading.settings import PollerSettings
from txrdma.monitor.series.level import DEFAULT_LEVELS, EVENTS, Level
from txrdma.monitor.series.remotesettings import RemoteSettings

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


_log = Logger()

DEFAULT_SURVEY_SECONDS: Final = 900.0

_OTHERS: Final = 0o007
"""Rights of all users of the host who neither own a file nor are in its group."""

_SHARED: Final = frozenset(("web", "metrics", "fabrics"))
"""Tables that are for all fabrics."""


@frozen
class MonitorConfig:
    """
    Configuration of a fabric monitor.

    @ivar fabric: name of the fabric where there are several; else C{""}.
    @ivar fabrics: configurations of several fabrics, which have no separate pages; else empty.
    @ivar remotes: names of the fabrics whose monitors are other processes, the URLs of these, and
        Authorization headers or C{""}.
    @ivar port: name of the management port; C{""} for the first that can be opened.
    @ivar listen: server endpoint string of its pages; C{""} for none.
    @ivar tokens: path of the file of access tokens; C{users} is that of user names and passwords. C{""} for
        none.
    @ivar counters: names of the counters exported to Prometheus.
    @ivar history: path of the file of its history, or URL of its database; C{""} for none.
    @ivar standby: whether several monitors share the history, of which one writes and notifies.
    @ivar levels: levels of detail of the history, with their retention; C{events} is the retention of events.
    @ivar remote: engine that also receives the history; None for none.
    @ivar collectors: client endpoint strings of the processes that read counters for the monitor, or none;
        C{collectorKeyFile} is the path of the key shared with them.
    @ivar surveySeconds: time between surveys of the tables of a fabric that does not change; 0 for none.
    @ivar alerts: rules for notifications.
    @ivar proxy: which reverse proxies are believed about users; None for none.
    @ivar syslog: settings of notifications to syslog; None for none.
    @ivar webhooks: names of webhooks, their URLs, formats, and Authorization headers or C{""}; C{mail} is
        None without mail, C{log} the path of the file of lines, C{""} for none.
    @ivar files: files for other programs, updated after each sweep.
    @ivar limits: limits for errors; C{flaps} is the one for links that go down, C{mostBitErrors} the rate of
        bit errors.
    @ivar topology: path of the file of planned cables; C{""} for none.
    @ivar jobs: command that prints the jobs of Slurm; empty for none.
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
    proxy: ProxyRules | None = None
    syslog: SyslogSettings | None = None
    jobs: tuple[str, ...] = ()
    collectors: tuple[str, ...] = ()
    collectorKeyFile: str = ""
    fabric: str = ""
    fabrics: tuple[MonitorConfig, ...] = ()
    remotes: tuple[tuple[str, str, str], ...] = ()

    @property
    def hasSections(self) -> bool:
        """Return whether there are sections of fabrics."""
        return bool(self.fabrics or self.remotes)


def parseConfig(text: str, name: str = "fabric-monitor.toml") -> MonitorConfig:
    """
    Parse the text of a configuration.

    @param name: name of the file, for messages.
    @raise InvalidRequest: there are mistakes; the message has a line for each, with its line number.
    """
    try:
        content = tomllib.loads(text)
    except ValueError as error:
        raise InvalidRequest(f"{name}: {error}") from error
    sections = content.get("fabrics")
    if not isinstance(sections, dict) or not all(isinstance(one, dict) for one in sections.values()):
        sections = {}
    others = {name: one if "url" in one else {} for name, one in sections.items()}
    named = {**content, "fabrics": others} if sections else content
    reader = ConfigReader(text, named, isWhole=not sections)
    parts: dict[str, ConfigReader] = {}
    taken: dict[str, str] = {}
    for fabric in [name for name, one in others.items() if not one]:
        section = sections[fabric]
        common = {key: value for key, value in content.items() if key != "fabrics"}
        head = f"fabrics.{fabric}."
        part = parts[fabric] = ConfigReader(text, _merged(common, section, fabric), head)
        part.separate(fabric, taken)
        for key in _SHARED & section.keys():
            part.mistakes.append((part.lineOf(head + key), f"{head}{key}: is one for all fabrics"))
    mistakes = {mistake for each in (reader, *parts.values()) for mistake in each.mistakes}
    if mistakes:
        lines = [f"{name}, line {line}: {printable(mistake)}" for line, mistake in sorted(mistakes)]
        raise InvalidRequest("\n".join(lines))
    fabrics = tuple(replace(_configOf(part, fabric), listen="") for fabric, part in parts.items())
    remotes = tuple(
        (name, one["url"].replace("{fabric}", name), _authorization(one, f"fabric {name}"))
        for name, one in reader.table("fabrics").items()
        if one
    )
    return replace(_configOf(reader, ""), fabrics=fabrics, remotes=remotes)


def _authorization(given: dict[str, Any], name: str) -> str:
    """Return the Authorization header of a server's settings; C{""} for none."""
    return secretIn(given.pop("authorizationFile", ""), f"authorization of {name}")


def _merged(common: Any, own: Any, fabric: str) -> Any:
    """Return the settings of a fabric: its own ones, and those for all fabrics with its name inserted."""
    if isinstance(common, dict) and isinstance(own, dict):
        return {key: _merged(common.get(key), own.get(key), fabric) for key in {**common, **own}}
    value = common if own is None else own
    if isinstance(value, dict):
        return {key: _merged(None, one, fabric) for key, one in value.items()}
    if isinstance(value, list):
        return [_merged(None, one, fabric) for one in value]
    return value.replace("{fabric}", fabric) if isinstance(value, str) else value


def _configOf(reader: ConfigReader, fabric: str) -> MonitorConfig:
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
        collectors=poll.pop("collectors", ()),
        collectorKeyFile=poll.pop("collectorKeyFile", ""),
        surveySeconds=poll.pop("surveySeconds", DEFAULT_SURVEY_SECONDS),
        settings=PollerSettings(**poll),
        rules=FindingRules(
            DEFAULT_RULES.raiseSeconds,
            clearSeconds=found.get("clearSeconds", DEFAULT_RULES.clearSeconds),
            ignored=frozenset(found.get("ignored", ())),
            severities=found.get("severity", {}),
        ),
        limits=tuple(map(reader.limit, DEFAULT_LIMITS)) + more,
        flaps=reader.limit(DEFAULT_FLAPS),
        mostBitErrors=found.get("mostBitErrors", MOST_BIT_ERRORS),
        topology=found.get("topology", ""),
        webhooks=tuple(
            (
                *(webhook, given["url"], given.get("format", "alertmanager")),
                _authorization(given, f"webhook {webhook}"),
            )
            for webhook, given in alerts.pop("webhooks", {}).items()
        ),
        mail=_mail(alerts.pop("mail", {})),
        log=alerts.pop("log", ""),
        syslog=SyslogSettings(**syslog) if (syslog := alerts.pop("syslog", {})) else None,
        proxy=ProxyRules(**web["proxy"]) if web.get("proxy") else None,
        alerts=AlertRules(
            silences=tuple(Silence(**given) for given in alerts.pop("silences", {}).values()), **alerts
        ),
        files=FileSettings(**reader.table("files")),
        jobs=reader.table("slurm").get("jobs", ()),
        fabric=fabric,
    )


def secretIn(path: str, name: str) -> str:
    """Return the secret in a file with one line; C{""} without a path."""
    if not path:
        return ""
    try:
        with open(path, encoding="utf-8-sig") as file:
            isShared = bool(os.fstat(file.fileno()).st_mode & _OTHERS)
            secret = file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{name}: {path}: {reasonText(error)}") from error
    if len(secret.splitlines()) != 1:
        raise InvalidRequest(f"{name}: {path} must have exactly one line")
    if isShared:
        _warn(path)
    return secret


@lru_cache(maxsize=100)  # once, also if the configuration is read again, or several fabrics have one file
def _warn(path: str) -> None:
    _log.warn("everybody on this host can read the secret in {path}: chmod 600 {path}", path=path)


def _mail(given: dict[str, Any]) -> MailSettings | None:
    if not given:
        return None
    password = secretIn(given.pop("passwordFile", ""), "password of mail")
    return MailSettings(**given, password=password)


def _remote(given: dict[str, Any], fabric: str) -> RemoteSettings | None:
    if not given:
        return None
    if fabric:
        given["labels"] = {"fabric": fabric, **given.get("labels", {})}
    authorization = _authorization(given, "remote-write")
    pairs: dict[str, Any] = {name: tuple(given.pop(name, {}).items()) for name in ("labels", "headers")}
    return RemoteSettings(**given, **pairs, authorization=authorization)


def readConfig(path: str) -> MonitorConfig:
    """Read a configuration from a file. Raises L{InvalidRequest} with all mistakes in it."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{path}: {reasonText(error)}") from error
    return parseConfig(text, path)
