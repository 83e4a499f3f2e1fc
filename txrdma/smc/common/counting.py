"""
Counters of this process's connections.

Counts of live connections are read from these; only sizes are counted while bytes pass.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

_CLASSES: Final = 33
"""Sizes up to 4 GiB, which no ring has: the class of a size is the number of bits of the size less one."""

SMALL: Final = 8192
"""The most bytes of small writes and reads, which are counted all together: that costs less."""

written: Final = [0] * _CLASSES
"""The number of times that many bytes were written into peers' rings at once, by class of size."""

read: Final = [0] * _CLASSES
"""The number of times that many bytes were handed to an application at once, by class of size."""

connections: Final[Counter[tuple[str, str]]] = Counter()
"""The connections that were made, by mode (C{"SMC-R 1"}, C{"SMC-R 2"}, C{"TCP"}, C{"kernel"}) and role."""

fallbacks: Final[Counter[tuple[str, str]]] = Counter()
"""The connections that fell back to TCP, by role and name of the reason."""

refused: Final[Counter[str]] = Counter()
"""The connections that ended because they would have fallen back, and may not, by name of the reason."""

ended: Final[Counter[str]] = Counter()
"""The sums over connections that have ended, by the names of L{txrdma.interfaces.ISMCStatus}."""

blockedSeconds: Final = [0.0]
"""The seconds for which connections that have ended waited for room in their peers' rings, as one number."""
