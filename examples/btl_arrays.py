"""
Arrays over the byte transfer layer: python examples/btl_arrays.py server, then client with its port.

A further argument selects the route: auto, which is shared memory on one host, or rocev2, which is UDP.
"""

import sys
from array import array

from twisted.internet.defer import Deferred
from twisted.internet.task import react

from txrdma import btl
from txrdma.messages.protocol import MessageFactory, MessageProtocol

ROWS, TABLE = 1, 2  # tags of messages
SQUARE, TOTAL = 1, 2  # tags of calls


class Worker(MessageProtocol):
    @btl.answers(SQUARE)
    def square(self, data):
        return array("d", [each * each for each in array("d", data)])

    @btl.answers(TOTAL)
    async def total(self, data):
        table = array("d", bytes(8_000_000))
        await self.transport.receive(TABLE, into=table)
        rows = [array("d", each) for each in await self.transport.receiveMany(ROWS)]
        return array("d", [sum(table) + sum(sum(each) for each in rows), len(rows)])


async def main(reactor, role="server", port="0", route="auto"):
    device = f"soft:127.0.0.1:port=0:route={route}"
    if role == "server":
        listening = await btl.listen(reactor, 0, MessageFactory(Worker), "127.0.0.1", device)
        print("listening on port", listening.getHost().port, flush=True)
        await Deferred()  # until Ctrl-C
    peer = (await btl.connect(reactor, "127.0.0.1", int(port), device=device)).transport
    print("squares", *array("d", await peer.call(SQUARE, array("d", [1.5, 3.0]), timeout=30)))
    await peer.sendMany(ROWS, [array("d", [number]) for number in range(100)])
    await peer.ready()
    peer.post(TABLE, array("d", [0.5]) * 1_000_000)
    total, rows = array("d", await peer.call(TOTAL, timeout=30))
    print("total", total, "with", int(rows), "rows")


react(lambda reactor, *words: Deferred.fromCoroutine(main(reactor, *words)), sys.argv[1:])
