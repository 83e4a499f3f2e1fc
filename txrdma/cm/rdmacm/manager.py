"""
The communication manager of a kernel's device, by librdmacm: what L{txrdma.cm.manager} is for our own.

Where the kernel's manager is loaded it owns the management class, and nobody else's messages are taken. So
its connections are asked for through librdmacm, whose events are read on the reactor; queue pairs are ours.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from zope.interface import implementer

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReadDescriptor
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.cm.core.alternate import acceptAnyPath, PathCheck
from txrdma.cm.core.dispatcher import BACKLOG
from txrdma.cm.core.events import (
    ConnectionEstablished,
    ConnectionRejected,
    ConnectionReplied,
    ConnectionRequested,
    ConnectionTimedOut,
    Disconnected,
    Event,
    TimewaitOver,
)
from txrdma.cm.interfaces import IConnectionManager, IManagedConnection
from txrdma.cm.layouts.ipcm import IPAddresses, portOf, PortSpace
from txrdma.cm.layouts.messages import APStatus, CMPath, DREQ, MessageKind, REJ, RejectReason, REP, REQ
from txrdma.cm.layouts.paths import reversedPath
from txrdma.cm.rdmacm.library import Channel, DESCRIPTOR, EventKind, Happened, Parameters
from txrdma.cm.rdmacm.messages import HEADER, replyOf, requestOf, requestSent
from txrdma.cm.status import managers
from txrdma.error import DeviceUnavailable, InvalidRequest, RDMAError
from txrdma.iba.path import IBPath
from txrdma.interfaces import IVerbsDevice

_log = Logger()

RESOLVE_SECONDS: Final = 4.0
"""The time that the kernel takes at most to find an address or a path."""

_BATCH: Final = 64
_MOST_REJECTED: Final = 148
_SPACES: Final = (PortSpace.TCP, PortSpace.IB)
_NO_ALTERNATES: Final = "the kernel's communication manager has no alternate paths"

EventHandler = Callable[["KernelConnection", Event], None]
"""A program's function that is called with each event of a connection."""


def isOfKernel(device: IVerbsDevice) -> bool:
    """True if a device is one of the kernel's."""
    return os.path.exists(f"/sys/class/infiniband/{device.name}")


def isManaged(device: IVerbsDevice) -> bool:
    """True if a device is one of the kernel's, and the kernel's communication manager serves programs."""
    return isOfKernel(device) and os.path.exists(DESCRIPTOR)


