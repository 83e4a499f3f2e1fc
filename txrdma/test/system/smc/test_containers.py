"""
Two processes in two network namespaces that share only a directory and a wire, like containers.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from shutil import rmtree
from typing import Any

from twisted.trial.unittest import TestCase

from txrdma.test.support.namespaces import reasonToSkip, Wire
from txrdma.test.support.processes import Program

PROGRAM = """
import importlib, os, pkgutil, sys
from twisted.internet import reactor
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.protocol import Factory, Protocol
from txrdma.verbs.devices import openDevice

role, text, user, group, *groups = sys.argv[1:]

# Python may be where other users can't read it: all that is imported later is imported now.
importlib.import_module("encodings.idna")  # which Python does when it looks up a name
for room in ("iba", "ports", "smc", "soft", "verbs"):
    package = importlib.import_module("txrdma." + room)
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not {"pyverbs", "metrics"} & set(module.name.split(".")):  # which want what may not be here
            importlib.import_module(module.name)
endpoint = None
if role != "tcp":
    endpoint = (clientFromString if role == "client" else serverFromString)(reactor, text)
openDevice(reactor, "soft").close()
os.setgroups([int(each) for each in groups])
os.setgid(int(group))
os.setuid(int(user))
SIZE = 1 << 20
DATA = bytes(range(256)) * (SIZE // 256)

class Server(Protocol):
    def connectionMade(self):
        self.transport.write(b"hello")

    def dataReceived(self, data):
        self.transport.write(data)

class Client(Protocol):
    received = b""

    def dataReceived(self, data):
        self.received += data
        if self.received == b"hello":
            self.transport.write(DATA)
        elif len(self.received) == SIZE + 5:
            smc = getattr(self.transport, "smc", None)
            print(smc.mode, smc.route, self.received[5:] == DATA, flush=True)

def failed(failure):
    print("failed", failure.value, flush=True)

if role == "tcp":  # a server without support for SMC, which prints what it receives
    class Plain(Protocol):
        def connectionMade(self):
            self.transport.write(b"hello")

        def dataReceived(self, data):
            if not DATA.startswith(data) and data not in DATA:
                print("stray", data[:20], flush=True)
            self.transport.write(data)

    reactor.listenTCP(int(text), Factory.forProtocol(Plain))
    print("listening", flush=True)
elif role == "server":
    endpoint.listen(Factory.forProtocol(Server)).addCallbacks(
        lambda port: print("listening", flush=True), failed)
else:
    endpoint.connect(Factory.forProtocol(Client)).addErrback(failed)
reactor.run()
"""

ALICE, BOB = 64101, 64102
GUESTS = 64200


class ContainersTests(TestCase):
    """A server and a client in their own namespaces."""

    slowBecause = "Each test starts processes in network namespaces that import all of the package."
    skip = reasonToSkip()
    timeout = 110

    def setUp(self) -> None:
        self.wire = self.between()
        self.directory = tempfile.mkdtemp(prefix="txr")
        self.addCleanup(rmtree, self.directory)
        os.chmod(self.directory, 0o711)
        self.place = str(Path(self.directory, "run"))
        os.mkdir(self.place)
        self.open(0o700)

    def between(self) -> Wire:
        wire = Wire()
        self.addCleanup(wire.close)
        return wire

    def open(self, mode: int, user: int = 0, group: int = 0) -> None:
        """Set which users may use the directory."""
        os.chown(self.place, user, group)
        os.chmod(self.place, mode)

    def run_(
        self,
        namespace: str,
        role: str,
        text: str,
        user: int = 0,
        group: int = 0,
        groups: tuple[int, ...] = (),
    ) -> Program:
        words = ["ip", "netns", "exec", namespace, sys.executable, "-c", PROGRAM, role, text]
        words += [str(each) for each in (user, group, *groups)]
        return Program.start(self, *words, TXRDMA_RUNTIME=self.place)

    async def serving(self, wire: Wire | None = None, role: str = "server", **who: Any) -> Program:
        text = "8080" if role == "tcp" else "smc:8080"
        server = self.run_((wire or self.wire).names[1], role, text, **who)
        self.assertEqual(await server.line(), "listening")
        return server

    async def received(self, **who: Any) -> str:
        """Return a client's report about its connection to the server."""
        return await self.run_(self.wire.names[0], "client", "smc:10.99.0.2:8080", **who).line()

    async def test_sharedMemory(self) -> None:
        """The processes share memory, even if the server writes first, and leave nothing in the directory."""
        server = await self.serving()
        for _ in range(2):
            self.assertEqual(await self.received(), "SMC-R shared-memory True")
        server.transport.signalProcess("TERM")
        await server.ended
        left = [each for each in os.listdir(self.place) if each.startswith("smc-")]
        self.assertEqual(left, [])

    async def test_plainTCPIsUsedWithoutDirectory(self) -> None:
        await self.serving()
        client = self.run_(self.wire.names[0], "client", "smc:10.99.0.2:8080:runtime=")
        self.assertEqual(await client.line(), "TCP  True")

    async def test_socketOfKilledServerIsRemovedByNextClient(self) -> None:
        server = await self.serving()
        server.transport.signalProcess("KILL")
        await server.ended
        [left] = os.listdir(self.place)
        await self.serving()
        self.assertEqual(await self.received(), "SMC-R shared-memory True")
        self.assertNotIn(left, os.listdir(self.place))

    async def test_differentUsersShareNoMemory(self) -> None:
        self.open(0o1777)
        server = await self.serving(user=ALICE, group=ALICE)
        self.assertEqual(await self.received(user=BOB, group=BOB), "TCP  True")
        self.assertEqual(await self.received(user=ALICE, group=ALICE), "SMC-R shared-memory True")
        self.assertTrue(server.isQuiet)

    async def test_membersOfDirectorysGroupShareMemory(self) -> None:
        self.open(0o2770, group=GUESTS)
        await self.serving(user=ALICE, group=ALICE, groups=(GUESTS,))
        self.assertEqual(
            await self.received(user=BOB, group=BOB, groups=(GUESTS,)), "SMC-R shared-memory True"
        )
        self.assertEqual(await self.received(user=BOB + 1, group=GUESTS), "SMC-R shared-memory True")
        self.assertEqual(await self.received(user=BOB, group=BOB), "TCP  True")

    async def test_sameListenerInOtherNetworkReceivesNothing(self) -> None:
        other = self.between()
        await self.serving(other)
        plain = await self.serving(role="tcp")
        clients = [self.run_(self.wire.names[0], "client", "smc:10.99.0.2:8080") for _ in range(2)]
        for client in clients:
            self.assertEqual(await client.line(), "TCP  True")
        self.assertTrue(plain.isQuiet)

    async def test_clientsFindListenerThatTheyConnectTo(self) -> None:
        other = self.between()
        await self.serving(other)
        await self.serving()
        for wire in (self.wire, other):
            client = self.run_(wire.names[0], "client", "smc:10.99.0.2:8080")
            self.assertEqual(await client.line(), "SMC-R shared-memory True")
