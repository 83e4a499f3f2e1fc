"""
The kernel's communication manager, by librdmacm, with the interface of L{txrdma.cm.manager}.

The kernel's manager owns the management class of the kernel's devices, so that no other manager can be used
with them. librdmacm sends and receives the messages, and its events are read on the reactor; queue pairs
belong to txrdma.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from zope.interface import implementer

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReadDescriptor
from twisted.logger import Logger, LogLevel
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
from txrdma.cm.rdmacm.library import CMEvent, DESCRIPTOR, EventChannel, EventKind, Parameters
from txrdma.cm.rdmacm.messages import HEADER, replyOf, requestOf, requestSent
from txrdma.cm.status import managers
from txrdma.error import DeviceUnavailable, InvalidRequest, RDMAError
from txrdma.iba.path import IBPath
from txrdma.interfaces import IVerbsDevice
from txrdma.kit.logs import errorText, RateLimitedLogger

_log = Logger()
_rateLimited = RateLimitedLogger(_log)

RESOLVE_SECONDS: Final = 4.0
"""Timeout of the kernel's address and route resolution."""

_BATCH: Final = 64
_MOST_REJECTED: Final = 148
_SPACES: Final = (PortSpace.TCP, PortSpace.IB)
_NO_ID: Final = 0
"""The ID of a connection that has ended: a new connection may have its former ID."""

_NO_ALTERNATES: Final = "the kernel's communication manager has no alternate paths"

EventHandler = Callable[["KernelManagedConnection", Event], None]
"""A function that is called with each event of a connection."""


def isOfKernel(device: IVerbsDevice) -> bool:
    """Return whether a device is a kernel device."""
    return os.path.exists(f"/sys/class/infiniband/{device.name}")


def isManaged(device: IVerbsDevice) -> bool:
    """Return whether a device is a kernel device, and librdmacm can use the kernel's manager."""
    return isOfKernel(device) and os.path.exists(DESCRIPTOR)


