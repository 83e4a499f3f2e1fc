"""
Requests that an agent's port receives: their servers, and their registration with the port.

Follows InfiniBand Architecture vol. 1, 13.4.5 (methods).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from twisted.logger import Logger

from txrdma.error import RDMAError
from txrdma.iba.path import IBPath
from txrdma.interfaces import IMADPort
from txrdma.kit.logs import errorText

_log = Logger()


TakeRequest = Callable[[bytes, bytes, IBPath, bool], bool]
"""
Accepts a request (True), or passes it to the next server: see L{txrdma.mad.server.MADServer.requested}.

The arguments are the request (or the first datagram of an RMPP transfer), the bytes of the attribute, the
path of the request, and True for the last server, which has to answer every request.
"""


class Servers:
    """Servers of one agent, the newest first."""

    def __init__(self) -> None:
        self._servers: dict[object, tuple[TakeRequest, Callable[[], None]]] = {}

    def __len__(self) -> int:
        return len(self._servers)

    def add(self, requested: TakeRequest, ended: Callable[[], None]) -> Callable[[], None]:
        """
        Pass requests to this server first, before earlier ones; the returned function ends that.

        @param ended: called when the agent's port is lost.
        """
        key = object()
        self._servers = {key: (requested, ended), **self._servers}

        def end() -> None:
            self._servers.pop(key, None)

        return end

    def requested(self, datagram: bytes, message: bytes, path: IBPath) -> None:
        """Pass a request to the first server that accepts it; if one raises, the next one is tried."""
        remaining = len(self._servers)
        for requested, _ended in tuple(self._servers.values()):
            remaining -= 1
            try:
                if requested(datagram, message, path, not remaining):
                    return
            except Exception:
                _log.failure(
                    "{server} raised when it was called with a request of {path}", server=requested, path=path
                )

    def ended(self) -> None:
        """Make all servers drop their requests, because the port is lost."""
        for _requested, ended in tuple(self._servers.values()):
            with _log.failuresHandled("{server} raised when the port was lost", server=ended):
                ended()


class _Registration:
    """
    Registration of some methods of a class with a port, and the number of its users.

    @ivar port: the port; None for none.
    """

    def __init__(self, managementClass: int, methods: Sequence[int], oui: int) -> None:
        self._arguments = managementClass, methods, oui
        self.users = 0
        self.port: IMADPort | None = None
        self.end: Callable[[], None] = lambda: None

    def begin(self, port: IMADPort) -> None:
        self.end = port.serve(*self._arguments)
        self.port = port


class Registrations:
    """Registrations with a port: one for each class and method, shared by all users."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, int], _Registration] = {}

    def add(
        self, port: IMADPort | None, managementClass: int, methods: Sequence[int], oui: int
    ) -> Callable[[], None]:
        """
        Register requests of this class with these methods; the returned function ends it.

        @param port: None while it is lost: L{renew} registers them with its replacement.
        @raise txrdma.error.ResourceExhausted: another program on this host receives them already.
        """
        keys = [(int(managementClass), int(method), oui) for method in methods]
        missing = tuple(method for key, method in zip(keys, methods, strict=True) if key not in self._known)
        if missing:
            registration = _Registration(managementClass, missing, oui)
            if port is not None:
                registration.begin(port)
            for key in keys:
                self._known.setdefault(key, registration)
        used = list({self._known[key] for key in keys})
        for each in used:
            each.users += 1

        def end() -> None:
            while used:
                each = used.pop()
                each.users -= 1
                if not each.users:
                    self._known = {key: one for key, one in self._known.items() if one is not each}
                    each.end()

        return end

    def renew(self, port: IMADPort, isAgain: bool = False) -> bool:
        """
        Register everything with a port that replaces a lost one.

        @param isAgain: only what could not be registered with it before; errors are not logged again.
        @return: whether everything is registered now.
        """
        missing = {one for one in self._known.values() if not isAgain or one.port is not port}
        for registration in missing:
            registration.port = None
            try:
                registration.begin(port)
            except Exception as error:  # of a user's port, too
                if isAgain:
                    continue
                if isinstance(error, RDMAError):
                    _log.warn(
                        "{port} was reopened, but receives no requests: {error}",
                        port=port.name,
                        error=errorText(error),
                    )
                else:
                    _log.failure("{port} was reopened, but receives no requests", port=port.name)
        return all(one.port is port for one in missing)
