"""
Connections of which one call of one function raises an exception: all requests end, no data is invented or
lost silently, and a second connection of the same modules is not affected.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any
from unittest.mock import Mock

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionLost
from twisted.python.failure import Failure

from txrdma.btl.core.flow import MessageFlow
from txrdma.btl.errors import CallFailed, MessageFailed
from txrdma.btl.inbox import Inbox
from txrdma.btl.lifeline import PeerConnection
from txrdma.btl.memory import ConnectionMemory
from txrdma.btl.outbox import Outbox
from txrdma.btl.receivebuffers import RemoteReceiveBuffers
from txrdma.btl.requests import Answerer, Caller, PendingRequests
from txrdma.btl.transport import BTLMessageTransport
from txrdma.messages.memory import SharedMemory
from txrdma.messages.transport import MessageTransport
from txrdma.test.support.btl.hosts import HostsCase, TAG, TagRecorder
from txrdma.test.support.compiled import skipIfCompiled
from txrdma.test.support.interruptions import functionsOf

OWNERS: tuple[Any, ...] = (
    BTLMessageTransport,
    MessageTransport,
    PeerConnection,
    Outbox,
    Inbox,
    MessageFlow,
    ConnectionMemory,
    PendingRequests,
    Caller,
    Answerer,
    RemoteReceiveBuffers,
)
"""What a connection consists of."""

TRIVIAL = ("ended", "connectionLost", "_call", "_end", "_contain", "_finish")
"""Functions that contain exceptions of others, or begin the end of a connection."""

LONG = bytes(range(256)) * 1000
"""A message that is written by RDMA."""


class InterruptionTests(HostsCase):
    """
    Two connections, of which a function of one raises once: its requests end, it loses no message without an
    error, the exception is logged or reported once, and nothing is left.
    """

    slowBecause = "it plays two connections for each function"

    def setUp(self) -> None:
        super().setUp()
        self.memory: dict[TagRecorder, SharedMemory] = {}

    def owned(self, end: TagRecorder) -> list[Any]:
        """Return the objects of one end of a connection."""
        transport: Any = end.transport
        found = [transport, transport._lifeline, transport._outbox, transport._inbox, transport._flow]
        found += [transport._memory, transport._memory._reads, transport._caller, transport._answerer]
        return found

    def request(self, make: Callable[[], Deferred[Any]], expected: object = None) -> None:
        """Make a request of the victim; it may raise."""
        try:
            self.requests.append((make(), expected))
        except ZeroDivisionError:
            self.raised += 1

    def work(self, here: TagRecorder, there: TagRecorder) -> list[bytes]:
        """Exchange messages of all kinds; return those of the tag that are sent."""
        one, other = here.transport, there.transport
        sent = [b"%d" % number * 500 for number in range(4)] + [LONG]
        for each in sent:
            self.request(lambda each=each: one.send(TAG, each))  # type: ignore[misc]
            self.request(lambda each=each: one.send(9, each))  # type: ignore[misc]
        memory = self.memory[there]
        self.request(lambda: one.sendMany(TAG, [b"many"] * 3))
        for number in range(3):
            self.request(lambda: one.call(1, b"abc"), b"cba")
            self.request(lambda: one.write(memory.name, b"written" * 100))
            self.request(lambda: one.read(memory.name, 4, 4000), bytes(4))
            try:
                one.sendMessage(b"message%d" % number)
            except ZeroDivisionError:
                self.raised += 1
        self.request(one.ready)
        for each in sent[:3]:
            self.request(lambda: other.receive(9), each)
        return [*sent, *[b"many"] * 3]

    def replaced(self, owner: Any, name: str, called: Callable[[], None], objects: list[Any]) -> Any:
        """Call C{called} before a function, if its first argument is one of these objects."""
        usual = getattr(owner, name)

        def replacement(*arguments: Any, **named: Any) -> Any:
            if any(arguments[0] is each for each in objects):
                called()
            return usual(*arguments, **named)

        return self.patch(owner, name, replacement)

    def play(
        self, functions: Iterable[tuple[Any, str]], called: Callable[[Any, str], None], end: int
    ) -> list[str]:
        """
        Let two connections work and close, and return what is wrong.

        @param called: called before each call of these functions of one end of the first one; may raise.
        """
        self.raised, self.escaped, wrong = 0, 0, list[str]()
        self.requests: list[tuple[Deferred[Any], object]] = []
        victims, bystanders = self.connected(), self.connected()
        for each in (victims[1], bystanders[1]):
            each.transport.answer(1, lambda data: data[::-1])
            self.memory[each] = each.transport.share(5000)
        objects = self.owned(victims[end])
        patchers = [
            self.replaced(owner, name, partial(called, owner, name), objects) for owner, name in functions
        ]

        def wait(condition: Callable[[], object], what: str, seconds: float = 30.0) -> None:
            if not self.waitAnyway(condition, seconds):
                wrong.append(what)

        sent = self.work(*victims)
        wait(lambda: all(each.called for each, _ in self.requests), "requests hang", 10)
        for each in victims:
            if not each.lost:
                try:
                    each.transport.loseConnection()
                except ZeroDivisionError:
                    self.raised += 1
        wait(lambda: all(each.lost for each in victims), "no connectionLost", 100)
        texts = []
        for number, (outcome, expected) in enumerate(self.requests):
            found: list[Any] = []
            outcome.addBoth(found.append)
            if not found:
                wrong.append(f"request {number} hangs")
            elif isinstance(found[0], Failure):
                texts.append(str(found[0].value))
                if not found[0].check(MessageFailed, CallFailed, ZeroDivisionError):
                    wrong.append(f"failed with {found[0].value!r}")
            elif found[0] != expected and not (self.raised and found[0] in sent):
                wrong.append(f"request {number} has a wrong result")
        received = Counter(data for _tag, data in victims[1].tagged)
        if received - Counter(sent):
            wrong.append("messages were invented")
        hasFailed = bool(texts) or self.raised
        isClean = all(each.lost and each.ends == ["ConnectionDone"] for each in victims)
        if not hasFailed and isClean and received != Counter(sent):
            wrong.append("messages were lost silently")
        messages = [each[0] if isinstance(each, tuple) else each for each in victims[1].messages]
        if isClean and not self.raised and messages != [b"message0", b"message1", b"message2"]:
            wrong.append(f"untagged messages were lost silently: {messages}")
        self.requests = []
        bystanders[1].tagged.clear()
        sent = self.work(*bystanders)
        wait(lambda: all(each.called for each, _ in self.requests), "the bystander hangs")
        for outcome, expected in self.requests:
            if self.successResultOf(outcome) != expected:
                wrong.append("a bystander's request has a wrong result")
        if Counter(data for _tag, data in bystanders[1].tagged) != Counter(sent):
            wrong.append("messages of the bystander were lost")
        for each in bystanders:
            each.transport.loseConnection()
        wait(lambda: all(each.lost for each in bystanders), "bystander not closed")
        for patcher in patchers:
            patcher.restore()
        self.flushLoggedErrors(MessageFailed)  # of requests that have raised
        logged = len(self.flushLoggedErrors(ZeroDivisionError)) + self.escaped
        if logged > 1 or (len(patchers) == 1 and not (logged or hasFailed)):
            wrong.append(f"it was logged {logged} times")
        self.assertNothingLeft()
        return wrong

    def playEach(self, end: int) -> None:
        """Play once for each function that is called, and let its second call raise, or its only one."""
        functions = [(owner, name) for owner in OWNERS for name in functionsOf(owner, TRIVIAL)]
        counts: Counter[tuple[Any, str]] = Counter()
        self.assertEqual(self.play(functions, lambda *function: counts.update([function]), end), [])
        self.assertGreater(len(counts), len(functions) // 4)
        for owner, name in counts:
            calls, last = itertools.count(1), min(counts[owner, name], 2)

            def called(*_function: object, calls: Iterator[int] = calls, last: int = last) -> None:
                if next(calls) == last:
                    raise ZeroDivisionError("a test's")

            self.assertEqual(self.play([(owner, name)], called, end), [], (owner.__name__, name))

    def test_client(self) -> None:
        """The end that makes the requests."""
        self.playEach(0)

    def test_server(self) -> None:
        """The end that answers them."""
        self.playEach(1)

    def test_unknownLoss(self) -> None:
        """If it is not known what the peer has received, the connection is lost; no number is invented."""
        skipIfCompiled()
        client, server = self.connected()
        transport: Any = client.transport
        outbox = Mock(wraps=transport._outbox)
        outbox.takeAll.side_effect = ZeroDivisionError
        self.patch(transport, "_outbox", outbox)
        reasons: list[Failure] = []
        self.patch(client, "connectionLost", reasons.append)
        server.transport.loseConnection()
        self.pause(1.0)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        [reason] = reasons
        self.assertTrue(reason.check(ConnectionLost))
        self.assertIn("it is not known", str(reason.value))

    def test_exit(self) -> None:
        """A handler that ends the program, which decides otherwise, does not stop the module."""
        bystanders = self.connected()
        client, server = self.connected()
        server.transport.setHandler(TAG, Mock(side_effect=[SystemExit, None]))
        client.transport.post(TAG, bytes(700))
        client.transport.post(TAG, bytes(700))
        self.pause(1.0)
        self.assertEqual(len(self.flushLoggedErrors(SystemExit)), 1)
        for here, there in (bystanders, bystanders[::-1]):
            self.outcome(here.transport.send(TAG, b"well"))
            self.assertEqual(there.tagged, [(TAG, b"well")])
