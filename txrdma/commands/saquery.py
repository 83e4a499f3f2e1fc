"""
C{txrdma saquery}: the records of the subnet's administration.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from twisted.python import usage

from txrdma.commands.attributefields import attributeDict, Pair, queried
from txrdma.commands.fabrics import confirmed, count, FabricOptions, field, opened, Session, tellJSON
from txrdma.commands.tables import makeTable, show
from txrdma.error import InvalidRequest
from txrdma.mad import sa
from txrdma.mad._frames import Keys
from txrdma.mad.attributes import Attribute, lines
from txrdma.mad.errors import MADError
from txrdma.mad.messages import ClassPortInfo

_NO_RECORDS: Final = 3


@dataclass(frozen=True, slots=True)
class Kind:
    """
    Records that can be asked for.

    @ivar names: what they go by, the one of the specification first; case does not matter.
    @ivar shorts: the components that C{1/2/3} gives values to.
    @ivar columns: of C{--table}; all that there are when it is empty.
    """

    record: type[Attribute]
    names: tuple[str, ...]
    shorts: str = ""
    columns: str = ""


_NODE: Final = "lid nodeType numPorts nodeGUID portGUID nodeString"
_PORT: Final = (
    "endPortLID portNum lid masterSMLID portState portPhysicalState linkWidthActive linkSpeedActive "
    "linkSpeedExtActive neighborMTU"
)
_PATH: Final = "slid dlid sgid dgid pkey serviceLevel mtu rate packetLifeTime reversible"
_MEMBER: Final = "mgid mlid portGID pkey qkey mtu rate serviceLevel joinState"

KINDS: Final = (
    Kind(ClassPortInfo, ("ClassPortInfo", "CPI")),
    Kind(sa.NodeRecord, ("NodeRecord", "NR"), "lid", _NODE),
    Kind(sa.PortInfoRecord, ("PortInfoRecord", "PIR"), "endPortLID portNum options", _PORT),
    Kind(
        *(sa.SLtoVLMappingTableRecord, ("SLtoVLMappingTableRecord", "SL2VLTableRecord", "SL2VL")),
        "lid inputPortNum outputPortNum",
    ),
    Kind(sa.SwitchInfoRecord, ("SwitchInfoRecord", "SWIR"), "lid"),
    Kind(
        *(sa.LinearForwardingTableRecord, ("LinearForwardingTableRecord", "LFTRecord", "LFTR")),
        "lid blockNum",
    ),
    Kind(
        *(sa.RandomForwardingTableRecord, ("RandomForwardingTableRecord", "RFTRecord", "RFTR")),
        "lid blockNum",
    ),
    Kind(
        *(sa.MulticastForwardingTableRecord, ("MulticastForwardingTableRecord", "MFTRecord", "MFTR")),
        "lid position blockNum",
    ),
    Kind(sa.SMInfoRecord, ("SMInfoRecord", "SMIR"), "lid"),
    Kind(sa.LinkRecord, ("LinkRecord", "LR"), "fromLID fromPort toLID toPort"),
    Kind(sa.GUIDInfoRecord, ("GUIDInfoRecord", "GIR"), "lid blockNum"),
    Kind(
        *(sa.ServiceRecord, ("ServiceRecord", "SR"), "serviceID serviceGID"),
        "serviceID serviceGID servicePKey serviceLease serviceName",
    ),
    Kind(sa.PKeyTableRecord, ("PKeyTableRecord", "PKTR"), "lid portNum blockNum"),
    Kind(sa.PathRecord, ("PathRecord", "PR"), "slid dlid", _PATH),
    Kind(
        *(sa.VLArbitrationTableRecord, ("VLArbitrationTableRecord", "VLAR")),
        "lid outputPortNum blockNum",
    ),
    Kind(sa.MCMemberRecord, ("MCMemberRecord", "MCMR"), "mgid portGID", _MEMBER),
    Kind(sa.TraceRecord, ("TraceRecord", "TR")),
    Kind(sa.MultiPathRecord, ("MultiPathRecord", "MPR")),
    Kind(sa.ServiceAssociationRecord, ("ServiceAssociationRecord", "SAR"), "serviceKey serviceName"),
    Kind(sa.InformInfoRecord, ("InformInfoRecord", "IIR"), "subscriberGID"),
)


def kindNamed(name: str) -> Kind | None:
    """What goes by that name."""
    for kind in KINDS:
        if name.lower() in (known.lower() for known in kind.names):
            return kind
    return None


class CommandOptions(FabricOptions):
    """Which records."""

    synopsis = "[options] [RECORD [VALUE/VALUE... | COMPONENT=VALUE...]]"
    longdesc = (
        "Ask the subnet's administration for all records that have certain components, as NodeRecord "
        "nodeType=2 or PathRecord slid=1 dlid=4. RECORD is one of "
        + ", ".join("/".join(kind.names) for kind in KINDS)
        + "; NodeRecord unless said. Values alone are those of the first components, as in PIR 3/1: "
        + "; ".join(f"{kind.names[-1]} {kind.shorts.replace(' ', '/')}" for kind in KINDS if kind.shorts)
        + "."
    )
    optFlags = [
        ["get", "g", "Ask for the one record (SubnAdmGet), not for all (SubnAdmGetTable)."],
        ["delete", None, "Delete the record (SubnAdmDelete)."],
        ["set", None, "Make the record (SubnAdmSet), as joining a multicast group does."],
        ["yes", "y", "Don't ask before something is changed."],
        ["table", "T", "A row for each record, with its most important components."],
    ]
    optParameters = [
        ["columns", "c", "", "Components of --table, with commas between."],
        ["smkey", None, 0, "SM_Key: some tell more to who knows it.", count],
    ]

    def parseArgs(self, record: str = "NR", *values: str) -> None:
        if "=" in record:
            record, values = "NR", (record, *values)
        kind = kindNamed(record)
        if kind is None:
            known = ", ".join(each.names[0] for each in KINDS)
            raise usage.UsageError(f"there is no record {record!r}; there are {known}")
        self["kind"] = kind
        self["components"] = [pair for value in values for pair in _pairs(kind, value)]

    def postOptions(self) -> None:
        self["table"] = self["table"] or bool(self["columns"])


def _pairs(kind: Kind, text: str) -> Iterable[Pair]:
    """C{NAME=VALUE}, or values alone."""
    if "=" in text:
        return [field(text)]
    values, names = text.split("/"), kind.shorts.split()
    if len(values) > len(names):
        raise usage.UsageError(f"{text!r}: {kind.names[0]} takes {'/'.join(names) or 'COMPONENT=VALUE only'}")
    return [(name, value) for name, value in zip(names, values, strict=False) if value]


async def carryOut(reactor: Any, options: CommandOptions) -> None:
    """C{txrdma saquery}."""
    with opened(reactor, options) as session:
        records = await _asked(session)
    if options["json"]:
        tellJSON([{"record": type(record).__name__, "fields": attributeDict(record)} for record in records])
    elif options["table"]:
        _show(options["kind"], options["columns"], records)
    else:
        print("\n".join(f"# {type(record).__name__}\n{record}" for record in records) or "no records")


async def _asked(session: Session) -> list[Any]:
    options = session.options
    kind: Kind = options["kind"]
    keys = Keys(mkey=options["mkey"], smKey=options["smkey"])
    call = session.agent.call
    if not issubclass(kind.record, sa.Record):
        return [await call("SubnAdmGet", kind.record, session.administration, keys=keys)]
    query = queried(kind.record, _completed(session, kind, options["components"]))
    rpc = _rpc(kind, options)
    try:
        answer = await call(rpc, query, session.administration, keys=keys)
    except MADError as error:
        if error.status >> 8 & 0x7F == _NO_RECORDS:
            return []
        raise
    return answer if isinstance(answer, list) else [answer]


def _rpc(kind: Kind, options: FabricOptions) -> str:
    """
    Which call.

    @raise InvalidRequest: these records don't have it.
    """
    for flag in ("get", "set", "delete"):
        if options[flag]:
            rpc = f"SubnAdm{flag.capitalize()}"
            break
    else:
        tables = ("SubnAdmGetTable", "SubnAdmGetTraceTable", "SubnAdmGetMulti")
        rpc = next(each for each in tables if each in kind.record.rpcs)
    if rpc not in kind.record.rpcs:
        raise InvalidRequest(
            f"{kind.names[0]} is not for {rpc}, but for {', '.join(sorted(kind.record.rpcs))}"
        )
    if rpc in ("SubnAdmSet", "SubnAdmDelete"):
        confirmed(f"{rpc} {kind.names[0]}", options["yes"])
    return rpc


def _completed(session: Session, kind: Kind, pairs: list[Pair]) -> list[Pair]:
    """Paths are asked for from somewhere (IBA 15.2.5.16): from here, unless said."""
    names = {name.lower() for name, _ in pairs}
    if kind.record is not sa.PathRecord or names & {"sgid", "slid"} or not session.endPort.gids:
        return pairs
    return [*pairs, ("sgid", str(session.endPort.gids[0]))]


def _show(kind: Kind, columns: str, records: list[Any]) -> None:
    """
    As a table.

    @raise InvalidRequest: there is no such column.
    """
    from rich.text import Text

    rows = [dict(lines(record)) for record in records]
    short = [{name.rpartition(".")[2]: text for name, text in row.items()} | row for row in rows]
    wanted = columns.split(",") if columns else kind.columns.split() or list(rows[0] if rows else ())
    table = makeTable(*wanted)
    for row in short:
        missing = [name for name in wanted if name not in row]
        if missing:
            raise InvalidRequest(f"{kind.names[0]} has no component {missing[0]}; there are {', '.join(row)}")
        table.add_row(*(Text(row[name]) for name in wanted))
    show(table)
