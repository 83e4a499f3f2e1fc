"""
Cables as states of ports in the event log: what the next process compares its first survey with.

Stored are the texts and the length of a cable, which do not change; its temperature and light are read again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

from txrdma.fabric.cables import Cable, CableWatch
from txrdma.fabric.model import Fabric, PortKey
from txrdma.monitor.diagnosis.journal import FabricEvent, isTime, readValid

CABLE: Final = "cable"
"""Kind of the event that is the state of a port with a cable."""

_FORGOTTEN: Final = "cable-forgotten"

_PIECE: Final = 1000
"""Number of events that are made between two pauses."""


def cableEvents(watch: CableWatch, fabric: Fabric, now: float) -> Iterator[list[FabricEvent]]:
    """Yield the states of ports whose cables have changed since they were yielded, in pieces."""
    while some := watch.takeChanged(_PIECE):
        yield [_eventOf(watch, fabric, portKey, now) for portKey in some]


def formerCables(states: Iterable[FabricEvent]) -> CableWatch:
    """Return the cables that a former process has stored; invalid ones are logged and ignored."""
    watch = CableWatch()
    for portKey, cable, exchanged in readValid(states, _cablesOf):
        watch.cables[portKey] = cable
        if exchanged is not None:
            watch.exchanged[portKey] = exchanged
    return watch


def _eventOf(watch: CableWatch, fabric: Fabric, portKey: PortKey, now: float) -> FabricEvent:
    (guid, number), port = portKey, fabric.portAt(*portKey)
    cable, exchanged = watch.cables.get(portKey), watch.exchanged.get(portKey)
    where, subject = str(guid if port is None else port), json.dumps([CABLE, str(guid), number])
    if cable is None:
        return FabricEvent(now, _FORGOTTEN, where, "", guid, number, subject)
    former = None if exchanged is None else [exchanged[0], _plateOf(exchanged[1])]
    return FabricEvent(now, CABLE, where, "", guid, number, subject, [_plateOf(cable), former])


def _plateOf(cable: Cable) -> list[Any]:
    return [cable.kind, cable.vendor, cable.partNumber, cable.revision, cable.serial, cable.metres]


def _cableOf(plate: Any) -> Cable:
    match plate:
        case [str(), str(), str(), str(), str(), int() | float() | None]:
            return Cable(*plate)
    raise ValueError(f"{plate!r} is not a cable")


def _cablesOf(event: FabricEvent) -> tuple[PortKey, Cable, tuple[float, Cable] | None]:
    """Return a port, its cable, and when it replaced another one; raise an exception if it is invalid."""
    cable, former = event.detail
    if event.guid is None or event.port is None or not (former is None or isTime(former[0])):
        raise ValueError(f"{event!r} is not a cable at a port")
    exchanged = None if former is None else (float(former[0]), _cableOf(former[1]))
    return (event.guid, event.port), _cableOf(cable), exchanged
