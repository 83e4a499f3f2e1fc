"""
Datagram services at ports of RDMA CM's UDP port space, with one queue pair at each port of the device.

Follows InfiniBand Architecture vol. 1, 12.11 (service ID resolution) and annex A11. Datagrams may be lost or
reordered; each fits into one packet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Final, overload, TYPE_CHECKING, TypeVar

from zope.interface import implementer

from twisted.internet.defer import CancelledError, Deferred, execute, succeed
from twisted.internet.interfaces import IAddress, IListeningPort
from twisted.logger import Logger

from txrdma.cm.connections.adapter import Adapter, heldAdapter
from txrdma.cm.connections.datagramqueues import DatagramQueuePair, QKEY
from txrdma.cm.connections.endpoints import followUser, LIFE_TIME, randomPort, serviceIDAt, within
from txrdma.cm.connections.hostnames import connectToHost
from txrdma.cm.connections.listening import firstFree
from txrdma.cm.errors import ServiceRefused
from txrdma.cm.layouts.ipcm import IPAddresses, PortSpace, serviceIDOf
from txrdma.cm.layouts.messages import SIDRREP, SIDRREQ, SIDRStatus
from txrdma.cm.layouts.rejectinfo import redirectedPath
from txrdma.cm.terms import checkSeconds
from txrdma.error import DeviceUnavailable, InvalidRequest, RDMAError
from txrdma.iba.path import IBPath
from txrdma.iba.types import GID, MULTICAST_QPN, QPN
from txrdma.interfaces import IMulticast
from txrdma.kit.cancelling import wrapped
from txrdma.kit.strings import checkAddress, checkPort
from txrdma.messages.address import MessageAddress
from txrdma.messages.interfaces import IMessageClientEndpoint, IMessageProtocolFactory, IMessageServerEndpoint
from txrdma.messages.memory import octets
from txrdma.messages.protocol import MessageFactory
from txrdma.messages.transport import cannotListen
from txrdma.ports.softdevices import softDeviceTo
from txrdma.verbs.devices import checkSpec, DeviceSpec

if TYPE_CHECKING:
    from txrdma.kit.buffers import AnyBuffer

_log = Logger()

_ProtocolT = TypeVar("_ProtocolT")

_HOPS: Final = 64
_SIDR_REP_BYTES: Final = 136
_SIDR_REQ_BYTES: Final = 180


@implementer(IAddress)
class DatagramPeer:
    """
    A queue pair of datagrams.

    @ivar gid: the GID of its port.
    @ivar qpn: the number of the queue pair; C{qkey}: its Q_Key.
    @ivar privateData: private data of a service's SIDR_REP, without zeros at the end; empty for other peers.
    @ivar localPort: number of the local port at which its datagrams arrive, and from which datagrams are sent
        to it; 0 for that of the route. It is not compared.
    """

    __slots__ = ("gid", "localPort", "privateData", "qkey", "qpn")

    def __init__(
        self, gid: GID, qpn: QPN, qkey: int = QKEY, privateData: bytes = b"", localPort: int = 0
    ) -> None:
        self.gid, self.qpn, self.qkey, self.privateData = gid, qpn, qkey, privateData
        self.localPort = localPort

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DatagramPeer) and (self.gid, self.qpn) == (other.gid, other.qpn)

    def __hash__(self) -> int:
        return hash((self.gid, self.qpn))

    def __repr__(self) -> str:
        return f"<DatagramPeer {self.gid.ip or self.gid} {self.qpn:#x}>"


def groupOf(group: str) -> DatagramPeer:
    """
    Return the IP multicast group with this address as a receiver of datagrams.

    @raise InvalidRequest: it is not the address of a multicast group.
    """
    try:
        gid = GID.fromIP(group)
    except ValueError as error:
        raise InvalidRequest(f"{group} is not an IP address") from error
    if not gid.isMulticast:
        raise InvalidRequest(f"{group} is not a multicast group")
    return DatagramPeer(gid, MULTICAST_QPN)


class DatagramProtocol:
    """
    A protocol of datagrams that does nothing until it is subclassed.

    @ivar transport: available from C{startProtocol} on.
    @cvar answer: private data of the SIDR_REP, at most 136 bytes.
    """

    answer = b""
    transport: DatagramTransport

    def startProtocol(self) -> None:
        """Called when datagrams can be sent; a second time if C{twistd --uid} has stopped the protocol."""

    def datagramReceived(self, data: bytes, peer: DatagramPeer) -> None:
        """Called with each datagram; C{peer} is its sender."""

    def stopProtocol(self) -> None:
        """Called when the transport is closed."""


class DatagramTransport:
    """
    Queue pairs of unreliable datagrams, one for each of several ports of a device, for one protocol.

    @ivar peer: the resolved service; None at the service itself.
    @ivar longest: largest length of a datagram in bytes that fits into one packet at each port.
    @ivar dropped: number of datagrams that were not sent because too many sends were outstanding.
    """

    def __init__(
        self, adapter: Adapter, places: Sequence[tuple[int, int]], protocol: DatagramProtocol
    ) -> None:
        """
        @param places: numbers of the local ports, and the table index of a GID of each.
        @raise RDMAError: the device has too few resources.
        """
        self.peer: DatagramPeer | None = None
        self.dropped = 0
        self._adapter, self._protocol = adapter, protocol
        self.isOpen = True
        self._queuePairs: list[DatagramQueuePair] = []
        with ExitStack() as self._undo:
            self._undo.callback(adapter.hold())
            for place in places:
                queuePair = DatagramQueuePair(adapter, place, self._received, self.loseConnection)
                self._undo.callback(queuePair.close)
                self._queuePairs.append(queuePair)
            self._undo = self._undo.pop_all()
        self.longest = min(each.longest for each in self._queuePairs)

    def __repr__(self) -> str:
        return f"<DatagramTransport {self.qpn:#x}>"

    @property
    def qpn(self) -> QPN:
        """The number of the queue pair at the first port."""
        return self._queuePairs[0].number

    def qpnAt(self, gid: GID | None) -> QPN:
        """Return the number of the queue pair at the port with a GID; of the first one if no port has it."""
        found = None if gid is None else self._adapter.findGID(gid)
        return (self._at(found[0] if found else 0) or self._queuePairs[0]).number

    def write(self, data: AnyBuffer, peer: DatagramPeer | None = None) -> None:
        """
        Send a datagram, which may be lost. After the end it is dropped.

        @param peer: the receiver; None is the resolved service.
        @raise InvalidRequest: the datagram is too long, or has no receiver.
        """
        data, to = octets(data), peer or self.peer
        if to is None:
            raise InvalidRequest("a datagram of a service needs a receiver")
        queuePair = self._queuePairTo(to)
        if len(data) > queuePair.longest:
            raise InvalidRequest(f"a datagram has at most {queuePair.longest} bytes, not {len(data)}")
        if self.isOpen and not queuePair.write(data, to.gid, to.qpn, to.qkey) and self.isOpen:
            self.dropped += 1

    def _at(self, port: int) -> DatagramQueuePair | None:
        return next((each for each in self._queuePairs if each.port == port), None)

    def _queuePairTo(self, peer: DatagramPeer) -> DatagramQueuePair:
        """Return the queue pair at the port from which datagrams are sent to a peer."""
        if len(self._queuePairs) == 1 or not self.isOpen:
            return self._queuePairs[0]
        adapter = self._adapter
        port = peer.localPort or adapter.requireGID(adapter.sourceGID(peer.gid))[0]
        return self._at(port) or self._queuePairs[0]

    def joinGroup(self, group: str) -> Deferred[DatagramPeer]:
        """
        Also receive the datagrams to an IP multicast group, at the first port of its IP version.

        @param group: an IPv4 or IPv6 address, of the same version as a port's.
        @return: fires with the group, to which L{write} sends; fails with L{InvalidRequest} if the port
            cannot join the group or the device has no multicast, or another L{RDMAError}.
        """
        return execute(self._joinGroup, group)

    def _joinGroup(self, group: str) -> DatagramPeer:
        peer = groupOf(group)
        multicast = self._multicast(peer) if self.isOpen else None
        if multicast is None:
            raise InvalidRequest(f"{self!r} can't join {group}: it is closed, or its device has no multicast")
        multicast.attachMulticast(peer.gid)
        return peer

    def _multicast(self, group: DatagramPeer) -> IMulticast | None:
        """Return the queue pair that can be a member of a group; set the port of the group."""
        isMapped = group.gid.isMapped
        fitting = [each for each in self._queuePairs if each.gid.isMapped == isMapped]
        chosen = (fitting or self._queuePairs)[0]
        group.localPort = chosen.port
        return chosen.multicast

    def leaveGroup(self, group: str) -> Deferred[None]:
        """
        Stop receiving the datagrams to an IP multicast group. Idempotent.

        @return: fails with L{InvalidRequest} if it is not a group.
        """
        return execute(self._leaveGroup, group)

    def _leaveGroup(self, group: str) -> None:
        peer = groupOf(group)
        for each in self._queuePairs:  # it may have joined when its port had another address
            multicast = each.multicast
            if multicast is not None:
                multicast.detachMulticast(peer.gid)

    def whenClosed(self, call: Callable[[], None]) -> None:
        """Call a function when this transport is closed."""
        self._undo.callback(call)

    def begin(self) -> None:
        """Start the protocol; an exception closes the transport without C{stopProtocol}."""
        try:
            self._protocol.transport = self
            self._protocol.startProtocol()
        except BaseException:
            self._close()
            raise

    def loseConnection(self) -> None:
        """Close the queue pairs, stop the protocol, and end its service, if it has one. Idempotent."""
        wasOpen = self.isOpen
        with _log.failuresHandled("{transport} could not be closed completely", transport=self):
            self._close()
        if wasOpen:
            with _log.failuresHandled("{transport}: stopProtocol raised an exception", transport=self):
                self._protocol.stopProtocol()

    def _received(self, data: bytes, source: GID, qpn: QPN, port: int) -> None:
        try:
            self._protocol.datagramReceived(data, DatagramPeer(source, qpn, localPort=port))
        except Exception:
            _log.failure("{transport} closes: datagramReceived raised an exception", transport=self)
            self.loseConnection()

    def _close(self) -> None:
        """Close everything."""
        self.isOpen = False
        self._undo.close()


@implementer(IMessageClientEndpoint)
class DatagramClientEndpoint:
    """Resolves a datagram service at a host and a port of RDMA CM's UDP port space."""

    def __init__(
        self,
        reactor: Any,
        host: str,
        port: int,
        device: DeviceSpec | None = None,
        privateData: bytes = b"",
        timeout: float | None = None,
    ) -> None:
        """
        @param host: an IP address, or a name, whose addresses are tried as C{HostnameEndpoint} does.
        @param device: None is the software device at the source address of the route to the host.
        @param privateData: for the service; at most 180 bytes.
        @param timeout: seconds until C{connect} fails; None is the time of all retransmissions.
        @raise ValueError: the port is not from 0 to 65535.
        @raise InvalidRequest: the private data is too long, or the timeout is not above 0.
        """
        if len(privateData) > _SIDR_REQ_BYTES:
            raise InvalidRequest(f"private data has at most {_SIDR_REQ_BYTES} bytes, not {len(privateData)}")
        if timeout is not None:
            checkSeconds("timeout", timeout)
        checkAddress(host, port)
        if device is not None:
            checkSpec(device)
        self._reactor, self._host, self._device, self._privateData = reactor, host, device, privateData
        self._serviceID, self._timeout = serviceIDOf(PortSpace.UDP, port), timeout

    @overload
    def connect(self, factory: MessageFactory[_ProtocolT]) -> Deferred[_ProtocolT]: ...

    @overload
    def connect(self, factory: IMessageProtocolFactory) -> Deferred[DatagramProtocol]: ...

    def connect(self, factory: Any) -> Deferred[Any]:
        """
        Resolve the service, and start a protocol of the factory. The Deferred can be cancelled.

        @return: fires with the protocol, whose transport has the service as its C{peer}; fails with
            L{ServiceRefused<txrdma.cm.errors.ServiceRefused>}, with
            L{PeerSilent<txrdma.cm.errors.PeerSilent>}, or another L{RDMAError}.
        """
        answer: Deferred[DatagramProtocol] = Deferred(lambda _: connecting.cancel())

        def connect(address: str) -> Deferred[DatagramProtocol]:
            return Deferred.fromCoroutine(self._connectTo(address, factory, answer))

        connecting = connectToHost(self._reactor, self._host, connect)

        def fire(result: Any) -> None:  # or a Failure
            if not answer.called:  # cancelled by the factory or the protocol
                answer.callback(result)

        connecting.addBoth(fire)
        return wrapped(answer, partial(within, self._reactor, self._timeout))

    async def _connectTo(
        self, address: str, factory: IMessageProtocolFactory, answer: Deferred[DatagramProtocol]
    ) -> DatagramProtocol:
        device = softDeviceTo(address) if self._device is None else self._device
        with heldAdapter(self._reactor, device) as adapter:
            gid = GID.fromIP(address)
            source = adapter.sourceGID(gid)
            path = IBPath(sgid=source, dgid=gid, hopLimit=_HOPS, packetLifeTime=LIFE_TIME)
            try:
                found = await self._resolve(adapter, path)
            except ServiceRefused as error:
                redirected = redirectedPath(path, error.response)
                if redirected is None or redirected.dgid is None:
                    raise
                gid = redirected.dgid
                found = await self._resolve(adapter, redirected)  # a second redirection is an error
            peer = DatagramPeer(gid, found.qpn, found.qkey, found.privateData.rstrip(b"\0"))
            protocol = _protocolOf(factory, peer)
            if answer.called:  # cancelled by the factory
                raise CancelledError
            transport = DatagramTransport(adapter, [adapter.requireGID(source)], protocol)
        transport.peer = peer
        transport.begin()
        if answer.called:  # cancelled by the protocol
            transport.loseConnection()
            raise CancelledError
        return protocol

    def _resolve(self, adapter: Adapter, path: IBPath) -> Deferred[SIDRREP]:
        """Send a SIDR_REQ."""
        assert path.sgid is not None and path.dgid is not None
        addresses = IPAddresses(path.sgid.ip or "", randomPort(), path.dgid.ip or "")
        return adapter.localManager.resolve(self._serviceID, path, addresses.toPrivateData(self._privateData))


