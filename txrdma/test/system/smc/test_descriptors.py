"""
A server or a client without free descriptors for connections: what clients observe, compared with C{tcp:}.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from twisted.trial.unittest import SynchronousTestCase

from txrdma.test.support.processes import printed, serving

SERVER: Final = """
import os, resource, sys
from twisted.internet import reactor
from twisted.internet.endpoints import serverFromString
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import LoopingCall
from twisted.python import log

log.startLogging(sys.stderr, setStdout=False)
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
taken = []

def take(left):
    try:
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        for _ in range(left):
            os.close(taken.pop())

class Server(Protocol):
    def dataReceived(self, data):
        if data == b"take":
            self.quiet, self.taking = 0, LoopingCall(self.takeOn)
            self.taking.start(0.02)
            return
        if data == b"give":
            self.taking.stop()
            while taken:
                os.close(taken.pop())
        self.transport.write(data)

    def takeOn(self):
        # What the set-up of this connection still has is given back a little later.
        before = len(taken)
        take(0)
        self.quiet = self.quiet + 1 if len(taken) == before else 0
        if self.quiet == 50:
            self.transport.write(b"take")

def opened(port):
    if sys.argv[2:]:
        take(int(sys.argv[2]))
    print(port.getHost().port, flush=True)

def listening(port):
    reactor.callLater(0, opened, port)  # a device is opened in the first turn

serverFromString(reactor, sys.argv[1]).listen(Factory.forProtocol(Server)).addCallback(listening)
reactor.run()
"""

CLIENT: Final = """
import os, resource, sys
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import deferLater, react

class Client(Protocol):
    def connectionMade(self):
        self.answers, self.ended = [], Deferred()

    def ask(self, word):
        self.transport.write(word)
        answer = Deferred()
        self.answers.append(answer)
        return answer

    def dataReceived(self, data):
        self.answers.pop(0).callback(data)

    def connectionLost(self, reason):
        reason.trap(ConnectionDone, ConnectionLost)
        self.ended.callback("ended")
        for each in self.answers:
            each.callback(b"ended unheard")

async def visit(reactor, string, left=None):
    endpoint = clientFromString(reactor, string)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if left:
        await deferLater(reactor, 0)  # the reactor takes some when it starts
        lowest = os.dup(0)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + int(left), hard))
    client = await endpoint.connect(Factory.forProtocol(Client))
    heard = await client.ask(b"hello")
    client.transport.loseConnection()
    print("connected", heard.decode(), await client.ended)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

async def main(reactor, string, *moment):
    if moment:
        return await visit(reactor, string, *moment[1:])
    first = await clientFromString(reactor, string).connect(Factory.forProtocol(Client))
    print((await first.ask(b"take")).decode())
    for _ in range(3):
        await visit(reactor, string)
    print((await first.ask(b"give")).decode())
    await visit(reactor, string)

react(lambda reactor, *words: Deferred.fromCoroutine(main(reactor, *words)), sys.argv[1:])
"""


class DescriptorTests(SynchronousTestCase):
    """Both ends are processes; the server may have a hundred descriptors."""

    slowBecause = "starts a server and a client that exhausts its descriptors"

    def talk(self, scheme: str, *when: str) -> tuple[str, str]:
        """Return what a client of such a server observed, and the server's log."""
        folder = Path(self.mktemp())
        folder.mkdir()
        listen = f"{scheme}:0:interface=127.0.0.1"
        with open(folder / "log", "w+") as log:
            with serving(SERVER, listen, *when, stderr=log) as (_, number):
                client = printed(CLIENT, f"{scheme}:127.0.0.1:{number}", *when)
            log.seek(0)
            reported = log.read()
        self.assertNotIn("Traceback", reported)
        self.assertEqual(client.stderr, "")
        return client.stdout, reported

    def test_usedUp(self) -> None:
        """Clients get an end of connection, existing connections continue, and later clients are served."""
        seen, _ = self.talk("tcp")
        self.assertEqual(
            seen, "take\n" + "connected ended unheard ended\n" * 3 + "give\nconnected hello ended\n"
        )
        self.assertEqual(self.talk("smc")[0], seen)

    def test_tooFewDescriptorsMeanTCPAndLoggedRemedy(self) -> None:
        seen, _ = self.talk("tcp", "3")
        self.assertEqual(seen, "connected hello ended\n")
        again, reported = self.talk("smc", "3")
        self.assertEqual(again, seen)
        self.assertIn("plain TCP, because INTERR", reported)
        self.assertIn("Too many open files: raise the process's limit (RLIMIT_NOFILE: ulimit -n", reported)

    def test_clientNeedsOneDescriptorAsOverTCP(self) -> None:
        for scheme in ("tcp", "smc"):
            with serving(SERVER, f"{scheme}:0:interface=127.0.0.1") as (_, number):
                for left in ("1", "2"):
                    client = printed(CLIENT, f"{scheme}:127.0.0.1:{number}", "few", left)
                    self.assertEqual((client.stdout, client.stderr), ("connected hello ended\n", ""))
