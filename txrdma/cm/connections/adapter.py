"""
Adapters: a device's manager of connections, its protection domain, its completion queues.

An adapter is shared by all who ask for the same device on the same reactor. It is closed with the last of its
holders: listeners, attempts to connect, and connections until both ends know of their end.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Final, Protocol

from twisted.internet.interfaces import IReadDescriptor
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.cm.connections.receives import ReceiveMemory
from txrdma.cm.interfaces import IConnectionManager
from txrdma.cm.layouts.messages import APStatus, CMPath
from txrdma.cm.manager import ConnectionManager
from txrdma.cm.rdmacm.manager import isManaged, isOfKernel, KernelManager
from txrdma.error import DeviceUnavailable, InvalidRequest, ResourceExhausted
from txrdma.iba.types import GID, MTU, PKey, QPN
from txrdma.iba.verbs import AsyncEventKind, CM_SUPPORTED, Completion, GIDEntry, GIDType, usualGID
from txrdma.interfaces import AsyncEvent, IMADPort, IQueuePair, IVerbsDevice
from txrdma.mad.agent import MADAgent
from txrdma.mad.core.choices import partitionIndex
from txrdma.mad.ports.umad import UmadPort
from txrdma.mad.ports.verbsport import VerbsPort
from txrdma.mad.server import MADServer
from txrdma.ports import getEndPort
from txrdma.verbs.completions import CompletionReader
from txrdma.verbs.devices import DevicePlace, oneOf

_log = Logger()

QUEUE_DEPTH: Final = 8192
"""Completions that a queue holds for several connections: more connections have another queue."""


RXE: Final = "/sys/module/rdma_rxe"
"""The directory that is there where the kernel's own RoCE over UDP is."""

LOOK_SECONDS: Final = 0.1
"""Age of what is known of ports until the device is asked again: the software device asks the system."""


class CompletionHandler(Protocol):
    """A connection's part that takes its completions and events."""

    def arrived(self, completion: Completion) -> None:
        """Keep a completion for C{process}, which is called after the batch."""

    def process(self) -> None:
        """Act on the completions that are kept, in order."""

    def pathChanged(self) -> None:
        """Look whether the queue pair has migrated: its device says so."""

    def broken(self, failure: Failure) -> None:
        """End: completions can't be acted on, or are read no more."""


class SharedCompletionQueue:
    """
    A completion queue for some connections, with its reader.

    @ivar handlers: connections by the numbers of their queue pairs.
    """

    def __init__(self, reactor: Any, device: IVerbsDevice, depth: int) -> None:
        self.handlers: dict[QPN, CompletionHandler] = {}
        self.free = depth
        with ExitStack() as undo:
            channel = device.createChannel()
            undo.callback(channel.close)
            self.queue = device.createCompletionQueue(depth, channel)
            undo.callback(self.queue.close)
            self._reader = CompletionReader(reactor, channel, [self.queue], self._completed, self.fail)
            self._reader.start()
            undo.callback(self._reader.stop)
            self._closing = undo.pop_all()

    @property
    def reader(self) -> CompletionReader:
        """The reader of the queue, which is part of the reactor."""
        return self._reader

    def poll(self) -> None:
        """Take all that has completed so far."""
        while self._reader.poll():
            pass

    def close(self) -> None:
        """Leave the reactor, and close the queue."""
        self._closing.close()

    def _completed(self, batch: Sequence[Completion]) -> None:
        touched: dict[CompletionHandler, None] = {}
        for completion in batch:
            handler = self.handlers.get(completion.qpn)
            if handler is not None:
                handler.arrived(completion)
                touched[handler] = None
        for handler in touched:
            try:
                handler.process()
            except Exception:
                failure = Failure()
                _log.failure("{handler} ends by an error in its completions", failure, handler=handler)
                self._break(handler, failure)

    def fail(self, failure: Failure) -> None:
        """End all connections, with a reason."""
        for handler in tuple(self.handlers.values()):
            self._break(handler, failure)

    def _break(self, handler: CompletionHandler, failure: Failure) -> None:
        with _log.failuresHandled("{handler} could not be ended in order", handler=handler):
            handler.broken(failure)


