"""
Service ID resolution: the queue pair and the Q_Key of a datagram service.

Follows InfiniBand Architecture vol. 1, 12.11.

Theory of operation. There is one request and one answer. The requesting end retransmits its SIDR_REQ until it
is answered. The answering end retransmits nothing: it stores its answer for as long as the peer may repeat
the request.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

from txrdma.cm.core.events import ServiceRequested, ServiceResolved, ServiceTimedOut
from txrdma.cm.core.exchange import ExchangeCore, RetryPolicy
from txrdma.cm.layouts.messages import SIDRREP, SIDRREQ
from txrdma.kit.machines import Row, StateTable
from txrdma.kit.wire import Layout


class ResolutionInputs(Protocol):
    """The inputs of a service's resolution, at either end."""

    def ask(self) -> None:
        """The application resolves a service."""

    def cancel(self) -> None:
        """The program cancels the resolution."""

    def answer(self) -> None:
        """The program answers a SIDR_REQ."""

    def requested(self) -> None:
        """A SIDR_REQ or a duplicate of it was received."""

    def resolved(self) -> None:
        """A SIDR_REP was received."""

    def expired(self) -> None:
        """The answer timed out, with retries left."""

    def exhausted(self) -> None:
        """The answer to the last retry timed out, or the stored answer is no longer needed."""


class Resolution(ExchangeCore):
    """
    One end of a service ID resolution.

    The answering end stores its answer for as long as the peer may retransmit its request.
    """

    __slots__ = ("_question", "_response")
    _final = frozenset({"DONE"})
    alternatePath: Final = None

    def __init__(self, retryPolicy: RetryPolicy) -> None:
        self._question = SIDRREQ()
        self._response = SIDRREP()
        super().__init__(retryPolicy)

    @property
    def isFree(self) -> bool:
        """True if the resolution is complete, has failed, or its answer is no longer needed."""
        return self._stateName == _DONE

    @property
    def isAnswered(self) -> bool:
        """True if this is the answering end, which only waits for retransmissions."""
        return self._stateName == _SIDR_REP_SENT

    def ask(self, question: SIDRREQ, transactionID: int, now: float) -> None:
        """Send a SIDR_REQ to the peer."""
        self._question, self._transaction = question, transactionID
        self._ask("ask", now)

    def answer(self, response: SIDRREP, now: float) -> bool:
        """Answer a SIDR_REQ; its IDs are filled in. Returns False if the peer does not wait any more."""
        question = self._question
        self._response = response.replace(requestID=question.requestID, serviceID=question.serviceID)
        return self._ask("answer", now)

    def cancel(self, now: float) -> bool:
        """Abandon a resolution, without a message."""
        return self._ask("cancel", now)

    def _handleMessage(self, message: Layout) -> None:
        if isinstance(message, SIDRREQ):
            self._inputs.requested()
        elif isinstance(message, SIDRREP):
            self._inputs.resolved()

    # What transitions do

    def _sendQuestion(self) -> None:
        self._sendUntilAnswered(self._question, self._transaction)

    def _reportResolved(self) -> None:
        self._emit(ServiceResolved(self._message))

    def _reportTimedOut(self) -> None:
        self._emit(ServiceTimedOut())

    def _takeQuestion(self) -> None:
        self._question = self._message
        self._extendDeadline()
        self._emit(ServiceRequested(self._message))

    def _sendResponse(self) -> None:
        self._send(self._response)
        self._extendDeadline()

    def _sendResponseAgain(self) -> None:
        self._send(self._response)

    def _extendDeadline(self) -> None:
        self.deadlineSeconds = self._now + self._retryPolicy.seconds * (1 + self._retryPolicy.retries)


_IDLE = "IDLE"
_SIDR_REQ_SENT = "SIDR_REQ_SENT"
_SIDR_REQ_RCVD = "SIDR_REQ_RCVD"
_SIDR_REP_SENT = "SIDR_REP_SENT"
_DONE = "DONE"

_In = ResolutionInputs
_Do = Resolution
_Row = Row[ResolutionInputs, Resolution]


def _rows() -> Iterator[_Row]:
    yield _IDLE, _In.ask, _SIDR_REQ_SENT, (_Do._sendQuestion,)
    yield _SIDR_REQ_SENT, _In.resolved, _DONE, (_Do._stop, _Do._reportResolved)
    yield _SIDR_REQ_SENT, _In.expired, _SIDR_REQ_SENT, (_Do._sendAgain,)
    yield _SIDR_REQ_SENT, _In.exhausted, _DONE, (_Do._reportTimedOut,)
    yield _SIDR_REQ_SENT, _In.cancel, _DONE, (_Do._stop,)
    yield _IDLE, _In.requested, _SIDR_REQ_RCVD, (_Do._takeQuestion,)
    yield _SIDR_REQ_RCVD, _In.answer, _SIDR_REP_SENT, (_Do._sendResponse,)
    yield _SIDR_REQ_RCVD, _In.exhausted, _DONE, ()
    yield _SIDR_REP_SENT, _In.requested, _SIDR_REP_SENT, (_Do._sendResponseAgain,)
    yield _SIDR_REP_SENT, _In.exhausted, _DONE, ()


TABLE: StateTable[ResolutionInputs, Resolution] = StateTable(ResolutionInputs, Resolution, _rows())
Resolution._table = TABLE
