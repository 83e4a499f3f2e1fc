"""
Delayed calls that other code may have cancelled: trial cancels all of them after a failed test.
"""

from __future__ import annotations

from twisted.internet.interfaces import IDelayedCall


def isPending(call: IDelayedCall | None) -> bool:
    """Return whether a delayed call is still to be made."""
    return call is not None and call.active()


def cancelCall(call: IDelayedCall | None) -> None:
    """Cancel a delayed call if it is still to be made."""
    if call is not None and call.active():
        call.cancel()
