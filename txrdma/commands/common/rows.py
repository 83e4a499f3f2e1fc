"""Long lists as rows: a table by C{rich} on a terminal; aligned columns in a pipe, and for many rows."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from txrdma.commands.common.tables import haveTables, makeTable, show
from txrdma.iba.types import GUID

_SHORT = 300
"""Maximum rows of a table by C{rich}, which takes a millisecond per row."""


def showRows(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows with a heading."""
    if sys.stdout.isatty() and len(rows) <= _SHORT and haveTables():
        from rich.text import Text

        table = makeTable(*columns)
        for row in rows:
            table.add_row(*(Text(str(cell)) for cell in row))
        show(table)
        return
    cells = [[str(cell) for cell in row] for row in (columns, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def hexGUID(guid: GUID) -> str:
    """Return a GUID as infiniband-diags writes it: C{"0x0002c90300010002"}."""
    return f"0x{guid.raw.hex()}"


def printJSON(what: object) -> None:
    """Print a value as JSON, with keys in the order of insertion."""
    print(json.dumps(what, indent=2))
