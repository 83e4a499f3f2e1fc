"""The client's side of a CLC handshake: proposes SMC if the listener is known to support it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectingCancelledError
from twisted.internet.interfaces import IProtocol, IProtocolFactory
from twisted.python.failure import Failure

from txrdma.error import Refused, WireError
from txrdma.smc.common.reactoruse import Use
from txrdma.smc.group.group import LinkGroup
from txrdma.smc.group.groups import LinkGroups
from txrdma.smc.group.ports import peerID
from txrdma.smc.handshake import _machine as clcEvents
from txrdma.smc.handshake._machine import ClientHandshake
from txrdma.smc.handshake.carriers import carrierFor
from txrdma.smc.handshake.negotiation import hostName, Negotiation
from txrdma.smc.handshake.outcomes import Outcomes
from txrdma.smc.signalling.dialing import approachOf
from txrdma.smc.signalling.interfaces import IClientSignal
from txrdma.smc.signalling.silence import logUnresponsivePeer, silentPeers
from txrdma.smc.stream.stream import Stream
from txrdma.smc.terms.offer import Agreement, Offer, propose, Role
from txrdma.smc.terms.options import Options
from txrdma.smc.wire.clc import Accept, Decline, Diagnosis, LateCLCFilter


class ClientNegotiation(Negotiation):
    """
    The client's side of a handshake.

    @ivar _approach: signal to the listener, until it is known whether the listener supports SMC.
    @ivar _unread: bytes received before that is known.
    @ivar _hasAsked: a Proposal was sent; if it is not answered, later connections do not propose for a while.
    """

    role = Role.CLIENT
    _core: ClientHandshake
    _approach: IClientSignal | None = None
    _accept: Accept | None = None
    _group: LinkGroup | None = None
    _unread = b""
    _hasAsked = False

    def __init__(
        self,
        reactor: Any,
        options: Options,
        outcomes: Outcomes,
        build: Callable[[], IProtocol | None],
        use: Use | None = None,
        finished: Deferred[IProtocol] | None = None,
        factory: IProtocolFactory | None = None,
    ) -> None:
        super().__init__(reactor, options, outcomes, build, use)
        self._factory = factory
        self._finished: Deferred[IProtocol] = finished or Deferred(lambda _: self.cancel())
        self._manager: LinkGroups | None = None
        self._offer: Offer | None = None

    def finished(self) -> Deferred[IProtocol]:
        """Return a Deferred that fires with the user's protocol when it is connected."""
        return self._finished

    def connectionMade(self) -> None:
        """Propose, if the listener is known to support SMC."""
        self.transport.protocol = self  # instead of the wrapper of an endpoint
        self._approach = approachOf(self.transport, partial(carrierFor, self._reactor, self._options))
        self._approach.query(self.transport, partial(self._turn, self._signalled))

    def dataReceived(self, data: bytes) -> None:
        """Hold bytes that arrive before the listener's signal, which may be about to arrive."""
        if self._approach is None:
            super().dataReceived(data)
            return
        self._unread += data
        self.transport.pauseProducing()
        self._reactor.callLater(0, self._decideEarly)

    def _decideEarly(self) -> None:
        if self._approach is not None:
            self._approach.decideNow()

    def readConnectionLost(self) -> None:
        """Handle a FIN of the server, which may have sent everything by SMC-R; before its signal, use TCP."""
        if self._approach is not None:
            self._hasEnded = True
            self._runUnproposed(self._approach, self._unread)
        elif self._stream is not None:
            self._hasEnded = True  # after the Confirm was sent
        else:
            super().readConnectionLost()

    def _end(self) -> None:
        approach, self._approach = self._approach, None
        if approach is not None:
            approach.close()
        super()._end()

    def _signalled(self) -> None:
        approach, self._approach = self._approach, None
        assert approach is not None, "a carrier's answer after the end"
        held, self._unread = self._unread, b""
        if held:
            self.transport.resumeProducing()
        if approach.isSMC:
            self._peer.introduce(approach.process, approach.user, approach.directory)
            self._propose(held)
        elif approach.isAwaited:
            self._declineAtOnce(Diagnosis.PEERNOSMC)
        else:
            self._runUnproposed(approach, held)

    def _runUnproposed(self, approach: IClientSignal, held: bytes) -> None:
        """Use plain TCP without a Proposal; a listener that still waits for it will send a Decline."""
        foreign = LateCLCFilter() if approach.isExpected else None
        self._runOnTCP(Diagnosis.PEERNOSMC, None, held, foreign)

    def _answered(self, isInTime: bool) -> None:
        peer = self._peer.peerAddress
        if not self._hasAsked:
            pass
        elif isInTime:
            silentPeers(self._reactor).answered(peer)
        elif peer is not None:
            logUnresponsivePeer(self._reactor, peer, self._reactor.seconds())

    def _declineAtOnce(self, diagnosis: Diagnosis) -> None:
        """Decline without a Proposal, because the server waits for a CLC message."""
        self._send(Decline(peerID=peerID(), diagnosis=diagnosis).encode())
        self._runOnTCP(diagnosis, None, b"")

    def _propose(self, held: bytes = b"") -> None:
        try:
            self._manager, candidates = self._candidates()
        except Refused as refused:
            self._declineAtOnce(Diagnosis(refused.status))
            return
        abilities = self._options.abilities(self._manager.portCount)
        offer = propose(candidates, abilities, self._peer.addresses[0].host)
        if isinstance(offer, Diagnosis):
            self._declineAtOnce(offer)
            return
        self._hasAsked = True
        self._offer = offer
        self._begin(ClientHandshake(self._clock.seconds(), offer))
        if held:
            self.dataReceived(held)

    def _answer(self, event: clcEvents.Question) -> Coroutine[Deferred[Any], Any, None]:
        assert isinstance(event, clcEvents.Accepted), "an event of a server"
        return self._accepted(event.accept, event.agreement)

    async def _accepted(self, accept: Accept, agreement: Agreement) -> None:
        assert self._manager is not None and self._offer is not None, "an Accept before the Proposal"
        candidate = self._offer.candidate(agreement.version)
        assert candidate is not None, "a version that was not offered"
        options, identityKey = self._options, self._peer.identityKey
        group = self._manager.forAccept(accept, candidate, agreement, identityKey, self._terms)
        self._group = group
        try:
            element = await group.reserve(options.ring, options.maxmemory)
        except BaseException:
            if accept.firstContact:
                group.discard()
            raise
        with group.returning(element):
            link = group.leadingTo(accept)
            self._stream = stream = Stream(link, element, self._peer.addresses, self.role)
        if accept.firstContact:
            group.connect(accept)
        message = link.confirm(element, stream.token, accept, agreement, hostName())
        self._core.confirm(message, self._clock.seconds())
        self._accept = accept

    def _stepped(self, result: None) -> None:
        super()._stepped(result)
        accept, self._accept = self._accept, None
        if accept is not None and self._stream is not None:
            self._step(self._linked(self._stream, accept))

    async def _linked(self, stream: Stream, accept: Accept) -> None:
        """Wait until the link is ready, after the Confirm was sent, and attach the stream to it."""
        assert self._group is not None, "a stream before its group"
        if accept.firstContact:
            await self._group.confirmed()
        await stream.link.prepare(accept)
        stream.attach(accept)
        self._establish()

    # The user's Deferred

    def _succeeded(self, protocol: IProtocol) -> None:
        if not self._finished.called:
            self._finished.callback(protocol)

    def _failed(self, reason: Failure) -> None:
        if reason.check(WireError):
            self._answered(isInTime=False)  # the peer would answer like this each time
        if not self._finished.called:
            self._finished.errback(reason)

    def cancel(self) -> None:
        """Abort the connection, because the user cancelled it."""
        error = ConnectingCancelledError(self.transport.getPeer())
        if self._approach is not None:
            self._approach.failed(error)
        self._end()
        self.transport.abortConnection()
        self._finished.errback(error)
