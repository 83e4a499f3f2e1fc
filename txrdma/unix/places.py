"""
Directories in which processes of one host meet by UNIX sockets, whatever network namespaces they are in.

See unix(7): an abstract name ends at a network namespace, a socket in a directory does not. Who may come is
said by the directory's mode: processes of one user meet there; with the set-group-ID bit and all rights for
the group (mode 2770), processes of all users of that group. SO_PEERCRED and SO_PEERGROUPS tell who came.
"""

from __future__ import annotations

import errno
import os
import secrets
import socket
import stat
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from twisted.logger import Logger

from txrdma.kit.logs import Seldom
from txrdma.unix.sockets import isOurs, LocalListener, peerOf, Reactor, unmapped

_log = Logger()
_seldom = Seldom(_log)

_SHARED: Final = stat.S_ISGID | stat.S_IRWXG
_SO_PEERGROUPS: Final = 59
_MOST_GROUPS: Final = 256
"""Groups of a process that can be asked for: Python takes answers of up to 1024 bytes."""

_GROUP: Final = struct.Struct("=I")


def _groupsOf(connected: socket.socket) -> set[int]:
    """The groups of the process at the other end of a UNIX socket, without its effective one."""
    try:
        told = connected.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MOST_GROUPS * _GROUP.size)
    except OSError:  # a kernel before 4.13, or a process with more groups
        return set()
    return {group for (group,) in _GROUP.iter_unpack(told)}


def _effectiveGroup(connected: socket.socket) -> int:
    told = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int(_GROUP.unpack_from(told, 8)[0])


class MeetingPlace:
    """
    A directory that processes of this host meet in.

    @ivar path: the directory.
    """

    def __init__(self, path: str) -> None:
        """
        @param path: the directory, which need not be there yet.
        """
        self.path = path

    def __repr__(self) -> str:
        return f"<MeetingPlace {self.path}>"

    def _sharedGroup(self) -> int | None:
        """The group whose users may all come; None when it is one user alone."""
        try:
            told = os.stat(self.path)
        except OSError:
            return None
        return told.st_gid if told.st_mode & _SHARED == _SHARED else None

    def admits(self, connected: socket.socket) -> bool:
        """Whether the process at the other end of a UNIX socket may come, by the kernel's word."""
        user = peerOf(connected).user
        if user == os.geteuid():
            return isOurs(user)
        group = self._sharedGroup()
        if group is None or group in unmapped():
            return False
        return group == _effectiveGroup(connected) or group in _groupsOf(connected)

    def names(self, prefix: str) -> list[str]:
        """The names there that begin so, in no order; none when the directory is not to be read."""
        try:
            return [name for name in os.listdir(self.path) if name.startswith(prefix)]
        except OSError as error:
            _seldom.warn(
                self.path, "can't look for other processes in {path}: {error}", path=self.path, error=error
            )
            return []

    def publish(self, kind: int, name: str, backlog: int) -> socket.socket:
        """
        Be found under a name: by a socket that listens, and was never seen there when it did not.

        @param kind: SOCK_STREAM or SOCK_SEQPACKET.
        @raise OSError: the name is taken, or one may not make it here.
        """
        listening = socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        made = self._in(f".{secrets.token_hex(8)}")
        try:
            listening.bind(made)
            try:
                os.chmod(made, 0o600 if self._sharedGroup() is None else 0o660)
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
        """Be found no more under a name. Twice is fine."""
        with suppress(OSError):
            os.unlink(self._in(name))

    def _removeDead(self, kind: int, name: str) -> None:
        """Remove the name of a process that is gone; one that is there, or may not be looked at, keeps it."""
        connected = self.connect(kind, name)
        if connected is not None:
            connected.close()

    def connect(self, kind: int, name: str) -> socket.socket | None:
        """
        Connect to the process of that name.

        The name of one that is gone is removed: nobody will ever listen there again.

        @return: a socket that does not block; None when there is nobody, or nobody who may come.
        """
        try:
            connected = socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        except OSError:
            return None
        before = self._numberOf(name)
        try:
            connected.connect(self._in(name))
            if self.admits(connected):
                return connected
            _seldom.warn(
                (self.path, peerOf(connected).user),
                "user {user} listens in {path}, and may not: ignored",
                user=peerOf(connected).user,
                path=self.path,
            )
        except OSError as error:
            if error.errno == errno.ECONNREFUSED and before is not None and self._numberOf(name) == before:
                self.withdraw(name)
        connected.close()
        return None

    def _numberOf(self, name: str) -> int | None:
        """The inode of the socket that has a name; None for a file that is none, which refuses, too."""
        try:
            told = os.lstat(self._in(name))
        except OSError:
            return None
        return told.st_ino if stat.S_ISSOCK(told.st_mode) else None

    def _in(self, name: str) -> str:
        return f"{self.path}/{name}"


class PlaceListener(LocalListener):
    """Accepts in a directory those who may come there; others are closed at once."""

    def __init__(
        self,
        reactor: Reactor,
        place: MeetingPlace,
        kind: int,
        name: str,
        accepted: Callable[[socket.socket], None],
        purpose: str,
        backlog: int = 1024,
    ) -> None:
        """
        Be found under a name; parameters are those of L{LocalListener}.

        @raise OSError: the name is taken, or one may not make it here.
        """
        self._place = place
        self._name = name
        super().__init__(reactor, kind, name, accepted, purpose, backlog=backlog)

    def _listening(self, kind: int, name: str | bytes, backlog: int) -> socket.socket:
        return self._place.publish(kind, self._name, backlog)

    def _mayCome(self, connected: socket.socket, user: int) -> bool:
        return self._place.admits(connected)

    def close(self) -> None:
        """Take the name back, leave the reactor, then close. Twice is fine."""
        if self.fileno() >= 0:
            self._place.withdraw(self._name)
        super().close()
