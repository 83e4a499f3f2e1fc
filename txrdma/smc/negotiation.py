"""
From a TCP connection to a stream: the CLC handshake of both ends, and what comes of it.

L{txrdma.smc._handshake} decides; here are the TCP connection, the timer and the link group.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Coroutine
from typing import Any, cast
from typing import Protocol as Shape

from zope.interface import implementer

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectError, ConnectingCancelledError, ConnectionDone, NoProtocol
from twisted.internet.interfaces import IDelayedCall, IHalfCloseableProtocol, IProtocol, IReactorTime
from twisted.internet.protocol import connectionDone, Protocol
from twisted.internet.tcp import Connection
from twisted.logger import Logger, LogLevel
from twisted.python.failure import Failure

from txrdma.error import RDMAError, Refused
from txrdma.smc import _handshake as clcEvents
from txrdma.smc._handshake import ClientHandshake, ServerHandshake
from txrdma.smc._linkgroup import Role
from txrdma.smc.clc import Accept, Confirm, crossed, Decline, Diagnosis, IPv6Prefix, Proposal
from txrdma.smc.groups import LinkGroups, linkGroups, peerID
from txrdma.smc.link import Link
from txrdma.smc.plaintcp import runOnTCP
from txrdma.smc.signalling import Announcement, peerUserByTCP, placeOf
from txrdma.smc.status import diagnosisName
from txrdma.smc.transport import SMCTransport

_log = Logger()

LOCAL_DEVICE = "soft:route=shared-memory"
"""What C{device=auto} takes for a peer on this host, of the same user."""

ACCEPT_PATIENCE = 2.0
"""Seconds from the TCP connection to the listener's word that it has it: one turn of its reactor."""


class NotSMC(Refused, ConnectError):
    """
    The connection would have to run plain TCP, which was forbidden by C{fallback=no}.

    @ivar reason: why.
    @ivar peerDiagnosis: why the peer declined, if it did.
    """

    def __init__(self, reason: Diagnosis, peerDiagnosis: Diagnosis | None) -> None:
        text = f"no SMC-R, and no fallback to TCP is allowed: {diagnosisName(reason)}"
        if peerDiagnosis is not None:
            text += f", the peer says {diagnosisName(peerDiagnosis)}"
        super().__init__(text, int(reason))
        self._text = text
        self.osError = None
        self.reason = reason
        self.peerDiagnosis = peerDiagnosis

    def __str__(self) -> str:
        return self._text


class Options(Shape):
    """What is used here of L{txrdma.smc.endpoints.Options}."""

    @property
    def device(self) -> str: ...
    @property
    def agreed(self) -> bool: ...
    @property
    def timeout(self) -> float | None: ...
    @property
    def fallback(self) -> bool: ...


class Outcomes:
    """Says what became of the connections of one endpoint: the first of each kind aloud."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._said: set[tuple[object, ...]] = set()

    def fellBack(self, reason: Diagnosis, peerDiagnosis: Diagnosis | None, allowed: bool) -> None:
        """A connection runs on TCP, or has ended because it may not."""
        self._say(
            "{where}: {what}, because {reason}{peer}",
            (allowed, reason, peerDiagnosis),
            what="plain TCP" if allowed else "connection dropped, as it can't be SMC-R",
            reason=diagnosisName(reason),
            peer="" if peerDiagnosis is None else f"; the peer says {diagnosisName(peerDiagnosis)}",
        )

    def established(self, device: str, route: str) -> None:
        """A connection runs on SMC-R."""
        self._say("{where}: SMC-R by {device}, {route}", (device, route), device=device, route=route)

    def _say(self, text: str, key: tuple[object, ...], **fields: object) -> None:
        level = LogLevel.debug if key in self._said else LogLevel.info
        self._said.add(key)
        _log.emit(level, text, where=self._where, **fields)


class PlainStart(Protocol):
    """Gives a TCP connection to the user's protocol at once."""

    def __init__(self, protocol: IProtocol, reason: Diagnosis) -> None:
        self._protocol = protocol
        self._reason = reason

    def makeConnection(self, transport: Any) -> None:
        """Step aside."""
        runOnTCP(transport, self._protocol, Role.SERVER.value, self._reason)


