"""
Alternate paths of an established connection: loading, accepting, rejecting, and migration.

Follows InfiniBand Architecture vol. 1, 12.8 (LAP, APR) and 17.2.8 (automatic path migration).

Theory of operation. The active end loads, the passive one answers. While a LAP is unanswered, neither end has
an alternate path: the queue pairs are disarmed before, and rearmed with the answer, first at the passive end.
So a queue pair can't migrate to a path on which the ends have not agreed. Each LAP has its own transaction
ID, one more than the last: a late APR is not mistaken for the answer to the next LAP, nor a late LAP for a
new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Protocol, Union

from txrdma.cm.core.events import (
    AlternatePathAbandoned,
    AlternatePathCancelled,
    AlternatePathLoaded,
    AlternatePathRejected,
    AlternatePathRequested,
    AlternatePathTimedOut,
    MigrationUnexpected,
    PathMigrated,
    QPArmed,
    QPDisarmed,
)
from txrdma.cm.core.exchange import ExchangeCore, LONGEST_SERVICE, LOW_BITS, RetryPolicy
from txrdma.cm.layouts.messages import (
    APR,
    APStatus,
    checkFits,
    checkPrivateData,
    CMPath,
    LAP,
    MessageKind,
    MRA,
)
from txrdma.cm.layouts.paths import alternateOf, areSame, lapFor, reversedPath
from txrdma.error import InvalidRequest
from txrdma.iba.types import QPN
from txrdma.kit.machines import Row, StateTable
from txrdma.kit.values import frozen
from txrdma.kit.wire import Layout

_NO_LAP: Final = LAP()
_NO_APR: Final = APR()

LATE: Final = 1 << 16
"""Maximum distance from the newest LAP's transaction back to a late one; others are unrelated numbers."""

Refusal = tuple[APStatus, bytes]
"""A reason for which an end can't use a path, with its additional information."""

AlternateCheck = Callable[[CMPath], Union[Refusal, None]]
"""Returns why an end can't use a path, as seen from it; None if it can."""

PathCheck = Callable[[CMPath, int], Union[Refusal, None]]
"""An L{AlternateCheck} for any connection; the second argument is the P_Key of its partition."""


def acceptAnyPath(_path: CMPath, _pkey: int = 0) -> Refusal | None:
    """Accept any path: the program decides."""
    return None


@frozen
class PathEnds:
    """
    The IDs by which both ends of a connection identify each other.

    @ivar transactionID: that of the REQ. CMs of the IbAccess family answer any LAP with it.
    """

    localCommID: int
    remoteCommID: int
    localQPN: QPN
    remoteQPN: QPN
    transactionID: int


@frozen
class _Answered:
    """The last LAP that was answered, and the answer, in case it is lost."""

    transactionID: int
    path: CMPath
    response: APR


class AlternateInputs(Protocol):
    """The inputs of the alternate path's state machine."""

    def load(self) -> None:
        """The application loads an alternate path."""

    def reply(self) -> None:
        """The program answers a LAP."""

    def requested(self) -> None:
        """A LAP was received whose path is acceptable."""

    def again(self) -> None:
        """A duplicate of the unanswered LAP was received."""

    def replaced(self) -> None:
        """A new LAP was received: the peer has abandoned the unanswered one."""

    def delayed(self) -> None:
        """The peer takes longer: it sent an MRA for our LAP."""

    def loaded(self) -> None:
        """The peer has accepted our LAP."""

    def refused(self) -> None:
        """The peer has rejected our LAP."""

    def expired(self) -> None:
        """The answer timed out, with retries left."""

    def exhausted(self) -> None:
        """The answer to the last retry timed out."""

    def migrated(self) -> None:
        """The queue pair has migrated to the alternate path."""

    def surprised(self) -> None:
        """The queue pair reports a migration without an alternate path."""

    def close(self) -> None:
        """Either end closes the connection."""


