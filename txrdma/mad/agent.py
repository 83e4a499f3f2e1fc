"""
Agents, which make remote procedure calls by management datagrams: each returns a Deferred.

Follows InfiniBand Architecture vol. 1, 13.4 (datagrams). L{txrdma.mad.core.calls} is the protocol; here it
is connected to the port, the reactor's time and Deferreds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from math import inf
from os import urandom
from typing import Any, Final

from typing_extensions import Self, Unpack
from zope.interface import implementer

from twisted.internet.defer import Deferred, fail
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.error import DeviceUnavailable, InvalidRequest, RDMAError, WireError
from txrdma.iba.path import IBPath
from txrdma.interfaces import IMADAgent, IMADPort, IMADReceiver
from txrdma.kit.delayedcalls import cancelCall, Timer
from txrdma.kit.forwardclock import sharedForwardClock
from txrdma.kit.logs import errorText, RateLimitedLogger
from txrdma.mad.core.calls import Calls, Dropped, Event, Requested
from txrdma.mad.core.frames import Keys, NO_KEYS
from txrdma.mad.core.timeouts import RETRIES
from txrdma.mad.core.transactions import Call
from txrdma.mad.layouts.attributes import Attribute, ManagementClass, RPC, RPCS
from txrdma.mad.layouts.sa import Query
from txrdma.mad.paths import toSA
from txrdma.mad.portwatch import (
    PortListener,
    PortLost,
    PortReopener,
    PortReturned,
    PortWatch,
    RETURN_SECONDS,
    WATCH_SECONDS,
)
from txrdma.mad.requests import Registrations, Servers, TakeRequest
from txrdma.mad.rpcs import CallOptions, checkedKind, RPCs

_log = Logger()

_OPTIONS: Final = frozenset(CallOptions.__annotations__)

_AFTER_FAILURE_SECONDS: Final = 0.1
"""Pause after an exception while timeouts were processed."""


class _DeferredCall(Call):
    """A call whose Deferred fires at its end."""

    __slots__ = ("_deferred",)

    _deferred: Deferred[Any] | None

    def awaited(self) -> Deferred[Any]:
        """The Deferred of the call; cancelling it cancels the call."""
        self._deferred = Deferred(self._cancelled)
        return self._deferred

    def answered(self, answer: Any) -> None:
        deferred, self._deferred = self._deferred, None
        if deferred is not None:
            deferred.callback(answer)

    def failed(self, error: Exception) -> None:
        deferred, self._deferred = self._deferred, None
        if deferred is not None:
            deferred.errback(error)

    def _cancelled(self, deferred: Deferred[Any]) -> None:
        self._deferred = None
        self.forget(self)


@implementer(IMADAgent, IMADReceiver)
class MADAgent(RPCs):
    """
    Agent for calls through one management port.

    An agent is a context manager: at the end of a C{with} or C{async with} block it is closed, and its port.

    @ivar timeoutSeconds: time to wait for an answer; None for the time that the subnet allows (13.4.6.2).
    @ivar retries: how often a request without an answer is sent again.
    @ivar seconds: returns the time by the reactor's clock, which never goes back here, in seconds.
    """

    retries: int

    def __init__(
        self,
        reactor: IReactorTime,
        port: IMADPort,
        *,
        timeoutSeconds: float | None = None,
        retries: int = RETRIES,
        keys: Keys = NO_KEYS,
        reopen: Callable[[], IMADPort] | None = None,
        watchSeconds: float = WATCH_SECONDS,
    ) -> None:
        """
        @param port: the port, which is closed with the agent.
        @param keys: keys of calls that specify none.
        @param reopen: opens the port again after it was lost; it is called until it succeeds. Without it the
            agent is closed when the port is lost.
        @param watchSeconds: seconds between polls of the port for listeners of L{watch}.
        @raise txrdma.error.ResourceExhausted: the reactor cannot read the port, which is closed then.
        """
        self.timeoutSeconds = timeoutSeconds
        self.retries = retries
        self.keys = keys
        self.reactor = reactor
        self._timer: IDelayedCall | None = None
        self._timerAt = inf
        self._clock = sharedForwardClock(reactor)
        self.seconds = self._clock.seconds
        self._rateLimited = RateLimitedLogger(_log, clock=self.seconds)
        self._closed = ""
        self._checked: dict[tuple[str, type[Attribute]], RPC] = {}
        self._servers = Servers()
        self._registrations = Registrations()
        self._renewal = Timer(reactor)
        self._watch = PortWatch(reactor, lambda: self.port, watchSeconds)
        self._reopener: PortReopener | None = None
        if reopen is not None:
            self._reopener = PortReopener(reactor, reopen, self._resume, self._returned)
        self._use(port)

    def _use(self, port: IMADPort) -> None:
        """Start a port, or close it and raise an exception."""
        self.port = port
        with ExitStack() as undo:
            undo.callback(port.close)
            self._clock.join(self._setBack)
            undo.callback(self._clock.leave, self._setBack)
            self._core = Calls(port, urandom)
            self._core.isServing = bool(self._servers)
            port.start(self)
            undo.pop_all()

    def __repr__(self) -> str:
        return f"<MADAgent {self.port.name} {len(self._core)} outstanding>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *reason: object) -> None:
        self.close()

    @property
    def wrongSources(self) -> int:
        """Number of responses that were dropped because they came from another port."""
        return self._core.wrongSources

    @property
    def sent(self) -> int:
        """Number of requests sent since the port was opened, with retries."""
        return self._core.sent

    @property
    def late(self) -> int:
        """Number of timeouts of requests since the port was opened."""
        return self._core.late

    # Calls.

    def call(
        self,
        rpc: str,
        payload: Any,
        path: IBPath | None = None,
        attributeModifier: int = 0,
        **options: Unpack[CallOptions],
    ) -> Deferred[Any]:
        if path is not None and not options and isinstance(payload, type):
            known = self._checked.get((rpc, payload))
            if known is not None:  # a tenth of a call's time is saved
                call = _DeferredCall(known, payload, b"", attributeModifier, self.keys, 0)
                call.forget = self._forget
                call.retriesLeft = self.retries
                answer = call.awaited()
                self._start(call, path, self.timeoutSeconds)
                return answer
        try:
            call = self._callFor(rpc, payload, attributeModifier, options)
            if path is None:
                path = self._toSA(call.rpc)
        except WireError as error:  # a value of the caller's
            return fail(InvalidRequest(str(error)))
        except RDMAError as error:
            return fail(error)
        answer = call.awaited()
        seconds = options.get("timeoutSeconds") if options else None
        self._start(call, path, self.timeoutSeconds if seconds is None else seconds)
        return answer

    def issue(
        self, call: Call, path: IBPath, timeoutSeconds: float | None = None, retries: int | None = None
    ) -> None:
        call.keys = self.keys
        call.forget = self._forget
        call.error = None  # of the last time
        call.redirections = 0
        call.retriesLeft = self.retries if retries is None else retries
        self._start(call, path, self.timeoutSeconds if timeoutSeconds is None else timeoutSeconds)

    def newTransactionID(self) -> int:
        return self._core.newIdentifier()

    def send(self, datagram: bytes, path: IBPath) -> None:
        if self._closed:
            raise DeviceUnavailable(self._closed)
        self.port.send(datagram, path)

    def close(self) -> None:
        self._end("the agent is closed")
        self._watch.stop()
        if self._reopener is not None:
            self._reopener.stop()
        self.port.close()

    def _callFor(self, name: str, payload: Any, modifier: int, options: CallOptions) -> _DeferredCall:
        mask, chosen, keys, retries, more = 0, 0, self.keys, self.retries, b""
        if options:
            if unknown := options.keys() - _OPTIONS:
                raise TypeError(f"{name} has no option {', '.join(sorted(unknown))}")
            mask, chosen = options.get("componentMask", 0), options.get("transactionID", 0)
            keys = options.get("keys") or keys
            asked = options.get("retries")
            retries = retries if asked is None else asked
        if type(payload) is Query:
            payload, mask, more = payload
        kind = checkedKind(name, payload)
        rpc = RPCS[name]
        content = b"" if kind is payload else payload.encode() + more
        if kind.vendorClass is not None:
            rpc = replace(rpc, managementClass=kind.vendorClass)
            keys = keys._replace(oui=kind.oui)
        elif kind is payload:
            self._checked[name, kind] = rpc
        call = _DeferredCall(rpc, kind, content, modifier, keys, mask)
        call.forget = self._forget
        call.chosenID = chosen
        call.retriesLeft = retries
        return call

    def _toSA(self, rpc: RPC) -> IBPath:
        """Return the path to the SA, for a call without a path; other classes raise L{InvalidRequest}."""
        if rpc.managementClass is not ManagementClass.SUBN_ADM:
            raise InvalidRequest(f"{rpc.name}: a path to the peer is needed")
        end = self.port.endPort
        if not end.smLID:
            raise DeviceUnavailable("the local port knows no subnet manager: start one, such as opensm")
        return toSA(end)

    def _start(self, call: Call, path: IBPath, timeoutSeconds: float | None) -> None:
        core = self._core
        try:
            if self._closed:
                raise DeviceUnavailable(self._closed)
            first = core.ask(call, path, self.seconds(), timeoutSeconds)
        except WireError as error:
            call.failed(InvalidRequest(str(error)))
            return
        except RDMAError as error:
            call.failed(error)
            return
        try:
            if first is None:
                for packet in core.outgoing():
                    self.port.send(*packet)
            elif call.rpc.answer is not None:
                self.port.send(first, path, call.timeoutSeconds)
            else:
                self.port.send(first, path)
                if self._closed:  # the port was lost by sending
                    raise DeviceUnavailable(self._closed)
                call.answered(None)
                return
        except Exception as error:
            self._forget(call)
            call.failed(error)
            return
        if call.deadline < self._timerAt or first is None:
            self._reschedule()

    def _forget(self, call: Call) -> None:
        """Cancel a call whose Deferred was cancelled."""
        self._core.forget(call)
        if not self._closed:
            self._turn()

    # Requests.

    def serve(self, requested: TakeRequest, ended: Callable[[], None]) -> Callable[[], None]:
        """
        Pass requests to a server first, before earlier ones; the returned function ends that.

        @param ended: called when the port is lost.
        """
        end = self._servers.add(requested, ended)
        self._core.isServing = True
        return end

    def register(self, managementClass: int, methods: Sequence[int], oui: int = 0) -> Callable[[], None]:
        """
        Receive requests of this class with these methods, also after the port was lost and reopened.

        @param oui: OUI of a vendor, in the second range of vendors' classes.
        @return: a function that ends this, unless others have registered for the same requests.
        @raise txrdma.error.ResourceExhausted: another program on this host has registered for them.
        """
        port = None if self._closed else self.port
        return self._registrations.add(port, managementClass, methods, oui)

    def answer(self, datagram: bytes, path: IBPath, message: bytes | None = None) -> None:
        """
        Send the answer to a request.

        @param path: leads to the requester.
        @param message: the whole message, if the answer is an RMPP transfer; C{datagram} is its first frame.
        @raise RDMAError: the answer cannot be sent.
        """
        if self._closed:
            return
        self._core.answer(datagram, path, message, self.seconds())
        try:
            for packet, destination, _seconds in self._core.outgoing():
                self.port.send(packet, destination)
        except Exception:
            if message is not None:
                self._core.withdraw(datagram, path)
            raise
        self._reschedule()

    # IMADReceiver

    def received(self, datagram: bytes, envelope: object) -> None:
        call = self._core.received(datagram, envelope, self.seconds())
        if call is not None:
            call.answered(call.answer)
        else:
            self._turn()

    def undeliverable(self, datagram: bytes, reason: str) -> None:
        self._core.undeliverable(datagram, reason, self.seconds())
        self._turn()

    def portLost(self, reason: str) -> None:
        """Fail all calls, notify the listeners of the port, and try to reopen it."""
        if self._closed:
            return
        if self._reopener is not None:
            self._reopener.start()  # first: a callback of a call, or a listener, may close the agent
        self._end(reason)
        self._watch.notify(PortLost(reason))

    def portChanged(self, mustRegister: bool) -> None:
        self._watch.changed(mustRegister)

    def watch(self, listener: PortListener, isPolled: bool = True) -> Callable[[], None]:
        """
        Notify a listener of the port's loss, return and changes; the returned function ends it.

        @param isPolled: poll the port regularly for changes that it does not report by itself.
        """
        return self._watch.add(listener, isPolled)

    def _resume(self, port: IMADPort) -> None:
        """Use a port that was opened again."""
        reason, self._closed = self._closed, ""
        try:
            self._use(port)
        except BaseException:
            self._closed = reason
            raise

    def _returned(self, port: IMADPort) -> None:
        """Make registrations again, and notify the listeners of the port."""
        if not self._closed:  # else it was lost at once
            self._renew(port)
        if not self._closed:
            self._watch.notify(PortReturned(port.endPort))

    def _renew(self, port: IMADPort, isAgain: bool = False) -> None:
        """Make registrations again, until another program that was faster has ended."""
        if not self._registrations.renew(port, isAgain) and not self._closed:
            self._renewal.start(RETURN_SECONDS, self._renew, port, True)

    def _end(self, reason: str) -> None:
        if self._closed:
            return
        self._closed = reason
        self._clock.leave(self._setBack)
        self._stopTimer()
        self._renewal.stop()
        for call in self._core.clear():
            with _log.failuresHandled("{port}: failing a call raised an exception", port=self.port.name):
                call.failed(DeviceUnavailable(reason))
        self._servers.ended()

    # Driving the core.

    def _turn(self) -> None:
        """Send the packets of the core, then handle its events."""
        core = self._core
        packets = core.outgoing()
        for datagram, path, seconds in packets:
            try:
                self.port.send(datagram, path, seconds)
            except Exception as error:
                self._sendFailed(datagram, path, seconds, error)
        events = core.events()
        for event in events:
            try:
                self._handleEvent(event)
            except Exception:
                kind = type(event).__name__
                _log.failure("{port}: handling a {kind} raised an exception", port=self.port.name, kind=kind)
        if packets or not events:  # else something has ended, and the deadline is no earlier
            self._reschedule()

    def _sendFailed(self, datagram: bytes, path: IBPath, seconds: float, error: Exception) -> None:
        """Fail the call of a request that cannot be sent; other datagrams count as lost."""
        if not isinstance(error, RDMAError):
            _log.failure("{port}: a datagram could not be sent", port=self.port.name)
        if seconds:
            self._core.unsent(datagram, error)
        else:
            _log.debug("cannot send a datagram to {path}: {error}", path=path, error=errorText(error))

    def _handleEvent(self, event: Event) -> None:
        if isinstance(event, Call):
            if event.error is None:
                event.answered(event.answer)
            else:
                event.failed(event.error)
        elif isinstance(event, Requested):
            if not self._closed:
                self._servers.requested(*event)
        elif isinstance(event, Dropped):
            if event.breaksRules:
                self._rateLimited.warn("rules", "{port}: {reason}", port=self.port.name, reason=event.reason)
            else:
                _log.debug("{port}: {reason}", port=self.port.name, reason=event.reason)
        else:
            failure = Failure(event.error)
            _log.failure("{port}: a datagram could not be processed", failure, port=self.port.name)

    def _reschedule(self) -> None:
        """Set the timer no later than the core's deadline; one that fires early is set again."""
        deadline = None if self._closed else self._core.deadline()
        if deadline is None or self._timerAt <= deadline:
            return
        self._stopTimer()
        self._timerAt = deadline
        seconds = deadline - self.seconds()
        call = self._due if seconds > 0 else self._expired
        self._timer = self.reactor.callLater(max(0.0, seconds) + self._clock.margin, call)

    def _setBack(self) -> None:
        """Set the timer again, because the reactor's is late: the system's clock was set back."""
        self._timerAt = inf
        self._reschedule()

    def _stopTimer(self) -> None:
        cancelCall(self._timer)
        self._timer, self._timerAt = None, inf

    def _due(self) -> None:
        """End calls in the next reactor iteration: after a pause of this process, answers wait to be read."""
        self._timer = self.reactor.callLater(0, self._expired)

    def _expired(self) -> None:
        self._timer, self._timerAt = None, inf
        try:
            self._core.expired(self.seconds())
        except Exception:
            _log.failure(
                "{port}: timeouts could not be processed; the next attempt follows", port=self.port.name
            )
            self._timerAt = -inf  # no earlier timer: the deadline may still be in the past
            self._timer = self.reactor.callLater(_AFTER_FAILURE_SECONDS, self._expired)
        self._turn()
        self._reschedule()
