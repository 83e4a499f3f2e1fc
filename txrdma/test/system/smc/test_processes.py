"""
The two ends in two processes, on real reactors.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.task import deferLater

from txrdma.smc.group import groups
from txrdma.smc.group._groupstate import Timing
from txrdma.smc.handshake import _machine
from txrdma.smc.signalling import localclient as announcing
from txrdma.smc.signalling import silence as _silence
from txrdma.smc.status.control import NAMESPACE
from txrdma.smc.wire.clc import Diagnosis
from txrdma.test.support.processes import printed, Program, serving
from txrdma.test.support.smc.ends import EndsTestCase, reactor
from txrdma.testing.reactors import unqueuedSeconds
from txrdma.unix.answers import askAll

SERVER = """
import sys
from twisted.internet.protocol import Protocol
from twisted.python import log
from txrdma.smc.group import groups
from txrdma.smc.group._groupstate import Timing
from txrdma.smc.handshake import _machine
from txrdma.test.support.processes import serve

# A busy machine needs long for many connections at once.
_machine.CLC_TIMEOUT = 60.0
groups.timingOn = lambda _: Timing(newLink=60.0)

class Echo(Protocol):
    def connectionMade(self):
        self.transport.write(sys.argv[2].encode())

    def dataReceived(self, data):
        self.transport.write(data)

if len(sys.argv) > 3:
    log.startLogging(open(sys.argv[3], "w"), setStdout=False)

serve(Echo)
"""


CLIENT = """
import sys
from twisted.internet import reactor
from twisted.internet.endpoints import clientFromString
from twisted.internet.protocol import Factory, Protocol
from twisted.python import log

log.startLogging(open(sys.argv[2], "w"), setStdout=False)

class Client(Protocol):
    def dataReceived(self, data):
        print(1, flush=True)

clientFromString(reactor, sys.argv[1]).connect(Factory.forProtocol(Client))
reactor.run()
"""


CONNECT = """
import sys
from twisted.internet.endpoints import clientFromString, connectProtocol
from twisted.internet.protocol import Protocol
from twisted.internet.task import react

async def main(reactor, string):
    protocol = await connectProtocol(clientFromString(reactor, string), Protocol())
    print(protocol.transport.smc.mode)

