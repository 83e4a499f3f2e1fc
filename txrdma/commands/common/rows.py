"""Long lists as rows: a table by C{rich} on a terminal that is wide enough; otherwise aligned columns."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Mapping, Sequence
from shutil import get_terminal_size
from typing import Any

from txrdma.commands.common.tables import haveTables, makeTable, show
from txrdma.iba.types import GUID

_SHORT = 300
"""Maximum rows of a table by C{rich}, which takes a millisecond per row."""

_FRAME = 3
"""Width of the frame of a column; a table that is too wide would break GUIDs and names into pieces."""


def showRows(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows with a heading."""
    cells = [[str(cell) for cell in row] for row in (columns, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    isNarrow = sum(widths) + _FRAME * len(widths) >= get_terminal_size().columns
    if sys.stdout.isatty() and len(rows) <= _SHORT and not isNarrow and haveTables():
        from rich.text import Text

        table = makeTable(*columns)
        for row in cells[1:]:
            table.add_row(*map(Text, row))
        show(table)
        return
    for line in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def hexGUID(guid: GUID) -> str:
    """Return a GUID in the format of infiniband-diags: C{"0x0002c90300010002"}."""
    return f"0x{guid.raw.hex()}"


def csvCells(row: Sequence[object]) -> list[object]:
    """Return a row for CSV, with an apostrophe before text that spreadsheets would compute as a formula."""
    return [
        f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@")) else cell
        for cell in row
    ]


def printRows(columns: Sequence[str], rows: Sequence[Sequence[object]], options: Mapping[str, Any]) -> None:
    """Print rows as JSON or comma-separated values, as the options say, or as a table."""
    if options["json"]:
        printJSON([dict(zip(columns, row, strict=True)) for row in rows])
    elif options["csv"]:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerows([columns, *map(csvCells, rows)])
    else:
        showRows(columns, [["-" if cell is None else cell for cell in row] for row in rows])


def printJSON(what: object) -> None:
    """Print a value as JSON, with keys in the order of insertion."""
    print(json.dumps(what, indent=2))
