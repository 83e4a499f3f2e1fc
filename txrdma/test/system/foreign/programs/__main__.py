"""
Play all programs over all routes and over C{tcp:}, and write the results as a table::

    python -m txrdma.test.system.foreign.programs [--page docs/programs.md] [--route ROUTE] [PROGRAM ...]

The page has the table between two marks. Programs whose packages are not installed are left out, and named.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from pathlib import Path
from typing import Final

from txrdma.test.system.foreign.playing import differences, play
from txrdma.test.system.foreign.programs.catalogue import missing, programs, versions
from txrdma.testing.streams.provider import PROVIDERS, TCP

BEGIN: Final = "<!-- made by python -m txrdma.test.system.foreign.programs: begin -->"
END: Final = "<!-- made by python -m txrdma.test.system.foreign.programs: end -->"


def main(arguments: list[str] | None = None) -> int:
    """Run programs, and return how many behaved differently than over TCP, as exit status."""
    parser = argparse.ArgumentParser(prog="python -m txrdma.test.system.foreign.programs")
    parser.add_argument("--page", type=Path, help="write the table into this page")
    parser.add_argument("--route", action="append", choices=[each.name for each in PROVIDERS])
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help="MODULE.CLASS; all of them")
    asked = parser.parse_args(arguments)
    every = programs()
    unknown = {*asked.programs} - {*every}
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}, only {', '.join(every)}")
    routes = [each for each in PROVIDERS if not asked.route or each.name in asked.route]
    lines = ["| What ran | Made of | " + " | ".join(f"`{route.name}`" for route in routes) + " |"]
    lines.append("|---|---|" + "---|" * len(routes))
    failed = 0
    for name, program in every.items():
        if asked.programs and name not in asked.programs:
            continue
        if absent := missing(program):
            print(f"{name}: left out, there is no {', '.join(absent)}", flush=True)
            continue
        tcp = play([name], TCP)
        cells = []
        for route in routes:
            found = differences(play([name], route), tcp, route, [name])
            failed += bool(found)
            print(f"{name} over {route.name}: {'; '.join(found) or 'as over TCP'}", flush=True)
            cells.append("**no**" if found else "yes")
        what = inspect.cleandoc(program.__doc__ or "").replace("C{", "`").replace("}", "`")
        lines.append(f"| {what} | {versions(program)} | {' | '.join(cells)} |")
    if asked.page is not None:
        before, begun, rest = asked.page.read_text().partition(BEGIN)
        _, ended, after = rest.partition(END)
        if not begun or not ended:
            parser.error(f"{asked.page} has no place for the table")
        table = "\n".join(lines)
        asked.page.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{after}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
