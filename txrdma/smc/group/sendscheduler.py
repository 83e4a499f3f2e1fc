"""
Turns of a link: when the requests of its connections are posted.

Connections are flushed once for each batch of completions, or once for a turn of the reactor, within the
window of messages that the peer can take. Calls into applications happen in such turns, never inside one
another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import Any, Final, Protocol

from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.error import RDMAError
from txrdma.iba.verbs import Completion, SendRequest, Status
from txrdma.interfaces import IPlacing
from txrdma.smc.flow.flow import Flow
from txrdma.smc.flow.owner import FlowOwner
from txrdma.smc.flow.sendqueue import LinkSendQueue, Unacknowledged
from txrdma.smc.group.attachment import Attachment, WINDOW

_log = Logger()

HOLD_SECONDS: Final = 20e-6
"""Seconds after which writes are flushed, though there is more to do: a flush costs less."""

_DRAIN_SECONDS: Final = 0.1
"""Seconds that an end of a link waits, at most, until its device has sent the last messages."""

_ROUNDS: Final = 8
"""How often producers may write before the others on the reactor get their turn."""


_MEANINGS: Final = {
    Status.RETRY_EXC_ERR: "the peer has not answered for too long, or is gone",
    Status.RNR_RETRY_EXC_ERR: "the peer takes no messages",
    Status.REM_ACCESS_ERR: "the peer does not let us write where it said that we may",
    Status.REM_INV_REQ_ERR: "the peer does not understand what we send",
    Status.WR_FLUSH_ERR: "the peer is gone, or the device has failed",
}


def statusText(status: Status) -> str:
    """A failed completion in the words of who reads the log."""
    return f"{_MEANINGS.get(status, 'the device reports an error')} ({status.name})"


def _refused(error: RDMAError) -> str:
    return f"the device refused what was to be sent: {error}"


class Owner(Protocol):
    """
    The link, as its turns see it.

    @ivar isActive: connections may use it.
    """

    isActive: bool

    def broken(self, text: str) -> None:
        """The queue pair is of no more use."""

    def failed(self, failure: Failure) -> None:
        """Hear that a call in a turn has raised an exception."""

    def turned(self) -> None:
        """Hear that a turn of the link has ended."""

    def rouse(self) -> None:
        """The link rests, and there is something to do: it calls L{SendScheduler.wake}."""


class SendScheduler:
    """
    The turns of one link.

    @ivar queue: what connections have to post.
    @ivar isHasty: the process ends: whether messages have arrived is asked of each.
    @ivar clock: tells how long what was written waits.
    """

    def __init__(self, reactor: Any, attachment: Attachment, owner: Owner) -> None:
        self.isHasty = False
        self.queue = LinkSendQueue(attachment.domain, attachment.queuePair.capacity, self.schedule)
        self.queue.limit = WINDOW
        self.placing: IPlacing | None = None
        self.clock: Callable[[], float] = reactor.seconds
        self._due = 0.0
        self._reactor = reactor
        self._owner = owner
        self._queuePair = attachment.queuePair
        self._sendQueue = attachment.sendQueue
        self._sendReader = attachment.sendReader
        self._acknowledged = 0
        self._isFull = self._isResting = False
        self._undelivered: deque[tuple[int, FlowOwner]] = deque()
        self._soon: list[tuple[FlowOwner | None, Callable[[], None]]] = []
        self._last: dict[Callable[[], None], None] = {}
        self._call: IDelayedCall | None = None

    @property
    def isBusy(self) -> bool:
        """Whether a turn of the link is going on."""
        return self.queue.isBusy

    # When

    def callSoon(self, stream: FlowOwner, call: Callable[[], None]) -> None:
        """Call it for a connection, which ends if it raises, from our turn and not from the application's."""
        self._soon.append((stream, call))
        if not self.queue.isBusy:
            self.schedule()

    def callAtEnd(self, call: Callable[[], None]) -> None:
        """Call it once at the end of a turn, when everything is posted."""
        self._last[call] = None
        if not self.queue.isBusy:
            self.schedule()

    def schedule(self) -> None:
        """
        Have a turn when what is being done is done; if the link rests, it wakes for that.

        When something takes long, and connections write one after the other, those before the last need not
        wait for its end.
        """
        if self._isResting:
            self._owner.rouse()
        elif self._call is None:
            self._call = self._reactor.callLater(0, self._called)
            self._due = self.clock() + HOLD_SECONDS
        elif len(self.queue.dirty) > 1 and not self.isBusy and self.clock() >= self._due:
            self._postEarly()
            self._due = self.clock() + HOLD_SECONDS

    def scheduleIfPending(self) -> None:
        """Have a turn, if there is something to do in it, which was said when nobody had one made."""
        if self._soon or self._last or self.queue.dirty:
            self.schedule()

    def _called(self) -> None:
        self._call = None
        self.finish()

    def finish(self) -> None:
        """Run a turn at once, and hand an exception of it to the owner."""
        queue = self.queue
        wasBusy, queue.isBusy = queue.isBusy, True
        try:
            self.run()
        except Exception:
            failure = Failure()
            self._failed(failure)
            if self._soon or queue.dirty:
                self.schedule()  # who waits for a link that is over is told in spite of that
        finally:
            queue.isBusy = wasBusy
        self._owner.turned()

    def _failed(self, failure: Failure) -> None:
        _log.failure(
            "A link of SMC-R ends by an error while it sent for its connections ({link!r})",
            failure,
            link=self._owner,
        )
        self._owner.failed(failure)

    def settle(self) -> None:
        """Flush what there is, inside a turn."""
        queue = self.queue
        dirty = queue.dirty
        if len(dirty) == 1 and not self._soon:
            flow: Flow = dirty[0]
            requests: list[SendRequest] = []
            if self._send(flow, requests):  # as mostly: then that is all
                dirty.pop()
                if requests:
                    self._post(requests)
            else:
                self._flush()
        elif dirty and not self._soon:
            self._flush()
        if queue.dirty or self._soon or self._last:
            self.run()

    def run(self) -> None:
        """Post what there is, and see what comes of it, some rounds long."""
        queue = self.queue
        for _ in range(_ROUNDS):
            if self._soon:
                self._callSoon()
            if queue.dirty:
                self._flush()
            if not self._soon and (not queue.dirty or self._isFull):
                break
        if self._last:
            last, self._last = self._last, {}
            for call in last:
                with _log.failuresHandled("Error at the end of a turn of {link!r}", link=self._owner):
                    call()
        isPossible = self._owner.isActive or queue.isOver
        if self._soon or (queue.dirty and isPossible and not self._isFull):
            self.schedule()

    def _callSoon(self) -> None:
        """Call what waits; when one raises, the others still wait."""
        soon, self._soon = self._soon, []
        count = 0
        due = self.clock() + HOLD_SECONDS
        try:
            for stream, call in soon:
                if count and self.queue.dirty and self.clock() >= due:
                    self._flush()
                    due = self.clock() + HOLD_SECONDS
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
        """Leave the reactor; C{wake} comes back."""
        self._isResting = True
        self._sendReader.stop()
        call, self._call = self._call, None
        if call is not None and call.active():
            call.cancel()

    def wake(self) -> None:
        """Be part of the reactor, again or still: somebody may have cancelled our calls, and told nobody."""
        self._isResting = False
        if self._isFull or self._undelivered:
            self._sendReader.start()
        if self._call is not None and not self._call.active():
            self._call = None
        self.scheduleIfPending()

    @property
    def isPeerGone(self) -> bool:
        """Whether the peer is known to be no more, and all is here that it has sent."""
        placing = self.placing
        return placing is not None and placing.isPeerGone()

    @property
    def isUnderWay(self) -> bool:
        """Whether a device that copies what it sends may still have some of it to send."""
        queue = self.queue
        return queue.isStaged and queue.lane is None and self._acknowledged < queue.sent

    def drain(self) -> None:
        """Wait for a moment until all is sent that was posted: a queue pair that is closed sends no more."""
        until = monotonic() + _DRAIN_SECONDS  # not the reactor's time, which stands still meanwhile
        while self.isUnderWay and monotonic() < until:
            self.look()

    def end(self) -> None:
        """The link is over: nothing is posted any more, but what was to be called is."""
        self.rest()
        self._isFull = self._isResting = False
        self._undelivered.clear()
        self.queue.close()
        self.scheduleIfPending()

    # What is posted

    def _flush(self) -> None:
        """Post the requests of the connections that are dirty, as far as the window of messages allows."""
        queue = self.queue
        dirty = queue.dirty
        isOver = queue.isOver
        room = queue.limit - queue.sent
        requests: list[SendRequest] = []
        flow: Flow
        if len(dirty) == 1 and (room > 0 or isOver):  # as mostly, which is worth some lines
            flow = dirty[0]
            hasSent = self._send(flow, requests)
            dirty.pop()
            if not hasSent:
                self._fillOne(flow, requests)
            if requests:
                self._post(requests)
                if not flow.backlog:
                    flow.pending.clear()  # it is posted
        else:
            if isOver:
                room = len(dirty)
            elif len(dirty) > room:
                room = max(self._makeRoom(room), 0)
                if not room:  # a peer that has closed may take nothing for a long time
                    for flow in dirty:
                        flow.resign()
            queue.dirty = dirty[room:]
            self._fill(dirty[:room], requests)
            if requests:
                self._post(requests)
                self._posted(dirty[:room])
        if queue.isUsed or queue.isShort or queue.unacknowledged:
            self._afterPost()
        if queue.flushed:
            flushed, queue.flushed = queue.flushed, []
            for flow in flushed:
                try:
                    flow.owner.wasFlushed()
                except Exception:
                    flow.owner.abortOnError()

    def _afterPost(self) -> None:
        """Free requests, and be told of completions where somebody waits for them."""
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
        """Let a connection send directly, if it can; an error ends this connection only."""
        try:
            return flow.send(requests)
        except Exception:
            flow.owner.abortOnError()
            return True

    def _fillOne(self, flow: Flow, requests: list[SendRequest]) -> None:
        """Take the requests of one connection; an error ends this connection only."""
        before = len(requests)
        flow.isDirty = False
        try:
            flow.fill(requests)
        except Exception:
            del requests[before:]
            flow.owner.abortOnError()

    def _posted(self, flows: list[Flow]) -> None:
        for flow in flows:
            if not flow.backlog:
                flow.pending.clear()

    def _postEarly(self) -> None:
        """
        Post what all connections have but the last that has written, from within an application's call.

        No application is called, and nothing ends, before the turn that is due.
        """
        owner, queue = self._owner, self.queue
        room = queue.limit - queue.sent
        if not owner.isActive or queue.isOver or len(queue.dirty) > room:
            return
        flows, queue.dirty = queue.dirty[:-1], queue.dirty[-1:]
        self._postInside(flows)

    def postNow(self, flow: Flow) -> None:
        """
        Post what one connection has, where there is room for its message, from within an application's call.

        @param flow: dirty, and nobody wants to know when it is posted.
        """
        owner, queue = self._owner, self.queue
        if owner.isActive and not queue.isOver and queue.limit - queue.sent > 0:
            queue.dirty.remove(flow)
            self._postInside([flow])

    def _postInside(self, flows: list[Flow]) -> None:
        """Post what these connections have; what goes wrong has its consequences in the next turn."""
        owner, queue = self._owner, self.queue
        requests: list[SendRequest] = []
        wasBusy, queue.isBusy = queue.isBusy, True
        try:
            self._fill(flows, requests)
            if requests:
                self._queuePair.postSend(requests)
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
                self._queuePair.postSend(requests)
            except RDMAError as error:
                self._owner.broken(_refused(error))

    def _makeRoom(self, room: int) -> int:
        """See which messages have arrived; if these are too few, be told of the next."""
        if not self._owner.isActive:
            return 0
        self.look()
        room = self.queue.limit - self.queue.sent
        if room <= 0:
            self._waitForSends()
        return room

    def _waitForSends(self) -> None:
        if not self._isFull and not self.queue.isOver:
            self._isFull = True
            self._sendReader.start()

    # What has arrived

    def look(self) -> None:
        """See which messages have arrived."""
        try:
            self.completed(self._sendQueue.poll(WINDOW))
        except Exception:
            self._failed(Failure())

    def completed(self, batch: Sequence[Completion]) -> None:
        """These messages have arrived, and all before them."""
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
            if self.isHasty:
                self._owner.turned()
            elif not undelivered and not self._isFull and not self.queue.unacknowledged:
                self._sendReader.stop()

    def deliver(self, stream: FlowOwner, number: int) -> None:
        """Tell a connection when the peer has all up to its message of this number."""
        if self.hasArrived(number):
            stream.delivered()
        elif not self.queue.isOver:
            self._undelivered.append((number, stream))
            self._sendReader.start()

    def hasArrived(self, number: int) -> bool:
        """Whether the peer has our message of this number, and all before it, whatever becomes of us."""
        if self.placing is not None and self.placing.isPlaced():
            return True
        if number > self._acknowledged and not self.queue.isOver:
            self.look()
        return number <= self._acknowledged

    def confirmSoon(self) -> None:
        """The process ends: hear from now on how far each message has come."""
        if self.placing is None and not self.queue.isOver:
            self.isHasty = self.queue.isSignaling = True
            self._sendReader.start()

    def handOver(self, other: SendScheduler) -> dict[Any, list[Unacknowledged]]:
        """
        Let the turn of another link do what this one, whose link has failed, would have done.

        @return: what was posted and is not known to have arrived, by flow.
        """
        try:
            for completion in self._sendQueue.poll(self.queue.sent + 1):
                if completion.status:
                    break
                self.queue.completed(completion.identifier)
        except Exception:
            _log.failure(
                "A link of SMC-R has failed, and so has its completion queue ({link!r})", link=self._owner
            )
        soon, self._soon = self._soon, []
        other._soon += soon
        last, self._last = self._last, {}
        other._last.update(last)
        undelivered = [stream for _, stream in self._undelivered]
        self._undelivered.clear()
        for stream in undelivered:
            other._last[partial(other._deliverLater, stream)] = None
        self.queue.dirty.clear()
        if not other.isBusy:
            other.schedule()
        return self.queue.takeUnacknowledged()

    def _deliverLater(self, stream: FlowOwner) -> None:
        """Tell a connection that has come from another link when the peer has all that it will post."""
        if stream.isPosted:
            self.deliver(stream, self.queue.sent)
        else:
            self._last[partial(self._deliverLater, stream)] = None

    def arrived(self) -> int:
        """The number of the last message that the peer has looked at, when the queue pair has failed."""
        arrived = self.queue.sent
        try:
            batch = self._sendQueue.poll(arrived + 1)
        except Exception:
            return self._acknowledged  # the queue has failed, which its reader tells: this is for sure
        for completion in batch:
            if completion.status and completion.identifier:
                arrived = min(arrived, completion.identifier - 1)
        return arrived
