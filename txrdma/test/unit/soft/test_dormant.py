"""
Dormant lanes and their doorbell bytes, in every order of the accesses to shared memory.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import combinations_with_replacement
from math import inf
from types import SimpleNamespace
from typing import Any, cast
from unittest import SkipTest

from twisted.trial.unittest import SynchronousTestCase

from txrdma.iba.verbs import Completion
from txrdma.soft.core.completion import SoftCompletionChannel, SoftCompletionQueue
from txrdma.soft.shared import _incoming, _outgoing, _wakeups
from txrdma.soft.shared.sharedqueuepair import SharedQueuePair
from txrdma.test.support.soft.lanes import ok, send, Side


class Sender:
    """
    Runs a function in a thread, stopped before its accesses to shared memory.

    The accesses of the other side call L{accessed}, which runs the steps that are due.
    """

    def __init__(self, due: Sequence[int]) -> None:
        """@param due: for each step of the function, the number of accesses of the other side before."""
        self._due = deque(due)
        self._accesses = 0
        self._steps: float = 0  # number of steps that may run now
        self._go, self._stopped = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._stopped.acquire()
        self._hasEnded = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.failure: Exception | None = None
        self.run: Callable[[], None]

    def start(self, run: Callable[[], None]) -> None:
        """Run the function up to its first access."""
        self.run = run
        self._thread.start()
        self._stopped.acquire()

    def _run(self) -> None:
        try:
            self.run()
        except Exception as error:
            self.failure = error
        self._hasEnded = True
        self._stopped.release()

    def step(self) -> None:
        """Wait until the next access is due, in the thread of the function."""
        if not self._steps:
            self._stopped.release()
            self._go.acquire()
        self._steps -= 1

    def accessed(self) -> None:
        """Count an access of the other side, and run the steps that are due before it."""
        steps = 0
        while self._due and self._due[0] <= self._accesses:
            self._due.popleft()
            steps += 1
        if steps and not self._hasEnded:
            self._continue(steps)
        self._accesses += 1

    def _continue(self, steps: float) -> None:
        self._steps = steps
        self._go.release()
        self._stopped.acquire()

    def finish(self) -> None:
        """Run all remaining steps."""
        if not self._hasEnded:
            self._continue(inf)
        self._thread.join()
        self._steps = inf
        if self.failure is not None:
            raise self.failure

    @property
    def isRunning(self) -> bool:
        """Whether the caller is the function."""
        return threading.current_thread() is self._thread


class Stepped:
    """
    Shared memory that one side accesses: as words, or the bytes of a doorbell page.

    With C{isDelayed}, stores reach the memory at L{drain} only, as late as the fences of the code allow.
    """

    def __init__(self, memory: Any, step: Callable[[], None], isDelayed: bool = False) -> None:
        self._memory, self._step, self._isDelayed = memory, step, isDelayed
        self._stores: dict[int, int] = {}

    def __getitem__(self, index: int) -> int:
        self._step()
        return int(self._stores.get(index, self._memory[index]))

    def __setitem__(self, index: int, value: int) -> None:
        if self._isDelayed:
            self._stores.pop(index, None)
            self._stores[index] = value
        else:
            self._step()
            self._memory[index] = value

    def find(self, wanted: bytes, start: int, end: int) -> int:
        self._step()
        seen = bytearray(self._memory[start:end])
        for index, value in self._stores.items():
            if start <= index < end:
                seen[index - start] = value
        found = seen.find(wanted)
        return found if found < 0 else found + start

    def drain(self) -> None:
        """Make all stores visible to the other side."""
        stores, self._stores = self._stores, {}
        for index, value in stores.items():
            self._step()
            self._memory[index] = value


class Ring(Stepped):
    """The sender's ring. Clearing the next header is no step, as it is not read before the other one."""

    def __setitem__(self, index: int, value: int) -> None:
        if value:
            super().__setitem__(index, value)
        else:
            self._memory[index] = value


