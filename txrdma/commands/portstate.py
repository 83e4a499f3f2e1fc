"""
C{txrdma portstate}: the state of a port, to see and to change.

Follows InfiniBand Architecture vol. 1, 14.2.5.6 (PortInfo), and 7.2.7 (the states of a link).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from twisted.python import usage

from txrdma.commands.attributefields import assigned, attributeDict, forSetting
from txrdma.commands.fabrics import confirmed, FabricOptions, opened, Session, TARGETS, tellJSON, where
from txrdma.error import InvalidRequest, RDMAError
from txrdma.iba.path import IBDRPath, IBPath
from txrdma.iba.verbs import NodeType, PhysicalState
from txrdma.mad.smp import NodeInfo, PortInfo
from txrdma.mad.values import LinkSpeed, LinkSpeedExtended, LinkWidth

_SHOWN: Final = (
    "portState portPhysicalState lid masterSMLID lmc linkWidthSupported linkWidthEnabled linkWidthActive "
    "linkSpeedSupported linkSpeedEnabled linkSpeedActive linkSpeedExtSupported linkSpeedExtEnabled "
    "linkSpeedExtActive neighborMTU mkeyLeasePeriod mkeyProtectBits"
).split()

_STATES: Final[dict[str, dict[str, str]]] = {
    "enable": {"portPhysicalState": "POLLING"},
    "disable": {"portPhysicalState": "DISABLED"},
    "down": {"portState": "DOWN"},
    "arm": {"portState": "ARMED"},
    "active": {"portState": "ACTIVE"},
}


class _Mask(NamedTuple):
    """A field that says what a port may use: what it is called, what it can, and the names of its bits."""

    enabled: str
    supported: str
    names: dict[str, int]
    everything: int


_MASKS: Final = {
    "speed": _Mask(
        *("linkSpeedEnabled", "linkSpeedSupported"),
        *({flag.name.lower(): flag.value for flag in LinkSpeed if flag.name}, 15),
    ),
    "espeed": _Mask(
        *("linkSpeedExtEnabled", "linkSpeedExtSupported"),
        *({flag.name.lower(): flag.value for flag in LinkSpeedExtended if flag.name} | {"none": 30}, 31),
    ),
    "width": _Mask(
        *("linkWidthEnabled", "linkWidthSupported"),
        *({f"{flag.name[1:]}x": flag.value for flag in LinkWidth if flag.name}, 255),
    ),
}

OPERATIONS: Final = ("query", *_STATES, "reset", *_MASKS)


class CommandOptions(FabricOptions):
    """Which port, and what to do with it."""

    synopsis = "[options] TARGET PORT [query|OPERATION [VALUE]]"
    longdesc = (
        "Show the state of a port, and what is at the other end of its link; or change it. OPERATION is "
        "enable, disable, reset (disabled, then enabled again), down, arm, active; speed VALUE "
        "(SDR,DDR,QDR), espeed VALUE (FDR,EDR,HDR,NDR or none), width VALUE (1x,2x,4x,8x,12x): "
        "what the port may use from its next training on; VALUE all is what it can. " + TARGETS
    )
    optFlags = [["yes", "y", "Don't ask before the port is changed."]]

    def parseArgs(self, *arguments: str) -> None:
        if len(arguments) < 2:
            raise usage.UsageError("say TARGET and PORT, as 9 1")
        target, port, *rest = arguments
        operation, *values = rest or ["query"]
        operation = operation.lower()
        if operation not in OPERATIONS:
            raise usage.UsageError(f"there is no operation {operation!r}; there are {', '.join(OPERATIONS)}")
        if len(values) != (operation in _MASKS):
            raise usage.UsageError(f"{operation} takes {'a value' if operation in _MASKS else 'no value'}")
        if not port.isdecimal() or int(port) > 254:
            raise usage.UsageError(f"{port!r} is no port")
        self.update(target=target, port=int(port), operation=operation, value="".join(values))


async def carryOut(reactor: Any, options: CommandOptions) -> None:
    """C{txrdma portstate}."""
    port, operation = options["port"], options["operation"]
    with opened(reactor, options) as session:
        path = await session.toManagement(options["target"])
        node = await session.rpcs.SubnGet(NodeInfo, path)
        if port > node.numPorts:
            raise InvalidRequest(f"{where(path)} has {node.numPorts} ports, and no port {port}")
        info = await session.rpcs.SubnGet(PortInfo, path, port)
        peer = None
        if operation == "query":
            peer = await _peer(session, path, port, node, info)
        else:
            fields = _fields(operation, options["value"], info)
            confirmed(f"{operation} port {port} of {where(path)} {options['value']}".strip(), options["yes"])
            info = await _set(session, path, port, info, fields)
            if operation == "reset":
                info = await _set(session, path, port, info, _STATES["enable"])
    if options["json"]:
        tellJSON(
            {
                "path": where(path),
                "port": port,
                "nodeType": node.nodeType.name,
                "portInfo": attributeDict(info),
                "peer": None if peer is None else attributeDict(peer),
                "warnings": _warnings(info, peer),
            }
        )
        return
    print(f"{node.nodeType.name} PortInfo: {where(path)} port {port}")
    _show(info)
    if peer is not None:
        print(f"Peer PortInfo: port {peer.localPortNum}")
        _show(peer)
    for warning in _warnings(info, peer):
        print(warning)


def _show(info: PortInfo) -> None:
    lines = {line.partition(":")[0]: line for line in str(info).splitlines()}
    print("\n".join(lines[name] for name in _SHOWN))


def _fields(operation: str, value: str, info: PortInfo) -> dict[str, str]:
    """
    What to set.

    @raise InvalidRequest: the port cannot do that.
    """
    if operation == "reset":
        return _STATES["disable"]
    if operation in _STATES:
        return _STATES[operation]
    mask = _MASKS[operation]
    wanted = _wanted(mask, value)
    can = getattr(info, mask.supported)
    if wanted != mask.everything and wanted & ~can and not (operation == "espeed" and wanted == 30):
        raise InvalidRequest(f"{operation} {value}: the port can {mask.supported} {can} only")
    return {mask.enabled: str(wanted)}


def _wanted(mask: _Mask, value: str) -> int:
    if value.lower() == "all":
        return mask.everything
    wanted = 0
    for part in value.lower().split(","):
        if part in mask.names:
            wanted |= mask.names[part]
        elif part.isdecimal():
            wanted |= int(part)
        else:
            raise InvalidRequest(f"{value}: there are {', '.join(mask.names)}, and all")
    return wanted


async def _set(session: Session, path: IBPath, port: int, info: PortInfo, fields: dict[str, str]) -> PortInfo:
    """Change some fields; what the port then tells."""
    wanted = assigned(PortInfo, fields.items(), forSetting(info))
    await session.agent.SubnSet(wanted, path, port)
    told = await session.agent.SubnGet(PortInfo, path, port)
    assert isinstance(told, PortInfo)
    return told


async def _peer(session: Session, path: IBPath, port: int, node: NodeInfo, info: PortInfo) -> PortInfo | None:
    """What is at the other end of a switch's link; None when nobody answers there."""
    if (
        node.nodeType is not NodeType.SWITCH
        or not port
        or info.portPhysicalState is not PhysicalState.LINK_UP
    ):
        return None
    way = _beyond(session, path, port)
    try:
        there = await session.agent.SubnGet(NodeInfo, way)
        told: PortInfo = await session.agent.SubnGet(PortInfo, way, there.localPortNum)
    except RDMAError:
        return None
    return told


