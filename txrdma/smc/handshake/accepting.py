"""
The server's side of a CLC handshake: accepts Proposals.

Beyond the limit of handshakes in progress (option C{handshakes}), or a client's share of it, a Proposal is
declined with C{MEM}. When a connection is accepted beyond it, L{txrdma.smc.userspace} lets the client use
plain TCP at once, if its carrier can request that.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Hashable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IProtocol
from twisted.internet.tcp import Connection

from txrdma.error import Refused
from txrdma.kit.shares import CLIENT_SHARE, Shares
from txrdma.smc.group.buffers import Element
from txrdma.smc.group.group import LinkGroup
from txrdma.smc.group.groups import clientOf, LinkGroups
from txrdma.smc.group.ports import peerID
from txrdma.smc.handshake import _machine as clcEvents
from txrdma.smc.handshake._machine import ServerHandshake
from txrdma.smc.handshake.negotiation import hostName, Negotiation
from txrdma.smc.handshake.outcomes import Outcomes
from txrdma.smc.signalling.interfaces import IServerSignal
from txrdma.smc.signalling.peeridentity import PeerIdentity
from txrdma.smc.stream.stream import Stream
from txrdma.smc.terms.offer import Choice, choose, Role
from txrdma.smc.terms.options import Options
from txrdma.smc.wire.clc import Confirm, Diagnosis, Proposal


def _meansMemory(proposal: Proposal) -> bool:
    """Return whether a client has chosen shared memory: its addresses are not those of a real port."""
    return proposal.gid.isLoopback and proposal.mac.isLocal


class HandshakeCount:
    """The handshakes of announced clients in progress on a listener, by client."""

    def __init__(self) -> None:
        self._shares = Shares[ServerNegotiation]()

    @property
    def present(self) -> int:
        """Number of handshakes of all clients."""
        return len(self._shares)

    def hasRoom(self, peer: PeerIdentity, most: int) -> bool:
        """Whether a client may begin another handshake, of at most C{most}."""
        present = len(self._shares)
        if not most * CLIENT_SHARE <= present < most:
            return present < most  # the identity need not be found
        return self._shares.hasRoom(clientOf(peer.identityKey), most)

    def add(self, client: Hashable, negotiation: ServerNegotiation) -> None:
        self._shares.add(client, negotiation)

    def remove(self, client: Hashable, negotiation: ServerNegotiation) -> None:
        self._shares.remove(client, negotiation)


class ServerNegotiation(Negotiation):
    """The server's side of a handshake with a client that supports SMC, or may support it."""

    role = Role.SERVER
    _core: ServerHandshake
    _group: LinkGroup | None = None
    _isConfirmed = False
    _client: Hashable = None  # for which the handshake is counted

    def __init__(
        self,
        reactor: Any,
        options: Options,
        outcomes: Outcomes,
        build: Callable[[], IProtocol | None],
        arrival: IServerSignal | None,
        count: HandshakeCount | None = None,
        peer: PeerIdentity | None = None,
    ) -> None:
        super().__init__(reactor, options, outcomes, build)
        self._arrival = arrival
        self._count = count or HandshakeCount()
        self._acceptedPeer = peer
        self._isInside = False

    def _identify(self, transport: Connection) -> PeerIdentity:
        return self._acceptedPeer or super()._identify(transport)

    def connectionMade(self) -> None:
        """Wait for the client's first bytes; a client that has announced SMC is counted at once."""
        arrival = self._arrival
        if arrival is not None:
            self._peer.introduce(arrival.process, arrival.user, arrival.directory)
            arrival.expect(self._withdrawn)
        isSure = arrival is not None and arrival.isSure
        if isSure:
            self._enter()
        highest = max(self._options.versions)
        core = ServerHandshake(self._clock.seconds(), peerID=peerID(), announced=isSure, version=highest)
        self._begin(core)

    def readConnectionLost(self) -> None:
        """Handle a FIN; a client that has sent its Confirm may have finished over SMC-R already."""
        if self._isConfirmed and self._work is not None:
            self._hasEnded = True
        else:
            super().readConnectionLost()

    def _enter(self) -> bool:
        """Count the handshake when the client announces it or proposes; False if there are too many."""
        if not self._isInside and self._count.hasRoom(self._peer, self._options.handshakes):
            self._isInside = True
            self._client = clientOf(self._peer.identityKey)
            self._count.add(self._client, self)
        return self._isInside

    def _withdrawn(self) -> None:
        if not self._over:
            self._turn(self._core.withdrawn)

    def _end(self) -> None:
        if self._arrival is not None:
            self._arrival.settle()
        if self._isInside:
            self._isInside = False
            self._count.remove(self._client, self)
        super()._end()

    def _handle(self, event: clcEvents.Event) -> None:
        if isinstance(event, clcEvents.FellBack) and event.outOfSync and self._group is not None:
            self._group.retire()
        super()._handle(event)

    def _answer(self, event: clcEvents.Question) -> Coroutine[Deferred[Any], Any, None]:
        if isinstance(event, clcEvents.Proposed):
            if self._arrival is not None:
                self._arrival.settle()
            return self._accept(event.proposal)
        assert isinstance(event, clcEvents.Confirmed), "an event of a client"
        return self._confirmed(event.confirm)

    async def _accept(self, proposal: Proposal) -> None:
        if not self._enter():
            most, present = self._options.handshakes, self._count.present
            whose = "of all clients" if present >= most else "of this client and others"
            raise Refused(f"{present} of {most} handshakes {whose} are in progress", Diagnosis.MEM)
        groups, candidates = self._candidates(isLocal=_meansMemory(proposal))
        local = self._peer.addresses[0].host
        choice = choose(proposal, candidates, self._options.abilities(groups.portCount), local)
        if isinstance(choice, Diagnosis):
            raise Refused("no device, version or ID of the client's Proposal is acceptable", choice)
        group, isNew, element = await self._reserve(groups, proposal, choice)
        with group.returning(element):
            link = group.pick()
            self._stream = stream = Stream(link, element, self._peer.addresses, self.role)
        message = link.accept(element, stream.token, isNew, hostName())
        self._core.accept(message, self._clock.seconds())

    async def _reserve(
        self, groups: LinkGroups, proposal: Proposal, choice: Choice
    ) -> tuple[LinkGroup, bool, Element]:
        """Find a group for the client, and reserve a ring; return group, whether it is new, and ring."""
        options, identityKey = self._options, self._peer.identityKey
        while True:
            group, isNew = await groups.forProposal(proposal, choice, identityKey, self._terms)
            self._group = group
            try:
                return group, isNew, await group.reserve(options.ring, options.maxmemory)
            except BaseException as error:
                if isNew:
                    group.discard()
                elif isinstance(error, Refused) and error.status == Diagnosis.NOACTLINK:
                    continue  # the group has ended: try another
                raise

    async def _confirmed(self, confirm: Confirm) -> None:
        group, stream = self._group, self._stream
        assert group is not None and stream is not None, "a Confirm before the Accept"
        link = stream.link
        self._isConfirmed = True
        if link.isOver and not stream.wasLost:
            raise Refused("the link has ended", Diagnosis.NOACTLINK)
        if link.isOver:
            pass  # the client has already finished over SMC-R, and closed
        elif group.isNew:
            group.connect(confirm)
            await group.confirmed()
        elif not stream.named.leadsTo(confirm.gid, confirm.mac, confirm.qpn):
            raise Refused("the Confirm names another link", Diagnosis.NOSRVLINK)
        await stream.link.prepare(confirm)
        stream.attach(confirm)
        self._establish()
