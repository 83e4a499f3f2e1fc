"""
Reads the waits of ports for credits: the share of time, the virtual lanes, and congestion marks.

Follows InfiniBand Architecture vol. 1, 16.1.3.2 (PortSamplesControl), 16.1.4.8 (PortVLXmitWaitCounters) and
annex A10.6.1 (PortRcvConCtrl). All of them are optional; few ports wait, so there are few requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from txrdma.fabric.congestion import CONGESTED, CreditWait, waitShare
from txrdma.fabric.health import Finding
from txrdma.fabric.model import Node, Port, PortKey
from txrdma.fabric.portcounters import Meter
from txrdma.iba.path import MADEndPort
from txrdma.iba.types import GUID
from txrdma.mad.errors import MADError, MADFailure
from txrdma.mad.layouts.pma import PortRcvConCtrl, PortSamplesControl, PortVLXmitWaitCounters
from txrdma.mad.paths import toLID
from txrdma.mad.rpcs import RPCs
from txrdma.monitor.reading.fec import NO_ATTRIBUTE
from txrdma.monitor.reading.settings import RETRIES

_WAIT: Final = "portXmitWait"


class CongestionReader:
    """
    Reads how long ports wait, node by node.

    @ivar waits: ports that waited when they were read, or whose packets were marked.
    @ivar full: ports whose PortXmitWait is at its maximum, so that it is unknown whether they wait.
    """

    def __init__(self, meters: Mapping[PortKey, Meter]) -> None:
        """@param meters: meters of all ports."""
        self.waits: dict[PortKey, CreditWait] = {}
        self.full: set[PortKey] = set()
        self._meters = meters
        self._ticks: dict[GUID, int] = {}
        self._marks: dict[PortKey, tuple[int, int, int]] = {}
        self._unable: set[tuple[GUID, type[Any]]] = set()

    def retain(self, known: Mapping[GUID, Node]) -> None:
        """
        Forget nodes that are no longer in the fabric, which may return with other firmware, and what was read
        from ports that have no link any more.
        """

        def isLinked(portKey: PortKey) -> bool:
            guid, number = portKey
            port = known[guid].known(number) if guid in known else None
            return port is not None and port.peer is not None

        self._unable = {one for one in self._unable if one[0] in known}
        self._ticks = {guid: tick for guid, tick in self._ticks.items() if guid in known}
        self._marks = {portKey: one for portKey, one in self._marks.items() if isLinked(portKey)}
        self.full = set(filter(isLinked, self.full))
        self.waits = {portKey: wait for portKey, wait in self.waits.items() if isLinked(portKey)}

    def wait(self, portKey: PortKey) -> CreditWait | None:
        """
        Return for how long a port waits for credits; None if it does not wait, or if it did not answer the
        last reading.
        """
        meter = self._meters.get(portKey)
        return None if meter is None or meter.isSilent else self.waits.get(portKey)

    def current(self) -> dict[PortKey, CreditWait]:
        """Return the ports that wait for credits and answered the last reading, with L{wait} of each."""
        known = ((portKey, self.wait(portKey)) for portKey in list(self.waits))
        return {portKey: wait for portKey, wait in known if wait is not None}

    def isWanted(self, node: Node) -> bool:
        """Return whether ports of a node or their peers wait, or waited at the last reading."""
        wanted = [
            self._ticksOf(port) or self._isPeerCongested(port) or (node.guid, port.number) in self.waits
            for port in node.linked()
        ]
        return any(wanted)

    def _isPeerCongested(self, port: Port) -> bool:
        peer = port.peer
        wait = None if peer is None else self.waits.get((peer.node.guid, peer.number))
        return wait is not None and wait.share >= CONGESTED

    def _ticksOf(self, port: Port) -> float:
        """Return the ticks that a port has waited per second; 0 if that is unknown."""
        portKey = (port.node.guid, port.number)
        meter = self._meters.get(portKey)
        ticks = None if meter is None else meter.rate(_WAIT)
        if ticks is None and meter is not None and meter.values and meter.full((_WAIT,)):
            self.full.add(portKey)
        else:
            self.full.discard(portKey)
        return ticks or 0.0

    def findings(self) -> list[Finding]:
        """Return a finding if the counters of 32 bits of ports are full, so that waits are unknown."""
        if not self.full:
            return []
        text = f"it is full at {len(self.full)} ports, so that it is unknown how long they wait for credits"
        return [Finding("counter-full", "PortXmitWait", f"{text}; this clears it: txrdma errors --clear")]

    async def read(self, node: Node, rpcs: RPCs, endPort: MADEndPort, timeoutSeconds: float) -> None:
        """
        Read how long a node's ports have waited.

        @raise DeviceUnavailable: the local port is lost.
        """

        async def get(kind: Any, port: Port) -> Any:
            """Return an optional attribute; None without an answer."""
            if (node.guid, kind) in self._unable or not port.lid:
                return None
            path = toLID(endPort, port.lid)
            try:
                return await rpcs.PerformanceGet(
                    kind(portSelect=port.number), path, timeoutSeconds=timeoutSeconds, retries=RETRIES
                )
            except MADError as error:
                if error.status in NO_ATTRIBUTE:
                    self._unable.add((node.guid, kind))
            except MADFailure:
                pass
            return None

        for port in node.linked():
            portKey = (node.guid, port.number)
            ticks = self._ticksOf(port)
            # PortXmitWait counts ticks, whose length is in PortSamplesControl (IBA 16.1.3.2); once per node
            # is enough.
            if ticks and node.guid not in self._ticks:
                answer = await get(PortSamplesControl, port)
                if answer is not None:
                    self._ticks[node.guid] = answer.tick
            tick = self._ticks.get(node.guid)
            share = 0.0 if tick is None else waitShare(port, ticks, tick) or 0.0
            isPeerCongested = self._isPeerCongested(port)
            # Entries are removed when a port stops waiting, so that L{isWanted} stops asking.
            if not share and not isPeerCongested:
                self.waits.pop(portKey, None)
                self._marks.pop(portKey, None)
                continue
            lanes: tuple[int, ...] = ()
            if share >= CONGESTED:
                answer = await get(PortVLXmitWaitCounters, port)
                if answer is not None:
                    lanes = tuple(lane for lane, count in enumerate(answer.portVLXmitWait) if count)
            isNear = share >= CONGESTED or isPeerCongested
            marks = await get(PortRcvConCtrl, port) if isNear else None
            self.waits[portKey] = CreditWait(share, lanes, *self._marksOf(portKey, marks))

    def _marksOf(self, portKey: PortKey, answer: Any) -> tuple[float | None, float | None]:
        """Return the shares of packets that were marked since the last reading of the marks."""
        meter = self._meters.get(portKey)
        if answer is None or meter is None:
            self._marks.pop(portKey, None)
            return None, None
        counted = (answer.portPktRcvFECN, answer.portPktRcvBECN, meter.total("portRcvPkts"))
        before = self._marks.get(portKey)
        self._marks[portKey] = counted
        if before is None or counted[2] <= before[2]:
            return None, None
        fecn, becn = (
            max(0.0, min(1.0, (counted[at] - before[at]) / (counted[2] - before[2]))) for at in (0, 1)
        )
        return fecn, becn
