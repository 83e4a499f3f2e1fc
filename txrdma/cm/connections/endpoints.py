"""
Endpoints for protocols of messages: by service ID, or by IP address and port.

C{ib} endpoints have a service ID and a path. C{rdma} endpoints follow InfiniBand Architecture vol. 1, annex
A11 (RDMA IP CM service), and interoperate with Linux's RDMA CM.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import Enum
from functools import lru_cache, partial
from secrets import randbelow
from typing import Any, Final, NoReturn, overload, TypeVar, Union

from zope.interface import implementer

from twisted.internet.defer import Deferred, execute, fail
from twisted.internet.interfaces import IListeningPort, IReactorCore
from twisted.logger import Logger

from txrdma.cm.connections.adapter import Adapter, heldAdapter
from txrdma.cm.connections.attempt import Attempt
from txrdma.cm.connections.hostnames import connectToHost
from txrdma.cm.connections.listening import ServiceIDScheme, ServiceListening
from txrdma.cm.connections.transport import RDMATransport
from txrdma.cm.core.dispatcher import BACKLOG
from txrdma.cm.errors import PeerSilent
from txrdma.cm.interfaces import IRDMAProtocol
from txrdma.cm.layouts.ipcm import IPAddresses, IPCMHeader, portOf, PortSpace, serviceIDOf
from txrdma.cm.layouts.messages import REQ
from txrdma.cm.terms import checkSeconds, Terms
from txrdma.error import InvalidRequest, RDMAError
from txrdma.iba.path import IBPath
from txrdma.iba.types import GID, GUID, LID
from txrdma.interfaces import IPathResolver, IServiceClaims
from txrdma.kit.cancelling import wrapped
from txrdma.kit.logs import errorText
from txrdma.kit.shutdown import failingOnShutdown
from txrdma.kit.strings import checkAddress, checkPort
from txrdma.kit.values import replace
from txrdma.mad.paths import isName, parseGID
from txrdma.messages.address import MessageAddress
from txrdma.messages.interfaces import IMessageClientEndpoint, IMessageProtocolFactory, IMessageServerEndpoint
from txrdma.messages.protocol import MessageFactory
from txrdma.messages.transport import cannotListen
from txrdma.ports.softdevices import softDeviceTo
from txrdma.unix.sockets import isSameUser
from txrdma.verbs.devices import checkSpec, DeviceSpec

_log = Logger()

LIFE_TIME: Final = 16
"""The packet lifetime of paths without one, encoded: 0.27 seconds, as Linux uses on RoCE."""

_HOPS: Final = 64
_NO_LONGER: Final = "{listening} is closed, because it can't listen as user {user}"
_FIRST_PORT: Final = 0xC000
_HEADER: Final = len(IPCMHeader().encode())

_ProtocolT = TypeVar("_ProtocolT")

USUAL: Final = Terms()
"""The default terms of endpoints."""


@lru_cache(maxsize=256)
def _addressOf(serviceID: int, gid: GID | None) -> MessageAddress:
    """Return the address of a service at a port: all connections of a listener share it."""
    found = portOf(serviceID)
    host = "" if gid is None else gid.ip or ""
    return MessageAddress(gid, serviceID, host, 0 if found is None else found[1])


def randomPort() -> int:
    """Return a dynamic port (RFC 6335, section 6)."""
    return _FIRST_PORT + randbelow((1 << 16) - _FIRST_PORT)


def serviceIDAt(space: PortSpace, port: int) -> int:
    """Return the service ID of a port; for port 0, that of a random one."""
    return serviceIDOf(space, port or randomPort())


class IPScheme(ServiceIDScheme):
    """The IP CM service: service IDs contain ports, and the private data of a REQ begins with addresses."""

    headerBytes = _HEADER

    def __init__(self, sourcePort: int = 0) -> None:
        """@param sourcePort: the port of an active end."""
        self._sourcePort = sourcePort

    def prefix(self, path: IBPath) -> bytes:
        source, destination = (gid.ip if gid is not None else None for gid in (path.sgid, path.dgid))
        if source is None or destination is None:
            raise InvalidRequest(f"{path} has no IP addresses")
        if (":" in source) != (":" in destination):
            raise InvalidRequest(f"{source} and {destination} are not of the same IP version")
        return IPAddresses(source, self._sourcePort, destination).toPrivateData()

    def addressOf(self, serviceID: int, gid: GID | None) -> MessageAddress:
        return _addressOf(serviceID, gid)

    def peerOf(self, request: REQ) -> tuple[MessageAddress, bytes]:
        header = IPAddresses.fromPrivateData(request.privateData)
        gid = request.primary.localGID
        address = MessageAddress(gid, request.serviceID, header.source, header.sourcePort)
        return address, request.privateData[_HEADER:]


class Automatic(Enum):
    """Type of the constant L{AUTOMATIC}, for annotations."""

    AUTOMATIC = "auto"


AUTOMATIC: Final = Automatic.AUTOMATIC
"""The alternate path of a client: what L{txrdma.cm.connections.adapter.Adapter.findAlternate} finds."""

PrivateData = Union[bytes, Callable[[RDMATransport], bytes]]
"""Private data of a REQ, or a function that makes it and may allocate memory of the transport."""


def within(reactor: Any, seconds: float | None, connecting: Deferred[_ProtocolT]) -> Deferred[_ProtocolT]:
    """
    Fail an attempt to connect with L{PeerSilent} after this many seconds, if a number is given.

    It fails when the reactor stops, too.
    """
    connecting = failingOnShutdown(reactor, connecting)
    if seconds is None:
        return connecting

    def late(result: object, _: float) -> NoReturn:
        raise PeerSilent(f"the connection was not established within {seconds:g} seconds")

    return connecting.addTimeout(seconds, reactor, late)


def followUser(
    reactor: Any,
    device: DeviceSpec,
    former: Adapter,
    listening: IListeningPort,
    suspend: Callable[[], None],
    resume: Callable[[Adapter], None],
) -> None:
    """
    Listen on a new device if the user has changed when the reactor starts.

    C{twistd --uid} changes the user after services have begun to listen, and software devices find only those
    of processes of the same user.

    @param suspend: releases the adapter of the port.
    @param resume: listens to the same service ID at another adapter.
    """
    if not isinstance(device, str) or not IServiceClaims.providedBy(former.device):
        return
    if not IReactorCore.providedBy(reactor) or reactor.running:
        return
    user = os.geteuid()

    def leaveFormer() -> None:
        if not isSameUser(user):
            suspend()

    def listenAgain() -> None:
        former.followers.clear()
        if not isSameUser(user):
            known: dict[str, Any] = {"listening": listening, "user": os.geteuid()}
            with _log.failuresHandled(_NO_LONGER, **known):
                try:
                    with heldAdapter(reactor, device) as adapter:
                        resume(adapter)
                except RDMAError as error:
                    _log.error(f"{_NO_LONGER}: {{error}}", **known, error=errorText(error))

    # All listeners release a device before the first of them, or a client, opens it again.
    former.followers.append(leaveFormer)
    reactor.addSystemEventTrigger("before", "startup", leaveFormer)
    reactor.callWhenRunning(listenAgain)


def _withDefaults(path: IBPath, adapter: Adapter) -> IBPath:
    """Complete a path by default values of the source GID, the hop limit and the packet lifetime."""
    return replace(
        path,
        sgid=path.sgid or adapter.sourceGID(path.dgid),
        hopLimit=path.hopLimit or (0 if path.dlid else _HOPS),
        packetLifeTime=LIFE_TIME if path.packetLifeTime is None else path.packetLifeTime,
    )


@implementer(IMessageClientEndpoint)
class _ClientEndpoint:
    """A client of a service ID. A subclass resolves the path to it, with L{_resolved}."""

    def __init__(
        self,
        reactor: Any,
        serviceID: int,
        terms: Terms,
        privateData: PrivateData,
        alternate: IBPath | Automatic | None,
        timeout: float | None,
        resolver: IPathResolver | None,
        isPeerToPeer: bool,
    ) -> None:
        self._reactor, self._serviceID = reactor, serviceID
        self._terms, self._privateData = terms, privateData
        if timeout is not None:
            checkSeconds("timeout", timeout)
        self._alternate, self._timeout = alternate, timeout
        self._resolver, self._isPeerToPeer = resolver, isPeerToPeer

    @overload
    def connect(self, factory: MessageFactory[_ProtocolT]) -> Deferred[_ProtocolT]: ...

    @overload
    def connect(self, factory: IMessageProtocolFactory) -> Deferred[Any]: ...

    def connect(self, factory: Any) -> Deferred[Any]:
        return wrapped(self._resolved(factory), partial(within, self._reactor, self._timeout))

    def _resolved(self, factory: IMessageProtocolFactory) -> Deferred[IRDMAProtocol]:
        """Find the path, and connect by it."""
        raise NotImplementedError

    def _connectBy(
        self, device: DeviceSpec, scheme: ServiceIDScheme, path: IBPath, factory: IMessageProtocolFactory
    ) -> Deferred[IRDMAProtocol]:
        """Connect by a path, with the alternate path of the endpoint if there is one."""
        try:
            with heldAdapter(self._reactor, device) as adapter:
                path = _withDefaults(path, adapter)
                if isinstance(self._alternate, Automatic):
                    return Deferred.fromCoroutine(self._connectWithAlternate(adapter, scheme, path, factory))
                return self._attempt(adapter, scheme, path, self._alternate, factory)
        except Exception:
            return fail()

    async def _connectWithAlternate(
        self, adapter: Adapter, scheme: ServiceIDScheme, path: IBPath, factory: IMessageProtocolFactory
    ) -> IRDMAProtocol:
        """Find an alternate path, and connect."""
        release = adapter.hold()
        try:
            alternate = await adapter.findAlternate(path)
            return await self._attempt(adapter, scheme, path, alternate, factory)
        finally:
            release()

    def _attempt(
        self,
        adapter: Adapter,
        scheme: ServiceIDScheme,
        path: IBPath,
        alternate: IBPath | None,
        factory: IMessageProtocolFactory,
    ) -> Deferred[IRDMAProtocol]:
        if alternate is not None:
            alternate = _withDefaults(alternate, adapter)
        return Attempt(
            *(adapter, scheme, self._serviceID, path, factory, self._terms, self._privateData, alternate),
            self._isPeerToPeer,
        ).answer


class IBClientEndpoint(_ClientEndpoint):
    """Connects to a service ID over a path, or to the port that a resolver finds."""

    def __init__(
        self,
        reactor: Any,
        serviceID: int,
        path: IBPath | str | GID | GUID | LID,
        device: DeviceSpec = "soft",
        terms: Terms = USUAL,
        privateData: bytes = b"",
        alternate: IBPath | Automatic | None = None,
        timeout: float | None = None,
        resolver: IPathResolver | None = None,
        isPeerToPeer: bool = False,
    ) -> None:
        """
        @param path: the source GID, hop limit and packet lifetime have defaults. Anything else is resolved: a
            GID, a port GUID, a LID, the text of one, or a name: of a node on InfiniBand, of a host on RoCE.
        @param alternate: a path to migrate to, or L{AUTOMATIC}. The transport's C{alternate} is None if the
            peer rejects it, and over shared memory.
        @param privateData: of the REQ; at most 76 bytes, or 92 without credits.
        @param timeout: seconds until C{connect} fails; None is the time of all retransmissions.
        @param resolver: None for the subnet administration on InfiniBand. On RoCE, a GID is a path already.
        @param isPeerToPeer: no end listens: both connect at the same time, and get one connection. If the
            REQ of the peer counts, the REP has the private data, too.
        @raise InvalidRequest: the timeout is not above 0.
        """
        checkSpec(device)
        super().__init__(reactor, serviceID, terms, privateData, alternate, timeout, resolver, isPeerToPeer)
        self._device, self._path = device, path

    def _resolved(self, factory: IMessageProtocolFactory) -> Deferred[IRDMAProtocol]:
        if isinstance(self._path, IBPath):
            return self._connectAlong(self._path, factory)
        return Deferred.fromCoroutine(self._connectTo(self._path, factory))

    async def _connectTo(self, target: object, factory: IMessageProtocolFactory) -> IRDMAProtocol:
        with heldAdapter(self._reactor, self._device) as adapter:
            resolver = self._resolver or adapter.localManager.resolverFor()
            if resolver is not None:
                return await self._connectAlong(await resolver.resolve(target), factory)
            if isinstance(target, str) and isName(target):

                def connect(address: str) -> Deferred[IRDMAProtocol]:
                    return self._connectAlong(IBPath(dgid=GID.fromIP(address)), factory)

                return await connectToHost(self._reactor, target, connect)
            gid = target if isinstance(target, GID) else parseGID(str(target), str(target), None)
            return await self._connectAlong(IBPath(dgid=gid), factory)

    def _connectAlong(self, path: IBPath, factory: IMessageProtocolFactory) -> Deferred[IRDMAProtocol]:
        return self._connectBy(self._device, ServiceIDScheme(), path, factory)


class RDMAClientEndpoint(_ClientEndpoint):
    """Connects to a host and a port of RDMA CM's TCP port space."""

    def __init__(
        self,
        reactor: Any,
        host: str,
        port: int,
        device: DeviceSpec | None = None,
        terms: Terms = USUAL,
        privateData: PrivateData = b"",
        space: PortSpace = PortSpace.TCP,
        timeout: float | None = None,
        alternate: Automatic | None = None,
        isPeerToPeer: bool = False,
        resolver: IPathResolver | None = None,
    ) -> None:
        """
        @param host: an IP address, or a name, whose addresses are tried as C{HostnameEndpoint} does: the next
            one 0.3 seconds after the last, or when that has failed.
        @param device: None is the software device at the source address of the route to the host.
        @param privateData: of the REQ; at most 40 bytes, or 56 without credits.
        @param timeout: seconds until C{connect} fails; None is the time of all retransmissions.
        @param isPeerToPeer: no end listens: both connect at the same time, and get one connection. If the
            REQ of the peer counts, the REP has the private data, too.
        @param resolver: finds the path to each IP address, between GIDs that are IP addresses; None for the
            route, with the MTU of the port.
        @raise ValueError: the port is not from 0 to 65535. @raise TypeError: the host is not text.
        @raise InvalidRequest: the timeout is not above 0.
        """
        checkAddress(host, port)
        if device is not None:
            checkSpec(device)
        super().__init__(
            reactor, serviceIDOf(space, port), terms, privateData, alternate, timeout, resolver, isPeerToPeer
        )
        self._device, self._host = device, host

    def _resolved(self, factory: IMessageProtocolFactory) -> Deferred[IRDMAProtocol]:
        return connectToHost(self._reactor, self._host, partial(self._connectTo, factory=factory))

    def _connectTo(self, address: str, factory: IMessageProtocolFactory) -> Deferred[IRDMAProtocol]:
        try:
            device = softDeviceTo(address) if self._device is None else self._device
        except InvalidRequest:
            return fail()
        scheme = IPScheme(randomPort())
        resolver = self._resolver
        if resolver is None:
            return self._connectBy(device, scheme, IBPath(dgid=GID.fromIP(address)), factory)

        async def connectWhenResolved() -> IRDMAProtocol:
            return await self._connectBy(device, scheme, await resolver.resolve(address), factory)

        return Deferred.fromCoroutine(connectWhenResolved())


