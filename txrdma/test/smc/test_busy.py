"""
A peer whose program is busy is not dead, and one whose host is gone is no longer waited for than TCP waits.
"""

from __future__ import annotations

from twisted.internet.error import ConnectionLost

from txrdma.smc.group.groups import linkGroups, timingOn
from txrdma.smc.wire.llc import Body, TestLink
from txrdma.test.smc.races import Listener, RaceTestCase
from txrdma.testing.smc.scenario import DEVICE

BYTES = bytes(range(256)) * 400
"""More than a ring has room for."""


class BusyTests(RaceTestCase):
    """By RoCE, where nobody but the peer's program can tell that it lives."""

    def pair(self) -> tuple[Listener, Listener]:
        here, there, _ = self.connect()
        self.until(lambda: here.mode and there.mode)
        self.assertEqual((here.mode, there.mode), ("SMC-R", "SMC-R"))
        return here, there

    def busy(self, seconds: float) -> None:
        """The server does nothing for a while, and is written to."""
        quiet, (here, there) = self.pair(), self.pair()
        self.server.sleep()
        here.transport.write(BYTES)
        self.wait(seconds)
        self.assertEqual(there.heard, b"")
        self.server.wake()
        self.until(lambda: there.heard == BYTES, 600)
        there.transport.write(BYTES)
        quiet[1].transport.write(b"and you?")
        self.until(lambda: here.heard == BYTES and quiet[0].heard, 600)
        self.assertEqual([end.reason for end in (here, there, *quiet)], [None] * 4)

    def test_twoMinutes(self) -> None:
        """A reactor that is blocked for two minutes loses no connection, and no byte."""
        self.busy(125)

    def test_tenMinutes(self) -> None:
        """Nor does one that is blocked for ten."""
        self.busy(600)

    def test_hoursOfSilence(self) -> None:
        """Where nobody writes, more than two hours are nothing to it: TCP's keepalive would wait as long."""
        here, there = self.pair()
        self.server.sleep()
        timing = timingOn(True)
        self.wait(timing.silence - timing.testInterval)
        self.server.wake()
        self.wait(10)
        here.transport.write(b"awake?")
        self.until(lambda: there.heard)
        self.assertEqual((here.reason, there.reason), (None, None))

    def test_vanished(self) -> None:
        """A host that is gone without a word is given up when TCP's keepalive would, and was asked before."""
        here, _ = self.pair()
        [group] = linkGroups(self.client, DEVICE).groups()
        asked = []
        real = group.core._core.ask

        def ask(body: Body, flags: int = 0) -> None:
            asked.append(type(body))
            real(body, flags)

        self.patch(group.core._core, "ask", ask)
        self.server.die(silently=True)
        begun = self.client.seconds()
        self.until(lambda: here.reason, timingOn(True).silence + 1000)
        self.assertEqual(here.reason, ConnectionLost)
        self.assertGreaterEqual(self.client.seconds() - begun, timingOn(True).silence)
        self.assertGreaterEqual(asked.count(TestLink), 5)

    def test_vanishedWithWords(self) -> None:
        """Where something was to be said to it, it is given up when TCP would: in some 15 minutes."""
        here, _ = self.pair()
        self.server.die(silently=True)
        here.transport.write(b"hello")
        begun = self.client.seconds()
        self.until(lambda: here.reason, 9000)
        self.assertEqual(here.reason, ConnectionLost)
        self.assertApproximates(self.client.seconds() - begun, 1000, 200)
