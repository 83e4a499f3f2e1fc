"""
One of two processes with messages: C{python -m txrdma.test.support.btl.player ROLE [PORT [INTERFACES
[ROUTE]]]}.

The server tells its port, then what has come, and by which way long messages went. C{sender} sends 50 MB and
ends at once; C{patient} does the same, when it has asked the server to be busy for a while. C{victim} asks
for something long, and does nothing any more when it has a part of that: it is to be killed.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import LoopingCall, react
from twisted.python.failure import Failure

from txrdma.btl.connections import connect, listen
from txrdma.btl.insight import report
from txrdma.btl.lifeline import deviceAt
from txrdma.messages.protocol import MessageProtocol
from txrdma.testing.protocols import Recorders

COUNT = 500
STEP = 400
"""Bytes by which each message is longer than the one before."""

LONG = 48 << 20
TIMES = 3
"""Long messages that are asked for: one alone may be there before the reactor turns."""

BUSY_SECONDS = 1.0

ASK, WORK = 1, 2
"""Immediate data of messages that ask the server for something."""


class Taking(MessageProtocol):
    """Counts what comes, and does what it is asked for."""

    def __init__(self) -> None:
        self.count = 0
        self.outcome = "none"
        self.ended: Deferred[Failure] = Deferred()

    def messageReceived(self, data: bytes, immediate: int | None) -> None:
        self.count += int(data[:4] == self.count.to_bytes(4, "big"))
        if immediate == ASK:
            for _ in range(TIMES):
                self.transport.send(1, bytes(LONG)).addErrback(self._failed)
        elif immediate == WORK:
            time.sleep(BUSY_SECONDS)

    def _failed(self, failure: Failure) -> None:
        assert failure.type is not None
        self.outcome = failure.type.__name__

    def connectionLost(self, reason: Failure) -> None:
        self.ended.callback(type(reason.value).__name__)  # type: ignore[arg-type]  # a word is enough


class Sending(MessageProtocol):
    """Sends, and ends."""

    def __init__(self, isPatient: bool) -> None:
        self.isPatient = isPatient
        self.ended: Deferred[None] = Deferred()

    def connectionMade(self) -> None:
        if self.isPatient:
            self.transport.sendMessage(bytes(4), WORK)
        for number in range(COUNT):
            self.transport.sendMessage((number + self.isPatient).to_bytes(4, "big") + bytes(number * STEP))
        self.transport.loseConnection()

    def connectionLost(self, reason: Failure) -> None:
        print(type(reason.value).__name__, flush=True)
        self.ended.callback(None)


class Victim(MessageProtocol):
    """Asks for what it does not live to see."""

    def __init__(self, counter: str) -> None:
        """
        @param counter: is not zero when a part has come.
        """
        self.counter = counter
        self.ended: Deferred[None] = Deferred()

    def connectionMade(self) -> None:
        self.transport.sendMessage(bytes(4), ASK)
        LoopingCall(self.poll).start(0.001)

    def poll(self) -> None:
        """Do nothing any more as soon as a part of the message is here."""
        if report()["counters"][self.counter]:
            self.stop()

    def messageReceived(self, data: bytes, immediate: int | None) -> None:
        self.stop()

    def stop(self) -> None:
        """Say so, and do nothing any more: not even acknowledge."""
        print("in the middle", flush=True)
        time.sleep(600)


async def main(reactor: Any, role: str, port: str = "0", interfaces: str = "", route: str = "auto") -> None:
    """Play a role, and print what came of it."""
    names = interfaces.split(",") if interfaces else ["127.0.0.1"]
    devices = [f"{deviceAt(each)}:route={route}" for each in names]
    if role == "server":
        taking = Taking()
        listening: Any = await listen(reactor, 0, Recorders(lambda: taking), "127.0.0.1", devices)
        print(listening.getHost().port, flush=True)
        reason = await taking.ended
        await listening.stopListening()
        counters = report()["counters"]
        route = "receive-buffer" if counters["num_rdma_recvs"] or counters["num_rdma_sends"] else "packets"
        print(taking.count, taking.outcome, reason, route, flush=True)
        return
    protocol: Victim | Sending = Sending(role == "patient")
    if role == "victim":
        protocol = Victim("num_rdma_recvs" if len(names) == 1 else "num_chunk_recvs")
    await connect(reactor, "127.0.0.1", int(port), Recorders(lambda: protocol), devices)
    await protocol.ended


if __name__ == "__main__":
    react(lambda reactor: Deferred.fromCoroutine(main(reactor, *sys.argv[1:])))
