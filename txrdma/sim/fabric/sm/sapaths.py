"""
Paths through a simulated fabric, as PathRecords of its SA.

Follows InfiniBand Architecture vol. 1, 15.2.5.16 (PathRecord).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final

from txrdma.iba.types import GID, LID
from txrdma.iba.verbs import NodeType
from txrdma.kit.rawfields import peek
from txrdma.mad.layouts.sa import componentsOf, PathRecord, TraceRecord
from txrdma.mad.layouts.smp import GUIDInfo, PortInfo
from txrdma.mad.layouts.values import LANES, LinkWidth, PathMTU, Rate, Selector
from txrdma.sim.fabric.model.forwarding import exits
from txrdma.sim.fabric.model.nodes import laneGigabits, SimulatedNode, SimulatedPort, SUBNET_TIMEOUT
from txrdma.sim.fabric.model.pkeys import keysOf, sharesPartition
from txrdma.sim.fabric.sm.manager import GID_PREFIX

_MOST_HOPS: Final = 255
"""HopLimit of a path that leaves the subnet."""

_RATES: Final = {rate.gigabits: rate for rate in Rate}
_GIGABITS: Final = [gigabits for gigabits in _RATES if gigabits is not None]
neighborMTU, mtuCap = peek(PortInfo, "neighborMTU"), peek(PortInfo, "mtuCap")
_width, _speed = peek(PortInfo, "linkWidthActive"), peek(PortInfo, "linkSpeedActive")
_extended = peek(PortInfo, "linkSpeedExtActive")
_MTUS: Final = range(PathMTU.MTU_256, PathMTU.MTU_4096 + 1)


def rateOf(port: SimulatedPort) -> Rate:
    """Return the rate of a port's link, by its width and speed (IBA 15.2.5.16, table 207)."""
    wanted = LANES.get(LinkWidth(_width(port.info)), 1) * laneGigabits(port)
    known = [gigabits for gigabits in _RATES if gigabits is not None and gigabits <= wanted * 1.001]
    return _RATES[max(known)] if known else Rate.GBPS_2_5


