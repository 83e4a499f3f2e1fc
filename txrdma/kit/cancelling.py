"""
Connection attempts: their errors at whatever stage they are cancelled, and their end after an exception.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

T = TypeVar("T")


def cancellable(connecting: Deferred[T], error: Exception) -> Deferred[T]:
    """Return a Deferred that fires like another one, but fails with this error if it is cancelled."""
    isCancelled = False

    def cancel(cancelled: Deferred[T]) -> None:
        nonlocal isCancelled
        isCancelled = True
        connecting.cancel()
        if not cancelled.called:  # the attempt has failed, and a callback before L{failed} cancels it
            cancelled.errback(error)

    def failed(failure: Failure) -> None:
        if connected.called:
            return
        isOther = isCancelled and not failure.check(type(error))
        connected.errback(Failure(error) if isOther else failure)

    connected: Deferred[T] = Deferred(cancel)
    connecting.addCallbacks(connected.callback, failed)
    return connected


def wrapped(connecting: Deferred[T], *wrappers: Callable[[Deferred[T]], Deferred[T]]) -> Deferred[T]:
    """
    Return what these functions make of an attempt to connect, each of the result of the one before.

    @return: fails with the exception of a function, after which the attempt is cancelled.
    """
    try:
        for wrapper in wrappers:
            connecting = wrapper(connecting)
    except Exception:
        failure = Failure()
        connecting.addBoth(lambda _: failure)
        connecting.cancel()
    return connecting
