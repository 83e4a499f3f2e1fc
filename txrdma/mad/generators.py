"""
Work in python-rdma's style: generators that yield the calls for which they wait.

A generator yields calls, other work, queued tasks, or None. Nested generators do not make the stack grow.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Coroutine, Generator
from typing import Any, Union

from twisted.logger import Logger

_log = Logger()

Work = Union[Coroutine[Any, Any, Any], Generator[Any, Any, Any]]
"""A piece of work: a coroutine or a generator."""


def coroutineOf(work: Work) -> Coroutine[Any, Any, Any]:
    """Coroutine of a piece of work; raise C{TypeError} if it is neither a coroutine nor a generator."""
    if inspect.iscoroutine(work):
        return work
    if inspect.isgenerator(work):
        return _followed(work)
    raise TypeError(f"{work!r} is neither a coroutine nor a generator")


def close(work: Work) -> None:
    """End a piece of work that was begun; an exception in its end is logged."""
    with _log.failuresHandled("{work!r} raised an exception when it was closed", work=work):
        work.close()


async def _followed(work: Generator[Any, Any, Any]) -> Any:
    """Run a generator and those that it yields, each resumed with the result of what it has waited for."""
    stack = [work]
    value: Any = None
    error: Exception | None = None
    try:
        while stack:
            try:
                yielded = stack[-1].send(value) if error is None else stack[-1].throw(error)
            except StopIteration as end:
                stack.pop()
                value, error = _done(end.value) if stack else end.value, None
                continue
            except Exception as failed:
                stack.pop()
                value, error = None, failed
                continue
            value = error = None
            if inspect.isgenerator(yielded):
                stack.append(yielded)
            elif isinstance(yielded, Awaitable):
                try:
                    value = await yielded
                except Exception as failed:
                    error = failed
                else:
                    value = _done(value) if inspect.iscoroutine(yielded) else value
            elif yielded is not None:
                only = "only calls, other work, what was queued, and None"
                error = TypeError(f"work cannot yield {yielded!r}, {only}")
    finally:
        while stack:
            close(stack.pop())
    if error is not None:
        raise error
    return value


def _done(value: Any) -> Any:
    """Result of other work for the generator that yielded it; True if it has no result."""
    return True if value is None else value
