"""
Memory of recently received contents, to detect duplicates.

Nothing here reads a clock or a socket.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

REMEMBERED_SECONDS: Final = 10.0
MOST_REMEMBERED: Final = 1024

K = TypeVar("K", bound=Hashable)


class Recent(Generic[K]):
    """Memory of recent contents by key, limited in time and number."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[K, tuple[bytes, float]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def isNew(self, key: K, content: bytes, now: float) -> bool:
        """Remember a content; False for a duplicate within the time limit."""
        known = self._known.pop(key, None)
        self._known[key] = (content, now + REMEMBERED_SECONDS)
        while len(self._known) > MOST_REMEMBERED or next(iter(self._known.values()))[1] <= now:
            del self._known[next(iter(self._known))]
        return known is None or known[0] != content or known[1] <= now