class Paths:
    """
    Makes the PathRecords and TraceRecords of a simulated subnet.

    @ivar levelOf: returns the service level of the path from a port to a LID.
    """

    def __init__(
        self, ends: Callable[[], Iterable[SimulatedPort]], portOf: Callable[[int], SimulatedPort | None]
    ) -> None:
        """
        @param ends: returns all end ports with a LID.
        @param portOf: returns the port of a LID.
        """
        self._ends = ends
        self._portOf = portOf
        self._byGUID: dict[bytes, SimulatedPort] = {}
        self._rates: dict[tuple[int, int, int], Rate] = {}
        self.levelOf: Callable[[SimulatedPort, int], int] = lambda source, dlid: 0

    def find(self, wanted: PathRecord, mask: int) -> Iterator[PathRecord]:
        """Yield the PathRecords that match a query; none for a GID that no port has."""
        masks, _ = componentsOf(PathRecord)
        given = {name for name, bits in masks.items() if mask & bits}
        sources = self._named(
            wanted.sgid if "sgid" in given else None, wanted.slid if "slid" in given else None
        )
        if "dgid" in given and isOfAnother(wanted.dgid):
            targets = self._routers(wanted.dlid if "dlid" in given else None)
        else:
            targets = self._named(
                wanted.dgid if "dgid" in given else None, wanted.dlid if "dlid" in given else None
            )
        most = wanted.numbPath if "numbPath" in given and wanted.numbPath else 127
        for source in sources:
            for target in targets:
                yield from islice(self._between(source, target, wanted, given), most)

    def trace(self, wanted: PathRecord, mask: int) -> Iterator[TraceRecord]:
        """Yield TraceRecords of all nodes on the first path that matches a query (IBA 15.2.5.19)."""
        path = next(self.find(wanted, mask), None)
        port = None if path is None else self._portOf(path.slid)
        if path is None or port is None:
            return
        entry: SimulatedPort | None = None
        for out in exits(port, path.dlid):
            yield _hopOf(out.node, entry, out)
            entry = out.neighbor
        yield _hopOf((entry or port).node, entry, None)

    def _routers(self, lid: int | None) -> list[SimulatedPort]:
        """Return the port of the first router, for other subnets; none if another port has the LID."""
        routers = (port for port in self._ends() if port.node.kind is NodeType.ROUTER)
        return [port for port in islice(routers, 1) if lid is None or self._portOf(lid) is port]

    def _named(self, gid: GID | None, lid: int | None) -> list[SimulatedPort]:
        if gid is None and lid is None:
            return list(self._ends())
        if gid is not None:
            port = self._withGID(gid)
            return [port] if port is not None and (lid is None or self._portOf(lid) is port) else []
        assert lid is not None
        port = self._portOf(lid)
        return [] if port is None else [port]

    def _withGID(self, gid: GID) -> SimulatedPort | None:
        if gid.raw[:8] != GID_PREFIX.to_bytes(8, "big"):
            return None
        guid = gid.raw[8:]
        known = self._byGUID.get(guid)
        if known is None or guid not in _guidsOf(known) or self._portOf(known.lid) is not known:
            self._byGUID = {}
            for port in self._ends():
                for raw in _guidsOf(port):
                    self._byGUID.setdefault(raw, port)
            known = self._byGUID.get(guid)
        return known

    def _between(
        self, source: SimulatedPort, target: SimulatedPort, wanted: PathRecord, given: set[str]
    ) -> Iterator[PathRecord]:
        """Yield the paths between two ports that match a query, one to each LID of the target."""
        pkey = self._pkey(source, target, wanted.pkey if "pkey" in given else None)
        if pkey is None:
            return
        isElsewhere = "dgid" in given and isOfAnother(wanted.dgid)
        # One path to each LID of the target, from different LIDs of the source if none is given.
        for offset in range(1 << target.lmc):
            dlid = target.lid + offset
            slid = wanted.slid if "slid" in given else LID(source.lid + offset % (1 << source.lmc))
            if "dlid" in given and dlid != wanted.dlid:
                continue
            found = self._measured(source, dlid)
            if found is None:
                continue
            limited = _limited(wanted, given, *found)
            if limited is None:
                continue
            mtu, rate = limited
            yield PathRecord(
                dgid=wanted.dgid if isElsewhere else GID.fromParts(GID_PREFIX, target.guid),
                sgid=GID.fromParts(GID_PREFIX, source.guid),
                dlid=LID(dlid),
                slid=slid,
                hopLimit=_MOST_HOPS if isElsewhere else 0,
                reversible=True,
                serviceLevel=wanted.serviceLevel if "serviceLevel" in given else self.levelOf(source, dlid),
                pkey=pkey,
                mtuSelector=Selector.EXACTLY,
                mtu=PathMTU(mtu),
                rateSelector=Selector.EXACTLY,
                rate=rate,
                packetLifeTimeSelector=Selector.EXACTLY,
                packetLifeTime=0 if source is target else SUBNET_TIMEOUT,
            )

    @staticmethod
    def _pkey(source: SimulatedPort, target: SimulatedPort, wanted: int | None) -> int | None:
        """Return the P_Key of a partition of both ports, one of them a full member; None if there is none."""
        targetKeys = keysOf(target)
        for key in keysOf(source):
            if (wanted is None or (wanted ^ key) & 0x7FFF == 0) and any(
                sharesPartition(key, other) for other in targetKeys
            ):
                return key if wanted is None else wanted
        return None

    def _measured(self, source: SimulatedPort, dlid: int) -> tuple[int, Rate] | None:
        """Return the lowest MTU and rate on the path to a LID; None if the tables do not lead there."""
        mtu = neighborMTU(source.info) if source.number else mtuCap(source.info)
        limits, end = [_byGigabits(self._rate(source))], source
        for port in exits(source, dlid):
            if port.neighbor is None:
                return None
            mtu = min(mtu, neighborMTU(port.info))
            limits.append(_byGigabits(self._rate(port)))
            end = port.neighbor
        if not end.end.owns(dlid):
            return None
        if end.node.isSwitch:
            mtu = min(mtu, mtuCap(end.end.info))
            limits.append(_byGigabits(self._rate(end.end)))
        return mtu, min(limits)[1]

    def _rate(self, port: SimulatedPort) -> Rate:
        key = (_width(port.info), _speed(port.info), _extended(port.info))
        known = self._rates.get(key)
        if known is None:
            known = self._rates[key] = rateOf(port)
        return known


