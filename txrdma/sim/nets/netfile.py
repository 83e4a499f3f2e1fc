"""
Net files: fabrics as text, in the format that ibsim reads and ibnetdiscover writes.

A file lists each node with its type, number of ports and identifier, and each port that has a link with the
other end of the link::

    Switch  36 "leaf0"      # "first leaf" base port 0 lid 3 lmc 0
    [1]     "h00"[1]        w=3 s=7 e=7
    Hca     1 "h00"
    [1]     "leaf0"[1]
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from txrdma.iba.types import GUID
from txrdma.iba.verbs import NodeType

_KINDS: Final = {
    "switch": NodeType.SWITCH,
    "hca": NodeType.CHANNEL_ADAPTER,
    "ca": NodeType.CHANNEL_ADAPTER,
    "rt": NodeType.ROUTER,
}
_NAMES: Final = {NodeType.SWITCH: "Switch", NodeType.CHANNEL_ADAPTER: "Hca", NodeType.ROUTER: "Rt"}
MOST_PORTS: Final = 500_000
"""Largest number of ports of a net file and of a fat tree; a fabric of 10,368 hosts has 65,000 ports."""

MOST_OF_NODE: Final = 254
"""Largest number of ports of a node (IBA 14.2.5.3)."""

_MOST: Final = {
    **dict.fromkeys(("switchguid", "caguid", "rtguid", "sysimgguid"), (1 << 64) - 1),
    "vendid": 0xFFFFFF,
    "devid": 0xFFFF,
    "lid": 0xFFFF,
    "lmc": 7,
    "width": 0xFF,
    "speed": 0xF,
    "extspeed": 0x1E,
}
"""The largest valid numbers, by setting."""

_LANES: Final = {"1": 1, "4": 2, "8": 4, "12": 8}
"""Masks of the widths that are written as a number of lanes; any other number is a mask."""

_NODE: Final = re.compile(r'(switch|hca|ca|rt)\s+(\d+)\s+"([^"#@]+)"(.*)', re.IGNORECASE)
_PORT: Final = re.compile(
    r"\[(\d+)\](?:\[ext \d+\])?(?:\([0-9a-fA-F]+\))?\s+"
    r'"([^"]+)"(?:\[(\d+)\])?(?:\[ext \d+\])?(?:\([0-9a-fA-F]+\))?(.*)'
)
_CHASSIS: Final = re.compile(r"Chassis \d+(?: \(guid 0x[0-9a-fA-F]+\))?")
"""Heading of an enclosure, as C{ibnetdiscover -g} prints; C{[ext 7]} is a port number on the enclosure."""

_SETTING: Final = re.compile(r"(\w+)\s*=\s*(0x[0-9a-fA-F]+|\d+)")
_QUOTED: Final = re.compile(r'"([^"]*)"')
_OPTION: Final = re.compile(r"\b([wse])=(0x[0-9a-fA-F]+|\d+)")
_LID: Final = re.compile(r"\blid (\d+)(?:.*?\blmc (\d+))?")
_GUIDS: Final = {NodeType.SWITCH: "switchguid", NodeType.CHANNEL_ADAPTER: "caguid", NodeType.ROUTER: "rtguid"}


class NetFileError(ValueError):
    """A line of a net file is invalid."""

    def __init__(self, name: str, line: int, reason: str) -> None:
        super().__init__(f"{name}, line {line}: {reason}")


@dataclass(slots=True)
class NetLink:
    """Link of a port in a net file, with masks of enabled widths and speeds; 0 means the file's default."""

    peer: str
    peerPort: int
    width: int = 0
    speed: int = 0
    extendedSpeed: int = 0


@dataclass(slots=True)
class NetNode:
    """A node of a net file; without values in the file, GUIDs are None and numbers are 0."""

    kind: NodeType
    ports: int
    identifier: str
    description: str
    links: dict[int, NetLink] = field(default_factory=dict)
    guid: GUID | None = None
    systemImageGUID: GUID | None = None
    vendorID: int = 0
    deviceID: int = 0
    lid: int = 0
    lmc: int = 0


