"""
Completion channels and completion queues of libibverbs.

Follows InfiniBand Architecture vol. 1, 10.2.5 and 11.4.2. pyverbs accepts an event only for the expected
queue, so every queue has its own channel, and one epoll descriptor covers all of them.
"""

from __future__ import annotations

import os
import select
import socket
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Final, Protocol

from zope.interface import implementer

from twisted.logger import Logger

from txrdma.error import InvalidRequest, RDMAError, ResourceExhausted
from txrdma.iba.types import LID, QPN
from txrdma.iba.verbs import Completion, CompletionOpcode, QPKind, Status
from txrdma.interfaces import ICompletionChannel, ICompletionQueue
from txrdma.kit.logs import advised, errorText
from txrdma.verbs.pyverbs.bindings import Pyverbs, translated
from txrdma.verbs.pyverbs.resourcetracker import openChannel, ResourceTracker

_log = Logger()

_BATCH: Final = 64
_HAS_GRH: Final = 1
_HAS_IMMEDIATE: Final = 2

_STATUSES: Final = {status.value: status for status in Status}
_OPCODES: Final = {opcode.value: opcode for opcode in CompletionOpcode}


class QueueMember(Protocol):
    """
    A queue pair, for its completion queues and shared receive queues:
    L{PyverbsQueuePair<txrdma.verbs.pyverbs.queuepair.PyverbsQueuePair>}, which documents the methods.
    """

    kind: QPKind
    number: QPN

    def ended(self, token: int, status: Status) -> tuple[int, CompletionOpcode] | None: ...
    def queueClosed(self) -> None: ...
    def overrun(self) -> None: ...
    def drainReceives(self) -> None: ...


@implementer(ICompletionChannel)
class PyverbsCompletionChannel:
    """
    A completion channel: an epoll descriptor over the channels of its queues, and an eventfd for completions
    that this process generates itself.
    """

    def __init__(self, closed: Callable[[PyverbsCompletionChannel], object]) -> None:
        self._onClosed = closed
        with ExitStack() as undo:
            try:
                epoll = undo.enter_context(select.epoll())
                self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
                undo.callback(os.close, self._bell)
                epoll.register(self._bell, select.EPOLLIN)
            except OSError as error:
                raise ResourceExhausted(
                    f"no descriptor for a completion channel: {advised(error)}"
                ) from error
            undo.pop_all()
        self._epoll: select.epoll | None = epoll
        self._queues: dict[int, PyverbsCompletionQueue] = {}
        self._rung: dict[PyverbsCompletionQueue, None] = {}

    def fileno(self) -> int:
        return -1 if self._epoll is None else self._epoll.fileno()

    def takeEvents(self) -> Sequence[ICompletionQueue]:
        if self._epoll is None:
            raise InvalidRequest("the completion channel is closed")
        taken: dict[PyverbsCompletionQueue, None] = {}
        for descriptor, _event in self._epoll.poll(0):
            if descriptor == self._bell:
                os.eventfd_read(self._bell)
                taken.update(self._rung)
                self._rung.clear()
            else:
                queue = self._queues.get(descriptor)
                if queue is not None and queue.takeEvent():
                    taken[queue] = None
        return list(taken)

    def callForLocal(self, call: Callable[[], object] | None) -> None:
        """Do nothing: nearly all events are the adapter's."""

    def close(self) -> None:
        epoll, self._epoll = self._epoll, None
        if epoll is None:
            return
        self._queues.clear()
        self._rung.clear()
        epoll.close()
        os.close(self._bell)
        self._onClosed(self)

    def join(self, queue: PyverbsCompletionQueue, descriptor: int) -> None:
        """Watch the descriptor of a queue."""
        if self._epoll is None:
            raise InvalidRequest("the completion channel is closed")
        self._epoll.register(descriptor, select.EPOLLIN)
        self._queues[descriptor] = queue

    def leave(self, queue: PyverbsCompletionQueue, descriptor: int, isInherited: bool) -> None:
        """
        Stop watching a completion queue, before its descriptor is closed.

        @param isInherited: whether this is a forked process: the epoll object still watches for its parent.
        """
        isKnown = self._queues.pop(descriptor, None) is not None
        if isKnown and self._epoll is not None and not isInherited:
            self._epoll.unregister(descriptor)
        if queue.closed:
            self._rung.pop(queue, None)

    def ring(self, queue: PyverbsCompletionQueue) -> None:
        """Raise an event for a completion that was generated here, not by the device."""
        if self._epoll is not None:
            self._rung[queue] = None
            os.eventfd_write(self._bell, 1)


