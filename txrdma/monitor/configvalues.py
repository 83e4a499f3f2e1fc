"""Values in the configuration of the fabric monitor: each function checks and converts a value of TOML."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from contextlib import suppress
from datetime import date, datetime
from functools import partial
from ipaddress import ip_address, ip_network
from typing import Final
from urllib.parse import urlsplit

from txrdma.error import InvalidRequest
from txrdma.fabric.advice import ADVICE, Severity
from txrdma.fabric.errorcounters import counterName, shownName
from txrdma.fabric.metricnames import METRICS
from txrdma.kit.webaccess import UNIX
from txrdma.monitor.events.alerts import WeeklyTime
from txrdma.monitor.events.syslog import FACILITIES, partsOf

_YEAR: Final = 365 * 86400.0
_MOST: Final = 1_000_000
_LEAST_DAYS: Final = 0.05
_HOST: Final = re.compile(r"([A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.(?!$)|\.?$))+")
"""Names of hosts (RFC 1123); Twisted refuses others, such as those with C{_}."""

_LONGEST_HOST: Final = 253
_PLACE: Final = r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+):[0-9]{1,5}"
_USED_LABELS: Final = ("__name__", "column", "guid", "port")
_METRICS: Final = {name.lower(): name for name in METRICS}
_WEEKDAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_CLOCK: Final = "([01][0-9]|2[0-3]):([0-5][0-9])"
_WINDOW: Final = re.compile(rf"(daily|{'|'.join(_WEEKDAYS)}) {_CLOCK}-{_CLOCK}")
_SEVERITIES: Final = {severity.name.lower(): severity for severity in Severity}


class InvalidValue(Exception):
    """An invalid value; the message says what is expected."""


def string(value: object) -> str:
    """Check a text."""
    if not isinstance(value, str):
        raise InvalidValue("a text")
    if "\0" in value:
        raise InvalidValue("a text without NUL")
    return value


def boolean(value: object) -> bool:
    """Check a truth value."""
    if not isinstance(value, bool):
        raise InvalidValue("true or false")
    return value


def _number(value: object, least: float, most: float, expected: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise InvalidValue(expected)
    return float(value)


def wholeNumber(least: int, most: int = _MOST) -> Callable[[object], int]:
    """Return a check of whole numbers."""

    def check(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise InvalidValue(f"a whole number from {least} to {most}")
        return value

    return check


def seconds(least: float) -> Callable[[object], float]:
    """Return a check of times in seconds."""
    expected = f"a number of seconds from {least:g} to {_YEAR:g}, a year"
    return partial(_number, least=least, most=_YEAR, expected=expected)


def days(value: object) -> int:
    """Check a number of days; return seconds."""
    return int(_number(value, _LEAST_DAYS, _MOST, f"days, from {_LEAST_DAYS} to {_MOST}") * 86400)


def megabytes(value: object) -> int:
    """Check a number of megabytes; return octets."""
    return wholeNumber(1)(value) << 20


def errorRate(value: object) -> float:
    """Check a rate of errors."""
    return _number(value, 1e-30, 0.5, "a rate between 1e-30 and 0.5, as 1e-14")


def matching(pattern: str, expected: str) -> Callable[[object], str]:
    """Return a check of texts, or of names in keys, by a regular expression for the whole text."""

    def check(value: object) -> str:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise InvalidValue(expected)
        return value

    return check


def _isFilled(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def listOf(check: Callable[[object], str], what: str, fewest: int = 0) -> Callable[[object], tuple[str, ...]]:
    """Return a check of lists of texts, each of which C{check} accepts; equal ones count once."""

    def checked(value: object) -> tuple[str, ...]:
        if not isinstance(value, list) or len(value) < fewest or not all(map(_isFilled, value)):
            raise InvalidValue(f"a list of {what}")
        return tuple(dict.fromkeys(map(check, value)))

    return checked


def command(value: object) -> tuple[str, ...]:
    """Check a command, whose words may be quoted as in a shell."""
    try:
        words = tuple(shlex.split(string(value)))
    except ValueError as error:
        raise InvalidValue(f"a command, whose quotes are closed: {value!r}") from error
    if not words:
        raise InvalidValue("a command, not an empty text")
    return words


def _counterMetric(value: object) -> str:
    name = _METRICS.get(string(value).lower())
    if name is None:
        known = ", ".join(map(shownName, METRICS))
        raise InvalidValue(f"names of counters, of which {value!r} is none: {known}")
    return name


def _kind(value: object) -> str:
    if value not in ADVICE:
        raise InvalidValue(f"kinds of findings, of which {value!r} is none: {', '.join(sorted(ADVICE))}")
    return str(value)


def findingKind(text: str) -> str:
    """Check the kind of a finding, in a key."""
    try:
        return _kind(text)
    except InvalidValue as mistake:
        raise InvalidValue(f"is one of the {mistake}") from None


def counter(text: str) -> str:
    """Check the name of a counter, in a key."""
    try:
        return counterName(text)
    except InvalidRequest as error:
        raise InvalidValue(str(error)) from None


def severity(value: object) -> Severity:
    """Check a severity."""
    severity = _SEVERITIES.get(value) if isinstance(value, str) else None
    if severity is None:
        raise InvalidValue(" or ".join(map(repr, _SEVERITIES)))
    return severity


def timestamp(value: object) -> float:
    """Return a time in seconds since 1970; without a time zone it is the host's local time."""
    with suppress(ValueError, OverflowError):  # of local times in the first and the last year of datetime
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, date):
            return datetime(value.year, value.month, value.day).timestamp()
    raise InvalidValue("a date or a time, as 2026-12-24T18:00:00Z, without quotes")


