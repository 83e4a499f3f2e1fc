"""Listeners of events, which may be added and removed at any time, also by each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic

from typing_extensions import ParamSpec

from twisted.logger import Logger

P = ParamSpec("P")


class Listeners(Generic[P]):
    """The listeners of one kind of event; true if there are any. Exceptions of one do not affect others."""

    def __init__(self, log: Logger, message: str) -> None:
        """@param message: logged if a listener raises; it has the fields C{listener} and C{event}."""
        self._log, self._message = log, message
        self._known: dict[object, Callable[P, object]] = {}

    def __bool__(self) -> bool:
        return bool(self._known)

    def add(self, listener: Callable[P, object]) -> Callable[[], None]:
        """Notify a listener from now on. The returned function removes it, and is idempotent."""
        key = object()
        self._known[key] = listener

        def remove() -> None:
            self._known.pop(key, None)

        return remove

    def notify(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call all listeners; one that another one removes is not called."""
        for key, listener in tuple(self._known.items()):
            if key in self._known:
                try:
                    listener(*args, **kwargs)
                except Exception:
                    self._log.failure(self._message, listener=listener, event=args[0] if args else None)

    def clear(self) -> None:
        """Remove all listeners."""
        self._known.clear()
