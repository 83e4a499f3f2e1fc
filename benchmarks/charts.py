"""
Charts of the results: which exist, where a page shows them, and their files.

C{python -m benchmarks --charts} draws them again from the stored results. A chart is two SVG files, for light
and dark pages; it names failed measurements and marks missed targets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import median
from typing import Final, TYPE_CHECKING

from benchmarks.results import factor, Results, Row, Section, shortly

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
        special = _SPECIAL.get(section["name"])
        found += special(section) if special else ()
        compared = [row for row in section["rows"] if row["isCompared"]]
        if any(factor(row) is not None for row in compared) and special is not _sweeps:
            found.append(_versus(section, compared))
        alone = [row for row in section["rows"] if not row["isCompared"]]
        for number, unit in enumerate(dict.fromkeys(row["unit"] for row in alone if row["tested"])):
            found.append(_amounts(section, [row for row in alone if row["unit"] == unit], unit, number))
    return [*found, *_others(results)]


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


# charts that every section has


def _versus(section: Section, rows: Sequence[Row]) -> Chart:
    head = f"{section['tested']} compared with {section['reference']}: 1 is equal, more is better"
    return Chart(
        section["name"],
        section["name"],
        f"{head}. {_inShort(rows)}",
        lambda drawing: drawing.versus(rows, head, isLogarithmic=True),
    )


def _amounts(section: Section, rows: Sequence[Row], unit: str, number: int) -> Chart:
    named = {"/s": "per second", "s": "seconds", "us": "microseconds"}.get(unit, unit)
    values = "; ".join(f"{row['title']} {shortly(median(row['tested']))}" for row in rows if row["tested"])
    return Chart(
        f"{section['name']}-amounts{number or ''}",
        section["name"],
        f"{section['title']}, {named}: {values}",
        lambda drawing: drawing.amounts(rows, named),
    )


def _inShort(rows: Sequence[Row]) -> str:
    ratios = [(row["title"], value) for row in rows if (value := factor(row)) is not None]
    if len(ratios) > _MOST_NAMED:
        better = sum(value > 1 for _, value in ratios)
        return f"{better} of {len(ratios)} are better; see the table"
    return "; ".join(f"{title}: {value:.3g}" for title, value in ratios)


# charts of particular sections


def _streams(section: Section) -> Iterator[Chart]:
    rows = [row for row in section["rows"] if row["name"] in HEADLINE]
    if any(factor(row) is not None for row in rows):
        head = f"{section['tested']}: times better than {section['reference']} (marks are targets)"
        yield Chart(
            "headline",
            "",
            f"{head}. {_inShort(rows)}",
            lambda drawing: drawing.versus(rows, head, isLogarithmic=False),
        )


def _box(section: Section) -> Iterator[Chart]:
    pairs = [pair for pair in section["details"].get("pairs", ()) if pair["values"]]
    if pairs:
        names = " and ".join(pair["name"] for pair in pairs)
        yield Chart(
            "box",
            section["name"],
            f"Bandwidth and round trips of {names} by the size of messages",
            lambda drawing: drawing.bySize(pairs),
        )


def _sweeps(section: Section) -> Iterator[Chart]:
    settings: Mapping[str, list[float]] = section["details"].get("settings", {})
    tested: list[float] = next(
        (row["tested"] for row in section["rows"] if row["unit"] == "s" and row["tested"]), []
    )
    if settings and tested:
        bars = {f"ibnetdiscover, {name}": values for name, values in settings.items()}
        bars[section["tested"]] = tested
        yield Chart(
            "sweep",
            section["name"],
            "Seconds of a sweep: " + "; ".join(f"{name} {shortly(median(bars[name]))}" for name in bars),
            lambda drawing: drawing.bars({"seconds": bars}, section["tested"]),
        )


def _structures(section: Section) -> Iterator[Chart]:
    times: Mapping[str, Mapping[str, float]] = section["details"].get("structures", {})
    if times:
        yield Chart(
            "structures",
            section["name"],
            "Microseconds to decode and to encode a structure by the number of its fields",
            lambda drawing: drawing.structures(times),
        )


_SPECIAL: Final[Mapping[str, Callable[[Section], Iterator[Chart]]]] = {
    "streams": _streams,
    "box": _box,
    "mad-sweep": _sweeps,
    "mad-codecs": _structures,
}


def _others(results: Results) -> Iterator[Chart]:
    """Return the chart that compares streams with other programs than Twisted."""
    sections = {section["name"]: section for section in results["sections"]}
    if not {"streams", "others"} <= sections.keys():
        return
    peers = [peer for peer in sections["others"]["details"]["peers"] if not peer["failure"]]
    streams, panels = sections["streams"], {}
    for row in streams["rows"]:
        found = {peer["name"].partition(",")[0]: peer["values"].get(row["name"]) for peer in peers}
        bars = {streams["tested"]: row["tested"], streams["reference"]: row["reference"], **found}
        if any(found.values()):
            panels[f"{row['title']}, {row['unit']}"] = {name: bar for name, bar in bars.items() if bar}
    if panels:
        names = ", ".join(peer["name"].partition(",")[0] for peer in peers)
        yield Chart(
            "others",
            "others",
            f"{streams['tested']} and {streams['reference']} beside {names}",
            lambda drawing: drawing.bars(panels, streams["tested"]),
        )
