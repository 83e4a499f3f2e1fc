"""
Node-name maps, as infiniband-diags and OpenSM have them: lines of a GUID and a name, in quotes or without.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from txrdma.error import InvalidRequest
from txrdma.iba.types import GUID

PLACES: Final = (Path("/etc/infiniband-diags/ib-node-name-map"), Path("/etc/opensm/ib-node-name-map"))
"""Where a host has its own; the first that there is counts."""

_LINE: Final = re.compile(r"(0x[0-9a-fA-F]{1,16}|[0-9]+)(?:\s+(.*))?")


@dataclass(frozen=True, slots=True)
class NodeNames:
    """Names of nodes by node GUID; nodes that are not in it have their own descriptions."""

    names: dict[GUID, str] = field(default_factory=dict)

    def name(self, guid: GUID, description: str = "") -> str:
        """What to call the node; what cannot be printed is a space, as in infiniband-diags."""
        known = self.names.get(guid)
        return cleaned(description) if known is None else known

    def guids(self, name: str) -> Iterator[GUID]:
        """All nodes that the map calls so."""
        return (guid for guid, known in self.names.items() if known == name)


def cleaned(description: str) -> str:
    """A node's description on one line."""
    return "".join(letter if letter.isprintable() else " " for letter in description)


def parseNodeNames(text: str, name: str = "node-name map") -> NodeNames:
    """
    Read a map: lines of a GUID and a name; what stands behind C{#} is nothing, of two names the first counts.

    @raise InvalidRequest: a line is something else; says which.
    """
    names: dict[GUID, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        said = line.strip()
        if not said or said.startswith("#"):
            continue
        match = _LINE.fullmatch(said)
        known = None if match is None else _named(match[2] or "")
        if match is None or known is None:
            raise InvalidRequest(f'{name}, line {number}: a GUID and a name, as 0x2c9000100d050 "leaf 3"')
        guid = int(match[1], 16 if match[1].startswith("0x") else 10)
        if known and guid < 1 << 64:
            names.setdefault(GUID.fromInt(guid), known)
    return NodeNames(names)


def _named(said: str) -> str | None:
    """The name, in quotes or without; C{""} of none, None of one that has no end."""
    if not said.startswith('"'):
        return said.partition("#")[0].strip()
    known, quote, rest = said[1:].partition('"')
    return known if quote and (not rest.strip() or rest.strip().startswith("#")) else None


def readNodeNames(path: str = "") -> NodeNames:
    """
    Read a map's file; without a path the host's, if it has one.

    What is wrong with the host's is told on standard error, and stops nobody who has not asked for it.

    @raise InvalidRequest: the file that was asked for is not there, or it is no map.
    """
    if path:
        return _read(Path(path))
    for place in PLACES:
        if place.exists():
            try:
                return _read(place)
            except InvalidRequest as error:
                print(f"txrdma: {error}; no names are read", file=sys.stderr)
                break
    return NodeNames()


def _read(path: Path) -> NodeNames:
    try:
        return parseNodeNames(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"node-name map {path}: {error}") from error
