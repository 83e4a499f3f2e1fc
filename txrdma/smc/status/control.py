"""
Reports the connections and link groups of this process to tools of the same user.

Each process with live connections answers as L{txrdma.unix.answers} describes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import field
from typing import Any, cast, ClassVar
from weakref import WeakKeyDictionary

from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.interfaces import IReactorCore, IReactorFDSet, IReactorTime
from twisted.logger import Logger

from txrdma.kit.logs import RateLimitedLogger
from txrdma.kit.values import frozen
from txrdma.smc.common.reactoruse import reactorUse
from txrdma.smc.signalling.silence import silentPeers
from txrdma.unix.answers import Answering, askProcess, IReactor, nameIn, processesIn
from txrdma.unix.sockets import Reactor

_log = Logger()
_rateLimited = RateLimitedLogger(_log)

NAMESPACE = "txrdma/control"
"""The beginning of the abstract names on which processes answer."""


_answering: WeakKeyDictionary[Any, tuple[int, int]] = WeakKeyDictionary()
"""The process and the user by whose names there is a socket on a reactor."""

Report = Callable[[], dict[str, object]]
"""Gives the part of an answer that JSON can carry: L{txrdma.smc.status.report.report}, but for tests."""


def controlName(pid: int) -> str:
    """The abstract name on which a process of our user answers."""
    return nameIn(NAMESPACE, pid)


def _owner() -> tuple[int, int]:
    """The identity of the process: its PID and present user."""
    return os.getpid(), os.geteuid()


class Control(Answering):
    """Answers tools that connect, if they run as our user or root."""

    def __init__(self, reactor: Reactor, report: Report) -> None:
        self._clock = reactor
        self._status = report
        super().__init__(reactor, NAMESPACE, self._all, "to know our connections")

    def _all(self) -> dict[str, object]:
        return {
            **self._status(),
            "silent": [
                {"peer": str(peer), "seconds": round(seconds, 1)}
                for peer, seconds in silentPeers(self._clock).remaining(self._clock.seconds())
            ],
        }


def appear(reactor: object, report: Report) -> None:
    """
    Answer for this process while SMC is in use on this reactor, from when it runs on. Idempotent.

    Call it again after a change of the user, or a fork. The socket is an internal reader of the reactor: it
    keeps nothing running.
    """
    presence = reactorUse(reactor)
    if not presence.isIdle and _answering.get(reactor) == _owner():
        return
    if getattr(reactor, "_internalReaders", None) is not None and IReactorCore.providedBy(reactor):
        appearance = _Appearance(reactor, report)
        presence.add(appearance)
        if not presence.isIdle:
            appearance.wake()


@frozen
class _Appearance:
    """The socket of one reactor, as something that rests: see L{txrdma.smc.common.reactoruse}."""

    reactor: Any
    report: Report
    isBusy: ClassVar[bool] = False

    def wake(self) -> None:
        """Answer from now on, or as soon as the reactor runs."""
        IReactorCore(self.reactor).callWhenRunning(self._appear)

    def rest(self) -> None:
        """Close the sockets on this reactor that answer."""
        _answering.pop(self.reactor, None)
        internal: set[object] = self.reactor._internalReaders
        for reader in [each for each in internal if isinstance(each, Control)]:
            internal.discard(reader)
            reader.close()

    def _appear(self) -> None:
        internal: set[object] = self.reactor._internalReaders
        if any(isinstance(each, Control) and each.owner == _owner() for each in internal):
            return
        self.rest()
        control = None if reactorUse(self.reactor).isIdle else answer(self.reactor, self.report)
        if control is not None:
            internal.add(control)
            _answering[self.reactor] = control.owner


def answer(reactor: object, report: Report) -> Control | None:
    """Begin to answer; return an object to close, or None if another reactor does, or it is impossible."""
    if not (IReactorFDSet.providedBy(reactor) and IReactorTime.providedBy(reactor)):
        return None
    if not sys.platform.startswith("linux"):
        return None
    try:
        return Control(cast(Reactor, reactor), report)
    except OSError as error:
        _rateLimited.info(str(error), "Not answering `txrdma connections`: {error}", error=error)
        return None


@frozen
class Answer:
    """
    The answer of one process that was asked for its connections.

    @ivar linkGroups: those of our own stack; see L{txrdma.smc.status.report}.
    @ivar statistics: counters and gauges; see L{txrdma.smc.status.statistics}.
    @ivar silent: the peers that did not answer a handshake of late, and for how many seconds connections to
        them are plain TCP without asking.
    @ivar error: why there are no connections, when it did not answer; otherwise empty.
    """

    pid: int
    command: list[str] = field(default_factory=list)
    connections: list[dict[str, object]] = field(default_factory=list)
    linkGroups: list[dict[str, object]] = field(default_factory=list)
    statistics: dict[str, Any] = field(default_factory=dict)
    silent: list[dict[str, object]] = field(default_factory=list)
    error: str = ""


def answering(listing: str | None = None) -> list[int]:
    """The processes of this user that claim to answer, by the content of C{/proc/net/unix}."""
    return processesIn(NAMESPACE, listing)


async def _askProcess(reactor: IReactor, pid: int, timeoutSeconds: float) -> Answer:
    try:
        answer = await askProcess(reactor, NAMESPACE, pid, timeoutSeconds)
        return Answer(
            pid,
            [str(word) for word in answer["command"]],
            list(answer["connections"]),
            list(answer.get("linkGroups", ())),  # a process with an older version has no word for these
            dict(answer.get("statistics", {})),
            list(answer.get("silent", ())),
        )
    except Exception as error:  # whatever it is, the other processes' answers are still wanted
        return Answer(pid, error=f"no answer: {error or type(error).__name__}")


def askAll(reactor: IReactor, timeoutSeconds: float = 3.0) -> Deferred[list[Answer]]:
    """Query every process of this user on this host; for one that does not answer C{error} is set."""
    return gatherResults(
        [Deferred.fromCoroutine(_askProcess(reactor, pid, timeoutSeconds)) for pid in answering()]
    )
