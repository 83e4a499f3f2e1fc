"""
Read all counters of a fabric once with the monitor's reader, in a process with as few imports as possible.

Start-up counts when compared with C{ibqueryerrors}: pages, history and simulation of the monitor are not
imported.
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
from txrdma.monitor.reading.settings import PollerSettings
from txrdma.monitor.reading.statistics import PollerStatistics

_DATA: Final = ReadingKind((PortCountersExtended, DATA_COUNTERS))
"""The counters that C{ibqueryerrors --counters} reads."""


async def once(reactor: Any, orders: Orders) -> dict[str, Any]:
    """Seconds to sweep a fabric of ibsim and to read the counters of all its ports once."""
    begun = time.perf_counter()
    agent = MADAgent(reactor, openMADPort(reactor, "ibsim"))
    fabric = await Sweep(agent, orders["outstanding"]).run()
    swept = time.perf_counter()
    settings = PollerSettings(timeoutSeconds=5.0, maxOutstanding=orders["outstanding"])
    reader = CounterReader(
        *(reactor, agent, ErrorThresholds(), settings, PollerStatistics(), ignored, ignored, ignored),
        kindOf if orders["hasErrors"] else lambda record: _DATA,
    )
    await reader.read((node for node in fabric.nodes.values() if node.lid), 1)
    ended = time.perf_counter()
    agent.close()
    if reader.statistics.silences:
        raise RuntimeError(f"{reader.statistics.silences} agents were silent")
    return {"value": ended - begun, "sweep": swept - begun, "ports": reader.statistics.readings}


scenarios = {"monitor-once": once}
