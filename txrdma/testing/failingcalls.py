"""
Contract: the failure of any one verb or system call affects only its own connection, and leaks nothing.

A connection is established, carries data and closes, while another connection of the same listener exists.
This is repeated with the first, second, third... verb or system call raising an exception. The other one must
not be affected, and the numbers of descriptors, mappings, delayed calls and device objects must not grow.
"""

from __future__ import annotations

import builtins
import fcntl
import gc
import io
import mmap
import os
import socket
import sqlite3
import sys
from collections.abc import Callable
from contextlib import suppress
from errno import EMFILE, ENOMEM
from pathlib import Path
from random import Random
from threading import Thread
from traceback import extract_stack
from types import FrameType
from typing import Any, Final

from twisted.internet import reactor as theReactor
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.epollreactor import EPollReactor
from twisted.internet.protocol import Factory
from twisted.internet.task import deferLater
from twisted.logger import globalLogPublisher, LimitedHistoryLogObserver

from txrdma.error import ResourceExhausted
from txrdma.interfaces import (
    ICompletionChannel,
    ICompletionQueue,
    IDirectDatagrams,
    IDirectLane,
    IProtectionDomain,
    IQueuePair,
    ISharedReceiveQueue,
    IVerbsDevice,
)
from txrdma.smc.group.groups import closeIdle
from txrdma.smc.stream import stream as streamModule
from txrdma.soft.core.completion import SoftCompletionChannel, SoftCompletionQueue
from txrdma.soft.core.directdatagrams import DirectDatagrams
from txrdma.soft.core.queuepair import SoftQueuePair
from txrdma.soft.core.sharedreceives import SoftSharedReceiveQueue
from txrdma.soft.device import SoftDevice, SoftProtectionDomain
from txrdma.soft.shared import sharedqueuepair
from txrdma.testing.bystanders import Application, callbacks
from txrdma.testing.messagebystanders import MessageApplication
from txrdma.testing.reactors import waitUntil
from txrdma.verbs import completions, devices

reactor: Any = theReactor

_SECONDS: Final = 20.0
_HELLO: Final = b"hello" * 100
_LOGGED: Final = 200  # as twisted.logger.LogBeginner

_NEVER_FAIL: Final = {
    *("close", "query", "subscribe", "isPlaced", "isConsumed", "hasPeerEnded", "isPeerPolling"),
    *("fileno", "callForLocal", "limit"),
}
"""Verbs that cannot fail: they allocate nothing, and require no answer of another host."""

_POLLED: Final = {"poll", "arm", "disarm", "takeEvents", "takeMessages", "takeDatagrams"}
"""Verbs that a reader calls, as often as the reactor runs, and repeats for all of its connections."""

_CLASSES: Final[dict[Any, type[Any]]] = {
    IVerbsDevice: SoftDevice,
    IProtectionDomain: SoftProtectionDomain,
    IQueuePair: SoftQueuePair,
    IDirectLane: vars(sharedqueuepair)["Lane"],
    IDirectDatagrams: DirectDatagrams,
    ISharedReceiveQueue: SoftSharedReceiveQueue,
    ICompletionChannel: SoftCompletionChannel,
    ICompletionQueue: SoftCompletionQueue,
}

_FAILING: Final = [
    (owner, name)
    for interface, owner in _CLASSES.items()
    for name in callbacks(interface)
    if name not in _NEVER_FAIL
]

VERBS: Final = [each for each in _FAILING if each[1] not in _POLLED]
"""Verbs of the software device that may fail: the methods of its interfaces."""

POLLS: Final = [each for each in _FAILING if each[1] in _POLLED]
"""Those that readers of completions call."""

_PACKAGE: Final = "txrdma."
_TESTS: Final = "txrdma.test"  # and testing

SYSTEM_CALLS: Final = [
    (os, "eventfd"),
    (os, "memfd_create"),
    (os, "dup"),
    (os, "open"),
    (mmap, "mmap"),
    (socket.socket, "__init__"),
    (socket.socket, "sendmsg"),
]
"""System calls that need a descriptor or memory."""

