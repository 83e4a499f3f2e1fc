"""
Adapters: a device with its connection manager, protection domain and completion queues.

An adapter is shared by all endpoints of the same device on the same reactor. It is closed when its last user
releases it: listeners, attempts to connect, and connections until both ends know that they have ended.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, ExitStack
from functools import partial
from typing import Any, Final, Protocol

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReadDescriptor
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.cm.connections.queuepairs import addressOf
from txrdma.cm.connections.receives import ReceiveMemory
from txrdma.cm.interfaces import IConnectionManager
from txrdma.cm.layouts.messages import APStatus, CMPath
from txrdma.cm.layouts.paths import pathFor
from txrdma.cm.manager import ConnectionManager
from txrdma.cm.rdmacm.manager import isManaged, isOfKernel, KernelManager
from txrdma.cm.terms import Terms
from txrdma.error import DeviceUnavailable, InvalidRequest, ResourceExhausted
from txrdma.iba.path import IBPath
from txrdma.iba.types import GID, MTU, PKey, QPN
from txrdma.iba.verbs import (
    AddressVector,
    AsyncEventKind,
    CM_SUPPORTED,
    Completion,
    GIDEntry,
    GIDType,
    PortAttributes,
    usualGID,
)
from txrdma.interfaces import AsyncEvent, IMADPort, IQueuePair, IVerbsDevice
from txrdma.kit.logs import errorText
from txrdma.kit.values import replace
from txrdma.mad.agent import MADAgent
from txrdma.mad.core.addressing import partitionIndex
from txrdma.mad.layouts.values import Rate
from txrdma.mad.ports.umad import UmadPort
from txrdma.mad.ports.verbsport import VerbsPort
from txrdma.mad.resolvers import sourceGID
from txrdma.mad.server import MADServer
from txrdma.messages.address import MessageAddress
from txrdma.ports import getEndPort
from txrdma.verbs.completions import CompletionReader
from txrdma.verbs.devices import DeviceSpec, oneOf, openedAs

_log = Logger()

QUEUE_DEPTH: Final = 8192
"""Entries of a shared completion queue; further connections use another queue."""


RXE: Final = "/sys/module/rdma_rxe"
"""Directory that exists while the kernel's software RoCE driver is loaded."""

_NO_GID: Final = GID(bytes(16))

REFRESH_SECONDS: Final = 0.1
"""Lifetime of cached port attributes: a query of the software device takes several system calls."""


class CompletionHandler(Protocol):
    """A user of a shared completion queue: a message connection or a datagram service."""

    @property
    def completed(self) -> Callable[[Sequence[Completion]], None]:
        """Handles a batch of completions of its queue pair, oldest first."""

    def pathChanged(self) -> None:
        """Handle the device's event that the queue pair has migrated."""

    def broken(self, failure: Failure) -> None:
        """Close, because handling completions failed or the queue is no longer polled."""


class SharedCompletionQueue:
    """
    A completion queue of several queue pairs, with its reader.

    A handler may poll the queue again. Then the completions that it has interrupted come first, so that those
    of each queue pair stay in order.

    @ivar handlers: by queue pair number.
    @ivar free: entries that no connection has reserved.
    """

    def __init__(self, reactor: Any, device: IVerbsDevice, depth: int) -> None:
        self.handlers: dict[QPN, CompletionHandler] = {}
        self.free = depth
        self._waiting: dict[QPN, list[Completion]] = {}  # that no handler has taken
        with ExitStack() as undo:
            channel = device.createChannel()
            undo.callback(channel.close)
            self.queue = device.createCompletionQueue(depth, channel)
            undo.callback(self.queue.close)
            self.reader = CompletionReader(reactor, channel, [self.queue], self._completed, self.fail)
            self.reader.start()
            undo.callback(self.reader.stop)
            self._closing = undo.pop_all()

    def poll(self, withSends: bool = True) -> None:
        """
        Handle all completions so far.

        @param withSends: include completions of sends that the queue would otherwise delay until it is armed.
        """
        if withSends:
            self.reader.arm()
        while self.reader.poll():
            pass

    def close(self) -> None:
        """Remove the reader from the reactor, and close the queue."""
        self._closing.close()

    def _completed(self, batch: Sequence[Completion]) -> None:
        waiting = self._waiting
        for completion in batch:
            waiting.setdefault(completion.qpn, []).append(completion)
        while waiting:
            qpn = next(iter(waiting))
            completions = waiting.pop(qpn)
            handler = self.handlers.get(qpn)
            if handler is None:
                continue
            try:
                handler.completed(completions)
            except Exception:
                failure = Failure()
                _log.failure(
                    "{handler} ends because handling its completions failed", failure, handler=handler
                )
                self._break(handler, failure)

    def fail(self, failure: Failure) -> None:
        """End all connections, because the queue is no longer polled."""
        for handler in tuple(self.handlers.values()):
            self._break(handler, failure)

    def _break(self, handler: CompletionHandler, failure: Failure) -> None:
        with _log.failuresHandled("{handler} raised when it was closed after an error", handler=handler):
            handler.broken(failure)


