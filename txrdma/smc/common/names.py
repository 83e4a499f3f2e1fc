"""Text for log messages and reports: diagnosis codes, log prefixes."""

from __future__ import annotations

from enum import Enum

from twisted.internet.interfaces import IProtocol
from twisted.internet.tcp import Connection

from txrdma.streams.transport import logName


def diagnosisName(diagnosis: Enum | int | None) -> str | None:
    """Return the name of a diagnosis, or its number in hexadecimal if it has no name."""
    if diagnosis is None:
        return None
    return diagnosis.name if isinstance(diagnosis, Enum) else f"{diagnosis:08x}"


def prefixFor(transport: Connection, protocol: IProtocol) -> str:
    """Return the log prefix of a protocol on a TCP transport that was created for another protocol."""
    _name, comma, rest = transport.logstr.partition(",")
    return logName(protocol) + comma + rest
