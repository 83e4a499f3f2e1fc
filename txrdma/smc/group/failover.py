"""
Additional links of a group: choice of ports, setup, and failover of connections with their queued bytes.

Follows RFC 7609, 2.2 (symmetric and asymmetric link groups), 3.5 and 4.6. L{txrdma.smc.group._linkexchanges}
decides when a link is added. L{txrdma.smc.flow.sendqueue} retains bytes until the peer acknowledges them, and
L{txrdma.smc.flow.flow} sends them again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import combinations

from twisted.logger import Logger

from txrdma.error import RDMAError, Refused
from txrdma.iba.types import GID, QPN
from txrdma.kit.logs import errorText, RateLimitedLogger
from txrdma.smc.flow.flow import Flow
from txrdma.smc.flow.sendqueue import RemoteBuffer, Unacknowledged
from txrdma.smc.group._groupstate import LinkEnd, LinkMade
from txrdma.smc.group.attachment import DevicePort
from txrdma.smc.group.interfaces import LinkedStream, LinkOwner
from txrdma.smc.group.link import Link
from txrdma.smc.wire.clc import Diagnosis
from txrdma.smc.wire.llc import AddLink

_log = Logger()
_rateLimited = RateLimitedLogger(_log)


class LinkFailover:
    """Adds links to a group, and moves connections when one fails."""

    def __init__(self, group: LinkOwner) -> None:
        self._group = group

    # Choice of ports

    def portsChanged(self) -> None:
        """Close links of ports that are down, if there are others; add links for ports that are up."""
        group = self._group
        up = {port.key for port in group.groups.ports if port.isActive}
        for link in list(group.links):
            others = [each for each in group.links if each.isActive and each.port.key in up]
            if link.port.key not in up and any(each is not link for each in others):
                link.broken("its port is down")
        free = next(self._free(None), None)
        end = None if free is None else LinkEnd(free.candidate.mac, free.candidate.gid, QPN(0))
        group.core.grow(end, group.seconds())

    def _free(self, gid: GID | None) -> Iterator[DevicePort]:
        """Return active ports without a link; those that reach the peer's GID without a router come first."""
        used = {link.port.key for link in self._group.links}
        return (port for port in self._reaching(gid) if port.key not in used)

    def _reaching(self, gid: GID | None) -> list[DevicePort]:
        """Return active ports with a route to the peer's GID (None: any), direct ones first."""
        version = self._group.agreement.version
        ports = [
            port for port in self._group.groups.ports if port.isActive and port.candidate.carries(version)
        ]
        routes = [(port, self._isDirect(port, gid)) for port in ports]
        routes.sort(key=lambda route: not route[1])
        return [port for port, isDirect in routes if isDirect is not None]

    def _isDirect(self, port: DevicePort, gid: GID | None) -> bool | None:
        """Return whether the route to the peer's GID has no router; None if there is no route."""
        if gid is None:
            return True
        return port.candidate.isDirectTo(gid, self._group.agreement.version)

    def _portFor(self, peerEnd: AddLink | None) -> DevicePort | None:
        """
        Choose the port for a new link: one without a link, else one that makes the group asymmetric.

        If two links share no port, another link on their ports adds no redundancy.
        """
        group = self._group
        gid = None if peerEnd is None else peerEnd.gid
        free = next(self._free(gid), None)
        lives = [link.life for link in group.links if link.isActive]
        if free is not None or any(one.isSymmetricTo(other) for one, other in combinations(lives, 2)):
            return free
        if peerEnd is not None and any(link.leadsTo(peerEnd.gid, peerEnd.mac, None) for link in group.links):
            return None
        loads = [link.port.key for link in group.links]
        return min(self._reaching(gid), key=lambda port: loads.count(port.key), default=None)

    # Setup

    def extend(self, peerEnd: AddLink | None) -> None:
        """Offer the local end of an additional link, or decline if there is no other path."""
        group = self._group
        now = group.seconds()
        port = self._portFor(peerEnd)
        if port is None:
            group.core.decline(now)
            self.settle()
            return
        try:
            with ExitStack() as undo:
                link = Link(group, port, group.domainOf(port))
                undo.callback(link.discard)
                tokens = {buffer.rkey: buffer.tokenOn(group.domainOf(port)) for buffer in group.pool}
                undo.pop_all()
        except (RDMAError, OSError) as error:
            _rateLimited.warn(
                port.device.name,
                "no additional link on {device}: {error}",
                device=port.device,
                error=errorText(error),
            )
            group.core.decline(now)
            self.settle()
            return
        for each in (*group.links, link):
            each.retain()
        end = LinkEnd(port.candidate.mac, port.candidate.gid, link.qpn)
        isDirect = peerEnd is None or self._isDirect(port, peerEnd.gid) is True
        life = group.core.offer(end, port.candidate.mtu, link.psn, tokens, now, isDirect)
        if life is None:
            link.discard()
            self.settle()
        else:
            link.life = life
            group.links.append(link)

    def made(self, event: LinkMade) -> None:
        """Connect the queue pair of a new link, both ends of which are known."""
        group = self._group
        link = group.linkOf(event.link)
        try:
            link.connect(event.peerEnd, self._isDirect(link.port, event.peerEnd.gid) is not False)
            if link.scheduler.lane is not None:
                raise Refused("the link uses shared memory, which has no other path", Diagnosis.NOACTLINK)
        except Refused as refused:
            group.core.linkDown(group.seconds(), str(refused), event.link)
        else:
            group.core.made(event.link, group.seconds())

    def settle(self) -> None:
        """Stop retaining posted bytes if there is only one link."""
        links = self._group.links
        if len(links) == 1:
            links[0].stopRetaining()

    # Failover

    def failOver(self, link: Link, text: str) -> None:
        """Move the connections of a failed link to the link with the fewest, and close the failed one."""
        group = self._group
        wasActive = link.isActive
        link.drain()
        if group.isOver:
            return
        group.links.remove(link)
        other = min((each for each in group.links if each.isActive), key=lambda each: len(each.members))
        if wasActive:
            _rateLimited.info(
                group.key.identityKey,
                "{count} SMC-R connections with {peer} moved to another link: {reason}",
                count=len(link.members),
                peer=group.name,
                reason=text,
            )
        with link.ending():
            unacknowledged = link.scheduler.handOver(other.scheduler)
            for stream in list(link.members):
                try:
                    self._move(stream, link, other, unacknowledged)
                except Exception:
                    _log.failure("A connection ends because it can't be moved ({stream!r})", stream=stream)
                    for each in (link, other):
                        each.members.pop(stream, None)
                    with group.isolated("ending a connection"):
                        stream.cannotMove()
            with group.isolated("stopping a scheduler"):
                link.scheduler.end()
            link.closeAttachment()
        self.settle()

    def _move(
        self, stream: LinkedStream, link: Link, other: Link, unacknowledged: dict[Flow, list[Unacknowledged]]
    ) -> None:
        """Move one connection to another link, where its buffers have other addresses and keys."""
        group = self._group
        flow = group.flows[stream.token]
        remoteBuffer = flow.remoteBuffer
        tokens = (
            None if remoteBuffer is None else group.core.elsewhere(link.life, other.life, remoteBuffer.rkey)
        )
        if remoteBuffer is not None and tokens is None:
            stream.linkLost(False, 0)  # the peer has deleted its buffer
            return
        del link.members[stream]
        other.members[stream] = None
        if remoteBuffer is None or tokens is None:
            stream.rebind(other)  # its handshake is not complete
            return
        here, there = tokens
        address = there.address + remoteBuffer.address - here.address
        stream.move(
            other, RemoteBuffer(other.scheduler.queue, address, there.rkey), unacknowledged.get(flow, [])
        )
