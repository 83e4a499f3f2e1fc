"""
State that clients register with the SA of a simulated fabric: multicast groups, services, subscriptions.

Follows InfiniBand Architecture vol. 1, 15.2.5.17 (MCMemberRecord), 15.2.5.14 (ServiceRecord) and 13.4.8.3
(InformInfo).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from txrdma.iba.path import IBPath
from txrdma.iba.types import GID, LID
from txrdma.mad.errors import MADRefusal
from txrdma.mad.layouts.messages import InformInfo, Notice
from txrdma.mad.layouts.sa import (
    componentsOf,
    InformInfoRecord,
    MCMemberRecord,
    Record,
    ServiceAssociationRecord,
    ServiceRecord,
)
from txrdma.mad.layouts.traps import Trap
from txrdma.mad.layouts.values import PathMTU, Rate, SAStatus, Selector

FIRST_MLID: Final = 0xC000
MOST_GROUPS: Final = 1024
FOREVER: Final = 0xFFFFFFFF
FULL_MEMBER: Final = 1
_EVERYTHING: Final = 0xFFFF
_GROUP_FIELDS: Final = (
    *("mgid", "qkey", "mlid", "mtu", "mtuSelector", "trafficClass", "pkey", "rate", "rateSelector"),
    *("packetLifeTime", "packetLifeTimeSelector", "serviceLevel", "flowLabel", "hopLimit", "scope"),
)
_TO_CREATE: Final = ("qkey", "trafficClass", "serviceLevel", "flowLabel", "pkey")
IPOIB_BROADCAST: Final = GID(bytes.fromhex("ff12401bffff000000000000ffffffff"))


def componentNames(kind: type[Record], mask: int) -> set[str]:
    """Return the names of the components in a component mask."""
    masks, _owners = componentsOf(kind)
    return {name for name, bits in masks.items() if mask & bits}


@dataclass(slots=True)
class MulticastGroup:
    """
    A multicast group and its members.

    @ivar record: MCMemberRecord with the components that all members share.
    @ivar members: MCMemberRecords by port GID.
    @ivar isPermanent: whether the group exists without members.
    """

    record: MCMemberRecord
    members: dict[GID, MCMemberRecord] = field(default_factory=dict)
    isPermanent: bool = False


class Groups:
    """Multicast groups of a subnet. IPoIB's broadcast group always exists."""

    def __init__(
        self,
        changed: Callable[[MulticastGroup], None],
        onTrap: Callable[[Trap, GID], None],
        measure: Callable[[GID], tuple[PathMTU, Rate]],
    ) -> None:
        """
        @param changed: called with a group whose members have changed.
        @param onTrap: called with the trap and the MGID when a group is created or deleted.
        @param measure: returns the MTU and the rate of a port GID.
        """
        self._changed = changed
        self._onTrap = onTrap
        self._measure = measure
        self.groups: dict[GID, MulticastGroup] = {}
        broadcast = MCMemberRecord(
            mgid=IPOIB_BROADCAST,
            qkey=0x0B1B,
            mlid=LID(FIRST_MLID),
            mtuSelector=Selector.EXACTLY,
            mtu=PathMTU.MTU_2048,
            pkey=0xFFFF,
            rateSelector=Selector.EXACTLY,
            rate=Rate.GBPS_10,
            packetLifeTimeSelector=Selector.EXACTLY,
            packetLifeTime=18,
            scope=2,
        )
        self.groups[IPOIB_BROADCAST] = MulticastGroup(broadcast, isPermanent=True)

    def records(self, isTrusted: bool) -> Iterator[MCMemberRecord]:
        """Yield the record of each group or, for a trusted request, of each member."""
        for group in self.groups.values():
            if isTrusted and group.members:
                yield from group.members.values()
            else:
                yield group.record

    def join(self, wanted: MCMemberRecord, mask: int) -> MCMemberRecord:
        """
        Add a port to a group, which is created if necessary; return the member's record.

        @raise MADRefusal: the record lacks a component, or contradicts the group.
        """
        given = componentNames(MCMemberRecord, mask)
        if not {"portGID", "joinState"} <= given:
            raise MADRefusal(SAStatus.INSUFFICIENT, "a request to join needs a port and a join state")
        if not wanted.joinState:
            raise MADRefusal(SAStatus.INVALID, "invalid join state")
        known = self.groups.get(wanted.mgid) if "mgid" in given else None
        group = known or self._made(wanted, given)
        for name in _GROUP_FIELDS:
            if name in given and name != "mgid" and not _agrees(name, wanted, group.record):
                raise MADRefusal(SAStatus.INVALID, f"the group's {name} is {getattr(group.record, name)}")
        if known is None:
            self.groups[group.record.mgid] = group
            self._onTrap(Trap.MULTICAST_GROUP_CREATED, group.record.mgid)
        before = group.members.get(wanted.portGID)
        state = wanted.joinState | (before.joinState if before is not None else 0)
        member = group.record.replace(portGID=wanted.portGID, joinState=state, proxyJoin=wanted.proxyJoin)
        group.members[wanted.portGID] = member
        self._changed(group)
        return member

    def _made(self, wanted: MCMemberRecord, given: set[str]) -> MulticastGroup:
        if not set(_TO_CREATE) <= given:
            raise MADRefusal(
                SAStatus.INSUFFICIENT, "there is no such group, and components for its creation are missing"
            )
        if not wanted.joinState & FULL_MEMBER:
            raise MADRefusal(SAStatus.INVALID, "the creator of a group must be a full member")
        taken = {group.record.mlid for group in self.groups.values()}
        free = [mlid for mlid in range(FIRST_MLID, FIRST_MLID + MOST_GROUPS) if mlid not in taken]
        if not free:
            raise MADRefusal(SAStatus.NO_RESOURCES, "there is no multicast LID left")
        mgid = wanted.mgid
        if "mgid" not in given or not any(mgid.raw):
            mgid = GID(bytes.fromhex("ff12a01cfe80") + bytes(8) + free[0].to_bytes(2, "big"))
        elif mgid.raw[0] != 0xFF:
            raise MADRefusal(SAStatus.INVALID, f"{mgid} is not a multicast GID")
        mtu, rate = self._measure(wanted.portGID)
        record = wanted.replace(
            mgid=mgid,
            portGID=GID(bytes(16)),
            mlid=LID(free[0]),
            mtuSelector=Selector.EXACTLY,
            mtu=wanted.mtu if "mtu" in given and wanted.mtu else mtu,
            rateSelector=Selector.EXACTLY,
            rate=wanted.rate if "rate" in given and wanted.rate else rate,
            packetLifeTimeSelector=Selector.EXACTLY,
            packetLifeTime=wanted.packetLifeTime if "packetLifeTime" in given else 18,
            scope=wanted.scope if "scope" in given else mgid.raw[1] & 15,
            joinState=0,
            proxyJoin=False,
        )
        return MulticastGroup(record)

    def leave(self, wanted: MCMemberRecord, mask: int) -> MCMemberRecord:
        """
        Remove some or all join states of a port in a group; return the member's record.

        @raise MADRefusal: the port is not a member with these join states.
        """
        given = componentNames(MCMemberRecord, mask)
        if not {"mgid", "portGID", "joinState"} <= given:
            raise MADRefusal(
                SAStatus.INSUFFICIENT, "a request to leave needs a group, a port and a join state"
            )
        group = self.groups.get(wanted.mgid)
        member = None if group is None else group.members.get(wanted.portGID)
        if group is None or member is None or wanted.joinState & ~member.joinState:
            raise MADRefusal(SAStatus.INVALID, "the port is not such a member of the group")
        left = member.replace(joinState=member.joinState & ~wanted.joinState)
        if left.joinState:
            group.members[wanted.portGID] = left
        else:
            del group.members[wanted.portGID]
        if not any(one.joinState & FULL_MEMBER for one in group.members.values()) and not group.isPermanent:
            group.members.clear()
            del self.groups[wanted.mgid]
            self._onTrap(Trap.MULTICAST_GROUP_DELETED, wanted.mgid)
        self._changed(group)
        return left


