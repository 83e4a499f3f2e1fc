"""
The core of a connection: opening, alternate paths and closing.

Follows InfiniBand Architecture vol. 1, 12.9.

Theory of operation. The parts are state machines of their own, which do not know each other. The opening
exists from the beginning, the closing part from the time when it is established, and the part of alternate
paths from its first use, since most connections have none. From then on each message is passed to the part
that it concerns. A failed opening with a time-wait has only a closing part. A DREQ or a LAP may overtake the
RTU or replace a lost one, and so may data of the peer (C{communicating}): they establish the connection
first. The connection is free when its last part is.
"""

from __future__ import annotations

from txrdma.cm.core.alternate import acceptAnyPath, Alternate, PathCheck, PathEnds
from txrdma.cm.core.closing import Closing, restSeconds
from txrdma.cm.core.events import Event
from txrdma.cm.core.exchange import ExchangeCore, LOW_BITS, OutgoingMAD, RetryPolicy
from txrdma.cm.core.opening import Opening
from txrdma.cm.layouts.messages import (
    APR,
    APStatus,
    CMPath,
    DREP,
    DREQ,
    FailoverAccepted,
    LAP,
    MessageKind,
    MRA,
    REJ,
)
from txrdma.cm.layouts.paths import isPath, lifeTimeOf, reversedPath
from txrdma.error import InvalidRequest
from txrdma.iba.types import GUID, QPN
from txrdma.kit.wire import Layout