def _guidsOf(port: SimulatedPort) -> Iterator[bytes]:
    """Yield the GUID of a port and its alias GUIDs."""
    yield port.guid.raw
    for (attribute, _block), content in (port.tables or {}).items():
        if attribute == GUIDInfo.attributeID:
            yield from (guid for at in range(0, 64, 8) if any(guid := content[at : at + 8]))


def _hopOf(node: SimulatedNode, entry: SimulatedPort | None, out: SimulatedPort | None) -> TraceRecord:
    """Return the TraceRecord of a node; the entry or exit port is 0 where the path begins or ends."""
    return TraceRecord(
        gidPrefix=GID_PREFIX,
        nodeType=node.kind,
        nodeID=int(node.guid),
        entryPortID=0 if entry is None else int(entry.guid),
        exitPortID=0 if out is None else int(out.guid),
        entryPort=0 if entry is None else entry.number,
        exitPort=0 if out is None else out.number,
    )


def _byGigabits(rate: Rate) -> tuple[float, Rate]:
    return rate.gigabits or 0.0, rate


def isOfAnother(gid: GID) -> bool:
    """Return whether a GID is that of a port in another subnet (IBA 4.1.1)."""
    first = gid.raw[0]
    return first not in (0, 0xFF) and (first != 0xFE or gid.raw[1] & 0xC0 != 0x80)


def _limited(wanted: PathRecord, given: set[str], mtu: int, rate: Rate) -> tuple[int, Rate] | None:
    """Return MTU and rate of a path within the limits of a query; None if these cannot be met."""
    use: float | None
    if "mtu" in given:
        use = used(wanted.mtuSelector, mtu, wanted.mtu, _MTUS)
        if use is None:
            return None
        mtu = int(use)
    if "rate" in given:
        there = rate.gigabits or 0
        use = used(wanted.rateSelector, there, wanted.rate.gigabits or 0, _GIGABITS)
        if use is None or use != there and wanted.rateSelector is Selector.EXACTLY:
            return None
        rate = _RATES[use]
    lives = wanted.packetLifeTime
    if "packetLifeTime" in given and not _suits(wanted.packetLifeTimeSelector, SUBNET_TIMEOUT, lives):
        return None
    return mtu, rate


def used(selector: Selector, there: float, wanted: float, steps: Iterable[float]) -> float | None:
    """
    Return the MTU or rate to use within a query's limit; None if the limit cannot be met.

    @param there: the value of the path, which is not exceeded.
    @param steps: all valid values.
    """
    if selector is Selector.LARGEST:
        return there
    if selector is Selector.GREATER:
        return there if there > wanted else None
    if selector is Selector.EXACTLY:
        return wanted if there >= wanted else None
    below = max((step for step in steps if step < wanted), default=None)
    return None if below is None else min(there, below)


def _suits(selector: Selector, there: int, wanted: int) -> bool:
    """Return whether a time is within a query's limit."""
    if selector is Selector.GREATER:
        return there > wanted
    if selector is Selector.LESS:
        return there < wanted
    return selector is Selector.LARGEST or there == wanted
