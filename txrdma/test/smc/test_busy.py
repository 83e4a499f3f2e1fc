"""
A peer whose program is busy is not dead, and one whose host is gone is no longer waited for than TCP waits.
"""

from __future__ import annotations

from twisted.internet.error import ConnectionLost

from txrdma.smc.groups import linkGroups
from txrdma.smc.llc import decode, TestLink
from txrdma.test.smc.races import Listener, RaceTestCase
from txrdma.testing.conversations import DEVICE

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
        """Where nobody writes, two hours are nothing to it: TEST LINK is asked again and again."""
        here, there = self.pair()
        [link] = linkGroups(self.client, DEVICE).links()
        asked = []
        real = link._send

        def send(raw: bytes) -> None:
            asked.append(isinstance(decode(raw).body, TestLink))
            real(raw)

        self.patch(link, "_send", send)
        self.server.sleep()
        self.wait(600)
        self.assertGreater(sum(asked), 3)
        self.server.wake()
        self.wait(10)
        here.transport.write(b"awake?")
        self.until(lambda: there.heard)
        self.assertEqual((here.reason, there.reason), (None, None))

    def test_vanished(self) -> None:
        """A host that is gone without a word is given up in the end, after several questions."""
        here, _ = self.pair()
        self.server.die(silently=True)
        begun = self.client.seconds()
        self.wait(600)
        self.assertIsNone(here.reason)
        self.until(lambda: here.reason, 9000)
        self.assertEqual(here.reason, ConnectionLost)
        self.assertGreater(self.client.seconds() - begun, 900)