@implementer(IMessageClientEndpoint)
class DatagramGroupEndpoint:
    """Joins an IP multicast group, as C{rdma_join_multicast} of librdmacm does on RoCE."""

    def __init__(self, reactor: Any, group: str, device: DeviceSpec | None = None) -> None:
        """
        @param group: the IPv4 or IPv6 address of the group; with a zone if C{device} is None.
        @param device: None is the software device at the source address of the route to the group.
        @raise InvalidRequest: it is not the address of a multicast group.
        """
        self._reactor, self._peer, self._group, self._device = reactor, groupOf(group), group, device

    @overload
    def connect(self, factory: MessageFactory[_ProtocolT]) -> Deferred[_ProtocolT]: ...

    @overload
    def connect(self, factory: IMessageProtocolFactory) -> Deferred[DatagramProtocol]: ...

    def connect(self, factory: Any) -> Deferred[Any]:
        """
        Join the group, and start a protocol of the factory.

        @return: fires with the protocol, whose transport has the group as its C{peer}, and receives the
            datagrams of all members, including its own; fails as L{DatagramTransport.joinGroup} does.
        """
        return execute(self._connect, factory)

    def _connect(self, factory: IMessageProtocolFactory) -> DatagramProtocol:
        group = self._group
        device = softDeviceTo(group) if self._device is None else self._device
        with heldAdapter(self._reactor, device) as adapter:
            protocol = _protocolOf(factory, self._peer)
            place = adapter.requireGID(adapter.sourceGID(self._peer.gid))
            transport = DatagramTransport(adapter, [place], protocol)
        try:
            transport.peer = transport._joinGroup(group)
        except BaseException:
            transport._close()
            raise
        transport.begin()
        return protocol