class Companion(Protocol):
    """Watches the TCP connection of an SMC-R connection: nothing may come any more but its end."""

    def __init__(self, stream: SMCTransport, tcp: Connection) -> None:
        self._stream: SMCTransport | None = stream
        self._tcp = tcp

    def dataReceived(self, data: bytes) -> None:
        """The peer has lost its way."""
        if self._stream is not None:
            self._stream.violated("bytes on the TCP connection")
            self._tcp.abortConnection()  # it may have fallen back, and must hear of it

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """While active, that is an abort (RFC 7609, 4.8.2)."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.tcpLost()


@implementer(IHalfCloseableProtocol)
class _Negotiation(Protocol):
    """
    What is the same at both ends.

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
        user: int | None,
    ) -> None:
        self._reactor: IReactorTime = reactor
        self._options = options
        self._outcomes = outcomes
        self._build = build
        self._user = user
        self._over = False
        self._timer: IDelayedCall | None = None
        self._limit: IDelayedCall | None = None
        self._work: Deferred[None] | None = None
        self._stream: SMCTransport | None = None
        self._fellBack: clcEvents.FellBack | None = None
        self._early = b""

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
            self.transport.write(data)
        for event in core.events():
            self._handle(event)
        if self._over:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if core.done:
            if self._fellBack is not None:
                foreign = crossed if core.mayCross else None
                self._runOnTCP(self._fellBack.reason, self._fellBack.peerDiagnosis, self._early, foreign)
            elif self._stream is not None:
                self._runOnSMC(self._stream)
            return
        deadline = core.deadline()
        if deadline is not None:
            delay = max(deadline - self._reactor.seconds(), 0.0)
            self._timer = self._reactor.callLater(delay, self._expired)

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
                _log.warn("no SMC-R: {error}", error=failure.getErrorMessage())
            else:
                _log.failure("while a connection was made", failure)
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
        foreign: Callable[[bytes], int | None] | None = None,
    ) -> None:
        self._end()
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
        self._stream = None
        self._end()
        self._outcomes.established(stream.link.device, stream.link.route)
        self.transport.protocol = Companion(stream, self.transport)
        protocol = self._build()
        if protocol is None:
            stream.start(Protocol())
            stream.loseConnection()
            self._failed(Failure(NoProtocol()))
            return
        stream.start(protocol)
        self._succeeded(protocol)

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
            user = self._user
            if user is None:
                own, peer = placeOf(self.transport.getHost()), placeOf(self.transport.getPeer())
                if own is not None and peer is not None:
                    user = peerUserByTCP(own, peer, self.role is Role.SERVER)
            if user != os.geteuid():
                raise Refused("no device reaches this peer", Diagnosis.NOSMCDEV)
            device = LOCAL_DEVICE
        try:
            return linkGroups(self._reactor, device)
        except (RDMAError, OSError) as error:
            _log.warn("can't open the device {device}: {error}", device=device, error=error)
            raise Refused(str(error), Diagnosis.NOSMCDEV) from error


class ServerNegotiation(_Negotiation):
    """The server's end of a connection whose client speaks SMC, or may do so."""

    role = Role.SERVER
    _link: Link | None = None

    def connectionMade(self) -> None:
        """The client speaks first."""
        now = self._reactor.seconds()
        announced = self._user is not None
        self._begin(ServerHandshake(now, peerID=peerID(), announced=announced))

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
        link, isNew = await groups.forProposal(proposal)
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
        if link.isOver:
            raise Refused("the link has ended meanwhile", Diagnosis.NOACTLINK)
        if link.isNew:
            link.connect(confirm)
            await link.confirmed()
        elif not link.leadsTo(confirm):
            raise Refused("the Confirm names another link", Diagnosis.NOSRVLINK)
        stream.attach(confirm)
        self._core.established()


class ClientNegotiation(_Negotiation):
    """The client's end."""

    role = Role.CLIENT
    _announcement: Announcement | None = None
    _accept: Accept | None = None

    def __init__(
        self, reactor: Any, options: Options, outcomes: Outcomes, build: Callable[[], IProtocol | None]
    ) -> None:
        super().__init__(reactor, options, outcomes, build, None)
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
            self._propose()
        elif announcement is None or announcement.user < 0:
            self._runOnTCP(Diagnosis.PEERNOSMC, None, b"")
        else:
            self._user = announcement.user
            self._announcement = announcement
            if announcement.isOver:
                self._told()
            else:
                announcement.changed = self._told
                self._timer = self._reactor.callLater(ACCEPT_PATIENCE, announcement.close)

    def dataReceived(self, data: bytes) -> None:
        """Bytes before the listener knows of us: it is somebody else, who speaks first."""
        announcement = self._announcement
        if announcement is not None:
            self._announcement = None
            announcement.forget()
            self._runOnTCP(Diagnosis.PEERNOSMC, None, data)
        else:
            super().dataReceived(data)

    def readConnectionLost(self) -> None:
        """Somebody else's listener may close before ours knows of us."""
        if self._announcement is not None:
            self.transport.connectionLost(Failure(ConnectionDone()))
        else:
            super().readConnectionLost()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Nothing will come of it."""
        if self._announcement is not None:
            self._announcement.forget()
        super().connectionLost(reason)

    def _told(self) -> None:
        announcement, self._announcement = self._announcement, None
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._timer = None
        if announcement is not None and announcement.isAccepted:
            self._propose()
        else:
            self._runOnTCP(Diagnosis.PEERNOSMC, None, b"")

    def _propose(self) -> None:
        try:
            self._manager = groups = self._groups()
        except Refused as refused:  # the server waits to hear something
            diagnosis = Diagnosis(refused.status)
            self.transport.write(Decline(peerID=peerID(), diagnosis=diagnosis).encode())
            self._runOnTCP(diagnosis, None, b"")
            return
        host = ipaddress.ip_address(self.transport.getHost().host.partition("%")[0])
        if isinstance(host, ipaddress.IPv4Address):
            where: dict[str, Any] = {"subnet": int(host), "prefixLength": 32}
        else:
            where = {"ipv6Prefixes": (IPv6Prefix(prefix=host.packed, length=128),)}
        proposal = Proposal(peerID=groups.peerID, gid=groups.gid, mac=groups.mac, **where)
        self._begin(ClientHandshake(self._reactor.seconds(), proposal))

    async def _answer(self, event: clcEvents.Event) -> None:
        if isinstance(event, clcEvents.Accepted):
            await self._accepted(event.accept)

    async def _accepted(self, accept: Accept) -> None:
        assert self._manager is not None, "an Accept before the Proposal"
        link = self._manager.forAccept(accept)
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
