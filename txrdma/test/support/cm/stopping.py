"""
One of two processes with messages: C{python -m txrdma.test.support.cm.stopping server|HOW STRING}.

The server prints what it has received and how the connection ended; it stops reading from a client that
requests it. A client sends, and its reactor stops: immediately (C{stops}), after C{loseConnection}
(C{closes}), with an unfinished producer (C{produces}), or while the peer reads nothing (C{waits}).
"""

from __future__ import annotations

import sys
from typing import Any

from zope.interface import implementer

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.interfaces import IPushProducer
from twisted.internet.task import react
from twisted.python.failure import Failure

from txrdma.cm.connections.protocol import RDMAProtocol
from txrdma.kit import shutdown as stopping
from txrdma.messages.protocol import MessageFactory

COUNT = 3000
MESSAGE = bytes(700)
PAUSE = b"pause"
SHORT_SECONDS, LONG_SECONDS = 1.0, 50.0
"""
Time for the last messages, in place of L{stopping.LEAVING_SECONDS}: if the peer receives none, and on a busy
machine.
"""


class Taking(RDMAProtocol):
    """Counts received messages."""

    count = 0

    def messageReceived(self, data: bytes, immediate: int | None) -> None:
        self.count += 1
        if bytes(data) == PAUSE:
            self.transport.pauseProducing()

    def connectionLost(self, reason: Failure) -> None:
        print(self.count, type(reason.value).__name__, flush=True)


@implementer(IPushProducer)
class Idle:
    """A producer that never finishes."""

    def pauseProducing(self) -> None:
        """Do nothing."""

    def resumeProducing(self) -> None:
        """Do nothing."""

    def stopProducing(self) -> None:
        """Print that the producer was stopped."""
        print("producer stopped", flush=True)


class Leaving(RDMAProtocol):
    """Sends, and ends in the given way."""

    def __init__(self, reactor: Any, how: str) -> None:
        self._reactor, self._how = reactor, how

    def connectionMade(self) -> None:
        if self._how == "waits":
            self.transport.sendMessage(PAUSE)
        for _ in range(COUNT if self._how != "waits" else 10 * COUNT):
            self.transport.sendMessage(MESSAGE)
        if self._how == "produces":
            self.transport.registerProducer(Idle(), True)
        if self._how == "closes":
            self.transport.loseConnection()
        self._reactor.stop()

    def connectionLost(self, reason: Failure) -> None:
        print(type(reason.value).__name__, flush=True)


async def main(reactor: Any, how: str, string: str) -> None:
    if how == "server":
        port: Any = await serverFromString(reactor, string).listen(MessageFactory(Taking))
        print(port.getHost().port, flush=True)
    else:
        seconds = SHORT_SECONDS if how == "waits" else LONG_SECONDS
        stopping.LEAVING_SECONDS = seconds  # type: ignore[misc]  # final for all but tests
        endpoint = clientFromString(reactor, string)
        await endpoint.connect(MessageFactory(lambda: Leaving(reactor, how)))
    await Deferred()


if __name__ == "__main__":
    react(lambda reactor: Deferred.fromCoroutine(main(reactor, *sys.argv[1:])))
