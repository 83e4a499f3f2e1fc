"""
Link groups over RoCE after the last use of SMC: they end when peers know, and never block the reactor.
"""

from __future__ import annotations

from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost

from txrdma.iba.verbs import AsyncEventKind
from txrdma.interfaces import AsyncEvent
from txrdma.smc.group import groups as groupsModule
from txrdma.smc.group.groups import everyGroup
from txrdma.test.support.smc.races import Listener, RaceTestCase
from txrdma.testing.reactors import unqueuedSeconds

SECONDS = groupsModule.CLOSING_SECONDS
BOUND = 0.5
"""Maximum real time of a call, in seconds, while simulated time does not advance."""


class LingeringTests(RaceTestCase):
    """The last use of SMC at the client ends."""

    def setUp(self) -> None:
        super().setUp()
        self.patch(groupsModule, "CLOSING_SECONDS", SECONDS)
        self.addCleanup(self.patch, groupsModule, "CLOSING_SECONDS", 0.0)  # before the hosts are closed
        self.here, self.there, _ = self.connect()
        self.until(lambda: self.here.mode == self.there.mode == "SMC-R")

    def closing(self, end: str) -> None:
        """Close the client's end of the only connection, and with it the last use of SMC."""
        begun = unqueuedSeconds()
        self.uses[0].release()
        getattr(self.here.transport, end)()
        self.wait(0.01)
        self.assertLess(unqueuedSeconds() - begun, BOUND)

    def isOpen(self) -> bool:
        """Return whether the client has a link group."""
        return self.client in {group.groups.reactor for group in everyGroup()}

    def test_groupEndsWhenPeerAcknowledgedLastEnd(self) -> None:
        self.closing("abortConnection")
        self.until(lambda: self.there.reason is not None, 0.1)
        self.assertEqual((self.here.reason, self.there.reason), (ConnectionAborted, ConnectionLost))
        self.until(lambda: not self.isOpen(), 0.1)

    def test_silentPeerDelaysNoProcessAndGroupTimesOut(self) -> None:
        self.server.sleep()
        self.closing("abortConnection")
        self.assertIs(self.here.reason, ConnectionAborted)
        self.wait(SECONDS / 2)
        self.assertTrue(self.isOpen())
        self.wait(SECONDS)
        self.assertFalse(self.isOpen())

    def test_connectionJoinsGroupThatWaitsForPeer(self) -> None:
        self.server.sleep()
        self.closing("abortConnection")
        [group] = [each for each in everyGroup() if each.groups.reactor is self.client]
        self.server.wake()
        here, there, _ = self.connect(Listener(), Listener())
        self.until(lambda: here.mode == there.mode == "SMC-R")
        self.assertFalse(group.isOver)
        self.wait(2 * SECONDS)
        self.assertIs(here.reason, None)
        here.transport.loseConnection()
        self.until(lambda: there.hasEnded)
        there.transport.loseConnection()
        self.until(lambda: there.reason is here.reason is ConnectionDone)

    def test_removedDeviceEndsConnectionsWithoutWaiting(self) -> None:
        begun = unqueuedSeconds()
        self.groupsOf[self.client].devices[0].notify(AsyncEvent(AsyncEventKind.DEVICE_FATAL))  # type: ignore[attr-defined]  # of the software device
        self.until(lambda: self.here.reason is not None)
        self.assertLess(unqueuedSeconds() - begun, BOUND)
        self.assertIs(self.here.reason, ConnectionLost)
        self.assertFalse(self.isOpen())
