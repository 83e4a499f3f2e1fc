"""
A member joins its group: it meets the others at the rendezvous, and connects to each of them.

Each member listens, and connects to those of smaller rank. All ends prove their ranks before they exchange
anything else, see L{txrdma.kit.proofs}.
"""

from __future__ import annotations

from typing import Any, Final

from zope.interface import implementer

from twisted.internet.defer import CancelledError, Deferred, DeferredList, maybeDeferred
from twisted.internet.endpoints import TCP4ClientEndpoint, TCP4ServerEndpoint
from twisted.internet.error import CannotListenError, ConnectingCancelledError

from txrdma.btl.connections import ClientEndpoint, ServerEndpoint, TIMEOUT
from txrdma.btl.ends import DeviceSpecs
from txrdma.btl.groups.errors import GroupFailed
from txrdma.btl.groups.members import Member, Members
from txrdma.btl.groups.rendezvous import connectToRendezvous, RendezvousClient
from txrdma.btl.groups.terms import GroupTerms
from txrdma.error import RDMAError
from txrdma.kit.proofs import ProvedClientEndpoint, ProvedServerEndpoint
from txrdma.messages.address import MessageAddress
from txrdma.messages.interfaces import IMessageProtocolFactory
from txrdma.messages.protocol import MessageFactory

JOIN_SECONDS: Final = 60.0
"""Seconds in which all members must join."""


@implementer(IMessageProtocolFactory)
class Joining:
    """A member that joins its group, and later leaves it. C{members}: its connections."""

    def __init__(self, reactor: Any, terms: GroupTerms, device: DeviceSpecs, interface: str) -> None:
        self.members = Members(terms.rank, terms.size)
        self._reactor, self._terms, self._device, self._interface = reactor, terms, device, interface
        self._proved: dict[tuple[str, int], int] = {}  # ranks by address, until their connection is made
        self._port: Any = None
        self._rendezvous: RendezvousClient | None = None
        self._connecting: list[Deferred[Any]] = []

    def join(self) -> Deferred[None]:
        """
        Join the group.

        @return: fires when this member is connected to all others; fails with L{GroupFailed}. It can be
            cancelled.
        """
        return Deferred.fromCoroutine(self._join())

    def timedOut(self, result: Any, timeout: float) -> Any:
        """Raise L{GroupFailed} in place of the failure of an attempt that a timeout has cancelled."""
        there, size = len(self.members.transports) + 1, self._terms.size
        result.trap(CancelledError, ConnectingCancelledError)
        if there == size:
            raise GroupFailed(
                f"all members are connected, but one has not completed the join within {timeout:g} seconds"
            )
        raise GroupFailed(f"{there} of {size} members have joined in {timeout:g} seconds")

    async def _join(self) -> None:
        try:
            await self._meet()
        except GroupFailed as error:
            await self.leave(str(error))
            raise
        except (CannotListenError, RDMAError) as error:
            failed = GroupFailed(f"rank {self._terms.rank} cannot join the group: {error}")
            await self.leave(str(failed))
            raise failed from error
        except (CancelledError, ConnectingCancelledError):
            self.leave("its attempt to join was cancelled")
            raise
        except BaseException as error:
            self.leave(repr(error))
            raise

    async def _meet(self) -> None:
        terms = self._terms
        self._rendezvous = client = await connectToRendezvous(self._reactor, terms, self.members.fail)
        self.members.blame = client.blame
        stream = TCP4ServerEndpoint(self._reactor, 0, interface=self._interface)
        proved = ProvedServerEndpoint(self._reactor, stream, terms.rank, terms.keys, self._admit)
        server = ServerEndpoint(self._reactor, proved, self._device)
        self._port = await server.listen(self)
        client.report(self._port.getHost().port)
        addresses = await client.members
        self._connecting = [self._connect(rank, *addresses[rank]) for rank in range(terms.rank)]
        for each in self._connecting:
            each.addErrback(lambda failure: self.members.fail(None, failure.getErrorMessage()))
        await self.members.complete

    def _connect(self, rank: int, host: str, port: int) -> Deferred[Any]:
        """Connect to a member of smaller rank."""
        terms = self._terms
        stream = TCP4ClientEndpoint(self._reactor, host, port, TIMEOUT)
        proved = ProvedClientEndpoint(self._reactor, stream, terms.rank, rank, terms.keys[rank])
        factory = MessageFactory(lambda: Member(self.members, rank))
        return ClientEndpoint(self._reactor, proved, self._device).connect(factory)

    def _admit(self, rank: int, address: Any) -> None:
        self.members.admit(rank)
        self._proved = {known: other for known, other in self._proved.items() if other != rank}
        self._proved[address.host, address.port] = rank

    def buildProtocol(self, peer: MessageAddress) -> Member | None:
        """Return the protocol of a member that has proved its rank, and is reachable."""
        rank = self._proved.pop((peer.host, peer.port), None)
        return None if rank is None else Member(self.members, rank)

    def leave(self, reason: str | None = None) -> Deferred[None]:
        """
        Leave the group. The Deferred fires when all connections have ended.

        @param reason: why this member cannot join, for the others; None: it leaves in order.
        """
        ended = [self.members.close()]
        self.members.complete.addErrback(lambda _: None)  # nobody waits for it
        if self._rendezvous is not None:
            self._rendezvous.leave(reason)
        for each in self._connecting:
            each.cancel()
        if self._port is not None:
            ended.append(maybeDeferred(self._port.stopListening))
        return DeferredList(ended).addCallback(lambda _: None)
