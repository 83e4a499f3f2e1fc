"""A message application that raises affects only its own btl connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IListeningPort

from txrdma.test.support.btl.hosts import HostsCase
from txrdma.testing.messagebystanders import MessageBystanderContract


class BTLTests(MessageBystanderContract, HostsCase):
    """Both connections share a module at each host."""

    METHODS = tuple("answer call post receive send sendMany sendPriority setHandler".split())

    def listenWith(self, factory: Any) -> IListeningPort:
        self.factory = factory
        return Mock()  # the test starts connections itself

    def connectWith(self, factory: Any) -> Deferred[Any]:
        client, server = self.openBy(factory, self.factory)
        server.answer.addErrback(lambda _: None)  # the listener logs it
        return client.answer

    def waitUntil(self, condition: Callable[[], object]) -> None:
        self.wait(condition)

    def assertClean(self) -> None:
        self.pause(30)
        self.assertNothingLeft()
