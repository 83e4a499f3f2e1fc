"""
Use, close, close twice and drop objects of the kernel's devices in random orders.

Run as C{python -m txrdma.test.system.kernel.orders FIRST COUNT}: that many lives of two devices, each with a
separate seed, which is printed first. Only errors of txrdma may be raised.
"""

from __future__ import annotations

import faulthandler
import gc
import sys
from collections.abc import Callable
from random import Random
from typing import Any

from twisted.internet.epollreactor import EPollReactor

from txrdma.error import RDMAError
from txrdma.iba.verbs import (
    Access,
    Capacity,
    Operation,
    QPAttributes,
    QPKind,
    QPState,
    ReceiveRequest,
    SendRequest,
)
from txrdma.testing.verbs.ends import End
from txrdma.verbs.devices import openDevice

STEPS = 40
PATIENCE_SECONDS = 60

left: list[Any] = []
"""Objects that still exist when the interpreter exits."""


class Life:
    """Two devices and their objects."""

    def __init__(self, reactor: EPollReactor, seed: int) -> None:
        self.random = Random(seed)
        self.reactor = reactor
        self.devices = [openDevice(reactor, name) for name in ("pyverbs:rxe0", "pyverbs:rxe1")]
        self.ends: list[End] = []
        self.things: list[Any] = list(self.devices)
        self.slices: list[memoryview] = []
        for _ in range(self.random.randrange(1, 4)):
            self.makePair()

    def makePair(self) -> None:
        """Return two ends, possibly connected, with outstanding requests."""
        kind = self.random.choice((QPKind.RC, QPKind.RC, QPKind.UD))
        one, other = (End(device, kind, Capacity(maxSend=8), depth=32) for device in self.devices)
        shared = None
        if self.random.random() < 0.5:
            shared = other.domain.createSharedReceiveQueue(16, 2)
            third = other.domain.createQueuePair(
                QPKind.RC, other.sends, other.receives, Capacity(maxInline=64), shared
            )
            shared.postReceive([ReceiveRequest(1, [other.segment()])] * self.random.randrange(1, 16))
            self.things += [shared, third]
        for end in (one, other):
            end.toInit()
        if self.random.random() < 0.9:
            one.toRTR(other)
            other.toRTR(one)
            one.toRTS()
            other.toRTS()
        self.ends += [one, other]
        for end in (one, other):
            region = end.domain.registerMemory(memoryview(bytearray(5000)), Access.LOCAL_WRITE)
            handle = end.domain.createAddressHandle(end.destinationOf(one if end is other else other))
            self.things += [
                end.queuePair,
                end.memory,
                end.sends,
                end.receives,
                end.channel,
                end.domain,
                region,
                handle,
            ]

    def live(self) -> None:
        """Perform some steps, then end."""
        acts = [self.use, self.use, self.close, self.close, self.forget, self.turn]
        for _ in range(self.random.randrange(STEPS)):
            try:
                self.random.choice(acts)()
            except RDMAError:
                pass
        fate = self.random.randrange(3)
        if fate == 0:
            self.random.shuffle(self.devices)
            for device in self.devices:
                device.close()
        elif fate == 1 and self.random.random() < 0.2:
            left.append(self)

    def close(self) -> None:
        """Close an object, sometimes twice."""
        thing = self.random.choice(self.things)
        for _ in range(self.random.randrange(1, 3)):
            thing.close()

    def forget(self) -> None:
        """Drop references to some objects."""
        self.random.shuffle(self.things)
        del self.things[: self.random.randrange(len(self.things))]
        self.things += self.devices
        if self.random.random() < 0.3:
            self.ends.clear()
        if self.random.random() < 0.3:
            gc.collect()

    def turn(self) -> None:
        self.reactor.iterate(0.001)

    def use(self) -> None:
        """Use an end, even if some of its objects are closed."""
        if not self.ends:
            return
        random, end = self.random, self.random.choice(self.ends)
        acts: list[Callable[[], object]] = [
            lambda: end.receive(end.segment()),
            lambda: end.send(end.segment(0, 64)),
            lambda: end.send(end.segment(0, 60_000), signaled=random.random() < 0.5),
            lambda: end.queuePair.postSend([SendRequest(3, Operation.RDMA_READ, [end.segment()])]),
            lambda: end.queuePair.modify(
                QPAttributes(state=random.choice((QPState.ERR, QPState.RESET, QPState.INIT)))
            ),
            lambda: end.queuePair.query(),
            lambda: end.queuePair.state,
            lambda: end.sends.arm(),
            lambda: end.receives.arm(True),
            lambda: end.channel.takeEvents(),
            end.poll,
            lambda: end.domain.allocateMemory(4096, Access.LOCAL_WRITE),
            lambda: end.device.createCompletionQueue(4, end.channel),
            lambda: end.device.gids(1),
            lambda: self.slices.append(end.memory.view[:10]),
            end.close,
        ]
        random.choice(acts)()


def main(first: int, count: int) -> None:
    """Print the seed of each life, and play it."""
    reactor = EPollReactor()
    faulthandler.dump_traceback_later(PATIENCE_SECONDS * 10, exit=True)
    for seed in range(first, first + count):
        print("seed", seed, flush=True)
        try:
            Life(reactor, seed).live()
        except RDMAError as error:
            print("  ", error)
        if seed % 7 == 0:
            gc.collect()
    print("done", flush=True)


if __name__ == "__main__":
    faulthandler.enable()
    main(int(sys.argv[1]), int(sys.argv[2]))