OPENING_CALLS: Final = [
    *SYSTEM_CALLS,
    (builtins, "open"),
    (io, "open"),
    (os, "listdir"),
    (os, "mkdir"),
    (os, "scandir"),
    (os, "write"),
    (fcntl, "flock"),
    (sqlite3, "connect"),
    *((socket.socket, name) for name in ("bind", "connect", "listen", "recvmsg", "send", "setsockopt")),
    (Thread, "start"),
    (EPollReactor, "addReader"),
]
"""Those that need a descriptor, memory or space on the disk while ports and services are opened."""


_RECEIVING: Final = {"unix.sockets: doRead", "soft.shared.unixpackets: _receive"}
"""
Functions that receive descriptors of other processes: C{unix.test_sockets.ListenerTests} and
C{soft.test_rendezvous} run these without descriptors.
"""


class FailingCalls:
    """
    Counts the calls of functions, and makes one call raise.

    @ivar count: number of calls since L{begin}.
    @ivar failed: name of the function that has raised, and its callers.
    """

    def __init__(self, patch: Callable[[Any, str, Any], object], error: Callable[[str], Exception]) -> None:
        """
        @param patch: C{TestCase.patch}.
        @param error: creates the exception from the name of the function.
        """
        self.count = self._failing = 0
        self.failed = ""
        self._patch, self._error = patch, error
        self._hasBegun = False
        self._spared: set[Any] = set()  # lanes of connections from before begin

    def begin(self, failing: int) -> None:
        """Reset the counter, and select the number of the call that raises; 0 selects none."""
        self.count, self._failing, self.failed, self._hasBegun = 0, failing, "", True

    def watch(self, owner: Any, name: str, error: Callable[[str], Exception] | None = None) -> None:
        """
        Count the calls of a function, and raise in the selected call.

        @param error: creates another exception than that of the constructor.
        """
        real = getattr(owner, name)

        def call(*arguments: Any, **keys: Any) -> Any:
            if name == "takeMessages" and not self._hasBegun:
                self._spared.add(arguments[0])
            if arguments and arguments[0] in self._spared:
                return real(*arguments, **keys)
            if name != "__init__" or keys.get("fileno") is None and len(arguments) < 5:  # not in accept()
                self.count += 1
                if self.count == self._failing:
                    stack = [each for each in extract_stack(limit=6)[:-1] if "txrdma" in each.filename]
                    self.failed = f"{name} by {' '.join(each.name for each in stack)}"
                    raise (error or self._error)(name)
            return real(*arguments, **keys)

        self._patch(owner, name, call)


_dup = os.dup  # which FailingCalls replaces


def _lowestFree() -> int:
    """Return the number that the next descriptor gets."""
    descriptor = _dup(0)
    os.close(descriptor)
    return descriptor


class DescriptorTrace:
    """
    Finds functions of txrdma that open descriptors by calls that L{FailingCalls} does not watch.

    While it is entered, the lowest free descriptor is compared at the beginning and at the end of each call
    of txrdma's functions: it rises if one is opened.

    @ivar unwatched: module and name of these functions.
    """

    def __init__(self) -> None:
        self.unwatched: set[str] = set()
        self._free = 0
        self._latest = ""

    def __enter__(self) -> DescriptorTrace:
        self._free = _lowestFree()
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_exception: object) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: FrameType, event: str, _argument: object) -> Any:
        if not _moduleOf(frame).startswith(_PACKAGE):
            return None  # Twisted's statements count as those of their callers
        free = _lowestFree()
        if free > self._free and self._latest:
            self.unwatched.add(self._latest)
        self._free = free
        found: FrameType | None = frame.f_back if event == "return" else frame
        while found is not None and not _moduleOf(found).startswith(_PACKAGE):
            found = found.f_back
        self._latest = ""
        if found is not None and not _moduleOf(found).startswith(_TESTS):
            self._latest = f"{_moduleOf(found).removeprefix(_PACKAGE)}: {found.f_code.co_name}"
        frame.f_trace_lines = False
        return self._trace


def _moduleOf(frame: FrameType) -> str:
    """Return the name of a frame's module; its file would not do, as a checkout may be in any folder."""
    return str(frame.f_globals.get("__name__"))


class Message(MessageApplication):
    """A message application with the attributes of a stream application."""

    @property
    def received(self) -> int:
        """Number of bytes received."""
        return sum(len(data) for data, _ in self.messages)