def _protocolOf(factory: IMessageProtocolFactory, address: IAddress) -> DatagramProtocol:
    protocol: DatagramProtocol | None = factory.buildProtocol(address)
    if protocol is None:
        raise InvalidRequest("the factory has no protocol for this service: buildProtocol returned None")
    return protocol


@implementer(IListeningPort)
class _Serving:
    """The listening port of a datagram service."""

    def __init__(self, adapter: Adapter, port: int, factory: IMessageProtocolFactory) -> None:
        self._isSuspended = False
        self._makeProtocol: Callable[[], DatagramProtocol] = lambda: _protocolOf(factory, self.getHost())
        self._claim(adapter, partial(serviceIDAt, PortSpace.UDP, port))

    def _claim(self, adapter: Adapter, number: Callable[[], int]) -> None:
        """Answer requests for a service ID of an adapter, once the protocol has started."""
        self._adapter, gid = adapter, adapter.usualGID()
        self._serviceID, self._end = firstFree(
            number, lambda each: adapter.localManager.serve(each, self._answered)
        )
        host = MessageAddress(gid, self._serviceID, gid.ip or "", self._serviceID & 0xFFFF)
        self._host = adapter.zoned(host, gid)

    def startListening(self) -> None:
        """
        Start the protocol.

        @raise InvalidRequest: the factory has no protocol, or its private data is too long.
        """
        try:
            self._protocol = self._makeProtocol()
            length = len(self._protocol.answer)
            if length > _SIDR_REP_BYTES:
                raise InvalidRequest(f"private data has at most {_SIDR_REP_BYTES} bytes, not {length}")
            locations = self._adapter.usualLocations()
            self._transport = DatagramTransport(self._adapter, locations, self._protocol)
        except BaseException:
            self._end()
            raise
        self._transport.whenClosed(self._end)
        self._transport.begin()

    def stopListening(self) -> Deferred[None]:
        """Stop listening, and stop the protocol. Idempotent."""
        self._isSuspended = False
        self._transport.loseConnection()
        return succeed(None)

    def suspend(self) -> None:
        """Stop the protocol until L{resume} is called, and release the adapter. Idempotent."""
        self._isSuspended = self._isSuspended or self._transport.isOpen
        self._transport.loseConnection()

    def resume(self, adapter: Adapter) -> None:
        """
        Start the protocol with a queue pair of another adapter, as the same service.

        @raise DeviceUnavailable: the adapter is the same, since a connection uses it.
        """
        if self._isSuspended:
            if adapter is self._adapter:
                raise DeviceUnavailable(f"{adapter.device.name} is in use as the former user")
            self._isSuspended = False
            self._makeProtocol = lambda: self._protocol
            self._claim(adapter, lambda: self._serviceID)
            self.startListening()

    def getHost(self) -> MessageAddress:
        return self._host

    def _answered(self, request: SIDRREQ, path: IBPath) -> SIDRREP:
        return SIDRREP(
            status=SIDRStatus.VALID,
            qpn=self._transport.qpnAt(path.sgid),
            qkey=QKEY,
            privateData=self._protocol.answer.ljust(_SIDR_REP_BYTES, b"\0"),
        )


