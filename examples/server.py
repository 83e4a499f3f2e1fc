"""An echo server that uses SMC-R with peers that support it, and TCP with others."""

import sys

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import serverFromString
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import react


class Echo(Protocol):
    def dataReceived(self, data):
        self.transport.write(data)


async def main(reactor, listen="smc:8007:interface=127.0.0.1"):
    port = await serverFromString(reactor, listen).listen(Factory.forProtocol(Echo))
    print("listening on port", port.getHost().port, flush=True)
    await Deferred()  # until Ctrl-C


react(main, sys.argv[1:])
