"""
Directories of UNIX sockets, by which processes of one host find each other across network namespaces.

See unix(7): an abstract name is valid in one network namespace, a socket in a directory is valid in all. The
directory's mode decides who may connect: processes of the same user; with the set-group-ID bit and all rights
for the group (mode 2770), processes of all users of that group. Peers are identified by SO_PEERCRED and
SO_PEERGROUPS.
"""

from __future__ import annotations

import errno
import os
import random
import secrets
import socket
import stat
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from twisted.logger import Logger

from txrdma.kit.logs import errorText, RateLimitedLogger
from txrdma.unix.sockets import (
    connectTo,
    EXHAUSTED,
    isSameUser,
    LocalListener,
    peerOf,
    Reactor,
    SO_PEERCRED,
    unmapped,
)

_log = Logger()
_rateLimited = RateLimitedLogger(_log)

_SHARED: Final = stat.S_ISGID | stat.S_IRWXG
_SO_PEERGROUPS: Final = 59
_MOST_GROUPS: Final = 256
"""Maximum number of groups of a peer that are read: getsockopt of Python returns at most 1024 bytes."""

_SWEPT: Final = 4
"""Number of names that a process examines when it publishes one."""

_GROUP: Final = struct.Struct("=I")


def _groupsOf(connected: socket.socket) -> set[int]:
    """Return the supplementary groups of the process at the other end of a UNIX socket."""
    try:
        value = connected.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MOST_GROUPS * _GROUP.size)
    except OSError:  # a kernel before 4.13, or a process with more groups
        return set()
    return {group for (group,) in _GROUP.iter_unpack(value)}


def _effectiveGroup(connected: socket.socket) -> int:
    value = connected.getsockopt(socket.SOL_SOCKET, SO_PEERCRED, 12)
    return int(_GROUP.unpack_from(value, 8)[0])


def _openToGroup(path: str) -> None:
    """
    Let the group of a socket connect to it. Users of the group can replace the socket meanwhile by a link.

    @raise OSError: the path is another file.
    """
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            raise OSError(errno.EEXIST, f"another process has replaced the socket {path}")
        os.chmod(f"/proc/self/fd/{descriptor}", 0o660)
    finally:
        os.close(descriptor)


