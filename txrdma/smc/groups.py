"""
The link groups of a device, and which of them a connection joins.

Follows RFC 7609, 3.2. A link group has one link here, so L{Link} is both.
"""

from __future__ import annotations

import os
import secrets
from functools import lru_cache
from typing import Any, Final

from twisted.logger import Logger

from txrdma.error import Refused
from txrdma.iba.types import MACAddress, MTU
from txrdma.iba.verbs import AsyncEvent, AsyncEventKind, usualGID
from txrdma.interfaces import IVerbsDevice
from txrdma.smc._linkgroup import GroupKey
from txrdma.smc.clc import Accept, Diagnosis, Proposal
from txrdma.smc.link import Link
from txrdma.verbs.devices import sharedDevice

_log = Logger()

RINGS: Final = ((2, 4 << 20), (32, 1 << 20), (128, 256 << 10))
"""
The rings of so many connections have so many bytes: few connections are fast, many are frugal.

Memory comes with use, but sooner or later every byte of a ring is used. Measured with 64 KiB writes by shared
memory: a ring of 4 MiB carries 7.6 GB/s, one of 512 KiB about 5; but ten of 4 MiB leave the caches, and cost
more for each byte than ten of 1 MiB.
"""

SMALL_RING: Final = 64 << 10
"""The rings of all others."""

_open: dict[tuple[object, str], LinkGroups] = {}


@lru_cache(1)
def _instance(pid: int) -> bytes:
    """Two bytes that tell this process from others with the same port, and from those before it."""
    return secrets.token_bytes(2)


def peerID(mac: MACAddress | None = None) -> bytes:
    """What peers know this process by (RFC 7609, 3.1)."""
    return _instance(os.getpid()) + (bytes(6) if mac is None else mac.toBytes())


def linkGroups(reactor: Any, description: str) -> LinkGroups:
    """
    The link groups of this process over a device, which is opened if need be; until the reactor shuts down.

    @raise RDMAError: the device is not to be had.
    """
    key = (reactor, description)
    groups = _open.get(key)
    if groups is None:
        groups = _open[key] = LinkGroups(reactor, description)
    return groups


def useDevice(reactor: Any, description: str, device: IVerbsDevice) -> LinkGroups:
    """From now on, this open device is what the description means."""
    groups = _open[reactor, description] = LinkGroups(reactor, description, device)
    return groups


def closeLinkGroups(reactor: object) -> None:
    """Close all link groups of a reactor, and their devices; tests want that before they end."""
    for (owner, _), groups in list(_open.items()):
        if owner is reactor:
            groups.close()


class LinkGroups:
    """All link groups over one device."""

    def __init__(self, reactor: Any, description: str, device: IVerbsDevice | None = None) -> None:
        """
        @param device: what the description means, if it is open already; it is closed with this.
        """
        self.reactor = reactor
        self._key = (reactor, description)
        self._links: dict[GroupKey, list[Link]] = {}
        if device is None:
            device = sharedDevice(reactor, description)
        self.device = device
        port = device.portAttributes(1)
        if port.mac is None:
            device.close()
            raise Refused(f"{description} has no MAC address", Diagnosis.NOSMCRDEV)
        table = device.gidTable(1)
        self.gidIndex = usualGID(table)
        self.gid = table[self.gidIndex].gid
        self.mac = port.mac
        self.mtu = MTU(port.activeMTU)
        self.maxInline = device.limits.maxInline
        self.peerID = peerID(self.mac)
        self._unsubscribe = device.subscribe(self._told)
        self._trigger = reactor.addSystemEventTrigger("after", "shutdown", self._reactorStopped)

    def __repr__(self) -> str:
        return f"<LinkGroups of {self.device!r}>"

    def links(self) -> list[Link]:
        """All of them."""
        return [link for links in self._links.values() for link in links]

    async def forProposal(self, proposal: Proposal) -> tuple[Link, bool]:
        """
        The server's link for a client: one that there is, or a new one.

        While one is being made for the same client, the others wait for it.
        """
        key = GroupKey.ofProposal(proposal)
        while True:
            making = None
            for link in self._links.get(key, ()):
                if link.core.usable:
                    return link, False
                if link.isNew:
                    making = link
            if making is None:
                return self._make(key), True
            try:
                await making.confirmed()
            except Refused:
                pass  # then there will be another one

    def forAccept(self, accept: Accept) -> Link:
        """
        The client's link that the server means.

        @raise Refused: we don't have it.
        """
        key = GroupKey.ofAccept(accept)
        if accept.firstContact:
            return self._make(key)
        for link in self._links.get(key, ()):
            if link.core.usable:
                return link
        raise Refused("the server means a link group that we don't have", Diagnosis.SYNCERR)

    def ringSize(self) -> int:
        """Bytes of the next connection's ring."""
        count = sum(len(link.core.connections) for link in self.links())
        return next((size for most, size in RINGS if count < most), SMALL_RING)

    def _make(self, key: GroupKey) -> Link:
        link = Link(self, key)
        self._links.setdefault(key, []).append(link)
        return link

    def forget(self, link: Link) -> None:
        """It is over."""
        key = link.key
        links = self._links.get(key, [])
        if link in links:
            links.remove(link)
        if not links:
            self._links.pop(key, None)

    def _told(self, event: AsyncEvent) -> None:
        """What the device says without being asked."""
        if event.kind is AsyncEventKind.DEVICE_FATAL:
            self.close()
        elif event.queuePair is not None and event.kind is AsyncEventKind.QP_FATAL:
            for link in self.links():
                link.asyncEvent(event.queuePair, event.kind.value)

    def _reactorStopped(self) -> None:
        self._trigger = None
        self.close()

    def close(self) -> None:
        """Close all links, then the device. Twice is fine."""
        if _open.get(self._key) is self:
            del _open[self._key]
        trigger, self._trigger = self._trigger, None
        if trigger is not None:
            self.reactor.removeSystemEventTrigger(trigger)
        for link in self.links():
            link.close("the device is closed")
        self._unsubscribe()
        self.device.close()
