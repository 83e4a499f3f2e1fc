"""
Connections of which one call to the device or to the system fails, at every step, as a mixin for test cases.

A connection is made, carries bytes and closes, while another one of the same listener exists. This is
repeated with the first, second, third... verb or system call raising. The other connection keeps working, and
afterwards there are as many descriptors and objects of devices as before.
"""

from __future__ import annotations

import gc
import mmap
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from errno import EMFILE, ENOMEM
from random import Random
from traceback import extract_stack
from typing import Any, Final

from zope.interface import implementedBy

from twisted.internet import reactor as theReactor
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.protocol import Factory
from twisted.internet.task import deferLater

from txrdma.error import ResourceExhausted
from txrdma.interfaces import IProtectionDomain, IQueuePair, IVerbsDevice
from txrdma.messages.strings import messageClientFromString, messageServerFromString
from txrdma.soft.core.queuepair import SoftQueuePair
from txrdma.soft.device import SoftDevice, SoftProtectionDomain
from txrdma.testing.bystanders import Application, callbacks
from txrdma.testing.messagebystanders import MessageApplication
from txrdma.verbs import devices

reactor: Any = theReactor

_SECONDS: Final = 20.0
_HELLO: Final = b"hello" * 100

_NEVER_FAIL: Final = {"close", "query", "subscribe"}
"""Verbs that have no reason to fail: they allocate nothing, and ask nobody."""

_CLASSES: Final = {
    IVerbsDevice: SoftDevice,
    IProtectionDomain: SoftProtectionDomain,
    IQueuePair: SoftQueuePair,
}

VERBS: Final = [
    (owner, name)
    for interface, owner in _CLASSES.items()
    for name in callbacks(interface)
    if name not in _NEVER_FAIL and interface in implementedBy(owner)
]
"""The verbs of the software device that may fail: those of the interfaces."""

SYSTEM_CALLS: Final = [
    (os, "eventfd"),
    (os, "memfd_create"),
    (os, "dup"),
    (mmap, "mmap"),
    (socket.socket, "__init__"),
    (socket.socket, "sendmsg"),
]
"""System calls that need a descriptor or memory."""


class FailingCalls:
    """
    Functions of which one call raises.

    @ivar count: calls since L{begin}.
    @ivar failed: the name of the function that has raised, and where it was called.
    """

    def __init__(self, patch: Callable[[Any, str, Any], object], error: Callable[[str], Exception]) -> None:
        """
        @param patch: C{TestCase.patch}.
        @param error: makes the exception, of the name of the function.
        """
        self.count = self._failing = 0
        self.failed = ""
        self._patch, self._error = patch, error

    def begin(self, failing: int) -> None:
        """Count from zero, and have the call with this number raise; 0 is none."""
        self.count, self._failing, self.failed = 0, failing, ""

    def watch(self, owner: Any, name: str) -> None:
        """Count calls of a function, and have it raise when its number comes."""
        real = getattr(owner, name)

        def call(*arguments: Any, **keys: Any) -> Any:
            if name != "__init__" or keys.get("fileno") is None and len(arguments) < 5:  # not of accept()
                self.count += 1
                if self.count == self._failing:
                    stack = [each for each in extract_stack(limit=6)[:-1] if "txrdma" in each.filename]
                    self.failed = f"{name} by {' '.join(each.name for each in stack)}"
                    raise self._error(name)
            return real(*arguments, **keys)

        self._patch(owner, name, call)


class Message(MessageApplication):
    """An application of messages, with the names that applications of streams have."""

    @property
    def received(self) -> int:
        """Number of bytes received."""
        return sum(len(data) for data, _ in self.messages)


class Stream(Application):
    """An application of streams, with the names that applications of messages have."""

    @property
    def isMade(self) -> bool:
        """Whether there is a connection."""
        return self.transport is not None


