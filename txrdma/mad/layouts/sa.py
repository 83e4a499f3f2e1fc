"""
Records of subnet administration (SA), and queries for them.

Follows InfiniBand Architecture vol. 1, 15.2.5. The component mask of a query selects fields: each has a bit,
in their order, and so has each field of the subnet management attribute that a record contains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, cast, ClassVar, Generic, TypeVar

from typing_extensions import NamedTuple, ParamSpec, Self, Unpack

from txrdma.iba.types import GID, LID
from txrdma.kit.wire import array, bits, data, Layout, nested
from txrdma.mad.layouts import components, smp
from txrdma.mad.layouts.attributes import Attribute, attribute, key
from txrdma.mad.layouts.components import PathQualityComponents
from txrdma.mad.layouts.messages import InformInfo
from txrdma.mad.layouts.values import PathMTU, Rate, Selector, text

R = TypeVar("R", bound="Record")
P = ParamSpec("P")


class Query(NamedTuple, Generic[R]):
    """
    Query for the records that have the values of C{record} in the components of C{mask}.

    @ivar more: bytes that follow the record.
    """

    record: R
    mask: int
    more: bytes = b""


class Queries(Generic[P]):
    """
    The method C{query} of a kind of record, with the types of its components for type checkers.

    It takes values by name, and returns a L{Query} for the records that have them. Components of an inner
    attribute (C{NodeInfo} within C{NodeRecord}) have the names that it gives them. It raises
    C{TypeError} for an unknown component.
    """

    def __init__(self, components: Callable[P, object]) -> None:
        """@param components: a C{TypedDict}: names and types of the method's arguments."""
        self.components = components

    def __get__(self, record: object, kind: type[R]) -> Callable[P, Query[R]]:
        return cast("Callable[P, Query[R]]", partial(_queryFor, kind))


class Record(Attribute):
    """
    A record of subnet administration (SA).

    @cvar unqueried: fields without bits in the component mask.
    @cvar componentBits: number of bits of fields with an unusual number.
    """

    __slots__ = ()

    unqueried: ClassVar[Sequence[str]] = ("table",)
    componentBits: ClassVar[Mapping[str, int]] = MappingProxyType({})

    query: ClassVar[Queries[...]] = Queries(dict)
    """Make a query for the records with these components: see L{Queries}."""


class _PlainRecord(Record):
    """A record whose components are its fields, other than reserved ones and tables."""

    __slots__ = ()

    @classmethod
    def query(cls: Callable[P, R], /, *args: P.args, **values: P.kwargs) -> Query[R]:
        """Make a query for the records with these components: see L{Queries}."""
        return _queryFor(cast("type[R]", cls), *args, **values)


def _queryFor(kind: type[R], /, **values: Any) -> Query[R]:
    masks, owners = componentsOf(kind)
    mask = 0
    outer: dict[str, Any] = {}
    inner: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        if name not in masks:
            raise TypeError(f"{kind.__name__} has no component {name}: there are {', '.join(masks)}")
        mask |= masks[name]
        owner = owners[name]
        if owner is None:
            outer[name] = value
        else:
            inner.setdefault(owner, {})[name] = value
    types = {field.name: field.type for field in kind.fields}
    return Query(kind(**outer, **{name: types[name](**parts) for name, parts in inner.items()}), mask)


_Components = tuple[dict[str, int], dict[str, str | None]]
_components: dict[type[Record], _Components] = {}


def componentsOf(record: type[Record]) -> _Components:
    """Bits of each component in the mask, and the inner attribute that contains it, if any."""
    if record not in _components:
        _components[record] = _componentsOf(record)
    return _components[record]


def _componentsOf(record: type[Record]) -> _Components:
    masks: dict[str, int] = {}
    owners: dict[str, str | None] = {}
    bit = 0

    def add(layout: type[Layout], owner: str | None) -> None:
        nonlocal bit
        for field in layout.fields:
            name = field.name
            if name in record.unqueried:
                continue
            if isinstance(field.type, type) and issubclass(field.type, Layout) and field.count is None:
                add(field.type, name)
                continue
            # a reserved field has a bit, too, or several
            number = field.count or record.componentBits.get(name, 1)
            if not field.reserved:
                masks[name] = ((1 << number) - 1) << bit
                owners[name] = owner
            bit += number

    add(record, None)
    return masks, owners