react(main, sys.argv[1:])
"""


class TwoProcessesTests(EndsTestCase):
    slowBecause = "each test starts a server process"

    async def start(
        self, text: str = "smc:127.0.0.1:0", greeting: str = "", *more: str
    ) -> tuple[Program, int]:
        process = Program.start(self, sys.executable, "-c", SERVER, text, greeting, *more)
        return process, int(await process.line())

    def test_firstContactsUseSMCInAnyTiming(self) -> None:
        with serving(SERVER, "smc:0:interface=127.0.0.1", "") as (_, port):
            for _ in range(6):
                done = printed(CONNECT, f"smc:127.0.0.1:{port}")
                self.assertEqual((done.stdout, done.stderr), ("SMC-R\n", ""))

    async def test_burstBeyondGroupAndBacklogUsesSMC(self) -> None:
        self.patch(_machine, "CLC_TIMEOUT", 60.0)
        self.patch(groups, "timingOn", lambda _: Timing(confirmLink=60.0))
        _, port = await self.start(greeting="hello")
        connecting: list[Deferred[Any]] = []
        for _ in range(12):
            one = [self.connect(f"smc:127.0.0.1:{port}:fallback=no") for _ in range(25)]
            connecting += [Deferred.fromCoroutine(each) for each in one]
            await deferLater(reactor, 0)
        ends = await gatherResults(connecting)
        self.assertEqual({(end.smc.mode, end.smc.route) for end in ends}, {("SMC-R", "shared-memory")})
        for end in ends:
            end.transport.write(b" again")
        for end in ends:
            self.assertEqual(await end.receiving(11), b"hello again")

    async def test_silent(self) -> None:
        """A server that does not answer costs its timeout once, and serves accepted connections over TCP."""
        self.patch(announcing, "ANSWER_SECONDS", 0.5)
        process, port = await self.start(greeting="hello")
        process.transport.signalProcess("STOP")
        begun = reactor.seconds()
        first = await self.connect(f"smc:127.0.0.1:{port}")
        self.assertGreaterEqual(reactor.seconds() - begun, 0.5)
        begun = unqueuedSeconds()
        others = [await self.connect(f"smc:127.0.0.1:{port}") for _ in range(5)]
        self.assertLess(unqueuedSeconds() - begun, 0.5)
        [reported] = [each for each in await askAll(NAMESPACE, reactor) if each["pid"] == os.getpid()]
        self.assertIn(f"127.0.0.1:{port}", [each["peer"] for each in reported["silent"]])
        process.transport.signalProcess(signal.SIGCONT)
        for end in (first, *others):
            self.assertEqual((end.smc.mode, end.smc.fallbackReason), ("TCP", Diagnosis.PEERNOSMC))
            end.transport.write(b", who are you?")
            self.assertEqual(await end.receiving(19), b"hello, who are you?")
        self.patch(_silence, "SPAN", 0.0)  # as if that time had passed
        self.patch(announcing, "ANSWER_SECONDS", 60.0)
        again = await self.connect(f"smc:127.0.0.1:{port}")
        self.assertEqual(again.smc.mode, "SMC-R")

    async def test_busy(self) -> None:
        """A server that was too busy to acknowledge a connection does not wait for a Proposal."""
        self.patch(announcing, "ANSWER_SECONDS", 60.0)
        process, port = await self.start(greeting="hello")
        begun = reactor.seconds()
        connecting = []
        real = announcing.Announcement.expected

        def expected(announcement: announcing.Announcement, user: int) -> None:
            process.transport.signalProcess("STOP")
            self.patch(announcing, "ANSWER_SECONDS", 0.5)
            connecting.append(user)
            real(announcement, user)

        self.patch(announcing.Announcement, "expected", expected)
        one = await self.connect(f"smc:127.0.0.1:{port}")
        self.assertEqual((one.smc.mode, len(connecting)), ("TCP", 1))
        process.transport.signalProcess(signal.SIGCONT)
        self.assertEqual(await one.receiving(5), b"hello")
        self.assertLess(reactor.seconds() - begun, 50.0)  # a wait for a Proposal would have taken longer

    async def test_logIsTextWithOneEntryOfEachKind(self) -> None:
        path = Path(self.mktemp()).absolute()
        process, port = await self.start("smc:127.0.0.1:0", "", str(path))
        for kind in ("smc", "tcp") * 3:
            end = await self.connect(f"{kind}:127.0.0.1:{port}")
            end.transport.write(b"hello")
            await end.receiving(5)
            end.transport.loseConnection()
            await end.lost
        process.transport.signalProcess("TERM")
        await process.ended
        text = path.read_text()
        self.assertNotIn("\0", text)
        self.assertNotIn("\\x00", text)
        lines = [line for line in text.splitlines() if f"connection at 127.0.0.1:{port}" in line]
        self.assertEqual(len(lines), 2, text)
        self.assertIn("SMC-R by soft", lines[0])
        self.assertIn("plain TCP, because PEERNOSMC", lines[1])

    async def test_consecutiveEndsLogNoErrors(self) -> None:
        for keys in ("", r":device=soft\:route\=rocev2"):
            paths = [Path(self.mktemp()).absolute() for _ in range(2)]
            server, port = await self.start("smc:127.0.0.1:0" + keys, "hello", str(paths[0]))
            string = f"smc:127.0.0.1:{port}{keys}:fallback=no"
            client = Program.start(self, sys.executable, "-c", CLIENT, string, str(paths[1]))
            await client.line()
            for process in (client, server):
                process.transport.signalProcess("TERM")
                await process.ended
            for path in paths:
                lines = path.read_text().splitlines()
                # The reactor ends open connections by ConnectionLost, which their log event contains.
                text = "\n".join(each for each in lines if " ended after " not in each)
                self.assertIn("SMC-R by soft", text)
                for sign in (
                    "Traceback",
                    "rror",
                    "non-clean",
                    "lost",
                    "Lost",
                    "gone",
                    "<Soft",
                    "<Link",
                    "GID table",
                ):
                    self.assertNotIn(sign, text)

    async def test_abortEndsConnectionToStoppedServer(self) -> None:
        process, port = await self.start()
        one = await self.connect(f"smc:127.0.0.1:{port}:fallback=no")
        process.transport.signalProcess("STOP")
        one.transport.write(b"x" * (16 << 20))
        await deferLater(reactor, 0.05)
        begun = unqueuedSeconds()
        one.transport.abortConnection()
        await one.lost
        self.assertLess(unqueuedSeconds() - begun, 1.0)
        process.transport.signalProcess(signal.SIGCONT)
