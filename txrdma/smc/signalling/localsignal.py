"""
The client's side of the C{local} carrier for one connection, announced before it connects.

L{txrdma.smc.signalling.local} describes the protocol. If announcing fails, the client connects without it.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Final

from zope.interface import implementer

from twisted.internet.error import ConnectError
from twisted.internet.tcp import Connection

from txrdma.smc.signalling.clientports import bindSomewhere
from txrdma.smc.signalling.interfaces import IClientSignal, IDialing
from txrdma.smc.signalling.localclient import Announcement, AnnouncementChannel, channelTo
from txrdma.smc.signalling.owners import TCPAddress, tcpAddressOf
from txrdma.smc.signalling.silence import silentPeers
from txrdma.unix.sockets import Credentials, Reactor

_ATTEMPTS: Final = 16
"""
Largest number of announcements of a connection whose port is in use. The second one takes an unused port, so
more are needed only if all ports have connections, perhaps ended in the last minute.
"""

_TAKEN: Final = (errno.EADDRINUSE, errno.EADDRNOTAVAIL)


@implementer(IClientSignal)
class LocalClientSignal:
    """A connection that is announced to a listener on this host, if there is one."""

    isSMC = False
    isAwaited = False
    process: Credentials | None = None
    user: int | None = None

    def __init__(self, reactor: Reactor, takesTCP: bool) -> None:
        """@param takesTCP: plain TCP is allowed; otherwise even silent listeners get announcements."""
        self._reactor = reactor
        self._takesTCP = takesTCP
        self._silent = silentPeers(reactor)
        self._attempts = 0
        self._isBound = False
        self.announcement: Announcement | None = None

    def prepare(self, client: IDialing, proceed: Callable[[], None]) -> None:
        """Announce the connection if there is an SMC listener."""
        if self._attempts == _ATTEMPTS or not self._announce(client, proceed):
            proceed()

    def _announce(self, client: IDialing, proceed: Callable[[], None]) -> bool:
        """Begin to announce the connection; return False without an SMC listener."""
        self._attempts += 1
        target = client.target
        if self._takesTCP and self._silent.isSilent(target, self._reactor.seconds()):
            return False
        channel = channelTo(self._reactor, target)
        if channel is None:
            return self._seek(client, proceed)
        return self._announceBy(channel, client, proceed)

    def _seek(self, client: IDialing, proceed: Callable[[], None]) -> bool:
        """Search for a listener in other network namespaces; return False without one."""
        return False

    def _announceBy(
        self, channel: AnnouncementChannel, client: IDialing, proceed: Callable[[], None]
    ) -> bool:
        """Announce the connection on a channel; return False if that is impossible."""
        target = client.target
        self._silent.query(target, self._reactor.seconds())
        try:
            local: TCPAddress | None
            if client.socket.getsockname()[1]:
                local = tcpAddressOf(client.getHost())
            else:
                port = bindSomewhere(client.socket, channel.source.host, target.port, self._attempts > 1)
                local = TCPAddress(channel.source.host, port)
                self._isBound = True
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:  # this host, or container, has lost the address
                channel.retire()
            return False
        if local is None or (channel.directory and local.host != channel.source.host):
            return False
        self.announcement = announcement = Announcement(channel, local)
        announcement.then(lambda: self._answered(announcement, client, proceed))
        return True

    @property
    def directory(self) -> str:
        return "" if self.announcement is None else self.announcement.directory

    @property
    def isExpected(self) -> bool:
        return self.announcement is not None and self.announcement.user >= 0

    def _answered(self, announcement: Announcement, client: IDialing, proceed: Callable[[], None]) -> None:
        if announcement.wasCut:
            self.prepare(client, proceed)  # another listener may have replaced it
        elif announcement.wasRefused and self._isBound:
            self._isBound = False
            client.renew()  # another process announced the same port
        else:
            proceed()

    def failed(self, error: object) -> bool:
        """End the announcement; return True if the local port was in use, to try another one."""
        announcement, self.announcement = self.announcement, None
        if announcement is not None:
            announcement.abandon()
        isLocalError = self._isBound and isinstance(error, ConnectError) and error.osError in _TAKEN
        self._isBound = False
        return isLocalError

    def query(self, transport: Connection, done: Callable[[], None]) -> None:
        """Wait until the listener has accepted this connection."""
        announcement = self.announcement
        if announcement is None or not self.isExpected:
            done()
            return

        def answered() -> None:
            self.isSMC = announcement.isAccepted
            done()

        self.process, self.user = announcement.listener, announcement.user
        announcement.then(answered)

    def decideNow(self) -> None:
        """End the announcement, because a process other than the listener has sent bytes."""
        if self.announcement is not None:
            self.announcement.close()

    def close(self) -> None:
        if self.announcement is not None:
            self.announcement.forget()