def _agrees(name: str, wanted: MCMemberRecord, group: MCMemberRecord) -> bool:
    if name.endswith("Selector") or name in ("hopLimit", "packetLifeTime"):
        return True
    if name in ("mtu", "rate"):
        selector = getattr(wanted, name + "Selector")
        there, given = getattr(group, name), getattr(wanted, name)
        if name == "rate":
            there, given = there.gigabits or 0, given.gigabits or 0
        return bool(
            there > given
            if selector is Selector.GREATER
            else there < given
            if selector is Selector.LESS
            else selector is Selector.LARGEST or there >= given
        )
    if name == "pkey":
        return wanted.pkey & 0x7FFF == group.pkey & 0x7FFF
    return bool(getattr(wanted, name) == getattr(group, name))


class Services:
    """Services registered with the SA, until their leases expire."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._services: dict[tuple[int, GID, int], tuple[ServiceRecord, float]] = {}

    def records(self) -> Iterator[ServiceRecord]:
        """Yield the ServiceRecords with valid leases, each with its remaining seconds."""
        now = self._seconds()
        for key, (record, until) in tuple(self._services.items()):
            if until <= now:
                del self._services[key]
            elif record.serviceLease == FOREVER:
                yield record
            else:
                yield record.replace(serviceLease=int(until - now))

    def associations(self) -> Iterator[ServiceAssociationRecord]:
        """Yield the ServiceAssociationRecord of each service: key and name."""
        for record in self.records():
            yield ServiceAssociationRecord(serviceKey=record.serviceKey, serviceName=record.serviceName)

    def set(self, record: ServiceRecord, mask: int) -> ServiceRecord:
        """Register a service, or renew its lease; refuse a record without service ID or GID."""
        if not {"serviceID", "serviceGID"} <= componentNames(ServiceRecord, mask):
            raise MADRefusal(SAStatus.INVALID, "a service has an ID and a GID")
        lease = record.serviceLease if "serviceLease" in componentNames(ServiceRecord, mask) else FOREVER
        until = float("inf") if lease == FOREVER else self._seconds() + lease
        stored = record.replace(serviceLease=lease)
        self._services[record.serviceID, record.serviceGID, record.servicePKey] = (stored, until)
        return stored

    def delete(self, record: ServiceRecord) -> ServiceRecord:
        """Remove the service with these identifiers (IBA 15.2.5.14); refuse if there is none."""
        stored = self._services.pop((record.serviceID, record.serviceGID, record.servicePKey), None)
        if stored is None:
            raise MADRefusal(SAStatus.NO_RECORDS, "there is no such service")
        return stored[0]


class Subscriptions:
    """Subscriptions to notices, which clients begin and end by InformInfo."""

    def __init__(self) -> None:
        self._subscriptions: dict[tuple[int, bytes], tuple[InformInfo, IBPath, GID]] = {}

    def inform(self, wanted: InformInfo, path: IBPath, gid: GID) -> InformInfo:
        """
        Begin or end a subscription.

        @param path: path to the subscriber.
        @param gid: GID of the subscriber's port.
        @raise MADRefusal: there is no such subscription to end.
        """
        who = path.dqpn if wanted.subscribe else wanted.qpn  # a request to end names the QP (IBA 13.4.8.3)
        about = wanted.replace(subscribe=1, qpn=who, responseTimeValue=0)
        key = (path.dlid, about.encode())
        if not wanted.subscribe:
            if self._subscriptions.pop(key, None) is None:
                raise MADRefusal(SAStatus.INVALID, "there is no such subscription")
        else:
            self._subscriptions[key] = (about, path, gid)
        return wanted

    def records(self) -> Iterator[InformInfoRecord]:
        """Yield the InformInfoRecord of each subscription."""
        for number, (info, _path, gid) in enumerate(self._subscriptions.values()):
            yield InformInfoRecord(subscriberGID=gid, enum=number, informInfo=info)

    def interested(self, notice: Notice) -> Iterator[IBPath]:
        """Yield the paths to the subscribers of a notice."""
        for info, path, _gid in tuple(self._subscriptions.values()):
            if _wants(info, notice):
                yield path


def _wants(info: InformInfo, notice: Notice) -> bool:
    first, last = info.lidRangeBegin, info.lidRangeEnd
    if not any(info.gid.raw) and first != _EVERYTHING and not first <= notice.issuerLID <= max(first, last):
        return False
    return (
        bool(info.isGeneric) == notice.isGeneric
        and info.trapNumber in (_EVERYTHING, notice.trapNumber)
        and info.type in (_EVERYTHING, int(notice.type))
        and info.producerType in (0xFFFFFF, notice.producerType)
    )
