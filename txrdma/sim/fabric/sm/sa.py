"""
Subnet administration (SA) of a simulated fabric: records, paths, groups, services, reports.

Follows InfiniBand Architecture vol. 1, 15.4. The SA uses an ordinary agent and server at the port of the
master SM, so that answers of several segments are RMPP transfers and notices are sent as reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final

from zope.interface import implementer

from txrdma.iba.path import IBPath
from txrdma.iba.types import GID, GUID
from txrdma.interfaces import IMADHandler
from txrdma.mad.agent import MADAgent
from txrdma.mad.errors import MADRefusal
from txrdma.mad.layouts import sa
from txrdma.mad.layouts.attributes import Attribute, ManagementClass, Method
from txrdma.mad.layouts.messages import (
    ClassPortInfo,
    InformInfo,
    MADRequest,
    MADStatus,
    Notice,
    ReportedNotice,
    SAFormat,
)
from txrdma.mad.layouts.sa import Record
from txrdma.mad.layouts.smp import GUIDInfo
from txrdma.mad.layouts.traps import Trap
from txrdma.mad.layouts.values import PathMTU, Rate, SAStatus
from txrdma.mad.server import MADServer
from txrdma.sim.fabric.model.nodes import guidCap, SimulatedPort
from txrdma.sim.fabric.sm.manager import GID_PREFIX
from txrdma.sim.fabric.sm.sagroups import componentNames, Groups, MulticastGroup, Services, Subscriptions
from txrdma.sim.fabric.sm.sapaths import mtuCap, neighborMTU, Paths, rateOf
from txrdma.sim.fabric.sm.sarecords import Matcher, ONLY_OF_SWITCHES, SARecords
from txrdma.sim.fabric.sm.subnet import Subnet
from txrdma.sim.fabric.wire.traps import gidChanged

MOST_PATHS: Final = 100_000
"""Most PathRecords in one answer."""

SM_KEY: Final = 1
"""SM_Key of trusted requests, whose sender sees the members of multicast groups."""

CAPABILITIES: Final = 0x2700
"""Optional records, multicast, multipath, and match of port records by bits of the capability mask."""

_METHODS: Final = (
    *(Method.GET, Method.SET, Method.GET_TABLE, Method.DELETE, Method.GET_MULTI),
    Method.GET_TRACE_TABLE,
)
_CAPABILITY_BITS: Final = 1 << 31
_BY_LID: Final = ("lid", "endPortLID", "fromLID")


@implementer(IMADHandler)
class SubnetAdministration:
    """
    Subnet administration (SA) of a simulated fabric.

    @ivar asked: number of requests received.
    @ivar paths: makes PathRecords.
    """

    def __init__(self, fabric: Subnet, port: SimulatedPort) -> None:
        """@param port: port of the master SM."""
        self.asked = 0
        self._fabric = fabric
        self._records = SARecords(fabric.sma)
        self.paths = Paths(self._ends, fabric.portOf)
        self.groups = Groups(self._regrouped, self.notice, self._measure)
        self.services = Services(fabric.clock.seconds)
        self.subscriptions = Subscriptions()
        self._agent = MADAgent(fabric.clock, fabric.attachTo(port))
        self._server = MADServer(self._agent)
        self._server.handle(ManagementClass.SUBN_ADM, self, _METHODS)
        self._agent.port.serve(ManagementClass.SUBN_LID, (Method.TRAP,))
        self._server.listen(lambda notice, request: self.report(notice))

    def close(self) -> None:
        """Close the agent of the SA; requests are no longer answered."""
        self._agent.close()

    def report(self, notice: Notice) -> None:
        """Report a notice to its subscribers (IBA 13.4.11)."""
        issuer = self._fabric.portOf(notice.issuerLID)
        gid = GID(bytes(16)) if issuer is None else GID.fromParts(GID_PREFIX, issuer.guid)
        report = ReportedNotice.of(notice, gid)
        for path in self.subscriptions.interested(notice):
            self._agent.SubnAdmReport(report, path).addErrback(lambda failure: None)

    # IMADHandler

    def handle(self, request: MADRequest) -> object:
        self.asked += 1
        frame, wanted, method = request.frame, request.payload, request.header.method
        assert isinstance(frame, SAFormat)
        if isinstance(wanted, ClassPortInfo) and method is Method.GET:
            return ClassPortInfo(
                baseVersion=1, classVersion=2, capabilityMask=CAPABILITIES, responseTimeValue=16
            )
        if isinstance(wanted, InformInfo) and method is Method.SET:
            return self._inform(wanted, request.path.reverse())
        mask = frame.componentMask
        if isinstance(wanted, sa.MultiPathRecord) and method is Method.GET_MULTI:
            return list(self._several(wanted, mask, request.data))
        if isinstance(wanted, sa.TraceRecord) and method is Method.GET_TRACE_TABLE:
            path = sa.PathRecord.decode(request.data.ljust(sa.PathRecord.size, b"\0"))
            return list(self.paths.trace(path, mask))
        if not isinstance(wanted, Record):
            raise MADRefusal(MADStatus.UNSUPPORTED_METHOD_ATTRIBUTE)
        if method is Method.SET or method is Method.DELETE:
            return self._changes(wanted, mask, method)
        if method not in (Method.GET, Method.GET_TABLE):
            raise MADRefusal(MADStatus.UNSUPPORTED_METHOD_ATTRIBUTE)
        isTrusted = frame.smKey == SM_KEY
        found = self._found(wanted, mask, request.header.attributeModifier, isTrusted)
        return _atMost(found) if method is Method.GET_TABLE else _single(found)

    def _found(self, wanted: Record, mask: int, modifier: int, isTrusted: bool) -> Iterator[Attribute]:
        kind = type(wanted)
        if isinstance(wanted, sa.PathRecord):
            yield from self._pathsOf(wanted, mask)
            return
        leaveOut = []
        if isinstance(wanted, sa.PortInfoRecord) and modifier & _CAPABILITY_BITS:
            leaveOut = ["capabilityMask"]
        matcher = Matcher(wanted, mask, leaveOut)
        records = self._recordsOf(kind, isTrusted)
        if records is not None:
            yield from (record for record in records if matcher.matches(record.encode()))
        elif not self._records.knows(kind):
            raise MADRefusal(MADStatus.UNSUPPORTED_METHOD_ATTRIBUTE)
        else:
            adapters = Matcher(wanted, mask, (*leaveOut, *ONLY_OF_SWITCHES.get(kind, ())))
            for raw in self._records.all(kind, self._meant(wanted, mask), matcher, adapters):
                record = kind.decode(raw)
                if not leaveOut or _hasBits(wanted, record):
                    yield record

    def _recordsOf(self, kind: type[Record], isTrusted: bool) -> Iterable[Record] | None:
        """Return the records of a kind that is not made from nodes; None for other kinds."""
        makers: dict[type[Record], Callable[[], Iterable[Record]]] = {
            sa.MCMemberRecord: lambda: self.groups.records(isTrusted),
            sa.ServiceRecord: self.services.records,
            sa.ServiceAssociationRecord: self.services.associations,
            sa.InformInfoRecord: self.subscriptions.records,
        }
        return makers[kind]() if kind in makers else None

    def _meant(self, wanted: Record, mask: int) -> Iterable[SimulatedPort]:
        """Return the end ports whose records can match a query: at most one if it has a LID."""
        given = componentNames(type(wanted), mask)
        for name in _BY_LID:
            if name in given:
                port = self._fabric.portOf(getattr(wanted, name, 0))
                manager = self._fabric.manager
                isManaged = port is not None and manager is not None and manager.ports.get(port.lid) is port
                return (port,) if port is not None and isManaged else ()
        return self._ends()

    def _pathsOf(self, wanted: sa.PathRecord, mask: int) -> Iterator[sa.PathRecord]:
        given = componentNames(sa.PathRecord, mask)
        if not given & {"sgid", "slid", "dgid", "dlid"}:
            raise MADRefusal(SAStatus.INSUFFICIENT, "a path needs two ends")
        yield from self.paths.find(wanted, mask)

    def _several(self, wanted: sa.MultiPathRecord, mask: int, data: bytes) -> Iterator[sa.PathRecord]:
        """Yield the paths between each of several sources and each of several targets (IBA 15.2.5.20)."""
        kind = sa.MultiPathRecord
        gids = [GID(data[at : at + 16]) for at in range(kind.size, len(data) - 15, 16)]
        if not wanted.sgidCount or not wanted.dgidCount or len(gids) < wanted.sgidCount + wanted.dgidCount:
            raise MADRefusal(SAStatus.INSUFFICIENT, "there are fewer GIDs than its count")
        given = componentNames(kind, mask) - {"serviceIDUpper", "serviceIDLower", "independenceSelector"}
        alike = {name: getattr(wanted, name) for name in given if hasattr(sa.PathRecord, name)}
        for source in gids[: wanted.sgidCount]:
            for target in gids[wanted.sgidCount :][: wanted.dgidCount]:
                query = sa.PathRecord.query(sgid=source, dgid=target, **alike)
                yield from self._pathsOf(query.record, query.mask)

    def _changes(self, wanted: Record, mask: int, method: Method) -> Attribute:
        isSet = method is Method.SET
        if isinstance(wanted, sa.MCMemberRecord):
            hasGID = "portGID" in componentNames(type(wanted), mask)
            if isSet and hasGID and self._with(wanted.portGID) is None:
                raise MADRefusal(SAStatus.INVALID_GID, f"no port has the GID {wanted.portGID}")
            return self.groups.join(wanted, mask) if isSet else self.groups.leave(wanted, mask)
        if isinstance(wanted, sa.ServiceRecord):
            return self.services.set(wanted, mask) if isSet else self.services.delete(wanted)
        if isinstance(wanted, sa.GUIDInfoRecord):
            return self._alias(wanted, mask, isSet)
        raise MADRefusal(MADStatus.UNSUPPORTED_METHOD_ATTRIBUTE)

    def _alias(self, wanted: sa.GUIDInfoRecord, mask: int, isSet: bool) -> Attribute:
        """Add alias GUIDs to a port, or remove them (GUIDInfoRecord, IBA 15.2.5.18)."""
        masks, _owners = sa.componentsOf(sa.GUIDInfoRecord)
        port = self._fabric.portOf(wanted.lid)
        if port is None or wanted.blockNum * 8 >= guidCap(port):
            raise MADRefusal(SAStatus.NO_RECORDS, "there is no such block")
        first = masks["guids"] & -masks["guids"]
        if mask & first and wanted.blockNum == 0:
            raise MADRefusal(SAStatus.INVALID, "the first alias GUID is the port's GUID")
        stored = self._fabric.sma.attributeOf(port, GUIDInfo.attributeID, wanted.blockNum)
        before = GUIDInfo.decode(stored).guids
        guids = [
            (new if isSet else _NO_GUID) if mask & first << at else old
            for at, (old, new) in enumerate(zip(before, wanted.guidInfo.guids, strict=True))
        ]
        port.tables = port.tables or {}
        info = GUIDInfo(guids=tuple(guids))
        port.tables[GUIDInfo.attributeID, wanted.blockNum] = info.encode()
        return sa.GUIDInfoRecord(lid=wanted.lid, blockNum=wanted.blockNum, guidInfo=info)

    def _inform(self, wanted: InformInfo, path: IBPath) -> InformInfo:
        port = self._fabric.portOf(path.dlid)
        gid = GID(bytes(16)) if port is None else GID.fromParts(GID_PREFIX, port.guid)
        return self.subscriptions.inform(wanted, path, gid)

    # The fabric.

    def _ends(self) -> Iterable[SimulatedPort]:
        manager = self._fabric.manager
        return () if manager is None else manager.ports.values()

    def _with(self, gid: GID) -> SimulatedPort | None:
        return next((port for port in self._ends() if port.guid.raw == gid.raw[8:]), None)

    def _measure(self, gid: GID) -> tuple[PathMTU, Rate]:
        """Return MTU and rate of a port, the defaults for a multicast group that it creates."""
        port = self._with(gid)
        if port is None:
            return PathMTU.MTU_2048, Rate.GBPS_10
        return PathMTU(neighborMTU(port.info) or mtuCap(port.info)), rateOf(port)

    def _regrouped(self, group: MulticastGroup) -> None:
        """Update the multicast forwarding tables for a group: a tree of switches between its members."""
        manager = self._fabric.manager
        assert manager is not None
        guids = {gid.raw[8:] for gid in group.members}
        members = [port for port in self._ends() if port.guid.raw in guids]
        manager.lay(group.record.mlid, members)

    def notice(self, trap: Trap, gid: GID) -> None:
        """Report an added or removed port or group, by its GID: traps 64 to 67 (IBA 14.4.9)."""
        manager = self._fabric.manager
        assert manager is not None
        self.report(gidChanged(trap, manager.lid, gid))


_NO_GUID: Final = GUID(bytes(8))


def _hasBits(wanted: Any, record: Any) -> bool:
    """Return whether a port has all capabilities of a query."""
    bits: int = wanted.portInfo.capabilityMask
    return bool(bits & record.portInfo.capabilityMask == bits)


def _atMost(found: Iterator[Attribute]) -> list[Attribute]:
    records = list(islice(found, MOST_PATHS + 1))
    if len(records) > MOST_PATHS:
        raise MADRefusal(SAStatus.NO_RESOURCES, f"there are more than {MOST_PATHS} paths")
    return records


def _single(found: Iterator[Attribute]) -> Attribute:
    record = next(found, None)
    if record is None:
        raise MADRefusal(SAStatus.NO_RECORDS)
    if not isinstance(record, sa.PathRecord) and next(found, None) is not None:
        raise MADRefusal(SAStatus.TOO_MANY)
    return record