@attribute(0x0011, "SubnAdmGet", "SubnAdmGetTable", size=108)
class NodeRecord(Record):
    """A node, by one of its ports (IBA 15.2.5.2)."""

    query = Queries(components.NodeComponents)
    lid: LID = bits(16)
    reserved: int = bits(16)
    nodeInfo: smp.NodeInfo = nested()
    nodeDescription: smp.NodeDescription = nested()


@attribute(0x0012, "SubnAdmGet", "SubnAdmGetTable", size=68)
class PortInfoRecord(Record):
    """A port (IBA 15.2.5.3). The highest bit of C{options} requests the extended speeds."""

    unqueried = ("linkSpeedExtActive2", "linkSpeedExtSupported2", "linkSpeedExtEnabled2")
    query = Queries(components.PortInfoComponents)
    endPortLID: LID = bits(16)
    portNum: int = bits(8)
    options: int = key(8)
    portInfo: smp.PortInfo = nested()


@attribute(0x0013, "SubnAdmGet", "SubnAdmGetTable", size=16)
class SLtoVLMappingTableRecord(_PlainRecord):
    """Virtual lanes of a port by service level (IBA 15.2.5.4)."""

    lid: LID = bits(16)
    inputPortNum: int = bits(8)
    outputPortNum: int = bits(8)
    reserved: int = bits(32)
    table: smp.SLtoVLMappingTable = nested()


@attribute(0x0014, "SubnAdmGet", "SubnAdmGetTable", size=24)
class SwitchInfoRecord(Record):
    """SwitchInfo of a switch (IBA 15.2.5.5)."""

    unqueried = ("multicastFDBTop",)
    query = Queries(components.SwitchInfoComponents)
    lid: LID = bits(16)
    reserved: int = bits(16)
    switchInfo: smp.SwitchInfo = nested()


@attribute(0x0015, "SubnAdmGet", "SubnAdmGetTable", size=72)
class LinearForwardingTableRecord(_PlainRecord):
    """64 entries of a switch's table (IBA 15.2.5.6)."""

    lid: LID = bits(16)
    blockNum: int = bits(16)
    reserved: int = bits(32)
    table: smp.LinearForwardingTable = nested()


@attribute(0x0016, "SubnAdmGet", "SubnAdmGetTable", size=72)
class RandomForwardingTableRecord(_PlainRecord):
    """16 entries of a switch's table (IBA 15.2.5.7)."""

    lid: LID = bits(16)
    blockNum: int = bits(16)
    reserved: int = bits(32)
    table: smp.RandomForwardingTable = nested()


@attribute(0x0017, "SubnAdmGet", "SubnAdmGetTable", size=72)
class MulticastForwardingTableRecord(_PlainRecord):
    """32 multicast LIDs of a switch's table, for 16 ports (IBA 15.2.5.8)."""

    lid: LID = bits(16)
    position: int = bits(4)
    reserved: int = bits(3)
    blockNum: int = bits(9)
    reserved2: int = bits(32)
    table: smp.MulticastForwardingTable = nested()


@attribute(0x0018, "SubnAdmGet", "SubnAdmGetTable", size=25)
class SMInfoRecord(Record):
    """SMInfo of a subnet manager (IBA 15.2.5.10)."""

    query = Queries(components.SMInfoComponents)
    lid: LID = bits(16)
    reserved: int = bits(16)
    smInfo: smp.SMInfo = nested()


@attribute(0x0019, "SubnAdmGet", "SubnAdmGetTable", size=40)
class LinkSpeedWidthPairsTableRecord(_PlainRecord):
    """Link widths that a port can have at each speed (IBA 15.2.5.21)."""

    lid: LID = bits(16)
    portNum: int = bits(8)
    reserved: int = bits(8)
    table: smp.LinkSpeedWidthPairsTable = nested()


