"""
Long messages, which do not fit into a receive of the peer: it reads them from the sender's memory.

Both ends must have sent a greeting. The sender announces a message by two requests, which use a credit each:
an RDMA write of no bytes with L{ANNOUNCEMENT} as immediate data, and a SEND of the name of the memory, with
the immediate data of the program. The receiver queues this SEND among the messages. When it is the next one,
the receiver reads the memory, reports that by a write of no bytes with L{HAS_READ}, and delivers the message;
later ones wait (L{txrdma.cm.connections._life}). So a receiver reads one message at a time, and a sender
shares L{OUTSTANDING} at most. It reports messages behind a long one as sent when that was read, since the
receiver may close before.
"""

from __future__ import annotations

from typing import Final

from txrdma.cm.connections.receives import Part, ReceiveMemory
from txrdma.cm.connections.sendqueue import SendQueue
from txrdma.error import PeerViolation, WireError
from txrdma.iba.types import RKey
from txrdma.iba.verbs import Operation, SendRequest
from txrdma.interfaces import IQueuePair
from txrdma.messages.memory import MemoryName

HAS_READ: Final = 1 << 30
"""Immediate data of a write that reports that the oldest long message was read."""


class LongMessageReader:
    """
    Reads the long messages of a peer, one at a time.

    @ivar message: bytes and immediate data of a message that was read and is not delivered; else None.
    """

    __slots__ = ("_answers", "_due", "_identifier", "_immediate", "_memory", "_part", "_read", "message")

    def __init__(self, memory: ReceiveMemory) -> None:
        """@param memory: registered memory for the messages."""
        self._memory = memory
        self._part: Part | None = None
        self._read: SendRequest | None = None
        self._identifier = self._due = 0
        self._immediate: int | None = None
        self._answers: set[int] = set()
        self.message: tuple[bytes, int | None] | None = None

    @property
    def isIdle(self) -> bool:
        """Whether the peer has received all reports of read messages."""
        return not (self._due or self._answers)

    def begin(self, announced: bytes, immediate: int | None, shortest: int, longest: int) -> None:
        """
        Read a message at the next call of L{proceed}.

        @param announced: the name of the peer's memory.
        @param shortest: the length that a message must exceed to be long.
        @param longest: the length of the longest message that this end accepts.
        @raise PeerViolation: the name is invalid, or the message is too long or too short.
        @raise txrdma.error.ResourceExhausted: there is not enough memory.
        """
        try:
            name = MemoryName.decode(announced)
        except WireError as error:
            raise PeerViolation("it has announced a long message without a name") from error
        length = name.length
        if len(announced) != len(name.encode()) or not shortest < length <= longest:
            raise PeerViolation(f"it has announced a message of {length} bytes, more than {longest}")
        self._part = self._memory.take(1, 1 << (length - 1).bit_length())
        self._read = read = SendRequest(0, Operation.RDMA_READ)
        read.remoteAddress, read.rkey = name.address, RKey(name.key)
        read.segments = (self._part.fill(b"", length),)
        self._immediate = immediate

    def proceed(self, pair: IQueuePair, sends: SendQueue) -> None:
        """
        Post due requests while entries of the send queue are free.

        @raise txrdma.error.RDMAError: the queue pair takes no more requests.
        """
        if self._due:
            answer = SendRequest(0, Operation.RDMA_WRITE_WITH_IMMEDIATE, immediate=HAS_READ)
            identifier = sends.postOverhead(pair, answer)
            if identifier:
                self._due -= 1
                self._answers.add(identifier)
        if self._read is not None and not self._identifier:
            self._identifier = sends.postOverhead(pair, self._read)

    def completed(self, identifier: int) -> bool:
        """Handle the completion of any request; return True if a message has been read."""
        if identifier != self._identifier or self._part is None or self._read is None:
            self._answers.discard(identifier)
            return False
        (segment,) = self._read.segments
        self.message = self._part.message(0, segment.length), self._immediate
        self._due += 1
        self.end()
        return True

    def end(self) -> None:
        """Release the memory, which the queue pair does not use any more."""
        part, self._part, self._read, self._identifier = self._part, None, None, 0
        if part is not None:
            part.giveBack()
