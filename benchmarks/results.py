"""
What a run has measured, as it lies in JSON beside the page that tells of it: the same for all pages.

C{machine} says where it ran and C{rounds} how often. Each of the C{sections} has a C{name}, a C{title}, what
C{ours} and C{theirs} are called, C{rows} as L{Outcome.asDict} has them, and C{told}, which is what that
section alone has. C{why} says why nothing of it was measured.
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
) -> Section:
    """One section."""
    rows = [outcome.asDict() for outcome in outcomes]
    return {
        "name": name,
        "title": title,
        "ours": ours,
        "theirs": theirs,
        "rows": rows,
        "told": told or {},
        "why": why,
    }


def results(machine: Mapping[str, str], rounds: int, sections: Sequence[Section]) -> Results:
    """A run."""
    return {"machine": machine, "rounds": rounds, "sections": sections}


def beside(page: Path) -> Path:
    """Where the results of a page lie."""
    return page.with_suffix(".json")


def save(file: Path, told: Results) -> None:
    """Write them."""
    file.write_text(json.dumps(told, indent=1) + "\n")


def load(file: Path) -> Results:
    """Read them."""
    told: Results = json.loads(file.read_text())
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
