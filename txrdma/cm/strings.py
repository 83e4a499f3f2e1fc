r"""
Endpoint strings for protocols of messages: C{rdma:192.0.2.1:7471}, C{ib:service=0x42:path=dgid fe80\:\:1};
and of datagrams: C{sidr:192.0.2.1:7471}.

C{clientFromString} and C{serverFromString} of Twisted parse them. Keys of messages are C{device}, a device
string; C{receives}, C{messageBytes}, C{longest} and C{reads}, the terms; C{credits=no} to send no greeting;
C{mayReload=yes} to replace alternate paths; C{privateData} of a client's REQ, and its C{timeout};
C{peer=yes}, if the peer also connects instead of listening; C{backlog} of a server, and C{match}, with which
private data must begin. Twisted loads this module whenever it looks for plugins, so it imports little.
"""

from __future__ import annotations

from typing import Any, TYPE_CHECKING

from zope.interface import implementer

from twisted.internet.interfaces import (
    IStreamClientEndpointStringParserWithReactor,
    IStreamServerEndpointStringParser,
)
from twisted.plugin import IPlugin

from txrdma.kit.strings import Arguments
from txrdma.kit.values import replace
from txrdma.messages.interfaces import IMessageClientEndpoint, IMessageServerEndpoint

if TYPE_CHECKING:
    from txrdma.cm.terms import Terms


def _terms(keys: Arguments, usual: Terms) -> Terms:
    """Return the terms that the keys of either side specify."""
    from txrdma.cm.terms import RANGES

    return replace(
        usual,
        receives=keys.number("receives", usual.receives, *RANGES["receives"]),
        messageBytes=keys.size("messageBytes", usual.messageBytes, 1, RANGES["messageBytes"][1]),
        reads=keys.number("reads", usual.reads, *RANGES["reads"]),
        usesCredits=keys.isYes("credits", usual.usesCredits),
        keepalive=keys.seconds("keepalive", usual.keepalive, mayBeZero=True) or None,
        longest=keys.size("longest", usual.longest, 1, RANGES["longest"][1]),
        mayReload=keys.isYes("mayReload", usual.mayReload),
    )


def _clientDevice(keys: Arguments) -> str | None:
    """Return the device string of a client; None: the software device at the route's source."""
    from txrdma.ports.softdevices import softDeviceAt
    from txrdma.verbs.devices import prepareDevice

    source = keys.take("bindAddress")
    device = keys.take("device") or (softDeviceAt(source) if source else None)
    prepareDevice(device or "soft")
    return device


def _serverDevice(keys: Arguments) -> str:
    from txrdma.ports.softdevices import softDeviceListening
    from txrdma.verbs.devices import prepareDevice

    interface = keys.address("interface", "::")
    device = keys.take("device") or softDeviceListening(interface)
    prepareDevice(device)
    return device


@implementer(IPlugin, IStreamClientEndpointStringParserWithReactor, IStreamServerEndpointStringParser)
class IBStringParser:
    """
    C{ib:service=NUMBER:path=WORDS} or C{ib:service=NUMBER:to=PORT} for clients, C{ib:service=NUMBER} for
    servers.

    C{to} is the GID, port GUID or LID of a port, or the name of a node, to which the subnet administration
    finds a path; on RoCE it is a GID, an IP address or the name of a host.
    Clients may have another path to migrate to, C{alternate=WORDS}, or C{alternate=auto}. The words of paths
    are those of L{IBPath.fromString<txrdma.iba.path.IBPath.fromString>}.
    """

    prefix = "ib"

    def parseStreamClient(  # type: ignore[override]  # it is a string that is parsed
        self, reactor: Any, *args: str, **kwargs: str
    ) -> IMessageClientEndpoint:
        from txrdma.cm.connections.endpoints import AUTOMATIC, IBClientEndpoint, USUAL
        from txrdma.iba.path import IBPath
        from txrdma.verbs.devices import prepareDevice

        keys = Arguments("ib", ("service", "path"), args, kwargs)
        service = keys.number("service", None, 0, (1 << 64) - 1)
        target, words = keys.take("to"), keys.take("alternate")
        path = target or IBPath.fromString(keys.take("path"))
        alternate = AUTOMATIC if words == "auto" else IBPath.fromString(words) if words else None
        for key, each in (("path", path), ("alternate", alternate)):
            if isinstance(each, IBPath) and each.dgid is None:
                raise ValueError(f"ib: {key}= needs a dgid")
        device, terms = keys.take("device", "soft"), _terms(keys, USUAL)
        privateData, timeout = keys.take("privateData").encode(), keys.seconds("timeout", None)
        isPeer = keys.isYes("peer", False)
        keys.end()
        prepareDevice(device)
        return IBClientEndpoint(
            reactor, service, path, device, terms, privateData, alternate, timeout, isPeerToPeer=isPeer
        )

    def parseStreamServer(  # type: ignore[override]  # it is a string that is parsed
        self, reactor: Any, *args: str, **kwargs: str
    ) -> IMessageServerEndpoint:
        from txrdma.cm.connections.endpoints import IBServerEndpoint, USUAL
        from txrdma.cm.core.dispatcher import BACKLOG
        from txrdma.verbs.devices import prepareDevice

        keys = Arguments("ib", ("service",), args, kwargs)
        service = keys.number("service", None, 0, (1 << 64) - 1)
        device, terms = keys.take("device", "soft"), _terms(keys, USUAL)
        backlog, match = keys.number("backlog", BACKLOG, 1, 1 << 31), keys.take("match").encode()
        keys.end()
        prepareDevice(device)
        return IBServerEndpoint(reactor, service, device, terms, backlog, match)


