"""
Tell the same user's tools what this process's connections and link groups are doing.

Each process with live connections listens on an abstract UNIX socket, C{\\0txrdma/control/<uid>/<pid>}, and
answers whoever connects with one line of JSON. Both sides look at SO_PEERCRED: a name in that space can be
taken by anybody. The sockets are found in C{/proc/net/unix}; there is no file that could outlive its process.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from collections.abc import Callable
from dataclasses import field
from pathlib import Path
from threading import Thread
from typing import Any, cast, ClassVar
from weakref import WeakKeyDictionary

from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.endpoints import connectProtocol, UNIXClientEndpoint
from twisted.internet.interfaces import IReactorCore, IReactorFDSet, IReactorTime, IReactorUNIX
from twisted.internet.protocol import connectionDone, Protocol
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.logs import Seldom
from txrdma.smc.common.presence import presenceOn
from txrdma.smc.handshake._silence import silentPeers
from txrdma.unixsockets import LocalListener, peerOf, Reactor
from txrdma.values import frozen

_log = Logger()
_seldom = Seldom(_log)

_LISTENING = 0x10000
"""__SO_ACCEPTCON, among the flags of C{/proc/net/unix}."""

_LONGEST_ANSWER = 64 << 20
_PATIENCE = 10.0

PROC_NET_UNIX = Path("/proc/net/unix")

NAMESPACE = "txrdma/control"
"""The beginning of the abstract names on which processes answer."""


_answering: WeakKeyDictionary[Any, tuple[int, int]] = WeakKeyDictionary()
"""The process and the user by whose names there is a socket on a reactor."""

Report = Callable[[], dict[str, object]]
"""Gives the part of an answer that JSON can carry: L{txrdma.smc.insight.report.report}, but for tests."""


class IReactor(IReactorUNIX, IReactorTime):
    """The interfaces of a reactor that asking other processes needs: UNIX sockets and time."""


def controlName(pid: int) -> str:
    """The abstract name on which a process of our user answers."""
    return f"\0{NAMESPACE}/{os.geteuid()}/{pid}"


def _owner() -> tuple[int, int]:
    """The identity of the process: its PID and present user."""
    return os.getpid(), os.geteuid()


class Control(LocalListener):
    """
    Answers whoever connects, and has the right to know.

    The reactor only accepts: an answer that the socket's buffer can't hold is sent by a thread, so that who
    asks and does not listen holds up nobody.

    @ivar owner: the process and the user by whose name it answers.
    """

    def __init__(self, reactor: Reactor, report: Report) -> None:
        """
        @raise OSError: the name is taken.
        """
        self._clock = reactor
        self._report = report
        self.owner = _owner()
        name = controlName(os.getpid())
        super().__init__(reactor, socket.SOCK_STREAM, name, self._tell, "to know our connections")

    def _tell(self, asker: socket.socket) -> None:
        answer = self._answer()
        try:
            sent = asker.send(answer)
        except OSError:
            sent = len(answer)  # nobody listens any more
        if sent == len(answer):
            asker.close()
        else:
            Thread(target=_sendRest, args=(asker, answer[sent:]), daemon=True).start()

    def _answer(self) -> bytes:
        told = {
            "pid": os.getpid(),
            "command": [os.path.basename(sys.executable), *sys.argv],
            **self._report(),
            "silent": [
                {"peer": str(peer), "seconds": round(seconds, 1)}
                for peer, seconds in silentPeers(self._clock).remaining(self._clock.seconds())
            ],
        }
        return json.dumps(told).encode() + b"\n"


def _sendRest(asker: socket.socket, answer: bytes) -> None:
    with asker:
        asker.settimeout(_PATIENCE)
        try:
            asker.sendall(answer)
        except OSError:
            pass  # it has gone, or does not listen


def appear(reactor: object, report: Report) -> None:
    """
    Answer for this process while SMC is in use on this reactor; once is enough, more often is fine.

    The socket is there once the reactor runs: C{twistd --uid} has given up its privileges by then. A process
    that changes its user later, or forks, answers by its new name from the next time on.

    It is one of the reactor's internal readers, like its own wakers: it keeps nothing running.
    """
    if getattr(reactor, "_internalReaders", None) is not None and IReactorCore.providedBy(reactor):
        presence = presenceOn(reactor)
        if not presence.isIdle and _answering.get(reactor) == _owner():
            return
        appearance = _Appearance(reactor, report)
        presence.add(appearance)
        if not presence.isIdle:
            appearance.wake()


@frozen
class _Appearance:
    """The socket of one reactor, as something that rests: see L{txrdma.smc.common.presence}."""

    reactor: Any
    report: Report
    isBusy: ClassVar[bool] = False

    def wake(self) -> None:
        """Answer from now on, or as soon as the reactor runs."""
        IReactorCore(self.reactor).callWhenRunning(self._appear)

    def rest(self) -> None:
        """Close the sockets on this reactor that answer questions about its connections."""
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
        control = None if presenceOn(self.reactor).isIdle else answer(self.reactor, self.report)
        if control is not None:
            internal.add(control)
            _answering[self.reactor] = control.owner


def answer(reactor: object, report: Report) -> Control | None:
    """
    Begin to answer for this process.

    @param report: gives what there is to tell, whenever somebody asks.
    @return: what to close, or None where this can't be had: on systems without abstract names, and for one
        more reactor in a process that answers already.
    """
    if not (IReactorFDSet.providedBy(reactor) and IReactorTime.providedBy(reactor)):
        return None
    if not sys.platform.startswith("linux"):
        return None
    try:
        return Control(cast(Reactor, reactor), report)
    except OSError as error:
        _seldom.info(str(error), "Not answering `txrdma connections`: {error}", error=error)
        return None


@frozen
class Answer:
    """
    The answer of one process that was asked for its connections.

    @ivar linkGroups: those of our own stack; see L{txrdma.smc.insight.linkgroups}.
    @ivar statistics: counters and gauges; see L{txrdma.smc.insight.statistics}.
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
    """
    The processes of our user that would answer, or say so.

    @param listing: as C{/proc/net/unix} has it, which is read otherwise.
    """
    if listing is None:
        listing = PROC_NET_UNIX.read_text(errors="replace")
    # The zero at the beginning of an abstract name is shown as an @.
    form = re.compile(
        r"^[0-9a-f]+: [0-9A-F]+ [0-9A-F]+ (?P<flags>[0-9A-F]+) .* "
        rf"@{re.escape(NAMESPACE)}/{os.geteuid()}/(?P<pid>[0-9]+)$"
    )
    matches = (form.match(line) for line in listing.splitlines())
    return sorted({int(match["pid"]) for match in matches if match and int(match["flags"], 16) & _LISTENING})


