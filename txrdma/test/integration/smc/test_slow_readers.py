"""
SMC-R connections whose peer has closed and released its buffer long before the received bytes are read.
"""

from __future__ import annotations

from twisted.internet.error import ConnectionDone, ConnectionLost

from txrdma.smc.flow.closing import LINGER_TIMEOUT
from txrdma.test.support.smc.races import Listener, RaceTestCase

LONG = 2 * LINGER_TIMEOUT


class SlowReaderTests(RaceTestCase):
    """The client has closed; the server has paused, and resumes after the client has released its buffer."""

    def setUp(self) -> None:
        super().setUp()
        self.here, self.there = self.pair()
        self.there.transport.pauseProducing()
        self.here.transport.write(b"x" * 1000)
        self.here.transport.loseConnection()
        self.wait(LONG)
        self.assertEqual((self.here.reason, self.there.reason), (ConnectionDone, None))

    def test_bytesAreDelivered(self) -> None:
        self.there.transport.resumeProducing()
        self.wait(1.0)
        self.assertEqual(len(self.there.received), 1000)
        self.there.transport.loseConnection()
        self.wait(1.0)
        self.assertIs(self.there.reason, ConnectionDone)

    def test_writeEndsOnlyThisConnection(self) -> None:
        """Nothing is written to the released buffer, which would break the link and its other connections."""
        here, there = self.pair()
        self.there.transport.write(b"y" * 1000)
        self.wait(1.0)
        self.assertIs(self.there.reason, ConnectionLost)
        self.assertAlive(here, there)

    def assertAlive(self, here: Listener, there: Listener) -> None:
        here.transport.write(b"z")
        self.wait(1.0)
        self.assertEqual((there.mode, bytes(there.received)), ("SMC-R", b"z"))
