"""
Results, as they lie in JSON beside the page that tells of them: the same for all pages.

Each of the C{sections} is measured by itself. It has a C{name}, a C{title}, what C{ours} and C{theirs} are
called, C{about}, paragraphs before its C{rows}, which are as L{Outcome.asDict} has them, C{lines} of the page
behind these, and C{told}, which is what that section alone has. C{why} is the reason that nothing of it was
measured, C{isFailed} that it should have been. C{date}, C{machine} and C{rounds} are when, where, how often.
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
    """Three digits that matter."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def section(
    name: str,
    title: str,
    outcomes: Sequence[Outcome] = (),
    ours: str = "",
    theirs: str = "",
    told: Mapping[str, Any] | None = None,
    why: str = "",
    about: str = "",
    lines: Sequence[str] = (),
    isFailed: bool = False,
) -> Section:
    """One section, before it is L{stamped}."""
    return {
        "name": name,
        "title": title,
        "about": about,
        "ours": ours,
        "theirs": theirs,
        "rows": [outcome.asDict() for outcome in outcomes],
        "lines": list(lines),
        "told": told or {},
        "why": why,
        "isFailed": isFailed,
    }


def stamped(section: Section, date: str, machine: Mapping[str, str], rounds: int) -> Section:
    """The section, with when, where and how often it was measured."""
    return {**section, "date": date, "machine": machine, "rounds": rounds}


def results(sections: Sequence[Section]) -> Results:
    """The sections of a page, in their order there."""
    return {"sections": list(sections)}


def replaced(found: Results, section: Section, order: Sequence[str]) -> Results:
    """
    Results with a section in the place of the one of its name, if there was one.

    @param order: names of all sections that the page may have; others are dropped.
    """
    named = {each["name"]: each for each in (*found["sections"], section)}
    return results([named[name] for name in order if name in named])


def beside(page: Path) -> Path:
    """Where the results of a page lie."""
    return page.with_suffix(".json")


def save(file: Path, told: Results) -> None:
    """Write them."""
    file.write_text(json.dumps(told, indent=1) + "\n")


def load(file: Path) -> Results:
    """Read them; none are there where the file is not."""
    told: Results = json.loads(file.read_text()) if file.exists() else results([])
    return told


def factor(row: Row) -> float | None:
    """How many times better ours is than what it was compared with; None where that can't be said."""
    if row["failure"] or not row["ours"] or not row["theirs"]:
        return None
    ours, theirs = median(row["ours"]), median(row["theirs"])
    if not ours or not theirs:
        return None
    return float(ours / theirs if row["isMoreBetter"] else theirs / ours)


def goal(row: Row) -> float | None:
    """The reach of L{factor}; None where there is none."""
    reaches = row["reaches"]
    if "atLeast" in reaches:
        return float(reaches["atLeast"])
    if "atMost" in reaches:
        return float(1 / reaches["atMost"])
    if not row["theirs"]:
        return None
    if "mostOfOurs" in reaches:
        return float(median(row["theirs"]) / reaches["mostOfOurs"])
    return float(reaches["leastOfOurs"] / median(row["theirs"])) if "leastOfOurs" in reaches else None
