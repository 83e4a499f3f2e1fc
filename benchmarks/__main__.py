"""Measure the parts of C{docs/benchmarks.md}, and write that page and its charts."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

from twisted.python import usage

from benchmarks import box, mads, peers
from benchmarks.charts import write
from benchmarks.measuring import Case, haveBytecode
from benchmarks.parts import measured, PARTS
from benchmarks.report import machine, markdown
from benchmarks.results import beside, load, replaced, results, save, Section, stamped
from txrdma.commands.common.installation import areCoresCompiled

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
MADS_PAGE = PAGE.with_name("benchmarks-management.md")
IN_GUEST = ("box", box.MANAGED)
"""Names of the parts that run in a guest, which has no compiled cores."""

OF_PAGE = (*(part.name for part in PARTS), "others", *IN_GUEST)
"""Names of the parts of the first page, in the page's order."""

UNPRIVILEGED = {"others", *(part.name for part in PARTS if part.isUnprivileged)}
"""Names of the parts whose processes need no privileges."""


class Options(usage.Options):
    synopsis = "[options]"
    longdesc = (
        "Measures beside Twisted's TCP in the same run, and writes docs/benchmarks.md: each part when it has "
        "been measured, so that several runs may add up to the page."
    )
    optFlags = [
        ["quick", "q", "Few bytes and few turns, no page written: to see that it works."],
        ["list", "l", "Print the names of parts, each with its cases."],
        ["mads", "m", "Management datagrams alone, and their page."],
        [
            "charts",
            "c",
            "Measure nothing: write the pages and draw the charts again, of the results beside them.",
        ],
        ["pages", None, "Write the pages even of a --quick run: to see that it works."],
    ]
    optParameters = [
        ["rounds", "r", None, "How often each is measured, in turns. Default: 5, with --quick 3.", int],
        ["json", "j", None, "Write all single results of this run there as well, whatever was chosen."],
        [
            "page",
            "p",
            str(PAGE),
            "Where the page is written, its results beside it, charts in pictures/ there.",
        ],
        ["mads-page", None, str(MADS_PAGE), "Where that of management datagrams is written."],
    ]

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # of Twisted's
        self["only"] = []
        self["parts"] = []

    def opt_part(self, name: str) -> None:
        """Measure this part and replace it on its page; may be repeated."""
        self["parts"].append(name)

    def opt_only(self, name: str) -> None:
        """Measure only this case; may be repeated. No page is written."""
        self["only"].append(name)

    opt_o = opt_only

    def postOptions(self) -> None:
        """Check names, and set the defaults that depend on other options."""
        self["rounds"] = self["rounds"] or (3 if self["quick"] else 5)
        self["pages"] = self["pages"] or not self["quick"]
        cases = {case.name for part in PARTS for case in part.cases(False)}
        self._check("only", cases | mads.PARTS.keys())
        self._check("part", {*OF_PAGE, *mads.PARTS})

    def _check(self, option: str, names: set[str]) -> None:
        for name in self["parts" if option == "part" else option]:
            if name not in names:
                raise usage.UsageError(f"--{option} {name} is none of {', '.join(sorted(names))}")


def chosen(options: Options) -> list[str]:
    """Return the names of the parts to measure, of both pages."""
    if options["parts"]:
        return [name for name in (*OF_PAGE, *mads.PARTS) if name in options["parts"]]
    if options["mads"]:
        return list(mads.PARTS)
    if areCoresCompiled():
        return [name for name in OF_PAGE if name not in IN_GUEST]
    return [*OF_PAGE, *mads.PARTS]


def chosenCases(options: Options) -> dict[str, list[Case]]:
    """Return the cases of each part that has any: all of them, or those named by C{--only}."""
    only, quick = options["only"], options["quick"]
    return {
        part.name: [case for case in part.cases(quick) if not only or case.name in only] for part in PARTS
    }


