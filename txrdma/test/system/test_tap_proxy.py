"""The proxy of C{twistd smc-proxy} as a real program."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import cast

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.protocol import Factory, ProcessProtocol
from twisted.python.failure import Failure
from twisted.trial.unittest import TestCase

from txrdma.test.support.smc.ends import reactor
from txrdma.testing.protocols import HalfCloseRecorder


class Twistd(ProcessProtocol):
    """A C{twistd} that runs until the end of a test."""

    def __init__(self, *arguments: str) -> None:
        self.output = ""
        self.listening: Deferred[int] = Deferred()
        self.ended: Deferred[None] = Deferred()
        command = [sys.executable, "-m", "twisted", "--log-format=text", *arguments]
        self.process = reactor.spawnProcess(self, command[0], command, os.environ)

    def outReceived(self, data: bytes) -> None:
        self.output += data.decode()
        found = re.search(r"starting on (\d+)", self.output)
        if found and not self.listening.called:
            self.listening.callback(int(found[1]))

    errReceived = outReceived

    def processEnded(self, reason: Failure) -> None:
        if not self.listening.called:
            self.listening.errback(RuntimeError(self.output))
        self.ended.callback(None)

    async def stop(self) -> str:
        """End the program with SIGTERM."""
        if not self.ended.called:
            self.process.signalProcess("TERM")
        await self.ended
        return self.output


class ProcessTests(TestCase):
    """The program itself, twice in a row: C{tcp} to C{smc} to C{tcp}."""

    timeout = 60

    async def test_chain(self) -> None:
        """A plain client and a plain server communicate through two proxies, with SMC-R between them."""
        received = HalfCloseRecorder()
        server = serverFromString(reactor, "tcp:0:interface=127.0.0.1")
        serverPort = await server.listen(Factory.forProtocol(lambda: received))
        self.addCleanup(serverPort.stopListening)
        target = f"tcp:127.0.0.1:{serverPort.getHost().port}"
        far = Twistd("smc-proxy", "--listen", "smc:127.0.0.1:0", "--connect", target)
        self.addCleanup(lambda: Deferred.fromCoroutine(far.stop()))
        middle = await far.listening
        near = Twistd(
            "smc-proxy", "--listen", "tcp:0:interface=127.0.0.1", "--connect", f"smc:127.0.0.1:{middle}"
        )
        self.addCleanup(lambda: Deferred.fromCoroutine(near.stop()))
        endpoint = clientFromString(reactor, f"tcp:127.0.0.1:{await near.listening}")
        client = cast(HalfCloseRecorder, await endpoint.connect(Factory.forProtocol(HalfCloseRecorder)))
        question = os.urandom(5_000_000)
        client.transport.write(question)
        client.transport.loseWriteConnection()
        await received.readEnded
        self.assertEqual(received.received, question)
        received.transport.write(b"thanks")
        received.transport.loseConnection()
        await client.readEnded
        self.assertEqual(client.received, b"thanks")
        client.transport.loseConnection()
        for output in (await near.stop(), await far.stop()):
            self.assertIn("1 connections accepted, 0 not passed on", output)
            self.assertIn("5000000 bytes forwards, 6 bytes back; 1 SMC-R, 1 plain", output)

    def test_taken(self) -> None:
        """In the background, C{twistd} ends if the port is in use, and leaves no PID file."""
        folder = Path(self.mktemp())
        folder.mkdir()
        with socket.create_server(("127.0.0.1", 0)) as taken:
            listen = f"tcp:{taken.getsockname()[1]}:interface=127.0.0.1"
            command = [sys.executable, "-c", "from twisted.scripts.twistd import run; run()"]
            words = ["--logfile=log", "smc-proxy", "--listen", listen, "--connect", "tcp:127.0.0.1:1"]
            done = subprocess.run([*command, *words], cwd=folder, capture_output=True, text=True, timeout=30)
        self.assertEqual(done.returncode, 1)
        self.assertIn("smc-proxy: Couldn't listen on 127.0.0.1", done.stderr)
        self.assertEqual(os.listdir(folder), ["log"])
