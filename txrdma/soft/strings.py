"""
Parser of the device strings C{soft:...}.

Twisted loads this module whenever it searches for device plugins, so it imports little.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple, TYPE_CHECKING

from zope.interface import implementer

from twisted.plugin import IPlugin

from txrdma.interfaces import IVerbsDevice, IVerbsDeviceStringParser
from txrdma.kit.strings import Arguments

if TYPE_CHECKING:
    from txrdma.iba.types import MTU


class SoftDeviceOptions(NamedTuple):
    """The options of a device string: the parameters of C{openSoftDevice}."""

    addresses: tuple[str, ...]
    port: int | None
    route: str
    pcap: str | None
    mtu: MTU | None
    runtime: str | None


@implementer(IPlugin, IVerbsDeviceStringParser)
class SoftDeviceStringParser:
    """
    C{soft} or C{soft:ADDRESS} or C{soft:ADDRESS,ADDRESS}; keys are C{port}, C{route}, C{pcap}, C{mtu} and
    C{runtime}.

    C{ADDRESS} is an IP address of this host; each is a port of the device. C{port} is a UDP port, or 0 for
    any free one; by default one of 24792 to 25045, for devices that share port 4791 with others. C{route} is
    C{auto}, C{rocev2} or C{shared-memory}. C{pcap} names a file that records all packets; it implies
    C{route=rocev2}. C{mtu} is the largest payload of a packet: 256, 512, 1024, 2048 or 4096. C{runtime} is a
    directory in which processes of different network namespaces find each other, to share memory.
    """

    prefix = "soft"

    def parseDevice(self, reactor: object, *args: str, **kwargs: str) -> IVerbsDevice:
        from txrdma.soft.device import openSoftDevice

        return openSoftDevice(reactor, *self.canonical(*args, **kwargs))

    def prepare(self, *args: str, **kwargs: str) -> None:
        """Import the modules of a device; those of RoCE only if the route may be RoCE v2."""
        import_module("txrdma.soft.device")
        import_module("txrdma.unix.sockets").unmapped()  # reads C{/proc}, which a C{chroot} may hide
        if kwargs.get("route") != "shared-memory":
            import_module("txrdma.soft.rc.wellknown")
            import_module("txrdma.soft.rc.peers")
            if kwargs.get("pcap"):
                import_module("txrdma.iba.pcap")

    def canonical(self, *args: str, **kwargs: str) -> SoftDeviceOptions:
        """Return the options of a device string: equal for equivalent strings."""
        from txrdma.iba.types import MTU
        from txrdma.soft.opening import ROUTES

        keys = Arguments("soft", ("address",), args, kwargs)
        payloads = {str(mtu.bytes): mtu for mtu in MTU}
        route = keys.choice("route", *ROUTES)
        mtu = payloads[keys.choice("mtu", *payloads)] if keys.has("mtu") else None
        port = keys.number("port", None, 0, 65535) if keys.has("port") else None
        pcap = keys.required("pcap") if keys.has("pcap") else None
        if pcap is not None:
            if route == "shared-memory":
                raise ValueError(
                    f"soft: pcap={pcap} records RoCE packets, which route=shared-memory does not have"
                )
            route = "rocev2"
        runtime = keys.take("runtime") if keys.has("runtime") else None
        if runtime is not None and (not runtime.startswith("/") or route == "rocev2"):
            raise ValueError(f"soft: runtime={runtime} is not a directory in which memory can be shared")
        usual = "127.0.0.1"
        if runtime is not None:
            from txrdma.ports.softdevices import ownLoopback

            usual = ownLoopback(os.getpid())
        addresses = _addresses(keys.take("address", usual))
        keys.end()
        return SoftDeviceOptions(addresses, port, route, pcap, mtu, runtime)

    def available(self) -> Sequence[str]:
        return ["soft"]


def _addresses(value: str) -> tuple[str, ...]:
    addresses = tuple(map(_address, value.split(",")))
    if len(set(addresses)) < len(addresses):
        raise ValueError(f"soft: address={value} contains a duplicate")
    return addresses


def _address(value: str) -> str:
    try:
        address = ipaddress.ip_address(value)
    except ValueError:
        raise ValueError(f"soft: address={value} is not an IP address") from None
    if address.is_unspecified or address.is_multicast:
        raise ValueError(f"soft: address={value} is not a single address of this host")
    return str(address)
