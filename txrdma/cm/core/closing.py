"""
The end of a connection: DREQ and DREP, from either end or from both, and the time-wait of its IDs.

Follows InfiniBand Architecture vol. 1, 12.9.6 and 12.9.8.4 (timewait).

Theory of operation. An end that disconnects retransmits its DREQ until a DREP, the peer's own DREQ or a
rejection arrives, or all retries are used up; each of these ends the connection, so that a dead peer delays
the end but cannot prevent it. The IDs and the queue pair number are not reused for a while (TIMEWAIT),
because packets of the connection may still be in the network. A duplicate DREQ is answered meanwhile, since
the DREP may be lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from txrdma.cm.core.events import ConnectionRejected, Disconnected, TimewaitOver
from txrdma.cm.core.exchange import ExchangeCore, LONGEST_SERVICE, RetryPolicy
from txrdma.cm.layouts.messages import checkPrivateData, CMPath, DREP, DREQ, DREQ_PRIVATE_BYTES, REJ
from txrdma.iba.path import lifetimeSeconds
from txrdma.iba.types import QPN
from txrdma.kit.machines import Row, StateTable
from txrdma.kit.wire import Layout


class ClosingInputs(Protocol):
    """The inputs of a closing connection: requests of its program, messages of its peer, and timeouts."""

    def disconnect(self) -> None:
        """The application disconnects, or acknowledges the peer's DREQ."""

    def requested(self) -> None:
        """A DREQ or a duplicate of it was received."""

    def answered(self) -> None:
        """A DREP was received."""

    def rejected(self) -> None:
        """A REJ was received: the peer does not know the connection."""

    def linger(self) -> None:
        """The opening failed when the peer may have been ready to send."""

    def expired(self) -> None:
        """The answer timed out, with retries left."""

    def exhausted(self) -> None:
        """The answer to the last retry timed out, or the time-wait is over."""


def restSeconds(path: CMPath) -> float:
    """The time for which packets of a connection on this path may still be in the network, in seconds."""
    return lifetimeSeconds(min(path.localACKTimeout, LONGEST_SERVICE))


