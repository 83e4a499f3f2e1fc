"""Tables, drawn by the optional package C{rich}."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table


def needTables() -> None:
    """Exit with advice if C{rich} is not installed."""
    if not haveTables():
        raise SystemExit("Tables need rich: pip install 'txrdma[cli]'. Or use --json.")


def haveTables() -> bool:
    """Return whether the package C{rich} can be imported."""
    try:
        import rich  # noqa: F401
    except ImportError:
        return False
    return True


def makeTable(*columns: str, title: str | None = None) -> Table:
    """Return a table of C{rich} without rows."""
    from rich.table import Table

    table = Table(*columns, header_style="bold", expand=False, title=title, title_justify="left")
    for column in table.columns:
        column.overflow = "fold"
    return table


def consoleFor(width: int | None = None) -> Console:
    """Return a console of C{rich}, which raises L{BrokenPipeError} as C{print} does, and does not exit."""
    from rich.console import Console

    class OutputConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return OutputConsole(width=width)


def show(what: RenderableType) -> None:
    """Print a table or text by C{rich}, with colours on a terminal."""
    console = consoleFor()
    if not console.is_terminal:
        console = consoleFor(width=200)  # a pipe has no width; do not wrap rows
    console.print(what)


def size(count: object) -> str:
    """Format a number of bytes with a unit; C{"?"} if it is unknown."""
    from rich.filesize import decimal

    return decimal(count) if isinstance(count, int) else "?"


def lines(*parts: object) -> str:
    """Return a table cell with several lines; empty parts are omitted."""
    return "\n".join(str(part) for part in parts if part not in ("", None))
