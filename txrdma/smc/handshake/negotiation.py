"""
From a TCP connection to a stream: the CLC handshake of both ends, and what comes of it.

L{txrdma.smc.handshake._machine} decides; here are the TCP connection, the timer and the link group.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Generator
from functools import lru_cache
from typing import Any, cast

from zope.interface import implementer

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.endpoints import quoteStringArgument
from twisted.internet.error import ConnectionDone, NoProtocol
from twisted.internet.interfaces import IDelayedCall, IHalfCloseableProtocol, IProtocol, IReactorTime
from twisted.internet.protocol import connectionDone, Protocol
from twisted.internet.tcp import Connection
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.python.log import callWithContext

from txrdma.error import RDMAError, Refused
from txrdma.kit.logs import Seldom
from txrdma.smc.common.reactoruse import reactorUse, Use
from txrdma.smc.common.realports import realPorts
from txrdma.smc.group.groups import GroupTerms, LinkGroups, linkGroups
from txrdma.smc.handshake import _machine as clcEvents
from txrdma.smc.handshake._machine import ClientHandshake, ServerHandshake
from txrdma.smc.handshake.outcomes import NotSMC, Outcomes
from txrdma.smc.handshake.plaintcp import Foreign, runOnTCP
from txrdma.smc.signalling.counterpart import PeerIdentity
from txrdma.smc.stream.stream import Address, Stream
from txrdma.smc.stream.tcpmonitor import TCPMonitor
from txrdma.smc.stream.transport import PromptTransport, SMCTransport
from txrdma.smc.terms.offer import Candidate, Role
from txrdma.smc.terms.options import LOCAL_DEVICE, Options
from txrdma.smc.wire.clc import Diagnosis, LateCLCFilter

_log = Logger()
_seldom = Seldom(_log)


@lru_cache(1)
def hostName() -> bytes:
    """The name of this host, as version 2 tells it to the peer in a first contact."""
    return os.uname().nodename.encode("ascii", "replace")


def _resumed(
    steps: Coroutine[Deferred[Any], Any, None], waited: Deferred[Any]
) -> Generator[Deferred[Any], Any, None]:
    """The rest of steps that have begun, and wait for something."""
    try:
        while True:
            try:
                result = yield waited
            except GeneratorExit:  # nobody waits any more, as when a reactor is abandoned
                steps.close()
                raise
            except BaseException as error:
                waited = steps.throw(error)
            else:
                waited = steps.send(result)
    except StopIteration:
        pass


@implementer(IHalfCloseableProtocol)
class Negotiation(Protocol):
    """
    The base of a client's and a server's negotiation, which runs a CLC handshake on a TCP connection.

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
        use: Use | None = None,
    ) -> None:
        """
        @param use: of SMC on the reactor, which has begun for the connection; None: it begins now.
        """
        self._reactor: IReactorTime = reactor
        self._options = options
        self._outcomes = outcomes
        self._build = build
        self._over = False
        self._timer: IDelayedCall | None = None
        self._until = 0.0  # when the timer is due
        self._limit: IDelayedCall | None = None
        self._work: Deferred[None] | None = None
        self._stream: Stream | None = None
        self._fellBack: clcEvents.FellBack | None = None
        self._early = b""
        self._isPaused = False
        self._hasEnded = False
        self._use: Use | None = use or reactorUse(reactor).hold()

    def makeConnection(self, transport: Any) -> None:
        """Begin, with a TCP connection."""
        self._peer = PeerIdentity(transport, self.role is Role.SERVER)
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
        """Do nothing: negotiations never close one half of the connection."""

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """End the negotiation without success: the TCP connection is lost."""
        self._end()
        self._failed(reason)
        self._leave()

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
        self._pause(core.isFull)
        if core.done:
            if self._fellBack is not None:
                foreign = LateCLCFilter(core.isJoining) if core.mayCross else None
                self._runOnTCP(self._fellBack.reason, self._fellBack.peerDiagnosis, self._early, foreign)
            elif self._stream is not None and core.isEstablished:
                self._runOnSMC(self._stream)
            return
        deadline = core.deadline()
        if deadline is not None:
            self._wait(deadline)

    def _wait(self, deadline: float) -> None:
        """Have a timer by then: mostly the one that there is, which will see that it is not time yet."""
        timer = self._timer
        if timer is not None and timer.active():
            if self._until <= deadline:
                return
            timer.cancel()
        self._until = deadline
        self._timer = self._reactor.callLater(max(deadline - self._reactor.seconds(), 0.0), self._late)

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
        transport = self.transport
        if not transport.dataBuffer and not transport._tempDataLen:
            sent = transport.writeSomeData(data)
            if isinstance(sent, int):  # what goes wrong is met by the reactor, too
                data = data[sent:]
        if data:
            transport.write(data)

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
            self._leave()
        else:
            self._step(self._answer(event))

    async def _answer(self, event: clcEvents.Event) -> None:
        """Act on an event that is a matter of one role: a Proposal, an Accept or a Confirm."""
        raise NotImplementedError

    def _step(self, steps: Coroutine[Deferred[Any], Any, None]) -> None:
        try:
            waited = steps.send(None)
        except StopIteration:  # it waits for nothing, as mostly
            self._stepped(None)
            return
        except BaseException:
            self._stumbled(Failure())
            return
        work = Deferred.fromCoroutine(_resumed(steps, waited))
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
            self._core.decline(diagnosis, self._reactor.seconds())
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
            stream.link.group.discard()  # if it was new, then for this connection: nobody else would end it

    def _end(self) -> None:
        self._over = True
        self._abandon()
        for timer in (self._timer, self._limit):
            if timer is not None and timer.active():
                timer.cancel()
        self._timer = self._limit = None

    def _leave(self) -> None:
        """Use SMC no longer, unless a stream does so in place of the negotiation. Twice is fine."""
        use, self._use = self._use, None
        if use is not None:
            use.release()

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
            self._leave()

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
        protocol, failure = self._built()
        if protocol is None:
            self.transport.loseConnection()
            self._failed(failure)
            return
        runOnTCP(self.transport, protocol, self.role.value, reason, peerDiagnosis, leftover, foreign)
        self._succeeded(protocol)

    def _runOnSMC(self, stream: Stream) -> None:
        try:
            self._startSMC(stream)
        finally:
            self._leave()

    def _startSMC(self, stream: Stream) -> None:
        self._stream = None
        self._end()
        link, options = stream.link, self._options
        self._outcomes.established(link.agreement.version, link.device, link.route)
        monitor = TCPMonitor(stream, self.transport, self._reactor)
        self.transport.protocol = monitor
        protocol, failure = self._built()
        kind = SMCTransport if options.autocork else PromptTransport
        transport = kind(stream, Protocol() if protocol is None else protocol, self.transport)
        if options.sndbuf != SMCTransport.bufferSize:
            transport.bufferSize = options.sndbuf
        use, self._use = self._use, None
        callWithContext({"system": transport.logPrefix()}, stream.start, transport, monitor, use)
        if protocol is None:
            stream.close()
            self._failed(failure)
            return
        self._succeeded(protocol)
        if self._hasEnded:
            monitor.readConnectionLost()

    def _built(self) -> tuple[IProtocol | None, Failure]:
        """The user's protocol, or None and why there is none: its factory has declined, or raised."""
        try:
            return self._build(), Failure(NoProtocol())
        except Exception:
            if self.role is Role.SERVER:  # whoever connects is told
                _log.failure("Unhandled error in buildProtocol")
            return None, Failure()

    def _succeeded(self, protocol: IProtocol) -> None:
        """The user's protocol is connected."""

    def _failed(self, reason: Failure) -> None:
        """Hear that the user's protocol will never be connected, for this reason."""

    # What both need

    @property
    def _addresses(self) -> tuple[Address, Address]:
        """The addresses of the TCP connection: ours, and the peer's."""
        return cast("tuple[Address, Address]", self._peer.addresses)

    @property
    def _terms(self) -> GroupTerms:
        """The terms for a link group that the connection may need."""
        return GroupTerms(self._options.maxgroups, self._options.keepalive)

    def _localDevice(self) -> str:
        """
        The device that shares memory with the peer.

        @raise Refused: there is none.
        """
        if self._peer.directory:
            return f"{LOCAL_DEVICE}:runtime={quoteStringArgument(self._peer.directory)}"
        if self._peer.user != os.geteuid():
            raise Refused("no device reaches this peer", Diagnosis.NOSMCDEV)
        return LOCAL_DEVICE

    def _ways(self, isLocal: bool = False) -> tuple[LinkGroups, tuple[Candidate, ...]]:
        """
        The link groups of the device that this connection should use, and our ends there.

        @param isLocal: the peer has chosen shared memory.
        @raise Refused: there is none.
        """
        device = self._options.device
        if device == "auto":
            real = None if isLocal else self._realWays()
            if real is not None:
                return real
            device = self._localDevice()
        groups = self._groupsOf(device)
        return groups, groups.candidates

    def _realWays(self) -> tuple[LinkGroups, tuple[Candidate, ...]] | None:
        """The same by the RDMA port of the interface of the TCP connection, if that can be had."""
        if not realPorts.isAny():
            return None
        own, place = self._peer.own, self._peer.place
        if own is None or place is None:
            return None
        found = realPorts.portFor(own.host, place.host)
        if found is None:
            return None
        device, number = found
        try:
            groups = self._groupsOf(device)
        except Refused:
            realPorts.fail(device)
            return None
        candidates = tuple(each for each in groups.candidates if each.port == number)
        return (groups, candidates) if candidates else None

    def _groupsOf(self, device: str) -> LinkGroups:
        """
        The link groups of a device.

        @raise Refused: it is not to be had.
        """
        try:
            return linkGroups(self._reactor, device)
        except (RDMAError, OSError) as error:
            _seldom.warn(device, "can't open the device {device}: {error}", device=device, error=error)
            raise Refused(str(error), Diagnosis.NOSMCDEV) from error