class _Hold:
    """Keeps an adapter open until the first call: an object, since each connection has one for its life."""

    __slots__ = ("_adapter",)

    def __init__(self, adapter: Adapter) -> None:
        self._adapter: Adapter | None = adapter

    def __call__(self) -> None:
        adapter, self._adapter = self._adapter, None
        if adapter is not None:
            adapter.release()


class Adapter:
    """
    A device with a connection manager: txrdma's, by management datagrams of each port, or the kernel's.

    @ivar device: closed by the caller that opened it.
    @ivar domain: the protection domain of all connections.
    @ivar receives: registered memory for received messages.
    @ivar followers: until the reactor starts, functions of listeners, which release the adapter if the user
        of the process has changed.
    """

    def __init__(
        self,
        reactor: Any,
        device: IVerbsDevice,
        closed: Callable[[], None] = lambda: None,
        isOwner: bool = False,
    ) -> None:
        """
        @param closed: called after the adapter has closed.
        @param isOwner: True if C{closed} closes the device, because the program did not open it.
        @raise InvalidRequest: the device has no queue pair 1, and is not a kernel device.
        @raise txrdma.error.ResourceExhausted: queue pair 1 of a port, or the CM class, is in use.
        """
        self.reactor = reactor
        self.device = device
        self._isOwner = isOwner
        self._holders = 0
        self._queues: list[SharedCompletionQueue] = []
        self._pairs: dict[IQueuePair, CompletionHandler] = {}
        self._gidTables: list[Sequence[GIDEntry]] = []
        self._gidIndexes: dict[GID, tuple[int, int]] = {}
        self._attributes: list[PortAttributes] = []
        self._refreshedAt = 0.0
        self._readers: list[IReadDescriptor] = []
        self.followers: list[Callable[[], None]] = []
        with ExitStack() as undo:
            undo.callback(closed)
            self.manager: IConnectionManager = (
                KernelManager(reactor, device, self._addresses)
                if isManaged(device)
                else self._makeManager(reactor, device, undo)
            )
            undo.callback(self.manager.close)
            if isinstance(self.manager, KernelManager):
                self._readers.append(self.manager)
            self.domain = device.createProtectionDomain()
            undo.callback(self.domain.close)
            self.receives = ReceiveMemory(self.domain)
            undo.callback(self.receives.close)
            undo.callback(device.subscribe(self._handleEvent))
            self._closing = undo.pop_all()

    def _makeManager(self, reactor: Any, device: IVerbsDevice, undo: ExitStack) -> ConnectionManager:
        """Make txrdma's manager: on queue pair 1 of each port, or on umad where the kernel owns that."""
        servers: list[MADServer] = []
        unavailable: list[ResourceExhausted] = []
        for number in range(1, device.portCount + 1):
            port: IMADPort
            if isOfKernel(device):
                port = UmadPort(reactor, getEndPort(f"{device.name}/{number}"), False)
            else:
                try:
                    port = _openGSI(reactor, device, number)
                except ResourceExhausted as error:
                    unavailable.append(error)
                    continue
                self._readers.append(port)
            agent = MADAgent(reactor, port)
            undo.callback(agent.close)
            servers.append(MADServer(agent))
        for each in unavailable:
            if not servers:
                raise each
            _log.warn(
                "a port accepts no connections, and peers can use the other ports only: {error}",
                error=errorText(each),
            )
        return ConnectionManager(servers[0], None, servers[1:])

    def __repr__(self) -> str:
        return f"<Adapter {self.device.name} {self._holders} holders>"

    @property
    def localManager(self) -> ConnectionManager:
        """
        The manager, which is txrdma's own.

        @raise InvalidRequest: the kernel's manager is used, which does not support datagram services.
        """
        if not isinstance(self.manager, ConnectionManager):
            raise InvalidRequest(
                f"{self.device.name} uses the kernel's manager, which does not support datagram services"
            )
        return self.manager

    def hold(self) -> Callable[[], None]:
        """Keep the adapter open until the returned object is called. The object may be called twice."""
        self._holders += 1
        return _Hold(self)

    def release(self) -> None:
        """End one hold; the last one closes the adapter."""
        self._holders -= 1
        if not self._holders:
            self._closing.close()

    def holdUntilReported(self) -> Callable[[], None]:
        """
        Keep the adapter open until a protocol is notified of its connection's end: it often reconnects then,
        or in the next reactor iteration.

        Opening a device takes longer than a connection. A device of the program is not held: the program may
        close it when its last connection has ended.
        """
        return partial(self._releaseLater, self.hold()) if self._isOwner else lambda: None

    def _releaseLater(self, release: Callable[[], None]) -> None:
        """End a hold in the next iteration of the reactor; at once if there will be none."""
        if getattr(self.reactor, "running", False):
            self.reactor.callLater(0, release)
        else:
            release()

    @property
    def isAbandoned(self) -> bool:
        """Whether the readers were removed from the reactor, as trial does after a failed test."""
        present = self.reactor.getReaders()
        return any(each not in present for each in (*self._readers, *(each.reader for each in self._queues)))

    def abandon(self) -> None:
        """End all connections without notifying their peers, and close the adapter."""
        self.manager.close()
        failure = Failure(DeviceUnavailable("all readers were removed from the reactor"))
        for shared in tuple(self._queues):
            shared.fail(failure)
        self._closing.close()

    # Its ports

    def _refresh(self) -> None:
        """Query the ports, unless the cached attributes are recent: many connections may open at once."""
        now = self.reactor.seconds()
        if not self._gidTables or not 0 <= now - self._refreshedAt < REFRESH_SECONDS:
            numbers = range(1, self.device.portCount + 1)
            self._gidTables = [tuple(self.device.gidTable(number)) for number in numbers]
            self._attributes = [self.device.portAttributes(number) for number in numbers]
            self._gidIndexes = {}
            for number, table in enumerate(self._gidTables, 1):
                for index, entry in enumerate(table):
                    if entry.type is not GIDType.ROCE_V1:
                        self._gidIndexes.setdefault(entry.gid, (number, index))
            self._refreshedAt = now

    def mtuOf(self, number: int) -> MTU:
        """The largest payload of packets of a port."""
        self._refresh()
        return self._attributes[number - 1].activeMTU

    def findAlternate(self, path: IBPath) -> Deferred[IBPath | None]:
        """
        Find another path to the destination of a path: from another port, else from the same one.

        On InfiniBand the subnet administration has the paths, and those from the same port differ in their
        LIDs (LMC). On RoCE they differ in the address.

        @param path: with a source GID of this device, and a destination GID.
        @return: fires with None if there is none, or the device cannot migrate; fails with
            L{txrdma.mad.errors.MADError} if the subnet administration does not answer.
        """
        if not self.device.attributes.canMigrate:
            return succeed(None)
        assert path.sgid is not None and path.dgid is not None
        port, _index = self.requireGID(path.sgid)
        kind = path.dgid.isMapped, path.dgid.isLinkLocal
        others = sorted(
            (location[0] == port, location, gid)  # other ports first
            for gid, location in self._gidIndexes.items()
            if gid != path.sgid and (gid.isMapped, gid.isLinkLocal) == kind
        )
        manager = self.manager
        resolver = manager.resolverFor(path) if isinstance(manager, ConnectionManager) else None
        if resolver is not None:
            sources = [gid for isSamePort, _, gid in others if not isSamePort]
            return Deferred.fromCoroutine(resolver.findOther(path, path.dgid, (*sources, path.sgid)))
        return succeed(replace(path, sgid=others[0][2]) if others else None)

    def mayReload(self, terms: Terms) -> bool:
        """
        Return whether connections with these terms may replace their alternate paths.

        @raise InvalidRequest: they may, but queue pairs of this device cannot give up a path.
        """
        if terms.mayReload and not self.device.attributes.canDisarm:
            name = self.device.name
            raise InvalidRequest(
                f"{name} cannot replace alternate paths: leave mayReload out, or set it to no"
            )
        return terms.mayReload

    def cmPathOf(self, path: IBPath) -> CMPath:
        """The path of a REQ or LAP, with the rate of the port that has its source GID, and the ACK delay."""
        delay = self.device.attributes.ackDelay
        found = None if path.sgid is None else self.findGID(path.sgid)
        if found is None:
            return pathFor(path, delay)
        return pathFor(path, delay, Rate.within(self._attributes[found[0] - 1].rate))

    def findGID(self, gid: GID) -> tuple[int, int] | None:
        """The port and the table index of a GID, RoCE v1 excluded; None if no port has it."""
        self._refresh()
        return self._gidIndexes.get(gid)

    def _addresses(self) -> list[str]:
        """The IP addresses of all ports, without link-local ones."""
        self._refresh()
        gids = dict.fromkeys(entry.gid for table in self._gidTables for entry in table)
        return [gid.ip for gid in gids if gid.ip is not None and not gid.isLinkLocal]

    def requireGID(self, gid: GID) -> tuple[int, int]:
        """The port and the table index of a GID. Raises L{InvalidRequest} if no port of the device has it."""
        location = self.findGID(gid)
        if location is None:
            raise InvalidRequest(f"{self.device.name} has no GID {gid.ip}")
        return location

    def addressOf(self, path: CMPath) -> AddressVector:
        """
        The address vector of a path.

        @raise InvalidRequest: no port of the device has its source GID.
        """
        port, index = self.requireGID(path.localGID)
        return addressOf(path, port, index, self._attributes[port - 1].lidMask)

    def zoned(self, address: MessageAddress, gid: GID) -> MessageAddress:
        """
        Return the address of an end; a link-local one gets the zone of the port that has a GID, as over TCP.

        @param gid: the local GID of the connection.
        """
        location = self.findGID(gid) if gid.isLinkLocal and address.host else None
        if location is None or not GID.fromIP(address.host).isLinkLocal:
            return address
        port, index = location
        zone = self._gidTables[port - 1][index].netdev
        try:
            scopeID = socket.if_nametoindex(zone)
        except OSError:  # the interface was removed, or is simulated
            return address
        return replace(address, host=f"{address.host}%{zone}", scopeID=scopeID)

    def findPKey(self, port: int, pkey: int) -> int | None:
        """The table index of a port's P_Key for a partition; None if the port is not a member."""
        return partitionIndex(self.device.pkeys(port), PKey(pkey))

    def requirePKey(self, port: int, pkey: int) -> int:
        """
        The table index of a port's P_Key for a partition.

        @raise InvalidRequest: the port is not a member of the partition.
        """
        index = self.findPKey(port, pkey)
        if index is None:
            raise InvalidRequest(f"{self.device.name} is not in partition {pkey:#06x} with its port {port}")
        return index

    def usualGID(self) -> GID:
        """The GID that most peers can reach, of the first port that has a table."""
        return self.gidAt(*self.usualLocations()[0])

    def usualLocations(self) -> list[tuple[int, int]]:
        """The port and the table index of the GID that most peers can reach, of each port with a table."""
        self._refresh()
        return [(number, usualGID(table)) for number, table in enumerate(self._gidTables, 1) if table]

    def gidAt(self, port: int, index: int) -> GID:
        """The GID at a port and a table index, at present; zeros if there is none."""
        self._refresh()
        table = self._gidTables[port - 1]
        return table[index].gid if index < len(table) else _NO_GID

    def sourceGID(self, destination: GID | None) -> GID:
        """
        The GID from which packets to a destination leave: see L{txrdma.mad.resolvers.sourceGID}.

        @param destination: None for the GID that most peers can reach.
        @raise InvalidRequest: the device has no address of the destination's IP version.
        """
        if destination is None:
            return self.usualGID()
        self._refresh()
        source = sourceGID(self._gidIndexes, destination)
        if source is None:
            raise InvalidRequest(f"{self.device.name} has no address from which {destination.ip} is reached")
        return source

    def checkPath(self, path: CMPath, pkey: int) -> tuple[APStatus, bytes] | None:
        """
        Return why an alternate path can't be used: the device does not have its local GID, or the port is
        not a member of the connection's partition.
        """
        location = self.findGID(path.localGID)
        if location is None:
            return APStatus.GID_REJECTED, self.usualGID().raw
        port, _index = location
        return (APStatus.REJECTED, b"") if self.findPKey(port, pkey) is None else None

    # Its connections

    def reserve(self, depth: int) -> SharedCompletionQueue:
        """Reserve C{depth} entries of a completion queue, until L{detach}."""
        for shared in self._queues:
            if shared.free >= depth:
                break
        else:
            shared = SharedCompletionQueue(self.reactor, self.device, max(depth, QUEUE_DEPTH))
            self._queues.append(shared)
        shared.free -= depth
        return shared

    def attach(
        self, shared: SharedCompletionQueue, queuePair: IQueuePair, handler: CompletionHandler
    ) -> None:
        """Dispatch completions and events of a queue pair to a handler."""
        shared.handlers[queuePair.number] = handler
        self._pairs[queuePair] = handler

    def detach(self, shared: SharedCompletionQueue, queuePair: IQueuePair | None, depth: int) -> None:
        """Remove a closed queue pair, and release its entries."""
        if queuePair is not None and self._pairs.pop(queuePair, None) is not None:
            del shared.handlers[queuePair.number]
        shared.free += depth
        if not shared.handlers and shared in self._queues:
            self._queues.remove(shared)
            shared.close()

    def _handleEvent(self, event: AsyncEvent) -> None:
        if event.kind is AsyncEventKind.PATH_MIGRATED and event.queuePair is not None:
            handler = self._pairs.get(event.queuePair)
            if handler is not None:
                handler.pathChanged()


