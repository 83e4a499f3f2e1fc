"""Copies of connections, and what identifies their states, for searches through all states."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache
from typing import Any, cast, TypeVar

from txrdma.cm.core.alternate import Alternate
from txrdma.cm.core.closing import Closing
from txrdma.cm.core.connection import ConnectionCore
from txrdma.cm.core.exchange import ExchangeCore

AnyCore = TypeVar("AnyCore", bound=ExchangeCore)
Copied = TypeVar("Copied")


def copied(connection: ConnectionCore) -> ConnectionCore:
    """Return an independent copy of a connection."""
    twin = _twinOf(connection)
    twin.opening = _copiedCore(connection.opening)
    twin.closing = None if connection.closing is None else _copiedCore(connection.closing)
    twin._alternate = None if connection._alternate is None else _copiedCore(connection._alternate)
    return twin


def _copiedCore(core: AnyCore) -> AnyCore:
    twin = _twinOf(core)
    twin.pendingEvents, twin.pendingMessages = (), ()
    twin._inputs = core._table.begin(twin, core.state)
    return twin


def _twinOf(core: Copied) -> Copied:
    """Return a shallow copy of an object, faster than C{copy}."""
    kind = type(core)
    twin = kind.__new__(kind)
    for name in _slotNames(cast(Hashable, kind)):
        setattr(twin, name, getattr(core, name))
    if hasattr(core, "__dict__"):
        vars(twin).update(vars(core))
    return twin


@cache
def _slotNames(kind: Any) -> tuple[str, ...]:
    return tuple(name for each in kind.__mro__ for name in vars(each).get("__slots__", ()))


def known(connection: ConnectionCore) -> tuple[object, ...]:
    """Return the part of a connection's state that determines its further behaviour."""
    opening, closing, alternate = connection.opening, connection.closing, connection.alternate
    found: list[object] = [
        *(opening.isActive, opening.lingers, opening.remoteCommID, opening.reply is None),
        *(opening.isEstablished, connection._transactionID, alternate and _knownPaths(alternate)),
    ]
    for core in (opening, closing):
        if core is not None:
            found += [core.state, core._retries, core.deadlineSeconds is None]
    if isinstance(closing, Closing):
        found += [closing._drep is None, closing._dreq]
    return tuple(found)


def _knownPaths(core: Alternate) -> tuple[object, ...]:
    answered = core._answered
    return (
        *(core.state, core.primary, core.alternate, core._lapTransaction, core._retries, core._timedOut),
        *(core._path if core.isOutstanding else None, core.deadlineSeconds is None, core._newest),
        answered and (answered.transactionID, answered.path, answered.response.apStatus),
    )
