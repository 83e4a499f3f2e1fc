"""
The two ends in two processes, on the real reactor: what a user has.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionLost
from twisted.internet.protocol import ProcessProtocol
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

import txrdma
from txrdma.test.smc.ends import EndsTestCase, reactor

SERVER = """
import signal
import sys
from twisted.internet import reactor
from twisted.internet.endpoints import serverFromString
from twisted.internet.protocol import Factory, Protocol

class Echo(Protocol):
    def dataReceived(self, data):
        self.transport.write(data)

def listening(port):
    print(port.getHost().port, flush=True)

serverFromString(reactor, sys.argv[1]).listen(Factory.forProtocol(Echo)).addCallback(listening)
reactor.run()
"""


class Process(ProcessProtocol):
    """A server in a process of its own."""

    transport: Any

    def __init__(self) -> None:
        self.listening: Deferred[int] = Deferred()
        self.ended: Deferred[None] = Deferred()
        self._said = b""

    def outReceived(self, data: bytes) -> None:
        self._said += data
        if b"\n" in self._said and not self.listening.called:
            self.listening.callback(int(self._said))

    def errReceived(self, data: bytes) -> None:
        sys.stderr.buffer.write(data)

    def processEnded(self, reason: Failure) -> None:
        self.ended.callback(None)


class TwoProcessesTests(EndsTestCase):
    """A server in another process."""

    async def start(self, text: str = "smc:127.0.0.1:0") -> tuple[Process, int]:
        process = Process()
        reactor.spawnProcess(
            process,
            sys.executable,
            [sys.executable, "-c", SERVER, text],
            env=None,
            path=str(Path(txrdma.__file__).parent.parent),
        )
        self.addCleanup(self._kill, process)
        return process, await process.listening

    async def _kill(self, process: Process) -> None:
        if not process.ended.called:
            process.transport.signalProcess("KILL")
            await process.ended

    async def test_echo(self) -> None:
        """Megabytes there and back by shared memory."""
        _, port = await self.start()
        one = await self.connect(f"smc:127.0.0.1:{port}:fallback=no")
        self.assertEqual(one.smc.route, "shared-memory")
        data = bytes(range(256)) * 20_000
        one.transport.write(data)
        self.assertEqual(await one.hearing(len(data)), data)

    async def test_rocev2(self) -> None:
        """The same by UDP, where port 4791 can be had by one of the two only."""
        _, port = await self.start(r"smc:127.0.0.1:0:device=soft\:route\=rocev2")
        one = await self.connect(rf"smc:127.0.0.1:{port}:fallback=no:device=soft\:route\=rocev2")
        self.assertEqual(one.smc.route, "rocev2")
        data = bytes(range(256)) * 2_000
        one.transport.write(data)
        self.assertEqual(await one.hearing(len(data)), data)

    async def test_killed(self) -> None:
        """A server that is killed is lost at once, with all its connections; a new one serves at once."""
        process, port = await self.start()
        ends = [await self.connect(f"smc:127.0.0.1:{port}:fallback=no") for _ in range(3)]
        begun = reactor.seconds()
        process.transport.signalProcess("KILL")
        for end in ends:
            await end.lost
            end.reason.trap(ConnectionLost)
        self.assertLess(reactor.seconds() - begun, 1.5)
        _, port = await self.start()
        again = await self.connect(f"smc:127.0.0.1:{port}:fallback=no")
        again.transport.write(b"hello")
        self.assertEqual(await again.hearing(5), b"hello")

    async def test_stopped(self) -> None:
        """A server that is stopped can be given up by abortConnection, without waiting for it."""
        process, port = await self.start()
        one = await self.connect(f"smc:127.0.0.1:{port}:fallback=no")
        process.transport.signalProcess("STOP")
        one.transport.write(b"x" * (16 << 20))
        await deferLater(reactor, 0.05)
        begun = reactor.seconds()
        one.transport.abortConnection()
        await one.lost
        self.assertLess(reactor.seconds() - begun, 1.0)
        process.transport.signalProcess(signal.SIGCONT)
