"""
Run conversations over streams and over TCP, and compare them: C{make conversations}.

The results of a run are in C{build/conversations}: C{results.json}, C{table.md}, and C{failures.txt} with the
transcripts of each conversation that differs from TCP. The last line of the output is C{N passed, N failed, N
skipped}.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from pathlib import Path
from typing import Final

from txrdma.testing.streams import report
from txrdma.testing.streams.catalogue import chosen, everyConversation
from txrdma.testing.streams.drawn import Drawn
from txrdma.testing.streams.matrix import Matrix, USUAL_REACTOR, Verdict
from txrdma.testing.streams.player import REACTORS
from txrdma.testing.streams.provider import PROVIDERS
from txrdma.testing.streams.runner import ConversationRunner

_PROGRESS_SECONDS: Final = 15.0
_SHOWN: Final = 5
"""Number of failures shown on the terminal; the file has all of them."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m txrdma.testing.streams",
        description="Compare conversations over streams and over TCP. Results are in build/conversations.",
    )
    parser.add_argument("--route", action="append", default=[], help="one of the routes; all of them")
    parser.add_argument(
        "--reactor",
        action="append",
        default=[],
        help=f"one of {', '.join(REACTORS)}; {USUAL_REACTOR}, and a part on each",
    )
    parser.add_argument(
        "--folder", type=Path, default=Path("build/conversations"), help="folder of the results"
    )
    parser.add_argument("--page", type=Path, help="write the tables into this page")
    parser.add_argument("--jobs", type=int, help="short conversations at the same time")
    parser.add_argument("--drawn", type=int, metavar="N", help="play N conversations that are drawn by seeds")
    parser.add_argument(
        "--first", type=int, metavar="SEED", help="seed of the first one (by default from the clock)"
    )
    parser.add_argument("--list", action="store_true", help="only list the conversations")
    parser.add_argument(
        "names", nargs="*", help="names or chapters of conversations, with * and ?; all of them"
    )
    return parser


class _Progress:
    """Prints the progress of a run, and each failure immediately."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._lastProgress = time.monotonic()
        self.done = self.failed = 0

    def verdict(self, verdict: Verdict) -> None:
        """Count one more verdict, and print it if it failed or if the run is short."""
        self.done += 1
        where = f"{verdict.conversation.name} ({verdict.provider.name}, {verdict.reactor})"
        if not verdict.passed:
            self.failed += 1
            print(f"conversations: {where}: {verdict.complaints[0]}", flush=True)
        elif self._count <= 20:
            print(f"conversations: {where}: as over TCP", flush=True)
        if time.monotonic() > self._lastProgress + _PROGRESS_SECONDS:
            self._lastProgress = time.monotonic()
            print(f"conversations: {self.done} of {self._count}, {self.failed} failed", flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Run the requested conversations, and return the exit status."""
    parser = _parser()
    asked = parser.parse_args(arguments)
    providers = [each for each in PROVIDERS if not asked.route or each.name in asked.route]
    unknown = {*asked.route} - {each.name for each in PROVIDERS} | {*asked.reactor} - {*REACTORS}
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    try:
        conversations = chosen(asked.names)
    except ValueError as error:
        parser.error(str(error))
    if asked.list:
        for each in conversations:
            print(f"{each.name}: {each.about}")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if asked.drawn:
        first = time.time_ns() // 1_000_000 if asked.first is None else asked.first
        print(f"conversations: seeds from {first} on", flush=True)
        reactors = asked.reactor or [USUAL_REACTOR]
        matrix: Matrix | Drawn = Drawn(range(first, first + asked.drawn), providers, reactors)
    else:
        isWhole = bool(asked.reactor)
        matrix = Matrix(conversations, providers, asked.reactor or list(REACTORS), isWhole)
    progress = _Progress(matrix.count)
    begun = time.monotonic()
    runner = ConversationRunner()
    try:
        matrix.play(runner, progress.verdict, asked.jobs)
    except KeyboardInterrupt:
        print("conversations: interrupted")
        return 130
    finally:
        runner.close()
    print(f"conversations: took {time.monotonic() - begun:.0f} s")
    _leave(asked.folder, matrix.verdicts)
    if asked.page:
        report.replaceIn(asked.page, "conversations", report.table(matrix.verdicts))
        report.replaceIn(asked.page, "differences", report.differences(list(everyConversation())))
    print(f"{progress.done - progress.failed} passed, {progress.failed} failed, 0 skipped")
    return 1 if progress.failed else 0


def _leave(folder: Path, verdicts: list[Verdict]) -> None:
    """Write the results to files, and print the first failures."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps(report.results(verdicts), indent=1) + "\n")
    (folder / "table.md").write_text(report.table(verdicts))
    failed = [verdict for verdict in verdicts if not verdict.passed]
    path = folder / "failures.txt"
    path.write_text("\n".join(report.failure(verdict, logs=True) for verdict in failed))
    for verdict in failed[:_SHOWN]:
        print(report.failure(verdict))
    if failed:
        print(f"conversations: all {len(failed)} failures, with the logs of their processes, are in {path}")


if __name__ == "__main__":
    sys.exit(main())