class SocketDirectory:
    """A directory of UNIX sockets of processes of this host. C{path}: the directory."""

    def __init__(self, path: str) -> None:
        """@param path: the directory, which need not exist yet."""
        self.path = path

    def __repr__(self) -> str:
        return f"<SocketDirectory {self.path}>"

    def _sharedGroup(self) -> int | None:
        """Return the group whose users may connect; None if only the same user may."""
        try:
            value = os.stat(self.path)
        except OSError:
            return None
        return value.st_gid if value.st_mode & _SHARED == _SHARED else None

    def admits(self, connected: socket.socket) -> bool:
        """Return whether the peer of a UNIX socket may connect, by its credentials."""
        user = peerOf(connected).user
        if user == os.geteuid():
            return isSameUser(user)
        group = self._sharedGroup()
        if group is None or group in unmapped():
            return False
        return group == _effectiveGroup(connected) or group in _groupsOf(connected)

    def names(self, prefix: str) -> list[str]:
        """Return the names with a prefix, in any order; none if the directory cannot be read."""
        try:
            return self._named(prefix)
        except OSError as error:
            _rateLimited.warn(
                self.path,
                "cannot list the processes in {path}: {error}",
                path=self.path,
                error=errorText(error),
            )
            return []

    def _named(self, prefix: str) -> list[str]:
        return [name for name in os.listdir(self.path) if name.startswith(prefix)]

    def publish(self, kind: int, name: str, backlog: int) -> socket.socket:
        """
        Create a listening socket with a name. It is linked after the socket listens, so no client is refused.

        @param kind: SOCK_STREAM or SOCK_SEQPACKET.
        @param name: a word, C{-}, and a unique part.
        @raise OSError: the name is in use, or the directory is not writable.
        """
        self._sweep(kind, name.partition("-")[0] + "-")
        listening = socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        made = self._in(f".{secrets.token_hex(8)}")
        try:
            os.fchmod(listening.fileno(), 0o600)  # bind makes a file with these rights
            listening.bind(made)
            try:
                if self._sharedGroup() is not None:
                    _openToGroup(made)
                listening.listen(backlog)
                try:
                    os.link(made, self._in(name))
                except FileExistsError:
                    self._removeDead(kind, name)
                    os.link(made, self._in(name))
            finally:
                os.unlink(made)
        except BaseException:
            listening.close()
            raise
        return listening

    def withdraw(self, name: str) -> None:
        """Remove a name. Idempotent."""
        with suppress(OSError):
            os.unlink(self._in(name))

    def _sweep(self, kind: int, prefix: str) -> None:
        """Remove some names of ended processes with a prefix, so that they do not accumulate."""
        with suppress(OSError):  # the directory can't be read, or no descriptor is left
            names = self._named(prefix)
            for name in random.sample(names, min(_SWEPT, len(names))):
                self._removeDead(kind, name)

    def _removeDead(self, kind: int, name: str) -> None:
        """Remove a name if its process has ended."""
        connected = self.connect(kind, name)
        if connected is not None:
            connected.close()

    def connect(self, kind: int, name: str) -> socket.socket | None:
        """
        Connect to the process with a name. If the process has ended, its name is removed.

        @return: a non-blocking socket; None if there is no process, or it is not permitted.
        @raise OSError: there may be one, but no descriptor or memory is left; see L{EXHAUSTED}.
        """
        before = self._identityOf(name)
        try:
            connected = connectTo(kind, self._in(name))
        except OSError as error:
            if error.errno in EXHAUSTED:
                raise
            isRefused = error.errno == errno.ECONNREFUSED
            if isRefused and before is not None and self._identityOf(name) == before:
                self._withdrawDead(name, before)
            return None
        if self.admits(connected):
            return connected
        _rateLimited.warn(
            (self.path, peerOf(connected).user),
            "ignoring a socket of user {user}, who is not permitted, in {path}",
            user=peerOf(connected).user,
            path=self.path,
        )
        connected.close()
        return None

    def _withdrawDead(self, name: str, identity: tuple[int, int]) -> None:
        """
        Remove the name of an ended process, but not that of another process that has taken it meanwhile.

        The name is moved first, because unlink(2) would remove whatever has the name then.
        """
        aside = f".{secrets.token_hex(8)}"
        with suppress(OSError):
            os.rename(self._in(name), self._in(aside))
            try:
                if self._identityOf(aside) != identity:
                    os.link(self._in(aside), self._in(name))  # unless a third process has taken the name
            finally:
                os.unlink(self._in(aside))

    def _identityOf(self, name: str) -> tuple[int, int] | None:
        """
        Return inode and time of a socket by name; None if there is none, or it is another kind of file.

        An inode number alone may be reused at once.
        """
        try:
            value = os.lstat(self._in(name))
        except OSError:
            return None
        return (value.st_ino, value.st_mtime_ns) if stat.S_ISSOCK(value.st_mode) else None

    def _in(self, name: str) -> str:
        return f"{self.path}/{name}"


class DirectoryListener(LocalListener):
    """Listens in a directory; connections that are not permitted are closed at once."""

    def __init__(
        self,
        reactor: Reactor,
        directory: SocketDirectory,
        kind: int,
        name: str,
        accepted: Callable[[socket.socket], None],
        purpose: str,
        backlog: int = 1024,
    ) -> None:
        """
        Listen under a name. The parameters are those of L{LocalListener}.

        @raise OSError: the name is in use, or the directory is not writable.
        """
        self._directory = directory
        self._name = name
        super().__init__(reactor, kind, name, accepted, purpose, backlog=backlog)

    def _openSocket(self, kind: int, name: str | bytes, backlog: int) -> socket.socket:
        return self._directory.publish(kind, self._name, backlog)

    def _mayConnect(self, connected: socket.socket, user: int) -> bool:
        return self._directory.admits(connected)

    def close(self) -> None:
        """Remove the name and close. Idempotent."""
        if self.fileno() >= 0:
            self._directory.withdraw(self._name)
        super().close()