@dataclass(slots=True)
class Net:
    """Nodes and links of a net file."""

    nodes: dict[str, NetNode] = field(default_factory=dict)
    width: int = 0
    speed: int = 0
    extendedSpeed: int = 0

    def add(self, kind: NodeType, ports: int, identifier: str) -> NetNode:
        """Add a node without links."""
        node = self.nodes[identifier] = NetNode(kind, ports, identifier, identifier)
        return node

    def link(self, one: str, onePort: int, other: str, otherPort: int) -> None:
        """Add a link between two ports."""
        self.nodes[one].links[onePort] = NetLink(other, otherPort)
        self.nodes[other].links[otherPort] = NetLink(one, onePort)

    def text(self) -> str:
        """Return the net as the text of a net file."""
        settings = (("width", self.width), ("speed", self.speed), ("extspeed", self.extendedSpeed))
        lines = [f"{name}={value}" for name, value in settings if value]
        hasDevices = any(node.deviceID for node in self.nodes.values())
        for node in self.nodes.values():
            lines += ["", *_nodeLines(node, hasDevices)]
        return "\n".join(lines) + "\n"


def _nodeLines(node: NetNode, hasDevices: bool) -> Iterator[str]:
    """Yield the lines of a node. If any node has a device ID, all get one: ibsim reuses the last one."""
    if node.guid is not None:
        yield f"{_GUIDS[node.kind]}=0x{int(node.guid):x}"
    if node.systemImageGUID not in (None, node.guid):
        yield f"sysimgguid=0x{int(node.systemImageGUID):x}"
    if node.vendorID:
        yield f"vendid={node.vendorID:#x}"
    if hasDevices:
        yield f"devid={node.deviceID:#x}"
    comment = f'\t# "{node.description}"' if node.description != node.identifier else ""
    if node.lid:
        comment = (comment or "\t#") + f" lid {node.lid} lmc {node.lmc}"
    yield f'{_NAMES[node.kind]}\t{node.ports} "{node.identifier}"{comment}'
    for number, link in sorted(node.links.items()):
        options = "".join(
            f" {letter}={_written(letter, value)}"
            for letter, value in (("w", link.width), ("s", link.speed), ("e", link.extendedSpeed))
            if value
        )
        yield f'[{number}]\t"{link.peer}"[{link.peerPort}]{options}'


def _written(letter: str, mask: int) -> str:
    """Return a mask as text: in hexadecimal if a decimal number would mean lanes."""
    return hex(mask) if letter == "w" and _LANES.get(str(mask), mask) != mask else str(mask)


def parseNet(text: str, name: str = "net file") -> Net:
    """
    Parse the text of a net file.

    @raise NetFileError: a line is invalid, or links contradict each other.
    """
    return _Parser(name).parse(text.splitlines())


