"""
From a TCP connection to a stream: the CLC handshake of both ends, and what comes of it.

L{txrdma.smc._handshake} decides; here are the TCP connection, the timer and the link group.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Coroutine
from typing import Any, cast

from zope.interface import implementer

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectingCancelledError, ConnectionDone, NoProtocol
from twisted.internet.interfaces import IDelayedCall, IHalfCloseableProtocol, IProtocol, IReactorTime
from twisted.internet.protocol import connectionDone, Protocol
from twisted.internet.tcp import Connection
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.python.log import callWithContext

from txrdma.error import RDMAError, Refused
from txrdma.logs import Seldom
from txrdma.smc import _handshake as clcEvents
from txrdma.smc._handshake import ClientHandshake, ServerHandshake
from txrdma.smc._linkgroup import Role
from txrdma.smc._silence import silentPeers
from txrdma.smc.clc import Accept, Confirm, Crossed, Decline, Diagnosis, IPv6Prefix, Proposal
from txrdma.smc.companion import Companion
from txrdma.smc.counterpart import Counterpart
from txrdma.smc.groups import LinkGroups, linkGroups, peerID
from txrdma.smc.link import Link
from txrdma.smc.options import Options
from txrdma.smc.outcomes import NotSMC, Outcomes, tellSilence
from txrdma.smc.plaintcp import Foreign, prefixFor, runOnTCP
from txrdma.smc.presence import presenceOn
from txrdma.smc.signalling import Announced, Announcement
from txrdma.smc.transport import SMCTransport

_log = Logger()
_seldom = Seldom(_log)

LOCAL_DEVICE = "soft:route=shared-memory"
"""What C{device=auto} takes for a peer on this host, of the same user."""


@implementer(IHalfCloseableProtocol)
class _Negotiation(Protocol):
    """
    What is the same at both ends.

    @ivar _peer: who the other end is.
    @ivar _work: the steps that an event has started, while they wait for something.
    @ivar _stream: the SMC connection in the making.
    """

    transport: Connection
    role: Role
    _core: ServerHandshake | ClientHandshake

    def __init__(
        self,
        reactor: Any,
        options: Options,
        outcomes: Outcomes,
        build: Callable[[], IProtocol | None],
    ) -> None:
        self._reactor: IReactorTime = reactor
        self._options = options
        self._outcomes = outcomes
        self._build = build
        self._over = False
        self._timer: IDelayedCall | None = None
        self._limit: IDelayedCall | None = None
        self._work: Deferred[None] | None = None
        self._stream: SMCTransport | None = None
        self._fellBack: clcEvents.FellBack | None = None
        self._early = b""
        self._isPaused = False
        self._hasEnded = False
        self._use = presenceOn(reactor).hold()

    def makeConnection(self, transport: Any) -> None:
        """Begin, with a TCP connection."""
        self._peer = Counterpart(transport, self.role is Role.SERVER)
        super().makeConnection(transport)  # type: ignore[no-untyped-call]  # Twisted has no annotations here

    # What the TCP connection brings

    def dataReceived(self, data: bytes) -> None:
        """Bytes of CLC, or the application's."""
        self._core.received(data, self._reactor.seconds())
        self._turn()

    def readConnectionLost(self) -> None:
        """The peer has said all. If that was to a protocol on TCP, this hears it as it always does."""
        transport = self.transport
        transport.startReading()  # so that it meets the end again, in its turn
        self._core.ended()
        self._turn()
        if transport.protocol is self:
            transport.connectionLost(Failure(ConnectionDone()))

    def writeConnectionLost(self) -> None:
        """We never close one half."""

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Nothing will come of it."""
        self._end()
        self._failed(reason)
        self._use.release()

    # The core's turn

    def _begin(self, core: ServerHandshake | ClientHandshake) -> None:
        self._core = core
        if self._options.timeout is not None:
            self._limit = self._reactor.callLater(self._options.timeout, self._tooLong)
        self._turn()

    def _turn(self) -> None:
        core = self._core
        data = core.outgoing()
        if data:
            self._send(data)
        for event in core.events():
            self._handle(event)
        if self._over:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._pause(core.isFull)
        if core.done:
            if self._fellBack is not None:
                foreign = Crossed() if core.mayCross else None
                self._runOnTCP(self._fellBack.reason, self._fellBack.peerDiagnosis, self._early, foreign)
            elif self._stream is not None:
                self._runOnSMC(self._stream)
            return
        deadline = core.deadline()
        if deadline is not None:
            delay = max(deadline - self._reactor.seconds(), 0.0)
            self._timer = self._reactor.callLater(delay, self._late)

    def _pause(self, isFull: bool) -> None:
        """Let the peer wait with what it sends while nobody can say what that is."""
        if isFull != self._isPaused:
            self._isPaused = isFull
            if isFull:
                self.transport.pauseProducing()
            else:
                self.transport.resumeProducing()

    def _late(self) -> None:
        """If this process was busy, the answer may be there: it is heard before the next call."""
        self._timer = self._reactor.callLater(0, self._expired)

    def _send(self, data: bytes) -> None:
        """Give a message to the system now: who has confirmed may be done, and gone, in the same turn."""
        self.transport.write(data)
        self.transport.doWrite()  # what goes wrong is met by the reactor, too

    def _expired(self) -> None:
        self._timer = None
        self._core.expired(self._reactor.seconds())
        self._turn()

    def _tooLong(self) -> None:
        self._limit = None
        self._decline(Diagnosis.TIMEOUT_CL)

    def _handle(self, event: clcEvents.Event) -> None:
        if isinstance(event, clcEvents.FellBack):
            self._fellBack = event
            self._early = event.data
            self._abandon()
        elif isinstance(event, clcEvents.ApplicationData):
            self._early += event.data
        elif isinstance(event, clcEvents.Failed):
            self._end()
            self.transport.abortConnection()
            self._failed(Failure(event.error))
            self._use.release()
        else:
            self._step(self._answer(event))

    async def _answer(self, event: clcEvents.Event) -> None:
        """What to do about one of the other events."""
        raise NotImplementedError

    def _step(self, steps: Coroutine[Deferred[Any], Any, None]) -> None:
        work = Deferred.fromCoroutine(steps)
        self._work = work
        work.addCallbacks(self._stepped, self._stumbled)

    def _stepped(self, _: None) -> None:
        self._work = None
        self._turn()

    def _stumbled(self, failure: Failure) -> None:
        self._work = None
        if failure.check(CancelledError):
            return
        if isinstance(failure.value, Refused):
            diagnosis = Diagnosis(failure.value.status)
        else:
            diagnosis = Diagnosis.INTERR
            if failure.check(RDMAError):
                text = failure.getErrorMessage()
                _seldom.warn(text, "a connection can't be SMC-R: {error}", error=text)
            else:
                _log.failure("An error, by which a connection can't be SMC-R", failure)
        self._decline(diagnosis)

    def _decline(self, diagnosis: Diagnosis) -> None:
        self._abandon()
        if not self._over:
            self._core.decline(diagnosis, self._reactor.seconds(), outOfSync=diagnosis is Diagnosis.SYNCERR)
            self._turn()

    # How it ends

    def _abandon(self) -> None:
        """Let go of what was meant for SMC."""
        work, self._work = self._work, None
        if work is not None:
            work.cancel()
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.discard()
            stream.link.discard()  # if it was new, then for this connection: nobody else would end it

    def _end(self) -> None:
        self._over = True
        self._abandon()
        for timer in (self._timer, self._limit):
            if timer is not None and timer.active():
                timer.cancel()
        self._timer = self._limit = None

    def _runOnTCP(
        self,
        reason: Diagnosis,
        peerDiagnosis: Diagnosis | None,
        leftover: bytes,
        foreign: Foreign | None = None,
    ) -> None:
        try:
            self._startTCP(reason, peerDiagnosis, leftover, foreign)
        finally:
            self._use.release()

    def _startTCP(
        self,
        reason: Diagnosis,
        peerDiagnosis: Diagnosis | None,
        leftover: bytes,
        foreign: Foreign | None,
    ) -> None:
        self._end()
        if self._hasEnded:
            self.transport.startReading()  # so that the protocol meets the end, in its turn
        allowed = self._options.fallback
        self._outcomes.fellBack(reason, peerDiagnosis, allowed)
        if not allowed:
            self.transport.loseConnection()
            self._failed(Failure(NotSMC(reason, peerDiagnosis)))
            return
        protocol = self._build()
        if protocol is None:
            self.transport.loseConnection()
            self._failed(Failure(NoProtocol()))
            return
        runOnTCP(self.transport, protocol, self.role.value, reason, peerDiagnosis, leftover, foreign)
        self._succeeded(protocol)

    def _runOnSMC(self, stream: SMCTransport) -> None:
        try:
            self._startSMC(stream)
        finally:
            self._use.release()

    def _startSMC(self, stream: SMCTransport) -> None:
        self._stream = None
        self._end()
        self._outcomes.established(stream.link.device, stream.link.route)
        companion = Companion(stream, self.transport, self._reactor)
        self.transport.protocol = companion
        protocol = self._build()
        if protocol is None:
            stream.start(Protocol(), companion)
            stream.loseConnection()
            self._failed(Failure(NoProtocol()))
            return
        callWithContext({"system": prefixFor(self.transport, protocol)}, stream.start, protocol, companion)
        self._succeeded(protocol)
        if self._hasEnded:
            companion.readConnectionLost()

    def _succeeded(self, protocol: IProtocol) -> None:
        """The user's protocol is connected."""

    def _failed(self, reason: Failure) -> None:
        """It never will be."""

    # What both need

    def _groups(self) -> LinkGroups:
        """
        The link groups of the device that this connection should use.

        @raise Refused: there is none.
        """
        device = self._options.device
        if device == "auto":
            if self._peer.user != os.geteuid():
                raise Refused("no device reaches this peer", Diagnosis.NOSMCDEV)
            device = LOCAL_DEVICE
        try:
            return linkGroups(self._reactor, device)
        except (RDMAError, OSError) as error:
            _seldom.warn(device, "can't open the device {device}: {error}", device=device, error=error)
            raise Refused(str(error), Diagnosis.NOSMCDEV) from error


