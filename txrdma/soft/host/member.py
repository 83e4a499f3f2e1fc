"""
A device's part in the sharing of port 4791 of its address: a member, or the coordinator.

L{txrdma.soft.host} describes the whole. This module owns the sockets and the timer, and finds the
coordinator; L{txrdma.soft.host.forwarding} passes on packets.

Theory of operation. A coordinator listens at one of L{NAMES} abstract names. A device connects to the first
name at which one listens, and becomes a member; if none does, it takes the first name and becomes the
coordinator. When a line to the coordinator ends, its member does this again. A coordinator may also be
stopped, so members ping it. One that does not answer twice still has its name; a member then seeks from the
next name on. Whenever a line ends, a coordinator looks for one with a later name, and becomes its member; so
a stopped process that continues becomes a member. Two devices may take different names at the same time. So
each new coordinator looks for later names, too, and connects to earlier ones for a moment: the end of these
lines lets the coordinators there look.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from secrets import randbits
from typing import Final

from twisted.logger import Logger

from txrdma.error import DeviceUnavailable, ResourceExhausted
from txrdma.kit.delayedcalls import Timer
from txrdma.kit.logs import errorText, RateLimitedLogger
from txrdma.soft.core.netdev import SHARES
from txrdma.soft.host._coordinator import Coordinator, FilterChanged, SERVICES
from txrdma.soft.host._filter import attachFilter, filterProgram, POSITION
from txrdma.soft.host._messages import (
    Enter,
    ForwardedPacket,
    HostMessageKind,
    ManagementNotice,
    Ping,
    ProbeSeen,
    ServiceNotice,
    VERSION,
)
from txrdma.soft.host.forwarding import Forwarder
from txrdma.soft.host.lines import HostLine
from txrdma.soft.host.names import claimService, hostName
from txrdma.soft.shared.unixpackets import PacketSocket
from txrdma.unix.sockets import connectTo, isSameUser, LocalListener, peerOf, Reactor

_log = Logger()
_rateLimited = RateLimitedLogger(_log)

SEEK_SECONDS: Final = 0.005
"""Seconds between attempts to find or to become the coordinator, after another one has ended."""

PING_SECONDS: Final = 1.0
"""Seconds between pings of the coordinator."""

FIRST_PING_SECONDS: Final = 0.5
"""Seconds until a new member's first ping must be answered, and another one after a missing answer."""

NAMES: Final = 16
"""Number of names that a coordinator may have: the next one is used while a stopped process has the first."""

LINES: Final = 2 * SHARES
"""Number of connections that a coordinator accepts: each device may have an old one that is ending."""

_REFUSED_SECONDS: Final = 1.0
_UNANSWERED_SECONDS: Final = 0.1
_NONCE_BYTES: Final = 8