class Alternate(ExchangeCore):
    """
    The paths of one established connection, at one end.

    @ivar primary: the path in use, as this end sees it.
    @ivar alternate: the path to migrate to; None while there is none that both ends have agreed on.
    @ivar isNegotiated: a LAP was sent or received.
    """

    __slots__ = (
        *("_answered", "_checkPath", "_ends", "_isActive", "_isSupported", "_lap", "_lapTransaction"),
        *("_mayReload", "_newest", "_path", "_privateData", "_response", "_timedOut"),
        *("alternate", "primary", "isNegotiated"),
    )
    _final = frozenset({"CLOSED"})

    def __init__(
        self,
        ends: PathEnds,
        *,
        isActive: bool,
        primary: CMPath,
        alternate: CMPath | None,
        retryPolicy: RetryPolicy,
        isSupported: bool = True,
        mayReload: bool = False,
        checkPath: AlternateCheck = acceptAnyPath,
    ) -> None:
        """
        @param isSupported: the REP accepted failover.
        @param mayReload: an alternate path can be replaced without a migration.
        @param checkPath: returns why this end can't use a path.
        """
        self._ends = ends
        self._isActive, self._isSupported, self._mayReload = isActive, isSupported, mayReload
        self._checkPath = checkPath
        self.primary = primary
        self.alternate = alternate
        self.isNegotiated = False
        self._path = primary  # that of the last LAP, as this end sees it
        self._lap = _NO_LAP
        self._lapTransaction = 0
        self._newest: int | None = None  # transaction ID of the peer's newest LAP
        self._answered: _Answered | None = None
        self._response = _NO_APR
        self._privateData = b""
        self._timedOut = False  # a LAP has timed out, whose answer may still arrive
        super().__init__(retryPolicy)

    @property
    def isOutstanding(self) -> bool:
        """True if a LAP waits for its answer, at either end."""
        return self._stateName not in (_IDLE, _CLOSED)

    # Requests of a program

    def load(
        self,
        path: CMPath,
        transactionID: int,
        now: float,
        privateData: bytes = b"",
        isLegacyPeer: bool = False,
    ) -> bool:
        """
        Send a LAP. The answer, or its absence, is reported by an event.

        An APR in the transaction of the REQ may be for any LAP. It counts until a LAP has timed out, again
        after a migration, and with C{isLegacyPeer}.

        @param transactionID: one more than that of the previous LAP.
        @param isLegacyPeer: the peer answers in the transaction of the REQ, and no answer to an earlier LAP
            is in the network any more.
        @return: False if the connection has ended; the same for all requests of this class.
        @raise InvalidRequest: this end cannot load alternate paths, cannot load one now, or cannot load this
            one.
        """
        if self._stateName == _CLOSED:
            return False
        if not self._isActive:
            raise InvalidRequest("only the active end of a connection loads alternate paths")
        if not self._isSupported:
            raise InvalidRequest("the peer's REP refused alternate paths")
        if self._stateName == _IDLE and self.alternate is not None and not self._mayReload:
            raise InvalidRequest("there is an alternate path, which only mayReload allows replacing")
        if areSame(path, self.primary):
            raise InvalidRequest("the alternate path is the primary one")
        refusal = self._checkPath(path)
        if refusal is not None:
            raise InvalidRequest(f"this end cannot use the path: {refusal[0].name}")
        checkPrivateData(privateData, 168)
        checkFits(path)
        if self._stateName == _IDLE:
            self._path, self._lapTransaction, self._privateData = path, transactionID & LOW_BITS, privateData
            self._timedOut = self._timedOut and not isLegacyPeer
        return self._ask("load", now)

    def reply(
        self,
        transactionID: int,
        status: APStatus,
        now: float,
        information: bytes = b"",
        privateData: bytes = b"",
    ) -> bool:
        """
        Answer a LAP of the peer.

        @param transactionID: that of L{AlternatePathRequested}.
        @raise InvalidRequest: this LAP is no longer unanswered.
        """
        if self._stateName in (_LAP_RCVD, _MRA_LAP_SENT) and transactionID != self._lapTransaction:
            raise InvalidRequest("the peer has abandoned this LAP, and sent another one")
        checkPrivateData(information, 72, "information")
        checkPrivateData(privateData, 148)
        self._response = self._apr(status, information, privateData)
        return self._ask("reply", now)

    # What happens

    def migrated(self, now: float) -> None:
        """Note that the queue pair has migrated. Call this before processing later LAPs."""
        self._now = now
        if self._stateName in (_IDLE, _CLOSED) and self.alternate is not None:
            self._inputs.migrated()
        else:
            self._inputs.surprised()

    def close(self, now: float) -> None:
        """End all exchanges: the connection is over."""
        self._now = now
        self._inputs.close()

    def _handleMessage(self, message: Layout) -> None:
        self._transaction &= LOW_BITS
        if isinstance(message, LAP):
            self._receiveLAP(message)
        elif isinstance(message, APR) and self._isOfOurLAP():
            if message.apStatus == APStatus.LOADED:
                self._inputs.loaded()
            else:
                self._inputs.refused()
        elif isinstance(message, MRA) and message.messageMRAed == MessageKind.LAP and self._isOfOurLAP():
            self._inputs.delayed()

    def _isOfOurLAP(self) -> bool:
        """True if an answer is for the LAP that waits. One in the REQ's transaction may be for any LAP."""
        isLegacy = self._transaction == self._ends.transactionID & LOW_BITS and not self._timedOut
        return self._transaction == self._lapTransaction or isLegacy

    def _receiveLAP(self, lap: LAP) -> None:
        if self._stateName == _CLOSED:
            return
        self.isNegotiated = True
        path = reversedPath(alternateOf(lap))
        if self._isActive or not self._isSupported:
            self._send(self._apr(APStatus.NOT_SUPPORTED))
        elif self._stateName != _IDLE and self._isOf(self._lapTransaction, self._path, path):
            self._inputs.again()
        elif self._answered and self._isOf(self._answered.transactionID, self._answered.path, path):
            self._send(self._answered.response)
        elif not self._isLate():
            if self._stateName != _IDLE:
                self._inputs.replaced()
            self._consider(lap, path)

    def _isOf(self, transactionID: int, known: CMPath, path: CMPath) -> bool:
        return self._transaction == transactionID and areSame(path, known)

    def _isLate(self) -> bool:
        """True if the peer has sent another LAP, or uses another path. Legacy peers do not number LAPs."""
        if self._newest is None or self._transaction == self._ends.transactionID & LOW_BITS:
            return False
        # Serial numbers: the difference is small, modulo 2**32, if the LAP is the newest one or older.
        return (self._newest - self._transaction) & LOW_BITS < LATE

    def _consider(self, lap: LAP, path: CMPath) -> None:
        """Answer a new LAP, or report it to the program."""
        self._newest = self._transaction
        self._answered = None
        refusal = self._refusal(lap, path)
        if refusal is not None:
            self._answer(path, self._apr(*refusal))
            return
        self._path, self._lap, self._lapTransaction = path, lap, self._transaction
        self._inputs.requested()

    def _refusal(self, lap: LAP, path: CMPath) -> Refusal | None:
        if areSame(path, self.primary):
            return APStatus.IS_CURRENT, b""
        if self.alternate is not None and areSame(path, self.alternate):
            return APStatus.LOADED, b""  # no refusal, but there is nothing to ask the program
        if self.alternate is not None and not self._mayReload:
            return APStatus.REJECTED, b""
        refusal = self._checkPath(path)
        if refusal is None and lap.remoteQPN != self._ends.localQPN:
            return APStatus.QPN_EECN_DO_NOT_MATCH, b""
        return refusal

    def _apr(self, status: APStatus, information: bytes = b"", privateData: bytes = b"") -> APR:
        return APR(
            localCommID=self._ends.localCommID,
            remoteCommID=self._ends.remoteCommID,
            apStatus=status,
            additionalInfoLength=len(information),
            additionalInfo=information.ljust(72, b"\0"),
            privateData=privateData.ljust(148, b"\0"),
        )

    def _answer(self, path: CMPath, response: APR) -> None:
        self._answered = _Answered(self._transaction, path, response)
        self._send(response)

    # What transitions do

    def _disarm(self) -> None:
        self.isNegotiated = True
        if self.alternate is not None:
            self.alternate = None
            self._emit(QPDisarmed())

    def _arm(self) -> None:
        self.alternate = self._path
        self._emit(QPArmed(self._path))

    def _sendLAP(self) -> None:
        blank = LAP(
            localCommID=self._ends.localCommID,
            remoteCommID=self._ends.remoteCommID,
            remoteQPN=self._ends.remoteQPN,
            remoteCMResponseTimeout=self._retryPolicy.responseTimeout,
            privateData=self._privateData.ljust(168, b"\0"),
        )
        self._sendUntilAnswered(lapFor(self._path, blank), self._lapTransaction)

    def _reportRequested(self) -> None:
        self._emit(AlternatePathRequested(self._lap, self._path, self._lapTransaction))

    def _cancel(self) -> None:
        self._emit(AlternatePathCancelled(self._lapTransaction))

    def _reply(self) -> None:
        if self._response.apStatus == APStatus.LOADED:
            self._arm()  # before the APR is sent: the peer may migrate as soon as it has that
        self._transaction = self._lapTransaction
        self._answer(self._path, self._response)

    def _sendMRA(self) -> None:
        mra = MRA(
            localCommID=self._ends.localCommID,
            remoteCommID=self._ends.remoteCommID,
            messageMRAed=MessageKind.LAP,
            serviceTimeout=LONGEST_SERVICE,
        )
        self._send(mra, self._lapTransaction)

    def _waitLonger(self) -> None:
        self._wait(self._message.serviceTimeout)

    def _reportLoaded(self) -> None:
        self._arm()
        self._emit(AlternatePathLoaded(self._path, self._message))

    def _reportRefused(self) -> None:
        self._emit(AlternatePathRejected(self._message))

    def _reportTimedOut(self) -> None:
        self._timedOut = True
        self._emit(AlternatePathTimedOut())

    def _migrate(self) -> None:
        assert self.alternate is not None
        self.primary, self.alternate = self.alternate, None
        self._retryPolicy = self._retryPolicy.by(self.primary)
        self._answered = None  # nobody waits for it: the peer could not have migrated
        self._timedOut = False
        self._emit(PathMigrated(self.primary))

    def _reportUnexpected(self) -> None:
        self._emit(MigrationUnexpected())

    def _reportAbandoned(self) -> None:
        self._emit(AlternatePathAbandoned())


