"""
Tell the same user's tools what this process's connections are doing.

Each process with live connections listens on an abstract UNIX socket, C{\\0txrdma/control/<uid>/<pid>}, and
answers whoever connects with one line of JSON. Both sides look at SO_PEERCRED: a name in that space can be
taken by anybody. The sockets are found in C{/proc/net/unix}; there is no file that could outlive its process.
"""

from __future__ import annotations

import json
import os
import re
import socket
import struct
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import cast

from zope.interface import implementer

from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.endpoints import connectProtocol, UNIXClientEndpoint
from twisted.internet.interfaces import IReactorFDSet, IReactorTime, IReactorUNIX, IReadDescriptor
from twisted.internet.protocol import connectionDone, Protocol
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.interfaces import ISMCStatus

_log = Logger()

_UCRED = struct.Struct("3i")
_LISTENING = 0x10000
"""__SO_ACCEPTCON, among the flags of C{/proc/net/unix}."""

_LONGEST_ANSWER = 64 << 20
_PATIENCE = 10.0

PROC_NET_UNIX = Path("/proc/net/unix")

NAMESPACE = "txrdma/control"
"""What our abstract names begin with."""


class IReactor(IReactorUNIX, IReactorTime):
    """What asking needs of a reactor."""


def controlName(pid: int) -> str:
    """The abstract name on which a process of our user answers."""
    return f"\0{NAMESPACE}/{os.getuid()}/{pid}"


def _peerOf(connected: socket.socket) -> tuple[int, int]:
    """Process and user at the other end of a UNIX socket, by the kernel's word."""
    pid, uid, _gid = _UCRED.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return pid, uid


@implementer(IReadDescriptor)
class Control:
    """
    Answers whoever connects, and has the right to know.

    The reactor only accepts: an answer that the socket's buffer can't hold is sent by a thread, so that who
    asks and does not listen holds up nobody.
    """

    def __init__(self, reactor: IReactorFDSet, connections: Callable[[], Iterable[ISMCStatus]]) -> None:
        self._reactor = reactor
        self._connections = connections
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            self._socket.setblocking(False)
            self._socket.bind(controlName(os.getpid()))
            self._socket.listen()
        except BaseException:
            self._socket.close()
            raise
        reactor.addReader(self)

    def fileno(self) -> int:
        """The listening socket's."""
        return self._socket.fileno()

    def logPrefix(self) -> str:
        """As Twisted's log shows it."""
        return "txrdma.smc.introspection"

    def doRead(self) -> None:
        """Somebody asks."""
        try:
            asker, _address = self._socket.accept()
        except OSError:
            return  # it has gone again, or there are no descriptors left
        pid, uid = _peerOf(asker)
        if uid != os.getuid():
            _log.warn("Process {pid} of user {uid} asked for our connections: refused", pid=pid, uid=uid)
            asker.close()
            return
        answer = self._answer()
        asker.setblocking(False)
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
            "connections": [status.toDict() for status in self._connections()],
        }
        return json.dumps(told).encode() + b"\n"

    def connectionLost(self, reason: Failure) -> None:
        """The reactor is torn down."""
        self._socket.close()

    def close(self) -> None:
        """Answer no more."""
        self._reactor.removeReader(self)
        self._socket.close()


def _sendRest(asker: socket.socket, answer: bytes) -> None:
    with asker:
        asker.settimeout(_PATIENCE)
        try:
            asker.sendall(answer)
        except OSError:
            pass  # it has gone, or does not listen


def appear(reactor: object, connections: Callable[[], Iterable[ISMCStatus]]) -> None:
    """
    Answer for this process as long as this reactor runs; once is enough, more often is fine.

    The socket is one of the reactor's internal readers, like its own wakers: it keeps nothing running, and
    goes when the reactor is torn down.
    """
    internal: set[object] | None = getattr(reactor, "_internalReaders", None)
    if internal is None or any(isinstance(reader, Control) for reader in internal):
        return
    control = answer(reactor, connections)
    if control is not None:
        internal.add(control)


def answer(reactor: object, connections: Callable[[], Iterable[ISMCStatus]]) -> Control | None:
    """
    Begin to answer for this process.

    @param connections: gives the live ones, whenever somebody asks.
    @return: what to close, or None where this can't be had: on systems without abstract names, and for one
        more reactor in a process that answers already.
    """
    if not IReactorFDSet.providedBy(reactor) or not sys.platform.startswith("linux"):
        return None
    try:
        return Control(IReactorFDSet(reactor), connections)
    except OSError as error:
        _log.info("Not answering `txrdma connections`: {error}", error=error)
        return None


@dataclass(frozen=True)
class Answer:
    """
    What one process said.

    @ivar error: why there are no connections, when it did not answer; otherwise empty.
    """

    pid: int
    command: list[str] = field(default_factory=list)
    connections: list[dict[str, object]] = field(default_factory=list)
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
        rf"@{re.escape(NAMESPACE)}/{os.getuid()}/(?P<pid>[0-9]+)$"
    )
    matches = (form.match(line) for line in listing.splitlines())
    return sorted({int(match["pid"]) for match in matches if match and int(match["flags"], 16) & _LISTENING})


class _Asking(Protocol):
    """The end that asks."""

    def __init__(self) -> None:
        self.answered: Deferred[bytes] = Deferred(lambda _: self._abort())
        self._chunks: list[bytes] = []
        self._length = 0

    def connectionMade(self) -> None:
        # ITransport has no word for the socket; Twisted's UNIX transports have this attribute.
        _pid, uid = _peerOf(cast(socket.socket, self.transport.socket))  # type: ignore[union-attr]
        if uid != os.getuid():
            self._finish(Failure(PermissionError(f"the socket belongs to user {uid}")))

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
        return Answer(pid, [str(word) for word in said["command"]], list(said["connections"]))
    except Exception as error:  # whatever it is, the other processes' answers are still wanted
        return Answer(pid, error=f"no answer: {error or type(error).__name__}")


def askAll(reactor: IReactor, timeoutSeconds: float = 3.0) -> Deferred[list[Answer]]:
    """Ask every process of our user on this host; one that hangs is told in its C{error}."""
    return gatherResults(
        [Deferred.fromCoroutine(_askProcess(reactor, pid, timeoutSeconds)) for pid in answering()]
    )
