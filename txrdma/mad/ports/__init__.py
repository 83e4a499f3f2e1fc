"""
Management ports by name: C{"sim:fattree:128"}, C{"ibsim:h00003"}, C{"umad:mlx5_0/1"}.

The text before the first colon chooses a plugin (L{txrdma.interfaces.IMADPortStringParser}); the rest is for
the plugin, in the syntax of L{txrdma.kit.strings}. The functions here open a port, and choose the default
one.

Modules, lowest first:

 - C{descriptor}: the base of ports with a file descriptor, and the limit of datagrams that wait
   (C{MOST_WAITING}).
 - C{batches}: many datagrams in one system call (at most C{MOST}).
 - C{ibsim}: ports in ibsim's simulated fabrics, and how long ibsim may take to answer (C{CONTROL_SECONDS}).
 - C{registration}: registers classes with the kernel's umad.
 - C{umad}: the kernel's ports; time-outs and RMPP of the kernel.
 - C{verbsport}: a queue pair for datagrams on any verbs device: its numbers of receives, sends and address
   handles (C{RECEIVES}, C{SENDS}, C{HANDLES}).
 - C{strings}: the strings of ports of this package (C{sim:} is in L{txrdma.sim.strings}).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from txrdma.error import DeviceUnavailable
from txrdma.interfaces import IMADPort, IMADPortStringParser
from txrdma.kit.strings import parseString
from txrdma.mad.ports.strings import IbsimPortStringParser, UmadPortStringParser, VerbsPortStringParser


def openMADPort(reactor: object, description: str = "") -> IMADPort:
    """
    Open the management port of this name; the caller closes it.

    @param description: the name; without one, L{defaultMADPort}.
    @raise ValueError: the name is invalid.
    @raise txrdma.error.DeviceUnavailable: the port cannot be opened, or there is none.
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
    Name of the port that is opened by default: the first one of this host, or an ibsim of this user or root.

    A simulated fabric is used only by name: its health would hide the failure of this host's adapter.

    @raise txrdma.error.DeviceUnavailable: there is none.
    """
    for name in availableMADPorts():
        if name.partition(":")[0] not in _BY_NAME:
            return name
    raise DeviceUnavailable(
        "no management port can be opened: check that there is a device, that ib_umad is loaded, and that "
        "this user may open /dev/infiniband/umad*. For a simulated fabric: sim:fattree:128"
    )


def availableMADPorts() -> list[str]:
    """Strings of ports that could be opened now, real ones first."""
    return [name for parser in _parsers() for name in parser.available()]


def madPortKinds() -> list[str]:
    """Prefixes of the names of management ports."""
    return sorted(parser.prefix for parser in _parsers())


_OWN: Final = (IbsimPortStringParser, UmadPortStringParser, VerbsPortStringParser)
"""Plugins of this package: a search for those of all packages takes 16 ms of a command's start."""

_BY_NAME: Final = ("sim", "vmad")
"""Prefixes of ports that are never opened by default; C{vmad} carries no SMPs."""

_ORDER: Final = ("umad", "ibsim", *_BY_NAME)


def _parsers() -> Iterator[IMADPortStringParser]:
    from twisted.plugin import getPlugins  # seldom needed, and slow

    parsers = getPlugins(IMADPortStringParser)
    return iter(
        sorted(parsers, key=lambda parser: _ORDER.index(parser.prefix) if parser.prefix in _ORDER else 0)
    )
