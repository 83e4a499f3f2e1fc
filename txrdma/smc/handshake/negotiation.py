"""
Runs a CLC handshake on a TCP connection; the result is a stream over SMC-R, or plain TCP.

Common part of client and server. L{txrdma.smc.handshake._machine} decides what is sent; this module connects
it with the TCP connection, a timer and a link group. It also chooses the device of a connection with
C{device=auto}: the RDMA port at the connection's interface, else the software device over shared memory, else
none (plain TCP).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Generator
from functools import lru_cache
from typing import Any

from zope.interface import implementer

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.endpoints import quoteStringArgument
from twisted.internet.error import ConnectionDone, ConnectionLost, NoProtocol
from twisted.internet.interfaces import (
    IDelayedCall,
    IHalfCloseableProtocol,
    IProtocol,
    IProtocolFactory,
    IReactorTime,
)
from twisted.internet.protocol import connectionDone, Protocol
from twisted.internet.tcp import Connection
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.error import MalformedDevice, RDMAError, Refused
from txrdma.kit.delayedcalls import cancelCall, isPending
from txrdma.kit.forwardclock import sharedForwardClock
from txrdma.smc.common.reactoruse import reactorUse, Use
from txrdma.smc.common.realports import realPorts
from txrdma.smc.group.groups import groupTerms, LinkGroups, linkGroups, LinkGroupTerms
from txrdma.smc.handshake import _machine as clcEvents
from txrdma.smc.handshake._machine import ClientHandshake, ServerHandshake
from txrdma.smc.handshake.outcomes import NotSMC, Outcomes
from txrdma.smc.handshake.plaintcp import Foreign, runOnTCP
from txrdma.smc.signalling.peeridentity import PeerIdentity
from txrdma.smc.stream.stream import Stream
from txrdma.smc.stream.tcpmonitor import TCPMonitor
from txrdma.smc.stream.transport import PromptTransport, SMCTransport
from txrdma.smc.terms.offer import Candidate, Role
from txrdma.smc.terms.options import LOCAL_DEVICE, Options
from txrdma.smc.wire.clc import Diagnosis, LateCLCFilter
from txrdma.streams.transport import logName
from txrdma.unix.sockets import isSameUser

_log = Logger()


@lru_cache(1)
def hostName() -> bytes:
    return os.uname().nodename.encode("ascii", "replace")


def _resumed(
    steps: Coroutine[Deferred[Any], Any, None], waited: Deferred[Any]
) -> Generator[Deferred[Any], Any, None]:
    """Continue a coroutine that has already been started, and awaits a Deferred."""
    try:
        while True:
            try:
                result = yield waited
            except GeneratorExit:  # garbage collection, as when a reactor is abandoned
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
    Base class of L{ClientNegotiation} and L{ServerNegotiation}: runs a CLC handshake on a TCP connection.

    @ivar _peer: identity of the peer.
    @ivar _work: a coroutine started by an event of the handshake, while it is suspended.
    @ivar _stream: the stream that is being set up.
    @ivar _factory: the user's factory, for clients only: the factory of a server is used by its port.
    """

    transport: Connection
    role: Role
    _core: ServerHandshake | ClientHandshake
    _factory: IProtocolFactory | None = None

    def __init__(
        self,
        reactor: Any,
        options: Options,
        outcomes: Outcomes,
        build: Callable[[], IProtocol | None],
        use: Use | None = None,
    ) -> None:
        self._reactor: IReactorTime = reactor
        self._clock = sharedForwardClock(reactor)
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
        self._why = ""
        self._use: Use | None = use or reactorUse(reactor).hold()

    def makeConnection(self, transport: Any) -> None:
        self.transport = transport
        try:
            self._peer = self._identify(transport)
            super().makeConnection(transport)  # type: ignore[no-untyped-call]  # Twisted has no annotations here
        except Exception as error:
            self._raised(error)

    def _identify(self, transport: Connection) -> PeerIdentity:
        return PeerIdentity(transport, self.role is Role.SERVER)

    # Called by TCP

    def dataReceived(self, data: bytes) -> None:
        """
        Process bytes of CLC, or early bytes of the application.

        After the end, bytes and a FIN are ignored: they may have been polled together with it.
        """
        if not self._over:
            self._turn(lambda: self._core.received(data, self._clock.seconds()))

    def readConnectionLost(self) -> None:
        """Handle a FIN; if the connection has fallen back to TCP, pass it to the protocol."""
        if self._over:
            return
        transport = self.transport
        transport.startReading()  # the end is read again, for the protocol
        self._turn(self._core.ended)
        if transport.protocol is self:
            transport.connectionLost(Failure(ConnectionDone()))

    def writeConnectionLost(self) -> None:
        """Do nothing: a handshake never closes one half of the connection."""

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Fail, because the TCP connection is lost."""
        self._end()
        self._failed(reason)
        self._leave()

    # Driving the state machine

    def _begin(self, core: ServerHandshake | ClientHandshake) -> None:
        self._core = core
        self._clock.join(self._clockSetBack)
        if self._options.timeout is not None:
            self._limit = self._reactor.callLater(self._options.timeout, self._timedOut)
        self._turn()

    def _clockSetBack(self) -> None:
        """Renew the timers, which are late because the system time was set back."""
        if isPending(self._timer):
            cancelCall(self._timer)
            self._startTimer()
        if isPending(self._limit) and self._options.timeout is not None:
            cancelCall(self._limit)
            self._limit = self._reactor.callLater(self._options.timeout, self._timedOut)

    def _turn(self, step: Callable[[], object] = lambda: None) -> None:
        """
        Make a step, send messages, and process events, unless the handshake has ended.

        An unexpected exception resets this connection.
        """
        try:
            step()
            if not self._over:
                self._advance()
        except Exception as error:
            self._raised(error)

    def _raised(self, error: Exception) -> None:
        """Log the current exception, and reset the connection."""
        _log.failure("A connection is reset, because its handshake raised an exception")
        self._fail(error)

    def _advance(self) -> None:
        core = self._core
        state = core.state  # read directly, since most steps change little
        if state.output:
            self._send(core.outgoing())
        if state.pending:
            for event in core.events():
                self._handle(event)
        if self._over:
            return
        if (state.buffer or self._isPaused) and core.isFull != self._isPaused:
            self._pause(not self._isPaused)
        if state.done:
            if self._fellBack is not None and self._hasEnded and self._fellBack.peerDiagnosis is None:
                self._fail(ConnectionLost())  # the peer has finished over SMC-R: its bytes are missing on TCP
            elif self._fellBack is not None:
                foreign = LateCLCFilter(core.isJoining) if core.mayCross else None
                self._runOnTCP(self._fellBack.reason, self._fellBack.peerDiagnosis, self._early, foreign)
            elif self._stream is not None and state.isEstablished:
                self._runOnSMC(self._stream)
        elif state.deadline is not None:
            self._wait(state.deadline)

    def _wait(self, deadline: float) -> None:
        """Set the timer; a timer that fires earlier stays, and is reset when it fires."""
        if isPending(self._timer) and self._until <= deadline:
            return
        cancelCall(self._timer)
        self._until = deadline
        self._startTimer()

    def _startTimer(self) -> None:
        wait = max(self._until - self._clock.seconds(), 0.0) + self._clock.margin
        self._timer = self._reactor.callLater(wait, self._late)

    def _late(self) -> None:
        """Expire in the next iteration: if this process was busy, the answer may be readable already."""
        self._timer = self._reactor.callLater(0, self._expired)

    def _pause(self, isFull: bool) -> None:
        """Pause or resume reading: received bytes can't be assigned to CLC or the application yet, or can."""
        self._isPaused = isFull
        if isFull:
            self.transport.pauseProducing()
        else:
            self.transport.resumeProducing()

    def _send(self, data: bytes) -> None:
        """Write a message immediately: after a Confirm, the connection may end in this iteration."""
        transport = self.transport
        if not transport.dataBuffer and not getattr(transport, "_tempDataLen", 1):
            sent = transport.writeSomeData(data)
            if isinstance(sent, int):  # errors are reported by the reactor
                data = data[sent:]
        if data:
            transport.write(data)

    def _expired(self) -> None:
        self._timer = None
        self._turn(lambda: self._core.expired(self._clock.seconds()))

    def _timedOut(self) -> None:
        self._limit = None
        self._decline(Diagnosis.TIMEOUT_CL)

    def _handle(self, event: clcEvents.Event) -> None:
        if isinstance(event, clcEvents.FellBack):
            self._fellBack = event
            self._early = event.data
            self._abandon()
        elif isinstance(event, clcEvents.ApplicationData):
            self._early += event.data
        elif isinstance(event, clcEvents.HandshakeFailed):
            self._fail(event.error)
        else:
            self._step(self._answer(event))

    def _answer(self, event: clcEvents.Question) -> Coroutine[Deferred[Any], Any, None]:
        """Return the steps that process an event of one role: a Proposal, an Accept or a Confirm."""
        raise NotImplementedError

    def _step(self, steps: Coroutine[Deferred[Any], Any, None]) -> None:
        try:
            waited = steps.send(None)
        except StopIteration:  # the common case: nothing to wait for
            self._stepped(None)
            return
        except BaseException:
            self._stepFailed(Failure())
            return
        work = Deferred.fromCoroutine(_resumed(steps, waited))
        self._work = work
        work.addCallbacks(self._stepped, self._stepFailed)

    def _stepped(self, _: None) -> None:
        self._work = None
        self._turn()

    def _stepFailed(self, failure: Failure) -> None:
        self._work = None
        if failure.check(CancelledError):
            return
        if isinstance(failure.value, Refused):
            diagnosis = Diagnosis(failure.value.status)
        else:
            diagnosis = Diagnosis.INTERR
            if failure.check(RDMAError):
                self._why = failure.getErrorMessage()
            else:
                _log.failure("A connection can't use SMC-R because of an error", failure)
        self._decline(diagnosis)

    def _establish(self) -> None:
        """Use SMC-R from now on: an exception is too late for TCP."""
        try:
            self._core.established()
        except Exception as error:
            self._raised(error)

    def _decline(self, diagnosis: Diagnosis) -> None:
        def decline() -> None:
            self._abandon()
            if not self._over:
                self._core.decline(diagnosis, self._clock.seconds())

        self._turn(decline)

    # End

    def _abandon(self) -> None:
        """Release the stream that was being set up."""
        work, self._work = self._work, None
        if work is not None:
            work.cancel()
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.discard()
            stream.link.group.discard()  # a group created for this connection only

    def _end(self) -> None:
        self._over = True
        self._abandon()
        self._clock.leave(self._clockSetBack)
        cancelCall(self._timer)
        cancelCall(self._limit)

    def _fail(self, error: Exception) -> None:
        """Reset TCP, because the connection can use neither SMC-R nor TCP."""
        self._end()
        self.transport.abortConnection()
        self._failed(Failure(error))
        self._leave()

    def _leave(self) -> None:
        """Release the use of the reactor, unless it was passed on to a stream. Idempotent."""
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
        self._answered(isInTime=Diagnosis.TIMEOUT_CL not in (reason, peerDiagnosis))
        try:
            self._end()
            if self._hasEnded:
                self.transport.startReading()  # the end is read again, for the protocol
            allowed = self._options.fallback
            self._outcomes.fellBack(reason, peerDiagnosis, allowed, self._why)
            protocol = self._built() if allowed else Failure(NotSMC(reason, peerDiagnosis))
            if isinstance(protocol, Failure):
                self.transport.loseConnection()
                self._failed(protocol)
                return
            runOnTCP(self.transport, protocol, self.role.value, reason, peerDiagnosis, leftover, foreign)
            self._succeeded(protocol)
        finally:
            self._leave()

    def _runOnSMC(self, stream: Stream) -> None:
        self._answered(isInTime=True)
        try:
            link, options = stream.link, self._options
            self._outcomes.established(link.agreement.version, link.device, link.route)
            if options.lowLatency:
                link.preferLatency()
            monitor = TCPMonitor(stream, self.transport, self._reactor, stream.link.group.seconds)
            self.transport.protocol = monitor  # which ends the stream if anything fails from here on
            self._stream = None
            self._end()
            built = self._built()
            protocol = Protocol() if isinstance(built, Failure) else built
            kind = SMCTransport if options.autocork else PromptTransport
            transport = kind(stream, protocol, self.transport)
            if options.sndbuf != SMCTransport.bufferSize:
                transport.bufferSize = options.sndbuf
            if self._factory is not None and protocol is built:
                transport.use(self._factory)
            use, self._use = self._use, None
            contexts = link.contexts
            contexts.append(stream.flow.context)
            try:
                stream.start(transport, monitor, use)
            finally:
                contexts.pop()
            if isinstance(built, Failure):
                stream.close()
                self._failed(built)
                return
            self._succeeded(built)
            if self._hasEnded:
                monitor.readConnectionLost()
        finally:
            self._leave()

    def _answered(self, isInTime: bool) -> None:
        """Record whether the peer has answered the handshake in time, if this end has begun it."""

    def _built(self) -> IProtocol | Failure:
        """Build the user's protocol; return the reason if its factory has declined or raised."""
        try:
            protocol = self._build()
            if protocol is not None:
                logName(protocol)  # its transport can't be made if that raises
        except Exception:
            if self.role is Role.SERVER:  # a client's Deferred fails instead
                _log.failure("Unhandled error while building a protocol")
            return Failure()
        return Failure(NoProtocol()) if protocol is None else protocol

    def _succeeded(self, protocol: IProtocol) -> None:
        """Handle success: the user's protocol is connected."""

    def _failed(self, reason: Failure) -> None:
        """Handle failure: the user's protocol will not be connected."""

    # Common to both roles

    @property
    def _terms(self) -> LinkGroupTerms:
        """Terms for a new link group."""
        return groupTerms(self._options.maxgroups, self._options.keepalive)

    def _localDevice(self) -> str:
        """Return the device string for shared memory with the peer; raises L{Refused} for another user."""
        if self._peer.directory:
            return f"{LOCAL_DEVICE}:runtime={quoteStringArgument(self._peer.directory)}"
        user = self._peer.user
        if user is None or not isSameUser(user):
            raise Refused("no device reaches this peer", Diagnosis.NOSMCDEV)
        return LOCAL_DEVICE

    def _candidates(self, isLocal: bool = False) -> tuple[LinkGroups, tuple[Candidate, ...]]:
        """Choose the device for this connection; return link groups and candidates. Raises L{Refused}."""
        device = self._options.device
        if device == "auto":
            real = None if isLocal else self._hardwareGroups()
            if real is not None:
                return real
            device = self._localDevice()
        groups = self._groupsOf(device)
        return groups, groups.candidates

    def _hardwareGroups(self) -> tuple[LinkGroups, tuple[Candidate, ...]] | None:
        """Return link groups and candidates of the RDMA port at the connection's interface, or None."""
        if not realPorts.isAny():
            return None
        local, peer = self._peer.localAddress, self._peer.peerAddress
        if local is None or peer is None:
            return None
        found = realPorts.portFor(local.host, peer.host)
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
        """Return the link groups of a device, opened if necessary; raises L{Refused}."""
        try:
            return linkGroups(self._reactor, device)
        except (RDMAError, OSError, MalformedDevice) as error:
            self._why = f"can't open the device {device}: {error}"
            raise Refused(str(error), Diagnosis.NOSMCDEV) from error
