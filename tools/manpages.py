#!/usr/bin/env python3
"""
Write a manual page of C{txrdma} and of each of its commands to a folder, from what C{--help} prints.

The pages are in the man(7) macros, for section 1; C{SOURCE_DATE_EPOCH} is their date if it is set.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Final

CHECKOUT: Final = Path(__file__).resolve().parent.parent


def escaped(line: str) -> str:
    """Return a line so that roff prints it unchanged."""
    text = line.replace("\\", r"\e").replace("-", r"\-")
    return r"\&" + text if text.startswith((".", "'")) else text


def page(name: str, summary: str, usage: str, others: list[str], version: str, seconds: float) -> str:
    """Return a manual page; C{usage} is the text of the help, and C{others} are names of related pages."""
    synopsis, _, rest = usage.strip().partition("\n")
    date = time.strftime("%Y-%m-%d", time.gmtime(seconds))
    related = ", ".join(f".BR {escaped(other)} (1)" for other in others).replace(", ", ",\n")
    return "\n".join(
        [
            f'.TH {name.upper()} 1 {date} "txrdma {version}" "User Commands"',
            ".SH NAME",
            f"{escaped(name)} \\- {escaped(summary.rstrip('.'))}",
            ".SH SYNOPSIS",
            escaped(synopsis.removeprefix("Usage: ")),
            ".SH DESCRIPTION",
            ".nf",
            *map(escaped, rest.strip("\n").splitlines()),
            ".fi",
            ".SH SEE ALSO",
            related,
            "",
        ]
    )


def pages(version: str, seconds: float) -> dict[str, str]:
    """Return the text of each manual page by its file name."""
    from txrdma.command import TxrdmaOptions
    from txrdma.commands.common.registry import COMMANDS

    names = [f"txrdma-{each.name}" for each in COMMANDS]
    top = page("txrdma", "RDMA for Twisted", str(TxrdmaOptions()), names, version, seconds)
    found = {"txrdma.1": top}
    for name, command in zip(names, COMMANDS, strict=True):
        options = command.load().CommandOptions()
        options.parent = SimpleNamespace(subCommand=command.name)
        found[f"{name}.1"] = page(name, command.summary, str(options), ["txrdma"], version, seconds)
    return found


def main() -> None:
    """Write the pages."""
    from txrdma import __version__

    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    seconds = float(os.environ.get("SOURCE_DATE_EPOCH", time.time()))
    for name, text in pages(__version__, seconds).items():
        folder.joinpath(name).write_text(text)


if __name__ == "__main__":
    sys.path.insert(0, str(CHECKOUT))
    main()
