"""Serve a folder with C{twistd web} over C{smc:} and C{tcp:}, and download its files in other processes."""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from twisted.python import usage

from txrdma.commands.common.options import BaseOptions
from txrdma.demo import files
from txrdma.demo.processes import downloading, ProcessFailed, serving, Statuses
from txrdma.demo.report import DemoRun, table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID


FILES_PER_TURN = 100


class DemoOptions(BaseOptions):
    """Command line options."""

    synopsis = "Usage: python -m txrdma.demo [options]"
    longdesc = (
        "Serves a folder with twistd web over smc: and downloads all of it in another process, the same "
        "over tcp:, and compares every file's SHA-256."
    )
    optParameters = [
        ["large", None, 256, "Size of the large file, in MiB.", int],
        ["files", None, None, "How many of the standard library's files at most.", int],
        ["parallel", None, 8, "Number of concurrent downloads.", int],
        ["reactor", None, None, "The reactor of both processes."],
    ]

    def postOptions(self) -> None:
        """Reject numbers below 1."""
        if self["large"] < 1 or self["parallel"] < 1 or (self["files"] is not None and self["files"] < 1):
            raise usage.UsageError("--large, --files and --parallel must be 1 or more")


class Contestant:
    """A server and a downloader of one transport, and their results so far."""

    def __init__(
        self, kind: str, warming: list[str], scratch: Path, options: DemoOptions, stack: ExitStack
    ) -> None:
        """
        @param warming: files that are fetched before the measurement, so that it excludes one-time costs of
            processes and of memory that is used for the first time.
        """
        listen = f"{kind}:0:interface=127.0.0.1"
        reactor = options["reactor"]
        self.kind = kind
        self._server = stack.enter_context(
            serving(scratch / "files", scratch / f"{kind}.log", listen, reactor)
        )
        self._downloader = stack.enter_context(
            downloading(kind, self._server.port, options["parallel"], reactor)
        )
        self._downloader.turn(warming, lambda _: None)
        self._cpu = -self._server.cpuSeconds()
        self._turns: list[Statuses] = []

    def turn(self, names: list[str], onProgress: Callable[[int], None]) -> None:
        """Download these files, and store the results of the turn."""
        self._turns.append(self._downloader.turn(names, onProgress))

    def run(self, expected: dict[str, str]) -> DemoRun:
        """Return the results of all turns, of which the last one is the large file."""
        serverCPU = self._cpu + self._server.cpuSeconds()
        near, far = self._downloader.connections(), self._server.connections()
        return DemoRun(
            kind=self.kind,
            expected=expected,
            hashes=self._downloader.hashes(),
            bytes=sum(turn["bytes"] for turn in self._turns),
            seconds=sum(turn["seconds"] for turn in self._turns),
            largeBytes=self._turns[-1]["bytes"],
            largeSeconds=self._turns[-1]["seconds"],
            cpuSeconds=sum(turn["cpu"] for turn in self._turns) + serverCPU,
            latencies=[latency for turn in self._turns for latency in turn["latencies"]],
            near=near,
            far=far,
        )


def contest(
    scratch: Path, expected: dict[str, str], options: DemoOptions, progress: Progress
) -> list[DemoRun]:
    """
    Download all files over both transports, a few files at a time.

    The transports take turns in alternating order, so that other load on the machine affects both equally.
    """
    total = sum((scratch / "files" / name).stat().st_size for name in expected)
    small = [name for name in expected if name != files.LARGE]
    turns = [small[start : start + FILES_PER_TURN] for start in range(0, len(small), FILES_PER_TURN)]
    with ExitStack() as stack:
        contestants = [Contestant(kind, small, scratch, options, stack) for kind in ("smc", "tcp")]
        tasks = [progress.add_task(f"over {contestant.kind}:", total=total) for contestant in contestants]
        order = list(zip(contestants, tasks, strict=True))
        for names in [*turns, [files.LARGE]]:
            order.reverse()
            for contestant, task in order:
                before = progress.tasks[task].completed

                def onProgress(count: int, task: TaskID = task, before: float = before) -> None:
                    progress.update(task, completed=before + count)

                contestant.turn(names, onProgress)
                onProgress(sum((scratch / "files" / name).stat().st_size for name in names))
        return [contestant.run(expected) for contestant in contestants]


def demonstrate(options: DemoOptions, console: Console) -> int:
    """Run the demonstration, and return the exit status."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with tempfile.TemporaryDirectory(prefix="txrdma-demo-") as name:
        scratch = Path(name)
        with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
            task = progress.add_task("making files", total=None)

            def onProgress(count: int) -> None:
                progress.advance(task, count)

            expected = files.make(scratch / "files", options["large"] << 20, options["files"], onProgress)
            progress.update(task, total=progress.tasks[task].completed)
            runs = contest(scratch, expected, options, progress)
    complaints = [complaint for run in runs for complaint in run.complaints()]
    console.print(table(runs))
    for complaint in complaints:
        print(f"FAILED: {complaint}", file=sys.stderr)
    return 1 if complaints else 0


def _terminated(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def main(arguments: list[str]) -> int:
    """Run the command line program, and return the exit status."""
    try:
        import treq  # noqa: F401
        from rich.console import Console
    except ImportError as error:
        print(f"The demonstration needs {error.name}: pip install 'txrdma[demo]'", file=sys.stderr)
        return 1
    options = DemoOptions()  # type: ignore[no-untyped-call]  # from Twisted
    try:
        options.parseOptions(arguments)  # type: ignore[no-untyped-call]
    except usage.UsageError as error:
        print(f"txrdma.demo: {error}", file=sys.stderr)
        return 2
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, _terminated)  # so that folders and processes are removed, as on Ctrl-C
    console = Console() if sys.stdout.isatty() else Console(width=110)
    try:
        return demonstrate(options, console)
    except ProcessFailed as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
