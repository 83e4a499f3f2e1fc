"""
Doorbells between two processes on one host: that of a completion channel is handed over once.

A doorbell is an eventfd. The process whose it is numbers its own, and invitations of all its queue pairs name
them by these numbers.

Whoever has an eventfd can fill it, and make it blocking for all others at any time: the flag belongs to the
open file that all share. So processes of different users, which meet in a shared directory, give each other
no descriptors of doorbells: a message (C{NUDGE}) over the connection between the two wakes them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final, Protocol

from txrdma.soft.shared._rendezvous import checkDoorbell

MOST: Final = 4096
"""Doorbells of a peer that are kept: more completion channels at one time no process of ours will see."""


class Channel(Protocol):
    """A completion channel of ours."""

    @property
    def doorbell(self) -> int:
        """The descriptor that a peer process rings."""

    def fileno(self) -> int:
        """A descriptor for the reactor; -1 when the channel is closed."""


class Doorbell:
    """
    A doorbell of a peer's; its descriptor is closed when nobody holds it any more.

    @ivar descriptor: -1 for one that is not to be written to.
    """

    __slots__ = ("_holders", "descriptor")

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._holders = 1

    def hold(self) -> Doorbell:
        """Keep the descriptor open once more, until L{release}."""
        self._holders += 1
        return self

    def release(self) -> None:
        """Let go of the descriptor."""
        self._holders -= 1
        if not self._holders and self.descriptor >= 0:
            os.close(self.descriptor)


class PeerDoorbells:
    """The doorbells that a peer has handed over, by its numbers."""

    def __init__(self) -> None:
        self._bells: dict[int, Doorbell] = {}

    def came(self, number: int, descriptors: list[int], isTrusted: bool) -> None:
        """
        Keep a doorbell that the peer has handed over.

        @param descriptors: the doorbell's only one, which is taken out of the list; those of other users give
            none.
        @param isTrusted: the peer is a process of our user, and so may have the doorbell rung.
        @raise ValueError: the descriptor is no doorbell, or there are too many of them.
        """
        if len(descriptors) > 1 or (isTrusted and not descriptors):
            raise ValueError(f"a doorbell comes with one descriptor, not {len(descriptors)}")
        if number in self._bells or len(self._bells) >= MOST:
            raise ValueError("too many doorbells")
        for each in descriptors:
            checkDoorbell(each)
        self._bells[number] = Doorbell(descriptors.pop() if descriptors and isTrusted else -1)

    def held(self, *numbers: int) -> list[Doorbell] | None:
        """The doorbells with these numbers, to be released; None if one of them is not there."""
        found = [bell for number in numbers if (bell := self._bells.get(number)) is not None]
        return [bell.hold() for bell in found] if len(found) == len(numbers) else None

    def gone(self, number: int) -> None:
        """Forget a doorbell: its owner has closed it."""
        bell = self._bells.pop(number, None)
        if bell is not None:
            bell.release()

    def close(self) -> None:
        """Forget all doorbells of the peer."""
        for number in tuple(self._bells):
            self.gone(number)


class LocalDoorbells:
    """The completion channels of this device whose doorbells a peer has, with their numbers."""

    def __init__(self) -> None:
        self._numbers: dict[Channel, int] = {}
        self._last = 0

    def numberOf(self, channel: Channel) -> int | None:
        """The number of a channel's doorbell; None if the peer does not have it."""
        return self._numbers.get(channel)

    def tell(self, channel: Channel) -> int:
        """A new number for the doorbell of a channel, which the peer is told."""
        self._last += 1
        self._numbers[channel] = self._last
        return self._last

    def closed(self) -> Iterator[int]:
        """Forget the channels that are closed: the numbers of their doorbells."""
        for channel in [channel for channel in self._numbers if channel.fileno() < 0]:
            yield self._numbers.pop(channel)

    def lost(self, number: int) -> None:
        """Forget that the peer has a doorbell: it is to get it again."""
        for channel in [channel for channel, each in self._numbers.items() if each == number]:
            del self._numbers[channel]
