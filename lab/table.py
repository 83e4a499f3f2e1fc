"""The table of interoperability, from the results of a run."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

BEGIN = "<!-- made by make test-kernel DOCS=1: begin -->"
END = "<!-- made by make test-kernel DOCS=1: end -->"

COUNTED = 5
"""Number of columns before the measured facts."""

_USUAL_MTU = 4200

_SUITE = 3
_TITLES = "| txrdma | Peer | What | Suite | Tests | Measured |"

Result = dict[str, Any]


def about(kernel: str) -> dict[str, str]:
    """Return the description of a run."""
    return {
        "kernel": kernel,
        "rdma-core": _packageVersion("libibverbs1"),
        "pyverbs": _packageVersion("python3-pyverbs"),
        "python": ".".join(map(str, sys.version_info[:3])),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def _packageVersion(package: str) -> str:
    words = ["dpkg-query", "--show", "--showformat", "${Version}", package]
    try:
        return subprocess.run(words, capture_output=True, text=True).stdout or "?"
    except OSError:
        return "?"


def table(versions: dict[str, str], results: list[Result], retained: Sequence[str] = ()) -> str:
    """
    Return the table in Markdown: a line for each witness, with its measured facts.

    @param retained: lines of an earlier run to include.
    """
    lines = list(retained)
    for key, those in _grouped(results).items():
        outcomes = [each["outcome"] for each in those]
        counts = [
            f"{outcomes.count(each)} {each}" for each in ("passed", "failed", "skipped") if each in outcomes
        ]
        facts = [f"{name} {_shown(value)}" for each in those for name, value in each["facts"].items()]
        cells = [*key, ", ".join(counts), "; ".join(dict.fromkeys(facts))]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    made = "Linux {kernel}, rdma-core {rdma-core}, pyverbs {pyverbs}, on {date}.".format_map(versions)
    head = [
        f"{made} The MTU of the network is {_USUAL_MTU} unless a line has another one.",
        "",
        _TITLES,
        "|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *sorted(lines), ""])


def ofOthers(page: str, results: list[Result]) -> list[str]:
    """Return the lines of a page's table whose suites were not run."""
    run = {_suite(result) for result in results}
    return [line for line, cells in _lines(page) if cells[_SUITE] not in run]


def _lines(page: str) -> list[tuple[str, list[str]]]:
    """Return the lines of a page's table with their cells, without the header."""
    found = [(line, line.strip().strip("|").split(" | ")) for line in page.splitlines()]
    return [(line, cells) for line, cells in found if len(cells) == COUNTED + 1 and line != _TITLES]


def _suite(result: Result) -> str:
    name = f"`{result['module'].rpartition('.')[2]}`"
    return name if result["mtu"] == _USUAL_MTU else f"{name}, MTU {result['mtu']}"


def _grouped(results: list[Result]) -> dict[tuple[str, ...], list[Result]]:
    """Group results by their witnesses; tests without a witness have no line."""
    groups: dict[tuple[str, ...], list[Result]] = {}
    for result in results:
        witness = result["witness"]
        if witness is None:
            continue
        key = (witness["ours"], witness["theirs"], witness["what"], _suite(result))
        groups.setdefault(key, []).append(result)
    return groups


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def outcomes(page: str) -> list[str]:
    """Return the lines of a page's table without varying contents: measured facts and dates."""
    return [" | ".join(cells[:COUNTED]) for _, cells in _lines(page)]


def replaceIn(page: Path, text: str) -> None:
    """Replace the table between the markers of a page."""
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{page} has no place for the table")
    page.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}")
