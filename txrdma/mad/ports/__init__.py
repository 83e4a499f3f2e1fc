"""
Management ports by name: C{"sim:fattree:128"}, C{"ibsim:h00003"}, C{"umad:mlx5_0/1"}.

What stands before the first colon chooses a plugin (L{txrdma.interfaces.IMADPortStringParser}); the rest is
for it, written as L{txrdma.strings} says.
"""

from __future__ import annotations

from collections.abc import Iterator

from twisted.plugin import getPlugins

from txrdma.interfaces import IMADPort, IMADPortStringParser
from txrdma.strings import parseString


def openMADPort(reactor: object, description: str = "") -> IMADPort:
    """
    Open the port of this name; who opens it closes it.

    @param description: without one, the first of those that could be opened now.
    @raise ValueError: there is no sense in the string.
    @raise txrdma.error.DeviceUnavailable: there is, but the port is not to be had.
    """
    args, kwargs = parseString(description or defaultMADPort(), "management port")
    prefix, *args = args
    for parser in _parsers():
        if parser.prefix == prefix:
            return parser.parsePort(reactor, *args, **kwargs)
    kinds = ", ".join(madPortKinds())
    raise ValueError(f"management port {description!r}: there is no kind {prefix!r}, only {kinds}")


def defaultMADPort() -> str:
    """What is opened when nothing is said: real ports before a running ibsim before a simulated fabric."""
    return availableMADPorts()[0]


def availableMADPorts() -> list[str]:
    """Strings of ports that could be opened now, real ones first."""
    return [name for parser in _parsers() for name in parser.available()]


def madPortKinds() -> list[str]:
    """What strings of ports begin with."""
    return sorted(parser.prefix for parser in _parsers())


_ORDER = ("umad", "ibsim", "sim", "vmad")
"""Real ports first; by C{vmad} last, which brings no datagrams of subnet management."""


def _parsers() -> Iterator[IMADPortStringParser]:
    parsers = getPlugins(IMADPortStringParser)
    return iter(
        sorted(parsers, key=lambda parser: _ORDER.index(parser.prefix) if parser.prefix in _ORDER else 0)
    )
