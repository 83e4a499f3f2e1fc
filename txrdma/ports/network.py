"""
The network interfaces of this host, and notifications when they or RDMA devices change.

Uses netlink (rtnetlink(7)), so on Linux only. A netlink socket belongs to the network namespace in which it
was created, even if its process changes the namespace later; so does a L{HostNetwork}.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final

from zope.interface import implementer

from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IDelayedCall, IReactorFDSet, IReactorTime, IReadDescriptor
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.error import DeviceUnavailable
from txrdma.kit.delayedcalls import cancelCall, isPending
from txrdma.kit.listeners import Listeners
from txrdma.kit.logs import errorText
from txrdma.kit.values import record
from txrdma.ports import netlink
from txrdma.ports.netlink import NetlinkMessage, NetworkInterface

_NETLINK: Final = 16  # AF_NETLINK, and so on: not every system's socket module has them
_ROUTE: Final = 0
_KOBJECT_UEVENT: Final = 15
_SOL_NETLINK: Final = 270
_ADD_MEMBERSHIP: Final = 1
_DROP_MEMBERSHIP: Final = 2
_ROUTE_GROUPS: Final = (1, 5, 9)  # links, IPv4 addresses, IPv6 addresses
_EVENT_GROUPS: Final = (1,)  # what the kernel says itself; 2 is what udev makes of it

_BUFFER: Final = 1 << 16
_TIMEOUT_SECONDS: Final = 2.0
_TRIES: Final = 5

_ROUTES: Final = Path("/proc/thread-self/net/route")
_GATEWAY: Final = 2  # RTF_GATEWAY

_log = Logger()


def gateways(routes: Path = _ROUTES) -> frozenset[str]:
    """
    Return the interfaces with IPv4 routes to gateways, in the network namespace of this thread.

    @param routes: the kernel's file with routes; the result is empty if it cannot be read.
    """
    try:
        lines = [line.split() for line in routes.read_text().splitlines()[1:]]
    except OSError:
        return frozenset()
    return frozenset(line[0] for line in lines if len(line) > 3 and int(line[3], 16) & _GATEWAY)


class INetworkReactor(IReactorFDSet, IReactorTime):
    """Parts of the reactor that a watch uses."""


Listener = Callable[[], None]
"""Called after changes; it reads the new state itself."""


class HostNetwork:
    """
    View of the network interfaces in the calling thread's network namespace at creation.

    It must be closed by its creator.
    """

    SETTLING = 0.05
    """Seconds from the first of several changes to the call of the listeners."""

    def __init__(self, queries: socket.socket, routes: socket.socket, events: socket.socket) -> None:
        """
        Use L{open}, which creates the sockets.

        @param queries: NETLINK_ROUTE socket for requests.
        @param routes: NETLINK_ROUTE socket for notifications; C{events} that of NETLINK_KOBJECT_UEVENT.
        """
        self._querySocket = queries
        self._readers = (
            _Reader(routes, _ROUTE_GROUPS, lambda datagram: True, self._changed),  # all are relevant
            _Reader(events, _EVENT_GROUPS, _isOfRDMA, self._changed),
        )
        self._sequence = count(1)
        self._listeners: Listeners[[]] = Listeners(
            _log, "a listener raised when it was called with changes of the network"
        )
        self._reactor: INetworkReactor | None = None
        self._settling: IDelayedCall | None = None
        self._closed = False

    @classmethod
    def open(cls) -> HostNetwork:
        """
        Return a view of the network namespace of this thread.

        @raise DeviceUnavailable: the system is not Linux, or does not permit netlink.
        """
        if sys.platform != "linux":
            raise DeviceUnavailable(
                f"network interfaces are observed by netlink, which {sys.platform} does not have"
            )
        opened: list[socket.socket] = []
        try:
            for family in (_ROUTE, _ROUTE, _KOBJECT_UEVENT):
                kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC
                opened.append(socket.socket(_NETLINK, kind, family))
                opened[-1].bind((0, 0))
            opened[0].settimeout(_TIMEOUT_SECONDS)
            opened[1].setblocking(False)
            opened[2].setblocking(False)
        except OSError as error:
            for each in opened:
                each.close()
            raise DeviceUnavailable(f"netlink is not available: {error}") from error
        return cls(*opened)

    def interfaces(self) -> list[NetworkInterface]:
        """
        Return all interfaces with their addresses, ordered by index.

        @raise DeviceUnavailable: the view is closed, or the kernel does not answer.
        """
        return netlink.interfacesFrom(*self._dumps())

    def _dumps(self) -> tuple[list[NetlinkMessage], list[NetlinkMessage]]:
        """Return the messages about all links, and about all addresses."""
        if self._closed:
            raise DeviceUnavailable("this view of the network is closed")
        try:
            return self._dump(netlink.GETLINK), self._dump(netlink.GETADDR)
        except OSError as error:
            raise DeviceUnavailable(f"netlink does not list the interfaces: {error}") from error

    def interfaceOf(self, address: str) -> NetworkInterface | None:
        """
        Return the interface that has this IP address; None without one.

        @raise ValueError: the text is not an IP address.
        @raise DeviceUnavailable: the view is closed, the kernel does not answer, or the interface was not
            found while others changed all the time.
        """
        links, addresses = self._dumps()
        found = netlink.interfaceOf(address, links, addresses)
        if found is None and (_isInterrupted(links) or _isInterrupted(addresses)):
            raise DeviceUnavailable("netlink does not list all interfaces, since they change all the time")
        return found

    def interface(self, name: str) -> NetworkInterface | None:
        """Return the interface with this name; None without one."""
        return next((each for each in self.interfaces() if each.name == name), None)

    def watch(self, reactor: INetworkReactor, listener: Listener) -> Callable[[], None]:
        """
        Call C{listener} shortly after interfaces, addresses or RDMA devices have changed, once for many.

        @param reactor: the reactor; all watches of a view use the same.
        @return: a function that ends the watch.
        @raise DeviceUnavailable: the view is closed, or the system does not permit notifications.
        """
        if self._closed:
            raise DeviceUnavailable("this view of the network is closed")
        if self._reactor is None:
            self._start(reactor)
        elif self._reactor is not reactor:
            raise ValueError("another reactor watches this view of the network")
        remove = self._listeners.add(listener)

        def unwatch() -> None:
            remove()
            if not self._listeners:
                self._stop()

        return unwatch

    def close(self) -> None:
        """Stop all watches. Idempotent."""
        if self._closed:
            return
        self._listeners.clear()
        self._stop()
        self._closed = True
        self._querySocket.close()
        for reader in self._readers:
            reader.close()

    def _start(self, reactor: INetworkReactor) -> None:
        self._reactor = reactor
        try:
            for reader in self._readers:
                reader.join()
            self.addReaders()
        except OSError as error:
            self._stop()
            raise DeviceUnavailable(f"netlink does not report changes: {error}") from error

    def addReaders(self) -> None:
        """Add the sockets to the reactor while there are listeners: C{removeAll} may have removed them."""
        if self._reactor is not None:
            for reader in self._readers:
                self._reactor.addReader(reader)

    def _stop(self) -> None:
        reactor, self._reactor = self._reactor, None
        if reactor is None:
            return
        for reader in self._readers:
            reactor.removeReader(reader)
            reader.leave()
        cancelCall(self._settling)

    def _changed(self) -> None:
        if self._reactor is not None and not isPending(self._settling):
            self._settling = self._reactor.callLater(self.SETTLING, self._listeners.notify)

    def _dump(self, kind: int) -> list[NetlinkMessage]:
        """Return the messages of a dump, which is repeated if a change interrupted it."""
        for _ in range(_TRIES):
            sequence = next(self._sequence) & 0xFFFFFFFF
            self._querySocket.sendto(netlink.dumpRequest(kind, sequence), (0, 0))
            found = list(self._answer(sequence))
            if not _isInterrupted(found):
                break
        return found

    def _answer(self, sequence: int) -> Iterator[NetlinkMessage]:
        while True:
            datagram, sender = self._querySocket.recvfrom(_BUFFER)
            if sender[0] != 0:
                continue  # not the kernel
            for message in netlink.messages(datagram):
                if message.sequence != sequence:
                    continue  # the answer to an earlier request, which timed out
                code = netlink.errorOf(message) if message.type in (netlink.ERROR, netlink.DONE) else 0
                if code:
                    raise OSError(code, os.strerror(code))
                yield message
                if message.type == netlink.DONE:
                    return


@implementer(IReadDescriptor)
@record(eq=False)
class _Reader:
    """A netlink socket for notifications; it is on the reactor while there are listeners."""

    _socket: socket.socket
    _groups: tuple[int, ...]
    _matters: Callable[[bytes], bool]
    _changed: Callable[[], None]

    def join(self) -> None:
        for group in self._groups:
            self._socket.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, group)

    def leave(self) -> None:
        for group in self._groups:
            with suppress(OSError):  # what it receives until it joins again, or is closed, is not read
                self._socket.setsockopt(_SOL_NETLINK, _DROP_MEMBERSHIP, group)

    def fileno(self) -> int:
        return self._socket.fileno()

    def logPrefix(self) -> str:
        return "netlink"

    def doRead(self) -> None:
        """Read all notifications; report a change if one is relevant, or if the kernel has dropped some."""
        try:
            while True:
                datagram, sender = self._socket.recvfrom(_BUFFER)
                if sender[0] == 0 and self._matters(datagram):
                    self._changed()
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
            self._changed()

    def connectionLost(self, reason: Failure) -> None:
        """Log an error if the reactor has stopped reading because C{doRead} raised, not because it stops."""
        if not reason.check(ConnectionLost, ConnectionDone):
            _log.error(
                "changes of network interfaces are not noticed: {reason}", reason=errorText(reason.value)
            )

    def close(self) -> None:
        self._socket.close()


def _isInterrupted(messages: Iterable[NetlinkMessage]) -> bool:
    """Return whether messages may be missing in a dump, as there were changes meanwhile."""
    return any(message.flags & netlink.INTERRUPTED for message in messages)


def _isOfRDMA(datagram: bytes) -> bool:
    return netlink.parseEvent(datagram).get("SUBSYSTEM", "").startswith("infiniband")
