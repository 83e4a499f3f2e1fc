"""
A server that is stopped while it has many connections, and clients that are busy at that time.

Clients share a process, whose reactor is blocked for half a second, or until the server's process has ended;
they must observe what they observe over C{tcp:}.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final
from unittest import SkipTest

from twisted.trial.unittest import SynchronousTestCase

from txrdma.test.support.processes import printed, serving

COUNT: Final = 150
MANY: Final = 500
"""Number of connections that three links cannot all notify in one reactor iteration."""

SERVER: Final = """
import sys
from twisted.protocols.wire import Echo
from txrdma.smc.group import groups
from txrdma.test.support.processes import serve

groups.CLOSING_SECONDS = float(sys.argv[2])
serve(Echo)
"""

CLIENT: Final = """
import os, select, signal, sys, time
from collections import Counter
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.endpoints import clientFromString
from twisted.internet.protocol import Factory
from twisted.internet.task import react
from txrdma.testing.protocols import Recorder

class Client(Recorder):
    greeting = b"hello"

async def main(reactor, string, server, count, busy):
    endpoint, factory = clientFromString(reactor, string), Factory.forProtocol(Client)
    clients = await gatherResults([endpoint.connect(factory) for _ in range(int(count))])
    await gatherResults([client.receiving(5) for client in clients])
    watch = os.pidfd_open(int(server))
    os.kill(int(server), signal.SIGTERM)
    if busy == "briefly":
        time.sleep(0.5)
    else:
        select.select([watch], [], [], 30)
    await gatherResults([client.lost for client in clients])
    print(dict(Counter(client.reason.type.__name__ for client in clients)))

react(lambda reactor, *words: Deferred.fromCoroutine(main(reactor, *words)), sys.argv[1:])
"""

RETAINING: Final = """
import os, subprocess, sys
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.endpoints import clientFromString
from twisted.internet.protocol import Factory
from twisted.internet.task import deferLater, react
from txrdma.testing.protocols import Recorder

class Client(Recorder):
    greeting = b"hello"

def descriptors():
    return len(os.listdir("/proc/self/fd"))

async def main(reactor, serving, connecting, code):
    retained, first = [], 0
    for turn in range(4):
        words = [sys.executable, "-c", code, serving, "15"]
        server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        endpoint = clientFromString(reactor, connecting.format(server.stdout.readline().strip()))
        factory = Factory.forProtocol(Client)
        clients = await gatherResults([endpoint.connect(factory) for _ in range(3)])
        await gatherResults([client.receiving(5) for client in clients])
        server.kill()
        server.communicate()
        await gatherResults([client.lost for client in clients])
        retained += clients
        until = reactor.seconds() + 10
        while turn and descriptors() > first and reactor.seconds() < until:
            await deferLater(reactor, 0.02)
        while not turn and reactor.seconds() < until - 9:
            await deferLater(reactor, 0.02)
        first = first or descriptors()
        print(max(0, descriptors() - first), end=" ")

react(lambda reactor, *words: Deferred.fromCoroutine(main(reactor, *words)), sys.argv[1:])
"""

STOPPING: Final = """
import sys
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.protocol import Factory
from twisted.internet.task import react
from txrdma.testing.protocols import Echo, Recorder

class Printing:
    def connectionLost(self, reason):
        print(repr(reason.value), reason.value)

class Client(Printing, Recorder):
    greeting = b"hello"

class Server(Printing, Echo):
    pass

async def main(reactor, scheme):
    server = serverFromString(reactor, f"{scheme}:0:interface=127.0.0.1")
    port = await server.listen(Factory.forProtocol(Server))
    endpoint = clientFromString(reactor, f"{scheme}:127.0.0.1:{port.getHost().port}")
    client = await endpoint.connect(Factory.forProtocol(Client))
    await client.receiving(5)

react(lambda reactor, scheme: Deferred.fromCoroutine(main(reactor, scheme)), sys.argv[1:])
"""


class LeavingTests(SynchronousTestCase):
    """Tests whose two ends are processes."""

    slowBecause = "Each kind of endpoint starts a server and a client, with many connections between them."

    def received(self, listen: str, connect: str, busy: str = "briefly", count: int = COUNT) -> str:
        """
        Return what clients see of the end; C{busy} until C{"ended"} is until the server's process has ended.

        A server may wait for its clients' answers: a busy machine needs more than the usual time.
        """
        with serving(SERVER, listen, "60" if busy == "briefly" else "2") as (server, number):
            client = printed(CLIENT, connect.format(number), str(server.pid), str(count), busy)
            self.assertEqual(server.wait(90), 0)
        self.assertEqual(client.stderr, "")
        return client.stdout

    def assertEnds(self, scheme: str, options: str = "", busy: str = "briefly", count: int = COUNT) -> None:
        """Assert that all clients see an orderly end."""
        server, client = f"{scheme}:0:interface=127.0.0.1{options}", f"{scheme}:127.0.0.1:{{}}{options}"
        self.assertEqual(self.received(server, client, busy, count), f"{{'ConnectionDone': {count}}}\n")

    def test_endsSharedMemory(self) -> None:
        self.assertEnds("smc")

    def test_endsUDP(self) -> None:
        self.assertEnds("smc", r":device=soft\:route=rocev2", count=MANY)

    def test_endsBTL(self) -> None:
        self.assertEnds("btl")

    def test_endsMeanwhile(self) -> None:
        """
        Clients that are busy for longer than a server waits see an orderly end.

        Shared memory has no space for so many messages: some are never sent.
        """
        self.assertEnds("smc", busy="ended")

    def assertReleased(self, scheme: str) -> None:
        """Assert that a program that retains protocols of killed servers has no open descriptors of them."""
        if not Path("/proc/self/fd").is_dir():
            raise SkipTest("the system does not report which descriptors a process has")
        words = (f"{scheme}:0:interface=127.0.0.1", f"{scheme}:127.0.0.1:{{}}", SERVER)
        client = printed(RETAINING, *words)
        self.assertEqual((client.stdout, client.stderr), ("0 0 0 0 ", ""))

    def test_retainedProtocolsHoldNoDescriptors(self) -> None:
        self.assertReleased("smc")

    def test_stoppingReactorGivesReasonWithTextOfTCP(self) -> None:
        expected = printed(STOPPING, "tcp").stdout
        self.assertEqual(len(expected.splitlines()), 2, expected)
        for scheme in ("smc", "btl"):
            self.assertEqual(printed(STOPPING, scheme).stdout, expected, scheme)
