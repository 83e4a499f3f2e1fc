"""
A UDP socket on a reactor that moves many datagrams in one system call.

Linux can send a run of equally long datagrams to one destination with one call (UDP_SEGMENT), and receive
such a run with one call (UDP_GRO); see udp(7). Without these, each datagram needs a call.
"""

from __future__ import annotations

import errno
import socket
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any, Final, Protocol, Union

from zope.interface import implementer

from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IReactorFDSet, IReadDescriptor, IWriteDescriptor
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.error import DeviceUnavailable
from txrdma.iba.types import ROCE_PORT
from txrdma.kit.logs import advised, errorText
from txrdma.ports.network import HostNetwork
from txrdma.ports.softdevices import addressAdvice

_log = Logger()

RawAddress = Union[tuple[str, int], tuple[str, int, int, int]]
"""A socket address: host and port, for IPv6 with flow and scope."""

_UDP_NO_CHECK6_RX: Final = 102
_UDP_SEGMENT: Final = 103
_UDP_GRO: Final = 104
_MOST_SEGMENTS: Final = 64
_IP_MTU_DISCOVER: Final = 10
_IP_RECVTOS: Final = 13  # of Linux; Python 3.9 has no name for it
_IPV6_MTU_DISCOVER: Final = 23
_PMTUDISC_DO: Final = 2
_SO_SNDBUFFORCE: Final = 32
_SO_RCVBUFFORCE: Final = 33

BUFFER = 8 << 20
"""Requested size of socket buffers, in bytes; benchmarks reduce it."""

_ECN: Final = 3
_TRUNCATED: Final = int(socket.MSG_TRUNC)
_AT_ONCE: Final = 32
"""Maximum number of reads per reactor iteration, for fairness."""

ANSWERED: Final = 4
"""Reads after which packets are answered: senders wait for acknowledgements."""


DatagramHandler = Callable[[memoryview, int, RawAddress, int], None]
"""
Processes datagrams of one sender.

The arguments are their bytes, whose memory is reused; the number of bytes of each, of which the last may have
fewer; the address of the sender; and the ECN field of the IP headers (RFC 3168, 5).
"""


class DatagramCarrier(Protocol):
    """
    The carrier of a port's datagrams: a UDP socket, or a simulated network.

    @ivar address: local IP address.
    @ivar port: local UDP port.
    @ivar segments: most datagrams per L{send}.
    @ivar merges: whether datagrams sent together arrive together.
    @ivar receiveBuffer: bytes of the buffer for received datagrams.
    @ivar isLive: whether L{poll} finds datagrams without the reactor.
    """

    address: str
    port: int
    segments: int
    merges: bool
    receiveBuffer: int
    isLive: bool

    def start(
        self, received: DatagramHandler, batchEnded: Callable[[], None], writable: Callable[[], None]
    ) -> None:
        """
        Start receiving datagrams.

        @param batchEnded: called after each batch of received datagrams.
        @param writable: called when L{send} accepts datagrams again.
        """

    def send(self, data: memoryview, segment: int, destination: RawAddress, trafficClass: int = 0) -> bool:
        """
        Send datagrams of C{segment} bytes each; the last may be shorter.

        The IPv4 identification of the i-th is i, because the ICRC covers it.

        @param trafficClass: differentiated services and ECN fields of their IP headers.
        @return: False if the socket's buffer is full; C{writable} of L{start} is called later.
        """

    def poll(self) -> None:
        """Receive pending datagrams, where the carrier C{isLive}."""

    def rawAddress(self, ip: str, port: int) -> RawAddress | None:
        """Return the address of a peer for L{send}; None when the peer can't be reached from here."""

    def joined(self, group: str) -> DatagramCarrier:
        """
        Return a carrier that receives the datagrams to an IP group, at RoCE's UDP port.

        @raise DeviceUnavailable: the system does not let this process join the group.
        """

    def close(self) -> None:
        """Close the carrier. Idempotent."""


def ipAndPort(address: RawAddress) -> tuple[str, int]:
    """Return IP address and port, without the scope."""
    return address[0].partition("%")[0], address[1]


