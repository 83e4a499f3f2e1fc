"""
Names of hosts: their IP addresses, as the reactor's resolver knows them.
"""

from __future__ import annotations

import ipaddress
from typing import Any

from zope.interface import implementer

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.interfaces import (
    IAddress,
    IHostResolution,
    IReactorPluggableNameResolver,
    IResolutionReceiver,
)

from txrdma.cm.errors import HostUnknown


@implementer(IResolutionReceiver)
class _Receiver:
    """The answer of a resolver, as it comes; each address once."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._found: dict[str, None] = {}
        self._resolution: IHostResolution | None = None
        self.answer: Deferred[list[str]] = Deferred(self._cancel)

    def resolutionBegan(self, resolution: IHostResolution) -> None:
        self._resolution = resolution

    def addressResolved(self, address: IAddress) -> None:
        if isinstance(address, (IPv4Address, IPv6Address)):
            self._found[address.host] = None

    def resolutionComplete(self) -> None:
        if self.answer.called:
            return
        if self._found:
            self.answer.callback(list(self._found))
        else:
            self.answer.errback(HostUnknown(f"there is no address of {self._name}"))

    def _cancel(self, _: Deferred[list[str]]) -> None:
        if self._resolution is not None:
            try:
                self._resolution.cancel()
            except NotImplementedError:  # Twisted's own resolver, by threads: its answer comes too late
                pass


def isAddress(host: str) -> bool:
    """Whether a host is given as an IP address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def addressesOf(reactor: Any, host: str) -> Deferred[list[str]]:
    """
    Resolve the name of a host; an IP address is its own. The Deferred can be cancelled.

    @return: fires with one address or more, in the resolver's order; fails with L{HostUnknown}.
    """
    if isAddress(host):
        return succeed([host])
    resolving = IReactorPluggableNameResolver(reactor, None)
    if resolving is None:
        return fail(HostUnknown(f"the reactor resolves no names, such as {host}"))
    receiver = _Receiver(host)
    resolving.nameResolver.resolveHostName(receiver, host)
    return receiver.answer
