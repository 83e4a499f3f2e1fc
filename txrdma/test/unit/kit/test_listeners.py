"""Listeners of events."""

from __future__ import annotations

from twisted.logger import Logger
from twisted.trial.unittest import SynchronousTestCase

from txrdma.kit.listeners import Listeners


class ListenersTests(SynchronousTestCase):
    def test_notify(self) -> None:
        """Listeners are called in order, equal ones too; one that raises or removes others is contained."""
        listeners: Listeners[[int]] = Listeners(Logger(), "{listener} failed at {event}")
        self.assertFalse(listeners)
        received: list[int] = []
        listeners.add(lambda event: 1 // (event - 1))
        listeners.add(lambda event: remove())
        remove = listeners.add(received.append)
        second = listeners.add(received.append)
        listeners.notify(1)
        self.assertEqual((received, len(self.flushLoggedErrors(ZeroDivisionError))), ([1], 1))
        second()
        second()
        listeners.notify(2)
        self.assertEqual((received, bool(listeners)), ([1], True))
        listeners.clear()
        self.assertFalse(listeners)