_IDLE = "IDLE"
_LAP_SENT = "LAP_SENT"
_MRA_LAP_RCVD = "MRA_LAP_RCVD"
_LAP_RCVD = "LAP_RCVD"
_MRA_LAP_SENT = "MRA_LAP_SENT"
_CLOSED = "CLOSED"

_In = AlternateInputs
_Do = Alternate
_Row = Row[AlternateInputs, Alternate]


def _rows() -> Iterator[_Row]:
    yield _IDLE, _In.migrated, _IDLE, (_Do._migrate,)
    yield _IDLE, _In.close, _CLOSED, ()
    yield _CLOSED, _In.migrated, _CLOSED, (_Do._migrate,)  # DREQs and timewait use the timers of the new path
    # The active end.
    yield _IDLE, _In.load, _LAP_SENT, (_Do._disarm, _Do._sendLAP)
    yield _LAP_SENT, _In.delayed, _MRA_LAP_RCVD, (_Do._waitLonger,)
    for here in (_LAP_SENT, _MRA_LAP_RCVD):
        yield here, _In.loaded, _IDLE, (_Do._stop, _Do._reportLoaded)
        yield here, _In.refused, _IDLE, (_Do._stop, _Do._reportRefused)
        yield here, _In.expired, _LAP_SENT, (_Do._sendAgain,)
        yield here, _In.exhausted, _IDLE, (_Do._reportTimedOut,)
        yield here, _In.close, _CLOSED, (_Do._stop, _Do._reportAbandoned)
    # The passive end.
    yield _IDLE, _In.requested, _LAP_RCVD, (_Do._disarm, _Do._reportRequested)
    for here in (_LAP_RCVD, _MRA_LAP_SENT):
        yield here, _In.reply, _IDLE, (_Do._reply,)
        yield here, _In.again, _MRA_LAP_SENT, (_Do._sendMRA,)
        yield here, _In.replaced, _IDLE, (_Do._cancel,)
        yield here, _In.close, _CLOSED, (_Do._cancel,)
    for here in (_IDLE, _LAP_SENT, _MRA_LAP_RCVD, _LAP_RCVD, _MRA_LAP_SENT):
        yield here, _In.surprised, here, (_Do._reportUnexpected,)


TABLE: StateTable[AlternateInputs, Alternate] = StateTable(AlternateInputs, Alternate, _rows())
Alternate._table = TABLE
