"""
Groups of processes: collective operations, as in MPI, over connections between all members.

All members call the same operations in the same order, with data of the same type and length. A member may
call the next operation before the last one has completed; it begins afterwards.

Theory of operation. Each operation has a schedule, a generator that L{txrdma.btl.groups._algorithms} or
L{txrdma.btl.groups._sharedalgorithms} makes. It yields a C{Step}, the messages that this member exchanges
next, or a C{SlotWait} for members that have to write into shared memory, and returns the result. C{_advance}
resumes the schedule of the oldest operation when all messages of its step have been received and sent, or the
members have published theirs. Callbacks may start operations and close the group, so C{_advance} is not
nested, and each operation has a flag that it is over. The first failure, of any member, fails all operations.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from operator import index
from typing import Any, Final, overload, TYPE_CHECKING, TypeVar

from twisted.internet.defer import Deferred, fail, maybeDeferred, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.btl.core.assembly import LONGEST
from txrdma.btl.ends import DeviceSpecs
from txrdma.btl.groups import _algorithms
from txrdma.btl.groups._algorithms import Step
from txrdma.btl.groups._sharedalgorithms import LARGEST_UNIT, Mismatch, SharedSchedule
from txrdma.btl.groups._slots import SlotWait
from txrdma.btl.groups.errors import GroupFailed
from txrdma.btl.groups.joining import JOIN_SECONDS, Joining
from txrdma.btl.groups.members import DATA, Members, WAKE
from txrdma.btl.groups.reductions import alike, Elements, Operation
from txrdma.btl.groups.sharing import GroupMemory, POLL_SECONDS, shareMemory
from txrdma.btl.groups.terms import GroupTerms
from txrdma.btl.transport import BTLMessageTransport
from txrdma.error import InvalidRequest
from txrdma.iba.verbs import Buffer
from txrdma.messages.memory import octets

if TYPE_CHECKING:
    from txrdma.kit.buffers import AnyBuffer, WritableBuffer

_log = Logger()

_BufferT = TypeVar("_BufferT", bound="AnyBuffer")

COPIED: Final = 16 << 10
"""
Bytes up to which messages of an operation are copied, so that it continues before they have arrived.
"""


class _Running:
    """
    An operation that has been called.

    @ivar make: makes the result from what the schedule returns.
    @ivar isComplete: whether its data is no longer needed.
    @ivar isOver: whether its Deferred has fired.
    """

    __slots__ = ("_isBegun", "_schedule", "isComplete", "isOver", "make", "name", "outcome")

    def __init__(self, name: str, schedule: SharedSchedule, make: Callable[[Any], Any]) -> None:
        self.name, self._schedule, self.make = name, schedule, make
        self.isComplete = self.isOver = self._isBegun = False
        self.outcome: Deferred[Any]

    def advance(self, received: list[Any]) -> Step | SlotWait:
        """Return the first or next step."""
        if self._isBegun:
            return self._schedule.send(received)
        self._isBegun = True
        return next(self._schedule)

    def delay(self, value: Any) -> None:
        """Let the schedule, which has returned a value, return it once more."""
        self.isComplete = True
        self._schedule, self._isBegun = _returned(value), False


def _returned(value: Any) -> SharedSchedule:
    yield from ()
    return value


class Group:
    """
    A group of processes, of which this is one member.

    If a member ends without closing the group, or an operation fails, all unfinished and later operations of
    all members fail with L{GroupFailed}. Cancelling the Deferred of an operation fails the group, because the
    other members wait for this one.

    Buffers are any objects with the buffer protocol that are contiguous in C order. Results have the type of
    the data: NumPy's arrays and C{array}; for other buffers they are bytes, or a memoryview if items are
    longer.

    @ivar rank: number of this member, from 0 to C{size} - 1.
    @ivar size: number of members.
    """

    def __init__(self, members: Members, leave: Callable[[], Deferred[None]]) -> None:
        """
        @param members: the connections to all other members.
        @param leave: closes them; fires when they have ended.
        """
        self.rank, self.size = members.rank, members.size
        self._members, self._leave = members, leave
        self._operations: deque[_Running] = deque()
        self._receives: set[Deferred[Any]] = set()
        self._values: list[Any] = []  # messages received in the current step
        self._missing = 0  # messages of the current step that have not been received or sent
        self._isAdvancing = self._isClosed = False
        self._memory: GroupMemory | None = None
        self._wait: SlotWait | None = None  # members that the current step waits for, in shared memory
        members.onFailure = self._failed

    def __repr__(self) -> str:
        return f"<Group rank={self.rank} size={self.size}>"

    @classmethod
    def join(
        cls,
        reactor: Any,
        terms: GroupTerms | None = None,
        device: DeviceSpecs = None,
        interface: str = "127.0.0.1",
        timeout: float = JOIN_SECONDS,
        pollSeconds: float = POLL_SECONDS,
    ) -> Deferred[Group]:
        """
        Join the group that C{txrdma btl-run} has started.

        @param terms: None: the terms in the environment; without any, the group has one member.
        @param device: see L{DeviceSpecs}.
        @param interface: the IPv4 address at which other members reach this one.
        @param timeout: seconds in which all members must join.
        @param pollSeconds: seconds for which a member in shared memory polls before it sleeps. They should be
            longer than it takes to continue after a sleep, else all members may sleep in each operation.
        @return: fires with the group; fails with L{GroupFailed}. It can be cancelled.
        @raise InvalidRequest: the environment is incomplete or invalid, or the timeout is not above 0.
        """
        if not timeout > 0:
            raise InvalidRequest(f"a timeout is a number of seconds above 0, not {timeout}")
        found = terms or GroupTerms.fromEnvironment(os.environ)
        if found is None:
            return succeed(cls(Members(0, 1), lambda: succeed(None)))
        joining = Joining(reactor, found, device, interface)
        joined = joining.join().addCallback(lambda _: cls(joining.members, joining.leave))
        joined.addCallback(lambda group: Deferred.fromCoroutine(group._share(reactor, pollSeconds)))
        return joined.addTimeout(timeout, reactor, joining.timedOut)

    async def _share(self, reactor: Any, pollSeconds: float) -> Group:
        """Share memory with the other members, if there are any and it is possible; return the group."""
        if self.size == 1:
            return self
        try:
            least = partial(self.allreduce, operation="min")
            memory = await shareMemory(reactor, self.rank, self.size, self.broadcast, least)
        except BaseException:
            self.close()
            raise
        if memory is not None:
            memory.pollSeconds = pollSeconds
            self._useMemory(memory)
        return self

    def _useMemory(self, memory: GroupMemory) -> None:
        """Exchange data in memory that all members share: all of them have to call this at the same time."""
        self._memory = memory
        self._members.onWake = self._advance

    def transport(self, rank: int) -> BTLMessageTransport:
        """
        Return the connection to another member, for messages with tags of the application.

        The three largest tags belong to the group. If the group fails, connections stay until L{close}.

        @raise InvalidRequest: there is no other member of this rank.
        """
        if rank not in self._members.transports:
            raise InvalidRequest(f"rank {rank} is not another member of a group of {self.size}")
        return self._members.transports[rank]

    def close(self) -> Deferred[None]:
        """
        Leave the group: unfinished operations fail, and connections are closed when everything has arrived.

        @return: fires when all connections have ended.
        """
        if not self._isClosed:
            self._isClosed = True
            self._closing: Deferred[None] = Deferred()  # before callbacks, which may call this method
            with _log.failuresHandled("{group}: an operation cannot be ended", group=self):
                self._abandon(GroupFailed(f"rank {self.rank} has left the group", self.rank))
            maybeDeferred(self._leave).addErrback(self._notClosed).chainDeferred(self._closing)
            memory, self._memory = self._memory, None
            if memory is not None:
                memory.close()
        closed: Deferred[None] = Deferred()

        def done(_: object) -> None:
            if not closed.called:
                closed.callback(None)

        self._closing.addBoth(done)
        return closed

    def _notClosed(self, failure: Failure) -> None:
        _log.failure("{group}: its connections cannot be closed", failure, group=self)

    # Operations

    def barrier(self) -> Deferred[None]:
        """Wait until all members have called this."""
        return self._start("barrier", self._schedule("barrier"), lambda _: None)

    def broadcast(self, buffer: _BufferT, root: int = 0) -> Deferred[_BufferT]:
        """
        Copy the root's buffer to the buffers of all others.

        @param buffer: of the same length at all members; writable, except at the root. It is in use until the
            Deferred fires.
        @return: fires with the buffer.
        @raise InvalidRequest: the buffer or the root is invalid.
        """
        root = self._checked(root)
        view = memoryview(octets(buffer))
        if view.readonly and root != self.rank:
            raise InvalidRequest("a read-only buffer cannot receive a broadcast")
        return self._start("broadcast", self._schedule("broadcast", root, view), lambda _: buffer)

    def reduce(self, data: AnyBuffer, operation: Operation = "sum", root: int = 0) -> Deferred[Any]:
        """
        Combine the data of all members, item by item.

        @param operation: C{sum}, C{min}, C{max}, C{prod}, or a function: see L{Operation}.
        @return: fires with the result at the root, and None elsewhere.
        @raise InvalidRequest: the data, the operation or the root is invalid.
        """
        root = self._checked(root)
        found = Elements(data, operation)
        memory = self._memory
        if memory is not None and found.unit <= LARGEST_UNIT:
            into = memoryview(bytearray(len(found.bytes))) if root == self.rank else None
            shared = memory.algorithms.reduce(root, found, into)
            return self._start(
                "reduce", shared, lambda _: None if into is None else found.result(into), found.copy
            )
        found.copy()
        schedule = _algorithms.reduce(self.rank, self.size, root, found.bytes, found.unit, found.combine)
        return self._start("reduce", schedule, lambda _: found.result() if root == self.rank else None)

    @overload
    def allreduce(
        self, data: AnyBuffer, operation: Operation = "sum", into: None = None
    ) -> Deferred[Any]: ...  # its type depends on the data's

    @overload
    def allreduce(
        self, data: AnyBuffer, operation: Operation = "sum", *, into: _BufferT
    ) -> Deferred[_BufferT]: ...

    @overload
    def allreduce(self, data: AnyBuffer, operation: Operation, into: _BufferT) -> Deferred[_BufferT]: ...

    def allreduce(
        self, data: AnyBuffer, operation: Operation = "sum", into: WritableBuffer | None = None
    ) -> Deferred[Any]:
        """
        Combine the data of all members, item by item, for all of them. All get the same bits.

        @param operation: C{sum}, C{min}, C{max}, C{prod}, or a function: see L{Operation}.
        @param into: a buffer of the same length for the result, which may be C{data}.
        @return: fires with the result, or with C{into}.
        @raise InvalidRequest: the data or the operation is invalid.
        """
        found = Elements(data, operation)
        length = len(found.bytes)
        target = None if into is None else found.bytes if into is data else memoryview(octets(into))
        if target is not None and (target.readonly or len(target) != length):
            raise InvalidRequest(f"the result has {length} bytes and needs a writable buffer for them")
        memory = self._memory
        if memory is not None and found.unit <= LARGEST_UNIT:
            if target is not None and into is not data and found.overlaps(target):
                found.copy()
            result = memoryview(bytearray(length)) if target is None else target
            shared = memory.algorithms.allreduce(found, result)
            make = (lambda _: found.result(result)) if target is None else (lambda _: into)
            return self._start("allreduce", shared, make, found.copy)
        found.copy()
        schedule = _algorithms.allreduce(self.rank, self.size, found.bytes, found.unit, found.combine)

        def store(_: object) -> Any:
            if target is None:
                return found.result()
            target[:] = found.bytes
            return into

        return self._start("allreduce", schedule, store)

    def gather(self, data: AnyBuffer, root: int = 0) -> Deferred[Any]:
        """
        Collect the data of all members at one of them.

        @param data: of any length, at most 64 MiB. It is in use until the Deferred fires.
        @return: fires at the root with a list of the data, by rank, and with None elsewhere.
        @raise InvalidRequest: the data or the root is invalid.
        """
        root = self._checked(root)
        schedule = self._schedule("gather", root, _item(data))
        return self._start("gather", schedule, lambda found: found and _alikeAll(data, found))

    def allgather(self, data: AnyBuffer) -> Deferred[list[Any]]:
        """
        Collect the data of all members at each of them: see L{gather}.

        @return: fires with a list of the data, by rank.
        @raise InvalidRequest: the data is invalid.
        """
        schedule = self._schedule("alltoall", [_item(data)] * self.size)
        return self._start("allgather", schedule, partial(_alikeAll, data))

    def scatter(self, items: Sequence[AnyBuffer] | None = None, root: int = 0) -> Deferred[bytes]:
        """
        Send each member one of the root's items.

        @param items: one for each member, by rank: a sequence of buffers or an array with as many rows, of
            any length up to 64 MiB; None at all members except the root. They are in use until the Deferred
            fires.
        @return: fires with the bytes of the item.
        @raise InvalidRequest: the root or an item is invalid, or there is another number of items.
        """
        root = self._checked(root)
        found = [] if root != self.rank or items is None else self._perMember(items)
        if root == self.rank and not found:
            raise InvalidRequest("the root of scatter needs items")
        return self._start("scatter", self._schedule("scatter", root, found), bytes)

    def alltoall(self, items: Sequence[AnyBuffer]) -> Deferred[list[Any]]:
        """
        Send each member an item, and receive one from each.

        @param items: one for each member, by rank: a sequence of buffers or an array with as many rows, of
            any length up to 64 MiB. They are in use until the Deferred fires.
        @return: fires with a list of what the members have sent to this one, by rank.
        @raise InvalidRequest: there is another number of items, or one is invalid.
        """
        schedule = self._schedule("alltoall", self._perMember(items))
        return self._start("alltoall", schedule, partial(_alikeAll, items[self.rank]))

    def _perMember(self, items: Sequence[AnyBuffer]) -> list[Buffer]:
        if len(items) != self.size:
            raise InvalidRequest(f"{len(items)} items for {self.size} members")
        return [_item(each) for each in items]

    def _checked(self, root: int) -> int:
        """Return the rank of a root as C{int}: arithmetic with NumPy's integers can overflow."""
        root = index(root)
        if not 0 <= root < self.size:
            raise InvalidRequest(f"rank {root} is not a member of a group of {self.size}")
        return root

    # Execution of schedules

    def _schedule(self, name: str, *arguments: Any) -> SharedSchedule:
        """Return the schedule of an operation: in shared memory, or by messages."""
        if self._memory is not None:
            found: SharedSchedule = getattr(self._memory.algorithms, name)(*arguments)
        else:
            found = getattr(_algorithms, name)(self.rank, self.size, *arguments)
        return found

    def _start(
        self,
        name: str,
        schedule: SharedSchedule,
        make: Callable[[Any], Any],
        suspended: Callable[[], None] = lambda: None,
    ) -> Deferred[Any]:
        """
        Run a schedule after those that were started before; fire with its result, converted by C{make}.

        @param suspended: called if the schedule has not returned before this method returns.
        """
        if self._isClosed:
            return fail(GroupFailed(f"rank {self.rank} has left the group", self.rank))
        if self._members.failure is not None:
            return fail(self._members.failure)
        operation = _Running(name, schedule, make)
        operation.outcome = Deferred(lambda _: self._cancelled(operation))
        self._operations.append(operation)
        try:
            self._advance()
        except BaseException:
            operation.outcome.addErrback(lambda _: None)  # the caller does not get it
            raise
        if not operation.isOver and not operation.isComplete:
            suspended()
        return operation.outcome

    def _advance(self) -> None:
        """Continue the first operation while nothing is missing, and then the next ones."""
        if self._isAdvancing:
            return
        self._isAdvancing = True
        try:
            while self._operations and not self._missing:
                operation = self._operations[0]
                try:
                    if not self._isReady():
                        return
                    step = operation.advance(self._values)
                except StopIteration as end:
                    self._wakeOthers()
                    if not self._operations:
                        return  # the group has failed
                    if self._memory is not None and self._memory.isTurnOver(self._advance, True):
                        operation.delay(end.value)
                        return
                    self._finish(operation, end.value)
                except Mismatch as error:
                    self._members.fail(error.rank, _mismatch(operation, error.rank, str(error)))
                except Exception as error:
                    self._members.fail(self.rank, f"rank {self.rank}: {operation.name} failed: {error!r}")
                else:
                    self._values = []
                    self._wakeOthers()
                    if operation.isOver:
                        continue
                    if isinstance(step, Step):
                        self._begin(operation, step)
                    else:
                        self._wait = step
        except BaseException as error:  # after Ctrl-C, too, the schedule cannot continue
            self._interrupted(Failure())
            if not isinstance(error, Exception):
                raise
        finally:
            self._isAdvancing = False

    def _interrupted(self, failure: Failure) -> None:
        """Fail the group after an exception in a step of an operation, which would never end otherwise."""
        _log.failure("{group}: an operation cannot continue", failure, group=self)
        self._members.fail(self.rank, f"rank {self.rank}: an operation failed: {failure.value!r}")

    def _isReady(self) -> bool:
        """Return whether all members have published the step for which an operation waits."""
        memory, wait = self._memory, self._wait
        if wait is None or memory is None:
            return True
        if not memory.poll(wait):
            self._checkLeft(wait.step, wait.ranks)
            return False
        self._wait = None
        return not memory.isTurnOver(self._advance)

    def _wakeOthers(self) -> None:
        """Wake the members that sleep until this one publishes its step; those that have left never will."""
        if self._memory is None:
            return
        slots = self._memory.slots
        for rank in slots.outgoing():
            self._members.transports[rank].post(WAKE, b"")
        self._checkLeft(slots.step, slots.others)

    def _checkLeft(self, step: int, ranks: Sequence[int]) -> None:
        """Fail if one of these members has left before it has published a step."""
        if self._memory is not None and self._members.left:
            left = [rank for rank in ranks if rank in self._members.left]
            missing = self._memory.slots.missing(step, left)
            if missing is not None:
                self._members.missed(missing)

    def _finish(self, operation: _Running, found: Any) -> None:
        """Report the result of an operation. The callback may run further ones before this returns."""
        self._operations.popleft()
        operation.isOver = True
        try:
            result: Any = operation.make(found)
        except Exception:
            result = Failure()
        self._isAdvancing = self._memory is None
        try:
            operation.outcome.callback(result)
        finally:
            self._isAdvancing = True

    def _begin(self, operation: _Running, step: Step) -> None:
        """Request the messages of a step, and send those of this member."""
        transports = self._members.transports
        self._values = [None] * len(step.receives)
        self._missing = len(step.receives) + len(step.sends)
        for number, (rank, into) in enumerate(step.receives):
            if operation.isOver:
                return  # a member of an earlier one has left
            if into is None:
                receive: Deferred[Any] = transports[rank].receive(DATA)
            else:
                receive = transports[rank].receive(DATA, into)
            self._receives.add(receive)
            receive.addBoth(self._received, receive, operation, rank, number, into)
            receive.addErrback(self._interrupted)
        for rank, data in step.sends:
            if self._members.failure is not None:
                return
            if len(data) <= COPIED:
                transports[rank].post(DATA, bytes(data), partial(self._sentCopy, rank))
                self._missing -= 1
                continue
            try:
                sent = transports[rank].send(DATA, data)
            except InvalidRequest as error:
                self._members.fail(self.rank, f"rank {self.rank}: {operation.name} failed: {error}")
            else:
                sent.addBoth(self._sent, operation, rank).addErrback(self._interrupted)

    def _received(
        self,
        result: Any,
        receive: Deferred[Any],
        operation: _Running,
        rank: int,
        number: int,
        into: memoryview | None,
    ) -> None:
        self._receives.discard(receive)
        if operation.isOver:
            return
        if isinstance(result, Failure):
            if result.check(InvalidRequest):
                self._members.fail(rank, _mismatch(operation, rank, result.getErrorMessage()))
            else:
                self._members.missed(rank)
            return
        if into is None:
            self._values[number] = result
        elif result != len(into):
            text = f"the message has {result} bytes, and the buffer {len(into)}"
            self._members.fail(rank, _mismatch(operation, rank, text))
            return
        self._missing -= 1
        if not self._missing:
            self._advance()

    def _sent(self, result: Failure | None, operation: _Running, rank: int) -> None:
        """Process the arrival or the loss of a long message."""
        if operation.isOver:
            return
        if result is not None:
            self._members.missed(rank)
            return
        self._missing -= 1
        if not self._missing:
            self._advance()

    def _sentCopy(self, rank: int, error: Exception | None) -> None:
        if error is not None:
            self._members.missed(rank)

    def _cancelled(self, operation: _Running) -> None:
        if operation.isOver:
            return  # it is about to fail
        operation.isOver = True
        self._members.fail(self.rank, f"rank {self.rank} has cancelled {operation.name}")

    def _failed(self) -> None:
        """Fail all operations, because the group has failed."""
        assert self._members.failure is not None
        self._abandon(self._members.failure)

    def _abandon(self, error: GroupFailed) -> None:
        """Fail all operations, and withdraw their requests for messages."""
        operations, self._operations = self._operations, deque()
        unfinished = [each for each in operations if not each.isOver]
        for each in unfinished:
            each.isOver = True
        self._values, self._missing, self._wait = [], 0, None
        try:
            for receive in list(self._receives):
                receive.cancel()
            if self._memory is not None:
                self._memory.slots.awake()
        finally:
            for each in unfinished:
                if not each.outcome.called:  # cancelled by a callback of another one
                    each.outcome.errback(error)


def _mismatch(operation: _Running, rank: int, text: str) -> str:
    return f"{operation.name} with rank {rank}: {text}; do all members call it with data of the same length?"


def _item(data: AnyBuffer) -> Buffer:
    found = octets(data)
    if len(found) > LONGEST:
        raise InvalidRequest(f"an item has at most {LONGEST} bytes, not {len(found)}")
    return found


def _alikeAll(data: AnyBuffer, received: Sequence[Buffer]) -> list[Any]:
    return [alike(data, bytearray(each)) for each in received]
