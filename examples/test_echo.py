import os

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString, connectProtocol, serverFromString
from twisted.internet.protocol import Factory, Protocol
from twisted.trial.unittest import TestCase

SCHEME = os.environ.get("SCHEME", "smc")


class Echo(Protocol):
    def dataReceived(self, data):
        self.transport.write(data)


class Client(Protocol):
    def __init__(self):
        self.answered = Deferred()
        self.lost = Deferred()

    def connectionMade(self):
        self.transport.write(b"hello")

    def dataReceived(self, data):
        self.answered.callback(data)

    def connectionLost(self, reason):
        self.lost.callback(None)


class EchoTests(TestCase):
    async def test_echo(self):
        server = serverFromString(reactor, f"{SCHEME}:0:interface=127.0.0.1")
        port = await server.listen(Factory.forProtocol(Echo))
        self.addCleanup(port.stopListening)
        address = f"{SCHEME}:127.0.0.1:{port.getHost().port}"
        client = await connectProtocol(clientFromString(reactor, address), Client())
        self.assertEqual(await client.answered, b"hello")
        client.transport.loseConnection()
        await client.lost
