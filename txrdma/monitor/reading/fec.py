"""
Reads the counters of forward error correction, of all ports with fast links, in rotation with their states.

Follows InfiniBand Architecture vol. 1, 16.1.4.13 (PortExtendedSpeedsCounters). The attribute is optional: a
node that does not support it, or answers all requests except this one, is not queried for it again while it
is in the fabric. Other errors may be temporary: the port is queried again after pauses.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import Any, Final

from txrdma.fabric.errorcorrection import correctingPorts, formOf, namesOf, valuesOf
from txrdma.fabric.errorcounters import UNCORRECTABLE
from txrdma.fabric.model import Node, Port, PortKey
from txrdma.fabric.portcounters import CounterLayout, intervalClock, Meter
from txrdma.iba.path import IBPath, MADEndPort
from txrdma.iba.types import GUID
from txrdma.kit.backoff import BackOff
from txrdma.mad.errors import MADError, MADFailure
from txrdma.mad.layouts.attributes import Attribute
from txrdma.mad.layouts.messages import ClassPortInfo, MADStatus
from txrdma.mad.layouts.smp import NodeInfo
from txrdma.mad.paths import toLID
from txrdma.mad.rpcs import RPCs
from txrdma.monitor.diagnosis.thresholds import ErrorThresholds, forget
from txrdma.monitor.reading.settings import RETRIES

_MOST_FAILURES: Final = 3
"""Consecutive missing answers after which a node that answers other requests is no longer queried."""

REFUSED_SECONDS: Final = 60.0
"""Seconds until a port that refused is queried again; then twice that, up to L{LONGEST_REFUSED_SECONDS}."""

LONGEST_REFUSED_SECONDS: Final = 3600.0

NO_ATTRIBUTE: Final = frozenset((MADStatus.UNSUPPORTED_METHOD, MADStatus.UNSUPPORTED_METHOD_ATTRIBUTE))
"""Statuses of a node that never answers this attribute; others may be temporary."""

layoutOf: Final = cache(lambda kind, lanes: CounterLayout(namesOf(kind, lanes)))
"""Layout of a form's counters, for a number of lanes in use: one for all ports that have it."""


class CorrectionReader:
    """
    Reads error correction counters, node by node.

    @ivar meters: meters of these counters, by GUID and port number of ports that report them.
    """

    def __init__(
        self, counted: Mapping[PortKey, Meter], thresholds: ErrorThresholds, seconds: Callable[[], float]
    ) -> None:
        """
        @param counted: meters of all ports: a node that has answered for other counters is not silent.
        @param seconds: returns the current time.
        """
        self.meters: dict[PortKey, Meter] = {}
        self._counted = counted
        self._thresholds = thresholds
        self._seconds, self._intervalSeconds = seconds, intervalClock(seconds)
        self._capabilities: dict[GUID, int] = {}
        self._forms: dict[PortKey, tuple[object, type[Attribute] | None]] = {}
        self._unable: set[GUID] = set()
        self._silences: dict[GUID, int] = {}
        self._refusals: BackOff[PortKey] = BackOff(REFUSED_SECONDS, LONGEST_REFUSED_SECONDS)

    def retain(self, known: Collection[GUID]) -> None:
        """Forget nodes that are no longer in the fabric: they may return with other firmware."""
        self._unable = {guid for guid in self._unable if guid in known}
        ofPorts: tuple[dict[PortKey, Any], ...] = (self.meters, self._forms)
        for portKeys in ofPorts:
            forget(portKeys, lambda portKey, _: portKey[0] not in known)
        self._refusals.retain(lambda portKey: portKey[0] in known)
        for guids in (self._capabilities, self._silences):
            forget(guids, lambda guid, _: guid not in known)

    def isWanted(self, node: Node) -> bool:
        """Return whether a node has a port that may have these counters, even if the node is silent."""
        return node.guid not in self._unable and any(True for _port in correctingPorts(node))

    def _isWanted(self, port: Port) -> bool:
        portKey = (port.node.guid, port.number)
        counted = self._counted.get(portKey)
        isDue = self._refusals.isDue(portKey, self._seconds())
        return counted is not None and not counted.isSilent and isDue

    async def read(self, node: Node, rpcs: RPCs, endPort: MADEndPort, timeoutSeconds: float) -> None:
        """
        Read the counters of a node's ports, and compare their growth with the thresholds.

        @raise DeviceUnavailable: the local port is lost.
        """
        guid = node.guid
        options = {"timeoutSeconds": timeoutSeconds, "retries": RETRIES}
        wanted = {port.number: port for port in correctingPorts(node)}
        for number in range(node.numPorts + 1):
            if number not in wanted:  # its link is gone, or is a slow one by now
                self.meters.pop((guid, number), None)
        for port in wanted.values():
            if guid in self._unable or not self._isWanted(port):
                self._missed(port)
                continue
            path = toLID(endPort, port.lid)
            try:
                await self._read(port, rpcs, path, options)
            except MADError as error:
                self._missed(port)
                if error.status in NO_ATTRIBUTE:
                    self._unable.add(guid)
                else:
                    self._refusals.silent((guid, port.number), self._seconds())
            except MADFailure:
                self._missed(port)
                times = self._silences[guid] = self._silences.get(guid, 0) + 1
                if times >= _MOST_FAILURES:
                    self._unable.add(guid)
                return
            else:
                self._silences.pop(guid, None)
                self._refusals.answered((guid, port.number))

    def _missed(self, port: Port) -> None:
        meter = self.meters.get((port.node.guid, port.number))
        if meter is not None:
            meter.missed()

    async def _read(self, port: Port, rpcs: RPCs, path: IBPath, options: Mapping[str, Any]) -> None:
        """Read a port's counters; if they have new errors, check first that the LID is still the node's."""
        guid = port.node.guid
        portKey = (guid, port.number)
        kind: Any = await self._formOf(port, rpcs, path, options)
        if kind is None:
            self._unable.add(guid)
            return
        answer = await rpcs.PerformanceGet(kind(portSelect=port.number), path, **options)
        layout = layoutOf(kind, port.width)
        meter = self.meters.get(portKey)
        if meter is None or meter.layout is not layout:
            meter = self.meters[portKey] = Meter(layout)
        now, before = self._seconds(), meter.readAt
        meter.read(valuesOf(answer, port.width), now, self._intervalSeconds())
        if not self._thresholds.isConcerned(meter, now):
            return
        who = await rpcs.SubnGet(NodeInfo, path, **options)
        if who.nodeGUID == guid:
            if grown := meter.grown[meter.layout.indices[UNCORRECTABLE]]:
                self._thresholds.count(portKey, {UNCORRECTABLE: grown}, now, now - before)
        else:  # the LID is another node's by now
            self.meters.pop(portKey, None)  # a sweep may have forgotten it meanwhile

    async def _formOf(
        self, port: Port, rpcs: RPCs, path: IBPath, options: Mapping[str, Any]
    ) -> type[Attribute] | None:
        """Return the form of a port's counters, which is queried once each time its link has come up."""
        guid = port.node.guid
        portKey = (guid, port.number)
        link = (port.activeSpeed, port.width, self._counted[portKey].value("linkDownedCounter"))
        known = self._forms.get(portKey)
        if known is not None and known[0] == link:
            return known[1]
        if guid not in self._capabilities:
            answer = await rpcs.PerformanceGet(ClassPortInfo, path, **options)
            self._capabilities[guid] = answer.capabilityMask
        kind = await formOf(rpcs, port, path, self._capabilities[guid], **options)
        self._forms[portKey] = (link, kind)
        return kind
