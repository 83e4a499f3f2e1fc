"""Listeners of events."""

from __future__ import annotations

from collections.abc import Callable

from twisted.logger import Logger
from twisted.trial.unittest import SynchronousTestCase

from txrdma.kit.listeners import Listeners


class ListenersTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.listeners: Listeners[[int]] = Listeners(Logger(), "{listener} failed at {event}")
        self.received: list[tuple[str, int]] = []

    def recorder(self, name: str) -> Callable[[int], None]:
        return lambda event: self.received.append((name, event))

    def test_notify(self) -> None:
        """Listeners are called in the order in which they were added, equal ones too, until removed."""
        self.assertFalse(self.listeners)
        listener = self.recorder("one")
        removes = [self.listeners.add(listener) for _ in range(2)]
        self.assertTrue(self.listeners)
        self.listeners.notify(1)
        for _ in range(2):
            removes[0]()
        self.listeners.notify(2)
        self.listeners.clear()
        self.listeners.notify(3)
        self.assertEqual(self.received, [("one", 1), ("one", 1), ("one", 2)])

    def test_removedByOther(self) -> None:
        """A listener that another one removes is not called any more."""
        self.listeners.add(lambda event: remove())
        remove = self.listeners.add(self.recorder("removed"))
        self.listeners.add(self.recorder("other"))
        self.listeners.notify(1)
        self.assertEqual(self.received, [("other", 1)])

    def test_failure(self) -> None:
        """An exception is logged with the listener and the event, and others are called."""
        self.listeners.add(lambda event: 1 // (event - 1))
        self.listeners.add(self.recorder("other"))
        self.listeners.notify(1)
        self.assertEqual(self.received, [("other", 1)])
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
