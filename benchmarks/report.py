"""Present results for people."""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.charts import charts, picture
from benchmarks.measuring import Outcome
from benchmarks.privileges import DESCRIPTORS, PINNED_BYTES, unprivileged
from benchmarks.results import beside, Results, Row, Section, shortly
from txrdma.commands.common.installation import areCoresCompiled

PACKAGES = ("txrdma", "Twisted", "zlib-ng", "uvloop", "pyzmq", "mpi4py", "mpich", "pyenet", "aioquic")


def machine(isUnprivileged: bool) -> dict[str, str]:
    """
    Describe this machine.

    @param isUnprivileged: whether the measured processes run without privileges, as far as possible.
    """
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
        "congestion control": f"TCP by {_congestion()}",
        "limits": _limits(isUnprivileged and bool(unprivileged())),
        "packages": ", ".join(versions),
        "cores of txrdma": "compiled by mypyc" if areCoresCompiled() else "pure Python",
        "load average at the end": ", ".join(f"{load:.1f}" for load in os.getloadavg()),
    }


def _congestion() -> str:
    """Return the default congestion control of TCP."""
    try:
        return Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    except OSError:
        return "what is not known"


def _limits(isReduced: bool) -> str:
    """
    Return whether the measured processes have privileges, and the limits that restrict those without.

    @param isReduced: whether they have other privileges and limits than this process.
    """
    user = "root" if os.geteuid() == 0 and not isReduced else "an unprivileged user"
    buffers = min(int(Path(f"/proc/sys/net/core/{name}").read_text()) for name in ("rmem_max", "wmem_max"))
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    pinned = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if isReduced:
        descriptors, pinned = DESCRIPTORS, PINNED_BYTES
    memory = "any amount" if pinned == resource.RLIM_INFINITY else f"{pinned >> 10:,} KiB"
    allowed = f"{descriptors:,} descriptors, {memory} of pinned memory"
    return f"{user}, {allowed}, socket buffers up to {buffers >> 10:,} KiB"


def spread(values: Sequence[float]) -> str:
    """Format the median with minimum and maximum."""
    return f"{shortly(median(values))} ({shortly(min(values))} to {shortly(max(values))})"


def verdict(reached: bool | None) -> str:
    """Describe in a word whether the target was reached."""
    return {True: "reached", False: "missed", None: "-"}[reached]


def show(outcome: Outcome, against: str = "Twisted") -> None:
    """
    Print one line about a result.

    @param against: what it is compared with.
    """
    case = outcome.case
    if outcome.failure:
        print(f"{case.name}: FAILED: {outcome.failure}", flush=True)
        return
    ratio = "" if outcome.ratio is None else f": {outcome.ratio:.3g}x"
    compared = f", {against} {spread(outcome.reference)}{ratio}" if outcome.reference else ""
    by = f" by {outcome.mode}" if outcome.mode else ""
    print(
        f"{case.name}: {spread(outcome.tested)} {case.unit}{by}{compared}; "
        f"reach {outcome.reach}: {verdict(outcome.reached)}",
        flush=True,
    )


def table(reference: str, tested: str, rows: Sequence[Row]) -> list[str]:
    """Return a table of rows that are compared with the same transport."""
    lines = [f"| | unit | {reference} | {tested} | ratio | target | |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        if row["failure"]:
            cells = ["", "", "; ".join(row["failure"].splitlines()), row["reach"], ""]
        else:
            ratio = "" if row["ratio"] is None else f"{row['ratio']:.3g}"
            compared = spread(row["reference"]) if row["reference"] else ""
            cells = [compared, spread(row["tested"]), ratio, row["reach"], verdict(row["reached"])]
        lines.append(
            " ".join(f"| {cell}" if cell else "|" for cell in (row["title"], row["unit"], *cells)) + " |"
        )
    return lines


def pictures(page: Path, results: Results, section: str) -> list[str]:
    """Return the lines that show the charts of a section."""
    found = (chart for chart in charts(results) if chart.section == section)
    return [line for chart in found for line in (*picture(page, chart), "")]


def _measured(section: Section, before: Section | None) -> str:
    """Return when, how often and where a section was measured; repeat no machine."""
    machine, load = _split(section)
    where = "; ".join(machine.values())
    if before is not None and _split(before)[0] == machine:
        where = "on the same machine"
    rounds = f"{section['rounds']} round{'s' * (section['rounds'] != 1)}"
    return f"Measured on {section['date']}, {rounds} at most: {where}; load average at the end {load}."


def _split(section: Section) -> tuple[dict[str, str], str]:
    machine = dict(section["machine"])
    load = machine.pop("load average at the end", "not known")
    return machine, load


def _section(page: Path, results: Results, section: Section, before: Section | None) -> list[str]:
    head = ["", f"## {section['title']}", ""]
    if section["why"]:
        return [*head, f"Not measured on {section['date']}: {section['why']}."]
    rows = table(section["reference"], section["tested"], section["rows"]) if section["rows"] else []
    about = [section["about"], ""] if section["about"] else []
    shown = pictures(page, results, section["name"])
    return [*head, *about, _measured(section, before), "", *shown, *rows, *section["lines"]]


def markdown(page: Path, results: Results) -> str:
    """Return a page of results; its file name determines its title and the command that it names."""
    title, command = _PAGES.get(page.stem, _PAGES["benchmarks"])
    head = (
        f"Written by `{command}`; run it for the figures of your machine. Each section can be measured "
        "separately, and shows its date. Numbers are medians, with minimum and maximum in parentheses; "
        "runs of what is compared alternate. Marks in charts are targets. The results are also in "
        f"`{beside(page).name}`."
    )
    lines, before = [f"# {title}", "", head], None
    for section in results["sections"]:
        lines += _section(page, results, section, before)
        before = section
    return "\n".join(lines) + "\n"


_PAGES: Final = {
    "benchmarks": ("Benchmarks", "make bench"),
    "benchmarks-compiled": ("Benchmarks, compiled cores", "make bench-compiled"),
    "benchmarks-management": ("Benchmarks of management datagrams", "make bench BENCH=--mads"),
}
"""Titles of pages and the commands that write them, by file name."""