class EndpointCase:
    """
    Connections of a pair of endpoint strings, for a C{TestCase} on the real reactor.

    @ivar LISTEN: the server's endpoint string, with port 0, and C{{there}} for its address.
    @ivar CONNECT: a client's, with C{{port}}, C{{there}} and C{{here}}.
    """

    LISTEN: str
    CONNECT: str

    async def until(self: Any, condition: Callable[[], Any], what: str) -> None:
        """Let the reactor run until something is true."""
        deadline = reactor.seconds() + _SECONDS
        while not condition():
            self.assertLess(reactor.seconds(), deadline, what)
            await deferLater(reactor, 0.001)

    def setUp(self: Any) -> None:
        """Choose addresses that nobody else has."""
        random = Random()
        self.there, self.near, self.here = (
            f"127.{random.randrange(2, 250)}.{random.randrange(2, 250)}.{last}" for last in (1, 2, 3)
        )
        self.isMessages = self.LISTEN.startswith(("rdma:", "ib:"))

    async def listen(self: Any) -> Any:
        """Listen, with applications that are kept in C{served}."""
        self.served: list[Any] = []

        def build() -> Any:
            self.served.append(Message() if self.isMessages else Stream())
            return self.served[-1]

        self.factory = self.factoryOf(build)
        parse: Any = messageServerFromString if self.isMessages else serverFromString
        return await parse(reactor, self.LISTEN.format(there=self.there)).listen(self.factory)

    def factoryOf(self: Any, build: Callable[[], Any]) -> Any:
        """A factory of streams or of messages that builds these."""
        factory: Any = Factory()
        factory.noisy = False
        factory.buildProtocol = lambda address: build()
        return factory

    def connect(self: Any, here: str) -> Any:
        """Connect from an address, with an application."""
        parse: Any = messageClientFromString if self.isMessages else clientFromString
        text = self.CONNECT.format(there=self.there, here=here, port=self.port)
        return parse(reactor, text).connect(self.factoryOf(Message if self.isMessages else Stream))

    def send(self: Any, end: Any) -> None:
        """Send some bytes."""
        (end.transport.sendMessage if self.isMessages else end.transport.write)(_HELLO)

    async def exchange(self: Any, one: Any, other: Any, what: str) -> None:
        """Send both ways."""
        for here, there in ((one, other), (other, one)):
            received = there.received
            self.send(here)
            await self.until(
                lambda there=there, received=received: there.received > received or one.lost or other.lost,
                what,
            )

    async def play(self: Any, what: str) -> None:
        """Connect from a third address, exchange, and close, as far as that works."""
        self.served.clear()
        outcome: list[Any] = []
        connecting = self.connect(self.here)
        connecting.addBoth(outcome.append)
        deadline = reactor.seconds() + 1.0
        while not outcome and reactor.seconds() < deadline:
            await deferLater(reactor, 0.001)
        connecting.cancel()
        ends = [each for each in outcome if isinstance(each, (Message, Stream))]
        if ends:
            deadline = reactor.seconds() + 1.0
            while not any(each.isMade for each in self.served) and reactor.seconds() < deadline:
                await deferLater(reactor, 0.001)  # the server may miss the client's last message
            if not ends[0].lost and self.served and self.served[0].isMade:
                await self.exchange(ends[0], self.served[0], what)
        ends += [each for each in self.served if each.isMade]
        for end in ends:
            if not end.lost:
                end.transport.loseConnection()
                break
        stop = reactor.callLater(0.5, self.abort, ends)
        await self.until(lambda: all(end.lost for end in ends), what)
        if stop.active():
            stop.cancel()

    def abort(self: Any, ends: list[Any]) -> None:
        """Abort what does not end by itself."""
        for end in ends:
            if not end.lost:
                end.transport.abortConnection()

    def inUse(self: Any) -> dict[str, int]:
        """The numbers of descriptors, and of objects of all devices."""
        found = {"descriptors": len(os.listdir("/proc/self/fd"))}
        for holding in devices._held.values():
            device: Any = holding.device
            name = device.ports[0].address
            for kind in ("domains", "_queuePairs", "_channels", "_completionQueues", "keys"):
                found[f"{name}: {kind}"] = len(getattr(device, kind))
        return found

    async def settled(self: Any) -> dict[str, int]:
        """What is in use when nothing changes any more."""
        found: dict[str, int] = {}
        while (now := self.inUse()) != found:
            found = now
            await deferLater(reactor, 1.0)
        return found

    async def assertSettled(self: Any, before: dict[str, int], what: str) -> None:
        """Assert that soon no more is in use than before."""
        deadline = reactor.seconds() + 15.0
        while (more := self.inMoreUse(before)) and reactor.seconds() < deadline:
            gc.collect()  # frames of a traceback keep views of memory
            await deferLater(reactor, 0.05)
        self.assertEqual(more, {}, what)

    def inMoreUse(self: Any, before: dict[str, int]) -> dict[str, tuple[int, int]]:
        """What is in use more than before: its numbers before and now."""
        now = self.inUse().items()
        return {name: (before.get(name, 0), number) for name, number in now if number > before.get(name, 0)}


class FailingCallContract(EndpointCase):
    """
    Promises of endpoints about calls that fail.

    @cvar STEP: only each call with a number that is a multiple of this fails.
    """

    STEP = 1

    async def check(self: Any, calls: FailingCalls) -> None:
        """Play with each call failing."""
        listening = await self.listen()
        self.port = listening.getHost().port
        near = await self.connect(self.near)
        await self.until(lambda: self.served and self.served[0].isMade, "the other connection")
        far = self.served[0]
        for _ in range(2):  # the first one makes what stays
            calls.begin(0)
            await self.play("without a failure")
            await self.exchange(near, far, "without a failure")
        before = await self.settled()
        number, isReached = 0, True
        while isReached:
            number += self.STEP
            what = f"call {number}"
            calls.begin(number)
            await self.play(what)
            isReached, what = calls.count >= number, f"{what}: {calls.failed}"
            calls.begin(0)
            await self.exchange(near, far, what)
            self.assertFalse(near.lost or far.lost, what)
            self.flushLoggedErrors()
            self.served.clear()
            await self.assertSettled(before, what)
        self.assertGreater(number, 5)
        near.transport.loseConnection()
        far.transport.loseConnection()
        await self.until(lambda: near.lost and far.lost, "the end")
        with suppress(Exception):
            await listening.stopListening()
        own = set(reactor._internalReaders)
        await self.until(lambda: set(reactor.getReaders()) <= own, "the end of the devices")

    async def test_failingVerbs(self: Any) -> None:
        """Each verb of the device fails once."""
        calls = FailingCalls(self.patch, lambda name: ResourceExhausted(f"{name} fails"))
        for owner, name in VERBS:
            calls.watch(owner, name)
        await self.check(calls)

    async def test_failingSystemCalls(self: Any) -> None:
        """Each system call fails once, for want of descriptors or of memory."""
        errors = {"memfd_create": ENOMEM, "mmap": ENOMEM, "sendmsg": ENOMEM}

        def error(name: str) -> Exception:
            number = errors.get(name, EMFILE)
            return OSError(number, os.strerror(number))

        calls = FailingCalls(self.patch, error)
        for owner, name in SYSTEM_CALLS:
            calls.watch(owner, name)
        await self.check(calls)


__all__ = ["EndpointCase", "FailingCallContract"]