class Adapter:
    """
    A device with a manager of connections: our own, on management datagrams of each port, or the kernel's.

    @ivar device: belongs to whoever opened it.
    @ivar domain: the protection domain of all connections.
    @ivar receives: memory of that domain that messages are received in.
    """

    def __init__(self, reactor: Any, device: IVerbsDevice, closed: Callable[[], None] = lambda: None) -> None:
        """
        @param closed: called when the last holder has gone, and all is closed.
        @raise InvalidRequest: the device gives no queue pair 1, and is none of the kernel's.
        @raise txrdma.error.ResourceExhausted: somebody has queue pair 1 of one of its ports, or the class.
        """
        self.reactor = reactor
        self.device = device
        self._holders = 0
        self._queues: list[SharedCompletionQueue] = []
        self._pairs: dict[IQueuePair, CompletionHandler] = {}
        self._tables: list[Sequence[GIDEntry]] = []
        self._places: dict[GID, tuple[int, int]] = {}
        self._mtus: list[MTU] = []
        self._lookedAt = 0.0
        self._ports: list[IReadDescriptor] = []
        with ExitStack() as undo:
            undo.callback(closed)
            self.manager: IConnectionManager = (
                KernelManager(reactor, device, self._addresses)
                if isManaged(device)
                else self._ownManager(reactor, device, undo)
            )
            undo.callback(self.manager.close)
            self.domain = device.createProtectionDomain()
            undo.callback(self.domain.close)
            self.receives = ReceiveMemory(self.domain)
            undo.callback(self.receives.close)
            undo.callback(device.subscribe(self._told))
            self._closing = undo.pop_all()

    def _ownManager(self, reactor: Any, device: IVerbsDevice, undo: ExitStack) -> ConnectionManager:
        """Our own manager, on queue pair 1 of each port, or on umad where the kernel keeps that."""
        servers = []
        for number in range(1, device.portCount + 1):
            port: IMADPort
            if isOfKernel(device):
                port = UmadPort(reactor, getEndPort(f"{device.name}/{number}"), False)
            else:
                _checkIsFound(device, number)
                port = VerbsPort(reactor, device, number, isGSI=True, closesDevice=False)
                self._ports.append(port)
            agent = MADAgent(reactor, port)
            undo.callback(agent.close)
            servers.append(MADServer(agent))
        return ConnectionManager(servers[0], None, servers[1:])

    def __repr__(self) -> str:
        return f"<Adapter {self.device.name} {self._holders} holders>"

    @property
    def own(self) -> ConnectionManager:
        """
        The manager, which is our own.

        @raise InvalidRequest: it is the kernel's, which has no services of datagrams for us.
        """
        if not isinstance(self.manager, ConnectionManager):
            raise InvalidRequest(f"{self.device.name} has the kernel's manager, without datagram services")
        return self.manager

    def hold(self) -> Callable[[], None]:
        """Keep the adapter open; call the answer to let go of it. Twice is fine."""
        self._holders += 1
        isHeld = True

        def release() -> None:
            nonlocal isHeld
            if isHeld:
                isHeld = False
                self._holders -= 1
                if not self._holders:
                    self._closing.close()

        return release

    @property
    def isAbandoned(self) -> bool:
        """True if somebody has removed all readers from the reactor, as trial does after a failed test."""
        present = self.reactor.getReaders()
        return any(each not in present for each in (*self._ports, *(each.reader for each in self._queues)))

    def abandon(self) -> None:
        """End all connections without a word to their peers, and close all that the holders would close."""
        self.manager.close()
        failure = Failure(DeviceUnavailable("somebody has removed all readers from the reactor"))
        for shared in tuple(self._queues):
            shared.fail(failure)
        self._closing.close()

    # Its ports

    def _look(self) -> None:
        """Look at the ports, unless that was a moment ago: many connections come at once."""
        now = self.reactor.seconds()
        if not self._tables or not 0 <= now - self._lookedAt < LOOK_SECONDS:
            numbers = range(1, self.device.portCount + 1)
            self._tables = [tuple(self.device.gidTable(number)) for number in numbers]
            self._mtus = [self.device.portAttributes(number).activeMTU for number in numbers]
            self._places = {}
            for number, table in enumerate(self._tables, 1):
                for index, entry in enumerate(table):
                    if entry.type is not GIDType.ROCE_V1:
                        self._places.setdefault(entry.gid, (number, index))
            self._lookedAt = now

    def mtuOf(self, number: int) -> MTU:
        """The largest payload of packets of a port."""
        self._look()
        return self._mtus[number - 1]

    def findGID(self, gid: GID) -> tuple[int, int] | None:
        """The port that has a GID, and the index in its table, not of RoCE v1; None where none has."""
        self._look()
        return self._places.get(gid)

    def _addresses(self) -> list[str]:
        """The IP addresses of all ports, but those that mean another host on each link."""
        self._look()
        gids = dict.fromkeys(entry.gid for table in self._tables for entry in table)
        return [gid.ip for gid in gids if gid.ip is not None and not gid.isLinkLocal]

    def requireGID(self, gid: GID) -> tuple[int, int]:
        """
        The port that has a GID, and the index in its table.

        @raise InvalidRequest: none of the device's ports has it.
        """
        place = self.findGID(gid)
        if place is None:
            raise InvalidRequest(f"{self.device.name} has no GID {gid.ip}")
        return place

    def findPKey(self, port: int, pkey: int) -> int | None:
        """The index in a port's table of its P_Key for a partition; None where the port is not in it."""
        return partitionIndex(self.device.pkeys(port), PKey(pkey))

    def requirePKey(self, port: int, pkey: int) -> int:
        """
        The index of a P_Key, as L{findPKey} finds it.

        @raise InvalidRequest: the port is in no such partition.
        """
        index = self.findPKey(port, pkey)
        if index is None:
            raise InvalidRequest(f"{self.device.name} is not in partition {pkey:#06x} by its port {port}")
        return index

    def usualGID(self) -> GID:
        """The GID of port 1 that most peers can reach."""
        self._look()
        return self._tables[0][usualGID(self._tables[0])].gid

    def checkPath(self, path: CMPath, pkey: int) -> tuple[APStatus, bytes] | None:
        """
        Find out why an alternate path can't be used: its own GID is none of the device's, or is that of a
        port that is not in the connection's partition.
        """
        place = self.findGID(path.localGID)
        if place is None:
            return APStatus.GID_REJECTED, self.usualGID().raw
        port, _index = place
        return (APStatus.REJECTED, b"") if self.findPKey(port, pkey) is None else None

    # Its connections

    def reserve(self, depth: int) -> SharedCompletionQueue:
        """A completion queue with room for so many completions, which are taken until L{detach}."""
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
        """Have completions and events of a queue pair brought to a connection."""
        shared.handlers[queuePair.number] = handler
        self._pairs[queuePair] = handler

    def detach(self, shared: SharedCompletionQueue, queuePair: IQueuePair | None, depth: int) -> None:
        """Forget a queue pair, which is closed already, and give back its room."""
        if queuePair is not None and self._pairs.pop(queuePair, None) is not None:
            del shared.handlers[queuePair.number]
        shared.free += depth
        if not shared.handlers and shared in self._queues:
            self._queues.remove(shared)
            shared.close()

    def _told(self, event: AsyncEvent) -> None:
        if event.kind is AsyncEventKind.PATH_MIGRATED and event.queuePair is not None:
            handler = self._pairs.get(event.queuePair)
            if handler is not None:
                handler.pathChanged()


