"""Log entries that peers can cause at any rate."""

from __future__ import annotations

import errno
from collections.abc import Hashable
from typing import cast

from twisted.internet.task import Clock
from twisted.logger import formatEvent, ILogObserver, LogEvent, Logger
from twisted.trial.unittest import SynchronousTestCase

from txrdma.kit.logs import _MOST, advised, errorText, RateLimitedLogger, reasonText


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class TextTests(SynchronousTestCase):
    def test_noText(self) -> None:
        """An exception without a text is logged as its type."""
        self.assertEqual(errorText(KeyError()), "KeyError")
        self.assertEqual(errorText(OSError("no memory")), "no memory")

    def test_failingText(self) -> None:
        """The text of an exception that fails to make one has its type, and nothing is raised."""
        self.assertIn("Unprintable", errorText(Unprintable()))

    def test_reason(self) -> None:
        """The reason of an operating system's error has no number and no path."""
        missing = FileNotFoundError(errno.ENOENT, "No such file or directory", "/x")
        for error, text in (
            (missing, "No such file or directory"),
            (OSError("not a gzip file"), "not a gzip file"),
            (ValueError("line 7"), "line 7"),
            (EOFError(), "EOFError"),
        ):
            self.assertEqual(reasonText(error), text)


class AdvisedTests(SynchronousTestCase):
    def test_descriptors(self) -> None:
        """A lack of descriptors is logged with advice, other errors with the system's text."""
        error = OSError(errno.EMFILE, "Too many open files")
        self.assertIn("Too many open files: raise the process's limit (RLIMIT_NOFILE", advised(error))
        self.assertEqual(advised(OSError(errno.EACCES, "No")), f"[Errno {errno.EACCES}] No")


class RateLimitTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.events: list[LogEvent] = []
        log = Logger("test", observer=cast(ILogObserver, self.events.append))
        self.seldom = RateLimitedLogger(log, clock=self.clock.seconds)

    def written(self, subject: Hashable = 1) -> list[str]:
        """Log an entry about a subject, and return the new log events."""
        self.events.clear()
        self.seldom.warn(subject, "user {user} knocks", user=subject)
        return [formatEvent(event) for event in self.events]

    def test_first(self) -> None:
        """The first entry is logged immediately, with its level."""
        self.assertEqual(self.written(), ["user 1 knocks"])
        self.assertEqual(self.events[0]["log_level"].name, "warn")

    def test_onceAMinute(self) -> None:
        """Further entries about a subject within a minute are suppressed; the next one has their number."""
        self.written()
        self.assertEqual(self.written(2), ["user 2 knocks"])
        for _ in range(3):
            self.clock.advance(19)
            self.assertEqual(self.written(), [])
        self.clock.advance(4)
        self.assertEqual(self.written(), ["user 1 knocks (3 more like this were not logged)"])
        self.clock.advance(61)
        self.assertEqual(self.written(), ["user 1 knocks"])

    def test_bounded(self) -> None:
        """For endless subjects, entries and memory are bounded, and all suppressed entries are counted."""
        wrote = sum(len(self.written(number)) for number in range(1000))
        self.assertLessEqual(wrote, _MOST + 1)
        self.clock.advance(61)
        self.assertEqual(self.written(5000), ["user 5000 knocks"])
        entries = [entry for number in range(6000, 6100) for entry in self.written(number)]
        [last] = [entry for entry in entries if "not logged" in entry]
        self.assertIn(f"({1000 - wrote} more like this were not logged)", last)
        self.assertLessEqual(len(self.seldom._entries), _MOST + 1)

    def test_countOfTheQuiet(self) -> None:
        """Suppressed entries of a removed subject are reported with the others."""
        for _ in range(5):
            self.written(1)
        self.clock.advance(61)
        entries = [entry for number in range(2, 100) for entry in self.written(number)]
        [last] = [entry for entry in entries if "not logged" in entry]
        self.assertIn("(4 more like this were not logged)", last)
