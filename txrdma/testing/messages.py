"""The contract of L{IMessageTransport}, L{IRemoteMemory} and L{IAtomicMemory}, as mixins for test cases."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from mmap import mmap
from pickle import PickleBuffer
from random import Random
from sys import byteorder
from typing import Any, Final
from unittest import SkipTest

from zope.interface.verify import verifyObject

from twisted.internet.defer import Deferred, gatherResults

from txrdma.error import InvalidRequest, RDMAError
from txrdma.messages.address import MessageAddress
from txrdma.messages.interfaces import IAtomicMemory, IMessageProtocol, IMessageTransport, IRemoteMemory
from txrdma.testing.protocols import MessageRecorder, ProducerRecorder
from txrdma.testing.reactors import Base

_MOST_SENT: Final = 10000
"""Number of messages after which a producer must have been paused."""


_LONG: Final = 500_000
_MOST_LONG_SENT: Final = 20


class MessageEnds(Base):
    """
    Two connected protocols.

    A suite inherits contracts and C{SynchronousTestCase}, and implements L{connectedBy} and L{waitUntil}.
    """

    def connectedBy(self, one: MessageRecorder, other: MessageRecorder) -> None:
        """Connect two protocols with each other."""
        raise NotImplementedError

    def waitUntil(self, condition: Callable[[], object], seconds: float = 30.0) -> None:
        """Let time pass until a condition is true; fail after a time limit."""
        raise NotImplementedError

    def connectedEnds(self) -> tuple[MessageRecorder, MessageRecorder]:
        """Connect two protocols that record what they receive."""
        one, other = MessageRecorder(), MessageRecorder()
        self.connectedBy(one, other)
        return one, other

    def finished(self, deferred: Deferred[Any]) -> Deferred[Any]:
        """Let time pass until a Deferred has fired."""
        self.waitUntil(lambda: deferred.called)
        return deferred


class MessageContract(MessageEnds):
    """
    The promises of message connections.

    @cvar longest: length of the longest tested message that is short, in bytes.
    """

    longest = 4096

    def test_contractInterface(self) -> None:
        """Protocol and transport provide their interfaces, and both ends have the same addresses."""
        one, other = self.connectedEnds()
        for end, peer in ((one, other), (other, one)):
            verifyObject(IMessageProtocol, end)
            verifyObject(IMessageTransport, end.transport)
            here, there = end.transport.getHost(), peer.transport.getPeer()
            self.assertEqual({type(here), type(there)}, {MessageAddress})
            self.assertEqual((here, here.host, here.port), (there, there.host, there.port))

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

    def test_contractInvalidMessages(self) -> None:
        """Objects without bytes, and immediate data of more than 32 bits, are refused without effect."""
        one, other = self.connectedEnds()
        invalid: list[tuple[Any, ...]] = [(5,), ([1],), ("text",), (None,), (memoryview(b"abcd")[::2],)]
        invalid += [(b"x", number) for number in (1 << 32, -1, 1.5, "7")]
        for arguments in invalid:
            self.assertRaises(InvalidRequest, one.transport.sendMessage, *arguments)
        one.transport.sendMessage(array("d", [1.0, 2.0]), (1 << 32) - 1)
        self.waitUntil(lambda: other.messages)
        self.assertEqual(other.messages, [(array("d", [1.0, 2.0]).tobytes(), (1 << 32) - 1)])
        self.assertEqual((one.ends, other.ends), ([], []))

    def test_contractLongMessages(self) -> None:
        """Long and short messages arrive in order, in both directions, also before a close."""
        one, other = self.connectedEnds()
        content = Random(3).randbytes(1_000_000)
        lengths = (5, 100_000, 7, self.longest + 1, 64, 1_000_000, 20_000, 0)
        output = [(content[:length], None if n % 3 else 7 * n) for n, length in enumerate(lengths)]
        for data, immediate in output:
            one.transport.sendMessage(data, immediate)
            other.transport.sendMessage(data, immediate)
        self.waitUntil(lambda: len(other.messages) == len(output) == len(one.messages))
        for data, immediate in output:
            one.transport.sendMessage(data, immediate)
        one.transport.loseConnection()
        self.waitUntil(lambda: one.ends and other.ends)
        self.assertTrue((one.messages, other.messages) == (output, output * 2), "messages differ")
        self.assertEqual((one.ends, other.ends), (["ConnectionDone"], ["ConnectionDone"]))

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

    def test_contractProducerOfLongMessages(self) -> None:
        """A few messages that are long enough pause a producer, too."""
        one, other = self.connectedEnds()
        other.transport.pauseProducing()
        producer = ProducerRecorder()
        one.transport.registerProducer(producer, True)
        sent = 0
        while not producer.calls and sent < _MOST_LONG_SENT:
            one.transport.sendMessage(bytes(_LONG))
            sent += 1
        self.assertEqual(producer.calls, ["pause"])
        other.transport.resumeProducing()
        self.waitUntil(lambda: len(other.messages) == sent and len(producer.calls) > 1)
        self.assertEqual(producer.calls, ["pause", "resume"])

    def test_contractProducerInMessage(self) -> None:
        """A producer is paused at once, also by messages that are sent in C{messageReceived}."""
        one, other = self.connectedEnds()
        producer = ProducerRecorder()
        one.transport.registerProducer(producer, True)
        calls: list[str] = []

        def sending(data: bytes, immediate: int | None) -> None:
            sent = 0
            while not producer.calls and sent < _MOST_SENT:
                one.transport.sendMessage(bytes(self.longest))
                sent += 1
            calls.extend(producer.calls)

        one.messageReceived = sending  # type: ignore[method-assign]  # of this instance
        other.transport.sendMessage(b"send")
        self.waitUntil(lambda: calls or len(other.messages) == _MOST_SENT)
        self.assertEqual(calls, ["pause"])
        self.waitUntil(lambda: len(producer.calls) > 1)
        self.assertEqual(producer.calls, ["pause", "resume"])

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
        """Connect two ends, of which one sends messages and closes while the other is paused."""
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

    def test_contractPausedAtLast(self) -> None:
        """A protocol that pauses at each message gets the end when it resumes after the last one."""
        one, other = self.connectedEnds()
        record = other.messageReceived

        def pausing(data: bytes, immediate: int | None) -> None:
            record(data, immediate)
            other.transport.pauseProducing()

        other.messageReceived = pausing  # type: ignore[method-assign]  # of this instance
        for number in range(3):
            one.transport.sendMessage(bytes([number]))
        one.transport.loseConnection()
        self.waitUntil(lambda: one.ends)
        for count in (1, 2, 3):
            self.assertEqual((len(other.messages), other.ends), (count, []))
            other.transport.resumeProducing()
        self.waitUntil(lambda: other.ends)
        self.assertEqual((len(other.messages), other.ends), (3, ["ConnectionDone"]))

    def test_contractPausedEmpty(self) -> None:
        """A paused protocol that has received everything gets the end when it resumes."""
        one, other = self.connectedEnds()
        other.transport.pauseProducing()
        one.transport.loseConnection()
        self.waitUntil(lambda: one.ends)
        self.assertEqual(other.ends, [])
        other.transport.resumeProducing()
        self.waitUntil(lambda: other.ends)
        self.assertEqual(other.ends, ["ConnectionDone"])

    def test_contractPausedClose(self) -> None:
        """A paused protocol that closes first gets the end without resuming, and no more messages."""
        one, other = self.connectedEnds()
        other.transport.pauseProducing()
        one.transport.sendMessage(b"not received")
        one.transport.sendMessage(b"neither")
        other.transport.sendMessage(b"last")
        self.waitUntil(lambda: one.messages)
        other.transport.loseConnection()
        self.waitUntil(lambda: one.ends and other.ends)
        self.assertEqual((one.messages, other.messages), ([(b"last", None)], []))
        self.assertEqual(other.ends, ["ConnectionDone"])

    def test_contractClosedInMessage(self) -> None:
        """A protocol that closes in C{messageReceived}, after its peer has closed, receives all messages."""
        _one, other = self.pausedAtEnd()
        record = other.messageReceived

        def closing(data: bytes, immediate: int | None) -> None:
            record(data, immediate)
            other.transport.loseConnection()

        other.messageReceived = closing  # type: ignore[method-assign]  # of this instance
        other.transport.resumeProducing()
        self.waitUntil(lambda: other.ends)
        self.assertEqual([data[0] for data, _ in other.messages], [0, 1, 2])
        self.assertEqual(other.ends, ["ConnectionDone"])

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
        """An abort reports C{ConnectionAborted} locally, and ends the connection at the peer."""
        one, other = self.connectedEnds()
        one.transport.abortConnection()
        self.waitUntil(lambda: one.ends and other.ends)
        self.assertEqual(one.ends, ["ConnectionAborted"])
        self.assertEqual(len(other.ends), 1)


class RemoteMemoryContract(MessageEnds):
    """The promises of connections whose ends read and write each other's memory."""

    def test_contractRemoteMemory(self) -> None:
        """Names of 16 bytes arrive in messages; bytes can be read and written at any offset."""
        one, other = self.connectedEnds()
        verifyObject(IRemoteMemory, one.transport)
        shared = one.transport.share(4096)
        self.assertEqual((len(shared.name), bytes(shared.view)), (16, bytes(4096)))
        one.transport.sendMessage(shared.name)
        self.waitUntil(lambda: other.messages)
        ((name, _),) = other.messages
        shared.view[:5] = b"hello"
        self.assertEqual(self.successResultOf(self.finished(other.transport.read(name, 5))), b"hello")
        self.assertIsNone(self.successResultOf(self.finished(other.transport.write(name, b"world", 4091))))
        self.assertEqual(bytes(shared.view[4090:]), b"\0world")
        self.assertEqual(self.successResultOf(self.finished(other.transport.read(name, 5, 4091))), b"world")
        self.assertEqual(self.successResultOf(self.finished(other.transport.read(name, 0, 7))), b"")
        self.successResultOf(self.finished(other.transport.write(name, b"", 4096)))
        self.assertEqual((one.ends, other.ends), ([], []))

    def test_contractManyRequests(self) -> None:
        """Many reads and writes at the same time, of all lengths and in both directions, are correct."""
        one, other = self.connectedEnds()
        content = Random(7).randbytes(60_000)
        requests: list[Deferred[Any]] = []
        copies = [end.transport.share(60_000) for end in (one, other)]
        sources = [end.transport.share(bytearray(content)) for end in (one, other)]
        lengths = [1, 7, 64, 65, 4096, 30_000, 5000, 20_767]
        for end, copy, source in ((one, copies[1], sources[1]), (other, copies[0], sources[0])):
            offset = 0
            for length in lengths:
                requests.append(end.transport.write(copy.name, content[offset : offset + length], offset))
                requests.append(end.transport.read(source.name, length, offset))
                offset += length
            requests += [end.transport.read(source.name, 3, number) for number in range(100)]
        results = self.successResultOf(self.finished(gatherResults(requests)))
        self.assertEqual([bytes(copy.view) for copy in copies], [content, content])
        for half in (results[:116], results[116:]):
            self.assertEqual(b"".join(half[1:16:2]), content)
            self.assertEqual(half[16:], [content[number : number + 3] for number in range(100)])

    def test_contractOwnBuffers(self) -> None:
        """Buffers of the application are shared without copying, and released by C{close}."""
        one, other = self.connectedEnds()
        numbers, text, mapped = array("d", range(100)), bytearray(b"abcdef"), mmap(-1, 5000)
        part = memoryview(bytearray(20))[10:]
        shared = [one.transport.share(buffer) for buffer in (numbers, text, mapped, part)]
        for each in shared:
            self.successResultOf(self.finished(other.transport.write(each.name, b"ABC", 1)))
        self.assertEqual((bytes(numbers)[1:4], text, mapped[:5]), (b"ABC", b"aABCef", b"\0ABC\0"))
        self.assertEqual(bytes(part), b"\0ABC" + bytes(6))
        self.successResultOf(self.finished(other.transport.write(shared[0].name, array("d", [7.0]), 792)))
        self.assertEqual(numbers[99], 7.0)
        mapped[4990:4995] = b"there"
        reading = self.finished(other.transport.read(shared[2].name, 5, 4990))
        self.assertEqual(self.successResultOf(reading), b"there")
        for each in shared:
            each.close()
            each.close()
        text += b"longer"
        numbers.append(1.0)
        mapped.close()
        part.release()
        self.assertEqual((one.ends, other.ends), ([], []))

    def test_contractNumPyArrays(self) -> None:
        """Arrays of NumPy are shared without copying, and their bytes are written, in C order."""
        try:
            import numpy
        except ImportError:
            raise SkipTest("NumPy is not installed") from None
        one, other = self.connectedEnds()
        table = numpy.zeros((3, 4), "f8")
        shared, allocated = one.transport.share(table), one.transport.share(16)
        row = numpy.array([1.0, 2.0, 3.0, 4.0])
        self.successResultOf(self.finished(other.transport.write(shared.name, row, row.nbytes)))
        self.assertEqual(table.tolist(), [[0.0] * 4, row.tolist(), [0.0] * 4])
        table[2] = 7.0
        found = self.successResultOf(self.finished(other.transport.read(shared.name, 32, 64)))
        self.assertEqual(numpy.frombuffer(found).tolist(), [7.0] * 4)
        pair = numpy.frombuffer(allocated.view, "f8")
        self.successResultOf(self.finished(other.transport.write(allocated.name, row[1:3])))
        self.assertEqual(pair.tolist(), [2.0, 3.0])
        for memory in (table.T, table[:, ::2], numpy.frombuffer(bytes(8))):
            self.assertRaises(InvalidRequest, one.transport.share, memory)
        shared.close()
        self.assertEqual((one.ends, other.ends), ([], []))

    def test_contractResized(self) -> None:
        """A buffer cannot be enlarged while its write is queued, which would write more than was checked."""
        one, other = self.connectedEnds()
        shared, data = one.transport.share(60_000), bytearray(b"short")
        requests = [other.transport.write(shared.name, bytes(30_000)) for _ in range(100)]
        requests.append(other.transport.write(shared.name, data, 30_000))
        try:
            data += b"longer"
        except BufferError:
            pass
        self.successResultOf(self.finished(gatherResults(requests)))
        self.assertEqual(bytes(shared.view[30_000:30_012]), b"short" + bytes(7))
        data += b"longer"

    def test_contractResizedAfterwards(self) -> None:
        """Callbacks of a write can resize its buffer, when it has succeeded and when it has failed."""
        one, other = self.connectedEnds()
        shared = one.transport.share(60_000)
        buffers = [bytearray(b"x" * 30_000) for _ in range(100)]
        for _ in range(2):
            requests = [other.transport.write(shared.name, each) for each in buffers]
            for request, data in zip(requests, buffers, strict=True):
                request.addBoth(lambda _, data=data: data.pop())
            popped = self.successResultOf(self.finished(gatherResults(requests)))
            self.assertEqual(popped, [ord("x")] * 100)
            shared.close()

    def test_contractCancelled(self) -> None:
        """A queued write that is cancelled is not executed, and releases its buffer."""
        one, other = self.connectedEnds()
        shared, data = one.transport.share(60_000), bytearray(30_000)
        requests = [other.transport.write(shared.name, bytes(30_000)) for _ in range(100)]
        cancelled = other.transport.write(shared.name, data, 30_000).addErrback(lambda _: data.clear())
        cancelled.cancel()
        self.successResultOf(cancelled)
        data += b"x" * 30_000
        self.successResultOf(self.finished(gatherResults(requests)))
        self.assertEqual(self.successResultOf(self.finished(other.transport.write(shared.name, b""))), None)
        self.assertEqual(bytes(shared.view), bytes(60_000))

    def test_contractUsedBuffers(self) -> None:
        """C{connectionLost} is called even if objects, as of NumPy, still use views of shared memory."""
        one, other = self.connectedEnds()
        for buffer in (100, bytearray(100), bytearray(100)):
            shared = one.transport.share(buffer)
            used = PickleBuffer(shared.view)
            self.addCleanup(used.release)
        shared.close()
        waiting = other.transport.read(one.transport.share(10).name, 10)
        self.assertEqual(self.successResultOf(self.finished(waiting)), bytes(10))
        one.transport.loseConnection()
        self.waitUntil(lambda: one.ends and other.ends)
        self.assertEqual((one.ends, other.ends), (["ConnectionDone"], ["ConnectionDone"]))

    def test_contractReleasedViews(self) -> None:
        """A program may release the view of shared memory, as C{with} does, while the peer accesses it."""
        one, other = self.connectedEnds()
        for buffer in (100, bytearray(100)):
            shared = one.transport.share(buffer)
            with shared.view as view:
                view[:5] = b"hello"
            self.successResultOf(self.finished(other.transport.write(shared.name, b"w", 5)))
            reading = self.finished(other.transport.read(shared.name, 6))
            self.assertEqual(self.successResultOf(reading), b"hellow")
            shared.close()
            if isinstance(buffer, bytearray):
                buffer += b"longer"
        self.assertEqual((one.ends, other.ends), ([], []))

    def test_contractInvalidMemory(self) -> None:
        """Ranges outside of shared memory, invalid names and other memory raise C{InvalidRequest}."""
        one, other = self.connectedEnds()
        name, transport = one.transport.share(100).name, other.transport
        for arguments in ((name, 101), (name, 1, 100), (name, 1, -1), (name, -1, 5), (b"", 0), (name[1:], 5)):
            self.assertRaises(InvalidRequest, transport.read, *arguments)
        for refused in ((name, bytes(101)), (name, b"x", 100), (name, b"x", -1), (b"", b"x")):
            self.assertRaises(InvalidRequest, transport.write, *refused)
        beyond = b"\xff" * 8 + name[8:]  # an address near the end of the address space, as a peer may send it
        self.assertRaises(InvalidRequest, transport.read, beyond, 5, 90)
        for offset in (1.5, "1"):
            self.assertRaises(TypeError, transport.read, name, 5, offset)
            self.assertRaises(TypeError, transport.write, name, b"x", offset)
        for memory in (0, -1, b"read only", bytearray(), memoryview(bytearray(9))[::2]):
            self.assertRaises(InvalidRequest, transport.share, memory)
        self.assertEqual(self.successResultOf(self.finished(transport.read(name, 100))), bytes(100))

    def closedName(self) -> tuple[MessageRecorder, bytes]:
        """Return an end, and the name of memory that its peer has closed."""
        one, other = self.connectedEnds()
        shared = one.transport.share(100)
        shared.close()
        return other, shared.name

    def test_contractReadOfClosedMemory(self) -> None:
        """A read of memory that was closed fails."""
        end, name = self.closedName()
        self.failureResultOf(self.finished(end.transport.read(name, 1)), RDMAError)

    def test_contractWriteToClosedMemory(self) -> None:
        """A write to memory that was closed fails."""
        end, name = self.closedName()
        self.failureResultOf(self.finished(end.transport.write(name, b"x")), RDMAError)

    def test_contractReleasedMemory(self) -> None:
        """The end of a connection releases buffers, leaves allocated memory readable, and fails requests."""
        one, other = self.connectedEnds()
        buffer = bytearray(100)
        shared, allocated = one.transport.share(buffer), one.transport.share(100)
        allocated.view[:5] = b"hello"
        one.transport.loseConnection()
        self.waitUntil(lambda: one.ends and other.ends)
        buffer += b"longer"
        self.assertEqual(bytes(allocated.view[:5]), b"hello")
        self.assertRaises(InvalidRequest, one.transport.share, 100)
        for late in (other.transport.read(shared.name, 5), other.transport.write(shared.name, b"x")):
            self.failureResultOf(late)
        shared.close()
        allocated.close()


