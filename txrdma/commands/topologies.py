"""
A fabric as text: for people, for Graphviz, for Slurm, and for JSON.

L{listing} has the form of infiniband-diags' C{ibnetdiscover}, which is a net file of ibsim, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Any, Final, TYPE_CHECKING

from txrdma.commands.nodenames import NodeNames
from txrdma.iba.verbs import NodeType
from txrdma.mad.fabric import Fabric, Node, Port
from txrdma.mad.values import EXTENDED_GIGABITS, GIGABITS, LANES

if TYPE_CHECKING:
    from txrdma.sim.netfile import NetNode

_WIDTHS: Final = {int(flag): f"{lanes}x" for flag, lanes in LANES.items()}
_SPEEDS: Final = {int(flag): str(flag.name) for flag in GIGABITS}
_EXTENDED: Final = {int(flag): str(flag.name) for flag in EXTENDED_GIGABITS}
_LID: Final = Struct(">16xH")
_LETTERS: Final = {NodeType.SWITCH: "S", NodeType.CHANNEL_ADAPTER: "H", NodeType.ROUTER: "R"}
_KINDS: Final = {NodeType.SWITCH: "Switch", NodeType.CHANNEL_ADAPTER: "Ca", NodeType.ROUTER: "Rt"}
_GUIDS: Final = {NodeType.SWITCH: "switchguid", NodeType.CHANNEL_ADAPTER: "caguid", NodeType.ROUTER: "rtguid"}
_ORDER: Final = (NodeType.SWITCH, NodeType.CHANNEL_ADAPTER, NodeType.ROUTER)


def rate(port: Port) -> str:
    """What the link carries, as infiniband-diags has it: C{"4xHDR"}."""
    raw = port.raw
    return _rate(raw[31], raw[35] >> 4, raw[62] >> 4) if raw else "??"


def speed(port: Port) -> str:
    """What a lane carries: C{"HDR"}; C{""} where nobody knows."""
    raw = port.raw
    if not raw:
        return ""
    return _EXTENDED.get(raw[62] >> 4, "") or _SPEEDS.get(raw[35] >> 4, "")


def _rate(width: int, speed: int, extended: int) -> str:
    said = _EXTENDED.get(extended, "??") if extended else _SPEEDS.get(speed, "??")
    return _WIDTHS.get(width, "??") + said


def ordered(fabric: Fabric) -> list[Node]:
    """Switches, then channel adapters, then routers; each kind by GUID."""
    nodes = sorted(fabric.nodes.values(), key=lambda node: node.guid.raw)
    found: list[Node] = []
    for kind in _ORDER:
        found += (node for node in nodes if node.type is kind)
    return found + [node for node in nodes if node.type not in _ORDER]


def linked(node: Node) -> Iterator[Port]:
    """Its ports that have a link, by number."""
    ports = node.ports
    return (ports[number] for number in sorted(ports) if ports[number].peer is not None)


# As ibnetdiscover.


def listing(fabric: Fabric, names: NodeNames) -> Iterator[str]:
    """A part for each node."""
    first = next(iter(fabric.nodes.values()), None)
    if first is not None:
        guid = first.portGUIDs.get(first.info.localPortNum) or first.info.portGUID
        yield f"#\n# Initiated from node {first.guid.raw.hex()} port {guid.raw.hex()}"
    known = {id(node): _Listed(node, names) for node in fabric.nodes.values()}
    for node in ordered(fabric):
        yield "\n".join(_part(node, known))


class _Listed:
    """What is said of a node again and again."""

    __slots__ = ("code", "isSwitch", "lid", "name")

    def __init__(self, node: Node, names: NodeNames) -> None:
        self.isSwitch = node.isSwitch
        self.code = f'"{_LETTERS.get(node.type, "H")}-{node.guid.raw.hex()}"'
        self.name = names.name(node.guid, node.description)
        self.lid = node.lid if self.isSwitch else 0


def _part(node: Node, known: dict[int, _Listed]) -> Iterator[str]:
    info, own = node.info, known[id(node)]
    yield ""
    yield f"vendid=0x{info.vendorID:x}"
    yield f"devid=0x{info.deviceID:x}"
    if any(info.systemImageGUID.raw):
        yield f"sysimgguid=0x{int(info.systemImageGUID):x}"
    guid = f"{_GUIDS.get(node.type, 'guid')}=0x{int(node.guid):x}"
    head = f'{_KINDS.get(node.type, "Ca")}\t{info.numPorts} {own.code}\t\t# "{own.name}"'
    if not node.isSwitch:
        yield guid
        yield head
        yield from (_hostLine(port, own, known) for port in linked(node))
        return
    yield f"{guid}({int(node.portGUIDs.get(0, node.guid)):x})"
    kind = "enhanced" if node.switchInfo is not None and node.switchInfo.enhancedPort0 else "base"
    zero = node.ports.get(0)
    lmc = zero.raw[34] & 7 if zero is not None and zero.raw else 0
    yield f"{head} {kind} port 0 lid {own.lid} lmc {lmc}"
    yield from (_switchLine(port, known) for port in linked(node))


def _switchLine(port: Port, known: dict[int, _Listed]) -> str:
    peer = port.peer
    assert peer is not None  # linked has looked
    other = known[id(peer.node)]
    raw = port.raw
    said = _rate(raw[31], raw[35] >> 4, raw[62] >> 4) if raw else "??"
    if other.isSwitch:
        return f'[{port.number}]\t{other.code}[{peer.number}]\t\t# "{other.name}" lid {other.lid} {said}'
    lid = _LID.unpack_from(peer.raw)[0] if peer.raw else 0
    return (
        f"[{port.number}]\t{other.code}[{peer.number}]({int.from_bytes(peer.guid.raw, 'big'):x}) "
        f'\t\t# "{other.name}" lid {lid} {said}'
    )


def _hostLine(port: Port, own: _Listed, known: dict[int, _Listed]) -> str:
    peer = port.peer
    assert peer is not None  # linked has looked
    other = known[id(peer.node)]
    raw = port.raw
    lid, lmc, said = (0, 0, "??")
    if raw:
        lid, lmc, said = _LID.unpack_from(raw)[0], raw[34] & 7, _rate(raw[31], raw[35] >> 4, raw[62] >> 4)
    guid = "" if other.isSwitch else f"({int(peer.guid):x})"
    return (
        f"[{port.number}]({int(port.guid):x}) \t{other.code}[{peer.number}]{guid}\t\t# lid {lid} lmc {lmc} "
        f'"{other.name}" lid {other.lid if other.isSwitch else peer.lid} {said}'
    )


# As a net file.


def netText(fabric: Fabric, names: NodeNames) -> str:
    """A net file: what simulators make the same fabric of, its LIDs, widths and speeds included."""
    from txrdma.sim.netfile import Net  # seldom needed

    net = Net()
    for node in ordered(fabric):
        made = net.add(node.type, node.info.numPorts, _identifier(node))
        made.description = names.name(node.guid, node.description)
        made.guid = node.guid
        made.lid = node.lid
        _links(node, made)
    return net.text()


def _links(node: Node, made: NetNode) -> None:
    from txrdma.sim.netfile import NetLink

    for port in linked(node):
        peer = port.peer
        assert peer is not None  # linked has looked
        raw = port.raw or bytes(64)
        made.links[port.number] = NetLink(
            _identifier(peer.node), peer.number, raw[29], raw[35] & 15, raw[63] & 31
        )


def _identifier(node: Node) -> str:
    return f"{_LETTERS.get(node.type, 'H')}-{node.guid.raw.hex()}"


# As Graphviz.


def dotText(fabric: Fabric, names: NodeNames) -> Iterator[str]:
    """A graph for C{dot}: switches are boxes, links say their ports and rate, slow or odd ones are dashed."""
    yield "graph fabric {"
    yield "  rankdir=BT; ranksep=2; nodesep=0.2;"
    yield '  node [fontname="sans-serif"]; edge [fontname="sans-serif", fontsize=8];'
    for node in ordered(fabric):
        shape = "box" if node.isSwitch else "ellipse" if node.type is NodeType.CHANNEL_ADAPTER else "diamond"
        label = f"{_quoted(names.name(node.guid, node.description))}\\nlid {node.lid}"
        yield f'  "{node.guid}" [label="{label}", shape={shape}];'
    for one, other in fabric.links():
        low, high = (other, one) if one.node.isSwitch and not other.node.isSwitch else (one, other)
        style = "" if one.state.name == "ACTIVE" else ", style=dashed"
        yield (
            f'  "{low.node.guid}" -- "{high.node.guid}" [taillabel="{low.number}", '
            f'headlabel="{high.number}", label="{rate(low)}"{style}];'
        )
    yield "}"


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


# As Slurm.


def slurmText(fabric: Fabric, names: NodeNames) -> Iterator[str]:
    """
    Slurm's C{topology.conf}: each switch with what is below it.

    Hosts are called by the first word of their descriptions: that is the host's name as a rule.
    """
    called = _slurmNames(fabric, names)
    levels = _levels(fabric)
    switches = sorted(
        (node for node in fabric.switches() if node in levels), key=lambda node: (levels[node], called[node])
    )
    for node in switches:
        peers = [port.peer.node for port in linked(node) if port.peer is not None]
        hosts = {called[peer] for peer in peers if not peer.isSwitch}
        below = {called[peer] for peer in peers if peer.isSwitch and levels.get(peer, 99) < levels[node]}
        if hosts:
            yield f"SwitchName={called[node]} Nodes={hostList(hosts)}"
        elif below:
            yield f"SwitchName={called[node]} Switches={hostList(below)}"


def _slurmNames(fabric: Fabric, names: NodeNames) -> dict[Node, str]:
    """What Slurm can read; where two switches would have the same, their GUIDs make a difference."""
    found: dict[Node, str] = {}
    taken: dict[str, Node] = {}
    for node in ordered(fabric):
        name = names.name(node.guid, node.description)
        if not node.isSwitch:
            found[node] = re.sub(r"[^\w.-]", "_", (name.split() or [node.guid.raw.hex()])[0])
            continue
        said = re.sub(r"[^\w.-]+", "_", name.strip()) or f"S-{node.guid.raw.hex()}"
        if said in taken:
            said = f"{said}-{node.guid.raw.hex()}"
        taken[said] = node
        found[node] = said
    return found


def _levels(fabric: Fabric) -> dict[Node, int]:
    """How far switches are from the nearest host, less one."""
    level = {
        node
        for node in fabric.switches()
        if any(not port.peer.node.isSwitch for port in linked(node) if port.peer is not None)
    }
    levels: dict[Node, int] = {}
    distance = 0
    while level:
        levels.update((node, distance) for node in level)
        distance += 1
        level = {
            port.peer.node
            for node in level
            for port in linked(node)
            if port.peer is not None and port.peer.node.isSwitch and port.peer.node not in levels
        }
    return levels


def hostList(names: Iterable[str]) -> str:
    """Names as Slurm writes many of them: C{"h[00000-00017],login1"}."""
    groups: dict[tuple[str, int], list[int]] = {}
    others = []
    for name in sorted(set(names)):
        match = re.fullmatch(r"(.*?)(\d+)", name)
        if match is None:
            others.append(name)
        else:
            groups.setdefault((match[1], len(match[2])), []).append(int(match[2]))
    said = []
    for (prefix, width), numbers in groups.items():
        spans = [
            f"{low:0{width}}" if low == high else f"{low:0{width}}-{high:0{width}}"
            for low, high in _spans(numbers)
        ]
        isOne = len(spans) == 1 and "-" not in spans[0]
        said.append(prefix + (spans[0] if isOne else f"[{','.join(spans)}]"))
    return ",".join(said + others)


def _spans(numbers: list[int]) -> Iterator[tuple[int, int]]:
    low = high = numbers[0]
    for number in sorted(numbers)[1:]:
        if number != high + 1:
            yield low, high
            low = number
        high = number
    yield low, high


# As JSON.


def fabricDict(fabric: Fabric, names: NodeNames) -> dict[str, Any]:
    """For programs."""
    return {
        "nodes": [nodeDict(node, names) for node in ordered(fabric)],
        "problems": [
            {"kind": problem.kind, "where": problem.where, "text": problem.text}
            for problem in fabric.problems
        ],
    }


def nodeDict(node: Node, names: NodeNames) -> dict[str, Any]:
    """A node with its ports."""
    return {
        "guid": str(node.guid),
        "type": node.type.name,
        "name": names.name(node.guid, node.description),
        "description": node.description,
        "systemImageGUID": str(node.info.systemImageGUID),
        "vendorID": node.info.vendorID,
        "deviceID": node.info.deviceID,
        "revision": node.info.revision,
        "numPorts": node.info.numPorts,
        "lid": node.lid,
        "route": None if node.route is None else str(node.route),
        "ports": [portDict(node.ports[number]) for number in sorted(node.ports)],
    }


def portDict(port: Port) -> dict[str, Any]:
    """A port, and where its link leads."""
    peer = port.peer
    return {
        "number": port.number,
        "guid": str(port.guid),
        "lid": port.lid,
        "lmc": port.raw[34] & 7 if port.raw else 0,
        "state": port.state.name,
        "physicalState": port.physicalState.name,
        "width": port.width,
        "speed": speed(port),
        "gigabits": port.width * port.laneGigabits,
        "peer": None if peer is None else {"guid": str(peer.node.guid), "port": peer.number},
    }
