"""Link groups of a reactor that stops while services still use connections, with real reactors."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from txrdma.smc.group.groups import linkGroups
from txrdma.smc.terms.options import LOCAL_DEVICE
from txrdma.testing.reactors import RealTime


class StoppingTests(RealTime, SynchronousTestCase):
    """Services whose C{stopService} returns a Deferred."""

    def setUp(self) -> None:
        self.createReactor()
        self.served: Deferred[None] = Deferred()
        self.reactor.addSystemEventTrigger("before", "shutdown", lambda: self.served)

    def test_groupsStopAfterServices(self) -> None:
        """Connections of link groups are used until all services have stopped."""
        groups = linkGroups(self.reactor, LOCAL_DEVICE)
        self.reactor.fireSystemEvent("shutdown")
        self.assertFalse(groups.isStopping)
        self.served.callback(None)
        self.assertTrue(groups.isStopping)

    def test_groupsMadeMeanwhileStop(self) -> None:
        """Link groups that a service opens when it stops end their connections in order, too."""
        self.reactor.fireSystemEvent("shutdown")
        groups = linkGroups(self.reactor, LOCAL_DEVICE)
        self.served.callback(None)
        self.assertTrue(groups.isStopping)