@implementer(IMessageServerEndpoint)
class _ServerEndpoint:
    """
    A server.

    @ivar _serviceIDs: returns the service ID to listen to, which may be a random one.
    @ivar _port: the port or the service ID, for errors.
    """

    _port: int | str
    _scheme: ServiceIDScheme
    _serviceIDs: Callable[[], int]

    def __init__(self, reactor: Any, device: DeviceSpec, terms: Terms, backlog: int, match: bytes) -> None:
        if backlog < 1:
            raise InvalidRequest(f"a backlog is a number from 1, not {backlog}")
        checkSpec(device)
        self._reactor, self._device, self._terms = reactor, device, terms
        self._backlog, self._match = backlog, match

    def listen(self, factory: IMessageProtocolFactory | MessageFactory[Any]) -> Deferred[IListeningPort]:
        """
        Listen.

        @return: fires with the port; fails with C{CannotListenError}, which an L{RDMAError} has caused.
        """
        return execute(self._listen, factory)

    def _listen(self, factory: IMessageProtocolFactory) -> IListeningPort:
        try:
            return self._listening(factory)
        except RDMAError as error:
            raise cannotListen(self._device, self._port, error) from error

    def _listening(self, factory: IMessageProtocolFactory) -> IListeningPort:
        with heldAdapter(self._reactor, self._device) as adapter:
            listening = ServiceListening(
                adapter, self._scheme, self._serviceIDs, factory, self._terms, self._backlog, self._match
            )
            try:
                listening.startListening()
                suspend, resume = listening.suspend, listening.resume
                followUser(self._reactor, self._device, adapter, listening, suspend, resume)
            except BaseException:
                listening.stopListening()
                raise
        return listening


