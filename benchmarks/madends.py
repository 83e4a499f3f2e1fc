"""
One process that measures management datagrams: C{python -m benchmarks.madends SCENARIO ORDERS}.

Orders and results are JSON: C{core} as in L{benchmarks.ends}, the rest as L{benchmarks.madscenarios} and
L{benchmarks.monitorends} have it.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from benchmarks.orders import Orders, prepare, tell


def main(name: str, orders: Orders) -> None:
    """Measure once."""
    prepare(orders)
    from twisted.internet.task import react

    from benchmarks import madscenarios, monitorends

    scenarios = {**madscenarios.scenarios, **monitorends.scenarios}

    async def once(reactor: Any) -> None:
        tell(await scenarios[name](reactor, orders))

    react(once)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
