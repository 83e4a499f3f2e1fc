"""
The roles of a test: one end sends requests and measures, the other end answers.

The roles communicate only through the queue pairs; L{txrdma.pingpong.session} coordinates them: the
answering end starts first::

    far, near = answering(there, test), asking(here, test)
    far.start()
    near.start()
    measurement = await near.done
    far.stop()
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from txrdma.iba.verbs import Completion, Operation
from txrdma.pingpong.activity import Activity, RepeatedRequests
from txrdma.pingpong.link import MeasuredLink
from txrdma.pingpong.plan import Measure, PATTERNS, Test, Transfer

_OPERATIONS: Final = {
    Transfer.SEND: Operation.SEND,
    Transfer.WRITE: Operation.RDMA_WRITE_WITH_IMMEDIATE,
    Transfer.READ: Operation.RDMA_READ,
    Transfer.ATOMIC: Operation.FETCH_AND_ADD,
    Transfer.UD: Operation.SEND_WITH_IMMEDIATE,
}
"""Operation of a message. Writes in bandwidth tests have no immediate data, so the peer is not notified."""

_LOST_SECONDS: Final = 0.1
_SLICE: Final = 10_000_000


def asking(link: MeasuredLink, test: Test) -> Activity:
    """Return the measuring role of a test. After C{start} its C{done} fires with the measurement."""
    role: type[Activity] = Source
    if test.measure is Measure.LATENCY:
        role = Probe if test.transfer.isOneSided else Volley
    return role(link, test)


def answering(link: MeasuredLink, test: Test) -> Activity:
    """Return the answering role of a test, which runs from C{start} to C{conclude} or C{stop}."""
    role: type[Activity] = Answer
    if test.measure is Measure.BIDIRECTIONAL:
        role = Source
    elif test.measure is Measure.LATENCY and not test.transfer.isOneSided:
        role = Echo
    return role(link, test)


class _Asking(Activity):
    """Latency of messages that are sent one at a time."""

    def __init__(self, link: MeasuredLink, test: Test) -> None:
        super().__init__(link, test)
        self.requests = RepeatedRequests(link, test, _OPERATIONS[test.transfer])
        self.index = -1
        self.sending = 0
        self.isAnswered = True
        self._last = test.warmup + test.iterations if test.iterations else -1
        self._posted = self._first = 0
        self._isEnded = False

    def begin(self) -> None:
        self.watch()
        self.proceed()

    def end(self) -> None:
        """Finish after the outstanding message."""
        self._isEnded = True
        self.proceed()

    def send(self) -> None:
        """Send the next message."""
        self.index += 1
        self.sending += 1
        self.isAnswered = False
        request = self.requests.at(self.index)
        self._posted = self.link.now()
        if self.index == self.test.warmup:
            self._first = self._posted
        self.link.queuePair.postSend((request,))

    def answered(self, now: int, share: int) -> None:
        """Record the answer to the outstanding message; its latency is the elapsed time over C{share}."""
        self.isAnswered = True
        self.messages += 1
        if self.index >= self.test.warmup:
            measurement = self.measurement
            measurement.samples.add((now - self._posted) // share)
            measurement.messages += 1
            measurement.nanoseconds = now - self._first

    def proceed(self) -> None:
        """Send the next message or finish, if the last one was answered."""
        if not self.isAnswered or self.isFinished:
            return
        if self._isEnded or self.index + 1 == self._last:
            if not self.sending:
                self.finish()
        elif self.sending < self.link.settings.depth:
            self.send()


class Volley(_Asking):
    """Latency of messages that the peer echoes."""

    def send(self) -> None:
        """Send the next message; a datagram is not retransmitted, so a timer detects its loss."""
        super().send()
        if self.test.transfer is Transfer.UD and "lost" not in self.calls:
            self.later("lost", _LOST_SECONDS, self._giveUp, self.index)

    def arrived(self, batch: Sequence[Completion]) -> None:
        now = self.link.now()
        for completion in batch:
            if self.test.transfer is not Transfer.UD or completion.immediate == self.index & 0xFFFFFFFF:
                if not self.isAnswered:
                    self.answered(now, 2)
        super().arrived(batch)
        self.proceed()

    def sendsCompleted(self, batch: Sequence[Completion]) -> None:
        self.sending -= len(batch)
        self.proceed()

    def _giveUp(self, index: int) -> None:
        """Count the outstanding datagram as lost if it was not answered in time, and send the next one."""
        del self.calls["lost"]
        if index == self.index and not self.isAnswered:
            self.measurement.lost += index >= self.test.warmup
            self.isAnswered = True
            self.proceed()
        elif not self.isFinished:
            self.later("lost", _LOST_SECONDS, self._giveUp, self.index)


class Probe(_Asking):
    """Latency of reads and atomics, which complete without the peer's program."""

    def sendsCompleted(self, batch: Sequence[Completion]) -> None:
        self.answered(self.link.now(), 1)
        self.sending -= len(batch)
        examineResults(self, batch)
        self.proceed()


class Source(Activity):
    """Bandwidth of requests, of which as many as C{depth} allows are outstanding."""

    def __init__(self, link: MeasuredLink, test: Test) -> None:
        super().__init__(link, test)
        isSilent = test.transfer is Transfer.WRITE
        self._requests = RepeatedRequests(
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
        self.watch()
        self._post(self._depth)
        self._startMeasured()

    def end(self) -> None:
        """Post no more requests, and finish when the outstanding ones have completed."""
        self._left = 0
        self._isWarm = True
        self._startMeasured()

    def sendsCompleted(self, batch: Sequence[Completion]) -> None:
        count = len(batch)
        self._outstanding -= count
        self.messages += count
        examineResults(self, batch)  # before posting the next ones, which overwrite the results
        if self._left:
            self._post(count)
        if self._isCounting:
            self._count(count)
        if not self._outstanding:
            self._startMeasured()

    def settle(self) -> None:
        measurement = self.measurement
        measurement.peak = measurement.bandwidth
        if self._slices >= 3:
            measurement.peak = max(self._best * self.test.size, measurement.peak)

    def _startMeasured(self) -> None:
        """When no request is outstanding, begin the measured messages, or finish."""
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
    """Passive role: the peer sends, writes and reads, and received messages are counted."""

    def begin(self) -> None:
        """Finish at once, as this role sends nothing."""
        self.finish()


class Echo(Answer):
    """Role that answers each received message with a message."""

    def __init__(self, link: MeasuredLink, test: Test) -> None:
        super().__init__(link, test)
        self._requests = RepeatedRequests(link, test, _OPERATIONS[test.transfer])
        self._isDatagram = test.transfer is Transfer.UD
        self._free = link.settings.depth
        self._next = 0
        self._owed = 0

    def arrived(self, batch: Sequence[Completion]) -> None:
        """Answer the messages before they are verified."""
        if self._isDatagram:
            for completion in batch:
                self._send(completion.immediate or 0)  # dropped if the queue is full, as datagrams may be
        else:
            self._owed += len(batch)
            self._settle()
        super().arrived(batch)

    def sendsCompleted(self, batch: Sequence[Completion]) -> None:
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
    """Verify the results of reads and atomics, if the test requires it."""
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
