"""
Numbers of this process's communication managers, and a socket by which tools of the same user ask for them.

A process that has a manager on a running reactor answers as L{txrdma.unixanswers} has it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, Protocol

from twisted.internet.interfaces import IReactorCore
from twisted.logger import Logger

from txrdma.logs import Seldom
from txrdma.unixanswers import Answering

_log = Logger()
_seldom = Seldom(_log)

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


_present: dict[Counted, Any] = {}
_ended: Counter[str] = Counter()
_answering: dict[Any, Answering] = {}


def appear(reactor: Any, manager: Counted) -> None:
    """
    Tell of a manager from now on; whoever asks is answered once the reactor runs.

    The socket is one of the reactor's internal readers, like its own wakers: it keeps nothing running.
    """
    _present[manager] = reactor
    if getattr(reactor, "_internalReaders", None) is not None and IReactorCore.providedBy(reactor):
        reactor.callWhenRunning(_answer, reactor)


def leave(manager: Counted) -> None:
    """Keep the counters of a manager that is closed; with the last one nobody is answered any more."""
    reactor = _present.pop(manager, None)
    if reactor is None:
        return
    _ended.update(manager.counters)
    if reactor not in _present.values():
        listener = _answering.pop(reactor, None)
        if listener is not None:
            reactor._internalReaders.discard(listener)
            listener.close()


def _answer(reactor: Any) -> None:
    if reactor in _answering or reactor not in _present.values():
        return
    try:
        listener = Answering(reactor, NAMESPACE, report, "to know our counters")
    except OSError as error:  # another reactor of this process answers, or there are no abstract names
        _seldom.info(str(error), "Not answering `txrdma cm-stats`: {error}", error=error)
        return
    reactor._internalReaders.add(listener)
    _answering[reactor] = listener


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
    for manager in _present:
        counters.update(manager.counters)
        states.update(manager.states)
    return {
        "counters": byKind(counters),
        "gauges": {
            "managers": len(_present),
            "listeners": sum(manager.listeners for manager in _present),
            "connections": dict(states),
        },
    }
