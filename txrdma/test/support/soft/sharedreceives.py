"""
Names of queue pair states and shared receive events, for tests of shared receive queues.
"""

from __future__ import annotations

from txrdma.iba.verbs import (
    AsyncEventKind,
    QPState,
)

RESET, INIT, RTR, RTS, SQD, SQE, ERR = QPState
LIMIT, LAST = AsyncEventKind.SRQ_LIMIT_REACHED, AsyncEventKind.QP_LAST_WQE_REACHED
