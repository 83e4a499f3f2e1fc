"""
One of two processes with messages: C{python -m txrdma.test.btl.player ROLE [PORT [INTERFACES]]}.

The server tells its port, then what has come; C{sender} sends and ends at once, C{victim} is to be killed in
the middle of a message.
"""

from __future__ import annotations

import sys
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import react
from twisted.python.failure import Failure

from txrdma.btl.connections import connect, listen, MessageProtocol
from txrdma.btl.lifeline import deviceAt
from txrdma.test.btl.hosts import Making

COUNT = 500
LONG = 48 << 20


class Taking(MessageProtocol):
    """Counts what comes, and sends something that takes long."""

    def __init__(self) -> None:
        self.count = 0
        self.outcome = "none"
        self.ended: Deferred[Failure] = Deferred()

    def messageReceived(self, data: bytes, immediate: int | None) -> None:
        self.count += int(data[:4] == self.count.to_bytes(4, "big"))
        if immediate == 1:
            self.transport.send(1, bytes(LONG)).addErrback(self._failed)
            print("sending", flush=True)

    def _failed(self, failure: Failure) -> None:
        assert failure.type is not None
        self.outcome = failure.type.__name__

    def connectionLost(self, reason: Failure) -> None:
        self.ended.callback(type(reason.value).__name__)  # type: ignore[arg-type]  # a word is enough


class Sending(MessageProtocol):
    """Sends, and ends; or asks for what it does not live to see."""

    def __init__(self, isVictim: bool) -> None:
        self.isVictim = isVictim
        self.ended: Deferred[None] = Deferred()

    def connectionMade(self) -> None:
        if self.isVictim:
            self.transport.sendMessage(bytes(4), 1)
            return
        for number in range(COUNT):
            self.transport.sendMessage(number.to_bytes(4, "big") + bytes(number * 20))
        self.transport.loseConnection()

    def connectionLost(self, reason: Failure) -> None:
        print(type(reason.value).__name__, flush=True)
        self.ended.callback(None)


async def main(reactor: Any, role: str, port: str = "0", interfaces: str = "") -> None:
    """Play a role, and print what came of it."""
    devices = [deviceAt(each) for each in interfaces.split(",")] if interfaces else None
    if role == "server":
        taking = Taking()
        listening: Any = await listen(reactor, 0, Making(taking), "127.0.0.1", devices)
        print(listening.getHost().port, flush=True)
        reason = await taking.ended
        await listening.stopListening()
        print(taking.count, taking.outcome, reason, flush=True)
        return
    sending = Sending(role == "victim")
    await connect(reactor, "127.0.0.1", int(port), Making(sending), devices)
    await sending.ended


if __name__ == "__main__":
    react(lambda reactor: Deferred.fromCoroutine(main(reactor, *sys.argv[1:])))
