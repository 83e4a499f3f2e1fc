"""The base case of tests with two managers, joined by a network that loses and delays messages."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from txrdma.kit.wire import Layout
from txrdma.test.support.cm.ends import End, World

OPENED = ["ConnectionReplied", "ConnectionEstablished"]
ACCEPTED = ["ConnectionRequested", "ConnectionEstablished"]


class ManagerCase(SynchronousTestCase):
    """A client and a server, without a reactor."""

    def setUp(self) -> None:
        self.begin(World())

    def begin(self, world: World) -> None:
        """Create two hosts."""
        self.world = world
        self.client, self.server = world.end("10.0.0.1"), world.end("10.0.0.2")

    def lose(self, *kinds: type[Layout]) -> None:
        """Lose the next message of each kind."""
        left = list(kinds)

        def drops(message: Layout) -> bool:
            if type(message) in left:
                left.remove(type(message))
                return True
            return False

        self.world.drops = drops

    def eventNames(self, end: End) -> list[str]:
        """Return all events of a host, except for timewait's."""
        names = [type(event).__name__ for _, event in end.happened]
        return [name for name in names if name != "TimewaitOver"]

    def assertEmpty(self) -> None:
        """Assert that no connection has an entry in a table, or a timer."""
        self.world.run()
        for end in (self.client, self.server):
            manager = end.manager
            self.assertEqual(len(manager), 0)
            for table in (manager._byPeer, manager._byQP, manager._resolutions, manager._sidrRequests):
                self.assertEqual(table, {})
            self.assertEqual([slot for slot in manager._wheel._slots.values() if slot], [])
            self.assertEqual(manager._peerToPeer, {})
            for listeners in manager._listeners.values():
                self.assertEqual([len(each.waiting) for each in listeners], [0] * len(listeners))
