"""
Connection attempts that fail with the same error at whatever stage they are cancelled.
"""

from __future__ import annotations

from typing import TypeVar

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

T = TypeVar("T")


def cancellable(connecting: Deferred[T], error: Exception) -> Deferred[T]:
    """Return a Deferred that fires like another one, but fails with this error if it is cancelled."""
    isCancelled = False

    def cancel(_: Deferred[T]) -> None:
        nonlocal isCancelled
        isCancelled = True
        connecting.cancel()

    def failed(failure: Failure) -> None:
        isOther = isCancelled and not failure.check(type(error))
        connected.errback(Failure(error) if isOther else failure)

    connected: Deferred[T] = Deferred(cancel)
    connecting.addCallbacks(connected.callback, failed)
    return connected