@implementer(IReadDescriptor, IWriteDescriptor)
class UDPCarrier:
    """A UDP socket with Don't Fragment and counted IPv4 identifications; C{dropped} were not sent."""

    isLive = True

    def __init__(
        self,
        reactor: IReactorFDSet,
        address: str,
        port: int,
        offload: bool = True,
        shared: socket.socket | None = None,
    ) -> None:
        """
        @param port: the UDP port; 0 for any.
        @param offload: use UDP_SEGMENT and UDP_GRO if available.
        @param shared: the socket, by L{udpSocket}, if other processes of this user may have the same port
            (SO_REUSEPORT); closed by this object.
        """
        self._reactor = reactor
        self._received: DatagramHandler | None = None  # once started
        self._writing = False
        self._socket: socket.socket | None = shared
        self.dropped = 0
        self._reported: set[int] = set()
        try:
            made = self._socket = udpSocket(address) if shared is None else shared
            if shared is not None:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            made.bind(_socketAddress(address, port))
        except BaseException as error:
            if self._socket is not None:
                self._socket.close()
            if isinstance(error, OSError):
                raise _unavailable(address, error) from error
            raise
        self._setBuffers(self._socket)
        self.receiveBuffer = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        name: RawAddress = self._socket.getsockname()
        self.address, self.port = ipAndPort(name)
        self._scope: tuple[int, ...] = tuple(name[2:])
        self._index: int | None = None
        self.segments = _MOST_SEGMENTS if offload and _canSegment(self._socket) else 1
        self.merges = offload and _canMerge(self._socket)
        self._data = memoryview(bytearray(65536))
        self._buffers = [self._data]
        self._classOf = _reportClass(self._socket)
        self._ancillary = 2 * socket.CMSG_SPACE(4)

    def __repr__(self) -> str:
        return f"<UDPCarrier {self.address} port {self.port}>"

    @property
    def bound(self) -> socket.socket:
        """The socket, while the carrier is open."""
        assert self._socket is not None
        return self._socket

    @staticmethod
    def _setBuffers(bound: socket.socket) -> None:
        """Make the socket's buffers as large as the system allows."""
        for plain, force in ((socket.SO_RCVBUF, _SO_RCVBUFFORCE), (socket.SO_SNDBUF, _SO_SNDBUFFORCE)):
            try:
                if sys.platform != "linux":
                    raise PermissionError
                bound.setsockopt(socket.SOL_SOCKET, force, BUFFER)
            except OSError:
                for size in (BUFFER, 1 << 20, 1 << 18):
                    try:
                        bound.setsockopt(socket.SOL_SOCKET, plain, size)
                    except OSError:
                        continue
                    break

    # Carrier

    def start(
        self, received: DatagramHandler, batchEnded: Callable[[], None], writable: Callable[[], None]
    ) -> None:
        self._batchEnded, self._writable = batchEnded, writable
        try:
            self._reactor.addReader(self)
        except OSError as error:
            raise _unavailable(self.address, error) from error
        self._received = received

    def setReading(self, isReading: bool) -> None:
        """Leave or rejoin the reactor; meanwhile datagrams are queued in the socket."""
        if self._socket is not None and self._received is not None:
            if isReading:
                self._reactor.addReader(self)
            else:
                self._reactor.removeReader(self)

    def poll(self) -> None:
        """Receive pending datagrams, up to a limit. Takes 1 us if there are none."""
        self.doRead()

    def rawAddress(self, ip: str, port: int) -> RawAddress | None:
        if (":" in ip) != (":" in self.address):
            return None
        if ":" not in ip:
            return ip, port
        if ip.startswith("ff"):
            self._groupInterface()
        linkLocal = ip.lower().startswith("fe80:")
        return ip, port, 0, self._scope[1] if linkLocal and self._scope else 0

    def _groupInterface(self) -> int:
        """
        Return the index of the interface with the local IPv6 address, which sends datagrams to groups. It is
        0 if none is found: then the system's routes decide.
        """
        if self._index is None:
            self._index = self._scope[1]  # of a link-local address
            if not self._index:
                with suppress(DeviceUnavailable), closing(HostNetwork.open()) as network:
                    found = network.interfaceOf(self.address)
                    self._index = 0 if found is None else found.index
            with suppress(OSError):
                self.bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, self._index)
        return self._index

    def send(self, data: memoryview, segment: int, destination: RawAddress, trafficClass: int = 0) -> bool:
        if self._socket is None:
            return True
        try:
            ancillary = []
            if len(data) > segment:
                ancillary.append((socket.IPPROTO_UDP, _UDP_SEGMENT, segment.to_bytes(2, sys.byteorder)))
            if trafficClass:
                ancillary.append((*self._classOf, trafficClass.to_bytes(4, sys.byteorder)))
            if ancillary:
                self._socket.sendmsg((data,), ancillary, 0, destination)
            else:
                self._socket.sendto(data, destination)
        except BlockingIOError:
            if not self._writing:
                self._writing = True
                self._reactor.addWriter(self)
            return False
        except OSError as error:
            self._lost(error, data, segment, destination)
        return True

    def joined(self, group: str) -> UDPCarrier:
        made = udpSocket(group)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # others' devices may join it, too
        if made.family == socket.AF_INET6:
            level, option, index = socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, self._groupInterface()
            interface, zone = index.to_bytes(4, sys.byteorder), f"%{index}"
        else:
            level, option = socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP
            interface, zone = socket.inet_aton(self.address), ""
        carrier = UDPCarrier(self._reactor, group + zone, ROCE_PORT, shared=made)
        try:
            made.setsockopt(level, option, socket.inet_pton(made.family, group) + interface)
        except OSError as error:
            carrier.close()
            raise DeviceUnavailable(f"{self.address} can't join {group}: {error}") from error
        return carrier

    def close(self) -> None:
        if self._socket is None:
            return
        if self._received is not None:
            self._reactor.removeReader(self)
        if self._writing:
            self._reactor.removeWriter(self)
        self._socket.close()
        self._socket = self._received = None

    def _lost(self, error: OSError, data: memoryview, segment: int, destination: RawAddress) -> None:
        """Count lost datagrams, and log each kind of error once."""
        self.dropped += 1
        number = error.errno or 0
        if (
            len(data) > segment
            and number in (errno.EIO, errno.EINVAL, errno.EOPNOTSUPP)
            and self._canSendSingly(data[:segment], destination)
        ):
            self.segments = 1  # this interface can't
        elif number not in self._reported:
            self._reported.add(number)
            _log.warn(
                "packets of RoCE from {address} port {port} are lost: {error}",
                address=self.address,
                port=self.port,
                error=errorText(error),
            )

    def _canSendSingly(self, datagram: memoryview, destination: RawAddress) -> bool:
        """Return whether the system only refused several datagrams at once."""
        try:
            if self._socket is not None:
                self._socket.sendto(datagram, destination)
        except OSError:
            return False  # such as an address that is gone, or a smaller MTU
        return True

    # IReadDescriptor, IWriteDescriptor

    def fileno(self) -> int:
        return -1 if self._socket is None else self._socket.fileno()

    def logPrefix(self) -> str:
        return "RoCE"

    def doRead(self) -> None:
        received = self._received
        buffers, data, ancillarySize = self._buffers, self._data, self._ancillary
        for number in range(1, _AT_ONCE + 1):
            if self._socket is None or received is None:
                return
            try:
                size, ancillary, flags, source = self._socket.recvmsg_into(buffers, ancillarySize)
            except OSError as error:
                if not isinstance(error, BlockingIOError):
                    _log.debug(
                        "packets of RoCE to {address} port {port} are lost: {error}",
                        address=self.address,
                        port=self.port,
                        error=errorText(error),
                    )
                if number == 1:
                    return  # the common case while a reader busy-polls
                break
            if 0 < size and not flags & _TRUNCATED:
                segment, codepoint = size, 0
                for level, _kind, value in ancillary:  # the only kind of its level that was requested
                    if level == socket.IPPROTO_UDP:
                        segment = int.from_bytes(value[:4], sys.byteorder) or size
                    else:
                        codepoint = int.from_bytes(value, sys.byteorder) & _ECN  # one byte, or four for IPv6
                received(data[:size], segment, source, codepoint)
                if number % ANSWERED == 0:
                    self._batchEnded()
        if received is not None:
            self._batchEnded()

    def doWrite(self) -> None:
        self._reactor.removeWriter(self)
        self._writing = False
        if self._received is not None:
            self._writable()

    def connectionLost(self, reason: Failure) -> None:
        """Close, unless the reactor ends: then the owner may still send, and closes."""
        if not reason.check(ConnectionLost, ConnectionDone):
            self.close()


