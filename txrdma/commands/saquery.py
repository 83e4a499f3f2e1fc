"""C{txrdma saquery}: queries records of subnet administration (SA) by any component."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from twisted.python import usage

from txrdma.commands.common.attributefields import attributeDict, kindNamed, NamedAttribute, Pair, queried
from txrdma.commands.common.options import columns
from txrdma.commands.common.rows import printJSON, showRows
from txrdma.commands.common.session import confirmed, FabricOptions, opened, Session, TARGETS
from txrdma.commands.common.values import field as nameAndValue
from txrdma.commands.common.values import unsigned
from txrdma.error import InvalidRequest
from txrdma.fabric.nodenames import NodeNames
from txrdma.fabric.tracerecords import traceOf
from txrdma.iba.types import GID, GUID
from txrdma.mad.core.frames import Keys
from txrdma.mad.errors import MADError
from txrdma.mad.layouts import sa
from txrdma.mad.layouts.attributes import lines
from txrdma.mad.layouts.messages import ClassPortInfo
from txrdma.mad.layouts.values import SAStatus

_EXACTLY: Final = "EXACTLY"
_SELECTED: Final = ("mtu", "rate", "packetLifeTime")
"""Components that need a selector (IBA 15.2.5.16)."""

_ABOUT_PATHS: Final = (sa.PathRecord, sa.MultiPathRecord, sa.TraceRecord)
_CAPABILITY_BITS: Final = 1 << 31
"""Attribute modifier that selects ports with at least these capabilities (IBA 15.2.5.3)."""

_NAME: Final = "name"


@dataclass(frozen=True, slots=True)
class RecordKind(NamedAttribute):
    """
    A kind of records that C{txrdma saquery} can query.

    @ivar shorts: components to which C{1/2/3} assigns values.
    @ivar columns: columns of C{--table}; if empty, all components.
    """

    shorts: str = ""
    columns: str = ""


_NODE: Final = "lid nodeType numPorts nodeGUID portGUID nodeString"
_PORT: Final = (
    "endPortLID portNum lid masterSMLID portState portPhysicalState linkWidthActive linkSpeedActive "
    "linkSpeedExtActive neighborMTU"
)
_PATH: Final = "slid dlid sgid dgid pkey serviceLevel mtu rate packetLifeTime reversible"
_SERVICE: Final = "serviceID serviceGID servicePKey serviceLease serviceName"
_MEMBER: Final = "mgid mlid portGID pkey qkey mtu rate serviceLevel joinState"

_NAMED: Final = (
    RecordKind(ClassPortInfo, "CPI"),
    RecordKind(sa.NodeRecord, "NR", "lid", _NODE),
    RecordKind(sa.PortInfoRecord, "PIR", "endPortLID portNum options", _PORT),
    RecordKind(sa.SLtoVLMappingTableRecord, "SL2VLTableRecord SL2VL", "lid inputPortNum outputPortNum"),
    RecordKind(sa.SwitchInfoRecord, "SWIR", "lid"),
    RecordKind(sa.LinearForwardingTableRecord, "LFTRecord LFTR", "lid blockNum"),
    RecordKind(sa.RandomForwardingTableRecord, "RFTRecord RFTR", "lid blockNum"),
    RecordKind(sa.MulticastForwardingTableRecord, "MFTRecord MFTR", "lid position blockNum"),
    RecordKind(sa.SMInfoRecord, "SMIR", "lid"),
    RecordKind(sa.PortInfoExtendedRecord, "PIER", "endPortLID portNum options"),
    RecordKind(sa.LinkSpeedWidthPairsTableRecord, "LSWPR", "lid portNum"),
    RecordKind(sa.LinkRecord, "LR", "fromLID fromPort toLID toPort"),
    RecordKind(sa.GUIDInfoRecord, "GIR", "lid blockNum"),
    RecordKind(sa.ServiceRecord, "SR", "serviceID serviceGID", _SERVICE),
    RecordKind(sa.PKeyTableRecord, "PKTR", "lid portNum blockNum"),
    RecordKind(sa.PathRecord, "PR", "slid dlid", _PATH),
    RecordKind(sa.VLArbitrationTableRecord, "VLAR", "lid outputPortNum blockNum"),
    RecordKind(sa.MCMemberRecord, "MCMR", "mgid portGID", _MEMBER),
    RecordKind(sa.TraceRecord, "TR", "slid dlid"),
    RecordKind(sa.MultiPathRecord, "MPR"),
    RecordKind(sa.ServiceAssociationRecord, "SAR", "serviceKey serviceName"),
    RecordKind(sa.InformInfoRecord, "IIR", "subscriberGID"),
)

KINDS: Final = (
    *_NAMED,
    *(
        RecordKind(each)
        for each in vars(sa).values()
        if isinstance(each, type) and issubclass(each, sa.Record) and each.rpcs
        if each not in [kind.attribute for kind in _NAMED]
    ),
)
"""All kinds of records that can be queried."""


@dataclass(frozen=True, slots=True)
class View:
    """The name of a frequent query, or of several, whose records are printed together."""

    name: str
    record: str
    summary: str
    columns: str
    queries: tuple[tuple[Pair, ...], ...] = ((),)
    modifier: int = 0


VIEWS: Final = (
    View("list", "NR", "hosts' LIDs and names", "lid name", ((("nodeType", "1"),),)),
    View(
        *("sms", "PIR", "ports with a subnet manager, or capable of one", "lid portNum capabilityMask name"),
        *(((("capabilityMask", "0x2"),), (("capabilityMask", "0x400"),)), _CAPABILITY_BITS),
    ),
    View("groups", "MCMR", "multicast groups", "mgid mlid pkey mtu rate serviceLevel scope"),
    View("members", "MCMR", "members of multicast groups; needs the --smkey", "mlid portGID joinState name"),
)


class CommandOptions(FabricOptions):
    """Options of C{txrdma saquery}: records, components, and output."""

    synopsis = "[options] [RECORD [VALUE/VALUE... | COMPONENT=VALUE...]]"
    longdesc = (
        "Query the SA (subnet administration) for records by their components, as NodeRecord nodeType=2 "
        "or PathRecord slid=1 dlid=4; RECORD is one of those listed below, by default NodeRecord. Values "
        "without names set the components listed below, as in PIR 3/1. Paths begin at the local port, "
        "unless components, or --from and --to, each a TARGET, are given. " + TARGETS
    )
    appendix = (
        "Records, their aliases, and the components set by VALUE/VALUE...:",
        "",
        *columns(*((kind.name, kind.aliases, kind.shorts) for kind in KINDS)),
        "",
        "Predefined queries:",
        "",
        *columns(*((view.name, view.summary) for view in VIEWS)),
    )
    optFlags = [
        ["as-said", "a", "For paths: add no source; some SAs then return all paths."],
        ["get", "g", "Query one record (SubnAdmGet) instead of all (SubnAdmGetTable)."],
        ["delete", None, "Delete the record (SubnAdmDelete)."],
        ["set", None, "Create the record (SubnAdmSet), for example to join a multicast group."],
        ["yes", "y", "Do not ask for confirmation before a change."],
        ["table", "T", "Print a table with the main components of each record."],
    ]
    optParameters = [
        ["columns", "c", "", "Columns of --table, as lid,name: components, or name for the node's name."],
        ["modifier", "m", None, "Attribute modifier.", unsigned(32)],
        ["smkey", None, 0, "SM_Key; some SAs return more with the right one.", unsigned(64)],
    ]

    def __init__(self) -> None:
        super().__init__()
        self["from"], self["to"] = [], []

    def opt_from(self, target: str) -> None:
        """Source of paths, a TARGET; repeatable for a MultiPathRecord."""
        self["from"].append(target)

    def opt_to(self, target: str) -> None:
        """Destination of paths, a TARGET; repeatable for a MultiPathRecord."""
        self["to"].append(target)

    def parseArgs(self, record: str = "NR", *values: str) -> None:
        if "=" in record:
            record, values = "NR", (record, *values)
        self["view"] = next((view for view in VIEWS if view.name == record.lower()), None)
        kind = kindNamed(KINDS, record if self["view"] is None else self["view"].record)
        if kind is None:
            known = ", ".join([*(each.name for each in KINDS), *(view.name for view in VIEWS)])
            raise usage.UsageError(f"there is no record {record!r}; there are {known}")
        self["kind"] = kind
        self["components"] = [pair for value in values for pair in _pairs(kind, value)]

    def postOptions(self) -> None:
        view: View | None = self["view"]
        if view is not None:
            self["columns"] = self["columns"] or ",".join(view.columns.split())
        self["table"] = self["table"] or bool(self["columns"])
        record = self["kind"].attribute
        if (self["from"] or self["to"]) and record not in _ABOUT_PATHS:
            raise usage.UsageError(f"--from and --to are for PathRecord, not for {self['kind'].name}")
        if record is sa.MultiPathRecord and not (self["from"] and self["to"]):
            raise usage.UsageError("MultiPathRecord needs --from and --to")
        if record is not sa.MultiPathRecord and max(len(self["from"]), len(self["to"])) > 1:
            raise usage.UsageError("expected one --from and one --to; only MultiPathRecord may have several")


def _pairs(kind: RecordKind, text: str) -> Iterable[Pair]:
    """Return the components of an argument, which is C{NAME=VALUE} or only values."""
    if "=" in text:
        return [nameAndValue(text)]
    values, names = text.split("/"), kind.shorts.split()
    if len(values) > len(names):
        raise usage.UsageError(f"{text!r}: {kind.name} takes {'/'.join(names) or 'COMPONENT=VALUE only'}")
    return [(name, value) for name, value in zip(names, values, strict=False) if value]


async def run(reactor: Any, options: CommandOptions) -> None:
    """Run C{txrdma saquery}: query the SA, print its records."""
    kind: RecordKind = options["kind"]
    columns = options["columns"].split(",") if options["columns"] else kind.columns.split()
    with opened(reactor, options) as session:
        records = await _asked(session)
        isTable = options["table"] and not options["json"]
        isNamed = isTable and _NAME in columns and kind.attribute is not sa.NodeRecord
        owners = await _owners(session) if isNamed and records else Owners(session.names)
    if options["json"]:
        printJSON([_dict(record, owners) for record in records])
    elif options["table"]:
        _show(kind, columns, records, owners)
    else:
        print("\n".join(_text(record, owners) for record in records) or "no records")


def _dict(record: Any, owners: Owners) -> dict[str, Any]:
    name = owners.mapped(record)
    known = {"name": name} if name else {}
    return {"record": type(record).__name__, **known, "fields": attributeDict(record)}


def _text(record: Any, owners: Owners) -> str:
    name = owners.mapped(record)
    return f"# {type(record).__name__}{f' ({name})' if name else ''}\n{record}"


@dataclass(slots=True)
class Owners:
    """
    Names of the nodes to which records belong.

    @ivar byLID: names by LID.
    @ivar byGUID: names by the port's GUID.
    """

    names: NodeNames
    byLID: dict[int, str] = field(default_factory=dict)
    byGUID: dict[GUID, str] = field(default_factory=dict)

    def mapped(self, record: Any) -> str:
        """Return a NodeRecord's name from the node-name map; C{""} for other records and unknown nodes."""
        guid = record.nodeInfo.nodeGUID if isinstance(record, sa.NodeRecord) else None
        return "" if guid is None else self.names.names.get(guid, "")

    def name(self, record: Any) -> str:
        """Return the name of a record's node, or C{""} if it is unknown."""
        if isinstance(record, sa.NodeRecord):
            return self.names.name(record.nodeInfo.nodeGUID, record.nodeDescription.text)
        if isinstance(record, sa.MCMemberRecord):
            return self.byGUID.get(record.portGID.guid, "")
        for name in ("lid", "endPortLID", "fromLID", "dlid"):
            if hasattr(record, name):
                return self.byLID.get(getattr(record, name), "")
        return ""


