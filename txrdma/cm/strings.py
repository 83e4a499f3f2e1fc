r"""
Endpoint strings for protocols of messages: C{rdma:192.0.2.1:7471}, C{ib:service=0x42:path=dgid fe80\:\:1}.

Written as Twisted's endpoint strings are. Keys of both kinds are C{device}, a device string; C{receives},
C{messageBytes} and C{reads}, the terms; C{credits=yes} or C{no}, whether a client greets as one of ours;
C{privateData} of a client's REQ, and C{backlog} of a server. Twisted loads this module whenever it looks for
plugins, so it imports next to nothing.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Any, TYPE_CHECKING

from zope.interface import implementer

from twisted.plugin import getPlugins, IPlugin

from txrdma.kit.strings import parseString
from txrdma.messages import IMessageClientEndpoint, IMessageEndpointStringParser, IMessageServerEndpoint

if TYPE_CHECKING:
    from txrdma.cm.terms import Terms


def messageClientFromString(reactor: object, description: str) -> IMessageClientEndpoint:
    """
    Make the endpoint of a client of a string.

    @raise ValueError: the string has no meaning; it says why.
    """
    parser, args, kwargs = _understood(description)
    return parser.parseMessageClient(reactor, *args, **kwargs)


def messageServerFromString(reactor: object, description: str) -> IMessageServerEndpoint:
    """
    Make the endpoint of a server of a string.

    @raise ValueError: the string has no meaning; it says why.
    """
    parser, args, kwargs = _understood(description)
    return parser.parseMessageServer(reactor, *args, **kwargs)


def _parsers() -> Iterator[IMessageEndpointStringParser]:
    yield from (IBStringParser(), RDMAStringParser())  # to look at all plugins of a machine takes 10 ms
    yield from getPlugins(IMessageEndpointStringParser)


def _understood(description: str) -> tuple[IMessageEndpointStringParser, list[str], dict[str, str]]:
    args, kwargs = parseString(description, "endpoint")
    prefix, *args = args
    for parser in _parsers():
        if parser.prefix == prefix:
            return parser, args, kwargs
    raise ValueError(f"endpoint {description!r}: there is no kind {prefix!r} for messages")


class Keys:
    """The arguments of one string, which are taken out one by one."""

    def __init__(self, kind: str, names: tuple[str, ...], args: tuple[str, ...], kwargs: dict[str, str]):
        self._kind, self._left = kind, dict(kwargs)
        for name, value in zip(chain(names, [""] * len(args)), args):  # noqa: B905  # fewer than names are fine
            if not name or name in self._left:
                raise ValueError(f"{kind}: {value!r} is too much")
            self._left[name] = value

    def take(self, key: str, default: str = "") -> str:
        """The value of a key."""
        return self._left.pop(key, default)

    def number(self, key: str, default: int | None, least: int, most: int) -> int:
        """The number that a key has; decimal, or with C{0x} before it."""
        value = self.take(key, "" if default is None else str(default))
        try:
            number = int(value, 0)
            if not least <= number <= most:
                raise ValueError
        except ValueError:
            raise ValueError(f"{self._kind}: {key}={value} is no number from {least} to {most}") from None
        return number

    def address(self, key: str, default: str = "") -> str:
        """The IP address that a key has."""
        value = self.take(key, default)
        try:
            return str(ipaddress.ip_address(value))
        except ValueError:
            raise ValueError(f"{self._kind}: {key}={value} is no IP address") from None

    def terms(self, usual: Terms) -> Terms:
        """The terms that keys have."""
        credits = self.take("credits", "yes" if usual.usesCredits else "no")
        if credits not in ("yes", "no"):
            raise ValueError(f"{self._kind}: credits={credits} is none of yes, no")
        return replace(
            usual,
            receives=self.number("receives", usual.receives, 1, 0x8000),
            messageBytes=self.number("messageBytes", usual.messageBytes, 1, 1 << 30),
            reads=self.number("reads", usual.reads, 0, 255),
            usesCredits=credits == "yes",
            keepalive=self.number("keepalive", int(usual.keepalive or 0), 0, 1 << 20) or None,
        )

    def end(self) -> None:
        """Complain about keys that nobody has taken."""
        for key, value in self._left.items():
            raise ValueError(f"{self._kind}: {key}={value} has no meaning here")


@implementer(IPlugin, IMessageEndpointStringParser)
class IBStringParser:
    """
    C{ib:service=NUMBER:path=WORDS} for clients, C{ib:service=NUMBER} for servers.

    Clients may have another path to migrate to, C{alternate=WORDS}. The words of paths are those of
    L{IBPath.fromString<txrdma.iba.path.IBPath.fromString>}.
    """

    prefix = "ib"

    def parseMessageClient(self, reactor: Any, *args: str, **kwargs: str) -> IMessageClientEndpoint:
        """Make the endpoint of a client."""
        from txrdma.cm.connections.endpoints import IBClientEndpoint, USUAL
        from txrdma.iba.path import IBPath
        from txrdma.verbs.devices import prepareDevice

        keys = Keys("ib", ("service", "path"), args, kwargs)
        service = keys.number("service", None, 0, (1 << 64) - 1)
        path, words = IBPath.fromString(keys.take("path")), keys.take("alternate")
        alternate = IBPath.fromString(words) if words else None
        for key, each in (("path", path), ("alternate", alternate)):
            if each is not None and each.dgid is None:
                raise ValueError(f"ib: {key}= leads nowhere without dgid")
        device, terms = keys.take("device", "soft"), keys.terms(USUAL)
        privateData = keys.take("privateData").encode()
        keys.end()
        prepareDevice(device)
        return IBClientEndpoint(reactor, service, path, device, terms, privateData, alternate)

    def parseMessageServer(self, reactor: Any, *args: str, **kwargs: str) -> IMessageServerEndpoint:
        """Make the endpoint of a server."""
        from txrdma.cm.connections.endpoints import IBServerEndpoint, USUAL
        from txrdma.cm.core.dispatcher import BACKLOG
        from txrdma.verbs.devices import prepareDevice

        keys = Keys("ib", ("service",), args, kwargs)
        service = keys.number("service", None, 0, (1 << 64) - 1)
        device, terms = keys.take("device", "soft"), keys.terms(USUAL)
        backlog = keys.number("backlog", BACKLOG, 1, 1 << 31)
        keys.end()
        prepareDevice(device)
        return IBServerEndpoint(reactor, service, device, terms, backlog)


@implementer(IPlugin, IMessageEndpointStringParser)
class RDMAStringParser:
    """
    C{rdma:HOST:PORT} for clients, C{rdma:PORT} or C{rdma:ADDRESS:PORT} for servers; hosts may have names.

    Without C{device} the software device is used: at C{bindAddress}, or where the way to the host begins; of
    a server, at C{interface}, or at 127.0.0.1.
    """

    prefix = "rdma"

    def parseMessageClient(self, reactor: Any, *args: str, **kwargs: str) -> IMessageClientEndpoint:
        """Make the endpoint of a client."""
        from txrdma.cm.connections.endpoints import RDMAClientEndpoint, UNCOUNTED_TERMS
        from txrdma.ports.softdevices import softDeviceAt
        from txrdma.verbs.devices import prepareDevice

        keys = Keys("rdma", ("host", "port"), args, kwargs)
        host, port = keys.take("host"), keys.number("port", None, 1, 65535)
        if not host:
            raise ValueError("rdma: host= is missing")
        source = keys.take("bindAddress")
        device = keys.take("device") or (softDeviceAt(source) if source else None)
        terms, privateData = keys.terms(UNCOUNTED_TERMS), keys.take("privateData").encode()
        keys.end()
        prepareDevice(device or "soft")
        return RDMAClientEndpoint(reactor, host, port, device, terms, privateData)

    def parseMessageServer(self, reactor: Any, *args: str, **kwargs: str) -> IMessageServerEndpoint:
        """Make the endpoint of a server."""
        from txrdma.cm.connections.endpoints import RDMAServerEndpoint, USUAL
        from txrdma.cm.core.dispatcher import BACKLOG
        from txrdma.ports.softdevices import softDeviceAt
        from txrdma.verbs.devices import prepareDevice

        keys = Keys("rdma", ("interface", "port") if len(args) > 1 else ("port",), args, kwargs)
        port = keys.number("port", None, 0, 65535)
        device = softDeviceAt(keys.address("interface", "127.0.0.1"))
        device, terms = keys.take("device", device), keys.terms(USUAL)
        backlog = keys.number("backlog", BACKLOG, 1, 1 << 31)
        keys.end()
        prepareDevice(device)
        return RDMAServerEndpoint(reactor, port, device, terms, backlog)