class Bell:
    """An eventfd of the reader."""

    reading = writing = -1

    def __init__(self, step: Callable[[], None]) -> None:
        self._step = step
        self.isRung = False

    def ring(self) -> None:
        self._step()
        self.isRung = True

    def silence(self) -> bool:
        self._step()
        was, self.isRung = self.isRung, False
        return was

    def close(self) -> None:
        """Do nothing: there is no descriptor."""


class Reading(Side):
    """The receiving end: its completions go into a queue."""

    queue: SoftCompletionQueue

    def receiveCompleted(self, completion: Completion, solicited: bool) -> None:
        self.queue.push(completion, solicited)

    def raised(self) -> None:
        raise AssertionError("a lane has raised an exception")

    def arm(self) -> None:
        armed = self.queue.armed
        self.lane.arm(armed == 2, armed != 0, armed == 1)


class World:
    """A reader with a dormant, or nearly dormant, lane, and its peer."""

    def __init__(self, due: Sequence[int], isDormant: bool, areStoresDelayed: bool) -> None:
        self.sender = Sender(due)
        self.taken: list[int] = []
        self.channel = channel = SoftCompletionChannel()
        self.queue = queue = SoftCompletionQueue(100, channel, lambda event: None)
        self.here, self.there = Reading(2, 4096), Side(3, 4096)
        self.here.queue = queue
        for side, other in ((self.here, self.there), (self.there, self.here)):
            side.meet(other)
        for number in range(4):
            self.here.receive(number, (0, 100))
        channel.claimDoorbell()  # reserves the first lane's byte
        lane = self.here.lane
        lane.doorbell = channel.claimDoorbell()
        queue.attach(lane, self.here.arm, self.here.raised)
        while queue.poll(10) or lane not in queue._dormant:
            queue.arm()
        if not isDormant:
            queue.rouse(lane)
            queue.arm()
            queue._untilSweep = 1
            queue.poll(10)
            queue._untilSweep = 1  # one more sweep
        self._step(areStoresDelayed)

    def _step(self, areStoresDelayed: bool) -> None:
        """Replace the shared memory, as each side has it mapped."""
        sender, channel, page = self.sender, self.channel, self.channel.page
        assert page is not None and channel._bell is not None
        channel._bell.close()
        bell = Bell(sender.accessed)
        channel._bell = cast(Any, bell)
        memory = cast(bytearray, page._bytes)
        here, there = self.here.lane._rings, self.there.lane._rings
        bytes, words = (
            Stepped(each, sender.accessed, areStoresDelayed) for each in (memory, here.localWords)
        )
        page._bytes, here.localWords = cast(Any, bytes), cast(Any, words)
        here.peerWords = cast(Any, Stepped(here.peerWords, sender.accessed))
        written = Ring(there.localWords, sender.step, areStoresDelayed)
        there.localWords = cast(Any, written)
        there.peerWords = cast(Any, Stepped(there.peerWords, sender.step))
        self.readers = [bytes, words] if areStoresDelayed else []
        self.senders = [written] if areStoresDelayed else []
        doorbell = SimpleNamespace(descriptor=1, page=Stepped(memory, sender.step))
        services = SimpleNamespace(
            _doorbells=[doorbell] * 2,
            _peerByte=self.here.lane.doorbell,
            _ringDoorbell=lambda descriptor: setattr(bell, "isRung", True),
        )
        self.there.ring = lambda which: SharedQueuePair.ring(  # type: ignore[method-assign]
            cast(SharedQueuePair, services), which
        )
        self.bell = bell

    def fence(self) -> None:
        """Execute a full memory fence on the side that runs."""
        for memory in self.senders if self.sender.isRunning else self.readers:
            memory.drain()

    def read(self) -> None:
        """Sleep as a reader does, and handle all pending events when woken."""
        queue = self.queue
        queue.arm()
        while batch := queue.poll(10):
            self.taken += [each.identifier for each in batch]
        self.fence()  # the system call

    def pollWithoutArming(self) -> None:
        """Poll like a reader that is not going to sleep."""
        self.queue.disarm()
        self.fence()  # executed long before
        self.take()
        self.queue._untilSweep = 1
        self.take()

    def take(self) -> None:
        self.taken += [each.identifier for each in self.queue.poll(10)]

    def takeEvents(self) -> None:
        self.channel.takeEvents()
        self.read()

    def play(self, messages: int, does: Sequence[Callable[[World], None]]) -> list[int]:
        """
        Send messages while the reader does this, and then sleeps; return those that it got.

        Only a message that arrives can wake it.
        """
        lane = self.there.lane

        def run() -> None:
            for number in range(messages):
                self.there.post(send(number, b"x" * 20))
            if messages > 1:  # sleep until they are consumed
                lane.arm(True, False, False)
                lane.poll()

        self.sender.start(run)
        for each in does:
            each(self)
        self.read()
        self.sender.finish()
        while self.bell.isRung:
            self.takeEvents()
        if "sends" in self.here.rung:
            lane.poll()
        return self.taken