class ServerNegotiation(_Negotiation):
    """
    The server's end of a connection whose client speaks SMC, or may do so.

    @ivar _announced: what was announced on this host, None when nobody did.
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
        announced: Announced | None,
    ) -> None:
        super().__init__(reactor, options, outcomes, build)
        self._announced = announced

    def connectionMade(self) -> None:
        """The client speaks first, if it was announced by its owner."""
        announced, peer = self._announced, self._peer
        if announced is not None and announced.isFrom(peer.place, peer.own):
            peer.process = announced.client
            peer.user = announced.client.user
            announced.onWithdrawal = self._withdrawn
            announced.accepted()
        elif announced is not None and not self._options.agreed:
            self._runOnTCP(Diagnosis.PEERNOSMC, None, b"")
            return
        isSure = peer.process is not None
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

    def _handle(self, event: clcEvents.Event) -> None:
        if isinstance(event, clcEvents.FellBack) and event.outOfSync and self._link is not None:
            self._link.retire()
        super()._handle(event)

    async def _answer(self, event: clcEvents.Event) -> None:
        if isinstance(event, clcEvents.Proposed):
            await self._accept(event.proposal)
        elif isinstance(event, clcEvents.Confirmed):
            await self._confirmed(event.confirm)

    async def _accept(self, proposal: Proposal) -> None:
        groups = self._groups()
        link, isNew = await groups.forProposal(proposal, self._peer.witness)
        self._link = link
        try:
            element = await link.reserve()
        except BaseException:
            if isNew:
                link.discard()
            raise
        self._stream = stream = SMCTransport(link, element, self.transport, self.role)
        message = Accept(
            **link.terms(element),
            token=stream.token,
            mtu=link.mtu,
            firstContact=isNew,
        )
        cast(ServerHandshake, self._core).accept(message, self._reactor.seconds())

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


class ClientNegotiation(_Negotiation):
    """
    The client's end.

    @ivar _announcement: what the listener of this host was told, while it has not said whether it has us.
    @ivar _held: bytes that came before it has, and may be somebody else's.
    @ivar _hasAsked: the peer should answer; if it does not, others need not ask for a while.
    """

    role = Role.CLIENT
    _announcement: Announcement | None = None
    _accept: Accept | None = None
    _held = b""
    _hasAsked = False

    def __init__(
        self, reactor: Any, options: Options, outcomes: Outcomes, build: Callable[[], IProtocol | None]
    ) -> None:
        super().__init__(reactor, options, outcomes, build)
        self._finished: Deferred[IProtocol] = Deferred(self._cancelled)
        self._manager: LinkGroups | None = None

    def finished(self) -> Deferred[IProtocol]:
        """The user's protocol, when it is connected."""
        return self._finished

    def connectionMade(self) -> None:
        """Propose, if the listener is known to speak SMC."""
        self.transport.protocol = self  # and not what an endpoint has put before us
        announcement: Announcement | None = getattr(self.transport, "announcement", None)
        if self._options.agreed:
            silent, peer, now = silentPeers(self._reactor), self._peer.place, self._reactor.seconds()
            if self._options.fallback and silent.isSilent(peer, now):
                self._declineAtOnce(Diagnosis.PEERNOSMC)
            else:
                silent.ask(peer, now)
                self._propose()
        elif announcement is None or announcement.user < 0:
            self._runOnTCP(Diagnosis.PEERNOSMC, None, b"")
        else:
            self._peer.process = announcement.listener
            self._peer.user = announcement.user
            self._announcement = announcement
            announcement.then(self._told)

    def dataReceived(self, data: bytes) -> None:
        """Bytes before the listener has said that it has us: it is somebody else, or its word comes next."""
        if self._announcement is None:
            super().dataReceived(data)
            return
        self._held += data
        self.transport.pauseProducing()
        self._reactor.callLater(0, self._heardEarly)

    def _heardEarly(self) -> None:
        announcement = self._announcement
        if announcement is not None:
            announcement.close()

    def readConnectionLost(self) -> None:
        """Somebody else's listener may close before ours knows of us."""
        if self._announcement is not None:
            self.transport.connectionLost(Failure(ConnectionDone()))
        else:
            super().readConnectionLost()

    def _end(self) -> None:
        announcement, self._announcement = self._announcement, None
        if announcement is not None:
            announcement.forget()
        super()._end()

    def _told(self) -> None:
        announcement, self._announcement = self._announcement, None
        held, self._held = self._held, b""
        if held:
            self.transport.resumeProducing()
        if announcement is not None and announcement.isAccepted:
            self._propose(held)
        else:
            self._runOnTCP(Diagnosis.PEERNOSMC, None, held)

    def _runOnTCP(
        self,
        reason: Diagnosis,
        peerDiagnosis: Diagnosis | None,
        leftover: bytes,
        foreign: Foreign | None = None,
    ) -> None:
        if self._hasAsked:
            self._answered(isInTime=Diagnosis.TIMEOUT_CL not in (reason, peerDiagnosis))
        super()._runOnTCP(reason, peerDiagnosis, leftover, foreign)

    def _runOnSMC(self, stream: SMCTransport) -> None:
        self._answered(isInTime=True)
        super()._runOnSMC(stream)

    def _answered(self, isInTime: bool) -> None:
        peer = self._peer.place
        if isInTime:
            silentPeers(self._reactor).answered(peer)
        elif peer is not None:
            tellSilence(self._reactor, peer, self._reactor.seconds())

    def _declineAtOnce(self, diagnosis: Diagnosis) -> None:
        """The server waits to hear something."""
        self._send(Decline(peerID=peerID(), diagnosis=diagnosis).encode())
        self._runOnTCP(diagnosis, None, b"")

    def _propose(self, held: bytes = b"") -> None:
        try:
            self._manager = groups = self._groups()
        except Refused as refused:
            self._declineAtOnce(Diagnosis(refused.status))
            return
        self._hasAsked = True
        host = ipaddress.ip_address(self.transport.getHost().host.partition("%")[0])
        if isinstance(host, ipaddress.IPv4Address):
            where: dict[str, Any] = {"subnet": int(host), "prefixLength": 32}
        else:
            where = {"ipv6Prefixes": (IPv6Prefix(prefix=host.packed, length=128),)}
        proposal = Proposal(peerID=groups.peerID, gid=groups.gid, mac=groups.mac, **where)
        self._begin(ClientHandshake(self._reactor.seconds(), proposal))
        if held:
            self.dataReceived(held)

    async def _answer(self, event: clcEvents.Event) -> None:
        if isinstance(event, clcEvents.Accepted):
            await self._accepted(event.accept)

    async def _accepted(self, accept: Accept) -> None:
        assert self._manager is not None, "an Accept before the Proposal"
        link = self._manager.forAccept(accept, self._peer.witness)
        try:
            element = await link.reserve()
        except BaseException:
            if accept.firstContact:
                link.discard()
            raise
        self._stream = stream = SMCTransport(link, element, self.transport, self.role)
        if accept.firstContact:
            link.connect(accept)
        message = Confirm(
            **link.terms(element),
            token=stream.token,
            mtu=min(accept.mtu, link.mtu),
            firstContact=accept.firstContact,
        )
        cast(ClientHandshake, self._core).confirm(message, self._reactor.seconds())
        self._accept = accept

    def _stepped(self, result: None) -> None:
        super()._stepped(result)
        accept, self._accept = self._accept, None
        if accept is not None and self._stream is not None:
            self._step(self._linked(self._stream, accept))

    async def _linked(self, stream: SMCTransport, accept: Accept) -> None:
        """The Confirm is sent."""
        if accept.firstContact:
            await stream.link.confirmed()
        await stream.link.prepare(accept)
        stream.attach(accept)
        self._core.established()

    # The user's Deferred

    def _succeeded(self, protocol: IProtocol) -> None:
        if not self._finished.called:
            self._finished.callback(protocol)

    def _failed(self, reason: Failure) -> None:
        if not self._finished.called:
            self._finished.errback(reason)

    def _cancelled(self, finished: Deferred[IProtocol]) -> None:
        address = self.transport.getPeer()
        self._end()
        self.transport.abortConnection()
        finished.errback(ConnectingCancelledError(address))
