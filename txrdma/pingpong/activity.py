"""Common parts of the roles of a test: reusable requests, counts of received messages, stall detection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from twisted.internet.defer import Deferred, fail
from twisted.internet.interfaces import IDelayedCall

from txrdma.error import DeviceUnavailable
from txrdma.iba.verbs import Completion, CompletionOpcode, Operation, SendRequest
from txrdma.kit.delayedcalls import cancelCall
from txrdma.pingpong.link import LinkUser, MeasuredLink, QKEY
from txrdma.pingpong.measurement import Measurement
from txrdma.pingpong.plan import Measure, PATTERNS, Test, Transfer

_QUIET_SECONDS: Final = 0.05


class RepeatedRequests:
    """Send requests of a test, which are built once and posted repeatedly."""

    def __init__(self, link: MeasuredLink, test: Test, operation: Operation) -> None:
        self._isDatagram = test.transfer is Transfer.UD
        isEachOther = test.check or self._isDatagram or test.transfer is Transfer.ATOMIC
        self._count = PATTERNS if isEachOther else 1
        self._all = [_make(link, test, operation, index) for index in range(self._count)]

    def at(self, index: int) -> SendRequest:
        """Return the request of message C{index}."""
        request = self._all[index % self._count]
        if self._isDatagram:
            request.immediate = index & 0xFFFFFFFF
        return request

    def some(self, first: int, count: int) -> Sequence[SendRequest]:
        """Return the requests of up to C{count} messages, beginning with message C{first}."""
        if self._count == 1:
            return self._all * count
        return [self.at(index) for index in range(first, first + min(count, self._count))]


def _make(link: MeasuredLink, test: Test, operation: Operation, index: int) -> SendRequest:
    layout, peer = link.layout, link.peer
    assert peer is not None  # tests begin after the link is connected
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
        request.address, request.remoteQPN, request.remoteQKey = link.addressHandle, peer.qpn, QKEY
    return request


class Activity(LinkUser):
    """
    Role of one end of a link during one test.

    It counts received messages from its creation on, and sends after L{start}.

    @ivar done: fires with the local L{Measurement} when this end has completed its part, or fails. Cancelling
        it stops the activity.
    @ivar messages: number of completed local messages, including warm-up.
    @ivar received: number of messages received from the peer.
    @ivar written: number of messages that the peer reports to have sent; valid after L{conclude}.
    """

    def __init__(self, link: MeasuredLink, test: Test) -> None:
        self.link = link
        self.test = test
        self.messages = self.received = self.written = 0
        self.measurement = Measurement(test)
        self.done: Deferred[Measurement] = Deferred(lambda _: self.stop())
        self.isFinished = False
        self.calls: dict[str, IDelayedCall] = {}
        self._expected: int | None = None
        self._concluded: Deferred[Measurement] | None = None
        link.user = self

    # Interface for users.

    def start(self) -> None:
        """Begin the test at this end."""
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
        """End the test early; its measurement is marked as interrupted."""
        if not self.isFinished:
            self.measurement.interrupted = True
            self.end()

    def conclude(self, messages: int) -> Deferred[Measurement]:
        """
        Wait until this end has completed its part, and the peer's messages have arrived or are lost.

        @param messages: number of messages that the peer has sent.
        @return: fires with the local measurement, including the number of wrong messages.
        """
        if self.link.error is not None:
            return fail(self.link.error)
        self.written = messages
        isSilent = self.test.transfer is Transfer.WRITE and self.test.measure is not Measure.LATENCY
        self._expected = 0 if isSilent or self.test.transfer.isOneSided else messages
        self._concluded = Deferred(lambda _: self.stop())
        concluded = self._concluded
        if self.test.transfer is Transfer.UD:
            self._checkQuiet(-1)
        self._watch(-1)
        self._concludeNow()
        return concluded

    def stop(self) -> None:
        """Stop handling the link's completions."""
        self.isFinished = True
        if self.link.user is self:
            self.link.user = None
        self._concluded = None
        self._cancel()

    # Callbacks of the link.

    def arrived(self, batch: Sequence[Completion]) -> None:
        if self.test.check:
            for index, completion in enumerate(batch, self.received):
                self._examine(completion, index)
        self.received += len(batch)
        if self._expected is not None:
            self._concludeNow()

    def failed(self, error: Exception) -> None:
        wasFinished, concluded = self.isFinished, self._concluded
        self.settle()
        self.stop()
        if not wasFinished:
            self.done.errback(error)
        if concluded is not None:
            concluded.errback(error)

    # Hooks of roles.

    def begin(self) -> None:
        """Post the first requests of the test."""

    def end(self) -> None:
        """Send no new messages, because the test's time has elapsed or it was interrupted."""

    def finish(self) -> None:
        """Complete the local part of the test; received messages are still counted."""
        if not self.isFinished:
            self.settle()
            self.isFinished = True
            self._cancel()
            self.done.callback(self.measurement)
            self._concludeNow()

    def settle(self) -> None:
        """Compute the final values of the measurement."""

    def watch(self) -> None:
        """Fail the link if no message completes or arrives for the C{stallSeconds} of its side."""
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

    def _examineWritten(self) -> None:
        """Verify the last message in each slot that the peer has written without immediate data."""
        link, test, count = self.link, self.test, self.written
        if test.check and test.transfer is Transfer.WRITE and test.measure is not Measure.LATENCY:
            for index in range(max(0, count - link.layout.slots), count):
                where = link.layout.slot(index)
                self.measurement.wrong += not link.isRight(index, where, test.size)

    def _concludeNow(self) -> None:
        if self._concluded is None or self._expected is None or not self.isFinished:
            return
        if self.received >= self._expected:
            self.link.user = None
            concluded, self._concluded = self._concluded, None
            self._cancel()
            self._examineWritten()
            concluded.callback(self.measurement)

    def _checkQuiet(self, seen: int) -> None:
        """Conclude when no datagram has arrived for C{_QUIET_SECONDS}; the missing ones are lost."""
        if seen == self.received:
            self._expected = self.received
            self._concludeNow()
        else:
            self.later("quiet", _QUIET_SECONDS, self._checkQuiet, self.received)

    def _watch(self, seen: int) -> None:
        now, seconds = self.messages + self.received, self.link.side.stallSeconds
        if seen == now:
            text = f"no message was received or completed for {seconds:g} seconds"
            self.link.fail(DeviceUnavailable(text))
        else:
            self.later("watch", seconds, self._watch, now)

    def later(self, name: str, seconds: float, call: Callable[..., None], *args: object) -> None:
        """Call a function after a delay, unless the test ends earlier; C{calls} has it by name."""
        self.calls[name] = self.link.side.reactor.callLater(seconds, call, *args)

    def _cancel(self) -> None:
        calls, self.calls = self.calls, {}
        for call in calls.values():
            cancelCall(call)
