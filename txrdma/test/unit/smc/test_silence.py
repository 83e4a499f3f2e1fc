"""
Peers that do not answer.
"""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.smc.signalling.silence import MOST, SilentPeers, silentPeers, SPAN, TRIAL


class SilenceTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.silent = SilentPeers()

    def test_silentPeerIsNotAskedAgain(self) -> None:
        self.assertFalse(self.silent.isSilent("a", 0.0))
        self.assertTrue(self.silent.timedOut("a", 5.0))
        self.assertTrue(self.silent.isSilent("a", 5.0))
        self.assertTrue(self.silent.isSilent("a", 4.9 + SPAN))
        self.assertFalse(self.silent.isSilent("b", 5.0))
        self.assertFalse(self.silent.isSilent("a", 5.0 + SPAN))

    def test_oneConnectionRetries(self) -> None:
        self.silent.timedOut("a", 0.0)
        self.silent.query("a", SPAN)
        self.assertTrue(self.silent.isSilent("a", SPAN))
        self.assertFalse(self.silent.timedOut("a", SPAN + 2.0))
        self.assertTrue(self.silent.isSilent("a", 2 * SPAN))

    def test_silenceIsNotExtendedByClockThatIsSetBack(self) -> None:
        self.silent.timedOut("a", 3600.0)
        self.assertFalse(self.silent.isSilent("a", 3598.0 - SPAN))
        self.assertEqual(list(self.silent.remaining(0.0)), [])

    def test_answerEndsSilence(self) -> None:
        self.silent.timedOut("a", 0.0)
        self.silent.query("a", SPAN)
        self.silent.answered("a")
        self.assertFalse(self.silent.isSilent("a", SPAN))

    def test_abandonedRetryIsRepeated(self) -> None:
        self.silent.timedOut("a", 0.0)
        self.silent.query("a", SPAN)
        self.assertFalse(self.silent.isSilent("a", SPAN + TRIAL))

    def test_silentPeersAreReported(self) -> None:
        self.silent.query("a", 0.0)
        self.silent.timedOut("b", 0.0)
        self.silent.timedOut("c", 10.0)
        self.assertEqual(list(self.silent.remaining(20.0)), [("b", SPAN - 20.0), ("c", SPAN - 10.0)])
        self.assertEqual(list(self.silent.remaining(SPAN)), [("c", 10.0)])

    def test_onlyLatestPeersAreStored(self) -> None:
        for number in range(MOST + 10):
            self.silent.timedOut(number, 0.0)
        remembered = [peer for peer, _ in self.silent.remaining(1.0)]
        self.assertEqual(remembered, list(range(10, MOST + 10)))

    def test_silencePerReactor(self) -> None:
        one, other = Clock(), Clock()
        silentPeers(one).timedOut("a", 0.0)
        self.assertTrue(silentPeers(one).isSilent("a", 1.0))
        self.assertFalse(silentPeers(other).isSilent("a", 1.0))
