"""
Shared by suites of connections between txrdma's C{smc:} endpoints and the kernel's AF_SMC sockets.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.protocol import Factory
from twisted.internet.task import deferLater

import txrdma
from txrdma.smc.handshake import _machine as _handshake
from txrdma.smc.kernel.sockdiag import KernelSocket, kernelSockets
from txrdma.smc.signalling import localclient as announcing
from txrdma.test.support.smc.ends import EndsTestCase, reactor
from txrdma.test.system.kernel import OUTSIDE
from txrdma.test.system.kernel.agent import Asking
from txrdma.test.system.kernel.smcprogram import chunks
from txrdma.testing.protocols import HalfCloseRecorder, Recorder

HERE, THERE = "10.77.0.1", "10.77.0.2"
UEID = "TXRDMA"
OURS = rf"device=pyverbs\:rxe0:ueid={UEID}:timeout=30"
END_SECONDS = 10.0
"""
Seconds until a killed program has ended: the kernel waits for 2 s for each answer of a peer, and longer for
acknowledgements.
"""

PROGRAM = str(Path(__file__).with_name("smcprogram.py"))


def environment() -> dict[str, str]:
    """Return the environment of processes that import this checkout, with unbuffered output."""
    checkout = str(Path(txrdma.__file__).parent.parent)
    paths = os.pathsep.join([checkout, *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    return {**os.environ, "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1"}


class KernelEnd(NamedTuple):
    """The kernel's end of a connection: the program's number for it, its inode and its port."""

    number: int
    inode: int
    port: int


class LocalEnd(HalfCloseRecorder):
    """
    txrdma's end of a connection, which computes a checksum of the received bytes.

    @ivar count: number of received bytes; C{checksum} is their CRC32.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = self.checksum = 0
        self.first = b""
        self._wanted: tuple[int, Deferred[None]] | None = None

    def anew(self) -> None:
        """Reset the count and the checksum."""
        self.count = self.checksum = 0
        self.first = b""

    def dataReceived(self, data: bytes) -> None:
        self.count += len(data)
        self.checksum = zlib.crc32(data, self.checksum)
        self.first = (self.first + data[:100])[:100]
        if self._wanted is not None and self.count >= self._wanted[0]:
            (_, deferred), self._wanted = self._wanted, None
            deferred.callback(None)

    def counting(self, count: int) -> Deferred[None]:
        """Return a Deferred that fires when that many bytes have been received in total."""
        deferred: Deferred[None] = Deferred()
        if self.count >= count:
            deferred.callback(None)
        else:
            self._wanted = count, deferred
        return deferred

    def sending(self, length: int, seed: int) -> Deferred[int]:
        """Write bytes as the transport accepts them; return a Deferred with their checksum."""
        return Pushing(self.transport, length, seed).done


class Pushing:
    """A pull producer of bytes."""

    def __init__(self, transport: Any, length: int, seed: int) -> None:
        self._transport = transport
        self._chunks = chunks(length, seed)
        self._checksum = 0
        self.done: Deferred[int] = Deferred()
        transport.registerProducer(self, False)

    def resumeProducing(self) -> None:
        chunk = next(self._chunks, None)
        if chunk is None:
            self._transport.unregisterProducer()
            self.done.callback(self._checksum)
        else:
            self._checksum = zlib.crc32(chunk, self._checksum)
            self._transport.write(chunk)

    def stopProducing(self) -> None:
        self._chunks = iter(())


class PatientTestCase(EndsTestCase):
    """txrdma's servers and clients over the kernel's devices."""

    skip = OUTSIDE

    def setUp(self) -> None:
        """Allow seconds for the handshake: emulated code opens a device slowly, and must not fall back."""
        super().setUp()
        self.patch(announcing, "ANSWER_SECONDS", 60.0)
        self.patch(_handshake, "CLC_TIMEOUT", 60.0)


