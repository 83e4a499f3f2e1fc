"""
Doorbells between two processes on one host. The doorbell of each completion channel is sent once.

A doorbell is an eventfd. Its owner numbers it, and the queue pairs name it by that number. A channel with
several queue pairs has a L{page <txrdma.soft.core.doorbellpage>} as well: before the eventfd is written, the
doorbell byte of the queue pair is set. When a page is made, it is sent with the eventfd under a new number.

A process with an eventfd can fill it, or make it blocking for all others: the flag belongs to the shared open
file. Reads do not block anyway (L{txrdma.unix.eventfds}), but writes do. Therefore processes of different
users, which connect in a shared directory, exchange no doorbell descriptors; a message (C{NUDGE}) wakes them.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from typing import Final, Protocol

from txrdma.error import ResourceExhausted
from txrdma.soft.shared._rendezvous import checkDoorbell, mapDoorbells
from txrdma.unix.mapping import closeMapping

MOST: Final = 4096
"""Limit of doorbells per peer: the completion channels of its process."""


class DoorbellChannel(Protocol):
    """A local descriptor that peers can ring: of a completion channel, or of the datagrams of a port."""

    @property
    def doorbell(self) -> int: ...

    def fileno(self) -> int:
        """Return a descriptor for the reactor; -1 when the channel is closed."""

    @property
    def doorbellPage(self) -> int: ...


class Doorbell:
    """
    A reference-counted doorbell of a peer.

    @ivar descriptor: the eventfd; -1 if messages are sent instead.
    @ivar page: the doorbell bytes; None if there are none.
    """

    __slots__ = ("_holders", "descriptor", "page")

    def __init__(self, descriptor: int, page: mmap.mmap | None) -> None:
        self.descriptor = descriptor
        self.page = page
        self._holders = 1

    def hold(self) -> Doorbell:
        self._holders += 1
        return self

    def release(self) -> None:
        self._holders -= 1
        if not self._holders:
            if self.descriptor >= 0:
                os.close(self.descriptor)
            if self.page is not None:
                closeMapping(self.page)


class PeerDoorbells:
    """Doorbells of a peer, by the peer's numbers."""

    def __init__(self) -> None:
        self._bells: dict[int, Doorbell] = {}

    def add(self, number: int, descriptors: list[int], isTrusted: bool) -> None:
        """
        Add a doorbell of the peer; raises ValueError if it is invalid, or OSError.

        @param descriptors: its eventfd, and possibly its page; the eventfd is removed from the list. Other
            users send none.
        """
        if len(descriptors) > 2 or (isTrusted and not descriptors):
            raise ValueError(f"a doorbell needs one or two descriptors, not {len(descriptors)}")
        if number in self._bells or len(self._bells) >= MOST:
            raise ValueError("too many doorbells")
        if not isTrusted:
            self._bells[number] = Doorbell(-1, None)
            return
        checkDoorbell(descriptors[0])
        page = mapDoorbells(descriptors[1]) if len(descriptors) > 1 else None
        self._bells[number] = Doorbell(descriptors.pop(0), page)

    def acquire(self, *numbers: int) -> list[Doorbell] | None:
        """Return references to the doorbells with these numbers; None if one of them is unknown."""
        found = [bell for number in numbers if (bell := self._bells.get(number)) is not None]
        return [bell.hold() for bell in found] if len(found) == len(numbers) else None

    def remove(self, number: int) -> None:
        bell = self._bells.pop(number, None)
        if bell is not None:
            bell.release()

    def close(self) -> None:
        for number in tuple(self._bells):
            self.remove(number)


class LocalDoorbells:
    """The numbers of local doorbells that were sent to a peer."""

    def __init__(self) -> None:
        # By the channel, and whether the peer also has the channel's page.
        self._numbers: dict[tuple[DoorbellChannel, bool], int] = {}
        self._last = 0

    def numberOf(self, channel: DoorbellChannel) -> int | None:
        """Return the number of a channel's doorbell; None if the peer does not have its current doorbell."""
        return self._numbers.get((channel, channel.doorbellPage >= 0))

    def assign(self, channel: DoorbellChannel) -> int:
        """
        Return a new number for a channel's doorbell, which is about to be sent to the peer.

        @raise ResourceExhausted: the peer has as many as it accepts.
        """
        if len(self._numbers) >= MOST:
            raise ResourceExhausted(f"a process gets at most {MOST} doorbells of another one")
        self._last += 1
        self._numbers[channel, channel.doorbellPage >= 0] = self._last
        return self._last

    def removeClosed(self) -> Iterator[int]:
        """Remove closed channels; yield the numbers of their doorbells."""
        for key in [key for key in self._numbers if key[0].fileno() < 0]:
            yield self._numbers.pop(key)

    def forget(self, number: int) -> None:
        """Record that the peer does not have a doorbell, so that it is sent again."""
        for key in [key for key, each in self._numbers.items() if each == number]:
            del self._numbers[key]
