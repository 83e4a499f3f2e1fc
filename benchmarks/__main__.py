"""
Measure, beside Twisted's TCP in the same run, and write C{docs/benchmarks.md} with its charts.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

from twisted.python import usage

from benchmarks import box, mads
from benchmarks.cases import cases
from benchmarks.charts import write
from benchmarks.measuring import Case, Outcome, run
from benchmarks.peers import Peer, peers
from benchmarks.report import areCoresCompiled, machine, madsMarkdown, markdown, show
from benchmarks.results import beside, load, Results, results, save, Section, section

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
MADS_PAGE = PAGE.with_name("benchmarks-management.md")


class Options(usage.Options):
    """The command line."""

    synopsis = "[options]"
    longdesc = "Measures beside Twisted's TCP in the same run, and writes docs/benchmarks.md."
    optFlags = [
        ["quick", "q", "Few bytes and few turns, no page written: to see that it works."],
        ["list", "l", "Tell the names."],
        ["no-peers", None, "Leave out what is not Twisted."],
        ["no-box", None, "Boot no guest to compare with the kernel's rxe."],
        ["no-mads", None, "Leave out management datagrams."],
        ["mads", "m", "Management datagrams alone, and their page."],
        ["charts", "c", "Measure nothing: draw the charts of the results beside the pages again."],
        ["pages", None, "Write the pages even of a --quick run: to see that it works."],
    ]
    optParameters = [
        ["rounds", "r", None, "How often each is measured, in turns. Default: 7, with --quick 3.", int],
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

    def opt_only(self, name: str) -> None:
        """Measure only this one; may be repeated. No page is written."""
        self["only"].append(name)

    opt_o = opt_only

    def postOptions(self) -> None:
        """Defaults that depend, and names that are none."""
        self["rounds"] = self["rounds"] or (3 if self["quick"] else 7)
        self["pages"] = self["pages"] or not self["quick"]
        names = {case.name for case in cases(False)} | mads.PARTS.keys()
        for name in self["only"]:
            if name not in names:
                raise usage.UsageError(f"--only {name} is none of {', '.join(sorted(names))}")


def chosen(options: Options) -> tuple[list[Case], list[str]]:
    """What is to be measured: of all but management datagrams, and the names of their parts."""
    if options["mads"]:
        return [], list(mads.PARTS)
    only, found = options["only"], cases(options["quick"])
    if only:
        return [case for case in found if case.name in only], [name for name in mads.PARTS if name in only]
    return found, [] if options["no-mads"] or areCoresCompiled() else list(mads.PARTS)


def main(arguments: list[str]) -> int:
    """The command."""
    options = Options()
    try:
        options.parseOptions(arguments)  # type: ignore[no-untyped-call]  # of Twisted's
    except usage.UsageError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    measured, parts = chosen(options)
    if options["list"]:
        print("\n".join([*(case.name for case in measured), *parts]))
        return 0
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
    return _measure(options, measured, parts)


def _measure(options: Options, measured: list[Case], parts: list[str]) -> int:
    """Measure, and write what is to be written; the exit status."""
    rounds, quick = options["rounds"], options["quick"]
    isWhole = not options["only"] and not options["mads"]
    outcomes: list[Outcome] = []
    for case in measured:
        for outcome in run(case, rounds):
            outcomes.append(outcome)
            show(outcome)
    others = [] if options["no-peers"] or not isWhole else peers(rounds, quick)
    inBox, why = None, "it was left out"
    if not options["no-box"] and isWhole:
        inBox, why = box.measure(1, 0.2) if quick else box.measure(3, 1.0)
    about = box.section(inBox, why)
    if isWhole:
        print("\n".join(about), flush=True)
    fewer = min(rounds, mads.MOST_ROUNDS)
    found = mads.run(parts, fewer, quick)
    where = machine()
    streams = results(where, rounds, _sections(outcomes, others, inBox, why))
    management = results(where, fewer, [part.result() for part in found])
    if options["json"]:
        sections = [*streams["sections"], *management["sections"]]
        save(Path(options["json"]), results(where, rounds, sections))
    if options["pages"] and isWhole:
        page = Path(options["page"])
        _write(page, streams, markdown(page, streams, outcomes, others, about))
    if options["pages"] and not options["only"] and parts:
        page = Path(options["mads-page"])
        _write(page, management, madsMarkdown(page, management, found))
    isFailed = any(outcome.failure for outcome in outcomes) or any(part.isFailed for part in found)
    return 1 if isFailed else 0


def _sections(
    outcomes: list[Outcome], others: list[Peer], inBox: dict[str, object] | None, why: str
) -> list[Section]:
    """What there is to tell of streams and verbs."""
    ofStreams, ofVerbs = ([each for each in outcomes if each.case.isVerbs == kind] for kind in (False, True))
    told = {"peers": [peer.asDict() for peer in others]}
    return [
        section("streams", "Streams", ofStreams, "SMC-R", "Twisted TCP"),
        section("verbs", "Verbs", ofVerbs, "software device", "Twisted"),
        section("box", "In the kernel's box", told=inBox, why=why),
        section("others", "Others", told=told),
    ]


def _write(page: Path, found: Results, text: str) -> None:
    """The page, its results and its charts."""
    save(beside(page), found)
    write(page, found)
    page.write_text(text)
    print(f"written: {page}")


def _drawAgain(*pages: Path) -> int:
    """The charts of all pages that have results, in the folders of these."""
    for file in sorted({file for page in pages for file in page.parent.glob("benchmarks*.json")}):
        for drawn in write(file.with_suffix(".md"), load(file)):
            print(f"drawn: {drawn}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
