"""
A server of C{rsocket:} at its limit of descriptors: connections that exist work, others are refused.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from twisted.trial.unittest import SynchronousTestCase

from txrdma.test.support.processes import printed, serving

SERVER: Final = """
import resource
from twisted.internet import reactor
from twisted.internet.endpoints import serverFromString
from twisted.internet.protocol import Factory, Protocol

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

class Echo(Protocol):
    def dataReceived(self, data):
        self.transport.write(data)

def listening(port):
    print(port.getHost().port, flush=True)

endpoint = serverFromString(reactor, "rsocket:0:interface=127.0.0.1")
endpoint.listen(Factory.forProtocol(Echo)).addCallback(listening)
reactor.run()
"""

CLIENT: Final = """
import sys
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.endpoints import clientFromString
from twisted.internet.error import ConnectError
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import react

class Client(Protocol):
    def connectionMade(self):
        self.answer = Deferred()
        self.transport.write(b"hello")

    def dataReceived(self, data):
        self.answer.callback("answered")

    def connectionLost(self, reason):
        if not self.answer.called:
            self.answer.callback("lost")

async def visit(endpoint):
    try:
        client = await endpoint.connect(Factory.forProtocol(Client))
    except ConnectError as error:
        return str(error)
    return await client.answer

async def main(reactor, port, count):
    endpoint = clientFromString(reactor, f"rsocket:127.0.0.1:{port}")
    visits = [Deferred.fromCoroutine(visit(endpoint)) for _ in range(int(count))]
    print(*await gatherResults(visits), sep="\\n")

react(lambda reactor, *words: Deferred.fromCoroutine(main(reactor, *words)), sys.argv[1:])
"""


class DescriptorTests(SynchronousTestCase):
    """Both ends are processes; the server may have 64 descriptors."""

    slowBecause = "starts a server and a client that exhausts its descriptors"

    def test_connectionsThatExistWorkAndOthersAreRefused(self) -> None:
        with serving(SERVER) as (_, number):
            client = printed(CLIENT, number, "40")
        self.assertEqual(client.stderr, "")
        results = Counter(client.stdout.splitlines())
        self.assertGreater(results["answered"], 10)
        refused = "An error occurred while connecting: the peer rejects the connection: NO_RESOURCES."
        self.assertEqual(results["answered"] + results[refused], 40, results)