@implementer(IMessageServerEndpoint)
class DatagramServerEndpoint:
    """Provides a datagram service at a port of RDMA CM's UDP port space."""

    def __init__(self, reactor: Any, port: int, device: DeviceSpec = "soft") -> None:
        """@param port: 0 is any free port."""
        checkPort(port)
        checkSpec(device)
        self._reactor, self._port, self._device = reactor, port, device

    def listen(self, factory: IMessageProtocolFactory | MessageFactory[Any]) -> Deferred[IListeningPort]:
        """
        Start to listen, with one protocol of the factory for all peers.

        @return: fires with the port, whose C{getHost} is a L{MessageAddress}; fails with
            C{CannotListenError}, which an L{RDMAError} has caused, or with L{InvalidRequest} if the protocol
            cannot be used.
        """
        return execute(self._listen, factory)

    def _listen(self, factory: IMessageProtocolFactory) -> IListeningPort:
        with ExitStack() as undo:
            try:
                adapter = undo.enter_context(heldAdapter(self._reactor, self._device))
                serving = _Serving(adapter, self._port, factory)
            except RDMAError as error:
                raise cannotListen(self._device, self._port, error) from error
            serving.startListening()
            try:
                suspend, resume = serving.suspend, serving.resume
                followUser(self._reactor, self._device, adapter, serving, suspend, resume)
            except BaseException:
                serving.stopListening()
                raise
        return serving
