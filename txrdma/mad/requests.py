"""
Requests that an agent's port brings: which server gets them, and what the port is told to bring.

Follows InfiniBand Architecture vol. 1, 13.4.5 (methods).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from twisted.logger import Logger

from txrdma.error import RDMAError
from txrdma.iba.path import IBPath
from txrdma.interfaces import IMADPort

_log = Logger()


class Server(Protocol):
    """A server of an agent: see L{txrdma.mad.server.MADServer}."""

    def requested(self, datagram: bytes, message: bytes, path: IBPath, isLast: bool) -> bool:
        """
        Take a request, or leave it to the next server.

        @param datagram: the request, or the first datagram of an RMPP transfer.
        @param message: what it holds for the attribute.
        @param path: the way that it took.
        @param isLast: whether there is no other server, so that a request has to be answered.
        @return: whether it was taken.
        """

    def ended(self) -> None:
        """Forget all requests: the agent's port is gone."""


class Servers:
    """The servers of one agent."""

    def __init__(self) -> None:
        self._servers: dict[object, Server] = {}

    def __len__(self) -> int:
        return len(self._servers)

    def add(self, server: Server) -> Callable[[], None]:
        """Have a server get requests, before those that came earlier; the answer ends that."""
        key = object()
        self._servers = {key: server, **self._servers}

        def end() -> None:
            self._servers.pop(key, None)

        return end

    def requested(self, datagram: bytes, message: bytes, path: IBPath) -> None:
        """Hand a request to the first server that takes it."""
        servers = tuple(self._servers.values())
        for server in servers:
            if server.requested(datagram, message, path, server is servers[-1]):
                return

    def ended(self) -> None:
        """Have all servers forget their requests."""
        for server in tuple(self._servers.values()):
            server.ended()


class _Registration:
    """Some methods of a class that a port was told to bring, and how many want them."""

    def __init__(self, managementClass: int, methods: Sequence[int], oui: int) -> None:
        self._what = managementClass, methods, oui
        self.users = 0
        self.end: Callable[[], None] = lambda: None

    def begin(self, port: IMADPort) -> None:
        self.end = port.serve(*self._what)


class Registrations:
    """The requests that a port was told to bring: once each, however many want them."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, int], _Registration] = {}

    def add(
        self, port: IMADPort, managementClass: int, methods: Sequence[int], oui: int
    ) -> Callable[[], None]:
        """
        Have requests of this class with these methods come; the answer ends it.

        @raise txrdma.error.ResourceExhausted: another program on this host takes them already.
        """
        keys = [(int(managementClass), int(method), oui) for method in methods]
        missing = tuple(method for key, method in zip(keys, methods, strict=True) if key not in self._known)
        if missing:
            registration = _Registration(managementClass, missing, oui)
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

    def renew(self, port: IMADPort) -> None:
        """Tell all of it to a port that has taken the place of a lost one."""
        for registration in set(self._known.values()):
            try:
                registration.begin(port)
            except RDMAError as error:
                _log.warn("{port} does not bring requests any more: {error}", port=port.name, error=error)