@implementer(IManagedConnection)
class KernelManagedConnection:
    """
    A connection, or a connection attempt, of the kernel's manager.

    @ivar request: the REQ, with the fields that the kernel reports; C{reply}: the REP, or None.
    @ivar state: the state by the specification's name, if known.
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
        return f"<KernelManagedConnection {self.manager.device.name} {self.state}>"

    @property
    def primary(self) -> CMPath:
        return self.request.primary if self.isActive else reversedPath(self.request.primary)

    def setHandler(self, handler: EventHandler, checkMigration: Callable[[], None] | None = None) -> None:
        """Set the event handler; C{checkMigration} is never called, since there are no alternate paths."""
        self._handler = handler

    def startingPSN(self) -> int:
        """Return the starting PSN of the peer, which the kernel has chosen."""
        return self.manager.channel.prepared(self.identifier).rqPSN

    def accept(self, reply: REP) -> None:
        """
        Answer a REQ, with a queue pair that is ready to send.

        @raise RDMAError: the kernel refuses the answer.
        """
        self.manager.channel.accept(self.identifier, self._parametersOf(reply, reply.privateData))
        self.reply, self.state = reply, "REP_SENT"
        self.manager.counters["sent REP"] += 1

    def ready(self, privateData: bytes = b"") -> None:
        """Answer a REP. librdmacm cannot send private data in an RTU."""
        try:
            self.manager.channel.establish(self.identifier)
        except RDMAError as error:
            _log.warn(
                "{connection} ends: the kernel sent no RTU: {error}", connection=self, error=errorText(error)
            )
            self._endWith(ConnectionTimedOut(MessageKind.REP))
            return
        self.manager.counters["sent RTU"] += 1
        self.state = "ESTABLISHED"
        self._handleEvent(ConnectionEstablished(None))

    def reject(
        self,
        reason: RejectReason = RejectReason.CONSUMER_REJECT,
        information: bytes = b"",
        privateData: bytes = b"",
    ) -> None:
        """Answer a REQ or a REP by a REJ. librdmacm can only send the reason CONSUMER_REJECT."""
        if self.state in ("REQ_RCVD", "REP_RCVD"):
            self.manager.counters["sent REJ"] += 1
            try:
                self.manager.channel.reject(self.identifier, privateData[:_MOST_REJECTED])
            except RDMAError as error:
                _log.warn(
                    "{connection}: the kernel sent no REJ: {error}", connection=self, error=errorText(error)
                )
        self._forget()

    def disconnect(self, privateData: bytes = b"") -> None:
        """Close the connection in any state, or answer a DREQ; private data is not sent."""
        if self.state in ("ESTABLISHED", "DREQ_RCVD"):
            isAnswer = self.state == "DREQ_RCVD"
            self.manager.counters["sent DREP" if isAnswer else "sent DREQ"] += 1
            self.state = "TIMEWAIT" if isAnswer else "DREQ_SENT"
            try:
                self.manager.channel.disconnect(self.identifier)
            except RDMAError as error:  # it has ended
                _log.debug(
                    "{connection} ended without a DREQ: {error}", connection=self, error=errorText(error)
                )
                if isAnswer:
                    self._forget()
                else:
                    self._endWith(Disconnected(None))  # which the kernel does not report any more
            except BaseException:
                self._forget()
                raise
        elif self.state not in ("DREQ_SENT", "TIMEWAIT"):
            self._forget()  # the kernel rejects a pending request

    def communicating(self) -> None:
        if self.state != "REP_SENT":
            return
        try:
            self.manager.channel.communicating(self.identifier)
        except RDMAError as error:  # an RTU or REJ has just arrived, which is the next event
            _log.debug(
                "{connection} was established by other means: {error}",
                connection=self,
                error=errorText(error),
            )

    def migrated(self) -> None:
        """Do nothing: there are no alternate paths."""

    def loadAlternatePath(self, path: IBPath | CMPath, privateData: bytes = b"") -> Deferred[CMPath]:
        """Raise an error: the kernel sends no LAP. Always raises L{InvalidRequest}."""
        raise InvalidRequest(_NO_ALTERNATES)

    def replyAlternatePath(
        self, transactionID: int, status: APStatus = APStatus.LOADED, information: bytes = b""
    ) -> None:
        """Raise an error: the kernel reports no LAP. Always raises L{InvalidRequest}."""
        raise InvalidRequest(_NO_ALTERNATES)

    # Events of librdmacm

    def handleEvent(self, event: CMEvent) -> None:
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
            self._handleEvent(ConnectionEstablished(None))
        elif kind is EventKind.REJECTED:
            manager.counters["received REJ"] += 1
            rejection = REJ(
                reason=RejectReason(event.status), privateData=event.parameters.privateData.ljust(148, b"\0")
            )
            self._endWith(ConnectionRejected(rejection))
        elif kind is EventKind.DISCONNECTED:
            self._disconnected()
        elif kind is EventKind.TIMEWAIT_EXIT:
            self._endWith(TimewaitOver())
        elif kind in (
            *(EventKind.ADDR_ERROR, EventKind.ROUTE_ERROR, EventKind.CONNECT_ERROR),
            *(EventKind.UNREACHABLE, EventKind.DEVICE_REMOVAL),
        ):
            _log.info(
                "{connection} ends: the kernel reports {kind}, {status}",
                connection=self,
                kind=kind.name,
                status=event.status,
            )
            self._endWith(ConnectionTimedOut(MessageKind.REQ if self.isActive else MessageKind.REP))

    def failed(self, error: Exception) -> None:
        """Fail the connection, since a request to the kernel failed, or an exception was raised."""
        if isinstance(error, RDMAError):
            _log.warn("{connection} failed: {error}", connection=self, error=errorText(error))
        else:
            _log.failure("{connection} failed", Failure(error), connection=self)
        self._endWith(ConnectionTimedOut(MessageKind.REQ if self.isActive else MessageKind.REP))

    def _ask(self) -> None:
        request = self.request
        parameters = self._parametersOf(request, request.privateData[HEADER:])
        self.manager.channel.connect(self.identifier, parameters)
        self.manager.counters["sent REQ"] += 1

    def _parametersOf(self, message: REQ | REP, privateData: bytes) -> Parameters:
        """Return the parameters of librdmacm for a message of this end."""
        return Parameters(
            qpn=message.localQPN,
            responderResources=message.responderResources,
            initiatorDepth=message.initiatorDepth,
            retryCount=self.request.retryCount,
            rnrRetryCount=message.rnrRetryCount,
            privateData=privateData,
        )

    def _replied(self, parameters: Parameters) -> None:
        channel = self.manager.channel
        prepared = channel.prepared(self.identifier)
        self.manager.counters["received REP"] += 1
        self.request = requestSent(self.request, channel.ends(self.identifier), prepared)
        self.reply, self.state = replyOf(parameters, prepared), "REP_RCVD"
        self._handleEvent(ConnectionReplied(self.reply))

    def _disconnected(self) -> None:
        isAnswer = self.state == "DREQ_SENT"
        self.manager.counters["received DREP" if isAnswer else "received DREQ"] += 1
        isFirst = self.state == "REP_SENT"
        self.state = "TIMEWAIT" if isAnswer else "DREQ_RCVD"
        if isAnswer:
            # Perhaps to a DREQ of the peer that has crossed this end's: the kernel ends no connection before
            # the DREP. After a DREP this sends nothing.
            with suppress(RDMAError):
                self.manager.channel.disconnect(self.identifier)
        if isFirst:  # the DREQ replaces a lost RTU
            self._handleEvent(ConnectionEstablished(None))
        self._handleEvent(Disconnected(None if isAnswer else DREQ()))

    def _endWith(self, event: Event) -> None:
        self._forget()
        self._handleEvent(event)

    def _forget(self) -> None:
        self.state = "FREE"
        self.manager.forget(self)

    def _handleEvent(self, event: Event) -> None:
        try:
            self._handler(self, event)
        except Exception:
            _log.failure(
                "{connection} closes: its handler raised an exception, called with {event}",
                connection=self,
                event=event,
            )
            self.disconnect()


@implementer(IConnectionManager, IReadDescriptor)
class KernelManager:
    """
    The kernel's manager, for the connections of one device. The reactor reads its event channel.

    @ivar counters: messages that librdmacm sent or reported, by direction and kind.
    """

    def __init__(self, reactor: Any, device: IVerbsDevice, addresses: Callable[[], list[str]]) -> None:
        """
        @param addresses: returns the IP addresses of the device to listen on.
        @raise DeviceUnavailable: librdmacm is not installed, or the kernel's manager is not available.
        """
        self.device = device
        self.counters: Counter[str] = Counter()
        self.channel = EventChannel()
        self._reactor, self._addresses = reactor, addresses
        self._connections: dict[int, KernelManagedConnection] = {}
        self._handlers: dict[int, tuple[int, EventHandler]] = {}
        reactor.addReader(self)
        managers.add(reactor, self, lambda: self.counters)

    def __repr__(self) -> str:
        return f"<KernelManager {self.device.name} {len(self._connections)} connections>"

    @property
    def states(self) -> Counter[str]:
        """Numbers of connections by state, with the specification's names."""
        return Counter(each.state for each in self._connections.values())

    @property
    def listeners(self) -> int:
        """The number of listening IDs: one for each address of a listener."""
        return len(self._handlers)

    def close(self) -> None:
        self._reactor.removeReader(self)
        managers.leave(self)
        for connection in tuple(self._connections.values()):
            connection._forget()
        self._handlers.clear()
        self.channel.close()

    def listen(
        self,
        serviceID: int,
        handler: EventHandler,
        *,
        backlog: int = BACKLOG,
        offset: int = 0,
        pattern: bytes = b"",
        mayReload: bool = False,
        checkPath: PathCheck = acceptAnyPath,
    ) -> Callable[[], None]:
        """
        Listen to a port on all IP addresses that the device has now.

        @param mayReload: not used, as C{checkPath}, since there are no alternate paths.
        @return: a function that stops listening; connections stay.
        @raise InvalidRequest: the service ID is not a port, the port has a listener, the device has no IP
            address, or there is a pattern, which the kernel does not support.
        """
        if pattern:
            raise InvalidRequest("the kernel's communication manager does not match private data")
        space, port = self._portOf(serviceID)
        addresses = self._addresses()
        if not addresses:
            raise InvalidRequest(f"{self.device.name} has no IP address to listen on")
        made: list[int] = []

        def end() -> None:
            while made:  # only once: a new id may have the address of a destroyed one
                identifier = made.pop()
                if self._handlers.pop(identifier, None) is not None:
                    self.channel.destroy(identifier)

        try:
            for address in addresses:
                identifier = self.channel.create(space)
                made.append(identifier)
                self._handlers[identifier] = serviceID, handler
                self.channel.listen(identifier, address, port, min(backlog, 0x7FFFFFFF))
        except Exception:
            end()
            raise
        return end

    def connect(
        self,
        request: REQ,
        path: IBPath,
        handler: EventHandler,
        *,
        isPeerToPeer: bool = False,
        mayReload: bool = False,
        checkPath: PathCheck = acceptAnyPath,
    ) -> KernelManagedConnection:
        """
        Connect to the port of a REQ's service ID, between the addresses in its private data.

        @raise InvalidRequest: the service ID is not a port, or the connection is peer-to-peer, which the
            kernel does not support.
        """
        if isPeerToPeer:
            raise InvalidRequest("the kernel's communication manager has no peer-to-peer connections")
        space, port = self._portOf(request.serviceID)
        addresses = IPAddresses.fromPrivateData(request.privateData)
        identifier = self.channel.create(space)
        made = self._connections[identifier] = KernelManagedConnection(
            self, identifier, request, True, handler
        )
        try:
            self.channel.resolveAddress(
                identifier, addresses.source, addresses.destination, port, RESOLVE_SECONDS
            )
        except Exception:
            self.forget(made)
            raise
        return made

    def forget(self, connection: KernelManagedConnection) -> None:
        """Destroy the ID of a connection. Idempotent."""
        identifier, connection.identifier = connection.identifier, _NO_ID
        if self._connections.pop(identifier, None) is not None:
            self.channel.destroy(identifier)

    def _portOf(self, serviceID: int) -> tuple[PortSpace, int]:
        found = portOf(serviceID)
        if found is None or found[0] not in _SPACES:
            raise InvalidRequest(
                f"the kernel's communication manager has ports only, not service ID {serviceID:#x}"
            )
        return found

    # IReadDescriptor

    def fileno(self) -> int:
        return self.channel.fileno()

    def logPrefix(self) -> str:
        return "librdmacm"

    def doRead(self) -> None:
        for _ in range(_BATCH):
            if self.fileno() < 0:
                return  # closed by an event handler
            event = self.channel.take()
            if event is None:
                return
            try:
                self._handleEvent(event)
            except Exception as error:  # the reactor would end all connections
                self._failed(event, error)

    def _handleEvent(self, event: CMEvent) -> None:
        connection = self._connections.get(event.identifier)
        if event.kind is EventKind.CONNECT_REQUEST:
            self._requested(event)
        elif connection is not None:
            connection.handleEvent(event)
        elif event.identifier in self._handlers:
            _log.warn(
                "{manager}: ignoring the event {kind} of a listener", manager=self, kind=event.kind.name
            )

    def _failed(self, event: CMEvent, error: Exception) -> None:
        """End only the connection, or drop the REQ, whose event cannot be processed."""
        connection = self._connections.get(event.identifier)
        if connection is not None:
            connection.failed(error)
            return
        text = "{manager}: dropping an event that cannot be processed"
        _rateLimited.emit(LogLevel.critical, "event", text, manager=self, log_failure=Failure(error))
        if event.kind is EventKind.CONNECT_REQUEST:
            self.channel.destroy(event.identifier)

    def connectionLost(self, reason: Failure) -> None:
        for connection in tuple(self._connections.values()):
            connection.failed(
                DeviceUnavailable("the reactor no longer reads events of the kernel's communication manager")
            )

    def _requested(self, event: CMEvent) -> None:
        listener, identifier = self._handlers.get(event.listener), event.identifier
        if listener is None:
            self.channel.destroy(identifier)
            return
        self.counters["received REQ"] += 1
        serviceID, handler = listener
        try:
            prepared, ends = self.channel.prepared(identifier), self.channel.ends(identifier)
            request = requestOf(serviceID, ends, event.parameters, prepared)
        except RDMAError as error:
            _rateLimited.warn(
                "path",
                "{manager}: dropping a REQ whose path cannot be queried: {error}",
                manager=self,
                error=errorText(error),
            )
            self.channel.destroy(identifier)
            return
        made = self._connections[identifier] = KernelManagedConnection(
            self, identifier, request, False, handler
        )
        made._handleEvent(ConnectionRequested(request))