class InterleavingTests(SynchronousTestCase):
    """A message wakes the reader, in any order of the accesses of both sides."""

    slowBecause = "thousands of orders are run, in two threads each"

    def setUp(self) -> None:
        if not (_wakeups.__file__ or "").endswith(".py"):
            raise SkipTest("compiled functions can't be patched")
        self.world: World
        self.patch(_wakeups, "barrier", lambda: self.world.fence())
        self.patch(_wakeups, "_acquire", lambda: self.world.fence())
        self.patch(_wakeups, "_release", lambda: None)
        self.patch(_incoming, "barrier", lambda: self.world.fence())
        self.patch(_outgoing, "acquire", lambda: self.world.fence())
        self.patch(_outgoing, "release", lambda: None)

    def play(
        self,
        due: Sequence[int],
        messages: int,
        does: Sequence[Callable[[World], None]],
        isDormant: bool,
        areStoresDelayed: bool,
    ) -> None:
        self.world = SimpleNamespace(fence=lambda: None)  # type: ignore[assignment]  # during its set-up
        world = World(due, isDormant, areStoresDelayed)
        self.world = world
        try:
            taken = world.play(messages, does)
        finally:
            world.channel.close()
        case = f"{due} {does} {isDormant} {areStoresDelayed}"
        self.assertEqual(taken, list(range(messages)), case)
        if messages > 1:
            self.assertEqual(ok(world.there.sent), taken, case)

    def test_everyOrderOfMessageAndDormancyWakesReader(self) -> None:
        for isDormant, does, accesses in (
            (False, (World.pollWithoutArming,), 10),
            (True, (World.take, World.read), 6),
        ):
            for areStoresDelayed in (False, True):
                for due in combinations_with_replacement(range(accesses + 1), 4):
                    self.play(due, 1, does, isDormant, areStoresDelayed)

    def test_wokenLaneBecomesDormantAndIsWokenAgain(self) -> None:
        does = [World.takeEvents, World.read, *[World.pollWithoutArming] * 3, World.takeEvents]
        for isDormant in (False, True):
            for areStoresDelayed in (False, True):
                for first in (0, 4, 8):
                    for second in range(first, 60):
                        self.play([first] * 4 + [second] * 16, 2, does, isDormant, areStoresDelayed)

    def test_randomOrdersOfSeveralMessages(self) -> None:
        chance = random.Random(5)
        for _ in range(250):
            accesses = chance.choice((15, 40, 90, 150))
            due = sorted(chance.randrange(accesses) for _ in range(20))
            deeds = (World.pollWithoutArming, World.read, World.take, World.takeEvents)
            does = [chance.choice(deeds) for _ in range(chance.randrange(10))]
            self.play(due, 3, does, chance.random() < 0.5, chance.random() < 0.5)
