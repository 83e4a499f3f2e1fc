"""Formats a fabric as infiniband-diags' C{ibnetdiscover} does, which is also a net file for ibsim."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

from txrdma.fabric.chassis import Chassis, positionOf
from txrdma.fabric.linkspeeds import activeSpeed, NAMES
from txrdma.fabric.model import Fabric, lidIn, Node, Port, portGUIDIn
from txrdma.fabric.nodenames import NodeNames, quotable
from txrdma.iba.path import IBDRPath
from txrdma.iba.types import GUID
from txrdma.iba.verbs import NodeType
from txrdma.kit.rawfields import peek
from txrdma.mad.layouts.smp import PortInfo
from txrdma.mad.layouts.values import LANES

_WIDTHS: Final = {int(flag): f"{lanes}x" for flag, lanes in LANES.items()}
_MOST_RATES: Final = 4096
"""Maximum number of cached rates; ports of switches often have the same PortInfo."""

_width = peek(PortInfo, "linkWidthActive")
_LETTERS: Final = {NodeType.SWITCH: "S", NodeType.CHANNEL_ADAPTER: "H", NodeType.ROUTER: "R"}
_KINDS: Final = {NodeType.SWITCH: "Switch", NodeType.CHANNEL_ADAPTER: "Ca", NodeType.ROUTER: "Rt"}
_GUIDS: Final = {NodeType.SWITCH: "switchguid", NodeType.CHANNEL_ADAPTER: "caguid", NodeType.ROUTER: "rtguid"}


def rate(port: Port) -> str:
    """Return the width and speed of a port's link, as in infiniband-diags: C{"4xHDR"}."""
    return _rate(port.raw, port.end, port.vendors)


@lru_cache(_MOST_RATES)
def _rate(raw: bytes, end: bytes, vendors: bytes) -> str:
    if not raw:
        return "??"
    speed = activeSpeed(raw, end or raw, vendors)
    return _WIDTHS.get(_width(raw), "??") + NAMES.get(speed, "??")


def listing(fabric: Fabric, names: NodeNames, groups: Sequence[Chassis] = ()) -> Iterator[str]:
    """Yield the lines of the listing, with a section for each node, those in groups first."""
    first = next((node for node in fabric.nodes.values() if node.route == IBDRPath()), None)
    if first is not None:
        yield f"#\n# Initiated from node {first.guid.raw.hex()} port {portGUIDIn(first.raw).hex()}"
    known = {node: _Listed(node, names) for node in fabric.nodes.values()}
    grouped: set[GUID] = set()
    for each in groups:
        yield f"\n# Chassis {each.number} (guid 0x{int(each.guid):x}) {each.kind}".rstrip()
        grouped.update(node.guid for node in each.nodes)
        for node in each.nodes:
            yield "\n".join(_part(node, known, each.number))
    if groups:
        yield "\n# Non-Chassis Nodes"
    for node in fabric.ordered():
        if node.guid not in grouped:
            yield "\n".join(_part(node, known))


class _Listed:
    """The text of a node that the listing repeats for each of its ports and links."""

    __slots__ = ("code", "isSwitch", "lid", "name", "switchEnd", "switchStart")

    def __init__(self, node: Node, names: NodeNames) -> None:
        self.isSwitch = node.isSwitch
        self.code = f'"{_LETTERS.get(node.type, "H")}-{node.guid.raw.hex()}"'
        self.name = quotable(names.name(node.guid, node.description))
        self.lid = node.lid if self.isSwitch else 0
        # the parts of most lines without port numbers and rate
        self.switchStart = f"]\t{self.code}["
        self.switchEnd = f']\t\t# "{self.name}" lid {self.lid} '


def _part(node: Node, known: dict[Node, _Listed], group: int = 0) -> Iterator[str]:
    own = known[node]
    system = int(node.systemImageGUID)
    yield ""
    yield f"vendid=0x{node.vendorID:x}"
    yield f"devid=0x{node.deviceID:x}"
    if system:
        chassis = f"\t\t# Chassis {group}" if group else ""
        yield f"sysimgguid=0x{system:x}{chassis}"
    guid = f"{_GUIDS.get(node.type, 'guid')}=0x{int(node.guid):x}"
    head = f'{_KINDS.get(node.type, "Ca")}\t{node.numPorts} {own.code}\t\t# "{own.name}"'
    if not node.isSwitch:
        yield guid
        yield head
        yield from (_hostLine(port, own, known) for port in node.linked())
        return
    at = positionOf(node) if group else None
    text = "" if at is None else f"\t# {at.kind} {at.board} {at.slot} chip {at.chip}"
    yield f"{guid}({int(node.portGUID(0) or node.guid):x}){text}"
    info = node.switchInfo
    kind = "enhanced" if info is not None and info.enhancedPort0 else "base"
    zero = node.known(0)
    end, lmc = (b"", 0) if zero is None else (zero.raw, zero.lmc)
    yield f"{head} {kind} port 0 lid {own.lid} lmc {lmc}"
    yield from _switchLines(node, end, known)


def _switchLines(node: Node, end: bytes, known: dict[Node, _Listed]) -> Iterator[str]:
    for port in node.linked():
        peer = port.peer
        assert peer is not None  # by linked()
        other = known[peer.node]
        text = _rate(port.raw, end, port.vendors)
        if other.isSwitch:
            yield f"[{port.number}{other.switchStart}{peer.number}{other.switchEnd}{text}"
        else:
            lid = lidIn(peer.raw) if peer.raw else 0
            guid = int.from_bytes(peer.guid.raw, "big")
            yield (
                f"[{port.number}{other.switchStart}{peer.number}]({guid:x}) "
                f'\t\t# "{other.name}" lid {lid} {text}'
            )


def _hostLine(port: Port, own: _Listed, known: dict[Node, _Listed]) -> str:
    peer = port.peer
    assert peer is not None  # by linked()
    other = known[peer.node]
    raw = port.raw
    lid, lmc = (lidIn(raw), port.lmc) if raw else (0, 0)
    text = _rate(raw, raw, port.vendors)
    guid = "" if other.isSwitch else f"({int(peer.guid):x})"
    return (
        f"[{port.number}]({int(port.guid):x}) \t{other.code}[{peer.number}]{guid}\t\t# lid {lid} lmc {lmc} "
        f'"{other.name}" lid {other.lid if other.isSwitch else peer.lid} {text}'
    )
