"""
UNIX sockets between processes of one host: the peer's credentials, and listeners that check them.

See unix(7): abstract names, SO_PEERCRED. Any process can bind an abstract name, so only the credentials of
the peer, which the kernel reports, identify it.
"""

from __future__ import annotations

import errno
import itertools
import os
import socket
import struct
from collections.abc import Callable
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from zope.interface import implementer

from twisted.internet.interfaces import IReactorFDSet, IReactorTime, IReadDescriptor
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.kit.delayedcalls import Timer
from txrdma.kit.logs import advised, RateLimitedLogger

_log = Logger()
_rateLimited = RateLimitedLogger(_log)

SO_PEERCRED: Final[int] = getattr(socket, "SO_PEERCRED", 17)
"""The socket option; PyPy's C{socket} does not have it. 17 is that of x86 and ARM."""

_CREDENTIALS: Final = struct.Struct("3i")
_AT_ONCE: Final = 32
"""Maximum number of connections that are accepted in one reactor iteration."""

_GONE: Final = (errno.ECONNABORTED, errno.EPERM, errno.EINTR)
"""Errors of accept that concern one connection only."""

EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM)
"""Errors of a connect that do not mean that nobody listens; EAGAIN: too many connections wait there."""

PAUSE_SECONDS: Final = 1.0
"""Seconds for which a listener pauses when accept fails for lack of descriptors or memory."""


class Reactor(IReactorFDSet, IReactorTime):
    """The interfaces of the reactor that listeners need."""


_unknown = itertools.count(1)


class Credentials(NamedTuple):
    """A process and its effective user."""

    pid: int
    user: int


def peerOf(connected: socket.socket) -> Credentials:
    """Return the process at the other end of a connected UNIX socket (SO_PEERCRED)."""
    value = connected.getsockopt(socket.SOL_SOCKET, SO_PEERCRED, _CREDENTIALS.size)
    pid, user, _group = _CREDENTIALS.unpack(value)
    return Credentials(pid, user)


def processAt(connected: socket.socket) -> Credentials:
    """
    Return the process at the other end of a connected UNIX socket; two results are equal only if the kernel
    reports the same process.

    The kernel reports PID 0 for processes outside of this PID namespace. Each of their sockets counts as a
    separate process here, with a negative PID.
    """
    found = peerOf(connected)
    return found if found.pid else found._replace(pid=-next(_unknown))


def connectTo(kind: int, name: str | bytes) -> socket.socket:
    """Return a non-blocking UNIX socket that is connected to a name; raises OSError."""
    flags = socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
    with ExitStack() as undo:
        connected = undo.enter_context(socket.socket(socket.AF_UNIX, kind | flags))
        connected.connect(name)
        undo.pop_all()
    return connected


def unlessLast(opened: socket.socket) -> socket.socket:
    """Return a new socket, or close it and raise OSError if it has the last descriptor of this process."""
    try:
        os.close(os.dup(opened.fileno()))
    except OSError:
        opened.close()
        raise
    return opened


@lru_cache(1)
def unmapped() -> frozenset[int]:
    """Return the IDs that represent users and groups which are not mapped into this user namespace."""
    try:
        if Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]:
            return frozenset()
        return frozenset(int(Path(f"/proc/sys/kernel/overflow{kind}").read_text()) for kind in ("uid", "gid"))
    except (OSError, ValueError):
        return frozenset({65534})


def isSameUser(user: int) -> bool:
    """
    Return whether a user ID is the effective one of this process.

    In a user namespace, all users that are not mapped share one ID, which identifies none of them.
    """
    return user == os.geteuid() and user not in unmapped()


def isTrusted(user: int) -> bool:
    """Return whether a user ID is that of root, or the effective one of this process."""
    return user == 0 or isSameUser(user)


@implementer(IReadDescriptor)
class LocalListener:
    """
    Listens on an abstract name for processes of certain users; connections of others are closed at once.

    When accept fails, it pauses for L{PAUSE_SECONDS} seconds, since the reactor would call it in a busy loop.
    """

    def __init__(
        self,
        reactor: Reactor,
        kind: int,
        name: str | bytes,
        accepted: Callable[[socket.socket], None],
        purpose: str,
        isPermitted: Callable[[int], bool] = isSameUser,
        backlog: int = 1024,
    ) -> None:
        """
        @param kind: SOCK_STREAM or SOCK_SEQPACKET.
        @param accepted: called with each connection, a non-blocking socket, which it has to close.
        @param purpose: the purpose of the connections, for the log.
        @param isPermitted: returns whether processes of a user may connect.
        @param backlog: connections that may wait to be accepted; the kernel refuses more.
        @raise OSError: the name is in use, or no descriptor would be left for a connection.
        """
        self._reactor = reactor
        self._accepted = accepted
        self._purpose = purpose
        self._isPermitted = isPermitted
        self._pause = Timer(reactor)
        with ExitStack() as undo:
            self._socket = self._openSocket(kind, name, backlog)
            undo.callback(self._socket.close)
            reactor.addReader(self)
            undo.pop_all()

    def _openSocket(self, kind: int, name: str | bytes, backlog: int) -> socket.socket:
        flags = socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        with ExitStack() as undo:
            listening = undo.enter_context(unlessLast(socket.socket(socket.AF_UNIX, kind | flags)))
            listening.bind(name)
            listening.listen(backlog)
            undo.pop_all()
        return listening

    def _mayConnect(self, connected: socket.socket, user: int) -> bool:
        return self._isPermitted(user)

    def fileno(self) -> int:
        return self._socket.fileno()

    def logPrefix(self) -> str:
        return "txrdma.unix.sockets"

    def doRead(self) -> None:
        for _ in range(_AT_ONCE):
            if self._socket.fileno() < 0:
                return  # the last connection has ended the listening
            try:
                sock, _address = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _GONE:
                    continue
                self._pauseAccepting(error)
                return
            sock.setblocking(False)
            pid, user = peerOf(sock)
            if self._mayConnect(sock, user):
                try:
                    self._accepted(sock)
                except Exception:
                    sock.close()
                    _log.failure("Closing a connection for {purpose}, after an error", purpose=self._purpose)
            else:
                sock.close()
                _rateLimited.warn(
                    (self._purpose, user),
                    "refused process {pid} of user {user} for {purpose}",
                    pid=pid,
                    user=user,
                    purpose=self._purpose,
                )

    def _pauseAccepting(self, error: OSError) -> None:
        _rateLimited.warn(
            (self._purpose, error.errno),
            "cannot accept a process for {purpose}, retrying in {seconds:g} s: {error}",
            purpose=self._purpose,
            seconds=PAUSE_SECONDS,
            error=advised(error),
        )
        self._reactor.removeReader(self)
        self._pause.start(PAUSE_SECONDS, self._reactor.addReader, self)

    def setReading(self, isReading: bool) -> None:
        """Stop or resume accepting; connections wait in the backlog meanwhile."""
        self._pause.stop()
        if self._socket.fileno() >= 0:
            if isReading:
                self._reactor.addReader(self)
            else:
                self._reactor.removeReader(self)

    def connectionLost(self, reason: Failure) -> None:
        """Close, since the reactor disconnects all descriptors."""
        self.close()

    def close(self) -> None:
        """Remove the listener from the reactor, and close its socket. Idempotent."""
        self.setReading(False)
        self._socket.close()
