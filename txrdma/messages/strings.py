"""
Endpoints of message protocols from strings such as C{"rdma:192.0.2.1:7471"} and C{"btl:host:7000"}.
"""

from __future__ import annotations

from twisted.plugin import getPlugins

from txrdma.kit.strings import parseString
from txrdma.messages.interfaces import (
    IMessageClientEndpoint,
    IMessageEndpointStringParser,
    IMessageServerEndpoint,
)


def messageClientFromString(reactor: object, description: str) -> IMessageClientEndpoint:
    """
    Make a client endpoint from a string.

    @raise ValueError: the string is invalid; the message names the key and the value.
    """
    parser, args, kwargs = _parsed(description)
    return parser.parseMessageClient(reactor, *args, **kwargs)


def messageServerFromString(reactor: object, description: str) -> IMessageServerEndpoint:
    """
    Make a server endpoint from a string.

    @raise ValueError: the string is invalid; the message names the key and the value.
    """
    parser, args, kwargs = _parsed(description)
    return parser.parseMessageServer(reactor, *args, **kwargs)


def _parsed(description: str) -> tuple[IMessageEndpointStringParser, list[str], dict[str, str]]:
    args, kwargs = parseString(description, "endpoint")
    prefix, *args = args
    for parser in getPlugins(IMessageEndpointStringParser):
        if parser.prefix == prefix:
            return parser, args, kwargs
    raise ValueError(f"endpoint {description!r}: there is no message endpoint {prefix!r}")
