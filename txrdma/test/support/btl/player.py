"""
One of two processes that exchange messages: C{python -m txrdma.test.support.btl.player ROLE [PORT [INTERFACES
[ROUTE]]]}.

The server prints its port, then what it received and over which route long messages came. C{sender} sends 50
MB and exits; C{patient} does the same after it has requested the server to be busy for a while. C{victim}
requests a long message, and stops when it has received a part: it is to be killed.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import LoopingCall, react
from twisted.python.failure import Failure

from txrdma.btl import lifeline
from txrdma.btl.connections import connect, listen
from txrdma.btl.ends import deviceAt
from txrdma.btl.status import report
from txrdma.messages.protocol import MessageProtocol
from txrdma.testing.protocols import Recorders

COUNT = 500
STEP = 400
"""Difference between the lengths of consecutive messages."""

LONG = 48 << 20
TIMES = 3
"""Number of long messages requested: a single one may arrive before the reactor runs."""

BUSY_SECONDS = 1.0

ASK, WORK = 1, 2
"""Immediate data of requests to the server."""

PATIENCE_SECONDS = 100.0
"""Seconds in which two processes connect, even on a busy machine."""


class Taking(MessageProtocol):
    """Counts messages, and answers requests."""

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
    """Requests messages, and is killed before it has received them."""

    def __init__(self, counter: str) -> None:
        """@param counter: returns nonzero when a part has arrived."""
        self.counter = counter
        self.ended: Deferred[None] = Deferred()

    def connectionMade(self) -> None:
        self.transport.sendMessage(bytes(4), ASK)
        LoopingCall(self.poll).start(0.001)

    def poll(self) -> None:
        """Stop when a part of the message has arrived."""
        if report()["counters"][self.counter]:
            self.stop()

    def messageReceived(self, data: bytes, immediate: int | None) -> None:
        self.stop()

    def stop(self) -> None:
        """Report, and block: nothing is acknowledged afterwards."""
        print("in the middle", flush=True)
        time.sleep(600)


async def main(reactor: Any, role: str, port: str = "0", interfaces: str = "", route: str = "auto") -> None:
    """Play a role, and print the result."""
    lifeline.PROBE_SECONDS = lifeline.EXCHANGE_SECONDS = PATIENCE_SECONDS  # type: ignore[misc]  # final for users
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
