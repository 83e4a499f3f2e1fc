"""
Endpoints for protocols of messages: by service ids of one's own, or by IP addresses and ports.

C{ib} endpoints name a service id and a path; C{rdma} endpoints follow InfiniBand Architecture vol. 1, annex
A11 (RDMA IP CM service), so that programs of Linux's RDMA CM understand them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from secrets import randbelow
from typing import Any, Final, Union

from zope.interface import implementer

from twisted.internet.defer import Deferred, execute, fail
from twisted.internet.interfaces import IListeningPort
from twisted.logger import Logger

from txrdma.cm.connections.adapter import Adapter, adapterOf
from txrdma.cm.connections.hostnames import addressesOf, isAddress
from txrdma.cm.connections.opening import AddressScheme, Attempt, Listening
from txrdma.cm.connections.transport import RDMATransport
from txrdma.cm.core.dispatcher import BACKLOG
from txrdma.cm.interfaces import IRDMAProtocol
from txrdma.cm.layouts.ipcm import IPAddresses, IPCMHeader, portOf, PortSpace, serviceIDOf
from txrdma.cm.layouts.messages import REQ
from txrdma.cm.terms import MessageAddress, Terms
from txrdma.error import InvalidRequest, RDMAError
from txrdma.iba.path import IBPath
from txrdma.iba.types import GID
from txrdma.messages.interfaces import IMessageClientEndpoint, IMessageProtocolFactory, IMessageServerEndpoint
from txrdma.ports.softdevices import softDeviceTo
from txrdma.verbs.devices import DevicePlace

_log = Logger()

LIFE_TIME: Final = 16
"""The packet life time of paths without one, a time's code: 0.27 seconds, as Linux has it on RoCE."""

_HOPS: Final = 64
_FIRST_PORT: Final = 0xC000
_HEADER: Final = len(IPCMHeader().encode())

USUAL: Final = Terms()
"""The terms of endpoints by service ids, unless they are given others."""

UNCOUNTED_TERMS: Final = Terms(usesCredits=False)
"""The terms of endpoints by IP address: without a greeting, which programs of others do not know."""


class ServiceIDScheme(AddressScheme):
    """Service ids of one's own: private data have nothing before those of a program."""

    def prefix(self, path: IBPath) -> bytes:
        """The bytes before all other private data of a REQ: none."""
        return b""

    def addressOf(self, serviceID: int, gid: GID | None) -> MessageAddress:
        return MessageAddress(gid, serviceID)

    def peerOf(self, request: REQ) -> tuple[MessageAddress, bytes]:
        return MessageAddress(request.primary.localGID, request.serviceID), request.privateData


class IPScheme(AddressScheme):
    """The IP CM service: ports in service ids, and addresses before the private data of a REQ."""

    def __init__(self, sourcePort: int = 0) -> None:
        """
        @param sourcePort: the port that an active end has.
        """
        self._sourcePort = sourcePort

    def prefix(self, path: IBPath) -> bytes:
        """The addresses of both ends."""
        source, destination = (gid.ip if gid is not None else None for gid in (path.sgid, path.dgid))
        if source is None or destination is None:
            raise InvalidRequest(f"{path} has no IP addresses")
        if (":" in source) != (":" in destination):
            raise InvalidRequest(f"there is no way from {source} to {destination}")
        return IPAddresses(source, self._sourcePort, destination).toPrivateData()

    def addressOf(self, serviceID: int, gid: GID | None) -> MessageAddress:
        """The address and port that a service id means at a port with this GID."""
        found = portOf(serviceID)
        host = "" if gid is None else gid.ip or ""
        return MessageAddress(gid, serviceID, host, 0 if found is None else found[1])

    def peerOf(self, request: REQ) -> tuple[MessageAddress, bytes]:
        """
        The address of an active end, and its private data behind both addresses.

        @raise WireError: there are no addresses.
        """
        said = IPAddresses.fromPrivateData(request.privateData)
        address = MessageAddress(request.primary.localGID, request.serviceID, said.source, said.sourcePort)
        return address, request.privateData[_HEADER:]


PrivateData = Union[bytes, Callable[[RDMATransport], bytes]]
"""Private data of a REQ, or what makes them by the transport, whose memory can be allocated."""


class _Client:
    """An endpoint that connects by an adapter, whatever names the peer."""

    def __init__(self, reactor: Any, device: DevicePlace, terms: Terms, privateData: PrivateData) -> None:
        self._reactor, self._device, self._terms, self._privateData = reactor, device, terms, privateData

    def _connect(
        self,
        naming: AddressScheme,
        serviceID: int,
        path: IBPath,
        factory: IMessageProtocolFactory,
        device: DevicePlace | None = None,
        alternate: IBPath | None = None,
    ) -> Deferred[IRDMAProtocol]:
        try:
            adapter = adapterOf(self._reactor, self._device if device is None else device)
            release = adapter.hold()
            try:
                return Attempt(
                    *(adapter, naming, serviceID, _whole(path, adapter), factory),
                    *(self._terms, self._privateData),
                    None if alternate is None else _whole(alternate, adapter),
                ).answer
            finally:
                release()
        except Exception:
            return fail()


def _whole(path: IBPath, adapter: Adapter) -> IBPath:
    """A path with usual values of its own GID, hops and packet life time, where it has none."""
    return replace(
        path,
        sgid=path.sgid or adapter.usualGID(),
        hopLimit=path.hopLimit or _HOPS,
        packetLifeTime=LIFE_TIME if path.packetLifeTime is None else path.packetLifeTime,
    )


