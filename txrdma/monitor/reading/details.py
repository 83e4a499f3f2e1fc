"""
Reads the optional counters of causes of dropped packets, at ports that have dropped some.

Follows InfiniBand Architecture vol. 1, 16.1.4.1 (PortRcvErrorDetails) and 16.1.4.2 (PortXmitDiscardDetails).
Few ports drop packets, so there are few requests: only where PortRcvErrors or PortXmitDiscards has grown.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from txrdma.fabric.errorcounters import countingPorts
from txrdma.fabric.model import Node, Port, PortKey
from txrdma.fabric.portcounters import Meter
from txrdma.iba.path import MADEndPort
from txrdma.iba.types import GUID
from txrdma.mad.errors import MADError, MADFailure
from txrdma.mad.layouts.attributes import Attribute
from txrdma.mad.layouts.pma import PortRcvErrorDetails, PortXmitDiscardDetails
from txrdma.mad.paths import toLID
from txrdma.mad.rpcs import RPCs
from txrdma.monitor.reading.fec import NO_ATTRIBUTE
from txrdma.monitor.reading.settings import RETRIES

CAUSES: Final[Mapping[str, Mapping[str, str]]] = {
    "portRcvErrors": {
        "portLocalPhysicalErrors": "Packets with errors of the link, as a bad CRC",
        "portMalformedPacketErrors": "Packets whose headers contradict themselves or their length",
        "portBufferOverrunErrors": "Packets for which there was no buffer",
        "portDLIDMappingErrors": "Packets to a LID without a route from here",
        "portVLMappingErrors": "Packets whose service level has no virtual lane at the output port",
        "portLoopingErrors": "Packets whose output port is their input port",
    },
    "portXmitDiscards": {
        "portInactiveDiscards": "Packets for a port that is not active",
        "portNeighborMTUDiscards": "Packets that are longer than the neighbour takes",
        "portSwLifetimeLimitDiscards": "Packets that were in the switch for too long",
        "portSwHOQLifetimeLimitDiscards": "Packets that were first in their queue for too long",
    },
}
"""Causes and their meanings, by the counter that contains their sum."""

_ATTRIBUTES: Final[Mapping[str, type[Attribute]]] = {
    "portRcvErrors": PortRcvErrorDetails,
    "portXmitDiscards": PortXmitDiscardDetails,
}


class DetailReader:
    """
    Reads the causes of dropped packets, node by node.

    @ivar causes: packets dropped by cause, by GUID and port number of ports that report causes: values of
        counters, up to 65535.
    """

    def __init__(self, meters: Mapping[PortKey, Meter]) -> None:
        """@param meters: meters of all ports."""
        self.causes: dict[PortKey, dict[str, int]] = {}
        self._meters = meters
        self._explained: dict[tuple[PortKey, str], int] = {}
        self._unable: set[tuple[GUID, str]] = set()

    def retain(self, known: Collection[GUID]) -> None:
        """Forget nodes that are no longer in the fabric: they may return with other firmware."""
        self._unable = {one for one in self._unable if one[0] in known}
        self._explained = {one: count for one, count in self._explained.items() if one[0][0] in known}
        self.causes = {portKey: causes for portKey, causes in self.causes.items() if portKey[0] in known}

    def isWanted(self, node: Node) -> bool:
        """Return whether ports of a node have dropped packets whose causes are unknown."""
        return any(self._wanted(node))

    def _wanted(self, node: Node) -> Iterator[tuple[Port, str, int]]:
        """
        Yield ports that have dropped packets, the counters that show it, and their number; forget the causes
        of those that were cleared.
        """
        guid = node.guid
        for port in countingPorts(node):
            portKey = (guid, port.number)
            meter = self._meters.get(portKey)
            if meter is None or not port.lid:
                continue
            for counter in _ATTRIBUTES:
                count = meter.value(counter)
                if count == 0 and portKey in self.causes:
                    self._forget(portKey, counter)
                if not count or (guid, counter) in self._unable:
                    continue
                if count != self._explained.get((portKey, counter)):
                    yield port, counter, count

    def _forget(self, portKey: PortKey, counter: str) -> None:
        self._explained.pop((portKey, counter), None)
        left = {name: count for name, count in self.causes[portKey].items() if name not in CAUSES[counter]}
        if left:
            self.causes[portKey] = left
        else:
            del self.causes[portKey]

    async def read(self, node: Node, rpcs: RPCs, endPort: MADEndPort, timeoutSeconds: float) -> None:
        """
        Read the causes of packets that a node's ports have dropped since the last reading.

        @raise DeviceUnavailable: the local port is lost.
        """
        for port, counter, count in self._wanted(node):
            asked: Any = _ATTRIBUTES[counter]
            path = toLID(endPort, port.lid)
            try:
                answer = await rpcs.PerformanceGet(
                    asked(portSelect=port.number), path, timeoutSeconds=timeoutSeconds, retries=RETRIES
                )
            except MADError as error:  # the attribute is optional
                if error.status in NO_ATTRIBUTE:
                    self._unable.add((node.guid, counter))
                else:  # it may pass: asked again when the counter has grown
                    self._explained[(node.guid, port.number), counter] = count
            except MADFailure:
                return
            else:
                portKey = (node.guid, port.number)
                self._explained[portKey, counter] = count
                values = {name: getattr(answer, name) for name in CAUSES[counter]}
                self.causes.setdefault(portKey, {}).update(values)