class Stream(Application):
    """A stream application with the attributes of a message application."""

    @property
    def isMade(self) -> bool:
        """Whether the connection has been established."""
        return self.transport is not None


class EndpointCase:
    """
    Connections between a pair of endpoint strings, for a C{TestCase} on the real reactor.

    @ivar LISTEN: the server's endpoint string, with port 0, and C{{there}} for its address.
    @ivar CONNECT: the client's endpoint string, with C{{port}}, C{{there}} and C{{here}}.
    """

    LISTEN: str
    CONNECT: str

    async def until(self: Any, condition: Callable[[], Any], what: str) -> None:
        """Wait until a condition is true; fail with the message C{what} after 20 seconds."""
        await waitUntil(reactor, condition, _SECONDS, what)

    def setUp(self: Any) -> None:
        """Choose random loopback addresses, in order not to collide with other tests."""
        random = Random()
        self.there, self.near, self.here = (
            f"127.{random.randrange(2, 250)}.{random.randrange(2, 250)}.{last}" for last in (1, 2, 3)
        )
        self.isMessages = self.LISTEN.startswith(("rdma:", "ib:"))

    async def listen(self: Any) -> Any:
        """Listen; the server's applications are appended to C{served}."""
        self.served: list[Any] = []

        def build() -> Any:
            self.served.append(Message() if self.isMessages else Stream())
            return self.served[-1]

        self.factory = self.factoryOf(build)
        return await serverFromString(reactor, self.LISTEN.format(there=self.there)).listen(self.factory)

    def factoryOf(self: Any, build: Callable[[], Any]) -> Any:
        """Return a factory of streams or messages that calls C{build} for each protocol."""
        factory: Any = Factory()
        factory.noisy = False
        factory.buildProtocol = lambda address: build()
        return factory

    def connect(self: Any, here: str) -> Any:
        """Connect from the address C{here}; the Deferred fires with the client's application."""
        text = self.CONNECT.format(there=self.there, here=here, port=self.port)
        return clientFromString(reactor, text).connect(self.factoryOf(Message if self.isMessages else Stream))

    def send(self: Any, end: Any) -> None:
        """Send some bytes."""
        (end.transport.sendMessage if self.isMessages else end.transport.write)(_HELLO)

    async def exchange(self: Any, one: Any, other: Any, what: str) -> None:
        """Send data in both directions, and wait for its arrival."""
        for here, there in ((one, other), (other, one)):
            received = there.received
            self.send(here)
            await self.until(
                lambda there=there, received=received: there.received > received or one.lost or other.lost,
                what,
            )

    async def play(self: Any, what: str) -> None:
        """Connect from a third address, exchange data and close, as far as each step succeeds."""
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
        """Abort the connections that have not ended."""
        for end in ends:
            if not end.lost:
                end.transport.abortConnection()

    def inUse(self: Any) -> dict[str, int]:
        """Count the open descriptors, shared mappings and delayed calls, and the objects of all devices."""
        found = {
            "descriptors": len(os.listdir("/proc/self/fd")),
            "mappings": Path("/proc/self/maps").read_text().count("/memfd:"),
            "delayed calls": len(reactor.getDelayedCalls()),
        }
        for opened in devices._openDevices.values():
            device: Any = opened.device
            name = device.ports[0].address
            for kind in ("domains", "_queuePairs", "_channels", "_completionQueues", "keys"):
                found[f"{name}: {kind}"] = len(getattr(device, kind))
        return found

    async def settled(self: Any) -> dict[str, int]:
        """Close idle link groups, wait until the counts of L{inUse} stop changing, and return them."""
        self.closeIdleGroups()
        found: dict[str, int] = {}
        while (now := self.inUse()) != found:
            found = now
            await deferLater(reactor, 1.0)
        return found

    def closeIdleGroups(self: Any) -> None:
        """Close link groups without connections, so that the next connection creates its own."""
        while closeIdle(reactor):
            pass

    async def assertSettled(self: Any, before: dict[str, int], what: str) -> None:
        """Assert that within 15 seconds no count is higher than before."""
        deadline = reactor.seconds() + 15.0
        while (more := self.inMoreUse(before)) and reactor.seconds() < deadline:
            self.closeIdleGroups()
            gc.collect()  # frames of tracebacks reference views of memory
            await deferLater(reactor, 0.01)
        self.assertEqual(more, {}, what)

    def inMoreUse(self: Any, before: dict[str, int]) -> dict[str, tuple[int, int]]:
        """Return the counts that have increased, each with its value before and now."""
        now = self.inUse().items()
        return {name: (before.get(name, 0), number) for name, number in now if number > before.get(name, 0)}


