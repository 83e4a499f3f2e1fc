"""
Conversion between fabrics and net files, which C{discover} and C{ibnetdiscover} print.

A net file has no port states: a link whose ends both have LIDs is considered active.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from txrdma.fabric.linkspeeds import HAS_XDR, LaneSpeed
from txrdma.fabric.model import Fabric, Node, Port
from txrdma.fabric.nodenames import NodeNames
from txrdma.iba.types import GUID
from txrdma.iba.verbs import NodeType, PortState
from txrdma.kit.strings import printable
from txrdma.mad.layouts.smp import ExtendedPortInfo, NodeInfo, SwitchInfo
from txrdma.mad.layouts.values import PortCapability
from txrdma.sim.fabric.model.nodes import buildNodes, SimulatedNode
from txrdma.sim.nets.netfile import Net, NetLink, parseNet

_LETTERS: Final = {NodeType.SWITCH: "S", NodeType.CHANNEL_ADAPTER: "H", NodeType.ROUTER: "R"}
_GROUPS: Final = re.compile(r"^(?:Chassis \d+|Non-Chassis Nodes|Hostname: ).*$", re.MULTILINE)
"""Headings in the output of C{ibnetdiscover -g}."""

_NODE: Final = re.compile(r'(?:switch|hca|ca|rt)\s+\d+\s+"([^"]+)"(.*)', re.IGNORECASE)
_PORT: Final = re.compile(r'\[(\d+)\](?:\(([0-9a-fA-F]+)\))?\s+"')
_RATE: Final = re.compile(r"\s(\d+)x(\w+)$")
_LID: Final = re.compile(r'#\s*lid (\d+) lmc (\d+) "')
_WIDTHS: Final = {"1": 1, "4": 2, "8": 4, "12": 8, "2": 16}
_GUIDS: Final = re.compile(r"switchguid=0x[0-9a-fA-F]+\(([0-9a-fA-F]+)\)")
_FDR10: Final = ExtendedPortInfo(linkSpeedSupported=1, linkSpeedEnabled=1, linkSpeedActive=1).encode()
_SECOND: Final = PortCapability.EXTENDED_SPEEDS | PortCapability.CAPABILITY_MASK2


# Writing.


def netOf(fabric: Fabric, names: NodeNames | None = None) -> Net:
    """
    Return a net from which simulators make the same fabric, with LIDs, widths and speeds. FDR10 becomes QDR.

    @param names: names of nodes; None to use their descriptions.
    """
    net = Net()
    for node in sorted(fabric.nodes.values(), key=lambda node: (not node.isSwitch, node.guid.raw)):
        made = net.add(
            node.type if node.type in _LETTERS else NodeType.CHANNEL_ADAPTER, node.numPorts, _called(node)
        )
        made.description = node.description if names is None else names.name(node.guid, node.description)
        made.guid, made.systemImageGUID = node.guid, node.systemImageGUID
        made.vendorID, made.deviceID, made.lid = node.vendorID, node.deviceID, node.lid
        for port in node.linked():
            assert port.peer is not None  # guaranteed by linked()
            made.links[port.number] = _link(port, port.peer)
    return net


def _link(port: Port, peer: Port) -> NetLink:
    info = port.info
    enabled = info.linkWidthEnabled, info.linkSpeedEnabled, info.linkSpeedExtEnabled
    return NetLink(_called(peer.node), peer.number, *enabled)


def _called(node: Node) -> str:
    return f"{_LETTERS.get(node.type, 'H')}-{node.guid.raw.hex()}"


# Reading.


def readFabric(text: str, name: str = "net file") -> Fabric:
    """Read the fabric of a net file; raise C{ValueError} if it is not valid."""
    net = parseNet(_GROUPS.sub("#", text), name)
    nodes = buildNodes(net)
    fabric = Fabric()
    for identifier, node in nodes.items():
        _add(fabric, node, identifier)
    if len(fabric.nodes) < len(nodes):
        raise ValueError(f"{name}: two nodes have the same GUID")
    for node in nodes.values():
        for one in node.external:
            if one.peer is not None:
                peer = one.peer
                here, there = fabric.nodes[node.guid], fabric.nodes[peer.node.guid]
                fabric.link(here.port(one.number), there.port(peer.number))
    for identifier, words, line in _lines(text):
        known = nodes.get(identifier)
        if known is not None:
            _refine(fabric.nodes[known.guid], words, line)
    for link in fabric.links():
        if all(end.lid for end in link):
            for end in link:
                end.raw = end.info.replace(portState=PortState.ACTIVE).encode()
    return fabric


def _add(fabric: Fabric, node: SimulatedNode, identifier: str) -> None:
    """Add a node as a sweep would have found it, by its first port with a link; links are added later."""
    first = node.ports[0] if node.isSwitch else next((port for port in node.external if port.peer), None)
    info = NodeInfo.decode(node.info).replace(
        portGUID=(first or node.ports[-1]).guid, localPortNum=first.number if first is not None else 1
    )
    made, _ = fabric.add(info)
    made.description = printable(node.description)
    if node.isSwitch:
        made.switchInfo = SwitchInfo.decode(bytes(node.switchInfo))
    for port in node.ports:
        if node.isSwitch or port.peer is not None:
            made.port(port.number).raw = bytes(port.info)
            made.setPortGUID(port.number, port.guid)


def _lines(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield a node's identifier with its comment and port GUID, or with the line of a port."""
    identifier = guid = ""
    for line in map(str.strip, text.splitlines()):
        if not line:
            identifier = guid = ""
        elif (match := _GUIDS.match(line)) is not None:
            guid = match[1]
        elif (match := _NODE.match(line)) is not None:
            identifier = match[1]
            yield identifier, f"{match[2]} ({guid})", ""
        elif identifier and line.startswith("["):
            yield identifier, "", line


