"""
The roles of a test: who asks and takes the time, and who answers.

The end that measures calls L{measure}; the other end has called L{answer} before that. Nothing here talks to
the other end but through its queue pair: see L{txrdma.pingpong.session} for who begins, and when::

    far = answer(there, test)
    measurement = await measure(here, test)
    far.stop()
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from twisted.internet.defer import Deferred

from txrdma.iba.verbs import Completion, Operation
from txrdma.pingpong.activity import Activity, Requests, STALL_SECONDS
from txrdma.pingpong.link import Link
from txrdma.pingpong.measurement import Measurement
from txrdma.pingpong.plan import Measure, PATTERNS, Test, Transfer

_OPERATIONS: Final = {
    Transfer.SEND: Operation.SEND,
    Transfer.WRITE: Operation.RDMA_WRITE_WITH_IMMEDIATE,
    Transfer.READ: Operation.RDMA_READ,
    Transfer.ATOMIC: Operation.FETCH_AND_ADD,
    Transfer.UD: Operation.SEND_WITH_IMMEDIATE,
}
"""What a message is; for bandwidth, writes come without the immediate that tells the peer of them."""

_LOST_SECONDS: Final = 0.1
_SLICE: Final = 10_000_000


def asking(link: Link, test: Test, stallSeconds: float = STALL_SECONDS) -> Activity:
    """What measures, from its C{start} on; it can be interrupted, and its C{done} has the measurement."""
    role: type[Activity] = Source
    if test.measure is Measure.LATENCY:
        role = Probe if test.transfer.isOneSided else Volley
    return role(link, test, stallSeconds)


def answering(link: Link, test: Test, stallSeconds: float = STALL_SECONDS) -> Activity:
    """What does the other end's part of it, from its C{start} on until its C{conclude} or C{stop}."""
    role: type[Activity] = Answer
    if test.measure is Measure.BIDIRECTIONAL:
        role = Source
    elif test.measure is Measure.LATENCY and not test.transfer.isOneSided:
        role = Echo
    return role(link, test, stallSeconds)


def answer(link: Link, test: Test) -> Activity:
    """Do the other end's part of it, until its C{conclude} or C{stop}."""
    activity = answering(link, test)
    activity.start()
    return activity


def measure(link: Link, test: Test) -> Deferred[Measurement]:
    """Measure what this end sees."""
    activity = asking(link, test)
    activity.start()
    return activity.done


