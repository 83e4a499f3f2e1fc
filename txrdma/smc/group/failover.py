"""
Further links of a group: which ports they join, how they come, and where connections go when one fails.

Follows RFC 7609, 2.2 (symmetric and asymmetric link groups), 3.5 and 4.6. When there may be one more is
L{txrdma.smc.group._linkflows}'s to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from itertools import combinations
from typing import Protocol

from twisted.logger import Logger

from txrdma.error import RDMAError, Refused
from txrdma.iba.types import GID, QPN
from txrdma.interfaces import IProtectionDomain
from txrdma.kit.logs import Seldom
from txrdma.smc.flow.flow import Flow
from txrdma.smc.flow.sendqueue import RemoteBuffer, Unacknowledged
from txrdma.smc.group._linkgroup import GroupKey, LinkEnd, LinkGroup, LinkLife, LinkMade
from txrdma.smc.group.attachment import Port
from txrdma.smc.group.buffers import BufferPool
from txrdma.smc.group.link import Link
from txrdma.smc.group.parties import LinkOwner, Member
from txrdma.smc.wire.clc import Diagnosis
from txrdma.smc.wire.llc import AddLink

_log = Logger()
_seldom = Seldom(_log)


class Extensible(LinkOwner, Protocol):
    """
    A link group that gets further links: L{Group<txrdma.smc.group.group.Group>}.

    @ivar links: those that there are, the oldest first.
    @ivar pool: its buffers.
    @ivar core: decides what LLC says.
    """

    links: list[Link]
    pool: BufferPool
    core: LinkGroup
    key: GroupKey

    def seconds(self) -> float:
        """Return the reactor's time, in seconds."""

    def domainOf(self, port: Port) -> IProtectionDomain:
        """The group's protection domain on a port's device."""

    def linkOf(self, life: LinkLife) -> Link:
        """The link that the core means."""

    def enduring(self, what: str) -> AbstractContextManager[None]:
        """Log what raises; the rest is done all the same."""


class LinkFailover:
    """The links of a group beyond its first, as they come and go."""

    def __init__(self, group: Extensible) -> None:
        self._group = group

    # The ports that they join

    def portsChanged(self) -> None:
        """Leave ports that are down, where there is a link by another one; use those that are up again."""
        group = self._group
        up = {port.place for port in group.groups.ports if port.isActive}
        for link in list(group.links):
            others = [each for each in group.links if each.isActive and each.port.place in up]
            if link.port.place not in up and any(each is not link for each in others):
                link.broken("its port is down")
        free = next(self._free(None), None)
        end = None if free is None else LinkEnd(free.candidate.mac, free.candidate.gid, QPN(0))
        group.core.grow(end, group.seconds())

    def _free(self, gid: GID | None) -> Iterator[Port]:
        """The active ports without a link, those first that need no router to reach a peer's GID."""
        used = {link.port.place for link in self._group.links}
        return (port for port in self._able(gid) if port.place not in used)

    def _able(self, gid: GID | None) -> list[Port]:
        """The active ports from which a way leads to a peer's GID, nearest first; None: to any."""
        version = self._group.agreement.version
        ports = [
            port
            for port in self._group.groups.ports
            if port.isActive and port.candidate.carries(version) and self._isDirect(port, gid) is not None
        ]
        return sorted(ports, key=lambda port: not self._isDirect(port, gid))

    def _isDirect(self, port: Port, gid: GID | None) -> bool | None:
        """Whether no router is on the way to a peer's GID; None where there is no way."""
        if gid is None:
            return True
        return port.candidate.isDirectTo(gid, self._group.agreement.version)

    def _portFor(self, far: AddLink | None) -> Port | None:
        """
        The port for a new link: one without a link, else one that makes the group asymmetric.

        Two links with nothing in common are the best that there is: a third one that shares a port with one
        of them adds nothing.

        @param far: the server's end, for a client.
        """
        group = self._group
        gid = None if far is None else far.gid
        free = next(self._free(gid), None)
        lives = [link.life for link in group.links if link.isActive]
        if free is not None or any(one.isSymmetricTo(other) for one, other in combinations(lives, 2)):
            return free
        if far is not None and any(link.leadsTo(far.gid, far.mac, None) for link in group.links):
            return None
        loads = [link.port.place for link in group.links]
        return min(self._able(gid), key=lambda port: loads.count(port.place), default=None)

    # How they come

    def extend(self, far: AddLink | None) -> None:
        """Offer our end of a further link, where there is another path."""
        group = self._group
        now = group.seconds()
        port = self._portFor(far)
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
            _seldom.warn(
                port.device.name, "no further link by {device}: {error}", device=port.device, error=error
            )
            group.core.decline(now)
            self.settle()
            return
        for each in (*group.links, link):
            each.retain()
        end = LinkEnd(port.candidate.mac, port.candidate.gid, link.qpn)
        isDirect = far is None or self._isDirect(port, far.gid) is True
        life = group.core.offer(end, port.candidate.mtu, link.psn, tokens, now, isDirect)
        if life is None:
            link.discard()
            self.settle()
        else:
            link.life = life
            group.links.append(link)

    def made(self, event: LinkMade) -> None:
        """Both ends of a new link are known: connect its queue pair."""
        group = self._group
        link = group.linkOf(event.link)
        try:
            link.connect(event.far, self._isDirect(link.port, event.far.gid) is not False)
            if link.scheduler.placing is not None:
                raise Refused("it goes by shared memory, which has no other path", Diagnosis.NOACTLINK)
        except Refused as refused:
            group.core.linkDown(group.seconds(), str(refused), event.link)
        else:
            group.core.made(event.link, group.seconds())

    def settle(self) -> None:
        """Keep nothing any more of what is posted, if there is one link only, and no other is being made."""
        links = self._group.links
        if len(links) == 1:
            links[0].stopRetaining()

    # How they go

    def failOver(self, link: Link, text: str) -> None:
        """Move the connections of a link that is gone to the one with the fewest, and close it."""
        group = self._group
        wasActive = link.isActive
        group.links.remove(link)
        other = min((each for each in group.links if each.isActive), key=lambda each: len(each.members))
        if wasActive:
            _seldom.info(
                group.key.witness,
                "{count} SMC-R connections with {peer} go on by another link: {reason}",
                count=len(link.members),
                peer=group.name,
                reason=text,
            )
        with link.ending():
            kept = link.scheduler.handOver(other.scheduler)
            for stream in list(link.members):
                with group.enduring("moved a connection"):
                    self._move(stream, link, other, kept)
            with group.enduring("ended its turns"):
                link.scheduler.end()
            link.closeAttachment()
        self.settle()

    def _move(self, stream: Member, link: Link, other: Link, kept: dict[Flow, list[Unacknowledged]]) -> None:
        group = self._group
        flow = group.flows[stream.token]
        bearing = flow.bearing
        tokens = None if bearing is None else group.core.elsewhere(link.life, other.life, bearing.rkey)
        if bearing is not None and tokens is None:
            stream.linkLost(False, 0)  # its buffer is gone
            return
        del link.members[stream]
        other.members[stream] = None
        if bearing is None or tokens is None:
            stream.rebind(other)  # its handshake is not over
            return
        here, there = tokens
        address = there.address + bearing.address - here.address
        stream.move(other, RemoteBuffer(other.scheduler.queue, address, there.rkey), kept.get(flow, []))
