"""Long operations in steps: shows their progress on a terminal, and lets Ctrl-C end them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator
from time import monotonic
from typing import Any, Final, TextIO, TYPE_CHECKING, TypeVar

from twisted.internet.task import deferLater

if TYPE_CHECKING:
    from rich.progress import Progress

_REDRAWN: Final = 0.1
_PAUSE_SECONDS: Final = 0.05

T = TypeVar("T")
Steps = Generator["tuple[int, int] | None", None, T]
"""Steps of an operation. They yield the work done and the total, or None for a pause only."""


class ProgressBar:
    """
    A progress bar on standard error if that is a terminal; otherwise it shows nothing.

    It is a context manager, which removes the bar at its end. Call it with the work done and the total.
    """

    def __init__(self, what: str, stream: TextIO | None = None) -> None:
        self._what = what
        self._stream = sys.stderr if stream is None else stream
        self._bar: Progress | None = None
        self._next = monotonic() + _REDRAWN
        self.isShown = self._stream.isatty()

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *reason: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, done: int, total: int) -> None:
        if not self.isShown:
            return
        now = monotonic()
        if now < self._next:
            return
        self._next = now + _REDRAWN
        if self._bar is None and not self._begin():
            return
        assert self._bar is not None
        self._bar.update(self._bar.task_ids[0], completed=done, total=total)
        self._bar.refresh()

    def named(self, what: str, done: int, total: int) -> None:
        """Show the progress of an operation with another name."""
        if what != self._what:
            self._what = what
            if self._bar is not None:
                self._bar.update(self._bar.task_ids[0], description=what)
        self(done, total)

    def _begin(self) -> bool:
        """Draw the bar, but not for short operations. Without C{rich}, return False and disable the bar."""
        try:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
        except ImportError:
            self.isShown = False
            return False
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        console = Console(file=self._stream)
        self._bar = Progress(*columns, console=console, transient=True, auto_refresh=False)
        self._bar.add_task(self._what)
        self._bar.start()
        return True


async def worked(reactor: Any, steps: Steps[T], progress: Callable[[int, int], object]) -> T:
    """Return the result of steps, with pauses in which Ctrl-C is handled; their progress is shown."""
    pauseAt = monotonic() + _PAUSE_SECONDS
    try:
        while True:
            try:
                done = next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
            if done is not None:
                progress(*done)
            if monotonic() >= pauseAt:
                await deferLater(reactor, 0.0)
                pauseAt = monotonic() + _PAUSE_SECONDS
    finally:
        steps.close()


async def cooperative(
    reactor: Any, progress: Callable[[int, int], object], total: int, steps: Iterator[None]
) -> None:
    """Run about C{total} steps, with pauses like L{worked} if there is a reactor, and show the progress."""

    def counted() -> Steps[None]:
        for number, _step in enumerate(steps, 1):
            yield min(number, total), total

    if reactor is not None:
        await worked(reactor, counted(), progress)
        return
    for done in counted():
        if done is not None:
            progress(*done)
