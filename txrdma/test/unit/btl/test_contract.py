"""The contracts of message connections with the byte transfer layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IListeningPort

from txrdma.sim.network import Faults
from txrdma.test.support.btl.hosts import HostsCase
from txrdma.testing.contracts import MessageContract, RemoteMemoryContract
from txrdma.testing.messagebystanders import MessageBystanderContract
from txrdma.testing.protocols import MessageRecorder


class MessageContractTests(RemoteMemoryContract, MessageContract, HostsCase):
    longest = 100_000

    def connectedBy(self, one: MessageRecorder, other: MessageRecorder) -> None:
        self.open(one, other)
        self.wait(lambda: one.transport and other.transport)

    def waitUntil(self, condition: Callable[[], object], seconds: float = 30.0) -> None:
        self.wait(condition, seconds)


class LossyMessageContractTests(MessageContractTests):
    """On a network that loses, duplicates and reorders."""

    slowBecause = "megabytes are sent in many packets, a twentieth of which is lost"

    faults = Faults(loss=0.05, duplication=0.05, jitterSeconds=0.001)


class BystanderTests(MessageBystanderContract, HostsCase):
    """A message application that raises affects only its own connection; both share a module at each host."""

    METHODS = tuple("answer call post receive send sendMany sendPriority setHandler".split())

    def listenWith(self, factory: Any) -> IListeningPort:
        self.factory = factory
        return Mock()  # the test starts connections itself

    def connectWith(self, factory: Any) -> Deferred[Any]:
        client, server = self.openBy(factory, self.factory)
        server.answer.addErrback(self.noteRaised)  # the listener logs it
        return client.answer

    def waitUntil(self, condition: Callable[[], object]) -> None:
        self.wait(condition)

    def assertClean(self) -> None:
        self.pause(30)
        self.assertNothingLeft()
