r"""
Parser of the endpoint strings C{rsocket:...}.

Twisted loads this module whenever it looks for endpoint plugins, so it imports little; other modules are
imported when a string is parsed.
"""

from __future__ import annotations

from typing import Any, TYPE_CHECKING

from zope.interface import implementer

from twisted.internet.interfaces import (
    IStreamClientEndpoint,
    IStreamClientEndpointStringParserWithReactor,
    IStreamServerEndpoint,
    IStreamServerEndpointStringParser,
)
from twisted.plugin import IPlugin

from txrdma.kit.strings import Arguments

if TYPE_CHECKING:
    from txrdma.cm.rsocket.endpoints import RSocketOptions


def _options(keys: Arguments) -> RSocketOptions:
    """Return the options that the keys of either side specify."""
    from txrdma.cm.rsocket._core import Sizes
    from txrdma.cm.rsocket.endpoints import RANGES, RSocketOptions
    from txrdma.cm.terms import KEEPALIVE

    usual, (least, most) = Sizes(), RANGES["receiveBuffer"]
    sizes = Sizes(
        keys.number("receives", usual.receives, *RANGES["receives"]),
        keys.number("sends", usual.sends, *RANGES["sends"]),
        keys.size("rcvbuf", usual.receiveBuffer // 2, least // 2, most // 2) * 2,
        keys.size("sndbuf", usual.sendBuffer, *RANGES["sendBuffer"]),
        keys.number("mappings", usual.mappings, *RANGES["mappings"]),
    )
    return RSocketOptions(sizes, keys.seconds("keepalive", KEEPALIVE, mayBeZero=True) or None)


@implementer(IPlugin, IStreamClientEndpointStringParserWithReactor, IStreamServerEndpointStringParser)
class RSocketStringParser:
    """
    C{rsocket:HOST:PORT} for clients, with C{device} or C{bindAddress}; C{rsocket:PORT},
    C{rsocket:ADDRESS:PORT} or C{rsocket:PORT:interface=ADDRESS} for servers, with C{device} and C{backlog}.
    Both have C{receives}, C{sends}, C{rcvbuf}, C{sndbuf}, C{mappings} and C{keepalive}.

    A client may name a host, and has C{timeout}, in seconds for each address. C{rcvbuf} and C{sndbuf} are
    bytes, C{keepalive} seconds, 0 is never; C{mappings} are mappings that the peer may have for writes of
    this end. Without a device the software device is used: for a client at the source address of the route to
    the host, or, for a loopback address, at a loopback address of the process's own; for a server at the
    address, or at all addresses of the host.
    """

    prefix = "rsocket"

    def parseStreamClient(  # type: ignore[override]  # it is a string that is parsed
        self, reactor: Any, *args: str, **kwargs: str
    ) -> IStreamClientEndpoint:
        from txrdma.cm.rsocket.endpoints import RSocketClientEndpoint
        from txrdma.ports.softdevices import softDeviceAt
        from txrdma.verbs.devices import prepareDevice

        keys = Arguments("rsocket", ("host", "port"), args, kwargs)
        host, port = keys.required("host"), keys.number("port", None, 1, 65535)
        source, device = keys.take("bindAddress"), keys.take("device") or None
        options, timeout = _options(keys), keys.seconds("timeout", None)
        keys.end()
        if source and device is None:
            device = softDeviceAt(source)
        prepareDevice(device or "soft")
        return RSocketClientEndpoint(reactor, host, port, device, options, timeout)

    def parseStreamServer(  # type: ignore[override]  # it is a string that is parsed
        self, reactor: Any, *args: str, **kwargs: str
    ) -> IStreamServerEndpoint:
        from txrdma.cm.core.dispatcher import BACKLOG
        from txrdma.cm.rsocket.endpoints import RSocketServerEndpoint
        from txrdma.ports.softdevices import softDeviceListening
        from txrdma.verbs.devices import prepareDevice

        keys = Arguments("rsocket", ("interface", "port") if len(args) > 1 else ("port",), args, kwargs)
        port = keys.number("port", None, 0, 65535)
        interface = keys.address("interface", "::")
        device, backlog = keys.take("device"), keys.number("backlog", BACKLOG, 1, 1 << 31)
        options = _options(keys)
        keys.end()
        device = device or softDeviceListening(interface)
        prepareDevice(device)
        return RSocketServerEndpoint(reactor, port, device, options, backlog)
