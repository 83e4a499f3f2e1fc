"""
What the connections of one link have to post, and when it is posted.

Connections are flushed once for each batch of completions, or once for a turn of the reactor, within the
window of messages that the peer can take. Calls into applications happen in such turns, never inside one
another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol

from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.error import RDMAError
from txrdma.iba.verbs import Completion, SendRequest, Status
from txrdma.interfaces import IPlacing
from txrdma.smc.attachment import Attachment, WINDOW
from txrdma.smc.posting import Poster

_log = Logger()

HOLD_SECONDS: Final = 20e-6
"""What is written goes out after so long, though there is more to do: a flush costs less."""

_ROUNDS: Final = 8
"""How often producers may write before the others on the reactor get their turn."""


_MEANINGS: Final = {
    Status.RETRY_EXC_ERR: "the peer has not answered for too long, or is gone",
    Status.RNR_RETRY_EXC_ERR: "the peer takes no messages",
    Status.REM_ACCESS_ERR: "the peer does not let us write where it said that we may",
    Status.REM_INV_REQ_ERR: "the peer does not understand what we send",
    Status.WR_FLUSH_ERR: "the peer is gone, or the device has failed",
}


def said(status: Status) -> str:
    """A failed completion in the words of who reads the log."""
    return f"{_MEANINGS.get(status, 'the device reports an error')} ({status.name})"


def _refused(error: RDMAError) -> str:
    return f"the device refused what was to be sent: {error}"


class Flushable(Protocol):
    """
    A connection, as a turn sees it.

    @ivar isDirty: the connection is in L{Turn.dirty}.
    @ivar pending: what was written and is not posted; C{backlog} is its length.
    """

    isDirty: bool
    backlog: int
    pending: list[bytes | memoryview[int]]

    def fill(self, requests: list[SendRequest]) -> None:
        """Append what has to be posted now."""

    def wasFlushed(self) -> None:
        """Hear that all that was written is posted."""

    def delivered(self) -> None:
        """The peer has all that was posted."""


class Owner(Protocol):
    """
    The link, as its turns see it.

    @ivar isActive: connections may use it; C{isOver}: nothing can be posted any more.
    """

    isActive: bool
    isOver: bool

    def broken(self, text: str) -> None:
        """The queue pair is of no more use."""

    def failed(self, failure: Failure) -> None:
        """Something has raised."""

    def turned(self) -> None:
        """A turn has ended."""

    def rouse(self) -> None:
        """The link rests, and there is something to do: it calls L{Turn.wake}."""


class Turn:
    """
    The turns of one link.

    @ivar isBusy: a turn goes on: connections will be flushed at its end.
    @ivar dirty: connections with something to post.
    @ivar flushed: connections that want to know when it is posted.
    @ivar isHasty: the process ends: whether messages have arrived is asked of each.
    @ivar clock: tells how long what was written waits.
    """

    def __init__(self, reactor: Any, attachment: Attachment, owner: Owner) -> None:
        self.isBusy = False
        self.isHasty = False
        self.dirty: list[Flushable] = []
        self.flushed: list[Flushable] = []
        self.poster = Poster(attachment.domain, attachment.queuePair.capacity)
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
        self._undelivered: deque[tuple[int, Flushable]] = deque()
        self._soon: list[Callable[[], None]] = []
        self._last: dict[Callable[[], None], None] = {}
        self._call: IDelayedCall | None = None

    # When

    def soon(self, call: Callable[[], None]) -> None:
        """Call it from our turn, not from the application's."""
        self._soon.append(call)
        if not self.isBusy:
            self.schedule()

    def atEnd(self, call: Callable[[], None]) -> None:
        """Call it once at the end of a turn, when everything is posted."""
        self._last[call] = None
        if not self.isBusy:
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
        elif len(self.dirty) > 1 and not self.isBusy and self.clock() >= self._due:
            self._postEarly()
            self._due = self.clock() + HOLD_SECONDS

    def _called(self) -> None:
        self._call = None
        self.finish()

    def finish(self) -> None:
        """Have a turn now."""
        wasBusy, self.isBusy = self.isBusy, True
        try:
            self.run()
        except Exception:
            failure = Failure()
            self._failed(failure)
            if self._soon or self.dirty:
                self.schedule()  # who waits for a link that is over is told in spite of that
        finally:
            self.isBusy = wasBusy
        self._owner.turned()

    def _failed(self, failure: Failure) -> None:
        _log.failure(
            "A link of SMC-R ends by an error while it sent for its connections ({link!r})",
            failure,
            link=self._owner,
        )
        self._owner.failed(failure)

    def _failedEarly(self, failure: Failure) -> None:
        """Tell of an error of C{_postEarly}, unless another one has ended the link before."""
        if not self._owner.isOver:
            self._failed(failure)

    def settle(self) -> None:
        """Flush what there is, inside a turn."""
        if self.dirty and not self._soon:
            self._flush()
        if self.dirty or self._soon or self._last:
            self.run()

    def run(self) -> None:
        """Post what there is, and see what comes of it, some rounds long."""
        for _ in range(_ROUNDS):
            if self._soon:
                self._callSoon()
            if self.dirty:
                self._flush()
            if not self._soon and (not self.dirty or self._isFull):
                break
        if self._last:
            last, self._last = self._last, {}
            for call in last:
                call()
        owner = self._owner
        if self._soon or (self.dirty and (owner.isActive or owner.isOver) and not self._isFull):
            self.schedule()

    def _callSoon(self) -> None:
        """Call what waits; when one raises, the others still wait."""
        soon, self._soon = self._soon, []
        count = 0
        due = self.clock() + HOLD_SECONDS
        try:
            for call in soon:
                if count and self.dirty and self.clock() >= due:
                    self._flush()
                    due = self.clock() + HOLD_SECONDS
                count += 1
                call()
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
        if self._soon or self._last or self.dirty:
            self.schedule()

    def end(self) -> None:
        """The link is over: nothing is posted any more, but what was to be called is."""
        self.rest()
        self._isFull = self._isResting = False
        self._undelivered.clear()
        self.poster.close()
        if self._soon or self._last or self.dirty:
            self.schedule()

    # What is posted

    def _flush(self) -> None:
        """Post what connections have."""
        dirty = self.dirty
        isOver = self._owner.isOver
        room = WINDOW - self.poster.sent + self._acknowledged
        requests: list[SendRequest] = []
        if len(dirty) == 1 and (room > 0 or isOver):  # as mostly, which is worth some lines
            stream = dirty.pop()
            stream.isDirty = False
            stream.fill(requests)
            if requests:
                self._post(requests)
            if not stream.backlog:
                stream.pending.clear()  # it is posted
        else:
            if isOver:
                room = len(dirty)
            elif len(dirty) > room:
                room = self._makeRoom(room)
                if room <= 0:
                    return
            self.dirty = dirty[room:]
            self._fill(dirty[:room], requests)
            if requests:
                self._post(requests)
            self._posted(dirty[:room])
        if self.poster.isUsed:
            self.poster.clear()
        if self.flushed:
            flushed, self.flushed = self.flushed, []
            for stream in flushed:
                stream.wasFlushed()

    def _fill(self, streams: list[Flushable], requests: list[SendRequest]) -> None:
        count = 0
        try:
            for stream in streams:
                count += 1
                stream.isDirty = False
                stream.fill(requests)
        except BaseException:
            self.dirty[:0] = streams[count:]  # nobody is forgotten
            raise

    def _posted(self, streams: list[Flushable]) -> None:
        for stream in streams:
            if not stream.backlog:
                stream.pending.clear()

    def _postEarly(self) -> None:
        """
        Post what all connections have but the last that has written, from within an application's call.

        No application is called, and nothing ends, before the turn that is due.
        """
        owner = self._owner
        room = WINDOW - self.poster.sent + self._acknowledged
        if not owner.isActive or owner.isOver or len(self.dirty) > room:
            return
        streams, self.dirty = self.dirty[:-1], self.dirty[-1:]
        requests: list[SendRequest] = []
        self.isBusy = True
        try:
            self._fill(streams, requests)
            if requests:
                self._queuePair.postSend(requests)
            self._posted(streams)
            if self.poster.isUsed:
                self.poster.clear()
        except RDMAError as error:
            self._soon.append(partial(owner.broken, _refused(error)))
        except Exception:
            self._soon.append(partial(self._failedEarly, Failure()))
        finally:
            self.isBusy = False

    def _post(self, requests: list[SendRequest]) -> None:
        if not self._owner.isOver:
            try:
                self._queuePair.postSend(requests)
            except RDMAError as error:
                self._owner.broken(_refused(error))

    def _makeRoom(self, room: int) -> int:
        """See which messages have arrived; if these are too few, be told of the next."""
        if not self._owner.isActive:
            return 0
        self._look()
        room = WINDOW - self.poster.sent + self._acknowledged
        if room <= 0:
            self._waitForSends()
        return room

    def stall(self, stream: Flushable) -> None:
        """A connection has more to post, when there is room to copy it."""
        stream.isDirty = True
        self.dirty.append(stream)
        self._waitForSends()

    def _waitForSends(self) -> None:
        if not self._isFull and not self._owner.isOver:
            self._isFull = True
            self._sendReader.start()

    # What has arrived

    def _look(self) -> None:
        """See which messages have arrived."""
        try:
            self.completed(self._sendQueue.poll(WINDOW))
        except Exception:
            self._failed(Failure())

    def completed(self, batch: Sequence[Completion]) -> None:
        """These messages have arrived, and all before them."""
        for completion in batch:
            if completion.status:
                self._owner.broken(said(completion.status))
                return
            self._acknowledged = completion.identifier
        if batch:
            if self.poster.isStaged:
                self.poster.completed(self._acknowledged)
            if self._isFull:
                self._isFull = False
                self.schedule()
            undelivered = self._undelivered
            while undelivered and undelivered[0][0] <= self._acknowledged:
                self.soon(undelivered.popleft()[1].delivered)
            if self.isHasty:
                self._owner.turned()
            elif not undelivered and not self._isFull:
                self._sendReader.stop()

    def deliver(self, stream: Flushable, number: int) -> None:
        """Tell a connection when the peer has all up to its message of this number."""
        if self.hasArrived(number):
            stream.delivered()
        elif not self._owner.isOver:
            self._undelivered.append((number, stream))
            self._sendReader.start()

    def hasArrived(self, number: int) -> bool:
        """Whether the peer has our message of this number, and all before it, whatever becomes of us."""
        if self.placing is not None and self.placing.isPlaced():
            return True
        if number > self._acknowledged and not self._owner.isOver:
            self._look()
        return number <= self._acknowledged

    def hasten(self) -> None:
        """The process ends: hear from now on how far each message has come."""
        if self.placing is None and not self._owner.isOver:
            self.isHasty = True
            self._sendReader.start()

    def arrived(self) -> int:
        """The number of the last message that the peer has looked at, when the queue pair has failed."""
        arrived = self.poster.sent
        try:
            batch = self._sendQueue.poll(arrived + 1)
        except Exception:
            return self._acknowledged  # the queue has failed, which its reader tells: this is for sure
        for completion in batch:
            if completion.status and completion.identifier:
                arrived = min(arrived, completion.identifier - 1)
        return arrived
