"""
One of two processes at an address that connect to each other.

C{python -m txrdma.test.support.cm.meeting STRING NAME}: the process connects by a peer-to-peer endpoint
string, sends its name, and prints the messages of its peer and how the connection ended. It exits when the
other one has disconnected, or disconnects when it reads a line.
"""

from __future__ import annotations

import sys
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString, connectProtocol
from twisted.internet.protocol import Protocol
from twisted.internet.stdio import StandardIO
from twisted.internet.task import react
from twisted.python.failure import Failure

from txrdma.cm import RDMAProtocol


class Meeting(RDMAProtocol):
    """Sends its name, and prints that of its peer."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ended: Deferred[None] = Deferred()

    def connectionMade(self) -> None:
        self.transport.sendMessage(self.name.encode())

    def messageReceived(self, data: bytes, immediate: int | None) -> None:
        print("met", data.decode(), flush=True)

    def connectionLost(self, reason: Failure) -> None:
        print(type(reason.value).__name__, flush=True)
        self.ended.callback(None)


class Commands(Protocol):
    """Disconnects when a line arrives."""

    def __init__(self, meeting: Meeting) -> None:
        self.meeting = meeting

    def dataReceived(self, data: bytes) -> None:
        self.meeting.transport.loseConnection()


async def meet(reactor: Any, text: str, name: str) -> None:
    """Connect, and wait for the end of the connection."""
    meeting = Meeting(name)
    await connectProtocol(clientFromString(reactor, text), meeting)
    StandardIO(Commands(meeting), reactor=reactor)
    await meeting.ended


if __name__ == "__main__":
    react(lambda reactor, *words: Deferred.fromCoroutine(meet(reactor, *words)), sys.argv[1:])
