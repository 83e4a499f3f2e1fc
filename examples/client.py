"""Send a line, print the echo, and print the transport that carried it."""

import sys

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString, connectProtocol
from twisted.internet.task import react
from twisted.protocols.basic import LineReceiver


class Client(LineReceiver):
    def __init__(self):
        self.answer = Deferred()

    def connectionMade(self):
        self.sendLine(b"hello")

    def lineReceived(self, line):
        self.answer.callback(line)


async def main(reactor, connect="smc:127.0.0.1:8007"):
    client = await connectProtocol(clientFromString(reactor, connect), Client())
    print((await client.answer).decode())
    smc = client.transport.smc
    how = smc.route or smc.fallbackReason.name
    print(f"by {smc.mode}, {how}: {smc.bytesSent} bytes sent, {smc.bytesReceived} received")
    client.transport.loseConnection()


react(main, sys.argv[1:])
