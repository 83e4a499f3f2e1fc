"""
Bindings of librdmacm: its structures and functions, and the translation of its errors.

Follows C{rdma_cma.h} and C{verbs.h} of rdma-core, whose binary interface has been the same since release 15;
release 44 is tested. pyverbs has no descriptor of an event channel, and cannot accept with a queue pair
from elsewhere, so this module uses ctypes. librdmacm never owns a queue pair.
"""

from __future__ import annotations

import ctypes
import errno
import ipaddress
import os
import socket
import struct
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from txrdma.error import DeviceUnavailable, InvalidRequest, RDMAError, ResourceExhausted
from txrdma.iba.types import GID, QPN
from txrdma.iba.verbs import QPState
from txrdma.kit.values import frozen
from txrdma.kit.wire import Code

LIBRARY: Final = "librdmacm.so.1"

DESCRIPTOR: Final = "/dev/infiniband/rdma_cm"
"""The character device that librdmacm uses; it exists if C{rdma_ucm} is loaded."""

_COMMUNICATION_ESTABLISHED: Final = 4

_EXHAUSTED: Final = frozenset({errno.ENOMEM, errno.ENOSPC, errno.EMFILE, errno.ENFILE})
_WRONG: Final = frozenset({errno.EINVAL, errno.EADDRINUSE, errno.EADDRNOTAVAIL})


class EventKind(Code):
    """The kind of an event, by C{enum rdma_cm_event_type}."""

    ADDR_RESOLVED = 0
    ADDR_ERROR = 1
    ROUTE_RESOLVED = 2
    ROUTE_ERROR = 3
    CONNECT_REQUEST = 4
    CONNECT_RESPONSE = 5
    CONNECT_ERROR = 6
    UNREACHABLE = 7
    REJECTED = 8
    ESTABLISHED = 9
    DISCONNECTED = 10
    DEVICE_REMOVAL = 11
    MULTICAST_JOIN = 12
    MULTICAST_ERROR = 13
    ADDR_CHANGE = 14
    TIMEWAIT_EXIT = 15


class _GID(ctypes.Structure):
    _fields_ = (("raw", ctypes.c_uint64 * 2),)


class _Addresses(ctypes.Structure):
    """The C structure C{struct rdma_addr}: two socket addresses, and their InfiniBand addresses."""

    _fields_ = (
        ("source", ctypes.c_uint64 * 16),
        ("destination", ctypes.c_uint64 * 16),
        ("sgid", _GID),
        ("dgid", _GID),
        ("pkey", ctypes.c_uint16),
    )


