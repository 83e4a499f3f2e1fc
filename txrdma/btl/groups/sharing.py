"""
Memory that all members of a group share, if all of them are processes of one user on one host.

The member of rank 0 makes the memory, and offers the others its own process ID and descriptor, by the
connections on which they have proved their ranks. The others open the descriptor in C{/proc}, which the
kernel allows to processes of the same user only. They use the memory if it contains the random number of the
offer, so it cannot be another file of another host or process namespace.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Awaitable, Callable
from secrets import token_bytes
from time import perf_counter
from typing import Any, Final

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from txrdma.btl.groups._sharedalgorithms import SharedAlgorithms
from txrdma.btl.groups._slots import memoryBytes, NONCE_BYTES, Slots, SlotWait
from txrdma.kit.delayedcalls import cancelCall
from txrdma.kit.logs import errorText
from txrdma.kit.wire import bits, data, Layout, wire
from txrdma.unix.mapping import closeMapping, mapped, sealedLength, sealedMemory
from txrdma.unix.sharing import whyNoSharedMemory
from txrdma.unix.sockets import isSameUser

_log = Logger()

_yieldProcessor: Final[Callable[[], object]] = getattr(os, "sched_yield", lambda: None)  # PyPy may lack it

POLL_SECONDS: Final = 300e-6
"""Seconds for which a member polls for another one, before it sleeps, besides L{WORK_SECONDS}."""

WORK_SECONDS: Final = 100e-6
"""The same for each unit of work (L{Slots}) of the step, which the other one may still have to do."""

MOST_PAUSE: Final = 256
"""Maximum number of waits without polling after a poll without a result; it doubles with each in a row."""

TURN_WORK: Final = 64
"""Work of L{Slots} after which the result of an operation is reported in the next reactor iteration: at all
members at the same time, so that none waits for long."""

TURN_SECONDS: Final = 20e-3
"""Seconds after which the reactor runs other work in any case."""


@wire(72)
class MemoryOffer(Layout):
    """
    Memory that the member of rank 0 offers to the others.

    @ivar process: its process ID, or 0 if it has no memory; C{descriptor}: number of its descriptor.
    @ivar nonce: the last bytes of the memory.
    """

    process: int = bits(32)
    descriptor: int = bits(32)
    nonce: bytes = data(NONCE_BYTES)


class GroupMemory:
    """
    The memory that a member shares with all others, and the waits for them.

    A member polls for a while, unless polling has recently found nothing. Between polls it yields the
    processor to other processes, including members on the same processor.

    @ivar algorithms: schedules of the operations.
    @ivar pollSeconds: seconds for which this member polls for another one, see L{POLL_SECONDS}.
    """

    pollSeconds = POLL_SECONDS

    def __init__(
        self,
        reactor: IReactorTime,
        memory: mmap.mmap,
        rank: int,
        size: int,
        seconds: Callable[[], float] = perf_counter,
        yieldProcessor: Callable[[], object] = _yieldProcessor,
    ) -> None:
        """
        @param memory: of L{memoryBytes} bytes, which are zero except for the last page.
        @param seconds: returns the time; C{yieldProcessor} lets other processes run.
        """
        self.slots = Slots(memoryview(memory), rank, size)
        self.algorithms = SharedAlgorithms(self.slots, size)
        self._reactor, self._memory, self._seconds = reactor, memory, seconds
        self._pause = self._nextPause = 0
        self._yield = yieldProcessor
        self._turn: IDelayedCall | None = None
        self._turnEnds, self._mostWork = 0.0, 0

    def poll(self, wait: SlotWait) -> bool:
        """
        Wait for a limited time.

        @return: whether all members have published the step. If not, a missing one wakes this one.
        """
        slots, (step, ranks) = self.slots, wait
        slots.awake()
        now = until = self._seconds()
        last: int | None = None
        patience = 0.0 if self._pause else self.pollSeconds + WORK_SECONDS * slots.lastWork
        self._pause = max(0, self._pause - 1)
        while (rank := slots.missing(step, ranks)) is not None:
            if rank != last:
                last, until = rank, now + patience
            if now >= until:
                slots.sleep(rank)
                if slots.missing(step, (rank,)) is not None:
                    break
                slots.awake()
            self._yield()
            now = self._seconds()
        if patience and last is not None:
            # On a busy machine a yield takes long, since others take the processor: then sleeping is better.
            isWorthwhile = rank is None and now < until
            self._pause = self._nextPause = 0 if isWorthwhile else min(2 * self._nextPause or 1, MOST_PAUSE)
        return rank is None

    def isTurnOver(self, resume: Callable[[], None], isComplete: bool = False) -> bool:
        """
        Return whether the reactor has to run others before the next step.

        @param resume: called in the next reactor iteration.
        @param isComplete: whether an operation is complete, so that its data need not be copied.
        """
        now = self._seconds()
        if self._turn is None:
            self._turn = self._reactor.callLater(0, self._nextTurn, resume)
            self._turnEnds, self._mostWork = now + TURN_SECONDS, self.slots.work | (TURN_WORK - 1)
        return now > self._turnEnds or (isComplete and self.slots.work > self._mostWork)

    def _nextTurn(self, resume: Callable[[], None]) -> None:
        self._turn = None
        resume()

    def close(self) -> None:
        """Stop using the shared memory, and unmap it."""
        cancelCall(self._turn)
        self.algorithms.close()
        closeMapping(self._memory)


class Offered:
    """Memory that this member offers, or that it has opened: C{mapping}, or None if it has none."""

    def __init__(self, size: int) -> None:
        self.mapping: mmap.mmap | None = None
        self._descriptor, self._length = -1, memoryBytes(size)

    def make(self) -> MemoryOffer:
        """Make memory, and return the offer for other members; L{closeDescriptor} withdraws it."""
        nonce = token_bytes(NONCE_BYTES)
        try:
            reason = whyNoSharedMemory()
            if not reason:
                self._descriptor, self.mapping = sealedMemory("txrdma-group", self._length)
                self.mapping[-NONCE_BYTES:] = nonce
                return MemoryOffer(process=os.getpid(), descriptor=self._descriptor, nonce=nonce)
        except OSError as error:
            reason = errorText(error)
        _log.debug("The members of a group do not share memory: {reason}", reason=reason)
        return MemoryOffer(process=0, descriptor=0, nonce=nonce)

    def take(self, offer: MemoryOffer) -> None:
        """Open memory that another member offers."""
        try:
            if offer.process and not whyNoSharedMemory():
                path = f"/proc/{offer.process}/fd/{offer.descriptor}"
                self._descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)  # has no effects, whatever it is
                self.mapping = self._checked(offer.nonce)
        except (OSError, ValueError) as error:
            _log.debug(
                "This member uses messages, without shared memory of its group: {error}",
                error=errorText(error),
            )
        self.closeDescriptor()

    def _checked(self, nonce: bytes) -> mmap.mmap | None:
        found = os.fstat(self._descriptor)
        if not stat.S_ISREG(found.st_mode) or not isSameUser(found.st_uid) or found.st_size != self._length:
            raise ValueError("the offered descriptor is another file")
        descriptor = os.open(f"/proc/self/fd/{self._descriptor}", os.O_RDWR | os.O_CLOEXEC)
        try:
            sealedLength(descriptor)
            mapping = mapped(descriptor, self._length)
        finally:
            os.close(descriptor)
        if mapping[-NONCE_BYTES:] == nonce:
            return mapping
        mapping.close()
        raise ValueError("the offered memory has another number")

    def closeDescriptor(self) -> None:
        """Close the descriptor of the memory; the mapping remains."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def close(self) -> None:
        """Close the descriptor and unmap the memory, because the group does not use it."""
        self.closeDescriptor()
        if self.mapping is not None:
            closeMapping(self.mapping)


async def shareMemory(
    reactor: IReactorTime,
    rank: int,
    size: int,
    broadcast: Callable[[bytearray], Awaitable[Any]],
    least: Callable[[bytes], Awaitable[bytes]],
) -> GroupMemory | None:
    """
    Let all members of a group share memory: all of them have to call this.

    @param broadcast: copies the buffer of rank 0 to those of the others; C{least} returns the least of the
        bytes of all members.
    @return: the memory, or None if not all members can share it.
    """
    offered = Offered(size)
    try:
        buffer = bytearray(MemoryOffer.size)
        if rank == 0:
            buffer[:] = offered.make().encode()
        await broadcast(buffer)
        if rank != 0:
            offered.take(MemoryOffer.decode(buffer))
        allHaveIt = await least(bytes([offered.mapping is not None])) == bytes([True])
        offered.closeDescriptor()
    except BaseException:
        offered.close()
        raise
    if not allHaveIt or offered.mapping is None:
        offered.close()
        return None
    return GroupMemory(reactor, offered.mapping, rank, size)
