"""Groups of simulated hosts: operations, and failures of members."""

from __future__ import annotations

import gc
import itertools
import mmap
from array import array
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock
from unittest.mock import Mock

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from txrdma.btl.core.assembly import LONGEST
from txrdma.btl.groups import _algorithms
from txrdma.btl.groups._slots import memoryBytes
from txrdma.btl.groups.errors import GroupFailed
from txrdma.btl.groups.group import Group
from txrdma.btl.groups.joining import Joining
from txrdma.btl.groups.members import DATA, FAILED, LONGEST_TEXT, Member, Members, WAKE
from txrdma.btl.groups.sharing import GroupMemory
from txrdma.btl.groups.terms import GroupTerms
from txrdma.error import InvalidRequest, Refused
from txrdma.messages.address import MessageAddress
from txrdma.test.support.btl.hosts import HostsCase
from txrdma.test.support.compiled import skipIfCompiled

SIZE = 3


class GroupCase(HostsCase):
    """Three hosts, each of which is a member of a group."""

    def setUp(self) -> None:
        super().setUp()
        self.hosts.append(self.host("10.0.1.3"))
        self.members = [Members(rank, SIZE) for rank in range(SIZE)]
        for client in range(SIZE):
            for server in range(client):
                self.openPair(client, server)
        self.wait(lambda: all(each.complete.called for each in self.members))
        self.groups = [Group(each, each.close) for each in self.members]

    def openPair(self, client: int, server: int) -> None:
        ends = Member(self.members[client], server), Member(self.members[server], client)
        for opening in self.open(*ends, client, server):
            opening.answer.addErrback(lambda failure: self.fail(str(failure)))

    def together(self, call: Callable[[Group], Deferred[Any]]) -> list[Any]:
        """Call an operation of each member, and return the results."""
        called = [call(each) for each in self.groups]
        return [self.outcome(each) for each in called]

    def assertFails(self, operation: Deferred[Any], rank: int | None, text: str) -> None:
        """Assert that an operation fails because of a member."""
        self.wait(lambda: operation.called)
        error = self.failureResultOf(operation, GroupFailed).value
        self.assertEqual(error.rank, rank)
        self.assertRegex(str(error), text)


class SharedMixin:
    """Runs a case's tests in a group whose members share memory, and whose polls always time out."""

    def setUp(self) -> None:
        super().setUp()  # type: ignore[misc]  # of a GroupCase
        case: Any = self
        memory = mmap.mmap(-1, memoryBytes(SIZE))
        for each in case.groups:
            ticks = itertools.count()
            seconds = partial(lambda ticks: next(ticks) * 1e-3, ticks)
            each._useMemory(GroupMemory(case.world.clock, memory, each.rank, SIZE, seconds))