def _socketAddress(address: str, port: int) -> tuple[Any, ...]:
    host = address.encode("ascii", "replace")  # of a text Python takes it for a name, and imports IDNA
    return socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST)[0][4]


def udpSocket(address: str) -> socket.socket:
    """
    Create a UDP socket for RoCE, which is not bound yet; it belongs to the current network namespace.

    @raise DeviceUnavailable: the system cannot create one.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    made: socket.socket | None = None
    try:
        made = socket.socket(family, socket.SOCK_DGRAM | getattr(socket, "SOCK_CLOEXEC", 0))
        made.setblocking(False)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if sys.platform == "linux":  # with it, and only while not connected, the identification is 0
            if family == socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, _PMTUDISC_DO)
                made.setsockopt(socket.IPPROTO_UDP, _UDP_NO_CHECK6_RX, 1)  # annex A17: the ICRC suffices
            else:
                made.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _PMTUDISC_DO)
    except BaseException as error:
        if made is not None:
            made.close()
        if isinstance(error, OSError):
            raise _unavailable(address, error) from error
        raise
    return made


def _unavailable(address: str, error: OSError) -> DeviceUnavailable:
    """Return the error of a device whose address has no socket."""
    return DeviceUnavailable(f"no UDP socket at {address}: {advised(error)}{addressAdvice(address, error)}")


def _reportClass(bound: socket.socket) -> tuple[int, int]:
    """
    Let a socket report the traffic class of received datagrams. Return level and kind of the ancillary data
    that sets it.
    """
    if bound.family == socket.AF_INET6:
        level, report, kind = socket.IPPROTO_IPV6, socket.IPV6_RECVTCLASS, socket.IPV6_TCLASS
    else:
        level, report, kind = socket.IPPROTO_IP, _IP_RECVTOS, socket.IP_TOS
    with suppress(OSError):
        bound.setsockopt(level, report, 1)
    return level, kind


def _canSegment(bound: socket.socket) -> bool:
    try:
        bound.getsockopt(socket.IPPROTO_UDP, _UDP_SEGMENT)
    except OSError:
        return False
    return sys.platform == "linux"


def _canMerge(bound: socket.socket) -> bool:
    if sys.platform != "linux":
        return False
    try:
        bound.setsockopt(socket.IPPROTO_UDP, _UDP_GRO, 1)
    except OSError:
        return False
    return True
