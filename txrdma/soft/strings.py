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

if TYPE_CHECKING:
    from txrdma.iba.types import MTU

KEYS = ("address", "port", "route", "pcap", "mtu", "runtime")
"""The keys of a device string."""


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

        if len(args) > 1:
            raise ValueError(f"soft: unexpected {args[1]!r}: one address is expected, then keys with values")
        for key, value in kwargs.items():
            if key not in KEYS:
                raise ValueError(f"soft: {key}={value} is unknown; the keys are {', '.join(KEYS)}")
        if args and "address" in kwargs:
            raise ValueError(f"soft: address={kwargs['address']}, but there is {args[0]!r} already")
        route = kwargs.get("route", "auto")
        if route not in ROUTES:
            raise ValueError(f"soft: route={route} is not one of {', '.join(ROUTES)}")
        payloads = {str(mtu.bytes): mtu for mtu in MTU}
        mtu = kwargs.get("mtu")
        if mtu is not None and mtu not in payloads:
            raise ValueError(f"soft: mtu={mtu} is not one of {', '.join(payloads)}")
        pcap = kwargs.get("pcap")
        if pcap == "":
            raise ValueError("soft: pcap= names no file")
        if pcap is not None:
            if route == "shared-memory":
                raise ValueError(
                    f"soft: pcap={pcap} records RoCE packets, which route=shared-memory does not have"
                )
            route = "rocev2"
        runtime = kwargs.get("runtime")
        if runtime is not None and (not runtime.startswith("/") or route == "rocev2"):
            raise ValueError(f"soft: runtime={runtime} is not a directory in which memory can be shared")
        usual = "127.0.0.1"
        if runtime is not None:
            from txrdma.ports.softdevices import ownLoopback

            usual = ownLoopback(os.getpid())
        return SoftDeviceOptions(
            _addresses(args[0] if args else kwargs.get("address", usual)),
            _port(kwargs.get("port")),
            route,
            pcap,
            None if mtu is None else payloads[mtu],
            runtime,
        )

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


def _port(value: str | None) -> int | None:
    if value is None:
        return None
    if value.isascii() and value.isdigit() and int(value) < 65536:
        return int(value)
    raise ValueError(f"soft: port={value} is not a number from 0 to 65535")