def main(arguments: list[str]) -> int:
    options = Options()
    try:
        options.parseOptions(arguments)  # type: ignore[no-untyped-call]  # of Twisted's
    except usage.UsageError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    if options["list"]:
        return _list(options)
    if (options["charts"] or options["pages"]) and find_spec("matplotlib") is None:
        print(
            "benchmarks: matplotlib is missing, which draws charts: install txrdma[bench]",
            file=sys.stderr,
        )
        return 1
    if options["charts"]:
        return _drawAgain(Path(options["page"]), Path(options["mads-page"]))
    if len(os.sched_getaffinity(0)) < 2:
        print("benchmarks: two processes need two cores", file=sys.stderr)
        return 1
    return _measure(options)


def _list(options: Options) -> int:
    """Print the names of what would be measured."""
    cases = chosenCases(options)
    for name in chosen(options):
        if not options["only"]:
            print(name, *(f"  {case.name}" for case in cases.get(name, ())), sep="\n")
    if options["only"]:
        print(*(case.name for case in chain(*cases.values())), *_onlyParts(options), sep="\n")
    return 0


def _onlyParts(options: Options) -> Iterable[str]:
    """Return the parts about management datagrams that C{--only} names."""
    return (name for name in mads.PARTS if name in options["only"])


def _measure(options: Options) -> int:
    """Measure part by part, and write the pages unless forbidden; return the exit status."""
    only, cases = options["only"], chosenCases(options)
    names = [name for name in cases if cases[name]] if only else chosen(options)
    names += _onlyParts(options)
    found: list[Section] = []
    haveBytecode()
    for number, name in enumerate(names, 1):
        print(f"{name}: part {number} of {len(names)}, begins at {time.strftime('%H:%M:%S')}", flush=True)
        begun = time.monotonic()
        rounds = min(options["rounds"], mads.MOST_ROUNDS) if name in mads.PARTS else options["rounds"]
        section = _section(name, cases.get(name, []), rounds, options["quick"])
        section = stamped(section, time.strftime("%Y-%m-%d"), machine(name in UNPRIVILEGED), rounds)
        found.append(section)
        if options["pages"] and not only:
            _replace(options, section)
        print(f"{name} took {time.monotonic() - begun:.0f} s", flush=True)
    if options["json"]:
        save(Path(options["json"]), results(found))
    return 1 if any(map(_hasFailed, found)) else 0


def _section(name: str, cases: Sequence[Case], rounds: int, quick: bool) -> Section:
    if name == "others":
        return peers.result(rounds, quick)
    if name == "box":
        return box.result(1, 0.2) if quick else box.result(3, 1.0)
    if name == box.MANAGED:
        return box.managed(1 if quick else 3)
    if name in mads.PARTS:
        [found] = mads.run([name], rounds, quick)
        return found.result()
    [part] = (part for part in PARTS if part.name == name)
    return part.result(measured(cases, rounds, part))


def _hasFailed(section: Section) -> bool:
    """Return whether a measurement of a section failed although everything that it needs is installed."""
    return section["isFailed"] or any(row["failure"] and not row["isMissing"] for row in section["rows"])


def _replace(options: Options, section: Section) -> None:
    """Replace a section and its charts on its page; one that was not measured keeps its contents."""
    isManagement = section["name"] in mads.PARTS
    page = Path(options["mads-page" if isManagement else "page"])
    before = load(beside(page))
    if section["why"] and any(each["name"] == section["name"] for each in before["sections"]):
        print(f"{section['name']}: {section['why']}; {page} keeps what it has", flush=True)
        return
    found = replaced(before, section, list(mads.PARTS) if isManagement else OF_PAGE)
    save(beside(page), found)
    write(page, found)
    page.write_text(markdown(page, found))
    print(f"written: {page}", flush=True)


def _drawAgain(*pages: Path) -> int:
    """Write all pages that have results, and their charts, again."""
    for file in sorted({file for page in pages for file in page.parent.glob("benchmarks*.json")}):
        page, found = file.with_suffix(".md"), load(file)
        for drawn in write(page, found):
            print(f"drawn: {drawn}")
        page.write_text(markdown(page, found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
