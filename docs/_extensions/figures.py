"""
Roles that insert measured numbers into pages, from the last benchmarks and the last run with the kernel.

In Markdown, C{measured} has the name of a row of C{benchmarks.json} or C{benchmarks-compiled.json}, and
C{witnessed} that of a row of the table in C{interoperability.md}. L{measured} and L{witnessed} describe their
arguments.
"""

from __future__ import annotations

import re
from pathlib import Path
from statistics import median
from typing import Final

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxRole
from sphinx.util.typing import ExtensionMetadata

from benchmarks.parts import PARTS
from benchmarks.results import factor, load, shortly

DOCS: Final = Path(__file__).resolve().parent.parent
NOT_YET: Final = "(not measured yet)"
_COMPILED: Final = "compiled "
_ROW: Final = re.compile(r"^\| (?P<tested>[^|]+?) \|.*\| (?P<measured>[^|]*?) \|$", re.MULTILINE)


def measured(text: str) -> str:
    """
    Return a result of the benchmarks.

    @param text: the name of a row for by how much SMC-R is better than TCP; followed by C{tested} or
        C{reference}, for that median and its unit; by C{ratio}, for the ratio of the medians. Several names
        followed by C{range} are for the lowest and the highest of their ratios. All this after C{compiled} is
        for results with compiled cores.
    @raise ValueError: there is no such case.
    """
    prefix = _COMPILED if text.startswith(_COMPILED) else ""
    text = text.removeprefix(prefix)
    name, _, what = text.partition(" ")
    if text.endswith(" range"):
        ratios = {measured(f"{prefix}{each} ratio") for each in text.split()[:-1]}
        if NOT_YET in ratios:
            return NOT_YET
        ordered = sorted(ratios, key=float)
        return " to ".join(dict.fromkeys((ordered[0], ordered[-1])))
    sections = load(DOCS / ("benchmarks-compiled.json" if prefix else "benchmarks.json"))["sections"]
    row = {row["name"]: row for section in sections for row in section["rows"]}.get(name)
    if row is None:
        cases = [each for part in PARTS for case in part.cases(False) for each in (case, *case.also)]
        if name not in {case.name for case in cases}:
            raise ValueError(f"there is no case {name!r}")
        return NOT_YET
    if row["failure"]:
        return NOT_YET
    if what in ("tested", "reference"):
        return f"{shortly(median(row[what]))} {row['unit']}"
    if what not in ("", "ratio"):
        raise ValueError(f"{text!r}: no such figure")
    value = row["ratio"] if what else factor(row)
    return NOT_YET if value is None else f"{value:.2g}"


def witnessed(text: str) -> str:
    """
    Return a number of the last run with the kernel.

    @param text: the first column of the row, C{>}, and the words before the figure in its last one.
    @raise ValueError: there is none.
    """
    tested, _, words = text.partition(" > ")
    page = (DOCS / "interoperability.md").read_text()
    for row in _ROW.finditer(page):
        for description in row["measured"].split("; "):
            if row["tested"] == tested and description.startswith(f"{words} "):
                return description[len(words) + 1 :]
    raise ValueError(f"the table of interoperability.md has no {text!r}")


class Measured(SphinxRole):
    """The role for results of C{benchmarks.json}."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        self.env.note_reread()
        return [nodes.Text(measured(self.text))], []


class Witnessed(SphinxRole):
    """The role for numbers of C{interoperability.md}."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        self.env.note_reread()
        return [nodes.Text(witnessed(self.text))], []


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the extension."""
    app.add_role("measured", Measured())
    app.add_role("witnessed", Witnessed())
    return {"parallel_read_safe": True, "parallel_write_safe": True}
