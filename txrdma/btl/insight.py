"""
Counters of this process's modules, and a socket by which tools of the same user ask for them.

A process that has a module on a running reactor answers as L{txrdma.unix.answers} has it.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final, Protocol

from txrdma.btl._module import Module
from txrdma.unix.answers import StatusServer

NAMESPACE: Final = "txrdma/btl"
"""The beginning of the abstract names on which processes answer."""


class Counted(Protocol):
    """The part of a module that is told of."""

    core: Module

    @property
    def counters(self) -> Counter[str]:
        """The module's counters, by the component's names."""


_ended: Counter[str] = Counter()


def leave(module: Counted) -> None:
    """Keep the counters of a module that is closed; with the last one nobody is answered any more."""
    if _disclosure.leave(module):
        _add(_ended, module.counters)


def _add(total: Counter[str], counters: Counter[str]) -> None:
    """Add counters of a module; of maxima the larger one is the sum."""
    for name, value in counters.items():
        total[name] = max(total[name], value) if name.startswith("max_") else total[name] + value


def report() -> dict[str, Any]:
    """
    The numbers of this process.

    @return: C{counters} of all its modules, by the component's names; C{gauges}, which tell of the present:
        modules, peers, and bytes that have not arrived.
    """
    counters = Counter(_ended)
    for module in _disclosure.parts:
        _add(counters, module.counters)
    return {
        "counters": dict(counters),
        "gauges": {
            "modules": len(_disclosure.parts),
            "peers": sum(len(module.core.peers) for module in _disclosure.parts),
            "queuedBytes": sum(
                peer.queuedBytes for module in _disclosure.parts for peer in module.core.peers
            ),
        },
    }


_disclosure: StatusServer[Counted] = StatusServer(NAMESPACE, "txrdma btl-stats", report)

appear = _disclosure.appear
"""Tell of a module from now on, until it leaves: L{StatusServer.appear}."""