@implementer(IManagedConnection)
class KernelConnection:
    """
    A connection, or the attempt to make one, of the kernel's manager.

    @ivar request: the REQ, as far as the kernel tells of it; C{reply}: the REP, once there is one.
    @ivar state: the state by the specification's name, as far as it is known here.
    """

    managedBy = "librdmacm"
    alternate: CMPath | None = None

    def __init__(
        self, manager: KernelManager, identifier: int, request: REQ, isActive: bool, handler: EventHandler
    ) -> None:
        self.manager, self.request, self.isActive = manager, request, isActive
        self.reply: REP | None = None
        self.state = "REQ_SENT" if isActive else "REQ_RCVD"
        self.identifier = identifier
        self._handler = handler

    def __repr__(self) -> str:
        return f"<KernelConnection {self.manager.device.name} {self.state}>"

    @property
    def primary(self) -> CMPath:
        return self.request.primary if self.isActive else reversedPath(self.request.primary)

    def setHandler(self, handler: EventHandler, checkMigration: Callable[[], None] = lambda: None) -> None:
        """Set the event handler; C{checkMigration} is not called, as there are no alternate paths."""
        self._handler = handler

    def startingPSN(self) -> int:
        """The PSN that the peer is to begin with: the kernel has chosen it."""
        return self.manager.channel.prepared(self.identifier).rqPSN

    def accept(self, reply: REP) -> None:
        """
        Answer a REQ, with a queue pair that is ready to send.

        @raise RDMAError: the kernel does not take the answer.
        """
        self.manager.channel.accept(
            self.identifier,
            Parameters(
                qpn=reply.localQPN,
                responderResources=reply.responderResources,
                initiatorDepth=reply.initiatorDepth,
                retryCount=self.request.retryCount,
                rnrRetryCount=reply.rnrRetryCount,
                privateData=reply.privateData,
            ),
        )
        self.reply, self.state = reply, "REP_SENT"
        self.manager.counters["sent REP"] += 1

    def ready(self, privateData: bytes = b"") -> None:
        """Answer a REP; private data of the RTU are not sent: librdmacm has none."""
        try:
            self.manager.channel.establish(self.identifier)
        except RDMAError as error:
            _log.warn("{connection} is gone before its RTU: {error}", connection=self, error=error)
            self._over(ConnectionTimedOut(MessageKind.REP))
            return
        self.manager.counters["sent RTU"] += 1
        self.state = "ESTABLISHED"
        self._happened(ConnectionEstablished(None))

    def reject(
        self,
        reason: RejectReason = RejectReason.CONSUMER_REJECT,
        information: bytes = b"",
        privateData: bytes = b"",
    ) -> None:
        """Answer a REQ or a REP by a REJ, whose reason is the consumer's: librdmacm has no other one."""
        if self.state in ("REQ_RCVD", "REP_RCVD"):
            self.manager.counters["sent REJ"] += 1
            try:
                self.manager.channel.reject(self.identifier, privateData[:_MOST_REJECTED])
            except RDMAError as error:
                _log.warn("{connection} can't be rejected: {error}", connection=self, error=error)
        self._forget()

    def disconnect(self, privateData: bytes = b"") -> None:
        """End the connection, whatever its state, or answer a DREQ; private data are not sent."""
        if self.state in ("ESTABLISHED", "DREQ_RCVD"):
            isAnswer = self.state == "DREQ_RCVD"
            self.manager.counters["sent DREP" if isAnswer else "sent DREQ"] += 1
            self.state = "TIMEWAIT" if isAnswer else "DREQ_SENT"
            try:
                self.manager.channel.disconnect(self.identifier)
            except RDMAError as error:  # it is over already
                _log.debug("{connection} ends without a word: {error}", connection=self, error=error)
                self._forget()
        elif self.state not in ("DREQ_SENT", "TIMEWAIT"):
            self._forget()  # the kernel tells a peer that waits

    def communicating(self) -> None:
        if self.state != "REP_SENT":
            return
        try:
            self.manager.channel.communicating(self.identifier)
        except RDMAError as error:  # the RTU has come just now, or a REJ: an event of the channel says which
            _log.debug("{connection} need not be told of data: {error}", connection=self, error=error)

    def migrated(self) -> None:
        """Do nothing: there are no alternate paths."""

    def loadAlternatePath(self, path: IBPath | CMPath, privateData: bytes = b"") -> Deferred[CMPath]:
        """
        Refuse: the kernel sends no LAP.

        @raise InvalidRequest: always.
        """
        raise InvalidRequest(_NO_ALTERNATES)

    def replyAlternatePath(
        self, transactionID: int, status: APStatus = APStatus.LOADED, information: bytes = b""
    ) -> None:
        """
        Refuse: the kernel tells of no LAP.

        @raise InvalidRequest: always.
        """
        raise InvalidRequest(_NO_ALTERNATES)

    # Events of the kernel's

    def took(self, event: Happened) -> None:
        """Act on an event of the id."""
        kind, manager = event.kind, self.manager
        if kind is EventKind.ADDR_RESOLVED:
            manager.channel.resolveRoute(self.identifier, RESOLVE_SECONDS)
        elif kind is EventKind.ROUTE_RESOLVED:
            self._ask()
        elif kind is EventKind.CONNECT_RESPONSE:
            self._replied(event.parameters)
        elif kind is EventKind.ESTABLISHED:
            manager.counters["received RTU"] += 1
            self.state = "ESTABLISHED"
            self._happened(ConnectionEstablished(None))
        elif kind is EventKind.REJECTED:
            manager.counters["received REJ"] += 1
            rejection = REJ(
                reason=RejectReason(event.status), privateData=event.parameters.privateData.ljust(148, b"\0")
            )
            self._over(ConnectionRejected(rejection))
        elif kind is EventKind.DISCONNECTED:
            self._disconnected()
        elif kind is EventKind.TIMEWAIT_EXIT:
            self._over(TimewaitOver())
        elif kind in (
            *(EventKind.ADDR_ERROR, EventKind.ROUTE_ERROR, EventKind.CONNECT_ERROR),
            *(EventKind.UNREACHABLE, EventKind.DEVICE_REMOVAL),
        ):
            _log.info("{connection}: {kind}, {status}", connection=self, kind=kind.name, status=event.status)
            self._over(ConnectionTimedOut(MessageKind.REQ if self.isActive else MessageKind.REP))

    def failed(self, error: RDMAError) -> None:
        """Give up: the kernel does not take what has to be done."""
        _log.warn("{connection} can't be made: {error}", connection=self, error=error)
        self._over(ConnectionTimedOut(MessageKind.REQ if self.isActive else MessageKind.REP))

    def _ask(self) -> None:
        request = self.request
        self.manager.channel.connect(
            self.identifier,
            Parameters(
                qpn=request.localQPN,
                responderResources=request.responderResources,
                initiatorDepth=request.initiatorDepth,
                retryCount=request.retryCount,
                rnrRetryCount=request.rnrRetryCount,
                privateData=request.privateData[HEADER:],
            ),
        )
        self.manager.counters["sent REQ"] += 1

    def _replied(self, said: Parameters) -> None:
        channel = self.manager.channel
        prepared = channel.prepared(self.identifier)
        self.manager.counters["received REP"] += 1
        self.request = requestSent(self.request, channel.ends(self.identifier), prepared)
        self.reply, self.state = replyOf(said, prepared), "REP_RCVD"
        self._happened(ConnectionReplied(self.reply))

    def _disconnected(self) -> None:
        isAnswer = self.state == "DREQ_SENT"
        self.manager.counters["received DREP" if isAnswer else "received DREQ"] += 1
        self.state = "TIMEWAIT" if isAnswer else "DREQ_RCVD"
        self._happened(Disconnected(None if isAnswer else DREQ()))

    def _over(self, event: Event) -> None:
        self._forget()
        self._happened(event)

    def _forget(self) -> None:
        self.state = "FREE"
        self.manager.forget(self)

    def _happened(self, event: Event) -> None:
        try:
            self._handler(self, event)
        except Exception:
            _log.failure("{connection}: its program failed at {event}", connection=self, event=event)
            self.disconnect()


