"""
Shares of clients in limited tables: one client can use only a part, so that others are still served.

Entries and bytes are counted when they are added and removed; nothing is searched.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from itertools import chain
from typing import Final, Generic, TypeVar

CLIENT_SHARE: Final = 0.5
"""Part of a table for all clients, in entries or bytes, that one client may use; at least one entry."""

E = TypeVar("E", bound=Hashable)


class Shares(Generic[E]):
    """The entries of a limited table by client."""

    __slots__ = ("_entries", "_total")

    def __init__(self) -> None:
        self._entries: dict[Hashable, dict[E, None]] = {}
        self._total = 0

    def __len__(self) -> int:
        """Number of entries of all clients."""
        return self._total

    def __iter__(self) -> Iterator[E]:
        return chain.from_iterable(self._entries.values())

    def hasRoom(self, client: Hashable, most: int) -> bool:
        """Whether a client may have another entry in a table of at most C{most} entries."""
        return self._total < most and not self.isUsed(client, most)

    def isUsed(self, client: Hashable, most: int) -> bool:
        """Whether a client has its share of a table of at most C{most} entries."""
        return len(self._entries.get(client, ())) >= most * CLIENT_SHARE

    def oldest(self, client: Hashable) -> E:
        """Return the oldest entry of a client, which has one."""
        return next(iter(self._entries[client]))

    def add(self, client: Hashable, entry: E) -> None:
        """Add an entry. Idempotent."""
        entries = self._entries.setdefault(client, {})
        self._total += entry not in entries
        entries[entry] = None

    def remove(self, client: Hashable, entry: E) -> None:
        """Remove an entry. Idempotent."""
        entries = self._entries.get(client)
        if entries is not None and entry in entries:
            del entries[entry]
            self._total -= 1
            if not entries:
                del self._entries[client]


class ByteShares:
    """
    The bytes in a limited table by client.

    @ivar total: the bytes of all clients.
    """

    __slots__ = ("_used", "total")

    def __init__(self) -> None:
        self._used: dict[Hashable, int] = {}
        self.total = 0

    def hasRoom(self, client: Hashable, length: int, most: int) -> bool:
        """Whether a client may add an entry of so many bytes to a table of at most C{most} bytes."""
        used = self._used.get(client, 0)
        if not used:
            return self.total < most
        return self.total + length <= most and used + length <= most * CLIENT_SHARE

    def add(self, client: Hashable, length: int) -> None:
        """Add bytes of a client; a negative number of them removes bytes."""
        used = self._used.get(client, 0) + length
        self.total += length
        if used:
            self._used[client] = used
        else:
            self._used.pop(client, None)
