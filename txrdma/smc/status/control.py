"""
Reports the connections and link groups of this process to tools of the same user.

Each process with live connections answers as L{txrdma.unix.answers} describes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, cast, ClassVar
from weakref import WeakKeyDictionary

from twisted.internet.interfaces import IReactorCore, IReactorFDSet, IReactorTime

from txrdma.kit.values import frozen
from txrdma.smc.common.reactoruse import reactorUse
from txrdma.smc.signalling.silence import silentPeers
from txrdma.unix.answers import Answering, opened
from txrdma.unix.sockets import Reactor

NAMESPACE = "txrdma/control"
"""Prefix of the abstract names at which processes answer."""


_answering: WeakKeyDictionary[Any, tuple[int, int]] = WeakKeyDictionary()
"""Process and user of the answering socket on each reactor."""

Report = Callable[[], dict[str, object]]
"""Returns a part of the answer, as values for JSON: L{txrdma.smc.status.report.report}, except in tests."""


def _owner() -> tuple[int, int]:
    """Return the identity of the process: its PID and effective user."""
    return os.getpid(), os.geteuid()


class ControlSocket(Answering):
    """The socket by which C{txrdma connections} and similar commands of the same user get their answers."""

    def __init__(self, reactor: Reactor, report: Report) -> None:
        self._clock = reactor
        self._status = report
        super().__init__(reactor, NAMESPACE, self._all, "the status of SMC connections")

    def _all(self) -> dict[str, object]:
        return {
            **self._status(),
            "silent": [
                {"peer": str(peer), "seconds": round(seconds, 1)}
                for peer, seconds in silentPeers(self._clock).remaining(self._clock.seconds())
            ],
        }


def openStatusSocket(reactor: object, report: Report) -> None:
    """
    Answer for this process while the reactor runs and SMC is in use on it. Idempotent.

    Call it again after a change of the user, or a fork. The socket is an internal reader of the reactor,
    which does not keep a program running.
    """
    uses = reactorUse(reactor)
    if not uses.isIdle and _answering.get(reactor) == _owner():
        return
    if getattr(reactor, "_internalReaders", None) is not None and IReactorCore.providedBy(reactor):
        appearance = _Appearance(reactor, report)
        uses.add(appearance)
        if not uses.isIdle:
            appearance.wake()


@frozen
class _Appearance:
    """The answering socket of one reactor, as a L{Suspendable<txrdma.smc.common.reactoruse.Suspendable>}."""

    reactor: Any
    report: Report
    isBusy: ClassVar[bool] = False

    def wake(self) -> None:
        """Answer from now on, or as soon as the reactor runs."""
        IReactorCore(self.reactor).callWhenRunning(self._appear)

    def rest(self) -> None:
        """Close the answering sockets on this reactor."""
        _answering.pop(self.reactor, None)
        internal: set[object] = self.reactor._internalReaders
        for reader in [each for each in internal if isinstance(each, ControlSocket)]:
            internal.discard(reader)
            reader.close()

    def _appear(self) -> None:
        internal: set[object] = self.reactor._internalReaders
        if any(isinstance(each, ControlSocket) and each.owner == _owner() for each in internal):
            return
        self.rest()
        control = None if reactorUse(self.reactor).isIdle else answer(self.reactor, self.report)
        if control is not None:
            internal.add(control)
            _answering[self.reactor] = control.owner


def answer(reactor: object, report: Report) -> ControlSocket | None:
    """Open the answering socket; return it, or None if another reactor answers or if that is impossible."""
    if not (IReactorFDSet.providedBy(reactor) and IReactorTime.providedBy(reactor)):
        return None
    if not sys.platform.startswith("linux"):
        return None
    return opened(partial(ControlSocket, cast(Reactor, reactor), report), "txrdma connections")
