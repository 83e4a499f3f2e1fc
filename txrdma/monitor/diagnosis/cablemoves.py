"""
Faults of links whose cables are moved: a fault follows the cable, or stays with the port.

A cable is known by its serial number where that can be read, and otherwise by the port at its other end: a
link that has one end in common with a former one, which had a fault, is by the same cable, moved at the other
end, or by another cable in the same port. Only by its serial number a cable is known of which both ends were
moved.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import chain
from operator import attrgetter
from typing import Final, Union

from txrdma.fabric.health import Finding
from txrdma.fabric.model import Fabric, Port, PortKey
from txrdma.fabric.rootcause import OF_LINK
from txrdma.iba.types import GUID
from txrdma.kit.values import frozen
from txrdma.monitor.diagnosis.journal import FabricEvent, isTime, readValid

FAULT: Final = "link-fault"
"""Kind of the event that is the state of a port with a fault."""

_FORGOTTEN: Final = "link-fault-forgotten"

MOST_FAULTS: Final = 10_000
"""Maximum number of ports whose faults are remembered; the oldest are forgotten first."""

_DAY: Final = 86400.0
"""A fault that is still reported is stored again after this number of seconds."""

REMEMBERED_SECONDS: Final = 7 * _DAY
"""Seconds for which the fault of a link is remembered after its last report."""


SerialOf = Callable[[Port], Union[str, None]]
"""Returns the serial number of the cable at a port; C{""} if it is unknown, None if it will be read soon."""


@frozen
class _Fault:
    """
    Last report of a fault of a link, seen from one end.

    @ivar beyond: the other end; C{name} is its name, C{isHost} whether it is a port of a host.
    @ivar serial: serial number of the cable; C{""} if it is unknown.
    """

    kind: str
    beyond: PortKey
    name: str
    isHost: bool
    serial: str
    at: float


class CableMoves:
    """Remembers links with faults, and compares later faults with them."""

    def __init__(self) -> None:
        self._faults: dict[PortKey, list[_Fault]] = {}
        self._changed: set[PortKey] = set()

    def restore(self, states: Iterable[FabricEvent]) -> None:
        """Set the faults that a former process has stored; invalid ones are logged and ignored."""
        self._faults = dict(readValid(states, _faultsOf))

    def resume(self, former: CableMoves) -> None:
        """Continue from the faults of a former process, and those that this one has seen."""
        seen, self._faults = self._faults, former._faults
        for key, faults in seen.items():
            several = {one.beyond: one for one in (*self._faults.pop(key, ()), *faults)}
            self._faults[key] = sorted(several.values(), key=attrgetter("at"))[-2:]
        self._changed.update(seen)
        self._bound()

    def events(self, fabric: Fabric, now: float) -> list[FabricEvent]:
        """Return the states of ports whose faults have changed since the last call."""
        changed, self._changed = self._changed, set()
        return [_eventOf(fabric, key, self._faults.get(key, ()), now) for key in changed]

    def __len__(self) -> int:
        return len(self._faults)

    def explained(
        self,
        fabric: Fabric,
        found: Iterable[Finding],
        now: float,
        serialOf: SerialOf = lambda port: "",
    ) -> list[Finding]:
        """Return findings; those of links whose cables were moved say what the fault did."""
        self._expire(now)
        former: dict[str, list[_Fault]] = defaultdict(list)
        for fault in chain.from_iterable(self._faults.values()):
            former[fault.serial].append(fault)
        former.pop("", None)
        explained = []
        for one in found:
            port = fabric.portAt(one.guid, one.port) if one.kind in OF_LINK else None
            if port is not None and port.peer is not None:
                several = [serialOf(port), serialOf(port.peer)]
                serial = min(filter(None, several), default="")  # the same one seen from both ends
                isKnown = bool(serial) or None not in several
                text = self._moved(port, port.peer, serial, former.get(serial, ())) if isKnown else ""
                self._remember(one.kind, port, port.peer, serial, now)
                self._remember(one.kind, port.peer, port, serial, now)
                one = replace(one, text=f"{one.text}; {text}") if text else one
            explained.append(one)
        return explained

    def _moved(self, port: Port, peer: Port, serial: str, same: Iterable[_Fault]) -> str:
        """
        Return what a fault at a port did when the cable was moved; C{""} if there was no former fault.

        @param same: faults of links by the cable with this serial number.
        """
        former = [
            (fault, end, other)
            for end, other in ((port, peer), (peer, port))
            for fault in self._faults.get(_key(end), ())
            if fault.beyond != _key(other)
        ]
        if not former:
            elsewhere = [fault for fault in same if fault.beyond not in (_key(port), _key(peer))]
            if not elsewhere:
                return ""
            fault = max(elsewhere, key=lambda one: one.at)
            return f"the fault follows the cable: {fault.name} had {fault.kind} with it before"
        fault, end, other = max(former, key=lambda one: one[0].at)
        had = f"{fault.name} had {fault.kind}"
        if self._isCable(fault, serial, end, other, isHere=end is port):
            return f"the fault follows the cable: {had} before the cable of {end} was moved to {other}"
        return f"the fault stays with the port: {end} had {fault.kind} with another cable, to {fault.name}"

    @staticmethod
    def _isCable(fault: _Fault, serial: str, end: Port, other: Port, isHere: bool) -> bool:
        """
        Return whether a link has the cable of a former one.

        @param end: common end of both links; C{other} is the new one at the other side.
        @param isHere: whether the fault is at the common end: then it is the port that has not changed.
        """
        if serial and fault.serial:
            return serial == fault.serial
        isHost = not other.node.isSwitch
        if end.node.isSwitch == isHost == fault.isHost:
            # At a switch, a cable of a host is moved to another port, or that of another host comes.
            return not isHost
        return not isHere

    def _remember(self, kind: str, port: Port, peer: Port, serial: str, now: float) -> None:
        key, beyond = _key(port), _key(peer)
        fault = _Fault(kind, beyond, str(peer), not peer.node.isSwitch, serial, now)
        if key not in self._faults and self._isFull(now):
            return
        known = self._faults.pop(key, [])
        if not known or _stored(known[-1]) != _stored(fault):
            self._changed.add(key)
        # At most one former link: that of the last move.
        self._faults[key] = [*[one for one in known if one.beyond != beyond][-1:], fault]
        self._bound()

    def _isFull(self, now: float) -> bool:
        """Return whether no more ports can be remembered without one that was reported now."""
        return len(self._faults) >= MOST_FAULTS and next(iter(self._faults.values()))[-1].at >= now

    def _bound(self) -> None:
        while len(self._faults) > MOST_FAULTS:
            key = next(iter(self._faults))
            del self._faults[key]
            self._changed.add(key)

    def _expire(self, now: float) -> None:
        oldest = now - REMEMBERED_SECONDS
        for key in [key for key, faults in self._faults.items() if faults[-1].at <= oldest]:
            del self._faults[key]
            self._changed.add(key)


def _stored(fault: _Fault) -> tuple[PortKey, str, float]:
    """Return what is stored when it changes: other kinds of faults alternate."""
    return fault.beyond, fault.serial, fault.at // _DAY


def _eventOf(fabric: Fabric, key: PortKey, faults: Iterable[_Fault], now: float) -> FabricEvent:
    port, (guid, number) = fabric.portAt(*key), key
    detail = [
        [one.kind, [str(one.beyond[0]), one.beyond[1]], one.name, one.isHost, one.serial, one.at]
        for one in faults
    ]
    where, subject = str(guid if port is None else port), json.dumps([FAULT, str(guid), number])
    return FabricEvent(now, FAULT if detail else _FORGOTTEN, where, "", guid, number, subject, detail)


def _faultsOf(event: FabricEvent) -> tuple[PortKey, list[_Fault]]:
    """Return the faults of an event, or raise an exception of any type if it is invalid."""
    faults = []
    for kind, (guid, number), name, isHost, serial, at in event.detail:
        if not (isTime(at) and all(isinstance(one, str) for one in (kind, name, serial))):
            raise ValueError(f"{event.detail!r} is not a list of faults")
        beyond = GUID.fromString(guid), int(number)
        faults.append(_Fault(kind, beyond, name, bool(isHost), serial, float(at)))
    if event.guid is None or event.port is None or not faults:
        raise ValueError(f"{event!r} is not of a port")
    return (event.guid, event.port), faults


def _key(port: Port) -> PortKey:
    return port.node.guid, port.number
