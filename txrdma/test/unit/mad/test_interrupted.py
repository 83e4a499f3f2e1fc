"""Path resolution by subnet administration while a function raises: requests end, and later ones succeed."""

from __future__ import annotations

from functools import partial
from typing import Any

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.python.failure import Failure

from txrdma.iba.path import IBDRPath
from txrdma.mad import paths, resolvers, satransactor
from txrdma.mad.agent import MADAgent
from txrdma.mad.core import calls, transactions, transfers
from txrdma.mad.layouts.smp import NodeInfo
from txrdma.mad.resolvers import SAPathResolver
from txrdma.mad.satransactor import SATransactor
from txrdma.test.support.interruptions import Interruptions
from txrdma.test.support.mad.simulated import FabricTestCase

OWNERS: tuple[Any, ...] = (
    *(MADAgent, calls.Calls, transactions.Transactions, transfers.RMPPTransfers),
    *(SAPathResolver, SATransactor, satransactor._Translation),
    *(calls, transactions, transfers, resolvers, satransactor, paths),
)
"""What the resolution of paths consists of."""

TRIVIAL = ("_handleEvent",)
"""Functions that only call others."""


class InterruptionTests(FabricTestCase):
    """Requests of a resolver and a transactor, of which a call of one function raises."""

    slowBecause = "it resolves paths for each function"

    def setUp(self) -> None:
        super().setUp()
        self.isSelected = False
        self.interruptions = Interruptions(self.patch, OWNERS, lambda *_: self.isSelected, TRIVIAL)
        port = self.agent.port
        self.resolver = SAPathResolver(self.agent, lambda: port.endPort, asksForLIDs=True, keepsGIDs=True)
        self.transactor = SATransactor(self.agent, lambda: port.endPort)

    def requests(self) -> list[Deferred[Any]]:
        """Make one request of each kind."""
        end = self.fabric.port("b").end
        return [
            *(maybeDeferred(self.resolver.resolve, each) for each in (end.lid, "b", "nobody")),
            maybeDeferred(self.transactor.SubnGet, NodeInfo, IBDRPath(drPath=(1, 1))),
        ]

    def results(self) -> list[Any]:
        """Return the results of all requests; the reactor logs exceptions of its calls."""
        found: list[Any] = [None] * 4
        for number, each in enumerate(self.requests()):
            each.addBoth(partial(found.__setitem__, number))
        until = self.clock.seconds() + 200.0
        while self.clock.seconds() < until:
            try:
                self.pump(until - self.clock.seconds())
            except ZeroDivisionError:
                self.count += 1
        return found

    def play(self) -> list[str]:
        """Make requests twice, the second time without exceptions; return what is wrong."""
        self.count, wrong = 0, list[str]()
        self.transactor.forget()
        self.isSelected = True
        if None in self.results():
            wrong.append("a request hangs")
        self.isSelected = False
        again = self.results()
        wrong += [f"{each}" for each in again[:2] + again[3:] if isinstance(each, Failure) or each is None]
        self.count += len(self.flushLoggedErrors(ZeroDivisionError))
        if self.count > 1:
            wrong.append(f"it was logged {self.count} times")
        if self.clock.calls:
            wrong.append(f"left: {self.clock.calls}")
        return wrong

    def test_each(self) -> None:
        """The first call and the last one of each function."""
        self.assertEqual(self.play(), [])
        self.assertGreater(len(self.interruptions.counts), 30)
        for (owner, name), number in self.interruptions.each(1):
            self.assertEqual(self.play(), [], (owner.__name__, name, number))
