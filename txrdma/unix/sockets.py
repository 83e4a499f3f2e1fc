"""
UNIX sockets between the processes of one host: who is at the other end, and who may open one.

See unix(7): abstract names, SO_PEERCRED. A name in that space can be taken by anybody and proves nothing; the
kernel's word about the process at the other end does.
"""

from __future__ import annotations

import errno
import itertools
import os
import socket
import struct
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from zope.interface import implementer

from twisted.internet.interfaces import IDelayedCall, IReactorFDSet, IReactorTime, IReadDescriptor
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.kit.logs import advised, Seldom

_log = Logger()
_seldom = Seldom(_log)

_CREDENTIALS: Final = struct.Struct("3i")
_AT_ONCE: Final = 32
"""Connections that are accepted before others on the reactor get their turn."""

_GONE: Final = (errno.ECONNABORTED, errno.EPERM, errno.EINTR)
"""Errors of accept that concern one connection; the next one may be had."""

ASIDE: Final = 1.0
"""Seconds for which a listener does not look, after the system had no descriptor for what it would accept."""


class Reactor(IReactorFDSet, IReactorTime):
    """The reactor, as listeners use it."""


_unknown = itertools.count(1)


class Credentials(NamedTuple):
    """A process, and its effective user."""

    pid: int
    user: int


def peerOf(connected: socket.socket) -> Credentials:
    """The process at the other end of a connected UNIX socket, by the kernel's word (SO_PEERCRED)."""
    told = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, _group = _CREDENTIALS.unpack(told)
    return Credentials(pid, user)


def processAt(connected: socket.socket) -> Credentials:
    """
    The process at the other end of a connected UNIX socket, which equals that at another socket only if the
    kernel knows that it is the same.

    All processes that our PID namespace does not contain have the number 0. Each socket of theirs counts as a
    process of its own here, with a negative number.
    """
    found = peerOf(connected)
    return found if found.pid else found._replace(pid=-next(_unknown))


@lru_cache(1)
def unmapped() -> frozenset[int]:
    """The numbers that stand for every user or group without one here, in a user namespace of our own."""
    try:
        if Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]:
            return frozenset()
        return frozenset(int(Path(f"/proc/sys/kernel/overflow{kind}").read_text()) for kind in ("uid", "gid"))
    except (OSError, ValueError):
        return frozenset({65534})


def isOurs(user: int) -> bool:
    """
    Whether a user is the one that this process runs as.

    In a user namespace, all users of the host without a number there have the same one, which names nobody.
    """
    return user == os.geteuid() and user not in unmapped()


@implementer(IReadDescriptor)
class LocalListener:
    """
    Accepts at an abstract name what processes of certain users open; what others open is closed at once.

    When the system has no descriptor left it steps aside for a moment: the reactor would call it without end.
    """

    def __init__(
        self,
        reactor: Reactor,
        kind: int,
        name: str | bytes,
        accepted: Callable[[socket.socket], None],
        purpose: str,
        welcome: Callable[[int], bool] = isOurs,
        backlog: int = 1024,
    ) -> None:
        """
        @param kind: SOCK_STREAM or SOCK_SEQPACKET.
        @param accepted: takes each connection, as a socket that does not block, and closes it.
        @param purpose: for the log, what a process wants that connects.
        @param welcome: tells whether processes of a user may connect.
        @param backlog: connections that may wait to be accepted; the kernel refuses more.
        @raise OSError: the name is taken.
        """
        self._reactor = reactor
        self._accepted = accepted
        self._purpose = purpose
        self._welcome = welcome
        self._aside: IDelayedCall | None = None
        self._socket = self._listening(kind, name, backlog)
        reactor.addReader(self)

    def _listening(self, kind: int, name: str | bytes, backlog: int) -> socket.socket:
        """A socket that listens at the name."""
        listening = socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            listening.bind(name)
            listening.listen(backlog)
        except BaseException:
            listening.close()
            raise
        return listening

    def _mayCome(self, connected: socket.socket, user: int) -> bool:
        """Whether the user's process at the other end may connect."""
        return self._welcome(user)

    def fileno(self) -> int:
        """The socket's; -1 when closed."""
        return self._socket.fileno()

    def logPrefix(self) -> str:
        """As Twisted's log shows it."""
        return "txrdma.unix.sockets"

    def doRead(self) -> None:
        """Accept some."""
        for _ in range(_AT_ONCE):
            try:
                sock, _address = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _GONE:
                    continue
                self._stepAside(error)
                return
            sock.setblocking(False)
            pid, user = peerOf(sock)
            if self._mayCome(sock, user):
                try:
                    self._accepted(sock)
                except Exception:
                    sock.close()
                    _log.failure(
                        "An error cost a process its connection that wants {purpose}", purpose=self._purpose
                    )
            else:
                sock.close()
                _seldom.warn(
                    (self._purpose, user),
                    "process {pid} of user {user} wants {purpose}: refused",
                    pid=pid,
                    user=user,
                    purpose=self._purpose,
                )

    def _stepAside(self, error: OSError) -> None:
        _seldom.warn(
            (self._purpose, error.errno),
            "can't accept a process that wants {purpose}, the next try is in {seconds:g} s: {error}",
            purpose=self._purpose,
            seconds=ASIDE,
            error=advised(error),
        )
        self._reactor.removeReader(self)
        self._aside = self._reactor.callLater(ASIDE, self._stepBack)

    def _stepBack(self) -> None:
        self._aside = None
        self._reactor.addReader(self)

    def setReading(self, isReading: bool) -> None:
        """Accept nobody for now, or again; who came meanwhile is accepted then."""
        aside, self._aside = self._aside, None
        if aside is not None and aside.active():
            aside.cancel()
        if self._socket.fileno() >= 0:
            if isReading:
                self._reactor.addReader(self)
            else:
                self._reactor.removeReader(self)

    def connectionLost(self, reason: Failure) -> None:
        """The reactor is torn down."""
        self.close()

    def close(self) -> None:
        """Leave the reactor, then close. Twice is fine."""
        self.setReading(False)
        self._socket.close()
