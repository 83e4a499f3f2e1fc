"""Text about a fabric: lists of names, and text files."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from txrdma.error import InvalidRequest
from txrdma.kit.logs import reasonText
from txrdma.kit.strings import printable

_SHOWN: Final = 3
_GZIP: Final = b"\x1f\x8b"
"""Beginning of compressed files."""


def listed(names: Sequence[object]) -> str:
    """Return the first of several names, and how many more there are: C{"a, b, c and 15 more"}."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(str, names[:_SHOWN])) + more


def readText(what: str, path: str | Path) -> str:
    """
    Read a text file in UTF-8, which may be compressed by gzip, with spaces for unprintable characters, and
    without a byte order mark.

    Bytes that are not UTF-8 are replaced, as they are in names from the fabric: C{ibnetdiscover} writes these
    unchanged.

    @param what: kind of the file, for the message of an error.
    @raise InvalidRequest: the file cannot be read.
    """
    try:
        content = Path(path).read_bytes()
        text = (gzip.decompress(content) if content.startswith(_GZIP) else content).decode(
            "utf-8-sig", "replace"
        )
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidRequest(f"{what} {path}: {reasonText(error)}") from error
    return "\n".join(map(printable, text.replace("\r\n", "\n").replace("\r", "\n").split("\n")))
