"""A reactor in memory for endpoints that connect to IP addresses."""

from __future__ import annotations

from typing import Any

from zope.interface import implementer

from twisted.internet.address import IPv4Address
from twisted.internet.interfaces import (
    IHostnameResolver,
    IHostResolution,
    IReactorPluggableNameResolver,
    IResolutionReceiver,
)
from twisted.internet.testing import MemoryReactorClock


@implementer(IHostResolution)
class _Resolution:
    """The resolution of an IPv4 address, which ends at once."""

    def __init__(self, name: str) -> None:
        self.name = name

    def cancel(self) -> None:
        """Do nothing: it has ended."""


@implementer(IHostnameResolver)
class _Resolver:
    """Resolves IPv4 addresses to themselves."""

    def resolveHostName(
        self,
        resolutionReceiver: IResolutionReceiver,
        hostName: str,
        portNumber: int = 0,
        addressTypes: Any = None,
        transportSemantics: str = "TCP",
    ) -> IHostResolution:
        resolution = _Resolution(hostName)
        resolutionReceiver.resolutionBegan(resolution)
        resolutionReceiver.addressResolved(IPv4Address("TCP", hostName, portNumber))
        resolutionReceiver.resolutionComplete()
        return resolution


@implementer(IReactorPluggableNameResolver)
class AddressReactor(MemoryReactorClock):
    """A reactor with a resolver, which old releases of Twisted need for addresses, too."""

    def __init__(self) -> None:
        super().__init__()
        self.nameResolver = _Resolver()
