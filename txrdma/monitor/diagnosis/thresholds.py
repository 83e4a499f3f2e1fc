"""
Findings of error counters that exceed their thresholds.

L{txrdma.monitor.diagnosis.findinglog} decides whether a fault has lasted long enough to be reported.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Sized
from dataclasses import replace
from itertools import chain
from math import inf
from operator import itemgetter
from types import MappingProxyType
from typing import Any, Final, TypeVar

from txrdma.fabric.errorcorrection import wrongBits
from txrdma.fabric.errorcounters import shownName, UNCORRECTABLE
from txrdma.fabric.health import Cause, Finding
from txrdma.fabric.model import Fabric, PortKey
from txrdma.fabric.portcounters import CounterLayout, Meter
from txrdma.fabric.rates import bitErrorRate
from txrdma.fabric.rootcause import explained, linkOf
from txrdma.iba.types import GUID
from txrdma.monitor.diagnosis.cablemoves import CableMoves, SerialOf
from txrdma.monitor.diagnosis.tallies import Tallies, TallyLimit

_Pick = Callable[[Sequence[int]], object]
_HOUR: Final = 3600.0

_JUDGED: Final = (
    ("symbolErrorCounter", "symbol-errors", 120, _HOUR),  # a bit error rate of 1e-12 on EDR links
    ("linkErrorRecoveryCounter", "link-recoveries", 5, _HOUR),
    ("portRcvErrors", "receive-errors", 60, _HOUR),
    ("portRcvRemotePhysicalErrors", "remote-errors", 100, _HOUR),
    ("portXmitDiscards", "discards", 600, 600.0),
    ("portXmitConstraintErrors", "constraint-errors", 200, _HOUR),
    ("portRcvConstraintErrors", "constraint-errors", 200, _HOUR),
    ("localLinkIntegrityErrors", "integrity-errors", 0, _HOUR),
    ("excessiveBufferOverrunErrors", "overruns", 0, _HOUR),
    ("vl15Dropped", "vl15-dropped", 50, _HOUR),
    (UNCORRECTABLE, "fec-uncorrectable", 10, _HOUR),
)
"""Counters, the kinds of their findings, and their usual limits."""

_KINDS: Final = {counter: kind for counter, kind, _most, _seconds in _JUDGED}
KINDS_OF_ERRORS: Final = frozenset(("errors", "flapping", "symbol-ber", *_KINDS.values()))
"""Kinds of the findings that follow from the growth of counters alone."""

DEFAULT_LIMITS: Final = tuple(TallyLimit(counter, most, seconds) for counter, _, most, seconds in _JUDGED)
"""
Maximum numbers of errors within a time that are not reported. PortRcvSwitchRelayErrors and PortXmitWait
are missing, as they grow in healthy fabrics; LinkDowned has a separate rule.
"""

BER_LIMIT: Final = TallyLimit("symbolErrorCounter", 2, 720.0)
"""Minimum number of symbol errors for computing a bit error rate, and the time in which they are counted."""

_BER_LIMITS: Final = (BER_LIMIT, TallyLimit(UNCORRECTABLE, BER_LIMIT.most, BER_LIMIT.seconds))
"""
The limits for symbol errors, and for uncorrectable FEC blocks: with PAM4 (HDR and later), corrected symbols
are normal.
"""

MOST_BIT_ERRORS: Final = 1e-14
"""Bit error rate above which a link is reported: UFM's rule, 3 errors in 12 minutes at 400 Gbit/s."""

DEFAULT_FLAPS: Final = TallyLimit("linkDownedCounter", 1, 600.0)
"""Number of times that a link may go down within a time without being reported as flapping."""

RESTART_SECONDS: Final = 300.0
"""Seconds before and after a node's restart in which its links may go down without being reported."""

TRAINING_SECONDS: Final = 30.0
"""Seconds before and after a link has come up within which errors of its training are counted."""

_OF_TRAINING: Final = frozenset(
    ("symbolErrorCounter", "linkErrorRecoveryCounter", "portRcvErrors", "localLinkIntegrityErrors")
    + ("excessiveBufferOverrunErrors", "portXmitDiscards", UNCORRECTABLE)
)
"""Counters of errors that a link has while it is trained, and of packets discarded while it is down."""


