"""
What the roles of a test have in common: requests made once, arrivals counted, an end in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from twisted.internet.defer import Deferred, fail
from twisted.internet.interfaces import IDelayedCall

from txrdma.error import DeviceUnavailable
from txrdma.iba.verbs import Completion, CompletionOpcode, Operation, SendRequest
from txrdma.pingpong.link import Link, QKEY
from txrdma.pingpong.measurement import Measurement
from txrdma.pingpong.plan import Measure, PATTERNS, Test, Transfer

STALL_SECONDS: Final = 10.0
_QUIET_SECONDS: Final = 0.05


class Requests:
    """The requests of a test: made once, posted again and again."""

    def __init__(self, link: Link, test: Test, operation: Operation) -> None:
        self._isDatagram = test.transfer is Transfer.UD
        isEachOther = test.check or self._isDatagram or test.transfer is Transfer.ATOMIC
        self._count = PATTERNS if isEachOther else 1
        self._all = [_make(link, test, operation, index) for index in range(self._count)]

    def at(self, index: int) -> SendRequest:
        """Of message C{index}."""
        request = self._all[index % self._count]
        if self._isDatagram:
            request.immediate = index & 0xFFFFFFFF
        return request

    def some(self, first: int, count: int) -> Sequence[SendRequest]:
        """Of up to C{count} messages from that one on."""
        if self._count == 1:
            return self._all * count
        return [self.at(index) for index in range(first, first + min(count, self._count))]


def _make(link: Link, test: Test, operation: Operation, index: int) -> SendRequest:
    layout, peer = link.layout, link.peer
    assert peer is not None  # tests begin when a link is connected
    request = SendRequest(index, operation)
    source = layout.pattern(index)
    if operation is Operation.FETCH_AND_ADD:
        request.segments = (link.segment(layout.result(index), test.size),)
        request.remoteAddress, request.operand = peer.address + layout.counter, 1
    elif operation is Operation.RDMA_READ:
        request.segments = (link.segment(layout.slot(index), test.size),)
        request.remoteAddress = peer.address + source
    else:
        if test.size <= min(test.inline, link.queuePair.capacity.maxInline):
            request.inline = (link.memory.view[source : source + test.size],)
        else:
            request.segments = (link.segment(source, test.size),)
        request.remoteAddress = peer.address + layout.slot(index)
    request.rkey = peer.rkey
    if test.transfer is Transfer.UD:
        request.address, request.remoteQPN, request.remoteQKey = link.way, peer.qpn, QKEY
    return request


class Activity:
    """
    What one end of a link does during one test.

    It counts what arrives as soon as it is made, and sends from C{start} on.

    @ivar done: fires with the end's own L{Measurement} when it has done its part; fails with what went wrong.
        It can be cancelled.
    @ivar messages: how many of ours have ended, warming included; C{received}: how many of the peer's came.
    @ivar written: how many the peer says it has sent, from C{conclude} on.
    """

    def __init__(self, link: Link, test: Test, stallSeconds: float = STALL_SECONDS) -> None:
        self.link = link
        self.test = test
        self.messages = self.received = self.written = 0
        self.measurement = Measurement(test)
        self.done: Deferred[Measurement] = Deferred(lambda _: self.stop())
        self.isFinished = False
        self._stallSeconds = stallSeconds
        self.calls: dict[str, IDelayedCall] = {}
        self._expected: int | None = None
        self._concluded: Deferred[Measurement] | None = None
        link.taker = self

    # For those who use it.

    def start(self) -> None:
        """Do it from now on."""
        link = self.link
        self.measurement.route = link.route
        if link.error is not None:
            self.failed(link.error)
            return
        if self.test.seconds:
            self.later("end", self.test.seconds, self.end)
        try:
            self.begin()
        except Exception as error:
            link.fail(error)

    def interrupt(self) -> None:
        """Begin nothing new: what there is counts, but is marked as being less than was wanted."""
        if not self.isFinished:
            self.measurement.interrupted = True
            self.end()

    def conclude(self, messages: int) -> Deferred[Measurement]:
        """
        The peer has sent us so many; wait until they are here, or can't come any more, and for our own part.

        @return: fires with our own measurement, and what was wrong with what has come.
        """
        if self.link.error is not None:
            return fail(self.link.error)
        self.written = messages
        isSilent = self.test.transfer is Transfer.WRITE and self.test.measure is not Measure.LATENCY
        self._expected = 0 if isSilent or self.test.transfer.isOneSided else messages
        self._concluded = Deferred(lambda _: self.stop())
        concluded = self._concluded
        if self.test.transfer is Transfer.UD:
            self._look(-1)
        self._watch(-1)
        self._concludeNow()
        return concluded

    def stop(self) -> None:
        """Take no part any more in what the link does."""
        self.isFinished = True
        if self.link.taker is self:
            self.link.taker = None
        self._concluded = None
        self._cancel()

    # For the link.

    def arrived(self, batch: Sequence[Completion]) -> None:
        """Messages of the peer; their receives are posted again after this."""
        if self.test.check:
            for index, completion in enumerate(batch, self.received):
                self._examine(completion, index)
        self.received += len(batch)
        if self._expected is not None:
            self._concludeNow()

    def departed(self, batch: Sequence[Completion]) -> None:
        """Requests of ours have ended well."""

    def failed(self, error: Exception) -> None:
        """The link can't go on."""
        wasFinished, concluded = self.isFinished, self._concluded
        self.settle()
        self.stop()
        if not wasFinished:
            self.done.errback(error)
        if concluded is not None:
            concluded.errback(error)

    # For roles.

    def begin(self) -> None:
        """Post the first requests."""

    def end(self) -> None:
        """The time is over: begin nothing new."""

    def finish(self) -> None:
        """Our own part is done; what arrives is counted still."""
        if not self.isFinished:
            self.settle()
            self.isFinished = True
            self._cancel()
            self.done.callback(self.measurement)
            self._concludeNow()

    def settle(self) -> None:
        """Nothing more will be measured."""

    def examineAll(self) -> None:
        """All has come: look at what nobody has told us of."""

    def watch(self) -> None:
        """Fail when nothing ends for long."""
        self._watch(-1)

    def _examine(self, completion: Completion, index: int) -> None:
        link, test = self.link, self.test
        if test.transfer is Transfer.UD:
            index = completion.immediate or 0
        if completion.opcode == CompletionOpcode.RECEIVE_RDMA_WITH_IMMEDIATE:
            isRight = link.isRight(index, link.layout.slot(index), test.size)
        else:
            length = completion.length - link.layout.headroom
            isRight = length == test.size and link.isRight(
                index, link.layout.slotAt(completion.identifier), length
            )
        self.measurement.wrong += not isRight

    def _concludeNow(self) -> None:
        if self._concluded is None or self._expected is None or not self.isFinished:
            return
        if self.received >= self._expected:
            self.link.taker = None
            concluded, self._concluded = self._concluded, None
            self._cancel()
            self.examineAll()
            concluded.callback(self.measurement)

    def _look(self, seen: int) -> None:
        """Datagrams get lost: when none comes for a while, none will."""
        if seen == self.received:
            self._expected = self.received
            self._concludeNow()
        else:
            self.later("quiet", _QUIET_SECONDS, self._look, self.received)

    def _watch(self, seen: int) -> None:
        now = self.messages + self.received
        if seen == now:
            text = f"nothing was received from the peer for {self._stallSeconds:g} seconds"
            self.link.fail(DeviceUnavailable(text))
        else:
            self.later("watch", self._stallSeconds, self._watch, now)

    def later(self, name: str, seconds: float, call: Callable[..., None], *args: object) -> None:
        """Call that then, unless it is over before; C{calls} has it by that name."""
        self.calls[name] = self.link.reactor.callLater(seconds, call, *args)

    def _cancel(self) -> None:
        calls, self.calls = self.calls, {}
        for call in calls.values():
            if call.active():
                call.cancel()