async def _owners(session: Session) -> Owners:
    """Read the names of all nodes from the SA's NodeRecords."""
    owners = Owners(session.names)
    for record in await session.agent.SubnAdmGetTable(sa.NodeRecord):
        name = owners.name(record)
        owners.byLID[record.lid] = owners.byGUID[record.nodeInfo.portGUID] = name
    return owners


async def _asked(session: Session) -> list[Any]:
    options = session.options
    kind: RecordKind = options["kind"]
    view: View | None = options["view"]
    if not issubclass(kind.attribute, sa.Record):
        return [await session.agent.call("SubnAdmGet", kind.attribute, keys=_keys(options))]
    rpc = _rpc(kind, options)
    records: list[Any] = []
    for pairs in view.queries if view is not None else ((),):
        completed = await _completed(session, kind, [*pairs, *options["components"]])
        if kind.attribute is sa.TraceRecord:  # it is queried by the path to trace
            query = traceOf(queried(sa.PathRecord, completed))
        else:
            query = queried(kind.attribute, completed)
        if kind.attribute is sa.MultiPathRecord:
            query = await _between(session, query)
        records += await _answered(session, rpc, query, 0 if view is None else view.modifier)
    return records


async def _between(session: Session, query: sa.Query[Any]) -> sa.Query[Any]:
    """Add the GIDs of all sources and destinations to a query (MultiPathRecord)."""
    sources = [await _gidOf(session, each) for each in session.options["from"]]
    targets = [await _gidOf(session, each) for each in session.options["to"]]
    asked = sa.MultiPathRecord.between(sources, targets)
    record = query.record.replace(sgidCount=len(sources), dgidCount=len(targets))
    return asked._replace(record=record, mask=asked.mask | query.mask)