@implementer(IPlugin, IStreamClientEndpointStringParserWithReactor, IStreamServerEndpointStringParser)
class RDMAStringParser:
    """
    C{rdma:HOST:PORT} for clients, C{rdma:PORT} or C{rdma:ADDRESS:PORT} for servers; hosts may have names.

    Without C{device} the software device is used: at C{bindAddress}, or at the source address of the route to
    the host; for a server, at C{interface}, or at all addresses of the host.
    """

    prefix = "rdma"

    def parseStreamClient(  # type: ignore[override]  # it is a string that is parsed
        self, reactor: Any, *args: str, **kwargs: str
    ) -> IMessageClientEndpoint:
        from txrdma.cm.connections.endpoints import AUTOMATIC, RDMAClientEndpoint, USUAL

        keys = Arguments("rdma", ("host", "port"), args, kwargs)
        host, port = keys.required("host"), keys.number("port", None, 1, 65535)
        device = _clientDevice(keys)
        terms, privateData = _terms(keys, USUAL), keys.take("privateData").encode()
        timeout, isPeer = keys.seconds("timeout", None), keys.isYes("peer", False)
        alternate = AUTOMATIC if keys.choice("alternate", "no", "auto") == "auto" else None
        keys.end()
        return RDMAClientEndpoint(
            *(reactor, host, port, device, terms, privateData),
            timeout=timeout,
            alternate=alternate,
            isPeerToPeer=isPeer,
        )

    def parseStreamServer(  # type: ignore[override]  # it is a string that is parsed
        self, reactor: Any, *args: str, **kwargs: str
    ) -> IMessageServerEndpoint:
        from txrdma.cm.connections.endpoints import RDMAServerEndpoint, USUAL
        from txrdma.cm.core.dispatcher import BACKLOG

        keys = Arguments("rdma", ("interface", "port") if len(args) > 1 else ("port",), args, kwargs)
        port = keys.number("port", None, 0, 65535)
        device, terms = _serverDevice(keys), _terms(keys, USUAL)
        backlog, match = keys.number("backlog", BACKLOG, 1, 1 << 31), keys.take("match").encode()
        keys.end()
        return RDMAServerEndpoint(reactor, port, device, terms, backlog, match=match)


@implementer(IPlugin, IStreamClientEndpointStringParserWithReactor, IStreamServerEndpointStringParser)
class SIDRStringParser:
    """
    C{sidr:HOST:PORT} for clients of datagram services, C{sidr:PORT} or C{sidr:ADDRESS:PORT} for services.

    C{device}, C{bindAddress} and C{interface} are as for C{rdma}; clients also take C{privateData} and
    C{timeout}.
    """

    prefix = "sidr"

    def parseStreamClient(  # type: ignore[override]  # it is a string that is parsed
        self, reactor: Any, *args: str, **kwargs: str
    ) -> IMessageClientEndpoint:
        from txrdma.cm.connections.datagrams import DatagramClientEndpoint

        keys = Arguments("sidr", ("host", "port"), args, kwargs)
        host, port = keys.required("host"), keys.number("port", None, 1, 65535)
        device, privateData = _clientDevice(keys), keys.take("privateData").encode()
        timeout = keys.seconds("timeout", None)
        keys.end()
        return DatagramClientEndpoint(reactor, host, port, device, privateData, timeout)

    def parseStreamServer(  # type: ignore[override]  # it is a string that is parsed
        self, reactor: Any, *args: str, **kwargs: str
    ) -> IMessageServerEndpoint:
        from txrdma.cm.connections.datagrams import DatagramServerEndpoint

        keys = Arguments("sidr", ("interface", "port") if len(args) > 1 else ("port",), args, kwargs)
        port, device = keys.number("port", None, 0, 65535), _serverDevice(keys)
        keys.end()
        return DatagramServerEndpoint(reactor, port, device)
