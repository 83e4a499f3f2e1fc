"""
One whole reading of a fabric by the monitor's reader, in a process that imports no more than that needs.

Beside C{ibqueryerrors} start-up counts: the monitor's pages, its history and the simulation are not in it.
"""

from __future__ import annotations

import time
from typing import Any, Final

from benchmarks.orders import ignored, Orders
from txrdma.fabric.discovery import Sweep
from txrdma.fabric.errorcounters import DATA_COUNTERS
from txrdma.mad.agent import MADAgent
from txrdma.mad.layouts.pma import PortCountersExtended
from txrdma.mad.ports import openMADPort
from txrdma.monitor.diagnosis.thresholds import ErrorThresholds
from txrdma.monitor.reading.attributes import kindOf, ReadingKind
from txrdma.monitor.reading.counterreader import CounterReader

_DATA: Final = ReadingKind((PortCountersExtended, DATA_COUNTERS))
"""Reading of what C{ibqueryerrors --counters} reads."""


async def once(reactor: Any, orders: Orders) -> dict[str, Any]:
    """Seconds in which a fabric of ibsim's is swept, and the counters of all its ports are read once."""
    begun = time.perf_counter()
    agent = MADAgent(reactor, openMADPort(reactor, "ibsim"))
    fabric = await Sweep(agent, orders["outstanding"]).run()
    swept = time.perf_counter()
    reader = CounterReader(
        *(reactor, agent, ErrorThresholds(), 10.0, 5.0, 2),
        *(orders["outstanding"], ignored, ignored, ignored),
        kindOf if orders["hasErrors"] else lambda told: _DATA,
    )
    await reader.read((node for node in fabric.nodes.values() if node.lid), 1)
    ended = time.perf_counter()
    agent.close()
    if reader.silences:
        raise RuntimeError(f"{reader.silences} agents were silent")
    return {"value": ended - begun, "sweep": swept - begun, "ports": reader.readings}


scenarios = {"monitor-once": once}
