"""
Being told what happens in a fabric: subscriptions with the subnet's administration, kept up.

Follows InfiniBand Architecture vol. 1, 13.4.8.3 (InformInfo), 13.4.11 (event forwarding) and 15.2.5.12.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.iba.path import IBPath
from txrdma.iba.types import LID, QPN
from txrdma.mad.messages import InformInfo, Notice
from txrdma.mad.rpcs import RPCs
from txrdma.mad.serving import MADServer

_log = Logger()

RENEWAL_SECONDS: Final = 60.0
"""How often a subscription is made anew: a new manager of the subnet knows nothing of the old one's."""

EVERY_TRAP: Final = 0xFFFF
EVERY_TYPE: Final = 0xFFFF
EVERY_LID: Final = LID(0xFFFF)
EVERY_PRODUCER: Final = 0xFFFFFF


class Subscription:
    """
    One subscription, from L{start} until L{stop}.

    @ivar isStanding: whether the last renewal was accepted.
    """

    def __init__(
        self,
        reactor: IReactorTime,
        agent: RPCs,
        server: MADServer,
        administration: IBPath,
        listener: Callable[[Notice, IBPath], None],
        trapNumber: int = EVERY_TRAP,
        renewalSeconds: float = RENEWAL_SECONDS,
    ) -> None:
        """
        @param server: of the port that the reports come to.
        @param administration: leads to the subnet's administration.
        @param listener: hears of each notice, however often it is told.
        @param trapNumber: of the notices to hear of.
        """
        self.isStanding = False
        self._agent = agent
        self._server = server
        self._administration = administration
        self._listener = listener
        self._trapNumber = trapNumber
        self._renewalSeconds = renewalSeconds
        self._unlisten: Callable[[], None] = lambda: None
        self._pending: Deferred[InformInfo] | None = None
        self._loop: LoopingCall | None = None
        self._reactor = reactor

    def start(self) -> None:
        """Subscribe, now and again and again."""
        if self._loop is not None:
            return
        self._unlisten = self._server.listen(self._heard)
        loop = self._loop = LoopingCall(self._renew)
        loop.clock = self._reactor
        loop.start(self._renewalSeconds)

    def stop(self) -> Deferred[None]:
        """Subscribe no more; fires when the administration has heard it, or did not answer."""
        if self._loop is None:
            done: Deferred[None] = Deferred()
            done.callback(None)
            return done
        self._loop.stop()
        self._loop = None
        self._unlisten()
        if self._pending is not None:
            self._pending.cancel()
        self.isStanding = False
        return self._agent.call("SubnAdmSet", self._wish(False), self._administration).addBoth(lambda _: None)

    def _renew(self) -> None:
        if self._pending is not None:
            return
        self._pending = self._agent.call("SubnAdmSet", self._wish(True), self._administration)
        self._pending.addCallbacks(self._accepted, self._refused)

    def _accepted(self, said: InformInfo) -> None:
        self._pending = None
        self.isStanding = True

    def _refused(self, failure: Failure) -> None:
        self._pending = None
        if self._loop is not None:
            self.isStanding = False
            _log.warn("no subscription to notices: {why}", why=failure.getErrorMessage())

    def _heard(self, notice: Notice, path: IBPath) -> None:
        if self._trapNumber in (EVERY_TRAP, notice.trapNumber):
            self._listener(notice, path)

    def _wish(self, isWanted: bool) -> InformInfo:
        return InformInfo(
            lidRangeBegin=EVERY_LID,
            isGeneric=1,
            subscribe=isWanted,
            type=EVERY_TYPE,
            trapNumber=self._trapNumber,
            qpn=QPN(1),
            responseTimeValue=19,
            producerType=EVERY_PRODUCER,
        )