class _Asking(Protocol):
    """The asking end of a UNIX connection: it reads one answer."""

    def __init__(self) -> None:
        self.answered: Deferred[bytes] = Deferred(lambda _: self._abort())
        self._chunks: list[bytes] = []
        self._length = 0

    def connectionMade(self) -> None:
        # ITransport has no word for the socket; Twisted's UNIX transports have this attribute.
        user = peerOf(cast(socket.socket, self.transport.socket)).user  # type: ignore[union-attr]
        if user != os.geteuid():
            self._finish(Failure(PermissionError(f"the socket belongs to user {user}")))

    def dataReceived(self, data: bytes) -> None:
        self._chunks.append(data)
        self._length += len(data)
        if data.endswith(b"\n"):
            self._finish(b"".join(self._chunks))
        elif self._length > _LONGEST_ANSWER:
            self._finish(Failure(ValueError("the answer does not end")))

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._finish(Failure(ConnectionError("the process hung up")))

    def _finish(self, result: bytes | Failure) -> None:
        if not self.answered.called:
            self.answered.callback(result)
            self._abort()

    def _abort(self) -> None:
        assert self.transport is not None
        self.transport.abortConnection()  # type: ignore[attr-defined]  # ITransport lacks it, UNIX has it


async def _askProcess(reactor: IReactor, pid: int, timeoutSeconds: float) -> Answer:
    asking = _Asking()
    try:
        endpoint = UNIXClientEndpoint(reactor, controlName(pid), timeout=timeoutSeconds)
        await connectProtocol(endpoint, asking)
        said = json.loads(await asking.answered.addTimeout(timeoutSeconds, reactor))
        return Answer(
            pid,
            [str(word) for word in said["command"]],
            list(said["connections"]),
            list(said.get("linkGroups", ())),  # a process with an older version has no word for these
            dict(said.get("statistics", {})),
            list(said.get("silent", ())),
        )
    except Exception as error:  # whatever it is, the other processes' answers are still wanted
        return Answer(pid, error=f"no answer: {error or type(error).__name__}")


def askAll(reactor: IReactor, timeoutSeconds: float = 3.0) -> Deferred[list[Answer]]:
    """Ask every process of our user on this host; one that hangs is told in its C{error}."""
    return gatherResults(
        [Deferred.fromCoroutine(_askProcess(reactor, pid, timeoutSeconds)) for pid in answering()]
    )
