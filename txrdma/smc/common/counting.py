"""
Counters of this process's connections.

Counters of live connections are stored in the connections; only sizes are counted here during transfer.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

_CLASSES: Final = 33
"""Number of size classes, up to 4 GiB, more than any ring: the class is the bit length of (size - 1)."""

SMALL: Final = 8192
"""Largest small write or read, in bytes; small ones are not counted by class, to save time."""

written: Final = [0] * _CLASSES
"""Number of large writes to peers' rings, by size class."""

read: Final = [0] * _CLASSES
"""Number of large deliveries to applications, by size class."""

connections: Final[Counter[tuple[str, str]]] = Counter()
"""Number of connections made, by mode (C{"SMC-R 1"}, C{"SMC-R 2"}, C{"TCP"}, C{"kernel"}) and role."""

fallbacks: Final[Counter[tuple[str, str]]] = Counter()
"""Number of connections that fell back to TCP, by role and name of the reason."""

refused: Final[Counter[str]] = Counter()
"""Number of connections closed because a fallback to TCP was not allowed, by name of the reason."""

ended: Final[Counter[str]] = Counter()
"""Sums of the counters of ended connections, by the names of L{txrdma.interfaces.ISMCStatus}."""

blockedSeconds: Final = [0.0]
"""Seconds for which ended connections waited for space in their peers' rings, in a list of one number."""
