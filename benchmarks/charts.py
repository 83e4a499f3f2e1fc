"""
Charts of the results: which exist, where a page shows them, and their files.

C{python -m benchmarks --charts} draws them again from the stored results. A chart is two SVG files, for light
and dark pages; it names failed measurements and marks missed targets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final, TYPE_CHECKING

from benchmarks.results import factor, Results, Row, Section

if TYPE_CHECKING:
    from benchmarks.drawing import Drawing

FOLDER: Final = "pictures"
"""Folder of the charts, beside the pages; each page has its own folder in it."""

THEMES: Final = ("light", "dark")

HEADLINE: Final = ("throughput-64k", "throughput-1m", "roundtrip", "roundtrip-polling", "cpu")
"""Rows of the streams section that summarize what SMC-R gains."""

_MOST_NAMED: Final = 8
"""Maximum number of rows whose values the alternative text names."""


@dataclass(frozen=True)
class Chart:
    """
    One chart.

    @ivar name: part of the files' names.
    @ivar section: the name of the section that shows the chart, or empty.
    @ivar alt: one sentence for readers who cannot see the chart.
    @ivar draw: draws the chart.
    """

    name: str
    section: str
    alt: str
    draw: Callable[[Drawing], None]


def charts(results: Results) -> list[Chart]:
    """Return all charts of these results."""
    found: list[Chart] = []
    for section in results["sections"]:
        if section["name"] == "streams":
            found += _headline(section)
        compared = [row for row in section["rows"] if row["isCompared"]]
        if any(factor(row) is not None for row in compared):
            found.append(_versus(section, compared))
    return found


def picture(page: Path, chart: Chart) -> list[str]:
    """Return the Markdown for a chart, as GitHub and Sphinx understand it."""
    light, dark = (f"{FOLDER}/{page.stem}/{chart.name}-{theme}.svg" for theme in THEMES)
    return [
        "<picture>",
        f'  <source media="(prefers-color-scheme: dark)" srcset="{dark}">',
        f'  <img alt="{escape(chart.alt)}" src="{light}">',
        "</picture>",
    ]


def write(page: Path, results: Results) -> list[Path]:
    """
    Write all charts of a page, and remove those that it does not have any more.

    @raise ImportError: matplotlib is not installed.
    """
    from benchmarks.drawing import drawn

    folder = page.parent / FOLDER / page.stem
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for chart in charts(results):
        for theme in THEMES:
            written.append(folder / f"{chart.name}-{theme}.svg")
            written[-1].write_text(drawn(theme, chart.draw))
    for old in folder.glob("*.svg"):
        if old not in written:
            old.unlink()
    return written


def _versus(section: Section, rows: Sequence[Row]) -> Chart:
    head = f"{section['tested']} compared with {section['reference']}: 1 is equal, more is better"
    return Chart(
        section["name"],
        section["name"],
        f"{head}. {_inShort(rows)}",
        lambda drawing: drawing.versus(rows, head, isLogarithmic=True),
    )


def _inShort(rows: Sequence[Row]) -> str:
    ratios = [(row["title"], value) for row in rows if (value := factor(row)) is not None]
    if len(ratios) > _MOST_NAMED:
        better = sum(value > 1 for _, value in ratios)
        return f"{better} of {len(ratios)} are better; see the table"
    return "; ".join(f"{title}: {value:.3g}" for title, value in ratios)


def _headline(section: Section) -> Iterator[Chart]:
    rows = [row for row in section["rows"] if row["name"] in HEADLINE]
    if any(factor(row) is not None for row in rows):
        head = f"{section['tested']}: times better than {section['reference']} (marks are targets)"
        yield Chart(
            "headline",
            "",
            f"{head}. {_inShort(rows)}",
            lambda drawing: drawing.versus(rows, head, isLogarithmic=False),
        )