class ConnectionCore:
    """
    The local end of a connection, from its first message until its IDs can be reused.

    @ivar opening: state machine of REQ, REP and RTU.
    @ivar closing: state machine of DREQ and DREP; None until the connection is established.
    """

    __slots__ = ("_alternate", "_judge", "_mayReload", "_paths", "_transactionID", "closing", "opening")

    def __init__(
        self,
        localCommID: int,
        guid: GUID,
        transactionID: int,
        *,
        mayReload: bool = False,
        checkPath: PathCheck = acceptAnyPath,
    ) -> None:
        """
        @param guid: this end's CA GUID.
        @param transactionID: the first of this end's transactions; others have the following numbers.
        @param mayReload: see L{Alternate}, as C{checkPath}.
        """
        self.opening = Opening(localCommID, guid)
        self.closing: Closing | None = None
        self._alternate: Alternate | None = None
        self._transactionID = transactionID
        self._mayReload, self._judge = mayReload, checkPath
        self._paths: tuple[CMPath, CMPath] | None = None  # that of a passive end's REQ, and reversed

    # Its names

    @property
    def localCommID(self) -> int:
        return self.opening.localCommID

    @property
    def remoteCommID(self) -> int:
        """The peer's communication ID; 0 while it is not known."""
        return self.opening.remoteCommID

    @property
    def remoteGUID(self) -> GUID | None:
        """The peer's CA GUID, if known."""
        opening = self.opening
        peer = opening.reply if opening.isActive else opening.request
        return None if peer is None else peer.localCAGUID

    @property
    def localQPN(self) -> QPN:
        """The queue pair of this end; 0 while it is not known."""
        return self._qpn(self.opening.isActive)

    @property
    def remoteQPN(self) -> QPN:
        """The peer's queue pair; 0 while it is not known."""
        return self._qpn(not self.opening.isActive)

    def _qpn(self, ofREQ: bool) -> QPN:
        reply = self.opening.reply
        return self.opening.request.localQPN if ofREQ else QPN(0) if reply is None else reply.localQPN

    @property
    def primary(self) -> CMPath:
        """The path in use, as this end sees it: messages take it, too."""
        if self._alternate is not None:
            return self._alternate.primary
        path = self.opening.request.primary
        if self.opening.isActive:
            return path
        if self._paths is None or self._paths[0] is not path:
            self._paths = path, reversedPath(path)
        return self._paths[1]

    @property
    def alternatePath(self) -> CMPath | None:
        """The path to migrate to, if both ends have agreed on one."""
        return None if self._alternate is None else self._alternate.alternate

    @property
    def alternate(self) -> Alternate | None:
        """State machine of alternate paths; None until the connection is established."""
        if self._alternate is None and self.closing is not None and self.opening.isEstablished:
            self._alternate = self._newAlternate()
            if self.closing.state != "ESTABLISHED":
                self._alternate.close(0.0)  # where there is no exchange to end, at whatever time
        return self._alternate

    @property
    def state(self) -> str:
        """The state of the connection by the specification's name, without that of its alternate path."""
        return self.opening.state if self.closing is None else self.closing.state

    @property
    def isFree(self) -> bool:
        """True if nothing is left: the ids and the queue pair can be used again."""
        return self.opening.isOver if self.closing is None else self.closing.isFree

    # The five verbs

    def deadline(self) -> float | None:
        first = self.opening.deadlineSeconds
        for core in (self._alternate, self.closing):
            at = None if core is None else core.deadline()
            if at is not None and (first is None or at < first):
                first = at
        return first

    def outgoing(self) -> list[OutgoingMAD]:
        """Take the messages to send; handle the events first."""
        taken: list[OutgoingMAD] = []
        for core in (self.opening, self._alternate, self.closing):
            if core is not None and core.pendingMessages:
                taken += core.outgoing()
        return taken

    def events(self) -> list[Event]:
        taken: list[Event] = []
        for core in (self.opening, self._alternate, self.closing):
            if core is not None and core.pendingEvents:
                taken += core.events()
        return taken

    def expired(self, now: float) -> None:
        for core in self._cores():
            core.expired(now)
        self._startParts(now)

    def received(self, message: Layout, transactionID: int, now: float) -> bool:
        """
        Process a message with the communication IDs of this connection.

        @return: False for late and duplicate messages.
        """
        if isinstance(message, DREQ) and message.remoteQPN != self.localQPN:
            return False
        isDREQ = isinstance(message, DREQ)
        if isDREQ or (isinstance(message, LAP) and not self.opening.isActive):
            self.opening.confirmed(now)
            self._startParts(now, isDREQ)
        return self._part(message).received(message, transactionID, now) | self._startParts(now)

    # Requests of a program; those of an opening are made to it

    def afterRequest(self, now: float) -> None:
        """Continue after a request to the opening."""
        if self.closing is None or self._alternate is not None:
            self._startParts(now)

    def communicating(self, now: float) -> None:
        """Note that the queue pair has received data: a peer that sends has sent its RTU, too."""
        if not self.opening.isActive:
            self.opening.confirmed(now)
            self._startParts(now)

    def disconnect(self, now: float, privateData: bytes = b"") -> bool:
        """
        End the connection, whatever its state, or answer the peer that has ended it.

        @return: whether this changes anything.
        @raise InvalidRequest: there is too much private data.
        """
        if self.closing is None:
            changes = self.opening.cancel(now)
            self._startParts(now)
            return changes
        changes = self.closing.disconnect(self.nextTransaction(), now, privateData)
        self._startParts(now)
        return changes

    def fail(self, now: float) -> None:
        """End an established connection that the peer has lost: it has requested a new one."""
        if self.closing is not None and self.closing.state == "ESTABLISHED":
            self.disconnect(now)

    def loadAlternatePath(
        self, path: CMPath, now: float, privateData: bytes = b"", isLegacyPeer: bool = False
    ) -> bool:
        """
        Send a LAP for a path: see L{Alternate.load}.

        @raise InvalidRequest: there is no connection, or see L{Alternate.load}.
        """
        return self._established().load(path, self.nextTransaction(), now, privateData, isLegacyPeer)

    def replyAlternatePath(
        self, transactionID: int, status: APStatus, now: float, information: bytes = b""
    ) -> bool:
        """
        Answer a LAP of the peer.

        @raise InvalidRequest: see L{Alternate.reply}.
        """
        return self._established().reply(transactionID, status, now, information)

    def migrated(self, now: float) -> None:
        """Note that the queue pair has migrated. Call this before processing later LAPs."""
        alternate = self.alternate
        if alternate is not None:
            alternate.migrated(now)
            if self.closing is not None:
                self.closing.movedTo(alternate.primary)

    def nextTransaction(self) -> int:
        """Return the next transaction ID of this connection."""
        self._transactionID = (self._transactionID + 1) & LOW_BITS
        return self._transactionID

    def free(self) -> None:
        """Release all state machines, because the IDs are free."""
        for core in self._cores():
            core.free()

    # Inside

    def _cores(self) -> list[ExchangeCore]:
        return [each for each in (self.opening, self._alternate, self.closing) if each is not None]

    def _established(self) -> Alternate:
        alternate = self.alternate
        if alternate is None:
            raise InvalidRequest("the connection is not established")
        return alternate

    def _part(self, message: Layout) -> ExchangeCore:
        """Return the part that a message concerns."""
        if self.closing is None:
            return self.opening
        if not self.opening.isEstablished:  # it has failed
            return self.closing
        if isinstance(message, (LAP, APR)):
            return self._established()
        if isinstance(message, MRA) and message.messageMRAed == MessageKind.LAP:
            return self._established()
        used = self._alternate
        if isinstance(message, REJ) and used is not None and used.isNegotiated and not used.isOutstanding:
            return self.opening  # where it changes nothing: a connection that has answered a LAP is known
        # An end that has disconnected answers no REP: its RTU would establish the peer's end for nobody.
        isOfEnd = isinstance(message, (DREQ, DREP, REJ)) or self.closing.state != "ESTABLISHED"
        return self.closing if isOfEnd else self.opening

    def _startParts(self, now: float, isDREQ: bool = False) -> bool:
        """Start the parts that follow from the state of the opening; the closing part answers a DREQ."""
        opening, closing = self.opening, self.closing
        if closing is None:
            if not (opening.isEstablished or (opening.isOver and opening.lingers)):
                return False
            rest = restSeconds(opening.request.primary)
            closing = Closing(self.localCommID, self.remoteCommID, self.remoteQPN, self._retryPolicy(), rest)
            self.closing = closing
            if not opening.isEstablished:
                if not isDREQ:
                    closing.linger(now)
            elif self._firstAlternate is not None:
                self._alternate = self._newAlternate()
            return True
        if self._alternate is not None and closing.state != "ESTABLISHED":
            self._alternate.close(now)
        return False

    def _retryPolicy(self) -> RetryPolicy:
        request = self.opening.request
        peer = request.remoteCMResponseTimeout if self.opening.isActive else request.localCMResponseTimeout
        return RetryPolicy(peer, lifeTimeOf(request.primary), request.maxCMRetries)

    @property
    def _firstAlternate(self) -> CMPath | None:
        """The alternate path of the REQ as this end sees it, if the REP has accepted one."""
        path, reply = self.opening.request.alternate, self.opening.reply
        if reply is None or reply.failoverAccepted != FailoverAccepted.ACCEPTED or not isPath(path):
            return None
        return path if self.opening.isActive else reversedPath(path)

    def _newAlternate(self) -> Alternate:
        opening, checkPath = self.opening, self._judge
        assert opening.reply is not None  # there is no connection without
        pkey = opening.request.pkey
        return Alternate(
            PathEnds(
                self.localCommID, self.remoteCommID, self.localQPN, self.remoteQPN, opening.transactionID
            ),
            isActive=opening.isActive,
            primary=self.primary,
            alternate=self._firstAlternate,
            retryPolicy=self._retryPolicy(),
            isSupported=opening.reply.failoverAccepted == FailoverAccepted.ACCEPTED,
            mayReload=self._mayReload,
            checkPath=lambda path: checkPath(path, pkey),
        )