class _Asking(Activity):
    """One at a time, and how long each takes."""

    def __init__(self, link: Link, test: Test, stallSeconds: float) -> None:
        super().__init__(link, test, stallSeconds)
        self.requests = Requests(link, test, _OPERATIONS[test.transfer])
        self.index = -1
        self.sending = 0
        self.isAnswered = True
        self._last = test.warmup + test.iterations if test.iterations else -1
        self._posted = self._first = 0
        self._isEnded = False

    def begin(self) -> None:
        """The first one."""
        self.watch()
        self.proceed()

    def end(self) -> None:
        """The one that is under way is the last."""
        self._isEnded = True
        self.proceed()

    def send(self) -> None:
        """The next one."""
        self.index += 1
        self.sending += 1
        self.isAnswered = False
        request = self.requests.at(self.index)
        self._posted = self.link.now()
        if self.index == self.test.warmup:
            self._first = self._posted
        self.link.queuePair.postSend((request,))

    def answered(self, now: int, share: int) -> None:
        """The one under way was answered; its latency is that share of the time."""
        self.isAnswered = True
        self.messages += 1
        if self.index >= self.test.warmup:
            measurement = self.measurement
            measurement.samples.add((now - self._posted) // share)
            measurement.messages += 1
            measurement.nanoseconds = now - self._first

    def proceed(self) -> None:
        """Send the next one when it is time, or finish."""
        if not self.isAnswered or self.isFinished:
            return
        if self._isEnded or self.index + 1 == self._last:
            if not self.sending:
                self.finish()
        elif self.sending < self.link.settings.depth:
            self.send()


class Volley(_Asking):
    """Latency of messages: send one, wait for the answer."""

    def send(self) -> None:
        """The next one; nobody sends a datagram again, so it may be lost."""
        super().send()
        if self.test.transfer is Transfer.UD and "lost" not in self.calls:
            self.later("lost", _LOST_SECONDS, self._giveUp, self.index)

    def arrived(self, batch: Sequence[Completion]) -> None:
        """The answer, or one that is too late."""
        now = self.link.now()
        for completion in batch:
            if self.test.transfer is not Transfer.UD or completion.immediate == self.index & 0xFFFFFFFF:
                if not self.isAnswered:
                    self.answered(now, 2)
        super().arrived(batch)
        self.proceed()

    def departed(self, batch: Sequence[Completion]) -> None:
        """There is room for more."""
        self.sending -= len(batch)
        self.proceed()

    def _giveUp(self, index: int) -> None:
        """Go on with the next when an answer has been missing for too long."""
        del self.calls["lost"]
        if index == self.index and not self.isAnswered:
            self.measurement.lost += 1
            self.isAnswered = True
            self.proceed()
        elif not self.isFinished:
            self.later("lost", _LOST_SECONDS, self._giveUp, self.index)


class Probe(_Asking):
    """Latency of what the peer's program has no part in: reads and atomics."""

    def departed(self, batch: Sequence[Completion]) -> None:
        """It is answered."""
        self.answered(self.link.now(), 1)
        self.sending -= len(batch)
        examineResults(self, batch)
        self.proceed()


class Source(Activity):
    """Bandwidth: keep as many requests outstanding as were agreed."""

    def __init__(self, link: Link, test: Test, stallSeconds: float) -> None:
        super().__init__(link, test, stallSeconds)
        isSilent = test.transfer is Transfer.WRITE
        self._requests = Requests(
            link, test, Operation.RDMA_WRITE if isSilent else _OPERATIONS[test.transfer]
        )
        self._depth = min(test.depth, link.settings.depth)
        if test.check and test.transfer.isOneSided:
            self._depth = min(self._depth, link.layout.slots, PATTERNS)
        self._index = self._outstanding = 0
        self._left = test.warmup
        self._isWarm = self._isCounting = False
        self._first = self._slice = self._sliceMessages = self._slices = 0
        self._best = 0.0

    def begin(self) -> None:
        """Warm up."""
        self.watch()
        self._post(self._depth)
        self._goOn()

    def end(self) -> None:
        """Wait for what is outstanding."""
        self._left = 0
        self._isWarm = True
        self._goOn()

    def departed(self, batch: Sequence[Completion]) -> None:
        """So many may be posted anew."""
        count = len(batch)
        self._outstanding -= count
        self.messages += count
        examineResults(self, batch)  # before the next are posted: they go to the same places
        if self._left:
            self._post(count)
        if self._isCounting:
            self._count(count)
        if not self._outstanding:
            self._goOn()

    def settle(self) -> None:
        """The best there was."""
        measurement = self.measurement
        measurement.peak = measurement.bandwidth
        if self._slices >= 3:
            measurement.peak = max(self._best * self.test.size, measurement.peak)

    def examineAll(self) -> None:
        """What the peer has written."""
        examineWritten(self)

    def _goOn(self) -> None:
        """Nothing is outstanding: begin what counts, or finish."""
        if self._outstanding or self.isFinished:
            return
        if self._isWarm:
            self.finish()
            return
        self._isWarm = self._isCounting = True
        self._left = self.test.iterations or -1
        self._first = self._slice = self.link.now()
        self._post(self._depth)

    def _count(self, count: int) -> None:
        now = self.link.now()
        measurement = self.measurement
        measurement.messages += count
        measurement.nanoseconds = now - self._first
        self._sliceMessages += count
        passed = now - self._slice
        if passed >= _SLICE:
            self._best = max(self._best, self._sliceMessages * 1e9 / passed)
            self._slices += 1
            self._slice, self._sliceMessages = now, 0

    def _post(self, count: int) -> None:
        if 0 <= self._left < count:
            count = self._left
        post = self.link.queuePair.postSend
        while count:
            requests = self._requests.some(self._index, count)
            posted = len(requests)
            self._index += posted
            self._outstanding += posted
            if self._left > 0:
                self._left -= posted
            count -= posted
            post(requests)


class Answer(Activity):
    """Let the peer write, read and send; count what comes."""

    def begin(self) -> None:
        """There is nothing of our own to do."""
        self.finish()

    def examineAll(self) -> None:
        """What the peer has written."""
        examineWritten(self)


class Echo(Answer):
    """Send a message back for each that comes."""

    def __init__(self, link: Link, test: Test, stallSeconds: float) -> None:
        super().__init__(link, test, stallSeconds)
        self._requests = Requests(link, test, _OPERATIONS[test.transfer])
        self._isDatagram = test.transfer is Transfer.UD
        self._free = link.settings.depth
        self._next = 0
        self._owed = 0

    def arrived(self, batch: Sequence[Completion]) -> None:
        """Answer first, look later."""
        if self._isDatagram:
            for completion in batch:
                self._send(completion.immediate or 0)  # one that finds no room is lost, as datagrams are
        else:
            self._owed += len(batch)
            self._settle()
        super().arrived(batch)

    def departed(self, batch: Sequence[Completion]) -> None:
        """There is room for more."""
        self._free += len(batch)
        if self._owed:
            self._settle()

    def _settle(self) -> None:
        while self._owed and self._free:
            self._send(self._next)
            self._next += 1
            self._owed -= 1

    def _send(self, index: int) -> None:
        if self._free:
            self._free -= 1
            self.link.queuePair.postSend((self._requests.at(index),))


def examineResults(activity: Activity, batch: Sequence[Completion]) -> None:
    """Look at what reads and atomics have brought, where that is asked for."""
    link, test = activity.link, activity.test
    if test.transfer is Transfer.ATOMIC:
        first = link.counted
        link.counted += len(batch)
        if test.check:
            for expected, completion in enumerate(batch, first):
                where = link.layout.result(completion.identifier)
                found = int.from_bytes(link.memory.view[where : where + 8], sys.byteorder)
                activity.measurement.wrong += found != expected
    elif test.check and test.transfer is Transfer.READ:
        for completion in batch:
            where = link.layout.slot(completion.identifier)
            activity.measurement.wrong += not link.isRight(completion.identifier, where, test.size)


def examineWritten(activity: Activity) -> None:
    """Look at the last that the peer has written into each slot without telling us."""
    link, test, count = activity.link, activity.test, activity.written
    if test.check and test.transfer is Transfer.WRITE and test.measure is not Measure.LATENCY:
        for index in range(max(0, count - link.layout.slots), count):
            where = link.layout.slot(index)
            activity.measurement.wrong += not link.isRight(index, where, test.size)
