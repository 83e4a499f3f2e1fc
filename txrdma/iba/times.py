"""
Encoded times of headers and queue pair attributes.

Follows InfiniBand Architecture vol. 1, 9.7.
"""

from __future__ import annotations

import math

_RNR_TIMERS = [655.36, *(step / 100 for step in (1, 2, 3, 4)),
               *((base << shift) / 100 for shift in range(1, 15) for base in (3, 4))][:32]  # fmt: skip


def rnrTimerSeconds(code: int) -> float:
    """Decode the wait after "receiver not ready" to seconds (IBA 9.7.5.2, table 45)."""
    return _RNR_TIMERS[code & 31] / 1000


def ackTimeoutSeconds(code: int) -> float:
    """Decode a local ACK timeout to seconds; 0 is infinite (IBA 9.7.6.1.3)."""
    return math.inf if code == 0 else 4.096e-6 * (1 << code)