class _Parser:
    """Parser of the lines of a net file."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._net = Net()
        self._node: NetNode | None = None
        self._ports = 0
        self._comments: dict[str, int] = {}
        self._where: dict[tuple[str, int], int] = {}

    def parse(self, lines: Iterable[str]) -> Net:
        for number, line in enumerate(lines, 1):
            stripped = line.strip()
            if not stripped:
                self._node = None
            elif not (stripped.startswith("#") or _CHASSIS.fullmatch(stripped)):
                self._line(stripped, number)
        self._check()
        return self._net

    def _line(self, line: str, number: int) -> None:
        if (match := _NODE.fullmatch(line)) is not None:
            self._header(number, *match.groups())
        elif (match := _PORT.fullmatch(line)) is not None:
            self._link(number, *match.groups())
        elif (match := _SETTING.match(line)) is not None:
            self._setting(number, match[1].lower(), match[2])
        elif line.split()[0] not in ("module", "include", "do"):
            raise NetFileError(self._name, number, f"{line!r} is invalid")
        else:
            raise NetFileError(
                self._name, number, f"{line.split()[0]!r} is specific to ibsim, and not supported"
            )

    def _header(self, number: int, kind: str, ports: str, identifier: str, rest: str) -> None:
        if not 1 <= int(ports) <= MOST_OF_NODE:
            raise NetFileError(self._name, number, f"a node has from 1 to {MOST_OF_NODE} ports, not {ports}")
        if identifier in self._net.nodes:
            raise NetFileError(self._name, number, f"there is a node {identifier!r} already")
        self._ports += int(ports)
        if self._ports > MOST_PORTS:
            raise NetFileError(self._name, number, f"a fabric has at most {MOST_PORTS:,} ports here")
        node = self._node = self._net.add(_KINDS[kind.lower()], int(ports), identifier)
        if (quoted := _QUOTED.search(rest)) is not None:
            node.description = quoted[1]
            rest = rest[quoted.end() :]
        if (lid := _LID.search(rest)) is not None:
            node.lid, node.lmc = (
                self._number(number, "lid", lid[1]),
                self._number(number, "lmc", lid[2] or "0"),
            )
        comment, self._comments = self._comments, {}
        for key in _GUIDS.values():
            if key in comment:
                node.guid = GUID.fromInt(comment[key])
        if "sysimgguid" in comment:
            node.systemImageGUID = GUID.fromInt(comment["sysimgguid"])
        node.vendorID, node.deviceID = comment.get("vendid", 0), comment.get("devid", 0)

    def _link(self, number: int, port: str, peer: str, peerPort: str | None, rest: str) -> None:
        node = self._node
        if node is None:
            raise NetFileError(self._name, number, "a link before any node")
        if not 0 < int(port) <= node.ports:
            raise NetFileError(self._name, number, f"{node.identifier!r} has no port {port}")
        link = NetLink(peer, int(peerPort or 1))
        for letter, value in _OPTION.findall(rest.partition("#")[0]):
            if letter == "w":
                link.width = _LANES.get(value) or self._number(number, "width", value)
            elif letter == "s":
                link.speed = self._number(number, "speed", value)
            else:
                link.extendedSpeed = self._number(number, "extspeed", value)
        node.links[int(port)] = link
        self._where[node.identifier, int(port)] = number

    def _number(self, line: int, key: str, text: str) -> int:
        """Return the number of a setting; raise L{NetFileError} if it is too large."""
        value = int(text, 16 if text[:2].lower() == "0x" else 10)
        most = _MOST.get(key)
        if most is not None and value > most:
            raise NetFileError(self._name, line, f"{key} is at most {most:#x}, not {text}")
        return value

    def _setting(self, line: int, key: str, text: str) -> None:
        value = self._number(line, key, text)
        if key == "width":
            self._net.width = value
        elif key == "speed":
            self._net.speed = value
        elif key == "extspeed":
            self._net.extendedSpeed = value
        else:
            self._comments[key] = value

    def _check(self) -> None:
        """Check that both ends of each link agree; add an end that the file does not have."""
        nodes = self._net.nodes
        for (identifier, port), line in self._where.items():
            link = nodes[identifier].links[port]
            peer = nodes.get(link.peer)
            if peer is None:
                raise NetFileError(self._name, line, f"there is no node {link.peer!r}")
            if not 0 < link.peerPort <= peer.ports:
                raise NetFileError(self._name, line, f"{link.peer!r} has no port {link.peerPort}")
            back = peer.links.setdefault(link.peerPort, NetLink(identifier, port))
            if (back.peer, back.peerPort) != (identifier, port):
                raise NetFileError(
                    self._name,
                    line,
                    f"port {link.peerPort} of {link.peer!r} leads to {back.peer!r}[{back.peerPort}]",
                )
