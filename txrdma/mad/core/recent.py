"""
Memory of recently received contents, to detect duplicates.

Nothing here reads a clock or a socket.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

from txrdma.kit.shares import Shares

REMEMBERED_SECONDS: Final = 10.0
MOST_REMEMBERED: Final = 2048
"""Maximum number of contents. One sender may have half of them: usually the SA, which sends all reports."""

K = TypeVar("K", bound=Hashable)


class Recent(Generic[K]):
    """Recently received contents by key, limited in age, in number, and in number for each sender."""

    __slots__ = ("_known", "_shares")

    def __init__(self) -> None:
        self._known: dict[K, tuple[bytes, float, Hashable]] = {}
        self._shares = Shares[K]()

    def __len__(self) -> int:
        return len(self._known)

    def isNew(self, key: K, content: bytes, now: float, sender: Hashable = None) -> bool:
        """Remember a content; False for a duplicate within the time limit."""
        known = self._known.get(key)
        if known is not None:
            self._forget(key)
        if self._shares.isUsed(sender, MOST_REMEMBERED):
            self._forget(self._shares.oldest(sender))
        self._known[key] = (content, now + REMEMBERED_SECONDS, sender)
        self._shares.add(sender, key)
        while len(self._known) > MOST_REMEMBERED or next(iter(self._known.values()))[1] <= now:
            self._forget(next(iter(self._known)))
        return known is None or known[0] != content or known[1] <= now

    def _forget(self, key: K) -> None:
        self._shares.remove(self._known.pop(key)[2], key)
