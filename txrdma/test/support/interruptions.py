"""Functions of which one call raises, for tests that an exception affects only what the call belongs to."""

from __future__ import annotations

import pkgutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from inspect import isclass, isfunction
from types import ModuleType
from typing import Any

from twisted.python.failure import Failure

from txrdma.kit.wire import Layout

Function = tuple[Any, str]
"""A class or module, and the name of one of its functions."""


def functionsOf(owner: Any, trivial: Iterable[str] = ()) -> Iterator[str]:
    """Return the names of the functions of a class or module that can raise, except these."""
    module = owner.__module__ if isinstance(owner, type) else owner.__name__
    for name, each in list(vars(owner).items()):
        isOwn = isfunction(each) and each.__module__ == module
        if isOwn and not name.startswith("__") and name not in trivial:
            yield name


def ownersIn(*packages: ModuleType) -> Iterator[Any]:
    """Find the modules of packages, and their classes; not layouts, which replace their own methods."""
    for package in packages:
        for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            module: ModuleType = import_module(found.name)
            yield module
            for each in vars(module).values():
                isOwn = isclass(each) and each.__module__ == found.name
                if not isOwn or issubclass(each, (BaseException, Layout)):
                    continue
                if not getattr(each, "_is_protocol", False):
                    yield each


def readerOf(error: BaseException) -> Any:
    """Return the reader or writer that has raised an exception; None if it was a delayed call."""
    found = error.__traceback__
    while found is not None:
        if found.tb_frame.f_code.co_name in ("doRead", "doWrite"):
            return found.tb_frame.f_locals.get("self")
        found = found.tb_next
    return None


def _importers(function: Any) -> list[ModuleType]:
    """Return the modules that have a function by its name: its own one, and those that import it."""
    found = [each for name, each in sys.modules.items() if name.startswith("txrdma.")]
    return [each for each in found if vars(each).get(function.__name__) is function]


class Interruptions:
    """
    Counts the calls of functions, and lets one call of one function raise C{ZeroDivisionError}.

    @ivar counts: number of calls since L{begin}, of the selected function, or of each one.
    @ivar hasRaised: whether the selected call has raised; C{owner}: the class or module of its function.
    """

    def __init__(
        self,
        patch: Callable[[Any, str, Any], object],
        owners: Iterable[Any],
        isAffected: Callable[..., bool],
        trivial: Iterable[str] = (),
    ) -> None:
        """
        @param patch: C{TestCase.patch}.
        @param owners: classes and modules.
        @param isAffected: returns whether a call with these arguments counts.
        @param trivial: names of functions that only contain exceptions of others, or begin an end.
        """
        self._isAffected = isAffected
        self.begin()
        for owner in owners:
            for name in functionsOf(owner, trivial):
                usual, replacement = getattr(owner, name), self._replacement(owner, name)
                for each in [owner] if isinstance(owner, type) else _importers(usual):
                    patch(each, name, replacement)

    def begin(self, function: Function | None = None, number: int = 0) -> None:
        """Reset the counts, and select the call that raises; by default none."""
        self.counts: Counter[Function] = Counter()
        self.hasRaised = False
        self._function, self._number = function, number
        self.owner = None if function is None else function[0]

    def _replacement(self, owner: Any, name: str) -> Callable[..., Any]:
        usual, function = getattr(owner, name), (owner, name)

        def replacement(*arguments: Any, **named: Any) -> Any:
            if self._function in (None, function) and self._isAffected(*arguments):
                self.counts[function] += 1
                if function == self._function and self.counts[function] == self._number:
                    self.hasRaised = True
                    raise ZeroDivisionError(f"{name} is interrupted")
            return usual(*arguments, **named)

        return replacement

    def each(self, most: int = 3, stride: int = 1) -> Iterator[tuple[Function, int]]:
        """
        Select one after the other the calls that were counted; their number is yielded with the function.

        @param most: largest number of calls of a function: the first ones, and the last one.
        @param stride: select only every call whose number in the list has this distance from the others.
        """
        sites = [
            (function, number)
            for function, count in self.counts.items()
            for number in sorted({*range(1, min(most, count + 1)), count})
        ]
        for function, number in sites[::stride]:
            self.begin(function, number)
            yield function, number

    def findings(
        self, play: Callable[[], list[str]], most: int = 3, stride: int = 1
    ) -> dict[tuple[str, str, int], list[str]]:
        """
        Play once for each call that L{each} selects; return what is wrong, by the selected call.

        After an exception of C{play}, which is a finding, too, no further call is selected.
        """
        found = {}
        for (owner, name), number in self.each(most, stride):
            try:
                wrong = play()
            except Exception:
                found[owner.__name__, name, number] = [Failure().getTraceback()]
                break
            if wrong:
                found[owner.__name__, name, number] = wrong
        return found
