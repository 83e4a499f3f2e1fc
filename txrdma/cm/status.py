"""Counters of this process's communication managers, and a status socket for tools of the same user."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from txrdma.cm.interfaces import IConnectionManager
from txrdma.unix.answers import StatusServer

NAMESPACE: Final = "txrdma/cm"
"""The prefix of the abstract names of status sockets."""


def byKind(counters: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Counters such as C{"sent REQ"} as C{{"REQ": {"sent": 1}}}."""
    found: dict[str, dict[str, int]] = {}
    for name, count in counters.items():
        what, kind = name.split()
        found.setdefault(kind, {})[what] = count
    return found


def report() -> dict[str, Any]:
    """
    Return the status of this process.

    @return: C{counters}, which only grow, by kinds of messages: C{sent} and C{received}, of these C{retried}
        or C{duplicate} ones, C{stray} ones without a connection, and C{dropped} REQs; C{gauges}, current
        numbers.
    """
    states = Counter[str]()
    for manager in managers.parts:
        states.update(manager.states)
    return {
        "counters": byKind(managers.counters()),
        "gauges": {
            "managers": len(managers.parts),
            "listeners": sum(manager.listeners for manager in managers.parts),
            "connections": dict(states),
        },
    }


managers: StatusServer[IConnectionManager] = StatusServer(NAMESPACE, "txrdma cm-stats", report)
