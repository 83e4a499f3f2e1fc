"""
IP addresses of host names, by the reactor's resolver.
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
    """Collects the addresses that a resolver finds, each once."""

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
            self.answer.errback(HostUnknown(f"{self._name} has no IP address"))

    def _cancel(self, _: Deferred[list[str]]) -> None:
        if self._resolution is not None:
            try:
                self._resolution.cancel()
            except NotImplementedError:  # Twisted's threaded resolver; its late answer is ignored
                pass


def isAddress(host: str) -> bool:
    """Return whether a host is an IP address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def addressesOf(reactor: Any, host: str) -> Deferred[list[str]]:
    """
    Resolve a host name, or return an IP address unchanged.

    @return: fires with at least one address, in the resolver's order; fails with L{HostUnknown}. It can be
        cancelled.
    """
    if isAddress(host):
        return succeed([host])
    resolving = IReactorPluggableNameResolver(reactor, None)
    if resolving is None:
        return fail(HostUnknown(f"the reactor cannot resolve {host}: it has no resolver"))
    receiver = _Receiver(host)
    resolving.nameResolver.resolveHostName(receiver, host)
    return receiver.answer