async def _gidOf(session: Session, target: str) -> GID:
    """Return the GID of a target's port, from the SA's NodeRecord."""
    try:
        return GID.fromString(target)
    except ValueError:
        pass
    query = sa.NodeRecord.query(lid=(await session.toServices(target)).dlid)
    node = await session.agent.SubnAdmGet(query)
    return GID.fromParts(session.endPort.gids[0].prefix, node.nodeInfo.portGUID)


async def _answered(session: Session, rpc: str, query: sa.Query[Any], modifier: int) -> list[Any]:
    options = session.options
    if options["modifier"] is not None:
        modifier = options["modifier"]
    try:
        answer = await session.agent.call(rpc, query, None, modifier, keys=_keys(options))
    except MADError as error:
        if SAStatus.of(error.status) is SAStatus.NO_RECORDS:
            return []
        raise
    return answer if isinstance(answer, list) else [answer]


def _keys(options: FabricOptions) -> Keys:
    return Keys(mkey=options["mkey"], smKey=options["smkey"])


def _rpc(kind: RecordKind, options: FabricOptions) -> str:
    """Return the name of the call that the options request; raise L{InvalidRequest} if it is not defined."""
    for flag in ("get", "set", "delete"):
        if options[flag]:
            rpc = f"SubnAdm{flag.capitalize()}"
            break
    else:
        tables = ("SubnAdmGetTable", "SubnAdmGetTraceTable", "SubnAdmGetMulti")
        rpc = next(each for each in tables if each in kind.attribute.rpcs)
    if rpc not in kind.attribute.rpcs:
        raise InvalidRequest(
            f"{kind.name} is not for {rpc}, but for {', '.join(sorted(kind.attribute.rpcs))}"
        )
    if rpc in ("SubnAdmSet", "SubnAdmDelete"):
        confirmed(f"{rpc} {kind.name}", options["yes"])
    return rpc


