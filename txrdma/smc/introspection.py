"""
Tell the same user's tools what this process's connections are doing.

Each process with live connections listens on an abstract UNIX socket, C{\\0txrdma/control/<uid>/<pid>}, and
answers one line of JSON with one line of JSON. Both sides look at SO_PEERCRED: a name in that space can be
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
from typing import cast

from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.endpoints import connectProtocol, UNIXClientEndpoint
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IAddress, IListeningPort, IReactorTime, IReactorUNIX
from twisted.internet.protocol import connectionDone, Factory, Protocol
from twisted.logger import Logger
from twisted.protocols.basic import LineOnlyReceiver
from twisted.python.failure import Failure

from txrdma.interfaces import ISMCStatus

_log = Logger()

_UCRED = struct.Struct("3i")
_LISTENING = 0x10000
"""__SO_ACCEPTCON, among the flags of C{/proc/net/unix}."""

_LONGEST_ANSWER = 64 << 20

PROC_NET_UNIX = Path("/proc/net/unix")

NAMESPACE = "txrdma/control"
"""What our abstract names begin with."""


class IReactor(IReactorUNIX, IReactorTime):
    """What is asked of a reactor here."""


def controlName(pid: int) -> str:
    """The abstract name on which a process of our user answers."""
    return f"\0{NAMESPACE}/{os.getuid()}/{pid}"


def _peer(protocol: Protocol) -> tuple[int, int]:
    """Process and user at the other end, by the kernel's word."""
    # ITransport has no word for the socket; Twisted's UNIX transports have this attribute.
    connected = cast(socket.socket, protocol.transport.socket)  # type: ignore[union-attr]
    pid, uid, _gid = _UCRED.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return pid, uid


class _Answering(LineOnlyReceiver):
    """The end of the process that is asked."""

    delimiter = b"\n"
    MAX_LENGTH = 1024

    def __init__(self, connections: Callable[[], Iterable[ISMCStatus]], internal: set[object] | None) -> None:
        self._connections = connections
        self._internal = set() if internal is None else internal

    def connectionMade(self) -> None:
        self._internal.add(self.transport)
        pid, uid = _peer(self)
        if uid != os.getuid():
            _log.warn("Process {pid} of user {uid} asked for our connections: refused", pid=pid, uid=uid)
            self._abort()

    def lineReceived(self, line: bytes) -> None:
        assert self.transport is not None
        try:
            question = json.loads(line)
            ask = question["ask"]
        except (ValueError, KeyError, TypeError):
            ask = None
        if ask != "connections":
            answer: dict[str, object] = {"error": "ask for 'connections'"}
        else:
            answer = {
                "pid": os.getpid(),
                "command": [os.path.basename(sys.executable), *sys.argv],
                "connections": [status.toDict() for status in self._connections()],
            }
        self.transport.write(json.dumps(answer).encode() + b"\n")

    def lineLengthExceeded(self, line: bytes) -> None:
        self._abort()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._internal.discard(self.transport)

    def _abort(self) -> None:
        assert self.transport is not None
        self.transport.abortConnection()  # type: ignore[attr-defined]  # ITransport lacks it, UNIX has it


class _AnsweringFactory(Factory):
    noisy = False

    def __init__(self, connections: Callable[[], Iterable[ISMCStatus]], internal: set[object] | None) -> None:
        self._connections = connections
        self._internal = internal

    def buildProtocol(self, address: IAddress | None) -> Protocol:
        return _Answering(self._connections, self._internal)


def appear(reactor: object, connections: Callable[[], Iterable[ISMCStatus]]) -> None:
    """
    Answer for this process as long as this reactor runs; once is enough, more often is fine.

    The port is one of the reactor's internal readers, like its own wakers: it keeps nothing running, and goes
    when the reactor is torn down. So are connections to it: who asks is not the application's business.
    """
    internal = _internalReaders(reactor)
    if internal is None or any(
        isinstance(getattr(reader, "factory", None), _AnsweringFactory) for reader in internal
    ):
        return
    port = answer(reactor, connections)
    if port is not None:
        internal.add(port)


def _internalReaders(reactor: object) -> set[object] | None:
    internal: set[object] | None = getattr(reactor, "_internalReaders", None)
    return internal


def answer(reactor: object, connections: Callable[[], Iterable[ISMCStatus]]) -> IListeningPort | None:
    """
    Begin to answer for this process.

    @param connections: gives the live ones, whenever somebody asks.
    @return: the port to stop listening on, or None where this can't be had: a reactor without UNIX sockets,
        or one more reactor in a process that answers already.
    """
    if not IReactorUNIX.providedBy(reactor) or not sys.platform.startswith("linux"):
        return None
    try:
        factory = _AnsweringFactory(connections, _internalReaders(reactor))
        return IReactorUNIX(reactor).listenUNIX(controlName(os.getpid()), factory)
    except CannotListenError as error:
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
        assert self.transport is not None
        _pid, uid = _peer(self)
        if uid != os.getuid():
            self._finish(Failure(PermissionError(f"the socket belongs to user {uid}")))
        else:
            self.transport.write(b'{"ask": "connections"}\n')

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
