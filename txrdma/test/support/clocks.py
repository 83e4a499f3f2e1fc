"""
Advance a clock in small steps, so that each delayed call runs at its scheduled time.
"""

from __future__ import annotations

from twisted.internet.task import Clock


def step(clock: Clock) -> None:
    """Advance to the next delayed call, and run it."""
    clock.advance(max(0.0, clock.calls[0].getTime() - clock.seconds()))


def elapse(clock: Clock, seconds: float) -> None:
    """Advance by this time."""
    end = clock.seconds() + seconds
    while clock.calls and clock.calls[0].getTime() <= end:
        step(clock)
    clock.advance(max(0.0, end - clock.seconds()))
