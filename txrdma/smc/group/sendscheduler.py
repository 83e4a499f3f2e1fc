"""
The send scheduler of a link: when the bytes of its connections are sent.

Theory of operation. C{Flow.write} only queues bytes and marks its flow dirty. Dirty flows are flushed
together:

  - after each batch of received messages (C{settle}), so that answers are sent at once;
  - otherwise in the next reactor iteration (C{schedule}, C{finish}, C{run}).

Flushing many flows at once means one C{postSend}, and so one doorbell. If processing takes longer than
C{FLUSH_SECONDS}, flows are flushed in between, so that the peer does not wait for bytes that are ready.

Flow control: the peer has a fixed number of receives, so at most C{WINDOW} messages may be unacknowledged.
When the window is full, dirty flows stay dirty, the send completion queue is watched, and a completion
schedules the next flush.

Applications are called from here in two ways: C{callSoon} (before the flush) and C{callAtEnd} (after
everything has been posted). While C{isBusy} is set, nothing is scheduled, since a flush follows anyway. So
calls into applications are never nested. An exception of one connection ends that connection; one of the
device ends the link.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import Any, Final, Protocol

from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.error import RDMAError
from txrdma.iba.verbs import Completion, SendRequest, Status
from txrdma.interfaces import IDirectLane
from txrdma.kit.logs import errorText
from txrdma.smc.flow.flow import Flow
from txrdma.smc.flow.owner import FlowOwner
from txrdma.smc.flow.sendqueue import LinkSendQueue, Unacknowledged
from txrdma.smc.group.attachment import Attachment, WINDOW

_log = Logger()

FLUSH_SECONDS: Final = 20e-6
"""Seconds after which queued bytes are flushed even if more work is pending: a flush costs less."""

_DRAIN_SECONDS: Final = 0.1
"""Longest time in seconds that closing a link waits until its device has sent the last messages."""

_ROUNDS: Final = 8
"""Rounds of calls and flushes in one reactor iteration, before other work on the reactor gets its time."""

_MEANINGS: Final = {
    Status.RETRY_EXC_ERR: "the peer does not respond",
    Status.RNR_RETRY_EXC_ERR: "the peer does not accept messages",
    Status.REM_ACCESS_ERR: "the peer denies access to memory that it offered",
    Status.REM_INV_REQ_ERR: "the peer rejects a request as invalid",
    Status.WR_FLUSH_ERR: "the peer has disconnected, or the device has failed",
}


def statusText(status: Status) -> str:
    return f"{_MEANINGS.get(status, 'the device reports an error')} ({status.name})"


def _refused(error: RDMAError) -> str:
    return f"the device refused a send request: {error}"


class SchedulerOwner(Protocol):
    """The link of a scheduler; C{isActive}: connections may use it."""

    isActive: bool

    def broken(self, text: str) -> None: ...
    def failed(self, failure: Failure) -> None: ...
    def processed(self) -> None: ...
    def rouse(self) -> None: ...


class SendScheduler:
    """
    Sends the queued bytes of one link's connections.

    @ivar queue: the link's send queue.
    @ivar signalsEach: the process is ending, and each message requests a completion.
    @ivar clock: returns the reactor's time, in seconds; it never goes back.
    """

    def __init__(self, attachment: Attachment, owner: SchedulerOwner, clock: Callable[[], float]) -> None:
        self.signalsEach = False
        self.queue = LinkSendQueue(attachment.domain, attachment.queuePair.capacity, self.schedule)
        self.queue.limit = WINDOW
        self.lane: IDirectLane | None = None
        self.clock = clock
        self._due = 0.0  # time of the next early flush
        self._owner = owner
        self._queuePair = attachment.queuePair
        self._sendQueue = attachment.sendQueue
        self._reader = attachment.reader
        self._sendReader = attachment.sendReader
        self._acknowledged = 0  # number of the last acknowledged message
        self._isFull = False  # a completion must come before the next flush
        self._isResting = False  # the link is off the reactor
        self._undelivered: deque[tuple[int, FlowOwner]] = deque()  # see deliver
        self._successor: SendScheduler | None = None  # after handOver
        self._soon: list[tuple[FlowOwner | None, Callable[[], None]]] = []  # see callSoon; None: of the link
        self._atEnd: dict[Callable[[], None], None] = {}  # see callAtEnd
        self._isScheduled = False

    @property
    def isBusy(self) -> bool:
        """Whether the link is processing, at the end of which dirty flows are flushed."""
        return self.queue.isBusy

    # Scheduling

    def callSoon(self, stream: FlowOwner, call: Callable[[], None]) -> None:
        """
        Call a function soon; if it raises, its connection is aborted.

        It is called before the next flush, unless another such function requests this: that is followed by a
        flush first.
        """
        self._soon.append((stream, call))
        if not self.queue.isBusy:
            self.schedule()

    def callAtEnd(self, call: Callable[[], None]) -> None:
        """Call a function once, after the next flush."""
        self._atEnd[call] = None
        if not self.queue.isBusy:
            self.schedule()

    def schedule(self) -> None:
        """Schedule a flush for the next reactor iteration; flush early if this one takes long."""
        if self._isResting:
            self._owner.rouse()
        elif not self._isScheduled:
            self._isScheduled = True
            self._reader.callNext(self._called)
            self._due = self.clock() + FLUSH_SECONDS
        elif len(self.queue.dirty) > 1 and not self.isBusy and self.clock() >= self._due:
            self._postEarly()
            self._due = self.clock() + FLUSH_SECONDS

    def scheduleIfPending(self) -> None:
        """Schedule a flush if work was queued while the link was off the reactor."""
        if self._soon or self._atEnd or self.queue.dirty:
            self.schedule()

    def _called(self) -> None:
        self._isScheduled = False
        self.finish()

    def finish(self) -> None:
        """Flush now, and report an exception to the link."""
        queue = self.queue
        wasBusy, queue.isBusy = queue.isBusy, True
        try:
            self.run()
        except Exception:
            failure = Failure()
            self._failed(failure)
            if self._soon or queue.dirty:
                self.schedule()  # pending calls still report the end of the link
        finally:
            queue.isBusy = wasBusy
        self._owner.processed()

    def _failed(self, failure: Failure) -> None:
        _log.failure(
            "An SMC-R link ends because of an error while sending ({link!r})",
            failure,
            link=self._owner,
        )
        self._owner.failed(failure)

    def settle(self) -> None:
        """Flush dirty flows while the link is busy, such as after received messages."""
        queue = self.queue
        dirty = queue.dirty
        if len(dirty) == 1 and not self._soon:
            flow: Flow = dirty[0]
            requests: list[SendRequest] = []
            if self._send(flow, requests):  # fast path of one flow: see Flow.send
                dirty.pop()
                if requests:
                    self._post(requests)
                if queue.flushed:
                    self._notifyFlushed()
            else:
                self._flush()
        elif dirty and not self._soon:
            self._flush()
        if queue.dirty or self._soon or self._atEnd:
            self.run()

    def run(self) -> None:
        """Make pending calls and flush, repeatedly, since both may queue more work."""
        queue = self.queue
        for _ in range(_ROUNDS):
            if self._soon:
                self._callSoon()
            if queue.dirty:
                self._flush()
            if not self._soon and (not queue.dirty or self._isFull):
                break
        if self._atEnd:
            atEnd, self._atEnd = self._atEnd, {}
            for call in atEnd:
                try:
                    call()
                except BaseException:
                    _log.failure("Error after a flush of {link!r}", link=self._owner)
        isPossible = self._owner.isActive or queue.isOver
        if self._soon or (queue.dirty and isPossible and not self._isFull):
            self.schedule()

    def _callSoon(self) -> None:
        """Make pending calls; if the link fails in one, the others remain pending."""
        soon, self._soon = self._soon, []
        count = 0
        due = self.clock() + FLUSH_SECONDS
        try:
            for stream, call in soon:
                if count and self.queue.dirty and self.clock() >= due:
                    self._flush()
                    due = self.clock() + FLUSH_SECONDS
                count += 1
                try:
                    call()
                except Exception:
                    if stream is None:
                        raise
                    stream.abortOnError()
        except BaseException:
            self._soon[:0] = soon[count:]
            raise

    def rest(self) -> None:
        """Leave the reactor until L{wake}; pending calls and dirty flows remain."""
        self._isResting = True
        self._sendReader.stop()
        self._isScheduled = False
        self._reader.discardNext(self._called)

    def wake(self) -> None:
        """Return to the reactor; delayed calls may have been cancelled by other code, as trial does."""
        self._isResting = False
        if self._isFull or self._undelivered:
            self._sendReader.start()
        self._isScheduled = False
        self.scheduleIfPending()

    @property
    def hasPeerEnded(self) -> bool:
        """Whether the peer is known to have ended, and everything that it sent has arrived."""
        lane = self.lane
        return lane is not None and lane.hasPeerEnded()

    @property
    def isSending(self) -> bool:
        """Whether the device may still be sending staged bytes."""
        queue = self.queue
        return queue.isStaged and queue.lane is None and self._acknowledged < queue.sent

    def drain(self) -> None:
        """Wait, at most 0.1 s, until all posted requests are sent: closing the queue pair discards them."""
        until = monotonic() + _DRAIN_SECONDS  # the reactor's time does not advance in this loop
        while self.isSending and monotonic() < until:
            self.poll()

    def end(self) -> None:
        """Stop posting, as the link has ended; pending calls are still made."""
        self.rest()
        self._isFull = self._isResting = False
        self._undelivered.clear()
        self.queue.close()
        self.scheduleIfPending()

    # Posting

    def _flush(self) -> None:
        """
        Send the queued bytes of dirty flows, as far as the window allows, by one C{postSend}.

        Each flow sends at most one message. Flows that do not fit into the window stay dirty.
        """
        queue = self.queue
        dirty = queue.dirty
        isOver = queue.isOver
        room = queue.limit - queue.sent
        requests: list[SendRequest] = []
        flow: Flow
        if len(dirty) == 1 and (room > 0 or isOver):
            # One flow, the common case: saves the copies of the list (as in settle).
            flow = dirty[0]
            hasSent = self._send(flow, requests)
            dirty.pop()
            if not hasSent:
                self._fillOne(flow, requests)
            if requests:
                self._post(requests)
                # A request refers to the list itself (Flow._newWrite), so it is cleared only after posting.
                if not flow.backlog:
                    flow.pending.clear()
        else:
            # After the link has ended, every flow is processed, so that all detect it. Otherwise read
            # completions only if the window seems full: that costs a poll.
            if isOver:
                room = len(dirty)
            elif len(dirty) > room:
                room = max(self._makeSpace(room), 0)
                if not room:
                    # A peer that has closed may not free its window for a long time, and needs no more
                    # messages: end its connections without one.
                    for flow in dirty:
                        flow.resign()
            # Set before filling: a flow that has more to send than fits appends itself again in fill().
            queue.dirty = dirty[room:]
            self._fill(dirty[:room], requests)
            if requests:
                self._post(requests)
                self._posted(dirty[:room])
        if queue.isUsed or queue.isShort or queue.unacknowledged:
            self._afterPost()
        # Owners are notified last: they may call the application, which may write and make flows dirty again.
        if queue.flushed:
            self._notifyFlushed()

    def _notifyFlushed(self) -> None:
        queue = self.queue
        flushed, queue.flushed = queue.flushed, []
        flow: Flow
        for flow in flushed:
            try:
                flow.owner.wasFlushed()
            except Exception:
                flow.owner.abortOnError()

    def _afterPost(self) -> None:
        """Recycle requests, and watch for completions if one is needed."""
        queue = self.queue
        if queue.isUsed:
            queue.clear()
        if queue.unacknowledged and not queue.isOver:
            self._sendReader.start()
        if queue.isShort:
            queue.isShort = False
            self._waitForSends()

    def _fill(self, flows: list[Flow], requests: list[SendRequest]) -> None:
        for flow in flows:
            flow.isDirty = False
            if requests or not self._send(flow, requests):
                self._fillOne(flow, requests)

    def _send(self, flow: Flow, requests: list[SendRequest]) -> bool:
        """Call C{Flow.send}; an error ends this connection only."""
        try:
            return flow.send(requests)
        except Exception:
            flow.isDirty = False  # the caller removes it from the list, and the abort adds it again
            flow.owner.abortOnError()
            return True

    def _fillOne(self, flow: Flow, requests: list[SendRequest]) -> None:
        """Call C{Flow.fill}; an error ends this connection only."""
        before = len(requests)
        flow.isDirty = False
        produced, posted = flow.ring.produced, flow.posted
        try:
            flow.fill(requests)
        except Exception:
            del requests[before:]
            flow.rewind(produced, posted)  # the peer must not read what was not posted
            flow.owner.abortOnError()

    def _posted(self, flows: list[Flow]) -> None:
        for flow in flows:
            if not flow.backlog:
                flow.pending.clear()

    def _postEarly(self) -> None:
        """Flush all dirty flows but the last one, during a call of an application, without calling any."""
        owner, queue = self._owner, self.queue
        room = queue.limit - queue.sent
        if not owner.isActive or queue.isOver or len(queue.dirty) > room:
            return
        flows, queue.dirty = queue.dirty[:-1], queue.dirty[-1:]
        self._postInside(flows)

    def postNow(self, flow: Flow) -> None:
        """Flush one flow that neither ends nor has a producer, if the window is open."""
        owner, queue = self._owner, self.queue
        if owner.isActive and not queue.isOver and queue.limit - queue.sent > 0:
            queue.dirty.remove(flow)
            self._postInside([flow])

    def _postInside(self, flows: list[Flow]) -> None:
        """Flush these flows during a call of an application; errors are handled in the scheduled flush."""
        owner, queue = self._owner, self.queue
        requests: list[SendRequest] = []
        wasBusy, queue.isBusy = queue.isBusy, True
        try:
            self._fill(flows, requests)
            if requests:
                self.submit(requests)
                self._posted(flows)
            self._afterPost()
        except RDMAError as error:
            self._soon.append((None, partial(owner.broken, _refused(error))))
        except Exception:
            self._soon.append((None, partial(self._failed, Failure())))
        finally:
            queue.isBusy = wasBusy

    def _post(self, requests: list[SendRequest]) -> None:
        if not self.queue.isOver:
            try:
                self.submit(requests)
            except RDMAError as error:
                self._owner.broken(_refused(error))

    def submit(self, requests: Sequence[SendRequest]) -> None:
        """
        Post requests; once more if they are refused, since they contain bytes of all connections.

        @raise RDMAError: they were refused twice; none is posted.
        """
        try:
            self._queuePair.postSend(requests)
        except RDMAError as error:
            _log.debug(
                "{link!r} posts requests again, which were refused: {error}",
                link=self._owner,
                error=errorText(error),
            )
            self._queuePair.postSend(requests)

    def _makeSpace(self, room: int) -> int:
        """Poll for acknowledged messages, and return the free window; watch for completions if it is full."""
        if not self._owner.isActive:
            return 0
        self.poll()
        room = self.queue.limit - self.queue.sent
        if room <= 0:
            self._waitForSends()
        return room

    def _waitForSends(self) -> None:
        if not self._isFull and not self.queue.isOver:
            self._isFull = True
            self._sendReader.start()

    # Acknowledgements

    def poll(self) -> None:
        try:
            self.completed(self._sendQueue.poll(WINDOW))
        except Exception:
            self._failed(Failure())

    def collect(self) -> None:
        """
        Poll for acknowledgements if the window is full: LLC messages do not wait for them, and the completion
        queue of a link without other messages would overflow.
        """
        if self.queue.sent >= self.queue.limit:
            self.poll()

    def completed(self, batch: Sequence[Completion]) -> None:
        """Process completions: they acknowledge their messages, and all before them."""
        for completion in batch:
            if completion.status:
                self._owner.broken(statusText(completion.status))
                return
            self._acknowledged = completion.identifier
        if batch:
            self.queue.limit = self._acknowledged + WINDOW
            if self.queue.isStaged or self.queue.unacknowledged:
                self.queue.completed(self._acknowledged)
            if self._isFull:
                self._isFull = False
                self.schedule()
            undelivered = self._undelivered
            while undelivered and undelivered[0][0] <= self._acknowledged:
                _, stream = undelivered.popleft()
                self.callSoon(stream, stream.delivered)
            if self.signalsEach:
                self._owner.processed()
            elif not undelivered and not self._isFull and not self.queue.unacknowledged:
                self._sendReader.stop()

    def deliver(self, stream: FlowOwner, number: int) -> None:
        """Call C{stream.delivered} when the message of this number is acknowledged."""
        if self.hasArrived(number):
            stream.delivered()
        elif not self.queue.isOver:
            self._undelivered.append((number, stream))
            self._sendReader.start()

    def placed(self) -> None:
        """Report deliveries that wait although all messages are in shared memory now."""
        if self.lane is not None and self.lane.isPlaced():
            while self._undelivered:
                _, stream = self._undelivered.popleft()
                self.callSoon(stream, stream.delivered)

    def hasArrived(self, number: int) -> bool:
        """Return whether the peer has received the message of this number, and all before it."""
        if self.lane is not None and self.lane.isPlaced():
            return True
        if number > self._acknowledged and not self.queue.isOver:
            self.poll()
        return number <= self._acknowledged

    def confirmSoon(self) -> None:
        """Request a completion for each message from now on, because the process is ending."""
        if self.lane is None and not self.queue.isOver:
            self.signalsEach = self.queue.isSignaling = True
            self._sendReader.start()

    def handOver(self, other: SendScheduler) -> dict[Any, list[Unacknowledged]]:
        """Move pending calls to another link after a failure; return unacknowledged messages, by flow."""
        self._successor = other
        try:
            for completion in self._sendQueue.poll(self.queue.sent + 1):
                if completion.status:
                    break
                self.queue.completed(completion.identifier)
        except Exception:
            _log.failure(
                "The completion queue of a failed SMC-R link has failed, too ({link!r})", link=self._owner
            )
        other._soon += self._soon
        self._soon = []
        other._atEnd.update(self._atEnd)
        self._atEnd = {}
        for _, stream in self._undelivered:
            other._atEnd[partial(other._deliverLater, stream)] = None
        self._undelivered.clear()
        self.queue.dirty.clear()
        if not other.isBusy:
            other.schedule()
        return self.queue.takeUnacknowledged()

    def _deliverLater(self, stream: FlowOwner) -> None:
        """Call C{stream.delivered} for a connection moved here, after its resent bytes are acknowledged."""
        if self._successor is not None:  # this link has failed, too, before they were posted
            self._successor._deliverLater(stream)
        elif stream.isPosted:
            self.deliver(stream, self.queue.sent)
        else:
            self._atEnd[partial(self._deliverLater, stream)] = None

    def lastArrived(self) -> int:
        """Return the number of the last message that the peer received before the queue pair failed."""
        last = self.queue.sent
        try:
            batch = self._sendQueue.poll(last + 1)
        except Exception:
            return self._acknowledged  # the queue has failed (its reader logs that): return what is certain
        for completion in batch:
            if completion.status and completion.identifier:
                last = min(last, completion.identifier - 1)
        return last