def _checkIsFound(device: IVerbsDevice, number: int) -> None:
    """
    Look whether peers look for queue pair 1 where this port has it.

    @raise ResourceExhausted: another one has the place at the port's address.
    """
    if device.portAttributes(number).capabilities & CM_SUPPORTED:
        return
    address = device.gids(number)[0].ip
    said = f"queue pair 1 of {address} belongs to another software device, of whichever program"
    if os.path.exists(RXE):
        said += ", or to the kernel's rdma_rxe, which takes that of all addresses: use its own device"
    else:
        said += (
            ": take an address of your own, by interface= of a server, bindAddress= of a client; within one "
            "host any of 127.0.0.0/8 will do"
        )
    raise ResourceExhausted(said)


_adapters: dict[tuple[object, DevicePlace], Adapter] = {}


def adapterOf(reactor: Any, place: DevicePlace) -> Adapter:
    """
    The one adapter of a device on a reactor; to be held. One that was abandoned has a successor.

    @param place: the string of a device, which is opened and closed, or an open device, which isn't closed.
    @raise ValueError: the string has no meaning.
    @raise txrdma.error.RDMAError: there is no such device, or it has no queue pair 1 for us.
    """
    known = _adapters.get((reactor, place))
    if known is not None and known.isAbandoned:
        known.abandon()
    return oneOf(_adapters, reactor, place, lambda device, closed: Adapter(reactor, device, closed))
