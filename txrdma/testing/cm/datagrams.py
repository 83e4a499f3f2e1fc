"""
Programs that use the datagram endpoints of RDMA CM's UDP port space at random, and check their promises.

L{txrdma.testing.cm.scenario} runs them, beside those of L{txrdma.testing.cm.users}. A service returns each
datagram to its client.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from random import Random
from typing import Any, Final

from twisted.internet.defer import CancelledError, Deferred
from twisted.python.failure import Failure

from txrdma.cm.connections.datagrams import (
    DatagramClientEndpoint,
    DatagramPeer,
    DatagramProtocol,
    DatagramServerEndpoint,
)
from txrdma.error import InvalidRequest, RDMAError
from txrdma.messages.protocol import MessageFactory
from txrdma.testing.cm.userplans import DatagramPlan
from txrdma.testing.outcome import check

_PORT: Final = 8000


class DatagramUser(DatagramProtocol):
    """
    The program of a service, or of a client.

    @ivar state: "new", "started", or "stopped".
    @ivar sent: numbers of sent datagrams by their bytes; C{received}: numbers of received ones.
    """

    def __init__(self, pair: DatagramPair, answer: bytes = b"") -> None:
        self.pair, self.answer = pair, answer
        self.state = "new"
        self.sent: Counter[bytes] = Counter()
        self.received: Counter[bytes] = Counter()

    def _require(self, holds: bool, what: str) -> None:
        self.pair.scenario.require(holds, f"a program of {self.pair!r}: {what}")

    def startProtocol(self) -> None:
        self._require(self.state == "new", "is started twice")
        self.state = "started"
        self.pair.started(self)

    def stopProtocol(self) -> None:
        self._require(self.state == "started", f"is stopped, but {self.state}")
        self.state = "stopped"

    def write(self, data: bytes, to: DatagramPeer | None = None) -> None:
        """Send a datagram; one that is too long is refused."""
        try:
            self.transport.write(data, to)
        except InvalidRequest:
            self._require(len(data) > self.transport.longest, f"cannot send {len(data)} bytes")
        else:
            self.sent[data] += 1

    def datagramReceived(self, data: bytes, peer: DatagramPeer) -> None:
        """Check that the peer has sent this."""
        self._require(self.state == "started", f"a datagram, but {self.state}")
        self.received[data] += 1
        self.pair.received(self, data, peer)


class DatagramPair:
    """A service of datagrams, and its client."""

    def __init__(self, scenario: Any, number: int, plan: DatagramPlan) -> None:
        """@param scenario: of L{txrdma.testing.cm.scenario}, which imports this module."""
        self.scenario, self.number, self.plan = scenario, number, plan
        self.host, self.peer = (scenario.hosts[each] for each in (plan.client, plan.server))
        self.mayFail = False
        self.server = DatagramUser(self, b"s" * plan.private)
        self.client: DatagramUser | None = None
        self.port: Any = None
        self.attempt: Deferred[Any] = Deferred()
        self.result: Any = None

    def __repr__(self) -> str:
        return f"datagrams {self.number}"

    def begin(self) -> None:
        """Listen, and connect at its time."""
        if not self.plan.isRefused:
            endpoint = DatagramServerEndpoint(self.peer, _PORT + self.number, self.peer.device)
            endpoint.listen(MessageFactory(lambda: self.server)).addCallbacks(self._listening, self._failed)
        self.host.callSteadily(self.plan.at, self._connect)

    def _listening(self, port: Any) -> None:
        self.port = port

    def _failed(self, failure: Failure) -> None:
        self.mayFail = True
        isScarce = self.scenario.isTroubled and failure.check(RDMAError) is not None
        self.scenario.require(isScarce, f"{self!r} does not listen: {failure!r}")

    def _connect(self) -> None:
        plan = self.plan
        self.mayFail |= self.port is None
        private = b"c" * plan.private
        endpoint = DatagramClientEndpoint(
            self.host, self.peer.address, _PORT + self.number, self.host.device, private, plan.timeout or None
        )
        self.attempt = endpoint.connect(MessageFactory(partial(DatagramUser, self)))
        self.attempt.addBoth(self._ended)
        if plan.cancelled > 0:
            self.host.callSteadily(plan.cancelled, self.attempt.cancel)

    def _ended(self, result: Any) -> None:
        self.scenario.require(self.result is None, f"{self!r}: the attempt has two results")
        self.result = result
        if not isinstance(result, Failure):
            self.scenario.require(result is self.client, f"{self!r} has another protocol")
            self.scenario.require(not self.plan.isRefused, f"{self!r} has found a service")
            return
        plan = self.plan
        mayFail = self.mayFail or plan.isRefused or plan.timeout > 0 or plan.cancelled >= 0
        isKnown = result.check(RDMAError, CancelledError) is not None
        self.scenario.require(isKnown and (mayFail or self.isDisturbed), f"{self!r}: {result!r}")

    @property
    def isDisturbed(self) -> bool:
        """Whether datagrams may be lost."""
        scenario = self.scenario
        hasStopped = any(host.isStopped or host.isDead for host in (self.host, self.peer))
        isBad = scenario.isLossy or scenario.plan.faults.duplication > 0
        return isBad or scenario.isTroubled or scenario.troubleSeconds > 0 or hasStopped

    def started(self, user: DatagramUser) -> None:
        """Send datagrams in the next iterations, as a client."""
        if user is self.server:
            return
        self.client = user
        peer = user.transport.peer
        assert peer is not None
        self.scenario.require(peer.privateData == self.server.answer, f"{self!r}: {peer.privateData!r}")
        if not self.plan.cancelled:
            self.attempt.cancel()
            return
        for number in range(self.plan.count):
            self.host.callSteadily(number * self.plan.interval, partial(self._send, number))
        self.host.callSteadily(self.plan.seconds, self._close)

    def _send(self, number: int) -> None:
        assert self.client is not None
        text = number.to_bytes(4, "big") + Random(number).randbytes(self.plan.size)
        self.client.write(text)

    def _close(self) -> None:
        assert self.client is not None
        user = self.server if self.plan.isServerFirst else self.client
        user.transport.loseConnection()
        user.transport.loseConnection()

    def received(self, user: DatagramUser, data: bytes, peer: DatagramPeer) -> None:
        """Check a received datagram; return it to its sender, as a service."""
        client = self.client
        if client is None:
            self.scenario.require(False, f"{self!r}: a datagram without a client")
            return
        other = client if user is self.server else self.server
        self.scenario.require(user.received[data] <= other.sent[data] or self.isDisturbed, f"{self!r}: twice")
        self.scenario.require(other.sent[data] > 0, f"{self!r}: a datagram that was not sent")
        if user is self.server:
            user.write(data, peer)
        else:
            self.scenario.require(peer == user.transport.peer, f"{self!r}: a datagram of {peer!r}")

    def end(self) -> None:
        """Stop the client and the service."""
        if isinstance(self.result, DatagramUser):
            self.result.transport.loseConnection()
        if self.port is not None:
            self.port.stopListening()
            self.port.stopListening()

    def judge(self) -> None:
        """Check that both programs have ended, and that nothing is lost without a reason."""
        client, plan = self.client, self.plan
        for user, host in ((self.server, self.peer), (client, self.host)):
            check(user is None or user.state != "started" or host.isDead, f"{self!r} does not end")
        if client is not None and not self.isDisturbed and plan.seconds > plan.count * plan.interval + 1.0:
            check(client.received == client.sent, f"{self!r} has lost something")
        self.scenario.counts["datagrams"] += 0 if client is None else client.received.total()
