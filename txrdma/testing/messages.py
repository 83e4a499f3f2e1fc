"""
The promises of every L{IMessageTransport}, as a mixin for test cases.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TYPE_CHECKING

from zope.interface.verify import verifyObject

from txrdma.messages.interfaces import IMessageProtocol, IMessageTransport
from txrdma.testing.protocols import MessageRecorder, ProducerRecorder

if TYPE_CHECKING:
    from twisted.trial.unittest import SynchronousTestCase

    Base = SynchronousTestCase
else:
    Base = object

_MOST_SENT: Final = 10000
"""Number of messages after which a producer must have been paused."""


class MessageContract(Base):
    """
    The promises of connections that carry messages.

    A suite inherits this and C{SynchronousTestCase}, and implements L{connectedBy} and L{waitUntil}.

    @cvar longest: length of the longest tested message, in bytes.
    """

    longest = 4096

    def connectedBy(self, one: MessageRecorder, other: MessageRecorder) -> None:
        """Connect two protocols with each other."""
        raise NotImplementedError

    def waitUntil(self, condition: Callable[[], object], seconds: float = 30.0) -> None:
        """Let time pass until a condition is true; fail if it never is."""
        raise NotImplementedError

    def connectedEnds(self) -> tuple[MessageRecorder, MessageRecorder]:
        """Connect two protocols that record what they receive."""
        one, other = MessageRecorder(), MessageRecorder()
        self.connectedBy(one, other)
        return one, other

    def test_contractInterface(self) -> None:
        """Protocol and transport provide their interfaces, and both ends have addresses."""
        one, other = self.connectedEnds()
        for end in (one, other):
            verifyObject(IMessageProtocol, end)
            verifyObject(IMessageTransport, end.transport)
            self.assertIsNotNone(end.transport.getHost())
            self.assertIsNotNone(end.transport.getPeer())

    def test_contractOrder(self) -> None:
        """Messages of all lengths arrive once and in order, with their immediate data, in both directions."""
        one, other = self.connectedEnds()
        lengths = [0, 1, 64, 700, self.longest] * 20
        output = [(bytes([n]) * length, None if n % 3 else 7 * n) for n, length in enumerate(lengths)]
        for data, immediate in output:
            one.transport.sendMessage(data, immediate)
            other.transport.sendMessage(data, immediate)
        self.waitUntil(lambda: len(one.messages) >= len(output) <= len(other.messages))
        self.assertEqual(one.messages, output)
        self.assertEqual(other.messages, output)

    def test_contractPause(self) -> None:
        """A paused protocol receives no messages, and receives all of them after it resumes."""
        one, other = self.connectedEnds()
        other.transport.pauseProducing()
        for number in range(200):
            one.transport.sendMessage(bytes([number]) * 100)
        one.transport.sendMessage(b"x", 1)
        received: list[bool] = []
        other.transport.sendMessage(b"now")
        self.waitUntil(lambda: one.messages)
        self.assertEqual(other.messages, received)
        other.transport.resumeProducing()
        self.waitUntil(lambda: len(other.messages) == 201)
        self.assertEqual([data[0] for data, _ in other.messages[:200]], list(range(200)))

    def test_contractProducer(self) -> None:
        """A producer is paused while messages are queued, then resumed, and stopped at the end."""
        one, other = self.connectedEnds()
        other.transport.pauseProducing()
        producer = ProducerRecorder()
        one.transport.registerProducer(producer, True)
        self.assertRaises(RuntimeError, one.transport.registerProducer, ProducerRecorder(), True)
        sent = 0
        while not producer.calls and sent < _MOST_SENT:
            one.transport.sendMessage(bytes(self.longest))
            sent += 1
        self.assertEqual(producer.calls, ["pause"])
        other.transport.resumeProducing()
        self.waitUntil(lambda: len(other.messages) == sent and len(producer.calls) > 1)
        self.assertEqual(producer.calls, ["pause", "resume"])
        one.transport.abortConnection()
        self.waitUntil(lambda: one.ends and other.ends)
        late = ProducerRecorder()
        one.transport.registerProducer(late, True)
        self.assertEqual((producer.calls[2:], late.calls), (["stop"], ["stop"]))

    def test_contractEnd(self) -> None:
        """A close first delivers all messages, and both ends get C{ConnectionDone}."""
        one, other = self.connectedEnds()
        for number in range(50):
            one.transport.sendMessage(bytes([number]) * 500)
        one.transport.loseConnection()
        one.transport.sendMessage(b"too late")
        self.waitUntil(lambda: one.ends and other.ends)
        self.assertEqual([data[0] for data, _ in other.messages], list(range(50)))
        self.assertEqual((one.ends, other.ends), (["ConnectionDone"], ["ConnectionDone"]))

    def pausedAtEnd(self) -> tuple[MessageRecorder, MessageRecorder]:
        """Connect two ends, of which one closes after messages that the other, paused one has not taken."""
        one, other = self.connectedEnds()
        other.transport.pauseProducing()
        for number in range(3):
            one.transport.sendMessage(bytes([number]))
        one.transport.loseConnection()
        self.waitUntil(lambda: one.ends)
        return one, other

    def test_contractPausedEnd(self) -> None:
        """A paused protocol receives messages, and the end of a peer that has closed, when it resumes."""
        one, other = self.pausedAtEnd()
        self.assertEqual((other.messages, other.ends), ([], []))
        other.transport.resumeProducing()
        self.waitUntil(lambda: other.ends)
        self.assertEqual([data[0] for data, _ in other.messages], [0, 1, 2])
        self.assertEqual((one.ends, other.ends), (["ConnectionDone"], ["ConnectionDone"]))

    def test_contractClosedWhilePaused(self) -> None:
        """A paused protocol that closes after its peer has closed receives no more messages."""
        _one, other = self.pausedAtEnd()
        other.transport.loseConnection()
        self.waitUntil(lambda: other.ends)
        self.assertEqual((other.messages, other.ends), ([], ["ConnectionDone"]))

    def test_contractAbortedWhilePaused(self) -> None:
        """A paused protocol that aborts after its peer has closed receives no more messages."""
        _one, other = self.pausedAtEnd()
        other.transport.abortConnection()
        self.waitUntil(lambda: other.ends)
        self.assertEqual((other.messages, other.ends), ([], ["ConnectionAborted"]))

    def test_contractAbort(self) -> None:
        """An abort reports C{ConnectionAborted} to its own end, and ends the connection at the peer."""
        one, other = self.connectedEnds()
        one.transport.abortConnection()
        self.waitUntil(lambda: one.ends and other.ends)
        self.assertEqual(one.ends, ["ConnectionAborted"])
        self.assertEqual(len(other.ends), 1)