class AtomicMemoryContract(MessageEnds):
    """The promises of connections whose ends change numbers in each other's memory atomically."""

    def test_contractAtomics(self) -> None:
        """Both operations return the previous value; a swap needs the expected one, an addition wraps."""
        one, other = self.connectedEnds()
        verifyObject(IAtomicMemory, other.transport)
        shared = one.transport.share(16)
        name, transport = shared.name, other.transport
        shared.view[8:] = (5).to_bytes(8, byteorder)
        found = [
            transport.fetchAndAdd(name, 7, 8),
            transport.compareAndSwap(name, 11, 1, 8),
            transport.compareAndSwap(name, 12, 2, 8),
            transport.fetchAndAdd(name, -3, 8),
            transport.fetchAndAdd(name, 1, 0),
        ]
        values = self.successResultOf(self.finished(gatherResults(found)))
        self.assertEqual(values, [5, 12, 12, 2, 0])
        self.assertEqual(shared.view.cast("Q").tolist(), [1, (1 << 64) - 1])

    def test_contractInvalidAtomics(self) -> None:
        """Numbers that are not aligned, not within the memory or too large raise C{InvalidRequest}."""
        one, other = self.connectedEnds()
        name, transport = one.transport.share(16).name, other.transport
        for offset in (4, 16, -8):
            self.assertRaises(InvalidRequest, transport.fetchAndAdd, name, 1, offset)
        self.assertRaises(InvalidRequest, transport.compareAndSwap, name, 1 << 64, 1)
        self.assertRaises(InvalidRequest, transport.compareAndSwap, name, 1, -1)
        self.assertRaises(TypeError, transport.fetchAndAdd, name, 1.5)
        self.assertRaises(TypeError, transport.compareAndSwap, name, 1, "2")
