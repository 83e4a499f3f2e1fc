"""
One of two processes with datagrams.

C{python -m txrdma.test.support.cm.datagramplayer server|client HERE THERE COUNT}.
"""

from __future__ import annotations

import sys
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater, react

from txrdma.cm.connections.datagrams import (
    DatagramClientEndpoint,
    DatagramPeer,
    DatagramProtocol,
    DatagramServerEndpoint,
)
from txrdma.messages.protocol import MessageFactory
from txrdma.ports.softdevices import softDeviceAt

PORT = 7471


class Shouting(DatagramProtocol):
    """Answers datagrams in capital letters, until a certain word ends it."""

    answer = b"welcome"

    def __init__(self) -> None:
        self.count = 0
        self.ended: Deferred[None] = Deferred()

    def datagramReceived(self, data: bytes, peer: DatagramPeer) -> None:
        if data == b"enough":
            if not self.ended.called:
                self.ended.callback(None)
            return
        self.count += 1
        self.transport.write(data.upper(), peer)


class Asking(DatagramProtocol):
    """Records received datagrams."""

    def __init__(self) -> None:
        self.received: set[bytes] = set()

    def datagramReceived(self, data: bytes, peer: DatagramPeer) -> None:
        self.received.add(data)


async def main(reactor: Any, role: str, here: str, there: str, count: str) -> None:
    """Run a role, and print its result."""
    if role == "server":
        shouting = Shouting()
        port: Any = await DatagramServerEndpoint(reactor, PORT, softDeviceAt(here)).listen(
            MessageFactory(lambda: shouting)
        )
        print("listening", flush=True)
        await shouting.ended
        await port.stopListening()
        print(shouting.count >= int(count), flush=True)
        return
    asking = Asking()
    await DatagramClientEndpoint(reactor, there, PORT, softDeviceAt(here)).connect(
        MessageFactory(lambda: asking)
    )
    assert asking.transport.peer is not None
    print(asking.transport.peer.privateData.rstrip(b"\0").decode(), flush=True)
    words = {b"word %d" % number: b"WORD %d" % number for number in range(int(count))}
    while missing := [word for word, answer in words.items() if answer not in asking.received]:
        for word in missing[:16]:  # what is lost is sent again
            asking.transport.write(word)
        await deferLater(reactor, 0.02)
    for _ in range(3):
        asking.transport.write(b"enough")
        await deferLater(reactor, 0.02)
    asking.transport.loseConnection()
    print(len(asking.received), flush=True)


if __name__ == "__main__":
    react(lambda reactor: Deferred.fromCoroutine(main(reactor, *sys.argv[1:])))