def windows(value: object) -> tuple[WeeklyTime, ...]:
    """Return windows of the week; one whose end is not after its begin ends on the next day."""
    found = []
    for text in value if isinstance(value, list) and value else [None]:
        match = _WINDOW.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise InvalidValue("a list of times of the week, as ['tue 22:00-04:00', 'daily 12:00-12:30']")
        begin, beginMinute, end, endMinute = map(int, match.groups()[1:])
        weekdays = tuple(range(7)) if match[1] == "daily" else (_WEEKDAYS.index(match[1]),)
        found.append(WeeklyTime(weekdays, begin * 60 + beginMinute, end * 60 + endMinute))
    return tuple(found)


def lineOfText(value: object) -> str:
    """Check a text on one line."""
    text = string(value)
    if not text or not text.isprintable():
        raise InvalidValue("a text on one line")
    return text


def _isHost(text: str) -> bool:
    """Return whether a text is an IP address, or a name that Twisted accepts."""
    try:
        ip_address(text)
    except ValueError:
        return len(text) <= _LONGEST_HOST and _HOST.fullmatch(text) is not None
    return True


def host(value: object) -> str:
    """Check the name or the address of a host."""
    text = string(value)
    if not _isHost(text.replace("{fabric}", "x")):
        raise InvalidValue("a name of letters, digits, - and dots, or an address of a host")
    return text


def url(value: object) -> str:
    """Check a URL of HTTP, as far as it can be checked without a connection."""
    text = _anyURL(value)
    with suppress(ValueError):  # of an invalid address or port
        parts = urlsplit(text.replace("{fabric}", "x"))
        if "@" in parts.netloc:
            raise InvalidValue("a URL without name and password: an authorization-file can have them")
        if parts.port != 0 and not parts.netloc.endswith(":") and _isHost(parts.hostname or ""):
            return text
    raise InvalidValue(
        "a URL with a name of letters, digits, - and dots or an address, and a port up to 65535, "
        "as http://host:9093/api/v2/alerts"
    )


def siteURL(value: object) -> str:
    """Check the URL of a site, to which paths are appended."""
    text = url(value)
    if "?" in text or "#" in text:
        raise InvalidValue("a URL without ? and #, as http://host:9315/fabrics/north")
    return text


_anyURL: Final = matching(r"https?://[^/\s]+[!-~]*", "a URL, as http://host:9093/api/v2/alerts")
databaseURL: Final = matching(r".*://.*", "a URL, as postgresql+psycopg://user@host/fabric")
webhookFormat: Final = matching("alertmanager|webhook", "'alertmanager' or 'webhook'")
mailAddress: Final = matching(
    r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]+@[A-Za-z0-9.{}-]+", "an address of mail in ASCII, as fabric@example.org"
)
labelName: Final = matching(
    rf"(?!({'|'.join(_USED_LABELS)})$)[A-Za-z_][A-Za-z0-9_]*",
    f"is a name of letters, digits and _, and not one of {', '.join(_USED_LABELS)}",
)
_syslog: Final = matching(
    rf"(udp|tcp):{_PLACE}|tls:{_PLACE}(:(trustRoots|certificate|privateKey)=[^:]+)*|unix:/.+",
    "an address, as udp:loghost:514, tcp:[2001:db8::1]:601, tls:loghost:6514 or unix:/dev/log",
)


def syslogAddress(value: object) -> str:
    """Check the address of a syslog daemon."""
    text = _syslog(value)
    if not text.startswith("unix:"):
        _kind, name, port, _more = partsOf(text)
        host(name)
        wholeNumber(1, 65535)(int(port))
    return text


def _proxyAddress(value: object) -> str:
    text = string(value)
    if text != UNIX:
        try:
            isAll = ip_network(text).prefixlen == 0
        except ValueError as error:
            expected = "addresses or networks, as 10.0.0.1 and 10.1.0.0/16, or 'unix'"
            raise InvalidValue(f"a list of {expected}: {error}") from None
        if isAll:
            raise InvalidValue(
                "a list of addresses of proxies, since every client there can claim to be any user"
            )
    return text


def facility(value: object) -> int:
    """Check the name of a facility of syslog; return its number."""
    number = FACILITIES.get(value) if isinstance(value, str) else None
    if number is None:
        raise InvalidValue(f"one of {', '.join(FACILITIES)}")
    return number


headerName: Final = matching(r"[A-Za-z0-9-]+", "is no name of a header")
fabricName: Final = matching(
    r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}", "is no name of a fabric: up to 32 letters, digits, _ and -"
)
counters: Final = listOf(_counterMetric, "names of counters")
findingKinds: Final = listOf(_kind, "kinds of findings")
mailAddresses: Final = listOf(mailAddress, "addresses of mail", fewest=1)
proxyAddresses: Final = listOf(_proxyAddress, "addresses or networks", fewest=1)
roles: Final = listOf(lineOfText, "names of roles or groups", fewest=1)
clientEndpoints: Final = listOf(string, "client endpoint strings, as tcp:reader1:9316", fewest=1)