@implementer(ICompletionQueue)
class PyverbsCompletionQueue:
    """
    A completion queue of libibverbs, which holds finished work requests until they are polled.

    Besides those of the device it holds locally generated completions, for queue pairs that the device has
    destroyed, or that accept no more.
    """

    isLive = False

    def __init__(
        self,
        verbs: Pyverbs,
        context: Any,
        depth: int,
        channel: PyverbsCompletionChannel,
        tracker: ResourceTracker,
        closed: Callable[[PyverbsCompletionQueue], object],
    ) -> None:
        self._verbs = verbs
        self._channel = channel
        self._tracker = tracker
        self._onClosed = closed
        self._localCompletions: deque[Completion] = deque()
        self._members: dict[int, QueueMember] = {}
        self._armed = False
        self.closed = False
        try:
            self._bell, self._descriptor = openChannel(verbs, context)
        except verbs.Error as error:
            raise translated(error, "no completion channel") from error
        try:
            # The third argument is found again in asynchronous events: see txrdma.verbs.pyverbs.events.
            self.raw: Any = verbs.CQ(context, depth, self, self._bell, 0)
        except verbs.Error as error:
            tracker.close(self._bell)
            raise translated(error, f"no completion queue of {depth}") from error
        self.depth: int = self.raw.cqe
        try:
            channel.join(self, self._descriptor)
        except OSError as error:
            tracker.close(self.raw)
            tracker.close(self._bell)
            raise ResourceExhausted(f"the completion queue can't be watched: {error}") from error

    def __repr__(self) -> str:
        return f"<PyverbsCompletionQueue of {self.depth}{' closed' if self.closed else ''}>"

    # For readers.

    def arm(self, solicitedOnly: bool = False) -> None:
        if self.closed:
            return
        self._armed = True
        if self.raw is None:
            return  # the queue was destroyed by the device
        try:
            self.raw.req_notify(solicitedOnly)
        except self._verbs.Error as error:
            raise translated(error, "the completion queue can't be armed") from error

    def takeEvent(self) -> bool:
        """Take the queue's completion event; return whether there was one."""
        try:
            self._bell.get_cq_event(self.raw)
        except self._verbs.Error:
            return False  # EAGAIN: a spurious wakeup
        self.raw.ack_events(1)
        armed, self._armed = self._armed, False
        return armed

    def disarm(self) -> None:
        """Do nothing: an adapter raises the event in any case."""

    def poll(self, limit: int) -> Sequence[Completion]:
        completions = self._localCompletions
        if not completions:
            return self._take(limit)
        return [completions.popleft() for _ in range(min(limit, len(completions)))]

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        for member in tuple(self._members.values()):
            member.queueClosed()
        self._members.clear()
        self.release()
        self._localCompletions.clear()
        self._onClosed(self)

    # For queue pairs and the device.

    def join(self, member: QueueMember) -> None:
        self._members[member.number] = member

    def leave(self, member: QueueMember) -> None:
        """Remove a queue pair, with its completions."""
        if self._members.get(member.number) is member:  # another one may have got the number
            del self._members[member.number]
            self._localCompletions = deque(c for c in self._localCompletions if c.qpn != member.number)

    def drain(self) -> None:
        """Move all completions from the device's queue to the local one, but not the parent process's."""
        if self.raw is None or self._tracker.isInherited:
            return
        completions, self._localCompletions = self._localCompletions, deque()
        try:
            while batch := self._take(1 << 30):
                completions.extend(batch)
        except RDMAError as error:
            _log.warn("{queue!r} is lost: {error}", queue=self, error=errorText(error))
        completions.extend(self._localCompletions)  # own completions follow
        self._localCompletions = completions

    def forget(self, member: QueueMember) -> None:
        """Drop the queued completions of a queue pair."""
        self.drain()
        self._localCompletions = deque(c for c in self._localCompletions if c.qpn != member.number)

    def push(self, completion: Completion) -> None:
        """Add a completion that reports an error and is generated here; it counts as solicited."""
        if self.closed:
            return
        self._localCompletions.append(completion)
        if self._armed:
            self._armed = False
            self._channel.ring(self)

    def overrun(self) -> None:
        """The device has lost completions (IBA 10.2.5.3)."""
        for member in tuple(self._members.values()):
            member.overrun()

    def release(self) -> None:
        """Release the object of the device; completions stay, and readers are woken."""
        if self.raw is None:
            return
        self.drain()
        raw, self.raw = self.raw, None
        self._channel.leave(self, self._descriptor, self._tracker.isInherited)
        if self._localCompletions and self._armed and not self.closed:
            self._armed = False
            self._channel.ring(self)
        self._tracker.close(raw)
        self._tracker.close(self._bell)

    def _take(self, limit: int) -> list[Completion]:
        """Take up to this many completions from the device."""
        if self.raw is None:
            return []
        taken: list[Completion] = []
        poll = self.raw.poll
        members = self._members
        while len(taken) < limit:
            wanted = min(limit - len(taken), _BATCH)
            try:
                count, found = poll(wanted)
            except self._verbs.Error as error:
                # pyverbs has dropped what it had taken in this call.
                self.overrun()
                if taken:
                    break  # these would be lost, too
                raise translated(error, "the completion queue can't be polled") from error
            for wc in found:
                number = wc.qp_num
                member = members.get(number)
                if member is None:
                    continue  # its queue pair is closed
                status = _STATUSES.get(wc.status, Status.GENERAL_ERR)
                ended = member.ended(wc.wr_id, status)
                if ended is None:
                    continue
                identifier, opcode = ended
                if status or opcode < CompletionOpcode.RECEIVE:
                    taken.append(Completion(identifier, status, opcode, member.number))
                    continue
                flags = wc.wc_flags
                isUD = member.kind is QPKind.UD
                taken.append(
                    Completion(
                        identifier,
                        status,
                        _OPCODES.get(wc.opcode, opcode),
                        member.number,
                        wc.byte_len,
                        socket.ntohl(wc.imm_data) if flags & _HAS_IMMEDIATE else None,
                        QPN(wc.src_qp),
                        isUD and bool(flags & _HAS_GRH),  # rxe sets it for others, too
                        LID(wc.slid if isUD else 0),
                        wc.sl if isUD else 0,
                    )
                )
            if count < wanted:
                break
        return taken
