"""
Numbers of this process's communication managers, and a socket by which tools of the same user ask for them.

A process that has a manager on a running reactor answers as L{txrdma.unix.answers} has it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, Protocol

from txrdma.unix.answers import StatusServer

NAMESPACE: Final = "txrdma/cm"
"""The beginning of the abstract names on which processes answer."""


class Counted(Protocol):
    """The part of a communication manager that is told of."""

    @property
    def counters(self) -> Counter[str]:
        """Numbers of messages, by direction and kind: C{"sent REQ"}."""

    @property
    def states(self) -> Counter[str]:
        """Numbers of connections by their states."""

    @property
    def listeners(self) -> int:
        """The number of listeners and of served datagram services."""


_ended: Counter[str] = Counter()


def leave(manager: Counted) -> None:
    """Keep the counters of a manager that is closed; with the last one nobody is answered any more."""
    if _disclosure.leave(manager):
        _ended.update(manager.counters)


def byKind(counters: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Counters such as C{"sent REQ"} as C{{"REQ": {"sent": 1}}}."""
    found: dict[str, dict[str, int]] = {}
    for name, count in counters.items():
        what, kind = name.split()
        found.setdefault(kind, {})[what] = count
    return found


def report() -> dict[str, Any]:
    """
    The numbers of this process.

    @return: C{counters}, which only grow, by kinds of messages: C{sent} and C{received}, of which some were
        C{retried} or C{duplicate}, C{stray} ones of no connection, and REQs that were C{dropped}; C{gauges},
        which tell of the present.
    """
    counters, states = Counter(_ended), Counter[str]()
    for manager in _disclosure.parts:
        counters.update(manager.counters)
        states.update(manager.states)
    return {
        "counters": byKind(counters),
        "gauges": {
            "managers": len(_disclosure.parts),
            "listeners": sum(manager.listeners for manager in _disclosure.parts),
            "connections": dict(states),
        },
    }


_disclosure: StatusServer[Counted] = StatusServer(NAMESPACE, "txrdma cm-stats", report)

appear = _disclosure.appear
"""Tell of a manager from now on, until it leaves: L{StatusServer.appear}."""