class IBServerEndpoint(_ServerEndpoint):
    """Listens for a service ID."""

    def __init__(
        self,
        reactor: Any,
        serviceID: int,
        device: DeviceSpec = "soft",
        terms: Terms = USUAL,
        backlog: int = BACKLOG,
        match: bytes = b"",
    ) -> None:
        """
        @param backlog: limit of connections that are not established yet, from 1; further REQs are dropped.
        @param match: bytes with which the private data of a client must begin. Of the listeners of one
            service in a process, the one with the longest match gets the connection.
        """
        super().__init__(reactor, device, terms, backlog, match)
        self._scheme, self._serviceIDs, self._port = ServiceIDScheme(), lambda: serviceID, f"{serviceID:#x}"


class RDMAServerEndpoint(_ServerEndpoint):
    """
    Listens to a port of RDMA CM's TCP port space.

    Connections of peers that send a greeting use credits.
    """

    def __init__(
        self,
        reactor: Any,
        port: int,
        device: DeviceSpec,
        terms: Terms = USUAL,
        backlog: int = BACKLOG,
        space: PortSpace = PortSpace.TCP,
        match: bytes = b"",
    ) -> None:
        """
        @param port: 0 is any free port.
        @param backlog: limit of connections that are not established yet, from 1; further REQs are dropped.
        @param match: bytes with which the private data of a client must begin. Of the listeners of one
            service in a process, the one with the longest match gets the connection.
        """
        super().__init__(reactor, device, terms, backlog, match)
        checkPort(port)
        self._scheme, self._port, self._serviceIDs = IPScheme(), port, partial(serviceIDAt, space, port)