class _Identifier(ctypes.Structure):
    """The beginning of C{struct rdma_cm_id}."""

    _fields_ = (
        ("verbs", ctypes.c_void_p),
        ("channel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
        ("queuePair", ctypes.c_void_p),
        ("addresses", _Addresses),
    )


class _Parameters(ctypes.Structure):
    """The C structure C{struct rdma_conn_param}."""

    _fields_ = (
        ("privateData", ctypes.c_void_p),
        ("privateLength", ctypes.c_uint8),
        ("responderResources", ctypes.c_uint8),
        ("initiatorDepth", ctypes.c_uint8),
        ("flowControl", ctypes.c_uint8),
        ("retryCount", ctypes.c_uint8),
        ("rnrRetryCount", ctypes.c_uint8),
        ("srq", ctypes.c_uint8),
        ("qpn", ctypes.c_uint32),
    )


class _Event(ctypes.Structure):
    """The C structure C{struct rdma_cm_event}, of connections."""

    _fields_ = (
        ("identifier", ctypes.c_void_p),
        ("listener", ctypes.c_void_p),
        ("kind", ctypes.c_int),
        ("status", ctypes.c_int),
        ("parameters", _Parameters),
    )


class _Route(ctypes.Structure):
    """The C structure C{struct ibv_ah_attr}."""

    _fields_ = (
        ("dgid", _GID),
        ("flowLabel", ctypes.c_uint32),
        ("sgidIndex", ctypes.c_uint8),
        ("hopLimit", ctypes.c_uint8),
        ("trafficClass", ctypes.c_uint8),
        ("dlid", ctypes.c_uint16),
        ("serviceLevel", ctypes.c_uint8),
        ("pathBits", ctypes.c_uint8),
        ("rate", ctypes.c_uint8),
        ("isGlobal", ctypes.c_uint8),
        ("port", ctypes.c_uint8),
    )


class _Attributes(ctypes.Structure):
    """The C structure C{struct ibv_qp_attr}."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("state", "currentState", "pathMTU", "migrationState")),
        *((name, ctypes.c_uint32) for name in ("qkey", "rqPSN", "sqPSN", "destinationQPN", "access")),
        ("capacity", ctypes.c_uint32 * 5),
        ("route", _Route),
        ("alternateRoute", _Route),
        ("pkeyIndex", ctypes.c_uint16),
        ("alternatePKeyIndex", ctypes.c_uint16),
        *(
            (name, ctypes.c_uint8)
            for name in (
                *("notifies", "isDraining", "maxRDAtomic", "maxDestRDAtomic", "minRNRTimer", "port"),
                *("timeout", "retryCount", "rnrRetry", "alternatePort", "alternateTimeout"),
            )
        ),
        ("rateLimit", ctypes.c_uint32),
    )


@frozen
class Parameters:
    """
    The parameters of a connection in librdmacm, as this end sees them.

    @ivar qpn: this end's queue pair in calls, the peer's in events.
    @ivar responderResources: reads of the peer that this end serves.
    @ivar initiatorDepth: reads of this end that the peer serves.
    """

    qpn: QPN
    responderResources: int
    initiatorDepth: int
    retryCount: int
    rnrRetryCount: int
    privateData: bytes


@frozen
class CMEvent:
    """
    An event of a channel, copied.

    @ivar identifier: the ID of its connection; for a CONNECT_REQUEST a new one.
    @ivar listener: for a CONNECT_REQUEST, the listening ID; else 0.
    @ivar status: a negative errno, or the reason of a REJ.
    """

    kind: EventKind
    identifier: int
    listener: int
    status: int
    parameters: Parameters


@frozen
class Ends:
    """
    The addresses of an ID: IP addresses and ports, and their addresses on the fabric.

    @ivar source: this end's address, and port; C{destination}: the peer's.
    """

    source: tuple[str, int]
    destination: tuple[str, int]
    sgid: GID
    dgid: GID
    pkey: int


@frozen
class Prepared:
    """Attributes of a queue pair that the kernel's manager has computed, in the units of verbs."""

    pathMTU: int
    destinationQPN: QPN
    rqPSN: int
    sqPSN: int
    timeout: int
    retryCount: int
    rnrRetry: int
    dlid: int
    pathBits: int
    isGlobal: bool
    flowLabel: int
    hopLimit: int
    trafficClass: int
    serviceLevel: int


@cache
def _load() -> Any:
    library = ctypes.CDLL(LIBRARY, use_errno=True)
    library.rdma_create_event_channel.restype = ctypes.c_void_p
    return library


def translated(code: int, what: str) -> RDMAError:
    """Return the L{RDMAError} for an errno of librdmacm; C{what} is the operation that failed."""
    text = f"{what}: {os.strerror(code)}"
    if code in _EXHAUSTED:
        return ResourceExhausted(text)
    return InvalidRequest(text) if code in _WRONG else DeviceUnavailable(text)


class EventChannel:
    """
    An event channel of librdmacm, with its ids, which are the addresses of their C structures.

    All methods except C{close} and C{destroy} raise an L{RDMAError} if librdmacm fails, or if the ID was
    destroyed or the channel is closed, when librdmacm would use freed memory.
    """

    def __init__(self) -> None:
        """
        @raise DeviceUnavailable: librdmacm is not installed, or the kernel's communication manager is not
            available.
        """
        try:
            self._library = _load()
        except OSError as error:
            raise DeviceUnavailable(f"librdmacm can't be loaded: {error}") from error
        self._channel: int | None = self._library.rdma_create_event_channel()
        if not self._channel:
            raise translated(ctypes.get_errno(), "can't query the kernel's communication manager")
        self._descriptor = ctypes.c_int.from_address(self._channel).value
        os.set_blocking(self._descriptor, False)
        self.identifiers: set[int] = set()

    def fileno(self) -> int:
        """The descriptor that is readable when there is an event; -1 after L{close}."""
        return self._descriptor

    def close(self) -> None:
        """Destroy all remaining IDs, and the channel. Idempotent."""
        channel, self._channel = self._channel, None
        self._descriptor = -1
        if channel is not None:
            for identifier in tuple(self.identifiers):
                self.destroy(identifier)
            self._library.rdma_destroy_event_channel(ctypes.c_void_p(channel))

    def take(self) -> CMEvent | None:
        """Take and acknowledge one event, so that its IDs can be destroyed; None if there is none."""
        channel, found = self._open(), ctypes.POINTER(_Event)()
        if self._library.rdma_get_cm_event(channel, ctypes.byref(found)):
            code = ctypes.get_errno()
            if code in (errno.EAGAIN, errno.EINTR):
                return None
            raise translated(code, "events of the kernel's communication manager can't be read")
        try:
            event = _copied(found.contents)
        finally:  # else its IDs could not be destroyed
            self._library.rdma_ack_cm_event(found)
        if event.kind is EventKind.CONNECT_REQUEST:
            self.identifiers.add(event.identifier)
        return event

    def create(self, space: int) -> int:
        """Create an ID in a port space."""
        made = ctypes.c_void_p()
        self._call("create_id", self._open(), ctypes.byref(made), None, space)
        assert made.value is not None
        self.identifiers.add(made.value)
        return made.value

    def destroy(self, identifier: int) -> None:
        """Destroy an ID; the kernel sends the peer the required message. Idempotent."""
        if identifier in self.identifiers:
            self.identifiers.discard(identifier)
            self._library.rdma_destroy_id(ctypes.c_void_p(identifier))

    def listen(self, identifier: int, host: str, port: int, backlog: int) -> None:
        """Bind an ID to an address, and listen there."""
        self._call("bind_addr", self._living(identifier), _address(host, port))
        self._call("listen", self._living(identifier), backlog)

    def resolveAddress(self, identifier: int, source: str, host: str, port: int, seconds: float) -> None:
        """Resolve the path to an address; ADDR_RESOLVED or ADDR_ERROR follow."""
        ends = _address(source, 0), _address(host, port)
        self._call("resolve_addr", self._living(identifier), *ends, int(seconds * 1000))

    def resolveRoute(self, identifier: int, seconds: float) -> None:
        """Resolve the route to an address that was resolved; ROUTE_RESOLVED or ROUTE_ERROR follow."""
        self._call("resolve_route", self._living(identifier), int(seconds * 1000))

    def connect(self, identifier: int, parameters: Parameters) -> None:
        """Send a REQ; CONNECT_RESPONSE, REJECTED or UNREACHABLE follow."""
        self._withParameters("connect", identifier, parameters)

    def accept(self, identifier: int, parameters: Parameters) -> None:
        """Send a REP; ESTABLISHED follows."""
        self._withParameters("accept", identifier, parameters)

    def establish(self, identifier: int) -> None:
        """Send an RTU to a peer that has accepted."""
        self._call("establish", self._living(identifier))

    def reject(self, identifier: int, privateData: bytes) -> None:
        """Send a REJ with the consumer's reason."""
        self._call("reject", self._living(identifier), privateData, len(privateData))

    def disconnect(self, identifier: int) -> None:
        """Send a DREQ, or a DREP to a peer that has sent one."""
        self._call("disconnect", self._living(identifier))

    def communicating(self, identifier: int) -> None:
        """Report received data to the kernel, which replaces a lost RTU."""
        self._call("notify", self._living(identifier), _COMMUNICATION_ESTABLISHED)

    def ends(self, identifier: int) -> Ends:
        """The addresses of an ID, if it has any."""
        addresses = ctypes.cast(self._living(identifier), ctypes.POINTER(_Identifier)).contents.addresses
        return Ends(
            source=_pair(bytes(addresses.source)),
            destination=_pair(bytes(addresses.destination)),
            sgid=GID(bytes(addresses.sgid)),
            dgid=GID(bytes(addresses.dgid)),
            pkey=socket.ntohs(addresses.pkey),
        )

    def prepared(self, identifier: int) -> Prepared:
        """Return the attributes for the queue pair of an ID, as the kernel has computed them."""
        ready = self._attributes(identifier, QPState.RTR)
        sending = self._attributes(identifier, QPState.RTS)
        route = ready.route
        return Prepared(
            pathMTU=ready.pathMTU,
            destinationQPN=QPN(ready.destinationQPN),
            rqPSN=ready.rqPSN,
            sqPSN=sending.sqPSN,
            timeout=sending.timeout,
            retryCount=sending.retryCount,
            rnrRetry=sending.rnrRetry,
            dlid=route.dlid,
            pathBits=route.pathBits,
            isGlobal=bool(route.isGlobal),
            flowLabel=route.flowLabel,
            hopLimit=route.hopLimit,
            trafficClass=route.trafficClass,
            serviceLevel=route.serviceLevel,
        )

    def _attributes(self, identifier: int, state: QPState) -> _Attributes:
        attributes, mask = _Attributes(state=int(state)), ctypes.c_int()
        references = ctypes.byref(attributes), ctypes.byref(mask)
        self._call("init_qp_attr", self._living(identifier), *references)
        return attributes

    def _withParameters(self, name: str, identifier: int, parameters: Parameters) -> None:
        fields = ctypes.create_string_buffer(parameters.privateData, len(parameters.privateData) or 1)
        raw = _Parameters(
            privateData=ctypes.cast(fields, ctypes.c_void_p),
            privateLength=len(parameters.privateData),
            responderResources=parameters.responderResources,
            initiatorDepth=parameters.initiatorDepth,
            flowControl=1,
            retryCount=parameters.retryCount,
            rnrRetryCount=parameters.rnrRetryCount,
            qpn=parameters.qpn,
        )
        self._call(name, self._living(identifier), ctypes.byref(raw))

    def _open(self) -> ctypes.c_void_p:
        """Return the pointer to the event channel, or raise L{DeviceUnavailable} if it is closed."""
        if self._channel is None:
            raise DeviceUnavailable("the event channel of librdmacm is closed")
        return ctypes.c_void_p(self._channel)

    def _living(self, identifier: int) -> ctypes.c_void_p:
        """Return the pointer to an ID, or raise L{InvalidRequest} if it was destroyed."""
        if identifier not in self.identifiers:
            raise InvalidRequest("the ID of librdmacm was destroyed: its connection has ended")
        return ctypes.c_void_p(identifier)

    def _call(self, name: str, *arguments: Any) -> None:
        function: Callable[..., int] = getattr(self._library, f"rdma_{name}")
        if function(*arguments):
            raise translated(ctypes.get_errno(), f"librdmacm's rdma_{name} fails")


def _copied(event: _Event) -> CMEvent:
    fields = event.parameters
    return CMEvent(
        kind=EventKind(event.kind),
        identifier=event.identifier,
        listener=event.listener or 0,
        status=event.status,
        parameters=Parameters(
            qpn=QPN(fields.qpn),
            responderResources=fields.responderResources,
            initiatorDepth=fields.initiatorDepth,
            retryCount=fields.retryCount,
            rnrRetryCount=fields.rnrRetryCount,
            privateData=ctypes.string_at(fields.privateData, fields.privateLength)
            if fields.privateData
            else b"",
        ),
    )


def _address(host: str, port: int) -> bytes:
    """Return the bytes of a C{sockaddr_in} or C{sockaddr_in6}."""
    packed = ipaddress.ip_address(host).packed
    if len(packed) == 4:
        return struct.pack("=H", socket.AF_INET) + struct.pack(">H", port) + packed + bytes(8)
    return struct.pack("=H", socket.AF_INET6) + struct.pack(">HI", port, 0) + packed + bytes(4)


def _pair(address: bytes) -> tuple[str, int]:
    """Return the host and port of a socket address; C{('', 0)} for another family."""
    (family,) = struct.unpack_from("=H", address)
    (port,) = struct.unpack_from(">H", address, 2)
    if family == socket.AF_INET:
        return str(ipaddress.ip_address(address[4:8])), port
    if family == socket.AF_INET6:
        return str(ipaddress.ip_address(address[8:24])), port
    return "", 0
