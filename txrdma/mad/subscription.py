"""
Subscriptions to notices of a fabric at the SA, renewed as needed.

Follows InfiniBand Architecture vol. 1, 13.4.8.3 (InformInfo), 13.4.11 (event forwarding) and 15.2.5.12.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.iba.path import IBPath
from txrdma.iba.types import LID
from txrdma.kit.delayedcalls import Timer
from txrdma.kit.logs import errorText
from txrdma.mad.core.addressing import mayBeFrom
from txrdma.mad.layouts.attributes import ManagementClass, Method
from txrdma.mad.layouts.messages import InformInfo, MADRequest, Notice
from txrdma.mad.paths import toLID
from txrdma.mad.portwatch import PortEvent, PortLost, PortReturned
from txrdma.mad.rpcs import RPCs
from txrdma.mad.server import MADServer, NoticeListener

_log = Logger()

RENEWAL_SECONDS: Final = 60.0
"""Seconds between renewals of a subscription: a new master SM does not know those of the old one."""

RETRY_SECONDS: Final = 5.0
"""Seconds until the next attempt after a refusal or timeout."""

EVERY_TRAP: Final = 0xFFFF
EVERY_TYPE: Final = 0xFFFF
EVERY_LID: Final = LID(0xFFFF)
EVERY_PRODUCER: Final = 0xFFFFFF


class Subscription:
    """
    Subscription to notices, from L{start} until L{stop}.

    Only reports from the SA are accepted, since any host can send one. The subscription is renewed

      - regularly, and by L{renew}
      - when the port returns, gets another SM or address, or its SM requests clients to register again
      - after some seconds, if the SA has refused it or has not answered

    @ivar isStanding: True if the last renewal was accepted.
    """

    def __init__(
        self,
        reactor: IReactorTime,
        agent: RPCs,
        server: MADServer,
        sa: IBPath | None,
        listener: NoticeListener,
        trapNumber: int = EVERY_TRAP,
        renewalSeconds: float = RENEWAL_SECONDS,
        retrySeconds: float = RETRY_SECONDS,
    ) -> None:
        """
        @param server: server of the port that receives the reports.
        @param sa: path to the SA; None for the current SA of the port.
        @param listener: called with each notice, once.
        @param trapNumber: number of the traps to subscribe to.
        """
        self.isStanding = False
        self._agent = agent
        self._server = server
        self._sa = sa
        self._listener = listener
        self._trapNumber = trapNumber
        self._renewalSeconds = renewalSeconds
        self._retrySeconds = retrySeconds
        self._isLogged = False
        self._unlisten: Callable[[], None] | None = None
        self._unwatch: Callable[[], None] = lambda: None
        self._pending: Deferred[InformInfo] | None = None
        self._ending: Deferred[None] = succeed(None)
        self._timer = Timer(reactor)
        self._registered: object = None

    def start(self) -> None:
        """
        Subscribe now, and renew the subscription regularly.

        @raise txrdma.error.ResourceExhausted: another program on this host receives the reports.
        """
        if self._unlisten is None:
            self._unlisten = self._server.listen(self._reported, ManagementClass.SUBN_ADM, (Method.REPORT,))
            self._unwatch = self._server.agent.watch(self._portChanged)
            if not self._ending.called:
                self._ending.cancel()  # a retransmission would end the new subscription
            self._subscribe()

    def stop(self) -> Deferred[None]:
        """End the subscription; fires when the SA has answered or timed out, or after L{start}."""
        if self._unlisten is None:
            return succeed(None)
        self._unlisten()
        self._unlisten = None
        self._unwatch()
        self._suspend()
        ending = self._agent.call("SubnAdmSet", self._informInfo(False), self._sa)
        self._ending = ending.addBoth(lambda _: None)
        return self._ending

    def renew(self) -> None:
        """Subscribe again at once; changes of the port do so automatically."""
        if self._unlisten is not None:
            self.isStanding = False
            self._subscribe()

    def _portChanged(self, event: PortEvent) -> None:
        if isinstance(event, PortLost):
            _log.warn("no subscription to notices until the port returns: {why}", why=event.reason)
            self._suspend()
        elif (
            isinstance(event, PortReturned) or event.mustRegister or self._registration() != self._registered
        ):
            self.isStanding = False
            self._subscribe()

    def _subscribe(self) -> None:
        self._cancelPending()
        self._registered = self._registration()
        self._retryIn(self._renewalSeconds)
        pending = self._pending = self._agent.call("SubnAdmSet", self._informInfo(True), self._sa)
        pending.addCallbacks(self._accepted, self._refused, callbackArgs=(pending,), errbackArgs=(pending,))

    def _retryIn(self, seconds: float) -> None:
        """Subscribe again after some seconds."""
        self._timer.start(seconds, self._subscribe)

    def _suspend(self) -> None:
        """End the current subscription without another attempt."""
        self._cancelPending()
        self.isStanding = False
        self._timer.stop()

    def _registration(self) -> object:
        """Path to the SA, and the local GIDs: if they change, a new subscription is needed."""
        end = self._server.port.endPort
        where = (end.lid, end.smLID, end.smServiceLevel) if self._sa is None else None
        return where, end.gids

    def _cancelPending(self) -> None:
        """Cancel the call that waits for an answer."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.cancel()

    def _accepted(self, accepted: InformInfo, pending: Deferred[InformInfo]) -> None:
        if pending is self._pending:
            self._pending = None
            self.isStanding = bool(accepted.subscribe)
            self._isLogged = False

    def _refused(self, failure: Failure, pending: Deferred[InformInfo]) -> None:
        if pending is self._pending:
            self._pending = None
            self.isStanding = False
            self._retryIn(self._retrySeconds)
            if not self._isLogged:
                self._isLogged = True
                text = "no subscription to notices, trying again in {seconds} s: {why}"
                _log.warn(text, seconds=self._retrySeconds, why=errorText(failure.value))

    def _reported(self, notice: Notice, request: MADRequest) -> None:
        if not self._isFromSA(request.path):
            _log.debug("received a report from {path}, which is not the SA", path=request.path)
        elif self._trapNumber in (EVERY_TRAP, notice.trapNumber):
            self._listener(notice, request)

    def _isFromSA(self, source: IBPath) -> bool:
        end = self._server.port.endPort
        if self._sa is None and not end.smLID:
            return False
        administration = toLID(end, end.smLID) if self._sa is None else self._sa
        return mayBeFrom(administration, source.slid, source.sgid, end.lidMask)

    def _informInfo(self, isWanted: bool) -> InformInfo:
        return InformInfo(
            lidRangeBegin=EVERY_LID,
            isGeneric=1,
            subscribe=isWanted,
            type=EVERY_TYPE,
            trapNumber=self._trapNumber,
            qpn=self._server.port.endPort.qpn,
            responseTimeValue=19,
            producerType=EVERY_PRODUCER,
        )
