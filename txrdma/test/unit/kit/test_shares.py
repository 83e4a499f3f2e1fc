"""Tests for L{txrdma.kit.shares}."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from txrdma.kit.shares import ByteShares, CLIENT_SHARE, Shares


class SharesTests(SynchronousTestCase):
    def test_share(self) -> None:
        """One client fills its share; then another one has room until the table is full."""
        shares, most = Shares[int](), 10
        share = int(most * CLIENT_SHARE)
        for number in range(share):
            self.assertTrue(shares.hasRoom("one", most))
            shares.add("one", number)
        self.assertFalse(shares.hasRoom("one", most))
        for number in range(most - share):
            self.assertTrue(shares.hasRoom("other", most))
            shares.add("other", number)
        self.assertFalse(shares.hasRoom("third", most))
        self.assertEqual((len(shares), shares.oldest("one")), (most, 0))
        shares.remove("one", 0)
        self.assertTrue(shares.hasRoom("one", most))
        self.assertEqual((sorted(shares), shares.oldest("one")), (sorted([1, 2, 3, 4, 0, 1, 2, 3, 4]), 1))

    def test_small(self) -> None:
        """A client may have one entry of a table, unless the table has none."""
        shares = Shares[str]()
        self.assertEqual([shares.hasRoom("one", most) for most in (0, 1, 2)], [False, True, True])

    def test_again(self) -> None:
        """Entries that are added or removed twice count once, and no client without entries is retained."""
        shares = Shares[str]()
        for _ in range(2):
            shares.add("one", "entry")
        self.assertEqual(len(shares), 1)
        for _ in range(2):
            shares.remove("one", "entry")
        self.assertEqual((len(shares), list(shares), shares._entries), (0, [], {}))


class ByteSharesTests(SynchronousTestCase):
    def test_share(self) -> None:
        """One client fills its share in bytes; then another one has room until the table is full."""
        shares, most = ByteShares(), 1000
        share = int(most * CLIENT_SHARE)
        shares.add("one", 1)
        self.assertEqual([shares.hasRoom("one", each, most) for each in (share - 1, share)], [True, False])
        shares.add("one", share - 1)
        self.assertEqual([shares.hasRoom(each, 1, most) for each in ("one", "other")], [False, True])
        shares.add("other", share)
        self.assertEqual((shares.hasRoom("third", 1, most), shares.total), (False, 2 * share))
        for client in ("one", "other"):
            shares.add(client, -share)
        self.assertTrue(shares.hasRoom("one", 2 * most, most))  # one entry may have any length
        self.assertEqual((shares.total, shares._used), (0, {}))
