"""The socket between a player and its runner, which carries reports to the runner and events back."""

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
    """The player's socket to the runner, which sends every report immediately."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.socket = self._connected()

    def _connected(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self._path)
        return connection

    def report(self, connection: int, kind: str, about: object = "") -> None:
        self.socket.sendall(Entry(time.monotonic(), connection, kind, str(about)).encode())

    def leaveChild(self, seconds: float) -> None:
        """Fork an idle child that inherits descriptors, and ends after C{seconds} or with the runner."""
        if os.fork():
            return
        try:
            self.socket.close()  # so that its end of file shows the parent's end
            self.socket = self._connected()
            self.report(PROCESS, transcript.CHILD, os.getpid())
            self.socket.settimeout(seconds)
            self.socket.recv(1)
        finally:
            os._exit(0)


@implementer(IReadDescriptor)
class NamedEvents:
    """Events from this end or from the runner; an event remains set once it is given."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._given: set[str] = set()
        self._waiting: dict[str, list[Deferred[None]]] = {}
        self._read = b""

    def give(self, name: str) -> None:
        """Set an event, and fire the Deferreds that wait for it."""
        self._given.add(name)
        for deferred in self._waiting.pop(name, ()):
            deferred.callback(None)

    def waitFor(self, name: str) -> Deferred[None] | None:
        """Return a Deferred that fires with the event, or None if it is set already."""
        if name in self._given:
            return None
        deferred: Deferred[None] = Deferred()
        self._waiting.setdefault(name, []).append(deferred)
        return deferred

    def fileno(self) -> int:
        assert self._connection is not None, "there is no connection to the runner"
        return self._connection.fileno()

    def logPrefix(self) -> str:
        return "events"

    def doRead(self) -> None:
        assert self._connection is not None
        data = self._connection.recv(4096)
        if not data:
            os._exit(1)  # the runner is closed
        *names, self._read = (self._read + data).split(b"\n")
        for name in names:
            self.give(name.decode())

    def connectionLost(self, reason: Failure) -> None:
        """Do nothing when the reactor removes the socket."""
