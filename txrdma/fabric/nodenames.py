"""Node-name maps of infiniband-diags and OpenSM: lines with a GUID and a name, which may be quoted."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TYPE_CHECKING

from txrdma.error import InvalidRequest
from txrdma.fabric.texts import readText
from txrdma.iba.types import GUID
from txrdma.kit.strings import printable

if TYPE_CHECKING:
    from txrdma.fabric.model import Fabric

MAP_FILES: Final = (Path("/etc/infiniband-diags/ib-node-name-map"), Path("/etc/opensm/ib-node-name-map"))
"""Default paths of the host's map; the first file that exists is used."""

_LINE: Final = re.compile(r"(0x[0-9a-fA-F]{1,16}|[0-9]{1,20})(?:\s+(.*))?")


@dataclass(frozen=True, slots=True)
class NodeNames:
    """Names of nodes by node GUID. The name of a node that is not in the map is its node description."""

    names: dict[GUID, str] = field(default_factory=dict)

    def name(self, guid: GUID, description: str = "") -> str:
        """Return a node's name in the map, or else its description with spaces for unprintable characters."""
        known = self.names.get(guid)
        return printable(description) if known is None else known

    def put(self, fabric: Fabric) -> Fabric:
        """Replace the descriptions of a fabric's nodes by their names, and return the fabric."""
        for node in fabric.nodes.values():
            node.description = self.name(node.guid, node.description)
        return fabric

    def guids(self, name: str) -> Iterator[GUID]:
        """Return the GUIDs of all nodes with this name in the map."""
        return (guid for guid, known in self.names.items() if known == name)


def parseNodeNames(text: str, name: str = "node-name map") -> NodeNames:
    """
    Parse a map: lines with a GUID and a name, comments after C{#}. The first name of a GUID is used.

    @raise InvalidRequest: a line is invalid; the message contains its number.
    """
    names: dict[GUID, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        entry = line.strip()
        if not entry or entry.startswith("#"):
            continue
        match = _LINE.fullmatch(entry)
        known = None if match is None else _named(match[2] or "")
        if match is None or known is None:
            raise InvalidRequest(f'{name}, line {number}: a GUID and a name, as 0x2c9000100d050 "leaf 3"')
        guid = int(match[1], 16 if match[1].startswith("0x") else 10)
        if known and guid < 1 << 64:
            names.setdefault(GUID.fromInt(guid), known)
    return NodeNames(names)


def _named(entry: str) -> str | None:
    """Return the name without quotes; C{""} if there is none, None if the closing quote is missing."""
    if not entry.startswith('"'):
        return entry.partition("#")[0].strip()
    known, quote, rest = entry[1:].partition('"')
    return known if quote and (not rest.strip() or rest.strip().startswith("#")) else None


def quotable(name: str) -> str:
    """Return a name without C{"}, for files that quote names and have no escapes: C{'} replaces it."""
    return name.replace('"', "'")


def nodeNamesText(fabric: Fabric) -> Iterator[str]:
    """Return the lines of a map with the names of a fabric's nodes, for infiniband-diags and OpenSM."""
    for node in fabric.ordered():
        name = quotable(printable(node.description)).strip()
        if name:
            yield f'0x{int(node.guid):016x} "{name}"'


def readNodeNames(path: str = "") -> NodeNames:
    """
    Read a map from a file; without a path the host's map, if it exists.

    An error in the host's map is only written to standard error.

    @raise InvalidRequest: the file at C{path} cannot be read or parsed.
    """
    if path:
        return _read(Path(path))
    for file in MAP_FILES:
        if os.path.exists(file):  # that of Path raises PermissionError before Python 3.14
            try:
                return _read(file)
            except InvalidRequest as error:
                print(f"txrdma: {error}; no names are read", file=sys.stderr)
                break
    return NodeNames()


def _read(path: Path) -> NodeNames:
    return parseNodeNames(readText("node-name map", path), str(path))
