"""A queue of records on disk."""

from __future__ import annotations

from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import DeviceUnavailable
from txrdma.kit.spool import BLOCK_OCTETS, Spool

MOST = 4 * BLOCK_OCTETS


class SpoolTests(SynchronousTestCase):
    """Records, their limit, and folders of earlier processes."""

    def setUp(self) -> None:
        self.folder = Path(self.mktemp())
        self.spool = self.opened()

    def opened(self, most: int = MOST) -> Spool:
        spool = Spool(str(self.folder), most)
        self.addCleanup(spool.close)
        return spool

    def again(self) -> Spool:
        """Open the folder again, as the next process does."""
        self.spool.close()
        self.spool = self.opened()
        return self.spool

    def contents(self) -> list[bytes | None]:
        return [self.spool.read(record) for record in self.spool.records]

    def test_queue(self) -> None:
        """Records are in order, and the next process continues the order."""
        for content in (b"one", b"two", b"three"):
            self.assertEqual(self.spool.append(content, len(content), 7), [])
        self.spool.remove(self.spool.records[0])
        self.again()
        self.spool.append(b"four", 4, 8)
        self.assertEqual(self.contents(), [b"two", b"three", b"four"])
        self.assertEqual([(one.items, one.at) for one in self.spool.records], [(3, 7), (5, 7), (4, 8)])

    def test_otherUsers(self) -> None:
        """Other users cannot open the folder, because everyone who can read it can lock it."""
        self.assertEqual(self.folder.stat().st_mode & 0o777, 0o700)

    def test_limit(self) -> None:
        """The oldest records are dropped and returned; files do not exceed the limit."""
        for number in range(6):
            dropped = self.spool.append(bytes([number]) * 5, number, number)
            self.assertEqual([one.items for one in dropped], [number - 4] if number >= 4 else [])
            self.assertLessEqual(self.spool.octets, MOST)
        (dropped_,) = [self.spool.append(bytes(2 * BLOCK_OCTETS), 6, 6)]
        self.assertEqual([one.items for one in dropped_], [2, 3, 4])
        self.assertEqual([one.items for one in self.spool.records], [5, 6])
        octets = sum(-(-path.stat().st_size // BLOCK_OCTETS) for path in self.folder.iterdir()) * BLOCK_OCTETS
        self.assertEqual((self.spool.octets, self.spool.items), (octets, 5 + 6))

    def test_huge(self) -> None:
        """A record that exceeds the limit is dropped, after all earlier records."""
        self.spool.append(b"one", 1, 1)
        dropped = self.spool.append(bytes(MOST), 2, 2)
        self.assertEqual([one.items for one in dropped], [1, 2])
        self.assertEqual((list(self.spool.records), list(self.folder.iterdir())), ([], []))

    def test_damaged(self) -> None:
        """A truncated, changed, empty or missing record is detected; other records are not affected."""
        for content in (b"one", b"two", b"three", b"four"):
            self.spool.append(content, 1, 1)
        paths = sorted(self.folder.iterdir())
        paths[0].write_bytes(paths[0].read_bytes()[:-1])
        paths[1].write_bytes(paths[1].read_bytes()[:-1] + b"!")
        paths[2].write_bytes(b"")
        self.again()
        self.assertEqual(self.contents(), [None, None, None, b"four"])
        paths[3].unlink()
        self.spool.append(b"five", 1, 1)
        self.assertEqual(self.contents(), [None, None, None, None, b"five"])
        for record in list(self.spool.records)[:4]:
            self.spool.remove(record)
        self.assertEqual(self.contents(), [b"five"])

    def test_interrupted(self) -> None:
        """A partly written file of a killed process is no record; other files are ignored."""
        (self.folder / "incomplete").write_bytes(b"begin")
        (self.folder / "README").write_bytes(b"hello")
        self.again()
        self.assertEqual(len(self.spool.records), 0)
        self.spool.append(b"one", 1, 1)
        self.assertEqual(self.contents(), [b"one"])

    def test_other(self) -> None:
        """A second process cannot use the folder until the first has closed it."""
        error = self.assertRaises(DeviceUnavailable, Spool, str(self.folder), MOST)
        self.assertIn("another process", str(error))
        self.spool.close()
        self.opened()

    def test_disk(self) -> None:
        """If the disk cannot be written, an error is raised, and the spool is unchanged."""
        self.spool.append(b"one", 1, 1)
        (self.folder / "incomplete").mkdir()
        self.assertRaises(DeviceUnavailable, self.spool.append, b"two", 1, 1)
        self.assertEqual(self.contents(), [b"one"])
        (self.folder / "incomplete").rmdir()
        self.spool.append(b"two", 1, 1)
        self.assertEqual(self.contents(), [b"one", b"two"])
        self.assertRaises(DeviceUnavailable, Spool, "/proc/nowhere", MOST)