async def _completed(session: Session, kind: RecordKind, pairs: list[Pair]) -> list[Pair]:
    """Add components to a query: the source of a path (IBA 15.2.5.16), and missing selectors."""
    options = session.options
    names = {name.lower() for name, _ in pairs}
    isPath = kind.attribute in (sa.PathRecord, sa.TraceRecord)
    masks, _owned = sa.componentsOf(sa.PathRecord if isPath else kind.attribute)  # type: ignore[arg-type]  # records
    pairs = pairs + [
        (f"{name}Selector", _EXACTLY)
        for name in _SELECTED
        if name.lower() in names and f"{name}Selector".lower() not in names and f"{name}Selector" in masks
    ]
    if not isPath:
        return pairs
    for option, component in (("from", "slid"), ("to", "dlid")):
        for target in options[option]:
            pairs.append((component, str((await session.toServices(target)).dlid)))
    isFrom = options["from"] or names & {"sgid", "slid"} or options["as-said"]
    if not isFrom and session.endPort.gids:
        pairs.append(("sgid", str(session.endPort.gids[0])))
    return pairs


def _show(kind: RecordKind, columns: list[str], records: list[Any], owners: Owners) -> None:
    """Print records as a table; raise L{InvalidRequest} if a column does not exist."""
    rows = [dict(lines(record)) for record in records]
    short = [{name.rpartition(".")[2]: text for name, text in row.items()} | row for row in rows]
    wanted = columns or list(rows[0] if rows else ())
    for record, row in zip(records, short, strict=True):
        row.setdefault(_NAME, owners.name(record))
        missing = [name for name in wanted if name not in row]
        if missing:
            raise InvalidRequest(f"{kind.name} has no component {missing[0]}; there are {', '.join(row)}")
    showRows(wanted, [[row[name] for name in wanted] for row in short])
