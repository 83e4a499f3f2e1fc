"""A message application that raises affects only its own btl connection."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any
from unittest.mock import Mock

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IListeningPort

from txrdma.btl.connections import PeerOpening
from txrdma.test.support.btl.hosts import HostsCase
from txrdma.testing.messagebystanders import MessageBystanderContract
from txrdma.testing.smc.hosts import connectedSockets, MemoryTCP


class BTLTests(MessageBystanderContract, HostsCase):
    """Both connections share a module at each host."""

    METHODS = tuple("answer call post receive send sendMany sendPriority setHandler".split())

    def listenWith(self, factory: Any) -> IListeningPort:
        self.factory = factory
        return Mock()  # the test starts connections itself

    def connectWith(self, factory: Any) -> Deferred[Any]:
        ends = connectedSockets(self.world, Random(2), self.hosts[0], self.hosts[1], 40000, 50e-6)
        answers = []
        for socket, each in zip(ends, (factory, self.factory), strict=True):
            opening = PeerOpening(socket.host, self.devices(socket.host), each, socket is ends[0])
            MemoryTCP(socket, opening.lifeline).begin()
            answers.append(opening.answer)
        answers[1].addErrback(lambda _: None)  # the listener logs it
        return answers[0]

    def waitUntil(self, condition: Callable[[], object]) -> None:
        self.wait(condition)

    def assertClean(self) -> None:
        self.pause(30)
        self.assertNothingLeft()