class FailingCallContract(EndpointCase):
    """
    Promises of endpoints about calls that fail.

    @cvar STEP: only calls whose number is a multiple of this fail.
    """

    STEP = 1
    slowBecause = "each call fails in a connection of its own on the real reactor"

    def setUp(self: Any) -> None:
        """
        Shorten the time for which a closed SMC-R connection waits for a peer that has lost its link.

        The latest log events are stored, as Twisted does until a program begins to log: they must not
        reference memory, such as by an exception whose traceback has the frames of all callers.
        """
        super().setUp()
        observer = LimitedHistoryLogObserver(_LOGGED)
        globalLogPublisher.addObserver(observer)
        self.addCleanup(globalLogPublisher.removeObserver, observer)
        self.patch(streamModule, "LINGER_TIMEOUT", 0.5)

    async def check(self: Any, calls: FailingCalls) -> None:
        """Use one connection for each call that can fail."""
        listening = await self.listen()
        self.port = listening.getHost().port
        near = await self.connect(self.near)
        await self.until(lambda: self.served and self.served[0].isMade, "the other connection")
        far = self.served[0]
        await self.exchange(near, far, "before")
        for _ in range(2):  # the first one creates objects that remain
            calls.begin(0)
            await self.play("without a failure")
            await self.exchange(near, far, "without a failure")
        before = await self.settled()
        gc.freeze()  # so that each collection takes little time
        self.addCleanup(gc.unfreeze)
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

    async def test_systemCalls(self: Any) -> None:
        """L{SYSTEM_CALLS} contains each call by which the objects of a connection open descriptors."""
        listening = await self.listen()
        self.port = listening.getHost().port
        await self.play("without a trace")  # imports the modules that it uses
        self.closeIdleGroups()
        calls = FailingCalls(self.patch, OSError)
        for owner, name in SYSTEM_CALLS:
            calls.watch(owner, name)
        found = []
        for attempt in range(3):  # a thread may open a descriptor, but not three times in one function
            with DescriptorTrace() as trace:
                await self.play(f"traced {attempt}")
            found.append(trace.unwatched - _RECEIVING)
            self.closeIdleGroups()
        with suppress(Exception):
            await listening.stopListening()
        own = set(reactor._internalReaders)
        await self.until(lambda: set(reactor.getReaders()) <= own, "the end of the devices")
        self.assertEqual(set.intersection(*found), set())
        self.assertGreater(calls.count, 0)

    async def test_failingVerbs(self: Any) -> None:
        """A verb that fails affects only its own connection, and leaks nothing."""
        calls = FailingCalls(self.patch, lambda name: ResourceExhausted(f"{name} fails"))
        for owner, name in VERBS:
            calls.watch(owner, name)
        await self.check(calls)

    async def test_failingPolls(self: Any) -> None:
        """A poll that fails is repeated, or ends the link to one peer: other connections are not affected."""
        self.patch(completions, "_QUIET_SECONDS", 0.0)  # so that their number does not stop a reader
        calls = FailingCalls(self.patch, lambda name: ResourceExhausted(f"{name} fails"))
        for owner, name in POLLS:
            calls.watch(owner, name)
        await self.check(calls)

    async def test_failingSystemCalls(self: Any) -> None:
        """A system call that fails by EMFILE or ENOMEM affects only its own connection, and leaks nothing."""
        errors = {"memfd_create": ENOMEM, "mmap": ENOMEM, "sendmsg": ENOMEM}

        def error(name: str) -> Exception:
            number = errors.get(name, EMFILE)
            return OSError(number, os.strerror(number))

        calls = FailingCalls(self.patch, error)
        for owner, name in SYSTEM_CALLS:
            calls.watch(owner, name)
        await self.check(calls)


__all__ = ["EndpointCase", "FailingCallContract"]