@implementer(IConnectionManager, IReadDescriptor)
class KernelManager:
    """
    The kernel's manager of connections of one device, whose event channel the reactor reads.

    @ivar counters: messages that librdmacm was asked to send, or has told of, by direction and kind.
    """

    def __init__(self, reactor: Any, device: IVerbsDevice, addresses: Callable[[], list[str]]) -> None:
        """
        @param addresses: tells the IP addresses of the device, to listen at.
        @raise DeviceUnavailable: there is no librdmacm, or the kernel's manager is not to be had.
        """
        self.device = device
        self.counters: Counter[str] = Counter()
        self.channel = Channel()
        self._reactor, self._addresses = reactor, addresses
        self._connections: dict[int, KernelConnection] = {}
        self._handlers: dict[int, tuple[int, EventHandler]] = {}
        reactor.addReader(self)
        managers.appear(reactor, self)

    def __repr__(self) -> str:
        return f"<KernelManager {self.device.name} {len(self._connections)} connections>"

    @property
    def states(self) -> Counter[str]:
        """Numbers of connections by their states, as the specification calls them."""
        return Counter(each.state for each in self._connections.values())

    @property
    def listeners(self) -> int:
        """The number of ids that listen: one for each address of a listener."""
        return len(self._handlers)

    def close(self) -> None:
        self._reactor.removeReader(self)
        managers.leave(self)
        self._connections.clear()
        self._handlers.clear()
        self.channel.close()

    def listen(
        self,
        serviceID: int,
        handler: EventHandler,
        *,
        backlog: int = BACKLOG,
        checkPath: PathCheck = acceptAnyPath,
    ) -> Callable[[], None]:
        """
        Have REQs for a port reported, at all IP addresses that the device has now.

        @param checkPath: is never asked: there are no alternate paths.
        @return: call it to listen no more. Connections stay.
        @raise InvalidRequest: the service id is not one of a port, somebody listens to the port already, or
            the device has no IP address.
        """
        space, port = self._portOf(serviceID)
        addresses = self._addresses()
        if not addresses:
            raise InvalidRequest(f"{self.device.name} has no IP address to listen at")
        made: list[int] = []

        def end() -> None:
            for identifier in made:
                if self._handlers.pop(identifier, None) is not None:
                    self.channel.destroy(identifier)

        try:
            for address in addresses:
                identifier = self.channel.create(space)
                made.append(identifier)
                self._handlers[identifier] = serviceID, handler
                self.channel.listen(identifier, address, port, min(backlog, 0x7FFFFFFF))
        except RDMAError:
            end()
            raise
        return end

    def connect(
        self, request: REQ, path: IBPath, handler: EventHandler, *, checkPath: PathCheck = acceptAnyPath
    ) -> KernelConnection:
        """
        Ask for a connection to the port of a REQ's service id, between the addresses in its private data.

        @raise InvalidRequest: there is no port, or no IP address.
        """
        space, port = self._portOf(request.serviceID)
        addresses = IPAddresses.fromPrivateData(request.privateData)
        identifier = self.channel.create(space)
        made = self._connections[identifier] = KernelConnection(self, identifier, request, True, handler)
        try:
            self.channel.resolveAddress(
                identifier, addresses.source, addresses.destination, port, RESOLVE_SECONDS
            )
        except RDMAError:
            self.forget(made)
            raise
        return made

    def forget(self, connection: KernelConnection) -> None:
        """Destroy the id of a connection. Twice is fine."""
        if self._connections.pop(connection.identifier, None) is not None:
            self.channel.destroy(connection.identifier)

    def _portOf(self, serviceID: int) -> tuple[PortSpace, int]:
        found = portOf(serviceID)
        if found is None or found[0] not in _SPACES:
            raise InvalidRequest(
                f"the kernel's communication manager knows ports, and no service id {serviceID:#x}"
            )
        return found

    # IReadDescriptor

    def fileno(self) -> int:
        return self.channel.fileno()

    def logPrefix(self) -> str:
        return "librdmacm"

    def doRead(self) -> None:
        """Act on events; what a long batch leaves has its turn later."""
        for _ in range(_BATCH):
            if self.fileno() < 0:
                return  # closed by what an event led to
            event = self.channel.take()
            if event is None:
                return
            if event.kind is EventKind.CONNECT_REQUEST:
                self._asked(event)
                continue
            connection = self._connections.get(event.identifier)
            if connection is None:
                if event.identifier in self._handlers:
                    _log.warn("{manager}: a listener hears {kind}", manager=self, kind=event.kind.name)
                continue
            try:
                connection.took(event)
            except RDMAError as error:
                connection.failed(error)

    def connectionLost(self, reason: Failure) -> None:
        for connection in tuple(self._connections.values()):
            connection.failed(
                DeviceUnavailable("events of the kernel's communication manager are not received any more")
            )

    def _asked(self, event: Happened) -> None:
        listener, identifier = self._handlers.get(event.listener), event.identifier
        if listener is None:
            self.channel.destroy(identifier)
            return
        self.counters["received REQ"] += 1
        serviceID, handler = listener
        try:
            prepared, ends = self.channel.prepared(identifier), self.channel.ends(identifier)
        except RDMAError as error:
            _log.warn("{manager} can't tell of a REQ: {error}", manager=self, error=error)
            self.channel.destroy(identifier)
            return
        request = requestOf(serviceID, ends, event.parameters, prepared)
        made = self._connections[identifier] = KernelConnection(self, identifier, request, False, handler)
        made._happened(ConnectionRequested(request))
