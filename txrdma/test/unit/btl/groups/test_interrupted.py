"""
Groups in which one call of one function raises an exception: the operations of all members end, and a second
group of the same modules is not affected.
"""

from __future__ import annotations

import itertools
import mmap
from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from txrdma.btl.groups import _algorithms
from txrdma.btl.groups._sharedalgorithms import SharedAlgorithms
from txrdma.btl.groups._slots import memoryBytes, Slots
from txrdma.btl.groups.errors import GroupFailed
from txrdma.btl.groups.group import _Running, Group
from txrdma.btl.groups.members import Member, Members
from txrdma.btl.groups.reductions import Elements
from txrdma.btl.groups.sharing import GroupMemory
from txrdma.test.support.btl.hosts import HostsCase
from txrdma.test.support.interruptions import Interruptions

SIZE = 3

VICTIM = 1
"""The member whose calls raise."""

TRIVIAL = ("connectionLost", "_nextTurn")
"""Functions that only call another one, and handle its exception: what raises is that other one."""

MESSAGES: tuple[Any, ...] = (Group, Members, Member, Elements, _Running, _algorithms)
"""What a group without shared memory consists of."""

SHARED: tuple[Any, ...] = (Group, Members, GroupMemory, Slots, SharedAlgorithms, _Running)
"""What a group with shared memory consists of."""

OWNED = Group, Members, Member, GroupMemory, Slots, SharedAlgorithms

LEAST = 30
"""A number of functions that are called."""

Work = list[tuple[Deferred[Any], Any]]
"""Deferreds of operations, with the expected results."""


def collected(outcome: Deferred[Any]) -> list[Any]:
    """Return the result or failure of a Deferred that has fired."""
    found: list[Any] = []
    outcome.addBoth(found.append)
    return found


class InterruptionTests(HostsCase):
    """
    Two groups of the same three hosts, of which a function of one raises once: its operations have the right
    result or fail at all members, the exception is logged or reported once, and nothing is left.
    """

    slowBecause = "it plays one group for each function"

    def setUp(self) -> None:
        super().setUp()
        self.hosts.append(self.host("10.0.1.3"))
        self.raised = 0  # exceptions that an operation has raised when it was called
        self.isArmed = False
        self.objects: list[object] = []

    def group(self, isShared: bool) -> list[Group]:
        """Return the members of a new group."""
        members = [Members(rank, SIZE) for rank in range(SIZE)]
        self.ends: list[Member] = []
        for client in range(SIZE):
            for server in range(client):
                ends = Member(members[client], server), Member(members[server], client)
                self.ends += ends
                self.open(*ends, client, server)
        self.wait(lambda: all(each.complete.called for each in members))
        groups = [Group(each, lambda each=each: each.close()) for each in members]  # type: ignore[misc]
        memory = mmap.mmap(-1, memoryBytes(SIZE))
        for each in groups if isShared else ():
            seconds = partial(lambda ticks: next(ticks) * 1e-3, itertools.count())
            each._useMemory(GroupMemory(self.world.clock, memory, each.rank, SIZE, seconds))
        return groups

    def owned(self, group: Group) -> list[object]:
        """Return the objects of a member of a group."""
        found: list[object] = [group, group._members]
        found += [each for each in self.ends if each._members is group._members]
        memory = group._memory
        return found if memory is None else [*found, memory, memory.slots, memory.algorithms]

    def work(self, groups: list[Group]) -> Work:
        """Call operations of all members. A member that gets an exception leaves the group."""
        called: Work = []
        left: set[int] = set()

        def call(expected: list[Any], make: Callable[[Group], Deferred[Any]]) -> None:
            for each in groups:
                if each.rank in left:
                    continue
                try:
                    called.append((make(each), expected[each.rank]))
                except ZeroDivisionError:
                    self.raised += 1
                    left.add(each.rank)
                    self.leave(each)  # as a program would

        for length in (1, 4000):
            data = [array("d", [rank + 1.0]) * length for rank in range(SIZE)]
            sums = array("d", [6.0]) * length
            call([sums] * SIZE, lambda each, data=data: each.allreduce(data[each.rank]))  # type: ignore[misc]
            call([None, sums, None], lambda each, data=data: each.reduce(data[each.rank], root=1))  # type: ignore[misc]
            call([data] * SIZE, lambda each, data=data: each.allgather(data[each.rank]))  # type: ignore[misc]
            call([None, data, None], lambda each, data=data: each.gather(data[each.rank], 1))  # type: ignore[misc]
            items = [bytes([rank]) * length for rank in range(SIZE)]
            call(items, lambda each, items=items: each.scatter(items if each.rank == 1 else None, 1))  # type: ignore[misc]
            buffers = [bytearray(length), bytearray(items[1]), bytearray(length)]
            call([items[1]] * SIZE, lambda each, buffers=buffers: each.broadcast(buffers[each.rank], 1))  # type: ignore[misc]
        call([None] * SIZE, lambda each: each.barrier())
        return called

    def leave(self, group: Group) -> Deferred[None]:
        try:
            return group.close()
        except ZeroDivisionError:
            self.raised += 1
            return group.close()

    def isAffected(self, first: object = None, *_others: object) -> bool:
        """
        Return whether a function is called for one of the objects of the victim, or one that belongs to no
        group while an operation of the first group is called.
        """
        isOwned = isinstance(first, OWNED)
        return any(first is each for each in self.objects) if isOwned else self.isArmed

    def play(self, isShared: bool) -> None:
        """Let two groups work and close; the operations of the first one may fail."""
        self.raised = 0
        self.objects = []
        victims, bystanders = self.group(isShared), self.group(isShared)
        self.objects = self.owned(victims[VICTIM])
        self.isArmed = True
        work = self.work(victims)
        self.wait(lambda: all(each.called for each, _expected in work))
        self.isArmed = False
        reasons = set()
        for each, expected in work:
            (found,) = collected(each)
            if isinstance(found, Failure):
                found.trap(GroupFailed, ZeroDivisionError)
                reasons.add(str(found.value))
            else:
                self.assertEqual(found, expected)
        for each, expected in self.work(bystanders):
            self.assertEqual(self.outcome(each), expected)
        for groups in (victims, bystanders):
            closed = list(map(self.leave, groups))
            self.wait(lambda closed=closed: all(each.called for each in closed))  # type: ignore[misc]
        self.assertNothingLeft()
        self.reasons = reasons

    def playEach(self, isShared: bool, owners: Iterable[Any]) -> None:
        """Play once for each function that is called, and let it raise, the second time if there is one."""
        self.calls = Interruptions(self.patch, owners, self.isAffected, TRIVIAL)
        self.play(isShared)
        counts = Counter({each: min(count, 2) for each, count in self.calls.counts.items()})
        self.assertGreater(len(counts), LEAST)
        self.calls.counts = counts
        wrong = list[tuple[str, int]]()
        for (_owner, name), _number in self.calls.each(1):
            self.play(isShared)
            logged = len(self.flushLoggedErrors(ZeroDivisionError))
            reported = self.raised or any("is interrupted" in each for each in self.reasons)
            if logged > 1 or not (logged or reported):
                wrong.append((name, logged))
            self.flushLoggedErrors(GroupFailed)  # of an operation that has raised when it was called
        self.assertEqual(wrong, [])

    def test_messages(self) -> None:
        """A group that uses messages."""
        self.playEach(False, MESSAGES)

    def test_sharedMemory(self) -> None:
        """A group that uses shared memory."""
        self.playEach(True, SHARED)