class KernelPeerTestCase(EndsTestCase):
    """
    A test with a program that uses AF_SMC sockets.

    @ivar weListen: whether txrdma's end is the server.
    """

    skip = OUTSIDE
    timeout = 100
    weListen = False

    def setUp(self) -> None:
        super().setUp()
        self.program, self.process = self.start()

    def start(self) -> tuple[Any, subprocess.Popen[bytes]]:
        """Start a program; return the protocol that controls it, and its process."""
        localEnd, kernelEnd = socket.socketpair()
        with localEnd, kernelEnd:
            localEnd.setblocking(False)
            words = [sys.executable, PROGRAM, THERE]
            process = subprocess.Popen(words, stdin=kernelEnd.fileno(), stdout=kernelEnd.fileno())
            program = Asking()
            factory = Factory.forProtocol(lambda: program)
            reactor.adoptStreamConnection(localEnd.fileno(), socket.AF_UNIX, factory)
        self.addCleanup(self._stop, program, process)
        return program, process

    async def _stop(self, program: Any, process: subprocess.Popen[bytes]) -> None:
        """
        End the program, which Linux does only when all its connections have ended.

        The reactor must run meanwhile, as txrdma's ends take part in that.
        """
        program.transport.abortConnection()
        process.kill()
        await self.until(lambda: process.poll() is not None, END_SECONDS)

    async def pair(self, options: str = OURS, kind: type[Recorder] = LocalEnd) -> tuple[Any, KernelEnd]:
        """Return txrdma's end of a new connection, and the kernel's."""
        return await (await self.connector(options, kind))()

    async def connector(
        self, options: str = OURS, kind: type[Recorder] = LocalEnd
    ) -> Callable[[], Awaitable[tuple[Any, KernelEnd]]]:
        """Return a function that makes connections with one listener."""
        if self.weListen:
            factory, port = await self.serve(f"smc:{HERE}:0:{options}", kind)
            return partial(self.accepted, factory, port)
        listener = await self.program.call("listen")
        return partial(self.connected, listener, options, kind)

    async def connected(
        self, listener: list[int], options: str = OURS, kind: type[Recorder] = LocalEnd
    ) -> tuple[Any, KernelEnd]:
        """Connect txrdma's client to the program's listener; return both ends."""
        accepting = self.program.call("accept", listener=listener[0])
        localEnd = await self.connect(f"smc:{THERE}:{listener[2]}:bindAddress={HERE}:{options}", kind)
        return localEnd, KernelEnd(*await accepting)

    async def accepted(self, factory: Any, port: int) -> tuple[Any, KernelEnd]:
        """Connect the program to txrdma's listener; return both ends."""
        accepting = factory.next()
        kernelEnd = await self.program.call("connect", host=HERE, port=port)
        localEnd = await accepting
        self.addCleanup(self._disconnect, localEnd)  # over TCP it would end some time after the program
        return localEnd, KernelEnd(*kernelEnd)

    async def exchange(self, localEnd: LocalEnd, kernelEnd: KernelEnd, length: int) -> None:
        """Exchange bytes in both directions at once, and compare checksums."""
        localEnd.anew()
        begun = time.monotonic()
        taken = self.program.call("receive", number=kernelEnd.number, length=length)
        given = self.program.call("send", number=kernelEnd.number, length=length, seed=2)
        sent, (count, checksum, _), kernelChecksum, _ = await gatherResults(
            [localEnd.sending(length, 1), taken, given, localEnd.counting(length)]
        )
        self.seconds = time.monotonic() - begun
        self.assertEqual((count, checksum), (length, sent))
        self.assertEqual((localEnd.count, localEnd.checksum), (length, kernelChecksum))

    def kernelStatus(self, kernelEnd: KernelEnd) -> KernelSocket:
        """Return the status of the kernel's end, by sock_diag."""
        [found] = [each for each in kernelSockets() if each.inode == kernelEnd.inode]
        return found

    async def until(self, condition: Any, seconds: float = 30.0) -> None:
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                self.fail("the condition is not met")
            await deferLater(reactor, 0.02)