def _refine(node: Node, words: str, line: str) -> None:
    """Add values from comments to a node: enhanced port 0, port GUIDs, LIDs of hosts, widths and speeds."""
    if not line:
        info = node.switchInfo
        if info is not None and "enhanced port 0" in words:
            node.switchInfo = info.replace(enhancedPort0=True)
        if (guid := re.search(r"\((\w+)\)$", words)) is not None:
            node.setPortGUID(0, _guid(guid[1]))
        return
    match = _PORT.match(line)
    port = None if match is None else node.known(int(match[1]))
    if match is None or port is None:
        return
    if match[2]:
        node.setPortGUID(port.number, _guid(match[2]))
    if (found := _LID.search(line)) is not None and not node.isSwitch:
        lid = int(found[1])
        if lid > 0xFFFF:
            raise ValueError(f"{lid} is not a LID")
        port.raw = port.info.replace(lid=lid, lmc=int(found[2]) & 7).encode()
    if (found := _RATE.search(line.partition("#")[2])) is not None:
        _carries(port, _WIDTHS.get(found[1], 0), int(LaneSpeed.__members__.get(found[2], 0)))


def _guid(digits: str) -> GUID:
    """Return the GUID of a port from the digits in parentheses; raise C{ValueError} for too many digits."""
    if len(digits) > 16:
        raise ValueError(f"{digits} is not a port GUID")
    return GUID.fromInt(int(digits, 16))


def _carries(port: Port, width: int, speed: int) -> None:
    """Let a port run at a width and speed, and support it."""
    if not width or not speed:
        return
    plain, extended, second = min(speed, int(LaneSpeed.QDR)), speed >> 4 & 15, speed >> 8
    info = port.info
    port.raw = info.replace(
        linkWidthSupported=info.linkWidthSupported | width,
        linkWidthActive=width,
        linkSpeedSupported=info.linkSpeedSupported | plain,
        linkSpeedActive=plain,
        linkSpeedExtSupported=info.linkSpeedExtSupported | extended,
        linkSpeedExtActive=extended,
        **dict.fromkeys(("linkSpeedExtActive2", "linkSpeedExtSupported2", "linkSpeedExtEnabled2"), second),
    ).encode()
    if second:
        end = port.node.known(0) if port.node.isSwitch else port
        if end is not None:
            known = end.info
            end.raw = known.replace(
                capabilityMask=known.capabilityMask | _SECOND, capabilityMask2=known.capabilityMask2 | HAS_XDR
            ).encode()
    if speed == LaneSpeed.FDR10:
        port.vendors = _FDR10
