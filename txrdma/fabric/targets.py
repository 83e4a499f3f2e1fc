"""Names of a fabric's ports: LIDs, GIDs, GUIDs, directed routes."""

from __future__ import annotations

import re
from typing import Final

from txrdma.error import InvalidRequest
from txrdma.iba.path import IBPath, MADEndPort
from txrdma.iba.types import GID, GUID, LID
from txrdma.mad.paths import parseTarget

_COMBINED: Final = re.compile(r"(?:lid\s+)?(0x[0-9a-fA-F]{1,4}|\d+)\s+(?:DR\s*)?(0(?:,\d+)+)", re.IGNORECASE)
"""A LID followed by a directed route, as for smpquery -c."""


def combined(target: str) -> tuple[LID, str] | None:
    """Parse a target that consists of a LID and a directed route; None for other targets."""
    match = _COMBINED.fullmatch(target.strip())
    return None if match is None else (LID(int(match[1], 0)), match[2])


def parsedTarget(text: str, endPort: MADEndPort | None = None) -> int | GID | GUID | IBPath:
    """Parse the name of a port with C{parseTarget}; raise L{InvalidRequest} if it names none."""
    try:
        return parseTarget(text, endPort)
    except ValueError as error:
        raise InvalidRequest(str(error)) from error