@attribute(0x0020, "SubnAdmGet", "SubnAdmGetTable", size=6)
class LinkRecord(_PlainRecord):
    """A link, in one direction (IBA 15.2.5.13)."""

    fromLID: LID = bits(16)
    fromPort: int = bits(8)
    toPort: int = bits(8)
    toLID: LID = bits(16)


@attribute(0x0030, "SubnAdmGet", "SubnAdmGetTable", "SubnAdmSet", "SubnAdmDelete", size=72)
class GUIDInfoRecord(Record):
    """Block of eight GUIDs of a port (IBA 15.2.5.18)."""

    query = Queries(components.GUIDInfoComponents)
    lid: LID = bits(16)
    blockNum: int = bits(8)
    reserved: int = bits(8)
    reserved2: int = bits(32)
    guidInfo: smp.GUIDInfo = nested()


@attribute(0x0031, "SubnAdmGet", "SubnAdmGetTable", "SubnAdmSet", "SubnAdmDelete", size=176)
class ServiceRecord(_PlainRecord):
    """A registered service (IBA 15.2.5.14). C{serviceLease} is in seconds."""

    serviceID: int = key(64)
    serviceGID: GID = data(16)
    servicePKey: int = key(16)
    reserved: int = bits(16)
    serviceLease: int = bits(32)
    serviceKey: bytes = data(16)
    serviceName: bytes = data(64, shown=text)
    data8: tuple[int, ...] = array(16, bits(8))
    data16: tuple[int, ...] = array(8, bits(16))
    data32: tuple[int, ...] = array(4, bits(32))
    data64: tuple[int, ...] = array(2, bits(64))


@attribute(0x0033, "SubnAdmGet", "SubnAdmGetTable", size=72)
class PKeyTableRecord(_PlainRecord):
    """Block of 32 P_Keys of a port (IBA 15.2.5.11)."""

    lid: LID = bits(16)
    blockNum: int = bits(16)
    portNum: int = bits(8)
    reserved: int = bits(24)
    table: smp.PKeyTable = nested()


@attribute(0x0035, "SubnAdmGet", "SubnAdmGetTable", size=64)
class PathRecord(_PlainRecord):
    """
    A path between two ports (IBA 15.2.5.16).

    @ivar packetLifeTime: encoded time.
    @ivar reversePathPKeyMember: membership bit of the P_Key on the way back.
    """

    componentBits = MappingProxyType({"serviceID": 2})
    serviceID: int = key(64)
    dgid: GID = data(16)
    sgid: GID = data(16)
    dlid: LID = bits(16)
    slid: LID = bits(16)
    rawTraffic: bool = bits(1)
    reserved: int = bits(3)
    flowLabel: int = bits(20)
    hopLimit: int = bits(8)
    trafficClass: int = bits(8)
    reversible: bool = bits(1)
    numbPath: int = bits(7)
    pkey: int = key(16)
    qosClass: int = bits(12)
    serviceLevel: int = bits(4)
    mtuSelector: Selector = bits(2)
    mtu: PathMTU = bits(6)
    rateSelector: Selector = bits(2)
    rate: Rate = bits(6)
    packetLifeTimeSelector: Selector = bits(2)
    packetLifeTime: int = bits(6)
    preference: int = bits(8)
    reversePathPKeyMember: int = bits(2)
    reserved2: int = bits(46)


@attribute(0x0036, "SubnAdmGet", "SubnAdmGetTable", size=72)
class VLArbitrationTableRecord(_PlainRecord):
    """Half of a port's arbitration table (IBA 15.2.5.9)."""

    lid: LID = bits(16)
    outputPortNum: int = bits(8)
    blockNum: int = bits(8)
    reserved: int = bits(32)
    table: smp.VLArbitrationTable = nested()


