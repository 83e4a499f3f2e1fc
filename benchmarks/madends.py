"""
One process that measures management datagrams: C{python -m benchmarks.madends SCENARIO ORDERS}.

Orders and results are JSON: C{core} as in L{benchmarks.ends}, the rest as the scenario's module has it:
L{benchmarks.madscenarios}, L{benchmarks.monitorends} or L{benchmarks.monitoronce}.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any, Final

from benchmarks.orders import Orders, prepare, sendMessage

_STARTED: Final = "monitor-once"
"""Scenario that is measured with its start-up, beside programs."""

_MODULES: Final = {"monitor": "benchmarks.monitorends", _STARTED: "benchmarks.monitoronce"}
"""Modules of scenarios by their names, or what these begin with."""


def main(name: str, orders: Orders) -> None:
    """Measure once."""
    if name == _STARTED:
        gc.disable()  # as the txrdma command does while it imports
    prepare(orders)
    from twisted.internet.task import react

    scenario = _scenario(name)
    if name == _STARTED:
        gc.freeze()
        gc.enable()

    async def once(reactor: Any) -> None:
        sendMessage(await scenario(reactor, orders))

    react(once)


def _scenario(name: str) -> Callable[[Any, Orders], Awaitable[dict[str, Any]]]:
    """The scenario of this name, whose module alone is imported: start-up is part of some results."""
    kind = name if name == _STARTED else name.partition("-")[0]
    found: Callable[[Any, Orders], Awaitable[dict[str, Any]]]
    found = import_module(_MODULES.get(kind, "benchmarks.madscenarios")).scenarios[name]
    return found


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
