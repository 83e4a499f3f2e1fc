"""
Results as JSON, stored beside the page that shows them.

Each of the C{sections} is measured separately. It has a C{name}, a C{title}, the names of what is
C{tested} and of its C{reference}, paragraphs C{about} it, C{rows} as L{Outcome.asDict} returns them, further
C{lines} of the page, and C{details}, data of this section only. C{why} is the reason that nothing was
measured, and C{isFailed} whether that is a failure. C{date}, C{machine} and C{rounds}
describe the measurement.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measuring import Outcome

Row = Mapping[str, Any]
Section = Mapping[str, Any]
Results = Mapping[str, Any]


def shortly(value: float) -> str:
    """Format with three significant digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def section(
    name: str,
    title: str,
    outcomes: Sequence[Outcome] = (),
    tested: str = "",
    reference: str = "",
    details: Mapping[str, Any] | None = None,
    why: str = "",
    about: str = "",
    lines: Sequence[str] = (),
    isFailed: bool = False,
) -> Section:
    """Return a section without date and machine."""
    return {
        "name": name,
        "title": title,
        "about": about,
        "tested": tested,
        "reference": reference,
        "rows": [outcome.asDict() for outcome in outcomes],
        "lines": list(lines),
        "details": details or {},
        "why": why,
        "isFailed": isFailed,
    }


def stamped(section: Section, date: str, machine: Mapping[str, str], rounds: int) -> Section:
    """Return the section with date, machine and number of rounds."""
    return {**section, "date": date, "machine": machine, "rounds": rounds}


def results(sections: Sequence[Section]) -> Results:
    """Return the sections of a page, in its order."""
    return {"sections": list(sections)}


def replaced(found: Results, section: Section, order: Sequence[str]) -> Results:
    """
    Return results with the section of the same name replaced or added.

    @param order: names of all sections of the page; others are dropped.
    """
    named = {each["name"]: each for each in (*found["sections"], section)}
    return results([named[name] for name in order if name in named])


def beside(page: Path) -> Path:
    """Return the file of a page's results."""
    return page.with_suffix(".json")


def save(file: Path, saved: Results) -> None:
    file.write_text(json.dumps(saved, indent=1) + "\n")


def load(file: Path) -> Results:
    """Load results; none if the file does not exist."""
    loaded: Results = json.loads(file.read_text()) if file.exists() else results([])
    return loaded


def factor(row: Row) -> float | None:
    """Return how many times better the tested value is than the reference; None if it is unknown."""
    if row["failure"] or not row["tested"] or not row["reference"]:
        return None
    tested, reference = median(row["tested"]), median(row["reference"])
    if not tested or not reference:
        return None
    return float(tested / reference if row["isMoreBetter"] else reference / tested)


def goal(row: Row) -> float | None:
    """Return the target of L{factor}, or None."""
    reaches = row["reaches"]
    if "atLeast" in reaches:
        return float(reaches["atLeast"])
    if "atMost" in reaches:
        return float(1 / reaches["atMost"])
    if not row["reference"]:
        return None
    if "mostValue" in reaches:
        return float(median(row["reference"]) / reaches["mostValue"])
    return float(reaches["leastValue"] / median(row["reference"])) if "leastValue" in reaches else None
