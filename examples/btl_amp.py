"""
AMP over the byte transfer layer: python examples/btl_amp.py server, then client with the port that it prints.
"""

import sys

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString, connectProtocol, serverFromString
from twisted.internet.protocol import Factory
from twisted.internet.task import react
from twisted.protocols.amp import AMP, Command, Integer


class Sum(Command):
    arguments = [(b"a", Integer()), (b"b", Integer())]
    response = [(b"total", Integer())]


class Calculator(AMP):
    @Sum.responder
    def add(self, a, b):
        return {"total": a + b}


async def main(reactor, role="server", port="0"):
    if role == "server":
        listening = serverFromString(reactor, f"btl:127.0.0.1:{port}")
        port = await listening.listen(Factory.forProtocol(Calculator))
        print("listening on port", port.getHost().port, flush=True)
        await Deferred()  # until Ctrl-C
    client = await connectProtocol(clientFromString(reactor, f"btl:127.0.0.1:{port}"), AMP())
    print((await client.callRemote(Sum, a=13, b=81))["total"], "by", type(client.transport).__name__)


react(lambda reactor, *words: Deferred.fromCoroutine(main(reactor, *words)), sys.argv[1:])