class PortMember:
    """
    A device at UDP port 4791 of an address, which it shares with others.

    @ivar share: share of the device.
    @ivar isCoordinator: whether this device is the coordinator at present.
    @ivar isAnswered: whether the coordinator has answered the last ping.
    """

    def __init__(self, reactor: Reactor, address: str, share: int, bound: socket.socket) -> None:
        """
        @param bound: the UDP socket, which the caller closes before this object.
        @raise DeviceUnavailable: a process of another user claims to be the coordinator.
        """
        self.address = address
        self.share = share
        self._reactor = reactor
        self._bound = bound
        self._services: dict[int, Callable[[], None]] = {}
        self._forwarder = Forwarder(reactor, address, share, self._services)
        self._sendProbe: Callable[[bytes], None] | None = None
        self._isReceiving = self._isResting = self._isClosed = False
        self._listener: LocalListener | None = None
        self._lines: dict[HostLine, None] = {}
        self._timer = Timer(reactor)
        self._name = 0  # number of the coordinator's name
        self._seekPause = SEEK_SECONDS
        self.isAnswered = self._isSuspect = False
        with ExitStack() as undo:
            undo.callback(self._leave)
            self._seek()
            undo.pop_all()

    def __repr__(self) -> str:
        return f"<PortMember {self.share} of {self.address}>"

    @property
    def isCoordinator(self) -> bool:
        return self._forwarder.coordinator is not None

    def start(
        self, sendProbe: Callable[[bytes], None], forwarded: Callable[[tuple[str, int], memoryview], None]
    ) -> None:
        """
        Exchange packets with the device's RoCE port from now on.

        @param sendProbe: sends a packet with this payload to queue pair 0 of the address.
        @param forwarded: processes a packet for this device, and the address and UDP port of its sender.
        """
        self._sendProbe, self._forwarder.forwarded = sendProbe, forwarded
        if self.isCoordinator:
            self._install(FilterChanged({}, 0))  # without any filter, probes do not reach their positions
        self._turn()

    def receiveNow(self) -> None:
        """Process pending messages of other devices, without the reactor."""
        for line in tuple(self._lines):
            line.line.receiveNow()

    def rest(self) -> None:
        """Leave the reactor, and the other devices. Idempotent."""
        self._isResting = True
        self._leave()

    def wake(self) -> None:
        """Return to the reactor, and to the other devices. Idempotent."""
        if self._isResting and not self._isClosed:
            self._isResting = False
            self._seekAgain()

    # Services

    def claim(self, serviceID: int) -> Callable[[], None]:
        """
        Receive requests for a service ID.

        @return: a function that ends that.
        @raise ResourceExhausted: another device of the address has the service, or this one has too many.
        """
        if len(self._services) >= SERVICES:
            raise ResourceExhausted(f"the device serves {SERVICES} services of {self.address} already")
        release = self._services[serviceID] = claimService(self.address, serviceID)
        self._reportService(serviceID, True)

        def end() -> None:
            if self._services.get(serviceID) is release:
                del self._services[serviceID]
                release()
                self._reportService(serviceID, False)

        return end

    def setReceiving(self, isReceiving: bool) -> None:
        """Report whether queue pair 1 of this device receives."""
        if isReceiving != self._isReceiving and not self._isClosed:
            self._isReceiving = isReceiving
            coordinator = self._forwarder.coordinator
            if coordinator is not None:
                coordinator.receives(self.share, isReceiving)
            self._report(ManagementNotice(kind=HostMessageKind.MANAGEMENT, isReceiving=isReceiving).encode())

    def _reportService(self, serviceID: int, isServed: bool) -> None:
        coordinator = self._forwarder.coordinator
        if coordinator is not None:
            coordinator.serves(self.share, serviceID, isServed)
        self._report(
            ServiceNotice(kind=HostMessageKind.SERVICE, isServed=isServed, serviceID=serviceID).encode()
        )

    def _report(self, message: bytes) -> None:
        home = self._forwarder.home
        if home is not None:
            home.line.send(message)

    # Packets

    def redirect(self, number: int, packet: memoryview, source: tuple[str, int]) -> bool:
        """
        Pass a received packet to the device that it belongs to.

        @param number: number of its destination queue pair, which is 1 or does not exist here.
        @return: False if the packet belongs to this device.
        """
        if not number:
            self._probeReceived(packet, source)
            return True
        return self._forwarder.redirect(number, packet, source)

    def messageReceived(self, line: HostLine, parsed: object, packet: memoryview) -> None:
        """Process a message of the coordinator, or of a member to it; raises ValueError if it is invalid."""
        if isinstance(parsed, ForwardedPacket):
            self._packetReceived(parsed, packet)
        elif line.isMember:
            self._memberReported(line, parsed)
        elif isinstance(parsed, Ping):
            line.wasAnswered = self.isAnswered = True
        else:
            raise ValueError("the coordinator only forwards packets")

    def _packetReceived(self, parsed: ForwardedPacket, packet: memoryview) -> None:
        """Process a packet that another device has forwarded; raises ValueError if it is too short."""
        ip = parsed.address.ip
        if ip is None or len(packet) < 8:
            raise ValueError("a packet without a header or a sender")
        self._forwarder.forward((ip, parsed.port), packet, self._reactor.seconds())

    def _probeReceived(self, packet: memoryview, source: tuple[str, int]) -> None:
        raw = bytes(packet[POSITION : POSITION + 1 + _NONCE_BYTES])
        if source[0] != self.address or len(raw) <= _NONCE_BYTES:
            return
        position, nonce = raw[0], int.from_bytes(raw[1:], "big")
        coordinator = self._forwarder.coordinator
        if coordinator is not None:
            coordinator.seen(self.share, position, nonce, self._reactor.seconds())
            self._turn()
        else:
            self._report(ProbeSeen(kind=HostMessageKind.SEEN, position=position, nonce=nonce).encode())

    # The coordinator

    def _memberReported(self, line: HostLine, parsed: object) -> None:
        """Process a member's message; raises ValueError if it is invalid."""
        coordinator, now = self._forwarder.coordinator, self._reactor.seconds()
        if coordinator is None:
            return
        if isinstance(parsed, Enter):
            if parsed.version != VERSION or line.share is not None:
                raise ValueError(f"version {parsed.version}, not {VERSION}")
            coordinator.entered(parsed.share, now)
            members = self._forwarder.members
            former, members[parsed.share] = members.get(parsed.share), line
            line.share = parsed.share
            if former is not None:
                former.share = None
                former.line.close("its device has another line")
        elif line.share is None:
            raise ValueError("no ENTER was sent")
        elif isinstance(parsed, Ping):
            line.line.send(parsed.encode())
            return
        elif isinstance(parsed, ServiceNotice):
            coordinator.serves(line.share, parsed.serviceID, parsed.isServed)
        elif isinstance(parsed, ManagementNotice):
            coordinator.receives(line.share, parsed.isReceiving)
        elif isinstance(parsed, ProbeSeen):
            coordinator.seen(line.share, parsed.position, parsed.nonce, now)
        self._turn()
        self._forwarder.forwardStored()

    def _accepted(self, sock: socket.socket) -> None:
        if len(self._lines) >= LINES:
            sock.close()
            _rateLimited.warn(
                self.address,
                "too many connections of processes that share port 4791 of {address}: {count}",
                address=self.address,
                count=LINES,
            )
            return
        line = self._newLine(sock, True)
        if not line.line.isClosed:
            self._lines[line] = None

    def _newLine(self, sock: socket.socket, isMember: bool) -> HostLine:
        packets = PacketSocket(self._reactor, sock)
        return HostLine(self.address, packets, isMember, self.messageReceived, self.lineEnded)

    def _turn(self) -> None:
        """Install the latest filter, send probes, and set the timer."""
        coordinator, sendProbe = self._forwarder.coordinator, self._sendProbe
        if coordinator is None or sendProbe is None or self._isClosed:
            return
        try:
            for changed in coordinator.events():
                self._install(changed)
            for probe in coordinator.outgoing():
                sendProbe(bytes((probe.position,)) + probe.nonce.to_bytes(_NONCE_BYTES, "big"))
        finally:
            deadline = coordinator.deadline()
            if deadline is None:
                self._timer.stop()
            else:
                self._timer.ensure(max(0.0, deadline - self._reactor.seconds()), self._expired)

    def _install(self, changed: FilterChanged) -> None:
        try:
            attachFilter(self._bound, filterProgram(changed.positions, changed.home))
        except OSError as error:  # packets are forwarded
            _rateLimited.warn(
                self.address,
                "port 4791 of {address} is slower, since its socket filter can't be installed: {error}",
                address=self.address,
                error=errorText(error),
            )

    def _expired(self) -> None:
        coordinator = self._forwarder.coordinator
        if coordinator is not None:
            coordinator.expired(self._reactor.seconds())
            self._turn()

    # Finding the coordinator

    def lineEnded(self, line: HostLine) -> None:
        """Handle the end of a line: a member has left, or another coordinator is needed."""
        self._lines.pop(line, None)
        forwarder = self._forwarder
        if line is forwarder.home:
            forwarder.home = None
            self._timer.stop()
            if line.wasAnswered:
                self._seekPause = SEEK_SECONDS
                self._seekAgain()
            else:  # its process was ending, or has another version and would close each line
                self._timer.start(self._seekPause, self._seekAgain)
                self._seekPause = min(2 * self._seekPause, _UNANSWERED_SECONDS)
            return
        if self.isCoordinator and self._hasSuccessor():
            self._resign()
        elif line.share is not None and forwarder.members.get(line.share) is line:
            del forwarder.members[line.share]
            if forwarder.coordinator is not None:
                forwarder.coordinator.left(line.share, self._reactor.seconds())
                self._turn()

    def _hasSuccessor(self) -> bool:
        """
        Return whether there is a coordinator with a later name.

        This process did not run for a while, or both became coordinators at the same time.
        """
        return any(map(self._isUsed, range(self._name + 1, NAMES)))

    def _isReplaced(self) -> bool:
        """
        Return whether another device has replaced the coordinator of this member.

        It took the next name, because the coordinator did not accept its line: that may have no descriptor.
        """
        return self._name + 1 < NAMES and self._isUsed(self._name + 1)

    def _isUsed(self, name: int) -> bool:
        """Return whether there is a coordinator with a name."""
        with suppress(DeviceUnavailable):
            connected = self._connected(name)
            if connected is not None:
                connected.close()
                return True
        return False

    def _resign(self, first: int = 0) -> None:
        """Leave the other devices, and seek the coordinator again."""
        try:
            self._leave()
        finally:
            self._seekAgain(first)

    def _ping(self) -> None:
        """Ping the coordinator again; replace one that has not answered twice."""
        home = self._forwarder.home
        if home is None:
            return
        self._timer.start(PING_SECONDS, self._ping)  # even after an exception
        home.line.receiveNow()  # this process may not have run for a while
        if self._forwarder.home is not home:
            return
        if self._isReplaced():
            _log.info("the coordinator of {address} has a successor", address=self.address)
            self._resign(self._name + 1)
        elif self.isAnswered:
            self._sendPing(PING_SECONDS)
        elif not self._isSuspect:
            self._sendPing(FIRST_PING_SECONDS, True)
        else:
            _log.info(
                "the coordinator of {address} does not answer: seeking another one", address=self.address
            )
            self._resign(self._name + 1)

    def _sendPing(self, seconds: float, isSuspect: bool = False) -> None:
        """Ping the coordinator. If the line has ended, the timer of the search for another one is set."""
        self.isAnswered, self._isSuspect = False, isSuspect
        self._timer.start(seconds, self._ping)
        self._report(Ping(kind=HostMessageKind.PING).encode())

    def _seekAgain(self, first: int = 0) -> None:
        """Find the coordinator, or become it; after an exception, try again later."""
        try:
            self._seek(first)
            if self.isCoordinator:
                _log.info("this process coordinates port 4791 of {address} now", address=self.address)
        except Exception as error:
            if isinstance(error, DeviceUnavailable):
                _rateLimited.warn(self.address, "{error}", error=errorText(error))
            else:
                _log.failure("{member} seeks the coordinator again", member=self)
            try:
                self._leave()
            finally:
                self._timer.start(_REFUSED_SECONDS, self._seekAgain)

    def _seek(self, first: int = 0) -> None:
        """
        Find the coordinator, or become it.

        @param first: do not become a member of coordinators with earlier names, which do not answer.
        """
        first = min(first, NAMES - 1)
        for _ in range(2):
            for self._name in range(first, NAMES):
                connected = self._connected(self._name)
                if connected is not None:
                    self._join(connected)
                    return
            self._name = first
            try:
                self._listener = LocalListener(
                    self._reactor,
                    socket.SOCK_SEQPACKET,
                    hostName(self.address, self._name),
                    self._accepted,
                    "the sharing of port 4791",
                )
            except OSError:
                continue  # another device was faster
            if self._hasSuccessor():
                self._leave()
                continue
            self._coordinate()
            for name in range(first):
                self._isUsed(name)  # the coordinator there looks for its successor when a line ends
            return
        self._timer.start(SEEK_SECONDS, self._seekAgain)

    def _connected(self, name: int) -> socket.socket | None:
        """Connect to the coordinator; None without one. Raises L{DeviceUnavailable} for another user."""
        try:
            sock = connectTo(socket.SOCK_SEQPACKET, hostName(self.address, name))
        except OSError as error:
            if error.errno in (errno.ECONNREFUSED, errno.EAGAIN):
                return None
            raise DeviceUnavailable(f"can't connect to the coordinator of {self.address}: {error}") from error
        process = peerOf(sock)
        if not isSameUser(process.user):
            sock.close()
            raise DeviceUnavailable(
                f"process {process.pid} of user {process.user} claims to coordinate {self.address}"
            )
        return sock

    def _join(self, sock: socket.socket) -> None:
        """Become a member of the coordinator at this connection, and report services to it."""
        with ExitStack() as undo:
            undo.callback(sock.close)
            try:
                line = self._newLine(sock, False)
            except OSError as error:
                raise DeviceUnavailable(f"can't read the coordinator of {self.address}: {error}") from error
            undo.pop_all()
        self._lines[line] = None
        self._forwarder.coordinator, self._forwarder.home = None, line
        self._report(Enter(kind=HostMessageKind.ENTER, version=VERSION, share=self.share).encode())
        if self._isReceiving:
            self._report(ManagementNotice(kind=HostMessageKind.MANAGEMENT, isReceiving=True).encode())
        for serviceID in tuple(self._services):
            self._reportService(serviceID, True)
        if self._forwarder.home is not None:
            self._sendPing(FIRST_PING_SECONDS)

    def _coordinate(self) -> None:
        """Become the coordinator of the address, whose socket name this device has."""
        coordinator = Coordinator(self.share, partial(randbits, 64), self._reactor.seconds())
        coordinator.receives(self.share, self._isReceiving)
        for serviceID in self._services:
            coordinator.serves(self.share, serviceID, True)
        self._forwarder.coordinator = coordinator
        self._turn()

    def close(self) -> None:
        """Leave the other devices. Idempotent."""
        if self._isClosed:
            return
        self._isClosed = True
        self._sendProbe = self._forwarder.forwarded = None
        with ExitStack() as steps:
            for release in self._services.values():
                steps.callback(release)
            self._services.clear()
            steps.callback(self._leave)

    def _leave(self) -> None:
        """Close all lines, and the name."""
        with ExitStack() as steps:
            steps.callback(self._forwarder.reset)
            lines, self._lines = self._lines, {}
            for line in lines:
                steps.callback(line.line.close)
            listener, self._listener = self._listener, None
            if listener is not None:
                steps.callback(listener.close)
            self._timer.stop()
