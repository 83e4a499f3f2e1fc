"""
The socket between a player and its stage: reports go one way, cues come the other.
"""

from __future__ import annotations

import os
import socket
import time

from zope.interface import implementer

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReadDescriptor
from twisted.python.failure import Failure

from txrdma.testing.streams import transcript
from txrdma.testing.streams.transcript import Entry, PROCESS


class Reporter:
    """The way to the stage: a socket, to which every line goes at once."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.socket = self._connected()

    def _connected(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self._path)
        return connection

    def say(self, connection: int, kind: str, about: object = "") -> None:
        """Report what has just happened."""
        self.socket.sendall(Entry(time.monotonic(), connection, kind, str(about)).encode())

    def leaveChild(self, seconds: float) -> None:
        """Fork; the child holds what is open here, does nothing, and ends soon, or with the stage."""
        if os.fork():
            return
        try:
            self.socket.close()  # so that its end is the end of this process
            self.socket = self._connected()
            self.say(PROCESS, transcript.CHILD, os.getpid())
            self.socket.settimeout(seconds)
            self.socket.recv(1)
        finally:
            os._exit(0)


@implementer(IReadDescriptor)
class Cues:
    """Cues that this end gives itself, or that come from the stage: each is there once given."""

    def __init__(self, connection: socket.socket | None = None) -> None:
        self._connection = connection
        self._given: set[str] = set()
        self._waiting: dict[str, list[Deferred[None]]] = {}
        self._read = b""

    def give(self, name: str) -> None:
        """The cue is there, for everybody who waits for it now or later."""
        self._given.add(name)
        for deferred in self._waiting.pop(name, ()):
            deferred.callback(None)

    def heard(self, name: str) -> Deferred[None] | None:
        """Fires with the cue; None if it is there already."""
        if name in self._given:
            return None
        deferred: Deferred[None] = Deferred()
        self._waiting.setdefault(name, []).append(deferred)
        return deferred

    def fileno(self) -> int:
        """The descriptor of the socket to the stage, as L{IReadDescriptor} asks."""
        assert self._connection is not None, "only the cues of the process come by a socket"
        return self._connection.fileno()

    def logPrefix(self) -> str:
        """The prefix of the cues' lines in the log."""
        return "cues"

    def doRead(self) -> None:
        """Take cues, a line each."""
        assert self._connection is not None
        data = self._connection.recv(4096)
        if not data:
            os._exit(1)  # nobody is there to whom this could be of use
        *names, self._read = (self._read + data).split(b"\n")
        for name in names:
            self.give(name.decode())

    def connectionLost(self, reason: Failure) -> None:
        """The reactor lets go of the socket."""