@implementer(IMessageClientEndpoint)
class IBClientEndpoint(_Client):
    """Connects to a service id, by a path, and perhaps another one to migrate to."""

    def __init__(
        self,
        reactor: Any,
        serviceID: int,
        path: IBPath,
        device: DevicePlace = "soft",
        terms: Terms = USUAL,
        privateData: bytes = b"",
        alternate: IBPath | None = None,
    ) -> None:
        """
        @param path: where it says nothing of its own GID, hops and packet life time, they are usual ones.
        @param alternate: a path to migrate to from the beginning, if the peer accepts it; the transport's
            C{alternate} is None if not, and over shared memory.
        @param privateData: of the REQ; at most 92 bytes, or 80 with the greeting of those who count credits.
        """
        super().__init__(reactor, device, terms, privateData)
        self._serviceID, self._path, self._alternate = serviceID, path, alternate

    def connect(self, factory: IMessageProtocolFactory) -> Deferred[IRDMAProtocol]:
        return self._connect(
            ServiceIDScheme(), self._serviceID, self._path, factory, alternate=self._alternate
        )


@implementer(IMessageClientEndpoint)
class RDMAClientEndpoint(_Client):
    """Connects to a host and a port of RDMA CM's TCP port space."""

    def __init__(
        self,
        reactor: Any,
        host: str,
        port: int,
        device: DevicePlace | None = None,
        terms: Terms = UNCOUNTED_TERMS,
        privateData: PrivateData = b"",
        space: PortSpace = PortSpace.TCP,
    ) -> None:
        """
        @param host: an IP address, or a name, whose addresses are tried one after the other.
        @param device: None is the software device where the way to the host begins.
        @param privateData: of the REQ; at most 56 bytes, or 44 with the greeting of those who count credits.
        """
        super().__init__(reactor, "soft" if device is None else device, terms, privateData)
        self._host, self._serviceID, self._isChosen = host, serviceIDOf(space, port), device is not None

    def connect(self, factory: IMessageProtocolFactory) -> Deferred[IRDMAProtocol]:
        if isAddress(self._host):
            return self._connectTo(self._host, factory)
        return Deferred.fromCoroutine(self._connectByName(factory))

    async def _connectByName(self, factory: IMessageProtocolFactory) -> IRDMAProtocol:
        addresses = await addressesOf(self._reactor, self._host)
        for address in addresses[:-1]:
            try:
                return await self._connectTo(address, factory)
            except RDMAError as error:
                _log.info("{host} can't be reached by {address}: {error}", host=self._host, address=address,
                          error=error)  # fmt: skip
        return await self._connectTo(addresses[-1], factory)

    def _connectTo(self, address: str, factory: IMessageProtocolFactory) -> Deferred[IRDMAProtocol]:
        naming = IPScheme(_FIRST_PORT + randbelow((1 << 16) - _FIRST_PORT))
        try:
            device = self._device if self._isChosen else softDeviceTo(address)
        except InvalidRequest:
            return fail()
        return self._connect(naming, self._serviceID, IBPath(dgid=GID.fromIP(address)), factory, device)


class _Server:
    """An endpoint that listens by an adapter."""

    def __init__(self, reactor: Any, device: DevicePlace, terms: Terms, backlog: int) -> None:
        self._reactor, self._device, self._terms, self._backlog = reactor, device, terms, backlog

    def _listen(
        self, naming: AddressScheme, serviceID: Callable[[], int], factory: IMessageProtocolFactory
    ) -> Deferred[IListeningPort]:
        return execute(self._begin, naming, serviceID, factory)

    def _begin(
        self, naming: AddressScheme, serviceID: Callable[[], int], factory: IMessageProtocolFactory
    ) -> IListeningPort:
        adapter: Adapter = adapterOf(self._reactor, self._device)
        release = adapter.hold()
        try:
            listening = Listening(adapter, naming, serviceID, factory, self._terms, self._backlog)
            listening.startListening()
        finally:
            release()
        return listening


@implementer(IMessageServerEndpoint)
class IBServerEndpoint(_Server):
    """Listens to a service id."""

    def __init__(
        self,
        reactor: Any,
        serviceID: int,
        device: DevicePlace = "soft",
        terms: Terms = USUAL,
        backlog: int = BACKLOG,
    ) -> None:
        """
        @param backlog: connections that may be asked for and not established yet; REQs beyond are dropped.
        """
        super().__init__(reactor, device, terms, backlog)
        self._serviceID = serviceID

    def listen(self, factory: IMessageProtocolFactory) -> Deferred[IListeningPort]:
        return self._listen(ServiceIDScheme(), lambda: self._serviceID, factory)


@implementer(IMessageServerEndpoint)
class RDMAServerEndpoint(_Server):
    """
    Listens to a port of RDMA CM's TCP port space.

    Peers that send a greeting are counted with, others are not.
    """

    def __init__(
        self,
        reactor: Any,
        port: int,
        device: DevicePlace,
        terms: Terms = USUAL,
        backlog: int = BACKLOG,
        space: PortSpace = PortSpace.TCP,
    ) -> None:
        """
        @param port: 0 is any that is free.
        @param backlog: connections that may be asked for and not established yet; REQs beyond are dropped.
        """
        super().__init__(reactor, device, terms, backlog)
        self._port, self._space = port, space

    def listen(self, factory: IMessageProtocolFactory) -> Deferred[IListeningPort]:

        def number() -> int:
            return serviceIDOf(self._space, self._port or _FIRST_PORT + randbelow((1 << 16) - _FIRST_PORT))

        return self._listen(IPScheme(), number, factory)
