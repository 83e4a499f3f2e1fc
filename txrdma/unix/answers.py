r"""
Processes that tell tools of the same user what they are doing, each by an abstract UNIX socket.

A name is C{\0NAMESPACE/UID/PID}; whoever connects gets one line of JSON. Both sides look at SO_PEERCRED: a
name in that space can be taken by anybody. The sockets are found in C{/proc/net/unix}; there is no file that
could outlive its process.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any, cast, Final, Generic, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import connectProtocol, UNIXClientEndpoint
from twisted.internet.interfaces import IReactorCore, IReactorTime, IReactorUNIX
from twisted.internet.protocol import connectionDone, Protocol
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.kit.logs import Seldom
from txrdma.unix.sockets import LocalListener, peerOf, Reactor

T = TypeVar("T")

_seldom = Seldom(Logger())

_LISTENING: Final = 0x10000
"""__SO_ACCEPTCON, among the flags of C{/proc/net/unix}."""

_LONGEST_ANSWER: Final = 64 << 20
_PATIENCE: Final = 10.0

PROC_NET_UNIX: Final = Path("/proc/net/unix")


class IReactor(IReactorUNIX, IReactorTime):
    """The interfaces of a reactor that asking other processes needs: UNIX sockets and time."""


def nameIn(namespace: str, pid: int) -> str:
    """The abstract name on which a process of our user answers."""
    return f"\0{namespace}/{os.geteuid()}/{pid}"


class Answering(LocalListener):
    """
    Answers whoever connects, and has the right to know.

    The reactor only accepts: an answer that the socket's buffer can't hold is sent by a thread, so that who
    asks and does not listen holds up nobody.

    @ivar owner: the process and the user by whose name it answers.
    """

    def __init__(
        self, reactor: Reactor, namespace: str, report: Callable[[], dict[str, Any]], purpose: str
    ) -> None:
        """
        @param report: gives what JSON can carry; the process and its command line are added.
        @raise OSError: the name is taken.
        """
        self._report = report
        self.owner = (os.getpid(), os.geteuid())
        super().__init__(reactor, socket.SOCK_STREAM, nameIn(namespace, os.getpid()), self._tell, purpose)

    def _tell(self, asker: socket.socket) -> None:
        command = [os.path.basename(sys.executable), *sys.argv]
        answer = json.dumps({"pid": os.getpid(), "command": command, **self._report()}).encode() + b"\n"
        try:
            sent = asker.send(answer)
        except OSError:
            sent = len(answer)  # nobody listens any more
        if sent == len(answer):
            asker.close()
        else:
            Thread(target=_sendRest, args=(asker, answer[sent:]), daemon=True).start()


def _sendRest(asker: socket.socket, answer: bytes) -> None:
    with asker:
        asker.settimeout(_PATIENCE)
        try:
            asker.sendall(answer)
        except OSError:
            pass  # it has gone, or does not listen


class Disclosure(Generic[T]):
    """
    The parts of this process that tools of one kind are told of, and the socket that answers these tools.

    A process answers under a namespace as long as it has such a part on a running reactor.

    @ivar parts: those that there are, each with its reactor.
    """

    def __init__(self, namespace: str, command: str, report: Callable[[], dict[str, Any]]) -> None:
        """
        @param command: the tool, as users call it.
        @param report: gives what there is to tell; see L{Answering}.
        """
        self.parts: dict[T, Any] = {}
        self._namespace, self._command, self._report = namespace, command, report
        self._answering: dict[Any, Answering] = {}

    def appear(self, reactor: Any, part: T) -> None:
        """
        Tell of a part from now on; whoever asks is answered once the reactor runs.

        The socket is one of the reactor's internal readers, like its own wakers: it keeps nothing running.
        """
        self.parts[part] = reactor
        if getattr(reactor, "_internalReaders", None) is not None and IReactorCore.providedBy(reactor):
            reactor.callWhenRunning(self._answer, reactor)

    def leave(self, part: T) -> bool:
        """
        Tell of a part no more; with the last one nobody is answered any more.

        @return: False for a part that has never appeared, or has left.
        """
        reactor = self.parts.pop(part, None)
        if reactor is None:
            return False
        if reactor not in self.parts.values():
            listener = self._answering.pop(reactor, None)
            if listener is not None:
                reactor._internalReaders.discard(listener)
                listener.close()
        return True

    def _answer(self, reactor: Any) -> None:
        if reactor in self._answering or reactor not in self.parts.values():
            return
        try:
            listener = Answering(reactor, self._namespace, self._report, "to know our counters")
        except OSError as error:  # another reactor of this process answers, or there are no abstract names
            told = {"command": self._command, "error": error}
            _seldom.info(f"{self._command} {error}", "Not answering `{command}`: {error}", **told)
            return
        reactor._internalReaders.add(listener)
        self._answering[reactor] = listener


def processesIn(namespace: str, listing: str | None = None) -> list[int]:
    """
    The processes of our user that would answer, or say so.

    @param listing: as C{/proc/net/unix} has it, which is read otherwise.
    """
    if listing is None:
        listing = PROC_NET_UNIX.read_text(errors="replace")
    # The zero at the beginning of an abstract name is shown as an @.
    form = re.compile(
        r"^[0-9a-f]+: [0-9A-F]+ [0-9A-F]+ (?P<flags>[0-9A-F]+) .* "
        rf"@{re.escape(namespace)}/{os.geteuid()}/(?P<pid>[0-9]+)$"
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


async def askProcess(reactor: IReactor, namespace: str, pid: int, timeoutSeconds: float) -> dict[str, Any]:
    """
    Ask one process; what it says is JSON's dictionary, whatever is in it.

    @raise Exception: it did not answer in time, or belongs to another user, or talks nonsense.
    """
    asking = _Asking()
    endpoint = UNIXClientEndpoint(reactor, nameIn(namespace, pid), timeout=timeoutSeconds)
    await connectProtocol(endpoint, asking)
    said = json.loads(await asking.answered.addTimeout(timeoutSeconds, reactor))
    return {"command": [], **said}
