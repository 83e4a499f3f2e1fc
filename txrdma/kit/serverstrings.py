"""
Checks of server endpoint strings: whether they accept only connections from this host, and whether they are
valid.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import Final

from twisted.internet.interfaces import IStreamServerEndpointStringParser
from twisted.plugin import getPlugins

from txrdma.kit.strings import parseString

_BUILT_IN: Final = frozenset(("tcp", "unix", "ssl"))
_BY_ADDRESS: Final = {"tcp": ("port", "interface", "backlog"), "tcp6": ("port", "backlog", "interface")}
"""Kinds of endpoints with a port and an interface, and the order of their parameters."""


def _partsOf(listen: str) -> dict[str, str]:
    """Return the parts of a C{tcp:} or C{tcp6:} string by name; raise C{ValueError} for invalid ones."""
    (kind, *positional), named = parseString(listen, "endpoint")
    names = _BY_ADDRESS[kind]
    taken = names[: len(positional)]
    wrong = [repr(name) for name in named if name not in names or name in taken]
    if wrong or len(positional) > len(names):
        raise ValueError(f"{kind}: takes {', '.join(names)}, but not {', '.join(wrong) or 'more'}")
    return {**dict(zip(taken, positional, strict=True)), **named}


def _kindOf(listen: str) -> str:
    return listen.partition(":")[0]


def isLoopback(listen: str) -> bool:
    """Return whether a server endpoint string accepts only connections from this host."""
    kind = _kindOf(listen)
    if kind not in _BY_ADDRESS:
        return kind == "unix"
    try:
        interface = _partsOf(listen).get("interface", "")
        return interface == "localhost" or ip_address(interface).is_loopback
    except ValueError:
        return False


def mistakeIn(listen: str) -> str:
    """Return what is wrong with a server endpoint string; C{""} if nothing is found without listening."""
    kind = _kindOf(listen)
    if kind in _BY_ADDRESS:
        try:
            port = _partsOf(listen).get("port", "")
        except ValueError as error:
            return str(error)
        if not (port.isascii() and port.isdigit() and int(port) <= 65535):
            return f"{port!r} is not a port number: it is from 0 to 65535"
        return ""
    kinds = {plugin.prefix for plugin in getPlugins(IStreamServerEndpointStringParser)} | _BUILT_IN
    if kind not in kinds:
        return f"there is no kind of endpoint {kind!r}, but {', '.join(sorted(kinds))}: as tcp:9315"
    return ""