def _openGSI(reactor: Any, device: IVerbsDevice, number: int) -> VerbsPort:
    """
    Open queue pair 1 of a port, which peers reach by the port's address.

    @raise ResourceExhausted: another program receives the packets of the port's address.
    """
    if not device.portAttributes(number).capabilities & CM_SUPPORTED:
        raise ResourceExhausted(
            f"peers cannot reach queue pair 1 of {device.name}, as its UDP port is not 4791"
        )
    try:
        return VerbsPort(reactor, device, number, isGSI=True, closesDevice=False)
    except ResourceExhausted as error:
        if os.path.exists(RXE):
            reason = f"{error}; the kernel's rdma_rxe takes that of all addresses: use its own device"
            raise ResourceExhausted(reason) from error
        raise


_adapters: dict[tuple[object, DeviceSpec], Adapter] = {}


def adapterOf(reactor: Any, device: DeviceSpec) -> Adapter:
    """
    The adapter of a device on a reactor; call L{Adapter.hold}. An abandoned adapter is replaced.

    @param device: a device string, whose device is opened and closed, or an open device, which is not closed.
    @raise ValueError: the string is invalid.
    @raise txrdma.error.RDMAError: there is no such device, or its queue pair 1 is not available.
    """
    for adapter in tuple(_adapters.values()):
        for follow in adapter.followers:
            follow()
    known = _adapters.get((reactor, device))
    if known is None and isinstance(device, str):
        device = openedAs(reactor, device)  # perhaps by another string: a device has one adapter
        known = _adapters.get((reactor, device))
    if known is not None and known.isAbandoned:
        known.abandon()
    return oneOf(
        _adapters,
        reactor,
        device,
        lambda opened, closed: Adapter(reactor, opened, closed, isinstance(device, str)),
    )


@contextmanager
def heldAdapter(reactor: Any, device: DeviceSpec) -> Iterator[Adapter]:
    """Keep the adapter of a device open in a C{with} block. Raises as L{adapterOf} does."""
    adapter = adapterOf(reactor, device)
    release = adapter.hold()
    try:
        yield adapter
    finally:
        release()