class OperationTests(GroupCase):
    """Operations of a group in which nothing fails."""

    def test_allreduce(self) -> None:
        """All members get the sum of short and long arrays, also in place."""
        for length in (1, 1000, 50_000):
            data = [array("d", [rank + 1.0]) * length for rank in range(SIZE)]
            expected = array("d", [6.0]) * length
            called = [each.allreduce(data[each.rank]) for each in self.groups]
            self.assertEqual(list(map(self.outcome, called)), [expected] * SIZE)
            called = [each.allreduce(data[each.rank], into=data[each.rank]) for each in self.groups]
            self.assertEqual(list(map(self.outcome, called)), [expected] * SIZE)
            self.assertEqual(data, [expected] * SIZE)

    def test_reduce(self) -> None:
        """The root gets the result of a reduction by a function."""

        def larger(one: Any, other: Any) -> list[int]:
            return [max(pair) for pair in zip(one, other, strict=True)]

        found = self.together(lambda each: each.reduce(array("q", [each.rank, -each.rank]), larger, root=1))
        self.assertEqual(found, [None, array("q", [2, 0]), None])

    def test_broadcast(self) -> None:
        """All members get the root's bytes, of any length."""
        for length in (0, 3, 300_000):
            buffers = [bytearray(length) for _ in range(SIZE)]
            buffers[2][:] = b"x" * length
            found = [each.broadcast(buffers[each.rank], 2) for each in self.groups]
            found = list(map(self.outcome, found))
            self.assertEqual(found, [b"x" * length] * SIZE)
            self.assertIs(found[0], buffers[0])

    def test_otherIntegers(self) -> None:
        """The root may be any integer, such as one of NumPy with eight bits, whose arithmetic overflows."""

        class Root:
            def __index__(self) -> int:
                return 2

        root: Any = Root()
        found = self.together(lambda each: each.broadcast(bytearray([each.rank]), root))
        self.assertEqual(found, [b"\2"] * SIZE)
        found = self.together(lambda each: each.reduce(array("q", [each.rank]), root=root))
        self.assertEqual(found, [None, None, array("q", [3])])

    def test_gather(self) -> None:
        """Data of different lengths is gathered, and has the same type when received."""
        data = [array("h", range(rank)) for rank in range(SIZE)]
        self.assertEqual(self.together(lambda each: each.allgather(data[each.rank])), [data] * SIZE)
        self.assertEqual(self.together(lambda each: each.gather(data[each.rank], 1)), [None, data, None])
        data[0].append(5)  # the result is no view of the data

    def test_scatter(self) -> None:
        items = [b"zero", b"", bytes(100_000)]
        found = self.together(lambda each: each.scatter(items if each.rank == 0 else None))
        self.assertEqual(found, items)

    def test_alltoall(self) -> None:
        """An alltoall delivers one item of each member to each member."""
        found = self.together(lambda each: each.alltoall([b"%d%d" % (each.rank, to) for to in range(SIZE)]))
        self.assertEqual(found, [[b"%d%d" % (to, rank) for to in range(SIZE)] for rank in range(SIZE)])

    def test_barrier(self) -> None:
        """No member passes a barrier before the last one has reached it."""
        early = [each.barrier() for each in self.groups[:2]]
        self.pause(0.1)
        self.assertFalse(any(each.called for each in early))
        for each in (*early, self.groups[2].barrier()):
            self.assertIsNone(self.outcome(each))

    def test_ahead(self) -> None:
        """A member that calls many operations without waiting gets their results in order."""
        ahead = [self.groups[0].allreduce(array("q", [number])) for number in range(20)]
        for number in range(20):
            others = [each.allreduce(array("q", [1])) for each in self.groups[1:]]
            for each in (ahead[number], *others):
                self.assertEqual(self.outcome(each), array("q", [number + 2]))
            self.assertFalse(any(each.called for each in ahead[number + 1 :]))

    def test_again(self) -> None:
        """The callback of an operation can call the next one."""

        async def again(group: Group) -> Any:
            return await group.allreduce(await group.allreduce(b"\x01"))

        found = self.together(lambda each: Deferred.fromCoroutine(again(each)))
        self.assertEqual(found, [b"\x09"] * SIZE)

    def test_transport(self) -> None:
        """Members can exchange messages with application tags while operations run."""
        self.groups[0].transport(2).post(1, b"hello")
        self.together(lambda each: each.barrier())
        self.assertEqual(self.outcome(self.groups[2].transport(0).receive(1)), b"hello")
        self.assertRaises(InvalidRequest, self.groups[0].transport, 0)

    def test_invalid(self) -> None:
        """Invalid calls raise an exception, and the group continues to work."""
        group = self.groups[0]
        self.assertRaises(InvalidRequest, group.allreduce, b"abc", "xor")
        self.assertRaises(InvalidRequest, group.allreduce, b"abc", "sum", bytearray(2))
        self.assertRaises(InvalidRequest, group.broadcast, b"abc", 1)
        self.assertRaises(InvalidRequest, group.broadcast, b"abc", SIZE)
        self.assertRaises(TypeError, group.broadcast, bytearray(3), 1.0)
        self.assertRaises(TypeError, group.gather, b"abc", 0.0)
        self.assertRaises(InvalidRequest, group.alltoall, [b""])
        self.assertRaises(InvalidRequest, group.scatter, None, 0)
        tooLong = bytes(LONGEST + 1)
        self.assertRaises(InvalidRequest, group.gather, tooLong, 1)
        self.assertRaises(InvalidRequest, group.allgather, tooLong)
        self.assertRaises(InvalidRequest, group.scatter, [b"", tooLong, b""])
        self.assertRaises(InvalidRequest, group.alltoall, [b"", tooLong, b""])
        self.together(lambda each: each.barrier())

    def test_operations(self) -> None:
        """Reductions by name and by a function alternate, with data of the same type and length."""

        def larger(one: Any, other: Any) -> list[int]:
            return [max(pair) for pair in zip(one, other, strict=True)]

        for number in range(8):
            operation: Any
            operation, expected = [("sum", 3), (larger, 2)][number // 2 % 2]
            called = [each.allreduce(array("q", [each.rank]), operation) for each in self.groups]
            self.assertEqual(list(map(self.outcome, called)), [array("q", [expected])] * SIZE)

    def test_close(self) -> None:
        """A group in which all members close releases everything, and later operations fail."""
        self.together(lambda each: each.barrier())
        self.together(lambda each: each.close())
        self.assertFails(self.groups[0].barrier(), 0, "rank 0 has left")
        self.outcome(self.groups[0].close())
        self.assertNothingLeft()

    def test_closeEarly(self) -> None:
        """A member may close as soon as its operation is complete, while others still wait for its data."""
        late = array("q", [1]) * 100_000

        async def reduceAndClose(group: Group) -> Any:
            found = await group.allreduce(late)
            await group.close()
            return found[:1]

        early = [Deferred.fromCoroutine(reduceAndClose(each)) for each in self.groups[:2]]
        self.pause(0.1)
        for each in (*early, Deferred.fromCoroutine(reduceAndClose(self.groups[2]))):
            self.assertEqual(self.outcome(each), array("q", [3]))


class SharedOperationTests(SharedMixin, OperationTests):
    """The tests of L{OperationTests} in shared memory."""

    slowBecause = "callbacks call a thousand operations"

    def test_ownCopy(self) -> None:
        """A reduction's input may be changed after the call, and its result may overlap the input."""
        data = [array("q", range(1000)) for _ in range(SIZE)]
        called = [each.allreduce(data[each.rank]) for each in self.groups[:2]]
        data[0][0] = data[1][0] = 99
        called.append(self.groups[2].allreduce(data[2]))
        for each in called:
            self.assertEqual(self.outcome(each), array("q", [3 * number for number in range(1000)]))
        views = [memoryview(each) for each in data]
        called = [each.allreduce(views[each.rank][1:], into=views[each.rank][:-1]) for each in self.groups]
        for each in called:
            self.outcome(each)
        self.assertEqual(data[1][:-1], array("q", [3 * number for number in range(1, 1000)]))

    def test_recursion(self) -> None:
        """A chain of callbacks that call the next operation does not exceed the recursion limit."""
        counted = [0] * SIZE

        def again(_: object, group: Group) -> Any:
            counted[group.rank] += 1
            if counted[group.rank] < 1100:
                group.barrier().addCallback(again, group)

        for each in self.groups:
            again(None, each)
        self.wait(lambda: counted == [1100] * SIZE)


class FailureTests(GroupCase):
    """Members that fail, and members that violate the protocol."""

    def test_died(self) -> None:
        """When a member's process is killed, all pending and later operations fail within 100 ms."""
        pending = [self.groups[rank].barrier() for rank in range(2)]
        queued = self.groups[0].barrier()
        self.pause(0.01)
        self.hosts[2].die(False)
        self.wait(lambda: all(each.called for each in (*pending, queued)), 0.1)
        later: Deferred[Any] = self.groups[1].broadcast(bytearray(5))
        for each in (*pending, queued, later):
            self.assertFails(each, 2, "rank 2 was lost")

    def test_left(self) -> None:
        """When a member closes in order, the operations that need its data fail at all others."""
        pending = [self.groups[rank].allreduce(b"1") for rank in range(2)]
        self.groups[2].close()
        for each in pending:
            self.assertFails(each, 2, "rank 2 has left the group, but rank [01] needs it")

    def test_cancelledByOther(self) -> None:
        """The errback of a failed operation may cancel others, and then the group can be closed."""
        ways: list[Callable[[], object]] = [self.groups[0].close, lambda: self.groups[2].close()]
        for rank, end in enumerate(ways):
            pending = [self.groups[rank].barrier() for _ in range(3)]

            def cancelOthers(failure: Failure, pending: list[Deferred[None]] = pending) -> Failure:
                pending[1].cancel()
                return failure

            pending[0].addErrback(cancelOthers)
            end()
            self.wait(lambda: all(each.called for each in pending))  # noqa: B023  # of this round
            for each, kind in zip(pending, (GroupFailed, CancelledError, GroupFailed), strict=True):
                self.failureResultOf(each, kind)
        self.together(lambda each: each.close())
        self.assertNothingLeft()

    def test_leftLong(self) -> None:
        """A long message to a member that has left fails."""
        self.groups[2].close()
        self.pause(0.1)
        self.assertFails(self.groups[0].broadcast(bytes(100_000)), 2, "rank 2 has left")

    def test_leftBefore(self) -> None:
        """An operation that fails as it begins, since a member has left, requests no further messages."""
        self.groups[1].close()
        self.pause(0.1)
        self.assertFails(self.groups[0].gather(b"0"), 1, "rank 1 has left")
        self.assertEqual(self.groups[0]._receives, set())

    def test_raises(self) -> None:
        """An exception of a function fails the operations of all members."""
        for rank in (0, 2):
            self.groups[rank].allreduce(b"1").addErrback(lambda _: None)  # may have all data that it needs
        pending = self.groups[1].allreduce(b"1", Mock(side_effect=ZeroDivisionError("wrong")))
        for each in (pending, *(each.barrier() for each in self.groups)):
            self.assertFails(each, 1, r"rank 1: allreduce failed: ZeroDivisionError\('wrong'\)")

    def test_mismatch(self) -> None:
        """Data of different lengths is detected, and reported to all members."""
        pending = [each.allreduce(bytes(3 + each.rank)) for each in self.groups]
        self.wait(lambda: all(each.called for each in pending))
        for each in pending:
            text = str(self.failureResultOf(each, GroupFailed).value)
            self.assertRegex(text, "allreduce with rank .*: the message has .*same length")

    def test_mismatchLong(self) -> None:
        """A message that is too long for its buffer is detected."""
        pending = [each.broadcast(bytearray(5 - each.rank)) for each in self.groups]
        self.assertFails(pending[1], 0, "broadcast with rank 0: the message has 5 bytes, and the buffer 4")
        self.assertFails(pending[2], 0, "broadcast with rank 0: the message has 5 bytes, and the buffer [34]")

    def test_cancel(self) -> None:
        """Cancelling an operation withdraws its receive requests; the operation fails at all others."""
        mine = self.groups[0].broadcast(bytearray(2), 1)
        self.pause(0.01)
        buffer = bytearray(b"12")
        waiting = self.groups[2].broadcast(buffer, 1)
        mine.cancel()
        mine.addErrback(lambda _: None)
        self.assertFails(waiting, 0, "rank 0 has cancelled broadcast")
        self.assertFails(self.groups[1].barrier(), 0, "rank 0 has cancelled broadcast")
        buffer.append(1)  # raises while a receive request uses the buffer
        self.assertEqual(self.groups[0]._receives | self.groups[2]._receives, set())

    def test_closed(self) -> None:
        """Closing the group fails its unfinished operations and releases everything."""
        mine = self.groups[0].barrier()
        self.groups[0].close()
        self.assertFails(mine, 0, "rank 0 has left the group")
        for group in self.groups[1:]:
            group.barrier().addErrback(lambda _: None)  # may already have all data of rank 0
        for group in self.groups[1:]:
            self.assertFails(group.barrier(), 0, "rank 0 has left the group")
            group.close()
        self.pause(1)
        self.assertNothingLeft()

    def test_closeTwice(self) -> None:
        """The errback of an operation that fails when the group ends can close the group again."""
        closed = []
        self.groups[0].barrier().addErrback(lambda _: closed.append(self.groups[0].close()))
        closed.append(self.groups[0].close())
        for group in self.groups[1:]:
            group.close()
        for each in closed:
            self.outcome(each)
        self.assertEqual(len(closed), 2)

    def test_liar(self) -> None:
        """A failure report with an invalid rank and text fails the group with the readable text."""
        self.groups[0].transport(1).post(FAILED, b"\xff\xffwrong \xff")
        pending = self.groups[1].barrier()
        self.assertFails(pending, None, "wrong")

    def test_longReason(self) -> None:
        """The connection to a member that sends a failure reason of excessive length is lost."""
        pending = self.groups[1].barrier()
        self.groups[0].transport(1).post(FAILED, bytes(LONGEST_TEXT + 3))
        self.assertFails(pending, 0, "rank 0 was lost")
        self.assertEqual(len(self.flushLoggedErrors()), 1)

    def test_controlCharacters(self) -> None:
        """The reason of a member has no control characters in the errors of the others."""
        pending = self.groups[1].barrier()
        self.groups[0].transport(1).post(FAILED, b"\0\2why\x1b[2J\n")
        self.assertFails(pending, 2, r"why\\x1b\[2J\\x0a")

    def test_early(self) -> None:
        """Data of an operation that the receiver has not called is queued at the sender beyond a window."""
        for _ in range(10):
            self.groups[0].transport(1).post(DATA, bytes(1 << 20))
        self.pause(0.5)
        inbox = self.groups[1].transport(0)._inbox
        self.assertLessEqual(inbox._bytes, 5 << 20)
        self.assertGreater(self.groups[0].transport(1)._outbox.bytes, 4 << 20)


class LengthTests(GroupCase):
    def test_tooLong(self) -> None:
        """An operation whose messages are too long fails at all members, as all later operations do."""
        self.patch(_algorithms, "LONG_BROADCAST", 2 * LONGEST)
        pending: Deferred[Any] = self.groups[0].broadcast(bytes(LONGEST + 1))
        for each in (pending, *(each.barrier() for each in self.groups)):
            self.assertFails(each, 0, "rank 0: broadcast failed: .*a message has at most")


class SharedFailureTests(SharedMixin, FailureTests):
    """The tests of L{FailureTests} in shared memory."""

    def test_leftLater(self) -> None:
        """Data that a member contributed before it left is used; operations that need more data fail."""
        pending = self.groups[0].reduce(array("q", [1]))
        self.groups[2].reduce(array("q", [1]))
        self.groups[2].close()
        self.pause(0.1)
        self.groups[1].reduce(array("q", [1]))
        self.assertEqual(self.outcome(pending), array("q", [3]))
        self.assertFails(self.groups[0].broadcast(bytearray(1)), 2, "rank 2 has left")

    def test_interrupted(self) -> None:
        """
        Ctrl-C in a step fails the operations of all members, which would combine the data of its next one.
        """
        skipIfCompiled()
        memory = self.groups[1]._memory
        assert memory is not None
        pending = [self.groups[rank].allreduce(array("q", [1])) for rank in (0, 2)]
        with mock.patch.object(memory.slots, "publish", side_effect=KeyboardInterrupt):
            self.assertRaises(KeyboardInterrupt, self.groups[1].allreduce, array("q", [1]))
        pending.append(self.groups[1].allreduce(array("q", [10])))
        for each in pending:
            self.assertFails(each, 1, "rank 1: an operation failed: KeyboardInterrupt")
        gc.collect()  # reports failures that nobody has handled
        self.assertEqual(len(self.flushLoggedErrors()), 1)

    def test_corrupted(self) -> None:
        """Invalid values in a member's slot fail the group, and nothing else."""
        pending = [each.allreduce(b"1") for each in self.groups[:2]]
        memory = self.groups[2]._memory
        assert memory is not None
        memory.slots.publish((1 << 64) - 1, (1 << 64) - 1)
        for rank in memory.slots.outgoing():
            self.groups[2].transport(rank).post(WAKE, b"")
        for each in pending:
            self.assertFails(each, 2, "another operation")


class MembersTests(SynchronousTestCase):
    def test_admit(self) -> None:
        """Only members of larger rank connect, once each."""
        members = Members(1, 3)
        members.admit(2)
        for rank in (0, 1, 3):
            self.assertRaises(Refused, members.admit, rank)
        members._connections[2] = Member(members, 2)
        self.assertRaises(Refused, members.admit, 2)

    def test_repeatedProof(self) -> None:
        """A member that proves its rank several times before it connects is stored once."""
        device: Any = None
        keys = (bytes(16),) * (SIZE + 1)
        joining = Joining(Clock(), GroupTerms(1, SIZE, "10.0.1.1", 1, keys), device, "10.0.1.2")
        addresses = [MessageAddress(host="10.0.1.3", port=port) for port in range(1, 100)]
        for address in addresses:
            joining._admit(2, address)
        self.assertEqual(len(joining._proved), 1)
        self.assertIsNone(joining.buildProtocol(addresses[0]))
        self.assertIsInstance(joining.buildProtocol(addresses[-1]), Member)

    def test_unreachable(self) -> None:
        """A member that cannot reach the rendezvous fails at the timeout of members that wait for others."""
        keys = (bytes(16),) * (SIZE + 1)
        reactor = MemoryReactorClock()
        joining = Group.join(reactor, GroupTerms(1, SIZE, "10.0.1.1", 1, keys), timeout=2)
        reactor.advance(2)
        error = self.failureResultOf(joining, GroupFailed).value
        self.assertEqual(str(error), "1 of 3 members have joined in 2 seconds")

    def test_timeout(self) -> None:
        """A timeout that is no time is refused before anything is sent."""
        reactor = MemoryReactorClock()
        terms = GroupTerms(1, SIZE, "10.0.1.1", 1, (bytes(16),) * (SIZE + 1))
        for timeout in (-1, 0, float("nan")):
            self.assertRaises(InvalidRequest, Group.join, reactor, terms, timeout=timeout)
        self.assertEqual((reactor.tcpClients, reactor.getDelayedCalls()), ([], []))

    def test_alone(self) -> None:
        """A group of one member needs no connections."""
        members = Members(0, 1)
        group = Group(members, members.close)
        for operation in (
            partial(group.allreduce, b"12"),
            partial(group.reduce, b"12"),
            partial(group.broadcast, b"12"),
            partial(group.scatter, [b"12"]),
        ):
            self.assertEqual(self.successResultOf(operation()), b"12")
        self.assertEqual(self.successResultOf(group.allgather(b"12")), [b"12"])
        self.assertEqual(self.successResultOf(group.gather(b"12")), [b"12"])
        self.assertEqual(self.successResultOf(group.alltoall([b"12"])), [b"12"])
        self.assertIsNone(self.successResultOf(group.barrier()))
        self.successResultOf(group.close())