def _beyond(session: Session, path: IBPath, port: int) -> IBDRPath:
    """One hop more; by a LID first, where the path is one (IBA 14.2.2)."""
    if isinstance(path, IBDRPath):
        return path.then(port)
    return IBDRPath(slid=session.endPort.lid, dlid=path.dlid, drSLID=session.endPort.lid, drPath=(port,))


def _warnings(info: PortInfo, peer: PortInfo | None) -> list[str]:
    """Where a link is slower than both its ends can."""
    if peer is None:
        return []
    found = []
    for what, active, enabled in (
        ("width", "linkWidthActive", "linkWidthEnabled"),
        ("speed", "linkSpeedActive", "linkSpeedEnabled"),
        ("extended speed", "linkSpeedExtActive", "linkSpeedExtEnabled"),
    ):
        both = getattr(info, enabled) & getattr(peer, enabled)
        best = max((bit for bit in _RANKS.get(what, _BITS) if both & bit), key=_rank(what), default=0)
        if best and _rank(what)(getattr(info, active)) < _rank(what)(best):
            found.append(f"the link's {what} is below what both ends have enabled")
    return found


_BITS: Final = (1, 2, 4, 8)
_RANKS: Final = {"width": (1, 16, 2, 4, 8)}


def _rank(what: str) -> Any:
    order = _RANKS.get(what, _BITS)
    return lambda bit: order.index(bit) if bit in order else -1
