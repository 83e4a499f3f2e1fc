r"""
Status of running processes for tools of the same user, over an abstract UNIX socket per process.

The name of the socket is C{\0NAMESPACE/UID/PID}. A client that connects receives one line of JSON. Both ends
check SO_PEERCRED, since any process can bind such a name. Tools find the sockets in C{/proc/net/unix}; no
file can outlive its process.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, cast, Final, Generic, NoReturn, TypeVar

from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.endpoints import connectProtocol, UNIXClientEndpoint
from twisted.internet.interfaces import IReactorCore, IReactorTime, IReactorUNIX
from twisted.internet.protocol import connectionDone, Protocol
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.error import DeviceUnavailable
from txrdma.kit.logs import errorText, RateLimitedLogger
from txrdma.unix.sockets import isSameUser, LocalListener, peerOf, Reactor

T = TypeVar("T")

_rateLimited = RateLimitedLogger(Logger())

_LISTENING: Final = 0x10000
"""__SO_ACCEPTCON, among the flags of C{/proc/net/unix}."""

_LONGEST_ANSWER: Final = 64 << 20
_TIMEOUT_SECONDS: Final = 10.0

PROC_NET_UNIX: Final = Path("/proc/net/unix")


class IUNIXReactor(IReactorUNIX, IReactorTime):
    """The interfaces of the reactor that a client needs: UNIX sockets and time."""


def nameIn(namespace: str, pid: int) -> str:
    """Return the abstract name of the status socket of a process of this user."""
    return f"\0{namespace}/{os.geteuid()}/{pid}"


class Answering(LocalListener):
    """
    A status socket, which answers processes of the same user.

    A thread sends a status that does not fit into the socket's buffer, so that a client that does not read
    blocks nothing.

    @ivar owner: the PID and the user ID in the name of the socket.
    """

    def __init__(
        self, reactor: Reactor, namespace: str, report: Callable[[], dict[str, Any]], purpose: str
    ) -> None:
        """
        @param report: returns the status for JSON; the PID and the command line are added.
        @raise OSError: the name is in use.
        """
        self._report = report
        self.owner = (os.getpid(), os.geteuid())
        super().__init__(reactor, socket.SOCK_STREAM, nameIn(namespace, os.getpid()), self._reply, purpose)

    def _reply(self, client: socket.socket) -> None:
        command = [os.path.basename(sys.executable), *sys.argv]
        answer = json.dumps({"pid": os.getpid(), "command": command, **self._report()}).encode() + b"\n"
        try:
            sent = client.send(answer)
        except OSError:
            sent = len(answer)  # the client has closed the connection
        if sent == len(answer):
            client.close()
        else:
            Thread(target=_sendRest, args=(client, answer[sent:]), daemon=True).start()


AnsweringT = TypeVar("AnsweringT", bound=Answering)


def _sendRest(client: socket.socket, answer: bytes) -> None:
    with client:
        client.settimeout(_TIMEOUT_SECONDS)
        try:
            client.sendall(answer)
        except OSError:
            pass  # the client has closed the connection, or does not read


def opened(make: Callable[[], AnsweringT], command: str) -> AnsweringT | None:
    """Make a status socket, or log that C{command} gets none; return None then."""
    try:
        return make()
    except OSError as error:  # another reactor of this process answers, or there are no abstract names
        _rateLimited.info(
            (command, error.errno),
            "`{command}` gets no status from this process: its socket can't be opened: {error}",
            command=command,
            error=errorText(error),
        )
        return None


def _add(total: Counter[str], counters: Counter[str]) -> None:
    """Add counters to a total; of those whose name begins with C{max_}, take the maximum."""
    for name, value in counters.items():
        total[name] = max(total[name], value) if name.startswith("max_") else total[name] + value


class StatusServer(Generic[T]):
    """
    The status socket of this process for objects of one kind.

    The socket is open as long as such an object exists on a running reactor.

    @ivar parts: the objects, each with its reactor.
    """

    def __init__(self, namespace: str, command: str, report: Callable[[], dict[str, Any]]) -> None:
        """
        @param command: the command line of the tool, for the log.
        @param report: returns the status; see L{Answering}.
        """
        self.parts: dict[T, Any] = {}
        self._counters: dict[T, Callable[[], Counter[str]]] = {}
        self._ended: Counter[str] = Counter()
        self._namespace, self._command, self._report = namespace, command, report
        self._answering: dict[Any, Answering] = {}

    def add(self, reactor: Any, part: T, counters: Callable[[], Counter[str]]) -> None:
        """
        Add an object. The status socket is opened when the reactor runs.

        The socket is an internal reader of the reactor, like its waker, so it does not make trial's reactor
        dirty.

        @param counters: returns its counters by name; those whose name begins with C{max_} are maxima.
        """
        self.parts[part] = reactor
        self._counters[part] = counters
        if getattr(reactor, "_internalReaders", None) is not None and IReactorCore.providedBy(reactor):
            reactor.callWhenRunning(self._listen, reactor)

    def counters(self) -> Counter[str]:
        """Return the sums of the counters of all objects, including removed ones."""
        total = Counter(self._ended)
        for counters in self._counters.values():
            _add(total, counters())
        return total

    def leave(self, part: T) -> None:
        """Remove an object, retain its counters, and close the status socket after the last object."""
        reactor = self.parts.pop(part, None)
        if reactor is None:
            return
        _add(self._ended, self._counters.pop(part)())
        if reactor not in self.parts.values():
            listener = self._answering.pop(reactor, None)
            if listener is not None:
                reactor._internalReaders.discard(listener)
                listener.close()

    def _listen(self, reactor: Any) -> None:
        """Open the status socket of a reactor that runs now, unless all its objects are gone."""
        if reactor in self._answering or reactor not in self.parts.values():
            return
        made = partial(Answering, reactor, self._namespace, self._report, "the status of counters")
        if (listener := opened(made, self._command)) is not None:
            reactor._internalReaders.add(listener)
            self._answering[reactor] = listener


def processesIn(namespace: str, listing: str | None = None) -> list[int]:
    """
    Return the PIDs of the processes of this user that have a status socket.

    @param listing: the contents of C{/proc/net/unix}, which is read by default.
    @raise DeviceUnavailable: it cannot be read.
    """
    if listing is None:
        try:
            listing = PROC_NET_UNIX.read_text(errors="replace")
        except OSError as error:
            reason = f"no process can be found, since {PROC_NET_UNIX} cannot be read: {error.strerror}"
            raise DeviceUnavailable(
                f"{reason}; mount the proc file system (mount -t proc proc /proc)"
            ) from error
    # /proc/net/unix shows the leading zero byte as @.
    form = re.compile(
        r"^[0-9a-f]+: [0-9A-F]+ [0-9A-F]+ (?P<flags>[0-9A-F]+) .* "
        rf"@{re.escape(namespace)}/{os.geteuid()}/(?P<pid>[0-9]+)$"
    )
    matches = (form.match(line) for line in listing.splitlines())
    return sorted({int(match["pid"]) for match in matches if match and int(match["flags"], 16) & _LISTENING})


class _Asking(Protocol):
    """Protocol that receives one status."""

    def __init__(self) -> None:
        self.answered: Deferred[bytes] = Deferred(lambda _: self._abort())
        self._chunks: list[bytes] = []
        self._length = 0

    def connectionMade(self) -> None:
        # ITransport does not declare the socket; Twisted's UNIX transports have this attribute.
        user = peerOf(cast(socket.socket, self.transport.socket)).user  # type: ignore[union-attr]
        if not isSameUser(user):
            self._finish(Failure(PermissionError(f"the socket belongs to user {user}")))

    def dataReceived(self, data: bytes) -> None:
        self._chunks.append(data)
        self._length += len(data)
        if data.endswith(b"\n"):
            self._finish(b"".join(self._chunks))
        elif self._length > _LONGEST_ANSWER:
            self._finish(Failure(ValueError("the answer is too long")))

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._finish(Failure(ConnectionError("the process closed the connection")))

    def _finish(self, result: bytes | Failure) -> None:
        if not self.answered.called:
            self.answered.callback(result)
            self._abort()

    def _abort(self) -> None:
        assert self.transport is not None
        self.transport.abortConnection()  # type: ignore[attr-defined]  # ITransport lacks it, UNIX has it


async def _askProcess(
    namespace: str, reactor: IUNIXReactor, pid: int, timeoutSeconds: float
) -> dict[str, Any]:
    asking = _Asking()
    endpoint = UNIXClientEndpoint(reactor, nameIn(namespace, pid), timeout=timeoutSeconds)

    def late(result: object, seconds: float) -> NoReturn:
        raise TimeoutError(f"it is stopped or busy: no answer in {seconds:g} seconds")

    try:
        await connectProtocol(endpoint, asking)
        decoded = json.loads(await asking.answered.addTimeout(timeoutSeconds, reactor, late))
        return {"command": [], **decoded, "pid": pid}  # whatever PID the answer claims
    except Exception as error:  # it must not affect the answers of other processes
        return {"pid": pid, "error": f"no answer: {errorText(error)}"}


def askAll(
    namespace: str, reactor: IUNIXReactor, timeoutSeconds: float = 3.0
) -> Deferred[list[dict[str, Any]]]:
    """
    Query every process of this user that has a status socket.

    @param timeoutSeconds: seconds to wait for each process.
    @return: fires with the status of each, as it was received, or with C{pid} and C{error} only: the reason
        why the process did not answer.
    """
    return gatherResults(
        [
            Deferred.fromCoroutine(_askProcess(namespace, reactor, pid, timeoutSeconds))
            for pid in processesIn(namespace)
        ]
    )