@attribute(0x0038, "SubnAdmGet", "SubnAdmGetTable", "SubnAdmSet", "SubnAdmDelete", size=52)
class MCMemberRecord(_PlainRecord):
    """
    A member of a multicast group (IBA 15.2.5.17).

    @ivar joinState: bit 0 full member, bit 1 non-member, bit 2 send-only.
    """

    mgid: GID = data(16)
    portGID: GID = data(16)
    qkey: int = key(32)
    mlid: LID = key(16)
    mtuSelector: Selector = bits(2)
    mtu: PathMTU = bits(6)
    trafficClass: int = bits(8)
    pkey: int = key(16)
    rateSelector: Selector = bits(2)
    rate: Rate = bits(6)
    packetLifeTimeSelector: Selector = bits(2)
    packetLifeTime: int = bits(6)
    serviceLevel: int = bits(4)
    flowLabel: int = bits(20)
    hopLimit: int = bits(8)
    scope: int = bits(4)
    joinState: int = bits(4)
    proxyJoin: bool = bits(1)
    reserved: int = bits(23)


@attribute(0x0039, "SubnAdmGetTraceTable", size=46)
class TraceRecord(_PlainRecord):
    """A hop of a path (IBA 15.2.5.19)."""

    gidPrefix: int = key(64)
    idGeneration: int = bits(16)
    reserved: int = bits(8)
    nodeType: int = bits(8)
    nodeID: int = key(64)
    chassisID: int = key(64)
    entryPortID: int = key(64)
    exitPortID: int = key(64)
    entryPort: int = bits(8)
    exitPort: int = bits(8)


@attribute(0x003A, "SubnAdmGetMulti", size=24)
class MultiPathRecord(_PlainRecord):
    """
    Query for paths between several ports (IBA 15.2.5.20).

    C{sgidCount} source GIDs and then C{dgidCount} destination GIDs follow it: L{between} adds them. The
    two parts of the service ID are its upper 8 and its lower 56 bits.
    """

    rawTraffic: bool = bits(1)
    reserved: int = bits(3)
    flowLabel: int = bits(20)
    hopLimit: int = bits(8)
    trafficClass: int = bits(8)
    reversible: bool = bits(1)
    numbPath: int = bits(7)
    pkey: int = key(16)
    qosClass: int = bits(12)
    serviceLevel: int = bits(4)
    mtuSelector: Selector = bits(2)
    mtu: PathMTU = bits(6)
    rateSelector: Selector = bits(2)
    rate: Rate = bits(6)
    packetLifeTimeSelector: Selector = bits(2)
    packetLifeTime: int = bits(6)
    serviceIDUpper: int = key(8)
    independenceSelector: int = bits(2)
    reserved2: int = bits(6)
    sgidCount: int = bits(8)
    dgidCount: int = bits(8)
    serviceIDLower: int = key(56)

    @classmethod
    def between(
        cls, sources: Sequence[GID], destinations: Sequence[GID], **values: Unpack[PathQualityComponents]
    ) -> Query[Self]:
        """
        Make a query for paths from each source to each destination, with these components.

        @raise TypeError: there is no such component.
        """
        query = _queryFor(cls, sgidCount=len(sources), dgidCount=len(destinations), **values)
        return query._replace(more=b"".join(gid.raw for gid in (*sources, *destinations)))


@attribute(0x003E, "SubnAdmGet", "SubnAdmGetTable", size=68)
class PortInfoExtendedRecord(_PlainRecord):
    """A port's forward error correction (IBA 15.2.5.24)."""

    unqueried = ("portInfoExtended",)
    endPortLID: LID = bits(16)
    portNum: int = bits(8)
    options: int = key(8)
    portInfoExtended: smp.PortInfoExtended = nested()


@attribute(0x003B, "SubnAdmGet", "SubnAdmGetTable", size=80)
class ServiceAssociationRecord(_PlainRecord):
    """Name of the service that a service key belongs to (IBA 15.2.5.15)."""

    serviceKey: bytes = data(16)
    serviceName: bytes = data(64, shown=text)


@attribute(0x00F3, "SubnAdmGet", "SubnAdmGetTable", size=60)
class InformInfoRecord(Record):
    """Subscription to notices, with its subscriber's GID (IBA 15.2.5.12). In a table it has 80 bytes."""

    query = Queries(components.InformInfoComponents)
    subscriberGID: GID = data(16)
    enum: int = bits(16)
    reserved: bytes = data(6)
    informInfo: InformInfo = nested()
