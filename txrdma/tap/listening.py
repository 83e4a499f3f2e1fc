"""Services that listen: if that fails, C{twistd} exits with one line, not with a traceback."""

from __future__ import annotations

from typing import Any, Final

from twisted.application.internet import StreamServerEndpointService
from twisted.application.service import MultiService
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IStreamServerEndpoint

from txrdma.error import RDMAError

CANNOT_LISTEN: Final = (CannotListenError, OSError, OverflowError, RDMAError)
"""Errors of listening at an address; L{OverflowError} is that of a port number above 65535."""


class CannotStart(SystemExit, Exception):  # an error for twistd, an exit for Python
    """
    A service cannot start, and C{twistd} exits with one line.

    C{twistd} removes its PID file, and ends the process that waits for the daemon, only for an L{Exception}.
    """


class ListeningService(MultiService):
    """
    Base of a service that listens when it starts, before C{twistd} drops its privileges.

    @cvar command: name of the service for C{twistd}.
    """

    command = ""

    def listen(self, endpoint: IStreamServerEndpoint, factory: Any) -> StreamServerEndpointService:
        """Add, and return, the service that listens at an endpoint."""
        listening = StreamServerEndpointService(endpoint, factory)
        listening._raiseSynchronously = True  # as in strports
        listening.setServiceParent(self)
        return listening

    def privilegedStartService(self) -> None:
        """Start listening, or exit: the port is in use, or a permission is missing."""
        try:
            super().privilegedStartService()  # type: ignore[no-untyped-call]  # of Twisted's
        except CANNOT_LISTEN as error:
            raise CannotStart(f"{self.command}: {error}") from error
