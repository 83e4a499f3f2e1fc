"""
Queue pairs of libibverbs, as L{IQueuePair} specifies them.

Follows InfiniBand Architecture vol. 1, 10.2.4 and 10.3. Posted requests are recorded: so a full queue is
detected before anything is posted, and requests that the device drops (it was unplugged) end, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from errno import EPERM
from itertools import count
from typing import Any, Final, NamedTuple

from zope.interface import implementer

from twisted.logger import Logger

from txrdma.error import DeviceUnavailable, InvalidRequest, QueueFull, RDMAError
from txrdma.iba.types import QPN
from txrdma.iba.verbs import (
    Addressed,
    Capacity,
    Completion,
    COMPLETION_OF,
    CompletionOpcode,
    QPAttributes,
    QPKind,
    QPState,
    ReceiveRequest,
    SendRequest,
    Status,
)
from txrdma.interfaces import IQueuePair
from txrdma.kit.logs import errorText
from txrdma.verbs.pyverbs.attributes import EVERYTHING, fromPyverbs, STATE, toPyverbs
from txrdma.verbs.pyverbs.bindings import Pyverbs, translated
from txrdma.verbs.pyverbs.queues import PyverbsCompletionQueue
from txrdma.verbs.pyverbs.requests import checkSend, ReceiveWorkRequests, SendWorkRequests
from txrdma.verbs.pyverbs.resourcetracker import ResourceTracker
from txrdma.verbs.pyverbs.sharedreceives import PyverbsSharedReceiveQueue, SHARED

_log = Logger()

_FLUSHED: Final = Status.WR_FLUSH_ERR
_SEND: Final = 0
_RECEIVE: Final = 1
_FAILING: Final = (QPState.RTR, QPState.RTS, QPState.SQD, QPState.SQE)
_CLOSED: Final = InvalidRequest("the queue pair is closed")
_CONTROLLED: Final = 1 << 31
"""The bit of Q_Keys that only privileged programs may set (IBA 10.2.5)."""

_NOT_PERMITTED: Final = (
    "Linux permits this user no controlled Q_Key, which management datagrams have: it takes CAP_NET_RAW, or "
    "once as root: rdma system set privileged-qkey on"
)
_SENDING: Final = (QPState.RTS, QPState.SQD, QPState.SQE, QPState.ERR)


class _Posted(NamedTuple):
    """
    A request in one of the queues.

    @ivar wanted: success is reported; otherwise the completion only frees an entry of the queue.
    @ivar late: posted in ERR, and unknown to the device.
    """

    token: int
    identifier: int
    opcode: CompletionOpcode
    wanted: bool = True
    late: bool = False


@implementer(IQueuePair)
class PyverbsQueuePair:
    """A queue pair of a real device. After the device is destroyed, it stays in ERR."""

    def __init__(
        self,
        verbs: Pyverbs,
        tracker: ResourceTracker,
        handleOf: Callable[[Addressed], Any],
        admit: Callable[[QPAttributes], None],
        forget: Callable[[PyverbsQueuePair], None],
        raw: Any,
        kind: QPKind,
        capacity: Capacity,
        send: PyverbsCompletionQueue,
        receive: PyverbsCompletionQueue,
        shared: PyverbsSharedReceiveQueue | None,
    ) -> None:
        """
        @param handleOf: returns the address handle of pyverbs.
        @param admit: checks attributes against the device; raises L{InvalidRequest}.
        @param forget: called when the queue pair is closed.
        """
        self.kind = kind
        self.number = QPN(raw.qp_num)
        self.capacity = capacity
        self.route = ""
        self.rewinds = 0  # adapters do not count them by queue pair
        self._verbs = verbs
        self._tracker = tracker
        self._handleOf, self._admit, self._forget = handleOf, admit, forget
        self._raw: Any = raw
        self._queues = (send, receive)
        self._shared = shared
        self._state = QPState.RESET
        self._given: frozenset[str] = frozenset()
        self._tokens = count()
        self._sends: deque[_Posted] = deque()
        self._receives: deque[_Posted] = deque()
        self._quiet = 0
        self._sendWorkRequests = SendWorkRequests(verbs)
        self._receiveWorkRequests = ReceiveWorkRequests(verbs, 2 * capacity.maxReceive)
        self._error: RDMAError | None = None
        for queue in self._queues:
            queue.join(self)
        if shared is not None:
            shared.join(self)

    def __repr__(self) -> str:
        return f"<PyverbsQueuePair {self.kind.name} {self.number:#x} {self._state.name}>"

    @property
    def state(self) -> QPState:
        """The state, read from the device where an error may have changed it."""
        if self._raw is not None and self._state in _FAILING:
            try:
                state = QPState(self._raw.query(STATE)[0].qp_state)
            except self._verbs.Error:
                state = QPState.ERR
            if state in (QPState.ERR, QPState.SQE):
                self._state = state
        return self._state

    def modify(self, attributes: QPAttributes) -> None:
        raw = self._checkRaw()
        attr, mask = toPyverbs(self._verbs, attributes)
        self._admit(attributes)
        try:
            raw.modify(attr, mask)
        except self._verbs.Error as error:
            if getattr(error, "error_code", 0) == EPERM and (attributes.qkey or 0) & _CONTROLLED:
                raise DeviceUnavailable(f"{self!r}: {_NOT_PERMITTED}") from PermissionError(EPERM, str(error))
            raise translated(error, f"{self!r} refuses {', '.join(sorted(attributes.given()))}") from error
        self._given |= attributes.given()
        if attributes.state is None:
            return
        self._state = attributes.state
        if attributes.state is QPState.RTR:
            self.route = "verbs"
        elif attributes.state is QPState.RESET:
            self._given, self.route, self._quiet = frozenset(), "", 0
            self._sends.clear()
            self._receives.clear()
            for queue in self._queues:
                queue.forget(self)

    def query(self) -> QPAttributes:
        try:
            known, _init = self._checkRaw().query(EVERYTHING)
        except self._verbs.Error as error:
            raise translated(error, f"{self!r} can't be queried") from error
        return fromPyverbs(known, (self._given | {"state"}) - {"currentState"})

    def postSend(self, requests: Sequence[SendRequest]) -> None:
        self._checkOpen()
        for request in requests:
            checkSend(request, self.kind, self.capacity)
        if self._state not in _SENDING:
            raise InvalidRequest(f"nothing can be sent in {self._state.name}")
        if self._isFull(self._sends, len(requests), self.capacity.maxSend, _SEND):
            raise QueueFull(f"the send queue has only {self.capacity.maxSend} entries")
        late = self._isError()
        quiet = self._quiet
        posted, signaled = [], []
        for request in requests:
            # Unsignaled requests free their entries with a later completion only, so signal some.
            quiet = 0 if request.signaled or quiet * 2 + 2 > self.capacity.maxSend else quiet + 1
            signaled.append(quiet == 0)
            posted.append(
                _Posted(
                    next(self._tokens) << 2 | _SEND,
                    request.identifier,
                    COMPLETION_OF[request.operation],
                    request.signaled,
                    late,
                )
            )

        def post(tokens: list[int]) -> int | None:
            handleOf, raw = self._handleOf, self._checkRaw()
            return self._sendWorkRequests.post(requests, tokens, signaled, handleOf, raw.post_send)

        self._post(self._sends, posted, post)
        self._quiet = quiet

    def postReceive(self, requests: Sequence[ReceiveRequest]) -> None:
        self._checkOpen()
        if self._shared is not None:
            raise InvalidRequest("the queue pair takes its receives from a shared queue")
        for request in requests:
            if len(request.segments) > self.capacity.maxReceiveSegments:
                raise InvalidRequest(f"at most {self.capacity.maxReceiveSegments} segments")
        if self._state is QPState.RESET:
            raise InvalidRequest("nothing can be received in RESET")
        if self._isFull(self._receives, len(requests), self.capacity.maxReceive, _RECEIVE):
            raise QueueFull(f"the receive queue has only {self.capacity.maxReceive} entries")
        late = self._isError()
        posted = [
            _Posted(
                next(self._tokens) << 2 | _RECEIVE, request.identifier, CompletionOpcode.RECEIVE, late=late
            )
            for request in requests
        ]

        def post(tokens: list[int]) -> int | None:
            return self._receiveWorkRequests.post(requests, tokens, self._checkRaw().post_recv)

        self._post(self._receives, posted, post)

    def close(self) -> None:
        if self._error is _CLOSED:
            return
        self._error = _CLOSED
        self._destroy()
        self._state = QPState.ERR
        self._sends.clear()
        self._receives.clear()
        for queue in self._queues:
            queue.leave(self)
        if self._shared is not None:
            self._shared.leave(self)
        self._forget(self)

    # For completion queues, shared receive queues and the device.

    def ended(self, token: int, status: Status) -> tuple[int, CompletionOpcode] | None:
        """Return identifier and kind of a finished work request; None if its success is not reported."""
        which = token & 3
        if which == SHARED:
            identifier = None if self._shared is None else self._shared.ended(token)
            if identifier is None:
                return None
            posted = _Posted(token, identifier, CompletionOpcode.RECEIVE)
        else:
            waiting = self._receives if which == _RECEIVE else self._sends
            while True:
                if not waiting or waiting[0].token > token:
                    return None  # from before a RESET
                posted = waiting.popleft()
                if posted.token == token:
                    break
        if status:
            self._failed()
        if self._isError():
            self._flushLate()
        return (posted.identifier, posted.opcode) if status or posted.wanted else None

    def queueClosed(self) -> None:
        """Go to ERR, because a queue is closed."""
        self.lost(InvalidRequest("a queue of the queue pair is closed"))

    def drainReceives(self) -> None:
        """Poll completions of receives, which frees entries of the shared receive queue."""
        self._queues[_RECEIVE].drain()

    def overrun(self) -> None:
        """Go to ERR, because the completion queue overran."""
        if self._raw is not None and self._state not in (QPState.RESET, QPState.ERR):
            self._toError()

    def noticed(self) -> None:
        """Handle an error event of the device."""
        if self.kind is QPKind.RC and self._state is not QPState.RESET:
            self._state = QPState.ERR

    def lost(self, wrong: RDMAError) -> None:
        """
        Stay in ERR, and flush requests: the device has destroyed the queue pair. Methods raise C{wrong}.
        """
        if self._error is not None:
            return
        self._error = wrong
        self._destroy()
        self._state = QPState.ERR
        for which, waiting in ((_SEND, self._sends), (_RECEIVE, self._receives)):
            while waiting:
                self._flush(which, waiting.popleft())

    def _destroy(self) -> None:
        """Destroy the queue pair in the device, after taking its completions."""
        raw, self._raw = self._raw, None
        if raw is not None:
            for queue in self._queues:
                queue.drain()  # mlx5 drops them with the queue pair
            self._tracker.close(raw)
            for queue in self._queues:
                queue.drain()
        self._sendWorkRequests.close()
        self._receiveWorkRequests.close()

    def _failed(self) -> None:
        """Record that a request has failed."""
        if self._state in (QPState.ERR, QPState.RESET):
            return
        if self.kind is QPKind.UD:
            self._state = self.state  # SQE or ERR
        else:
            self._toError()

    def _toError(self) -> None:
        """Move the device to ERR, so that it flushes requests that were posted meanwhile."""
        self._state = QPState.ERR
        if self._raw is None:
            return  # the queue pair is being destroyed
        attr, mask = toPyverbs(self._verbs, QPAttributes(state=QPState.ERR))
        try:
            self._raw.modify(attr, mask)
        except self._verbs.Error as error:
            _log.debug("{qp!r} can't go to ERR: {error}", qp=self, error=errorText(error))

    def _isFull(self, waiting: deque[_Posted], count: int, most: int, which: int) -> bool:
        """Return whether a queue has no space for requests; in ERR, which flushes them, it always has."""
        if self._isError() or len(waiting) + count <= most:
            return False
        self._queues[which].drain()  # may find an error
        return not self._isError() and len(waiting) + count > most

    def _isError(self) -> bool:
        return self._state is QPState.ERR

    def _post(
        self,
        waiting: deque[_Posted],
        posted: list[_Posted],
        post: Callable[[list[int]], int | None],
    ) -> None:
        """Post requests; in ERR queue them behind those that the device flushes."""
        if not posted:
            return
        if posted[0].late:
            waiting.extend(posted)
            self._flushLate()
            return
        failed = post([each.token for each in posted])
        if failed is None:
            waiting.extend(posted)
            return
        # Some were posted, and can't be taken back.
        _log.warn("{qp!r} accepted only some requests of a list: it enters ERR", qp=self)
        waiting.extend(each if each.token < failed else each._replace(late=True) for each in posted)
        self._toError()
        self._flushLate()

    def _flushLate(self) -> None:
        """Flush requests that the device does not know, after those that it knows."""
        for which, waiting in ((_SEND, self._sends), (_RECEIVE, self._receives)):
            while waiting and waiting[0].late:
                self._flush(which, waiting.popleft())

    def _flush(self, which: int, posted: _Posted) -> None:
        self._queues[which].push(Completion(posted.identifier, _FLUSHED, posted.opcode, self.number))

    def _checkOpen(self) -> None:
        if self._error is not None:
            raise self._error.__class__(*self._error.args)

    def _checkRaw(self) -> Any:
        self._checkOpen()
        return self._raw