class Closing(ExchangeCore):
    """
    Disconnection of one established connection.

    A DREQ is answered when the application calls L{disconnect} after the event: so it can add private data.
    """

    __slots__ = (
        *("_drep", "_dreq", "_newTransaction", "_private", "_restSeconds"),
        *("localCommID", "remoteCommID", "remoteQPN"),
    )
    _final = frozenset({"DREQ_SENT", "TIMEWAIT", "FREE"})

    def __init__(
        self,
        localCommID: int,
        remoteCommID: int,
        remoteQPN: QPN,
        retryPolicy: RetryPolicy,
        restSeconds: float,
    ) -> None:
        """@param restSeconds: the duration of the time-wait."""
        self.localCommID = localCommID
        self.remoteCommID = remoteCommID
        self.remoteQPN = remoteQPN
        self._restSeconds = restSeconds
        self._private = b""
        self._newTransaction = 0
        self._dreq: int = 0
        self._drep: DREP | None = None
        super().__init__(retryPolicy)

    @property
    def isFree(self) -> bool:
        """True if the ids and the queue pair can be used again."""
        return self._stateName == _FREE

    @property
    def hasDisconnected(self) -> bool:
        """True if L{disconnect} changes nothing: this end has sent a DREQ, or the connection has ended."""
        return self._stateName in self._final

    def disconnect(self, transactionID: int, now: float, privateData: bytes = b"") -> bool:
        """
        Send a DREQ, or answer that of the peer.

        @param transactionID: a new one, for a DREQ.
        @return: whether this changes anything.
        @raise InvalidRequest: the private data is too long.
        """
        checkPrivateData(privateData, DREQ_PRIVATE_BYTES)
        self._private, self._newTransaction = privateData, transactionID
        return self._ask("disconnect", now)

    def movedTo(self, path: CMPath) -> None:
        """
        Use the timers of the path to which the connection has migrated.

        The time-wait is that of the slower path, since packets may still be on the old one.
        """
        self._retryPolicy = self._retryPolicy.by(path)
        self._restSeconds = max(self._restSeconds, restSeconds(path))

    def linger(self, now: float) -> None:
        """Begin the time-wait after an opening that failed."""
        self._now = now
        self._inputs.linger()

    def _handleMessage(self, message: Layout) -> None:
        if isinstance(message, DREQ):
            self._inputs.requested()
        elif isinstance(message, DREP):
            self._inputs.answered()
        elif isinstance(message, REJ):
            self._inputs.rejected()

    # What transitions do

    def _sendDREQ(self) -> None:
        request = DREQ(
            localCommID=self.localCommID,
            remoteCommID=self.remoteCommID,
            remoteQPN=self.remoteQPN,
            privateData=self._private.ljust(DREQ_PRIVATE_BYTES, b"\0"),
        )
        self._sendUntilAnswered(request, self._newTransaction)

    def _takeRequest(self) -> None:
        self._dreq = self._transaction
        self._emit(Disconnected(self._message))

    def _crossed(self) -> None:
        self._private = b""  # was for the DREQ
        self._takeRequest()

    def _sendDREP(self) -> None:
        self._drep = DREP(
            localCommID=self.localCommID,
            remoteCommID=self.remoteCommID,
            privateData=self._private.ljust(224, b"\0"),
        )
        self._send(self._drep, self._dreq)

    def _sendDREPAgain(self) -> None:
        self._send(
            self._drep or DREP(localCommID=self.localCommID, remoteCommID=self.remoteCommID),
            self._transaction,
        )

    def _rest(self) -> None:
        self._again = None
        self._retries = 0
        self.deadlineSeconds = self._now + self._restSeconds

    def _reportDisconnected(self) -> None:
        self._emit(Disconnected(None))

    def _reportRejected(self) -> None:
        self._emit(ConnectionRejected(self._message))

    def _reportFree(self) -> None:
        self._emit(TimewaitOver())


_ESTABLISHED = "ESTABLISHED"
_DREQ_SENT = "DREQ_SENT"
_DREQ_RCVD = "DREQ_RCVD"
_TIMEWAIT = "TIMEWAIT"
_FREE = "FREE"

_In = ClosingInputs
_Do = Closing
_Row = Row[ClosingInputs, Closing]


def _rows() -> Iterator[_Row]:
    yield _ESTABLISHED, _In.disconnect, _DREQ_SENT, (_Do._sendDREQ,)
    yield _ESTABLISHED, _In.requested, _DREQ_RCVD, (_Do._takeRequest,)
    yield _ESTABLISHED, _In.rejected, _TIMEWAIT, (_Do._reportRejected, _Do._rest)
    yield _ESTABLISHED, _In.linger, _TIMEWAIT, (_Do._rest,)
    yield _DREQ_SENT, _In.answered, _TIMEWAIT, (_Do._reportDisconnected, _Do._rest)
    yield _DREQ_SENT, _In.requested, _TIMEWAIT, (_Do._crossed, _Do._sendDREP, _Do._rest)
    yield _DREQ_SENT, _In.rejected, _TIMEWAIT, (_Do._reportDisconnected, _Do._rest)
    yield _DREQ_SENT, _In.expired, _DREQ_SENT, (_Do._sendAgain,)
    yield _DREQ_SENT, _In.exhausted, _TIMEWAIT, (_Do._reportDisconnected, _Do._rest)
    yield _DREQ_RCVD, _In.disconnect, _TIMEWAIT, (_Do._sendDREP, _Do._rest)
    yield _TIMEWAIT, _In.requested, _TIMEWAIT, (_Do._sendDREPAgain,)
    yield _TIMEWAIT, _In.exhausted, _FREE, (_Do._reportFree,)


TABLE: StateTable[ClosingInputs, Closing] = StateTable(ClosingInputs, Closing, _rows())
Closing._table = TABLE
