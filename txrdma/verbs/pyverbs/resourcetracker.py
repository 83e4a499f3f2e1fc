"""
Closing objects of pyverbs, and finding their descriptors.

pyverbs closes collected objects in any order, and if a close failed, closes the object again, in freed
memory. So everything is closed explicitly, children first, and an object that can't be closed is never
collected.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any, Final

from twisted.logger import Logger

from txrdma.error import DeviceUnavailable
from txrdma.kit.logs import errorText
from txrdma.verbs.pyverbs.bindings import Pyverbs

_log = Logger()

_EVENTS: Final = "[infinibandevent]"
_DISASSOCIATED: Final = "RDMAV_ALLOW_DISASSOC_DESTROY"
_opening = Lock()


class ResourceTracker:
    """Closes the objects of one device; if one is C{stuck}, its parents stay open."""

    def __init__(self) -> None:
        self.stuck = False
        self._owner = os.getpid()

    def close(self, resource: Any) -> None:
        """Close an object of pyverbs whose children are closed."""
        if self.isInherited:
            leak(resource)
            self.stuck = True
            return
        try:
            resource.close()
        except Exception as error:
            leak(resource)
            self.stuck = True
            _log.warn(
                "{resource} can't be closed: {error}",
                resource=type(resource).__name__,
                error=errorText(error),
            )

    @property
    def isInherited(self) -> bool:
        """Whether this is a forked process, where closing would take objects from the parent."""
        return os.getpid() != self._owner

    def closeContext(self, context: Any) -> None:
        """Close the context of the device, unless an object of it is still open."""
        if self.stuck:
            leak(context)
        else:
            self.close(context)


def closeEach(*things: Any) -> None:
    """Close all of these; failures are logged."""
    for resource in things:
        try:
            resource.close()
        except Exception:
            _log.failure("Unexpected error while closing {resource!r}", resource=resource)


def leak(resource: object) -> None:
    """Leak a reference, so that the object is never collected."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(resource))


def openContext(verbs: Pyverbs, name: str) -> tuple[Any, int | None]:
    """Open the device; return it and the non-blocking descriptor of its asynchronous events."""
    with _newEvents() as new, _disassociatedDestroy():
        context = verbs.Context(name=name)
    if len(new) != 1:
        _log.warn(
            "no asynchronous events of {name}: their descriptor is ambiguous: {new}", name=name, new=new
        )
        return context, None
    os.set_blocking(new[0], False)
    return context, new[0]


def openChannel(verbs: Pyverbs, context: Any) -> tuple[Any, int]:
    """
    Open a completion channel; return it and its non-blocking descriptor.

    Later releases of pyverbs report the descriptor; for 44 it is the only new one.
    """
    with _newEvents() as new:
        channel = verbs.CompChannel(context)
    descriptor = getattr(channel, "fd", None)
    if descriptor is None:
        if len(new) != 1:
            channel.close()
            raise DeviceUnavailable(
                f"the descriptor of a completion channel is ambiguous: {new}; newer pyverbs reports it"
            )
        descriptor = new[0]
    os.set_blocking(descriptor, False)
    return channel, descriptor


@contextmanager
def _disassociatedDestroy() -> Iterator[None]:
    """Let libibverbs destroy objects of a removed device, by a variable that it reads once."""
    if _DISASSOCIATED in os.environ:
        yield
        return
    os.environ[_DISASSOCIATED] = "1"
    try:
        yield
    finally:
        del os.environ[_DISASSOCIATED]


@contextmanager
def _newEvents() -> Iterator[list[int]]:
    """Yield the event descriptors of libibverbs that are opened in this context."""
    new: list[int] = []
    with _opening:
        before = _events()
        yield new
        new.extend(_events() - before)


def _events() -> set[int]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            if _EVENTS in os.readlink(f"/proc/self/fd/{name}"):
                found.add(int(name))
        except OSError:
            pass  # closed concurrently
    return found
