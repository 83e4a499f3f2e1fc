"""
The server's end of a CLC handshake: who accepts a Proposal, or knows of a client that will send one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from twisted.internet.interfaces import IProtocol
from twisted.internet.tcp import Server

from txrdma.error import Refused
from txrdma.smc.carriers.interfaces import IArrival
from txrdma.smc.group._linkgroup import Role
from txrdma.smc.group.buffers import Element
from txrdma.smc.group.groups import peerID
from txrdma.smc.group.link import Link
from txrdma.smc.handshake import _machine as clcEvents
from txrdma.smc.handshake._machine import ServerHandshake
from txrdma.smc.handshake.negotiation import Negotiation
from txrdma.smc.insight.outcomes import Outcomes
from txrdma.smc.options import Options
from txrdma.smc.stream.transport import SMCTransport
from txrdma.smc.wire.clc import Accept, Confirm, Diagnosis, Proposal


class ServerNegotiation(Negotiation):
    """
    The server's end of a connection whose client speaks SMC, or may do so.

    @ivar _arrival: what its carrier knows of the connection, None when that is nothing.
    """

    role = Role.SERVER
    _link: Link | None = None
    _isConfirmed = False

    def __init__(
        self,
        reactor: Any,
        options: Options,
        outcomes: Outcomes,
        build: Callable[[], IProtocol | None],
        arrival: IArrival | None,
    ) -> None:
        super().__init__(reactor, options, outcomes, build)
        self._arrival = arrival

    def connectionMade(self) -> None:
        """The client speaks first, if its carrier is sure of it."""
        arrival = self._arrival
        if arrival is not None:
            self._peer.introduce(arrival.process, arrival.user)
            arrival.expect(self._withdrawn)
        isSure = arrival is not None and arrival.isSure
        self._begin(ServerHandshake(self._reactor.seconds(), peerID=peerID(), announced=isSure))

    def readConnectionLost(self) -> None:
        """A client that has confirmed may be quick: it has said all by SMC already, and has gone."""
        if self._isConfirmed and self._work is not None:
            self._hasEnded = True
        else:
            super().readConnectionLost()

    def _withdrawn(self) -> None:
        if not self._over:
            cast(ServerHandshake, self._core).withdrawn()
            self._turn()

    def _end(self) -> None:
        if self._arrival is not None:
            self._arrival.settle()
        super()._end()

    def _handle(self, event: clcEvents.Event) -> None:
        if isinstance(event, clcEvents.FellBack) and event.outOfSync and self._link is not None:
            self._link.retire()
        super()._handle(event)

    async def _answer(self, event: clcEvents.Event) -> None:
        if isinstance(event, clcEvents.Proposed):
            if self._arrival is not None:
                self._arrival.settle()
            await self._accept(event.proposal)
        elif isinstance(event, clcEvents.Confirmed):
            await self._confirmed(event.confirm)

    async def _accept(self, proposal: Proposal) -> None:
        link, isNew, element = await self._place(proposal)
        self._stream = stream = SMCTransport(link, element, self.transport, self.role)
        if isinstance(self.transport, Server):
            stream.sessionno = self.transport.sessionno
        message = Accept(
            **link.terms(element),
            token=stream.token,
            mtu=link.mtu,
            firstContact=isNew,
        )
        cast(ServerHandshake, self._core).accept(message, self._reactor.seconds())

    async def _place(self, proposal: Proposal) -> tuple[Link, bool, Element]:
        """A link for the client, whether it is new, and a ring there; if it ends meanwhile, another."""
        groups = self._groups()
        while True:
            link, isNew = await groups.forProposal(proposal, self._peer.witness)
            self._link = link
            try:
                return link, isNew, await link.reserve()
            except BaseException as error:
                if isNew:
                    link.discard()
                elif isinstance(error, Refused) and error.status == Diagnosis.NOACTLINK:
                    continue
                raise

    async def _confirmed(self, confirm: Confirm) -> None:
        link, stream = self._link, self._stream
        assert link is not None and stream is not None, "a Confirm before the Accept"
        self._isConfirmed = True
        if link.isOver and not stream.wasLost:
            raise Refused("the link has ended meanwhile", Diagnosis.NOACTLINK)
        if link.isOver:
            pass  # the client has said all, and gone
        elif link.isNew:
            link.connect(confirm)
            await link.confirmed()
        elif not link.leadsTo(confirm):
            raise Refused("the Confirm names another link", Diagnosis.NOSRVLINK)
        await link.prepare(confirm)
        stream.attach(confirm)
        self._core.established()
