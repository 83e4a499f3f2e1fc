"""
Resolution of services: the queue pair and the Q_Key behind a service id of datagrams.

Follows InfiniBand Architecture vol. 1, 12.11.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from txrdma.cm.core.events import ServiceRequested, ServiceResolved, ServiceTimedOut
from txrdma.cm.core.exchange import Core, RetryPolicy
from txrdma.cm.layouts.messages import SIDRREP, SIDRREQ
from txrdma.kit.machines import Row, Table
from txrdma.kit.wire import Layout


class Inputs(Protocol):
    """The inputs of a service's resolution, at either end."""

    def ask(self) -> None:
        """The program wants to know the queue pair of a service."""

    def cancel(self) -> None:
        """The program has lost interest."""

    def answer(self) -> None:
        """The program gives its answer to a SIDR_REQ."""

    def requested(self) -> None:
        """A SIDR_REQ came, for the first time or again."""

    def resolved(self) -> None:
        """A SIDR_REP of the peer came."""

    def expired(self) -> None:
        """No answer came in time; there are retries left."""

    def exhausted(self) -> None:
        """No answer came in time, or none was given; or nobody can ask again any more."""


class Resolution(Core):
    """
    A question for a service, at one end.

    The end that answers keeps its answer for as long as the peer may ask again.
    """

    __slots__ = ("_question", "_response")
    _final = frozenset({"DONE"})

    def __init__(self, retryPolicy: RetryPolicy) -> None:
        self._question = SIDRREQ()
        self._response = SIDRREP()
        super().__init__(retryPolicy)

    @property
    def isOver(self) -> bool:
        """True if the answer has come, or will not, or can be forgotten."""
        return self._place == _DONE

    def ask(self, question: SIDRREQ, transactionID: int, now: float) -> None:
        """Send a SIDR_REQ to the peer."""
        self._question, self._transaction = question, transactionID
        self._ask("ask", now)

    def answer(self, response: SIDRREP, now: float) -> bool:
        """
        Answer a SIDR_REQ; its ids are filled in.

        @return: whether the peer still waits.
        """
        question = self._question
        self._response = response.replace(requestID=question.requestID, serviceID=question.serviceID)
        return self._ask("answer", now)

    def cancel(self, now: float) -> bool:
        """Give up a question: nobody has to be told."""
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
        self._keep()
        self._emit(ServiceRequested(self._message))

    def _sendResponse(self) -> None:
        self._send(self._response)
        self._keep()

    def _sendResponseAgain(self) -> None:
        self._send(self._response)

    def _keep(self) -> None:
        self.deadlineSeconds = self._now + self._retryPolicy.seconds * (1 + self._retryPolicy.retries)


_IDLE = "IDLE"
_SIDR_REQ_SENT = "SIDR_REQ_SENT"
_SIDR_REQ_RCVD = "SIDR_REQ_RCVD"
_SIDR_REP_SENT = "SIDR_REP_SENT"
_DONE = "DONE"

_In = Inputs
_Do = Resolution
_Row = Row[Inputs, Resolution]


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


TABLE: Table[Inputs, Resolution] = Table(Inputs, Resolution, _rows())
Resolution._table = TABLE


def diagram() -> str:
    """The state machine as a graph in the DOT language, for the documentation."""
    return TABLE.diagram("resolution")
