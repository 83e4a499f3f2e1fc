r"""
Parser of the endpoint strings C{btl:...}.

Twisted loads this module whenever it searches for endpoint plugins, so it imports little; other modules are
imported when a string is parsed.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from zope.interface import implementer

from twisted.internet.interfaces import (
    IStreamClientEndpoint,
    IStreamClientEndpointStringParserWithReactor,
    IStreamServerEndpoint,
    IStreamServerEndpointStringParser,
)
from twisted.plugin import IPlugin

from txrdma.kit.strings import Arguments
from txrdma.messages.interfaces import IMessageClientEndpoint, IMessageServerEndpoint


def _device(keys: Arguments) -> Any:
    """Return the device that a string names, or a list of devices, one for each of several addresses."""
    device, interfaces = keys.take("device") or None, keys.take("interfaces")
    if not interfaces:
        return device
    if device is not None:
        raise ValueError(f"btl: device={device} and interfaces={interfaces} exclude each other")
    from ipaddress import ip_address

    from txrdma.btl.ends import deviceAt

    addresses = interfaces.split(",")
    for address in addresses:
        try:
            ip_address(address)
        except ValueError:
            raise ValueError(f"btl: interfaces={interfaces}: {address!r} is not an IP address") from None
    return [deviceAt(address) for address in addresses]


def _prepare(device: Any) -> None:
    """
    Import modules that connections need, because the process may later have another root directory or user.
    """
    from txrdma.verbs.devices import prepareDevice

    for each in device if isinstance(device, list) else [device or "soft"]:
        prepareDevice(each)
    import_module("encodings.idna")


@implementer(IPlugin, IStreamClientEndpointStringParserWithReactor, IStreamServerEndpointStringParser)
class BTLStringParser:
    """
    C{btl:HOST:PORT} for clients, with the keys C{device}, C{bindAddress} and C{timeout} (of the exchange over
    TCP, in seconds); C{btl:PORT}, C{btl:ADDRESS:PORT} or C{btl:PORT:interface=ADDRESS} for servers, with
    C{device} and C{backlog}.

    Without a device the software device is used, at the address from which a client connects, or to which it
    connects. With C{interfaces}, IP addresses of this host with commas between them, it is used at all of
    these. With C{messages=yes} at both ends, protocols are message protocols instead of stream protocols.
    """

    prefix = "btl"

    def parseStreamClient(  # type: ignore[override]  # it is a string that is parsed
        self, reactor: Any, *args: str, **kwargs: str
    ) -> IStreamClientEndpoint | IMessageClientEndpoint:
        from twisted.internet.address import HostnameAddress

        from txrdma.btl.connections import ClientEndpoint
        from txrdma.btl.ends import tcpEndpointTo
        from txrdma.btl.stream.endpoints import StreamClientEndpoint

        keys = Arguments("btl", ("host", "port"), args, kwargs)
        host, port = keys.required("host"), keys.number("port", None, 0, 65535)
        timeout, source, device = keys.seconds("timeout", 30.0), keys.take("bindAddress"), _device(keys)
        hasMessages = keys.isYes("messages", False)
        keys.end()
        _prepare(device)
        stream = tcpEndpointTo(reactor, host, port, timeout, source)
        if hasMessages:
            return ClientEndpoint(reactor, stream, device)
        return StreamClientEndpoint(reactor, stream, device, HostnameAddress(host.encode(), port))

    def parseStreamServer(  # type: ignore[override]  # it is a string that is parsed
        self, reactor: Any, *args: str, **kwargs: str
    ) -> IStreamServerEndpoint | IMessageServerEndpoint:
        from twisted.internet.endpoints import TCP4ServerEndpoint, TCP6ServerEndpoint

        from txrdma.btl.connections import ServerEndpoint
        from txrdma.btl.stream.endpoints import StreamServerEndpoint

        keys = Arguments("btl", ("interface", "port") if len(args) > 1 else ("port",), args, kwargs)
        port, backlog = keys.number("port", None, 0, 65535), keys.number("backlog", 50, 1, 2**31 - 1)
        interface, device = keys.take("interface"), _device(keys)
        kind = ServerEndpoint if keys.isYes("messages", False) else StreamServerEndpoint
        keys.end()
        _prepare(device)
        tcp = TCP6ServerEndpoint if ":" in interface else TCP4ServerEndpoint
        return kind(reactor, tcp(reactor, port, backlog, interface), device)
