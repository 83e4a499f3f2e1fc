"""
Values in the configuration of the fabric monitor: each function checks a value of TOML and converts it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, datetime
from typing import Final

from txrdma.error import InvalidRequest
from txrdma.fabric.advice import ADVICE, Severity
from txrdma.fabric.errorcounters import counterName, shownName
from txrdma.fabric.metricnames import METRICS

_YEAR: Final = 365 * 86400.0
_MOST: Final = 1_000_000
_LEAST_DAYS: Final = 0.05
_USED_LABELS: Final = ("__name__", "column", "guid", "port")
_FORMATS: Final = ("alertmanager", "webhook")
_SEVERITIES: Final = {severity.name.lower(): severity for severity in Severity}


class InvalidValue(Exception):
    """An invalid value; the message says what is expected."""


def string(value: object) -> str:
    """Check a text."""
    if not isinstance(value, str):
        raise InvalidValue("a text")
    return value


def boolean(value: object) -> bool:
    """Check a truth value."""
    if not isinstance(value, bool):
        raise InvalidValue("true or false")
    return value


def wholeNumber(least: int, most: int = _MOST) -> Callable[[object], int]:
    """Return a check of whole numbers."""

    def check(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise InvalidValue(f"a whole number from {least} to {most}")
        return value

    return check


def seconds(least: float) -> Callable[[object], float]:
    """Return a check of times in seconds."""

    def check(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= _YEAR:
            raise InvalidValue(f"a number of seconds from {least:g} to {_YEAR:g}, a year")
        return float(value)

    return check


def days(value: object) -> int:
    """Check a number of days; return seconds."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not _LEAST_DAYS <= value <= _MOST:
        raise InvalidValue(f"days, from {_LEAST_DAYS} to {_MOST}")
    return int(value * 86400)


def megabytes(value: object) -> int:
    """Check a number of megabytes; return octets."""
    return wholeNumber(1)(value) << 20


def errorRate(value: object) -> float:
    """Check a rate of errors."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1:
        raise InvalidValue("a rate between 0 and 1, as 1e-14")
    return float(value)


def _counter(text: str) -> str:
    for name in METRICS:
        if name.lower() == text.lower():
            return name
    raise InvalidValue(f"names of counters, of which {text!r} is none: {', '.join(map(shownName, METRICS))}")


def counters(value: object) -> tuple[str, ...]:
    """Check names of counters."""
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise InvalidValue("a list of names of counters")
    return tuple(dict.fromkeys(_counter(each) for each in value))


def _kind(text: str) -> str:
    if text not in ADVICE:
        raise InvalidValue(f"kinds of findings, of which {text!r} is none: {', '.join(sorted(ADVICE))}")
    return text


def findingKinds(value: object) -> frozenset[str]:
    """Check kinds of findings."""
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise InvalidValue("a list of kinds of findings")
    return frozenset(_kind(each) for each in value)


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


def url(value: object) -> str:
    """Check a URL of HTTP."""
    text = string(value)
    if not re.match(r"https?://[^/\s]+", text):
        raise InvalidValue("a URL, as http://host:9093/api/v2/alerts")
    return text


def databaseURL(value: object) -> str:
    """Check the URL of a database."""
    text = string(value)
    if "://" not in text:
        raise InvalidValue("a URL, as postgresql+psycopg://user@host/fabric")
    return text


def webhookFormat(value: object) -> str:
    """Check the format of a webhook."""
    if value not in _FORMATS:
        raise InvalidValue(" or ".join(map(repr, _FORMATS)))
    return str(value)


def timestamp(value: object) -> float:
    """Return a time in seconds since 1970; without a time zone it is the host's local time."""
    if isinstance(value, datetime):
        return value.timestamp()
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day).timestamp()
    raise InvalidValue("a date or a time, as 2026-12-24T18:00:00Z, without quotes")


def mailAddress(value: object) -> str:
    """Check an address of mail."""
    text = string(value)
    if not re.fullmatch(r"[^\s@,]+@[^\s@,]+", text):
        raise InvalidValue("an address of mail, as fabric@example.org")
    return text


def mailAddresses(value: object) -> tuple[str, ...]:
    """Check a list of addresses of mail."""
    if not isinstance(value, list) or not value:
        raise InvalidValue("a list of addresses of mail")
    return tuple(map(mailAddress, value))


def clientEndpoints(value: object) -> tuple[str, ...]:
    """Check a list of client endpoint strings."""
    if not isinstance(value, list) or not value or not all(isinstance(each, str) and each for each in value):
        raise InvalidValue("a list of client endpoint strings, as tcp:reader1:9316")
    return tuple(dict.fromkeys(value))


def labelName(name: str) -> str:
    """Check the name of a label, in a key."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or name in _USED_LABELS:
        raise InvalidValue(f"is a name of letters, digits and _, and none of {', '.join(_USED_LABELS)}")
    return name


def headerName(name: str) -> str:
    """Check the name of a header, in a key."""
    if not re.fullmatch(r"[A-Za-z0-9-]+", name):
        raise InvalidValue("is no name of a header")
    return name


def lineOfText(value: object) -> str:
    """Check a text on one line."""
    text = string(value)
    if not text or not text.isprintable():
        raise InvalidValue("a text on one line")
    return text


def fabricName(name: str) -> str:
    """Check the name of a fabric, in a key."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}", name):
        raise InvalidValue("is no name of a fabric: up to 32 letters, digits, _ and -")
    return name
