"""
All connections of one end port: which message belongs to which of them, and what strangers get.

Follows InfiniBand Architecture vol. 1, 12.9.8 (comm ids, stale connections) and 12.9.9 (timewait). Every message
of a peer has an answer, or is counted as late: nothing that does not match a connection changes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final, TypeVar, Union

from txrdma.cm._alternate import Refusal
from txrdma.cm._connection import Connection
from txrdma.cm._exchange import LOW_BITS, Patience
from txrdma.cm._sidr import Resolution
from txrdma.cm.events import ConnectionReplied, ConnectionRequested, Event, PathMigrated
from txrdma.cm.messages import (
    APR,
    APStatus,
    CMPath,
    DREP,
    DREQ,
    LAP,
    MessageKind,
    MRA,
    REJ,
    RejectReason,
    REP,
    REQ,
    SIDRREP,
    SIDRREQ,
    SIDRStatus,
)
from txrdma.cm.paths import pathOf
from txrdma.error import InvalidRequest, ResourceExhausted
from txrdma.iba.path import GMP_QKEY, IBPath
from txrdma.iba.types import GUID, QPN
from txrdma.values import frozen, replaced
from txrdma.wheel import Notch, Wheel
from txrdma.wire import Layout

BACKLOG: Final = 1024
"""Connections of a listener that are asked for and not established yet, unless it has another number."""

NOTCH_SECONDS: Final = 0.01
"""The precision of timeouts."""

_QUESTIONS: Final = 1024
"""SIDR_REQs that are kept with their answers: a flood of others gets none."""

_KEPT: Final = Patience(18, 18, 2)
"""The time in which a SIDR_REQ may come again."""