Key = TypeVar("Key")
Value = TypeVar("Value")


def forget(table: dict[Key, Value], isOver: Callable[[Key, Value], bool]) -> None:
    """Remove the items of a table for which a function returns True."""
    for key in [key for key, value in table.items() if isOver(key, value)]:
        del table[key]


class ErrorThresholds:
    """
    Thresholds for the errors that ports count within minutes and hours.

    A link that goes down because a node restarts is not flapping. A node has restarted if it was gone or
    silent for a while, or if all of its counters began anew, unless those of its neighbour did, too: then an
    operator has cleared them. Errors of a link that is trained, or is down, do not count.
    """

    def __init__(
        self,
        limits: Iterable[TallyLimit] = DEFAULT_LIMITS,
        flaps: TallyLimit = DEFAULT_FLAPS,
        mostBitErrors: float | None = None,
    ) -> None:
        """@param mostBitErrors: rate of bit errors beyond which a link is reported; None for no report."""
        self._tallies: Tallies[PortKey] = Tallies()
        self._bitErrors: Tallies[PortKey] = Tallies()
        self.change(limits, flaps, mostBitErrors)
        self._downs: dict[PortKey, list[tuple[float, int]]] = {}
        self._links: dict[PortKey, list[PortKey]] = {}
        self._restarts: dict[GUID, float] = {}
        self._resets: dict[GUID, float] = {}
        self._down: set[PortKey] = set()
        self._trained: dict[PortKey, float] = {}
        self._recent: dict[PortKey, list[tuple[float, str, int]]] = {}
        self._full: dict[PortKey, tuple[str, ...]] = {}
        self._former: dict[PortKey, PortKey] = {}
        self._causes: dict[Any, tuple[float, Cause]] = {}
        self.moves = CableMoves()

    def change(self, limits: Iterable[TallyLimit], flaps: TallyLimit, mostBitErrors: float | None) -> None:
        """Replace the limits; sums of limits that remain are retained."""
        self._limits = tuple(limits)
        self._tallies.change(self._limits)
        bitErrors = () if mostBitErrors is None else _BER_LIMITS
        self._bitErrors.change(bitErrors)
        self._mostBitErrors = mostBitErrors or 0.0
        self._flaps = flaps
        self._counters = list(dict.fromkeys(one.counter for one in (*self._limits, *bitErrors, flaps)))
        self._judged: dict[CounterLayout, tuple[_Pick, object]] = {}

    @property
    def counters(self) -> Sequence[str]:
        """Names of the counters that have limits."""
        return self._counters

    def periodOf(self, kind: str) -> float:
        """Return the longest window for findings of a kind, in seconds; 0 if none counts errors."""
        periods = [one.seconds for one in self._limits if _KINDS.get(one.counter, "errors") == kind]
        periods += [self._flaps.seconds] * (kind == "flapping") + [BER_LIMIT.seconds] * (kind == "symbol-ber")
        return max(periods, default=0.0)

    def __len__(self) -> int:
        """Return the number of sums in memory: several for each port with errors."""
        sums: tuple[Sized, ...] = (self._tallies, self._bitErrors, self._downs, self._trained, self._recent)
        return sum(len(one) for one in (*sums, self._restarts, self._resets))

    def isConcerned(self, meter: Meter, now: float) -> bool:
        """Return whether a reading has new errors, or follows a reset: most have only more traffic."""
        judged = self._judged.get(meter.layout)
        if judged is None:
            layout = meter.layout
            at = [layout.indices[name] for name in self._counters if name in layout.indices]
            taken: _Pick = itemgetter(*at) if at else lambda grown: None
            judged = self._judged[layout] = taken, taken(layout.nothing)
        pick, nothing = judged
        return pick(meter.grown) != nothing or meter.resetAt == now

    def read(self, portKey: PortKey, meter: Meter, now: float, seconds: float = 0.0) -> None:
        """Add a reading for which L{isConcerned} returned True, some seconds after the one before."""
        indices, grown = meter.layout.indices, meter.grown
        known = {name: grown[indices[name]] for name in self._counters if name in indices}
        self.count(portKey, {name: more for name, more in known.items() if more}, now, seconds)
        self.readFull(portKey, meter)

    def count(self, portKey: PortKey, grown: Mapping[str, int], now: float, seconds: float = 0.0) -> None:
        """Add the growth of counters of a port, those that have grown, within some seconds until now."""
        downs = grown.get(self._flaps.counter)
        if downs:
            self._trained[portKey] = now
            if seconds > self._flaps.seconds:  # some were earlier
                downs = int(downs * self._flaps.seconds / seconds)
        if downs:
            self._downs.setdefault(portKey, []).append((now, downs))
        for counter, more in grown.items():
            if counter != self._flaps.counter:
                self._add(portKey, counter, more, now, seconds)

    def readFull(self, portKey: PortKey, meter: Meter) -> None:
        """Record which counters of errors are at their maximum, and count no further errors."""
        full = meter.full(self._counters)
        if full:
            self._full[portKey] = full
        else:
            self._full.pop(portKey, None)

    def _add(self, portKey: PortKey, counter: str, count: int, now: float, seconds: float) -> None:
        """Add errors to the sums, unless they are those of a link that is trained or is down."""
        if counter in _OF_TRAINING:
            guid = portKey[0]
            several = (self._trained.get(portKey), self._restarts.get(guid), self._resets.get(guid))
            if portKey in self._down or any(
                at is not None and now - at <= TRAINING_SECONDS for at in several
            ):
                return
            recent = [one for one in self._recent.get(portKey, ()) if now - one[0] <= TRAINING_SECONDS]
            self._recent[portKey] = [*recent, (now, counter, count)]
        self._tallies.add(portKey, counter, count, now, seconds)
        self._bitErrors.add(portKey, counter, count, now, seconds)

    def _excuse(self, portKey: PortKey, now: float) -> None:
        """Remove the recent errors of a port whose link is trained or down."""
        for at, counter, count in self._recent.pop(portKey, ()):
            if now - at <= TRAINING_SECONDS:
                self._tallies.remove(portKey, counter, count, at)
                self._bitErrors.remove(portKey, counter, count, at)

    def linksChanged(
        self, lost: Collection[tuple[PortKey, PortKey]], came: Collection[tuple[PortKey, PortKey]], now: float
    ) -> None:
        """Record which links are missing, C{lost}, and which have come up, C{came}."""
        for link in lost:
            for portKey, peer in (link, link[::-1]):
                self._excuse(portKey, now)
                self._down.add(portKey)
                self._former[portKey] = peer
        moved: set[PortKey] = set()
        for portKey, peer in chain.from_iterable((link, link[::-1]) for link in came):
            former = self._former.pop(portKey, peer)
            if former != peer:
                moved |= {portKey, former}
            self._excuse(portKey, now)
            self._trained[portKey] = now
            self._down.discard(portKey)
        if moved:  # errors of a former link are not those of the present ones
            for tallies in (self._tallies, self._bitErrors):
                tallies.retain(lambda portKey: portKey not in moved)
            for portKey in moved:
                self._downs.pop(portKey, None)
                self._links.pop(portKey, None)
            forget(self._causes, lambda key, _: key[:2] in moved)

    def retain(self, known: Collection[GUID]) -> None:
        """Forget the errors of nodes that are neither in the fabric nor known as missing."""
        for tallies in (self._tallies, self._bitErrors):
            tallies.retain(lambda portKey: portKey[0] in known)
        tables: list[dict[Any, Any]] = [self._downs, self._links, self._trained, self._recent, self._full]
        for table in (*tables, self._former, self._causes):
            forget(table, lambda key, _: key[0] not in known)
        self._down = {portKey for portKey in self._down if portKey[0] in known}

    def restarted(self, guid: GUID, now: float) -> None:
        """Record that a node may have restarted: it answers again after it was missing or silent."""
        self._restarts[guid] = now

    def reset(self, guid: GUID, now: float) -> None:
        """Record that all counters of a node began anew: it restarted, or an operator cleared them."""
        self._resets[guid] = now

    def findings(
        self,
        fabric: Fabric,
        now: float,
        gone: Mapping[PortKey, tuple[PortKey, PortKey]] = MappingProxyType({}),
        serialOf: SerialOf = lambda port: "",
        ignored: Collection[str] = (),
    ) -> list[Finding]:
        """
        Return the faults that the counters of the last minutes and hours show.

        @param gone: links that are down now, by each of their two ports, because the fabric's model does not
            contain them.
        @param serialOf: see L{CableMoves.explained}.
        @param ignored: kinds of findings that explain no others.
        """
        found = []
        ends = self._downEnds(fabric, now, gone)
        for portKey, limit, count in self._tallies.exceeded(now):
            counted = f"{shownName(limit.counter)} {count} in {_period(limit.seconds)}"
            kind = _KINDS.get(limit.counter, "errors")
            found.append(_at(fabric, kind, portKey, f"{counted}, {limit.most} are allowed"))
        for portKey, full in self._full.items():
            node = fabric.nodes.get(portKey[0])
            if node is not None:
                names = ", ".join(map(shownName, full))
                text = f"{names} cannot count further; this clears it: txrdma errors --clear {node.lid}"
                found.append(_at(fabric, "counter-full", portKey, text))
        found += self._bitErrorFindings(fabric, now)
        found += self._flapping(fabric, ends)
        grouped = self._grouped(fabric, found, now, ignored)
        return self.moves.explained(fabric, grouped, now, serialOf)

    def _grouped(
        self, fabric: Fabric, found: Sequence[Finding], now: float, ignored: Collection[str]
    ) -> list[Finding]:
        """Return findings with their causes: a fault that has ended explains the errors of its time."""
        present = {_keyOf(one) for one in found}
        former, others = [], []
        for one in found:
            ended, cause = self._causes.get(_keyOf(one), (now, None))
            if cause and _keyOf(cause) not in present and not self._isExceeded(one, ended):
                former.append(replace(one, cause=cause))
            else:
                others.append(one)
        grouped = explained(others, lambda one: linkOf(fabric, one), ignored=ignored)
        for one in grouped:
            self._causes.pop(_keyOf(one), None)
            if one.cause and one.cause.kind != one.kind:
                self._causes[_keyOf(one)] = now, one.cause
        return grouped + former

    def _isExceeded(self, one: Finding, since: float) -> bool:
        """Return whether the errors since a time exceed a limit by themselves."""
        portKey: Any = one.guid, one.port
        if one.kind == "symbol-ber":
            return any(self._bitErrors.since(portKey, limit, since) > limit.most for limit in _BER_LIMITS)
        limits = (limit for limit in self._limits if _KINDS.get(limit.counter) == one.kind)
        return any(self._tallies.since(portKey, limit, since) > limit.most for limit in limits)

    def _bitErrorFindings(self, fabric: Fabric, now: float) -> list[Finding]:
        """Return findings of bit errors: for each port by symbol errors or by uncorrectable blocks."""
        worst: dict[PortKey, tuple[float, str]] = {}
        for portKey, limit, count in self._bitErrors.exceeded(now):
            port, errors, what = fabric.portAt(*portKey), count, ""
            if port is None:
                continue
            if limit.counter == UNCORRECTABLE:
                errors, what = wrongBits(port, errors), " blocks beyond correction"
            rate = bitErrorRate(port, errors, limit.seconds)
            if rate > max(self._mostBitErrors, worst.get(portKey, (0.0, ""))[0]):
                shown = f"{'at least ' * bool(what)}{rate:.1e}, {self._mostBitErrors:.0e} is allowed"
                counted = f"{count}{what} in {_period(limit.seconds)}"
                worst[portKey] = rate, f"its rate of bit errors is {shown}: {counted}"
        return [_at(fabric, "symbol-ber", portKey, text) for portKey, (_rate, text) in worst.items()]

    def _downEnds(
        self, fabric: Fabric, now: float, gone: Mapping[PortKey, tuple[PortKey, PortKey]]
    ) -> dict[PortKey, list[PortKey]]:
        """Return the ends of links that went down, by the port that counted it; excuse their errors."""
        self._expire(now)
        found = {portKey: self._link(fabric, portKey, gone) for portKey in self._downs}
        for portKey, ends in found.items():
            at = self._downs[portKey][-1][0]
            for end in ends:
                if now - at <= TRAINING_SECONDS and self._trained.get(end, -inf) < at:
                    self._excuse(end, at)
                    self._trained[end] = at
        return found

    def _flapping(self, fabric: Fabric, links: Mapping[PortKey, list[PortKey]]) -> list[Finding]:
        counts: dict[PortKey, int] = {}
        for portKey, downs in self._downs.items():
            ends = links[portKey]
            count = sum(times for at, times in downs if not self._isExcused(ends, at))
            counts[ends[0]] = max(count, counts.get(ends[0], 0))  # both ends count the same
        seconds = self._flaps.seconds
        return [
            _at(fabric, "flapping", portKey, f"its link went down {count} times in {_period(seconds)}")
            for portKey, count in counts.items()
            if count > self._flaps.most
        ]

    def _link(
        self, fabric: Fabric, portKey: PortKey, gone: Mapping[PortKey, tuple[PortKey, PortKey]]
    ) -> list[PortKey]:
        """Return the ends of a port's link, up or down: first the switch's, or the lower GUID's."""
        port = fabric.portAt(*portKey)
        peer = None if port is None else port.peer
        if peer is not None:
            ends = [portKey, (peer.node.guid, peer.number)]
        elif portKey in self._links:
            return self._links[portKey]  # as when both ends were present
        elif portKey in gone:
            ends = list(gone[portKey])
        else:
            return [portKey]
        ends.sort(key=lambda end: _rank(fabric, end))
        self._links[portKey] = ends
        return ends

    def _isExcused(self, ends: Iterable[PortKey], at: float) -> bool:
        """Return whether the node of one end restarted about when the link went down."""
        guids = {guid for guid, _number in ends}
        restarted, reset = (
            [guid for guid in guids if abs(times.get(guid, -inf) - at) <= RESTART_SECONDS]
            for times in (self._restarts, self._resets)
        )
        return bool(restarted) or len(reset) == 1  # who clears counters clears those of both ends

    def _expire(self, now: float) -> None:
        """Forget links that went down, restarts and errors of training that are too old to matter."""
        oldest = now - self._flaps.seconds
        for portKey, downs in list(self._downs.items()):
            recent = [one for one in downs if one[0] > oldest]
            if recent:
                self._downs[portKey] = recent
            else:
                del self._downs[portKey]
                self._links.pop(portKey, None)
        before = oldest - RESTART_SECONDS
        for times in (self._restarts, self._resets):
            forget(times, lambda _guid, at: at < before)
        recently = now - TRAINING_SECONDS
        forget(self._trained, lambda _portKey, at: at < recently)
        forget(self._causes, lambda key, cause: cause[0] + self.periodOf(key[2]) <= now)
        forget(self._recent, lambda _portKey, errors: errors[-1][0] < recently)


def _rank(fabric: Fabric, portKey: PortKey) -> tuple[bool, bytes, int]:
    guid, number = portKey
    node = fabric.nodes.get(guid)
    return node is None or not node.isSwitch, guid.raw, number


def _keyOf(one: Finding | Cause) -> tuple[GUID | None, int | None, str]:
    return one.guid, one.port, one.kind


def _at(fabric: Fabric, kind: str, portKey: PortKey, text: str) -> Finding:
    guid, number = portKey
    node = fabric.nodes.get(guid)
    name = str(guid) if node is None else str(node)
    return Finding(kind, f"{name} port {number}", text, guid, number)


def _period(seconds: float) -> str:
    """Return a duration as text: C{"10 minutes"}."""
    if seconds >= _HOUR and not seconds % _HOUR:
        hours = int(seconds // _HOUR)
        return "an hour" if hours == 1 else f"{hours} hours"
    minutes = seconds / 60
    return f"{minutes:g} minutes" if minutes != 1 else "a minute"
