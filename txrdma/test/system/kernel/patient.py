"""
Long timeouts for handshakes: opening a device takes seconds in an emulated guest, and must not cause a
fallback.

Processes that play conversations import this module first.
"""

from __future__ import annotations

from txrdma.smc.handshake import _machine as _handshake
from txrdma.smc.signalling import localclient as announcing

SECONDS = 60.0

announcing.ANSWER_SECONDS = SECONDS  # type: ignore[misc]  # Final: for everybody else
_handshake.CLC_TIMEOUT = SECONDS
