"""
Serve a folder with C{twistd web} over C{smc:} and download all of it in another process, then over C{tcp:}.
"""

from __future__ import annotations

import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from twisted.python import usage

from txrdma.demo import files
from txrdma.demo.processes import download, ProcessFailed, serving, Told
from txrdma.demo.report import Run, table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress


class Options(usage.Options):
    """The command line."""

    synopsis = "[options]"
    longdesc = (
        "Serves a folder with twistd web over smc: and downloads all of it in another process, then over "
        "tcp:, and compares every file's SHA-256."
    )
    optParameters = [
        ["large", None, 256, "Size of the large file, in MiB.", int],
        ["files", None, None, "How many of the standard library's files at most.", int],
        ["parallel", None, 8, "How many downloads at the same time.", int],
        ["reactor", None, None, "The reactor of both processes."],
    ]

    def postOptions(self) -> None:
        """Refuse what makes no sense."""
        if self["large"] < 1 or self["parallel"] < 1 or (self["files"] is not None and self["files"] < 1):
            raise usage.UsageError("--large, --files and --parallel want numbers from 1 up")


def once(kind: str, scratch: Path, expected: dict[str, str], options: Options, progress: Progress) -> Run:
    """One server, one download of everything."""
    total = sum((scratch / "files" / name).stat().st_size for name in expected)
    task = progress.add_task(f"over {kind}:", total=total)
    listen = f"{kind}:0:interface=127.0.0.1"
    with serving(scratch / "files", scratch / f"{kind}.log", listen, options["reactor"]) as server:
        cpu = server.cpuSeconds()
        far: list[Told] = []

        def look() -> None:
            nonlocal cpu
            cpu = server.cpuSeconds() - cpu
            far.extend(server.connections())

        orders = {
            "kind": kind,
            "base": f"http://127.0.0.1:{server.port}",
            "names": [name for name in expected if name != files.LARGE],
            "large": files.LARGE,
            "parallel": options["parallel"],
        }
        result, hashes = download(
            orders, options["reactor"], lambda count, _files: progress.update(task, completed=count), look
        )
    progress.update(task, completed=total)
    return Run(
        kind=kind,
        expected=expected,
        hashes=hashes,
        files=result["files"],
        bytes=result["bytes"],
        seconds=result["seconds"],
        largeBytes=(scratch / "files" / files.LARGE).stat().st_size,
        largeSeconds=result["largeSeconds"],
        cpuSeconds=result["cpu"] + cpu,
        latencies=result["latencies"],
        near=result["connections"],
        far=far,
    )


def demonstrate(options: Options, console: Console) -> int:
    """All of it; the exit status."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with tempfile.TemporaryDirectory(prefix="txrdma-demo-") as name:
        scratch = Path(name)
        with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
            task = progress.add_task("making files", total=None)
            expected = files.make(
                scratch / "files",
                options["large"] << 20,
                options["files"],
                lambda count: progress.advance(task, count),
            )
            progress.update(task, total=progress.tasks[task].completed)
            runs = [once(kind, scratch, expected, options, progress) for kind in ("smc", "tcp")]
    complaints = [complaint for run in runs for complaint in run.complaints()]
    console.print(table(runs))
    for complaint in complaints:
        print(f"FAILED: {complaint}", file=sys.stderr)
    return 1 if complaints else 0


def _terminated(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def main(arguments: list[str]) -> int:
    """The command."""
    try:
        import treq  # noqa: F401
        from rich.console import Console
    except ImportError as error:
        print(f"The demonstration needs {error.name}: pip install 'txrdma[demo]'", file=sys.stderr)
        return 1
    options = Options()  # type: ignore[no-untyped-call]  # of Twisted's
    try:
        options.parseOptions(arguments)  # type: ignore[no-untyped-call]
    except usage.UsageError as error:
        print(f"txrdma.demo: {error}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, _terminated)  # so that folders and processes go, as on Ctrl-C
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
