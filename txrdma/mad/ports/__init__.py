"""
Management ports by name: C{"sim:fattree:128"}, C{"ibsim:h00003"}, C{"umad:mlx5_0/1"}.

The text before the first colon chooses a plugin (L{txrdma.interfaces.IMADPortStringParser}); the rest is for
that, written as L{txrdma.kit.strings} has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from txrdma.interfaces import IMADPort, IMADPortStringParser
from txrdma.kit.strings import parseString
from txrdma.mad.ports.strings import IbsimPortStringParser, UmadPortStringParser, VerbsPortStringParser


def openMADPort(reactor: object, description: str = "") -> IMADPort:
    """
    Open the management port of this name; the caller closes it.

    @param description: the name; without one, the first of the ports that can be opened now.
    @raise ValueError: the name has no meaning.
    @raise txrdma.error.DeviceUnavailable: the port cannot be opened.
    """
    args, kwargs = parseString(description or defaultMADPort(), "management port")
    prefix, *args = args
    for kind in _OWN:
        if kind.prefix == prefix:
            return kind().parsePort(reactor, *args, **kwargs)
    for parser in _parsers():
        if parser.prefix == prefix:
            return parser.parsePort(reactor, *args, **kwargs)
    kinds = ", ".join(madPortKinds())
    raise ValueError(f"management port {description!r}: there is no kind {prefix!r}, only {kinds}")


def defaultMADPort() -> str:
    """
    Name of the port that is opened by default: real ports before a running ibsim before a simulated fabric.
    """
    return availableMADPorts()[0]


def availableMADPorts() -> list[str]:
    """Strings of ports that could be opened now, real ones first."""
    return [name for parser in _parsers() for name in parser.available()]


def madPortKinds() -> list[str]:
    """Prefixes of the names of management ports."""
    return sorted(parser.prefix for parser in _parsers())


_OWN: Final = (IbsimPortStringParser, UmadPortStringParser, VerbsPortStringParser)
"""Plugins of this package: a search for those of all packages takes 16 ms of a command's start."""

_ORDER = ("umad", "ibsim", "sim", "vmad")
"""Order of prefixes: real ports first, C{vmad} last, which carries no SMPs."""


def _parsers() -> Iterator[IMADPortStringParser]:
    from twisted.plugin import getPlugins  # seldom needed, and slow

    parsers = getPlugins(IMADPortStringParser)
    return iter(
        sorted(parsers, key=lambda parser: _ORDER.index(parser.prefix) if parser.prefix in _ORDER else 0)
    )
