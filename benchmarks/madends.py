"""
One process that measures management datagrams: C{python -m benchmarks.madends SCENARIO ORDERS}.

Orders and results are JSON: C{core} as in L{benchmarks.ends}, the others as documented in the scenario's
module: L{benchmarks.madscenarios}, L{benchmarks.monitorends} or L{benchmarks.monitoronce}.
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
"""Modules of scenarios by their names or the beginnings of these."""


def main(name: str, orders: Orders) -> None:
    if name == _STARTED:
        gc.disable()  # as the txrdma command does during its imports
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
    """Return the scenario with this name; only its module is imported, as some results include start-up."""
    kind = name if name == _STARTED else name.partition("-")[0]
    found: Callable[[Any, Orders], Awaitable[dict[str, Any]]]
    found = import_module(_MODULES.get(kind, "benchmarks.madscenarios")).scenarios[name]
    return found


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
