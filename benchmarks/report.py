"""
What was measured, for people.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.charts import charts, picture
from benchmarks.measuring import Outcome
from benchmarks.peers import Peer
from benchmarks.results import beside, Results, shortly
from txrdma.soft.shared import _lane

if TYPE_CHECKING:
    from benchmarks.mads import Part

PACKAGES = ("txrdma", "Twisted", "isal", "uvloop", "pyzmq", "mpi4py")


def areCoresCompiled() -> bool:
    """Whether this is txrdma as C{TXRDMA_COMPILE=1} installs it."""
    return not (_lane.__file__ or "").endswith(".py")


def machine() -> dict[str, str]:
    """Where this runs."""
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    versions = []
    for package in PACKAGES:
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            versions.append(f"no {package}")
    return {
        "processor": f"{models[0] if models else platform.machine()}, {os.cpu_count()} cores",
        "system": f"{platform.system()} {platform.release()}",
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "packages": ", ".join(versions),
        "cores of txrdma": "compiled by mypyc" if areCoresCompiled() else "pure Python",
        "load average at the end": ", ".join(f"{load:.1f}" for load in os.getloadavg()),
    }


def spread(values: Sequence[float]) -> str:
    """The median, and what lies around it."""
    return f"{shortly(median(values))} ({shortly(min(values))} to {shortly(max(values))})"


def verdict(outcome: Outcome) -> str:
    """Whether the reach was reached, in a word."""
    return {True: "reached", False: "missed", None: "-"}[outcome.reached]


def show(outcome: Outcome, against: str = "Twisted") -> None:
    """
    One line on standard output, as soon as it is known.

    @param against: what it is compared with.
    """
    case = outcome.case
    if outcome.failure:
        print(f"{case.name}: FAILED: {outcome.failure}", flush=True)
        return
    compared = "" if outcome.ratio is None else f", {against} {spread(outcome.theirs)}: {outcome.ratio:.3g}x"
    by = f" by {outcome.mode}" if outcome.mode else ""
    print(
        f"{case.name}: {spread(outcome.ours)} {case.unit}{by}{compared}; "
        f"reach {outcome.reach}: {verdict(outcome)}",
        flush=True,
    )


def table(theirs: str, ours: str, outcomes: Sequence[Outcome]) -> list[str]:
    """Of what was measured in the same way, against the same."""
    lines = [f"| | unit | {theirs} | {ours} | ratio | reach | |", "|---|---|---|---|---|---|---|"]
    for outcome in outcomes:
        case = outcome.case
        if outcome.failure:
            lines.append(f"| {case.title} | {case.unit} | | | {outcome.failure} | {outcome.reach} | |")
        else:
            compared = spread(outcome.theirs) if outcome.theirs else ""
            ratio = "" if outcome.ratio is None else f"{outcome.ratio:.3g}"
            lines.append(
                f"| {case.title} | {case.unit} | {compared} | {spread(outcome.ours)} "
                f"| {ratio} | {outcome.reach} | {verdict(outcome)} |"
            )
    return lines


def pictures(page: Path, results: Results, section: str) -> list[str]:
    """The lines that show the charts of a section, each followed by an empty one."""
    found = (chart for chart in charts(results) if chart.section == section)
    return [line for chart in found for line in (*picture(page, chart), "")]


def madsMarkdown(page: Path, results: Results, parts: Sequence[Part]) -> str:
    """The page C{docs/benchmarks-management.md}, of L{benchmarks.mads}."""
    head = (
        "Written by `make bench`, and by `make bench BENCH=--mads` alone; run it to have the figures of your "
        f"machine here. The results are in `{beside(page).name}`, too."
    )
    how = (
        f"Medians of {results['rounds']} runs unless said otherwise, with the least and the most in "
        "parentheses. Who is measured has a core of its own. In charts, a mark is what should be reached."
    )
    lines = ["# Benchmarks of management datagrams", "", head, ""]
    lines += [*(f"- {key}: {value}" for key, value in results["machine"].items()), "", how]
    return (
        "\n".join(chain(lines, *(part.section(pictures(page, results, part.name)) for part in parts))) + "\n"
    )


def markdown(
    page: Path,
    results: Results,
    outcomes: Sequence[Outcome],
    others: Sequence[Peer],
    box: Sequence[str] | None = None,
) -> str:
    """
    The page C{docs/benchmarks.md}.

    @param box: what was measured elsewhere, as L{benchmarks.box} tells it.
    """
    kind, target = (", compiled cores", "bench-compiled") if areCoresCompiled() else ("", "bench")
    lines = [
        f"# Benchmarks{kind}",
        "",
        (
            f"Written by `make {target}`; run it to have the figures of your machine here. The results are "
            f"in `{beside(page).name}`, too."
        ),
        "",
        *(f"- {key}: {value}" for key, value in results["machine"].items()),
        "",
        (
            f"Two processes, each on a core of its own; {results['rounds']} runs of each transport, in "
            "turns; medians, with the least and the most in parentheses. What is written comes from a fresh "
            "source of 64 MiB. In charts, a mark is what should be reached."
        ),
        "",
        *pictures(page, results, "streams"),
        *table("Twisted TCP", "SMC-R", [outcome for outcome in outcomes if not outcome.case.isVerbs]),
        "",
        "## Verbs",
        "",
        (
            "The software device by its queue pairs, without SMC-R: two processes as above. Messages of bulk "
            "transfers come from 64 MiB, too; up to 4 MiB are outstanding. Completions are counted in one of "
            "the two processes, on its one core: those that its `CompletionReader` has taken on the polling "
            "reactor and handed over, of 64-byte messages, posted again as they complete, 256 of them "
            "outstanding."
        ),
        "",
        *pictures(page, results, "verbs"),
        *table("Twisted", "software device", [outcome for outcome in outcomes if outcome.case.isVerbs]),
    ]
    if box is not None:
        lines += ["", *box[:4], *pictures(page, results, "box"), *box[4:]]
    if others:
        lines += [
            "",
            "## Others",
            "",
            (
                "Two processes on the same cores, with other ways to move bytes between them. None of them "
                "delivers to Twisted protocols; pyzmq and MPI move whole messages."
            ),
            "",
            *pictures(page, results, "others"),
            "| | 64 KiB writes, MB/s | 1 MiB writes, MB/s | 64-byte round trip, us |",
            "|---|---|---|---|",
            *(peer.row() for peer in others),
        ]
    return "\n".join(lines) + "\n"
