"""
Node-name maps, as infiniband-diags has them: lines of a GUID and a name in quotes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from txrdma.error import InvalidRequest
from txrdma.iba.types import GUID

DEFAULT: Final = Path("/etc/infiniband-diags/ib-node-name-map")

_LINE: Final = re.compile(r'\s*(0x[0-9a-fA-F]{1,16})\s+"([^"]*)"\s*(#.*)?')


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
    Read a map: empty lines and what stands behind C{#} are nothing.

    @raise InvalidRequest: a line is something else; says which.
    """
    names = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise InvalidRequest(f'{name}, line {number}: a GUID and a name, as 0x2c9000100d050 "leaf 3"')
        names[GUID.fromInt(int(match[1], 16))] = match[2]
    return NodeNames(names)


def readNodeNames(path: str = "") -> NodeNames:
    """
    Read a map's file; without a path the host's, if it has one.

    @raise InvalidRequest: it is not there, or it is no map.
    """
    if not path and not DEFAULT.exists():
        return NodeNames()
    try:
        return parseNodeNames(Path(path or DEFAULT).read_text(encoding="utf-8"), path or str(DEFAULT))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"node-name map {path or DEFAULT}: {error}") from error
