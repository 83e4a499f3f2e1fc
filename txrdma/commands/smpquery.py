"""C{txrdma smpquery}: subnet management attributes of nodes and ports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from twisted.python import usage

from txrdma.commands.common.attributefields import attributeDict, kindNamed, NamedAttribute
from txrdma.commands.common.options import columns
from txrdma.commands.common.rows import printJSON
from txrdma.commands.common.session import FabricOptions, opened, Session, TARGETS, where
from txrdma.commands.common.values import count, unsigned
from txrdma.fabric.routing import FIRST_MULTICAST, NO_PORT, ports, positions
from txrdma.iba.path import IBPath
from txrdma.iba.types import GID
from txrdma.iba.verbs import NodeType
from txrdma.mad.errors import MADError
from txrdma.mad.layouts import adaptive, smp
from txrdma.mad.layouts.attributes import Attribute
from txrdma.mad.layouts.messages import Notice
from txrdma.mad.layouts.smp import NodeDescription, NodeInfo, PortInfo, SwitchInfo

Answers = list[tuple[int, Any]]
"""Pairs of an attribute modifier and the attribute in the answer."""

_ADDRESS: Final = ("address", "addr")
_EXTENDED_SPEEDS: Final = 1 << 31


@dataclass(frozen=True, slots=True)
class AttributeKind(NamedAttribute):
    """
    An attribute that C{txrdma smpquery} can query.

    @ivar modifiers: returns the attribute modifiers of a port, if none is given; None: only 0.
    @ivar table: formats all answers as one table; None: each answer is printed separately.
    """

    modifiers: Callable[[Session, IBPath, int], Any] | None = None
    table: Callable[[Answers], Iterator[str]] | None = None


# Attribute modifiers.


async def _pkeyBlocks(session: Session, path: IBPath, port: int) -> list[int]:
    info = await session.rpcs.SubnGet(NodeInfo, path)
    capacity = info.partitionCap
    isSwitch = info.nodeType is NodeType.SWITCH
    if isSwitch and port:
        capacity = (await session.rpcs.SubnGet(SwitchInfo, path)).partitionEnforcementCap
    ofSwitch = port if isSwitch else 0
    return [smp.PKeyTable.modifier(block, ofSwitch) for block in range(-(-capacity // 32))]


async def _guidBlocks(session: Session, path: IBPath, port: int) -> list[int]:
    capacity = (await session.rpcs.SubnGet(PortInfo, path, port)).guidCap
    return list(range(-(-capacity // 8)))


async def _lanePorts(session: Session, path: IBPath, port: int) -> list[int]:
    info = await session.rpcs.SubnGet(NodeInfo, path)
    if info.nodeType is not NodeType.SWITCH:
        return [0]
    return [smp.SLtoVLMappingTable.modifier(source, port) for source in range(info.numPorts + 1)]


async def _arbitrationBlocks(session: Session, path: IBPath, port: int) -> list[int]:
    info = await session.rpcs.SubnGet(PortInfo, path, port)
    low, high = info.vlArbitrationLowCap, info.vlArbitrationHighCap
    blocks = [1] * bool(low) + [2] * (low > 32) + [3] * bool(high) + [4] * (high > 32)
    return [smp.VLArbitrationTable.modifier(port, block) for block in blocks]


async def _linearBlocks(session: Session, path: IBPath, port: int) -> list[int]:
    info = await session.rpcs.SubnGet(SwitchInfo, path)
    return list(range(info.linearFDBTop // 64 + 1)) if info.linearFDBCap else []


async def _randomBlocks(session: Session, path: IBPath, port: int) -> list[int]:
    capacity = (await session.rpcs.SubnGet(SwitchInfo, path)).randomFDBCap
    return list(range(-(-capacity // 16)))


async def _multicastBlocks(session: Session, path: IBPath, port: int) -> list[int]:
    node = await session.rpcs.SubnGet(NodeInfo, path)
    info = await session.rpcs.SubnGet(SwitchInfo, path)
    capacity, top = info.multicastFDBCap, info.multicastFDBTop
    if FIRST_MULTICAST <= top < FIRST_MULTICAST + capacity:
        capacity = top - FIRST_MULTICAST + 1
    every = range(positions(node.numPorts))
    return [position << 28 | block for block in range(-(-capacity // 32)) for position in every]


async def _port(session: Session, path: IBPath, port: int) -> list[int]:
    return [port]


async def _infoPort(session: Session, path: IBPath, port: int) -> list[int]:
    return [port | _EXTENDED_SPEEDS if session.options["extended"] else port]


# Tables.


def _pkeyLines(answers: Answers) -> Iterator[str]:
    for modifier, answer in answers:
        for first in range(0, 32, 8):
            text = " ".join(f"{pkey:#06x}" for pkey in answer.pkeys[first : first + 8])
            yield f"{(modifier & 0xFFFF) * 32 + first:4}: {text}"


def _guidLines(answers: Answers) -> Iterator[str]:
    for modifier, answer in answers:
        for first in range(0, 8, 2):
            text = " ".join(f"0x{guid.raw.hex()}" for guid in answer.guids[first : first + 2])
            yield f"{modifier * 8 + first:4}: {text}"


def _laneLines(answers: Answers) -> Iterator[str]:
    yield f"#{'SL: |':>22}" + "|".join(f"{number:2}" for number in range(16)) + "|"
    for modifier, answer in answers:
        text = "|".join(f"{vl:2}" for vl in answer.vls)
        yield f"ports: in {modifier >> 8:2}, out {modifier & 0xFF:2}: |{text}|"


def _arbitrationLines(answers: Answers) -> Iterator[str]:
    weighty = (at for _, answer in answers for at, entry in enumerate(answer.entries) if entry.weight)
    used = max(weighty, default=0) + 1  # by at least one table
    for modifier, answer in answers:
        block = modifier >> 16
        yield f"# {'low' if block <= 2 else 'high'} priority, entries {32 * (1 - block % 2)} and on"
        yield "VL    : |" + "|".join(f"{entry.vl:#4x}" for entry in answer.entries[:used]) + "|"
        yield "WEIGHT: |" + "|".join(f"{entry.weight:#4x}" for entry in answer.entries[:used]) + "|"


def _linearLines(answers: Answers) -> Iterator[str]:
    yield "LID     port"
    for modifier, answer in answers:
        for index, port in enumerate(answer.ports):
            if port != NO_PORT:
                yield f"{modifier * 64 + index:<#8x}{port:03}"


def _randomLines(answers: Answers) -> Iterator[str]:
    yield "LID     LMC  port"
    for _, answer in answers:
        for entry in answer.entries:
            if entry.valid:
                yield f"{entry.lid:<#8x}{entry.lmc:<5}{entry.port:03}"


def _multicastLines(answers: Answers) -> Iterator[str]:
    groups: dict[int, list[int]] = {}
    for modifier, answer in answers:
        position, block = modifier >> 28, modifier & 0x1FF
        for index, mask in enumerate(answer.portMasks):
            if mask:
                groups.setdefault(FIRST_MULTICAST + block * 32 + index, []).extend(ports(mask, position))
    yield "MLID    ports"
    for mlid, found in sorted(groups.items()):
        yield f"{mlid:<#8x}{','.join(map(str, found))}"


_NAMED: Final = (
    AttributeKind(NodeInfo, "NI"),
    AttributeKind(NodeDescription, "NodeDesc ND"),
    AttributeKind(PortInfo, "PI", _infoPort),
    AttributeKind(smp.PortInfoExtended, "PIE", _port),
    AttributeKind(SwitchInfo, "SI"),
    AttributeKind(smp.PKeyTable, "PKeys PK", _pkeyBlocks, _pkeyLines),
    AttributeKind(smp.SLtoVLMappingTable, "SLtoVL SL2VLTable SL2VL", _lanePorts, _laneLines),
    AttributeKind(smp.VLArbitrationTable, "VLArbitration VLArb", _arbitrationBlocks, _arbitrationLines),
    AttributeKind(smp.GUIDInfo, "GI", _guidBlocks, _guidLines),
    AttributeKind(smp.LinearForwardingTable, "LFT", _linearBlocks, _linearLines),
    AttributeKind(smp.RandomForwardingTable, "RFT", _randomBlocks, _randomLines),
    AttributeKind(smp.MulticastForwardingTable, "MFT", _multicastBlocks, _multicastLines),
    AttributeKind(smp.LinkSpeedWidthPairsTable, "LSWP", _port),
    AttributeKind(smp.SMInfo, "SMI"),
    AttributeKind(smp.VendorDiag, "VD"),
    AttributeKind(smp.LedInfo, "LED"),
    AttributeKind(smp.ExtendedPortInfo, "MlnxExtPortInfo MEPI", _port),
)

KINDS: Final = (
    *_NAMED,
    *(
        AttributeKind(each, modifiers=_port)
        for each in (*vars(smp).values(), *vars(adaptive).values())
        if isinstance(each, type) and issubclass(each, Attribute) and "SubnGet" in each.rpcs
        if each is not Notice and each not in [kind.attribute for kind in _NAMED]
    ),
)
"""All attributes that can be queried."""


class CommandOptions(FabricOptions):
    """Options of C{txrdma smpquery}: the attribute, the node and the port."""

    synopsis = "[options] ATTRIBUTE [TARGET [PORT]]"
    longdesc = (
        "Read an attribute of a node or a port by subnet management; ATTRIBUTE is one of those listed "
        "below, Address for the GID and the LIDs of the port, or the node's name. Tables are read "
        "completely, unless --modifier selects a block. " + TARGETS
    )
    appendix = (
        "Attributes and their aliases:",
        "",
        *columns(*((kind.name, kind.aliases) for kind in KINDS), ("Address", "Addr")),
    )
    optFlags = [["extended", "x", "PortInfo: set bit 31 of the modifier, for extended speeds."]]
    optParameters = [
        ["modifier", "m", None, "Attribute modifier. [default: chosen by attribute]", unsigned(32)]
    ]

    def parseArgs(self, attribute: str = "", target: str = "", port: str = "0") -> None:
        kind = None if attribute.lower() in _ADDRESS else kindNamed(KINDS, attribute)
        if kind is None and attribute.lower() not in _ADDRESS:
            known = ", ".join([kind.name for kind in KINDS] + ["Address"])
            wrong = f"there is no attribute {attribute!r}" if attribute else "expected ATTRIBUTE"
            raise usage.UsageError(f"{wrong}; there are {known}")
        self["kind"], self["target"] = kind, target
        try:
            self["port"] = count(port)
        except ValueError as error:
            raise usage.UsageError(f"port {port}: {error}") from error
        if self["port"] > 255:
            raise usage.UsageError(f"port {port}: there are 255 at most")


async def run(reactor: Any, options: CommandOptions) -> None:
    """Run C{txrdma smpquery}: get the attribute, or all blocks of a table, and print it."""
    kind: AttributeKind | None = options["kind"]
    if kind is None:
        await _address(reactor, options)
        return
    with opened(reactor, options) as session:
        path = await session.toManagement(options["target"])
        name = await session.nameAt(path)
        try:
            answers = [
                (modifier, await session.rpcs.SubnGet(kind.attribute, path, modifier))
                for modifier in await _modifiers(session, kind, path)
            ]
        except MADError as error:
            await session.checkPorts(path, [options["port"]], error)
            raise
    if options["json"]:
        shown = [{"modifier": modifier, "fields": attributeDict(answer)} for modifier, answer in answers]
        known = {"name": name} if name else {}
        printJSON({"attribute": kind.name, "path": where(path), **known, "answers": shown})
        return
    port = f" port {options['port']}" if kind.modifiers is not None else ""
    print(f"# {kind.name}: {where(path)}{port}{f' ({name})' if name else ''}")
    if kind.table is not None and options["modifier"] is None:
        print("\n".join(kind.table(answers)))
    else:
        print("\n".join(str(answer) for _, answer in answers))


async def _address(reactor: Any, options: CommandOptions) -> None:
    """Print a port's GID and LIDs, and the name of its node."""
    with opened(reactor, options) as session:
        path = await session.toManagement(options["target"])
        node = await session.rpcs.SubnGet(NodeInfo, path)
        description = (await session.rpcs.SubnGet(NodeDescription, path)).text
        number = 0 if node.nodeType is NodeType.SWITCH else node.localPortNum
        info = await session.rpcs.SubnGet(PortInfo, path, number)
        name = session.names.name(node.nodeGUID, description)
    gid = GID.fromParts(info.gidPrefix, node.portGUID)
    last = info.lid + (1 << info.lmc) - 1
    if options["json"]:
        guid = {"nodeGUID": str(node.nodeGUID), "portGUID": str(node.portGUID)}
        printJSON({"gid": str(gid), "lid": info.lid, "lastLID": last, **guid, "name": name})
        return
    print(f"GID {gid} LID start {info.lid:#x} end {last:#x} {name!r}")


async def _modifiers(session: Session, kind: AttributeKind, path: IBPath) -> list[int]:
    if session.options["modifier"] is not None:
        return [session.options["modifier"]]
    if kind.modifiers is None:
        return [0]
    wanted: list[int] = await kind.modifiers(session, path, session.options["port"])
    return wanted
