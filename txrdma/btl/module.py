"""
Modules on a reactor: a port of a verbs device, by whose two channels all peers of this process are reached.

A module is shared by all who ask for the same device on the same reactor, and closed with the last of them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from secrets import randbits
from typing import Any, Final, Protocol

from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.btl import insight
from txrdma.btl._assembly import Budget
from txrdma.btl._events import Event, Packet
from txrdma.btl._module import COMMAND_MTU, Module, MOST_PACKETS
from txrdma.btl._peer import Peer
from txrdma.btl._stripes import MOST_OF_MODULE
from txrdma.btl._window import COMMAND, DATA
from txrdma.btl.channels import bufferBytes, Channel, Source, sourceOf
from txrdma.error import DeviceUnavailable, InvalidRequest, ResourceExhausted
from txrdma.iba.types import GID, MACAddress, QPN
from txrdma.iba.verbs import AddressVector, Buffer, usualGID
from txrdma.interfaces import IAddressHandle, IVerbsDevice
from txrdma.kit.values import frozen
from txrdma.verbs.devices import DevicePlace, oneOf
from txrdma.verbs.pinning import shareOf

_log = Logger()

COMMAND_DEPTHS: Final = (256, 4096)
"""Packets that the command channel holds: on their way out, and those that have come, a window of them."""

DATA_DEPTHS: Final = (1024, 4096)
"""Packets that the data channel holds: a window of each of many peers may come between two turns."""

SMALLEST_DEPTH: Final = 16
"""The smallest depth of a queue. A module for which the device has less memory than that is not opened."""

PINNED_SHARE: Final = 4
"""
The buffers of one module have at most this fraction of C{ulimit -l}, on a device that pins memory.

Both channels get queues of half the length until that is so; packets for which there is no receive are
dropped, and sent again.
"""

MANY: Final = 8
"""Packets of a batch that is acknowledged before it is told of, so that its sender goes on meanwhile."""

_HOPS: Final = 64


@frozen
class Place:
    """
    The place where a module is reached.

    @ivar gid: of its port, and C{mac} the address of its link, where it has one.
    @ivar qpns: the numbers of its queue pairs, command and data.
    @ivar mtu: bytes of the longest packet on the data channel.
    """

    gid: GID
    mac: MACAddress | None
    qpns: tuple[QPN, QPN]
    mtu: int


class Program(Protocol):
    """The part of a connection that its module knows: it receives the events of a peer."""

    def happened(self, event: Event) -> None:
        """Handle an event; the bytes of a message are valid until this returns."""

    def turnEnded(self) -> None:
        """Called after all events of a reactor turn have been reported."""


class _Route:
    """The context of a peer: the destination of its packets, and the program that receives its events."""

    __slots__ = ("handle", "program", "qpns")

    def __init__(self, handle: IAddressHandle, qpns: tuple[QPN, QPN], program: Program) -> None:
        self.handle, self.qpns, self.program = handle, qpns, program


def _command(context: object) -> tuple[IAddressHandle, QPN]:
    assert isinstance(context, _Route)
    return context.handle, context.qpns[COMMAND]


def _data(context: object) -> tuple[IAddressHandle, QPN]:
    assert isinstance(context, _Route)
    return context.handle, context.qpns[DATA]


_DESTINATIONS: Final = (_command, _data)


Depths = tuple[int, int]
"""The depths of a send queue and of a receive queue."""


def halved(depths: Depths) -> Depths:
    """Queues of half the length, or of the smallest that a channel can have."""
    sends, receives = (max(depth // 2, SMALLEST_DEPTH) for depth in depths)
    return sends, receives


def depthsWithin(most: int | None, mtu: int) -> tuple[Depths, Depths]:
    """
    The depths of the command and of the data channel, halved until their buffers fit.

    @param most: bytes of the buffers of both channels; None is without a limit.
    @param mtu: bytes of the longest packet on the data channel.
    """
    command, data = COMMAND_DEPTHS, DATA_DEPTHS
    while most is not None and max(*command, *data) > SMALLEST_DEPTH:
        if bufferBytes(command, min(COMMAND_MTU, mtu)) + bufferBytes(data, mtu) <= most:
            break
        command, data = halved(command), halved(data)
    return command, data


class ModulePort:
    """
    A port with a L{Module} on a reactor: two channels, one timer, and peers that receive events.

    @ivar device: belongs to whoever opened it.
    @ivar core: the module itself; whoever has called it calls L{soon}.
    @ivar place: how peers reach it.
    @ivar domain: the protection domain of all that it has made.
    @ivar interface: the network interface of its port, for people.
    @ivar receiveBufferBytes: memory for the long messages of peers.
    @ivar isBroken: a channel has failed, so that new peers need another module.
    """

    def __init__(self, reactor: Any, device: IVerbsDevice, closed: Callable[[], None] = lambda: None) -> None:
        """
        @param closed: called when the last holder has gone, and all is closed.
        @raise txrdma.error.RDMAError: the device cannot create two queue pairs.
        """
        self._reactor, self.device = reactor, device
        self._holders = self.receiveBufferBytes = 0
        self._isBusy = self._isClosed = self.isBroken = self._reportsPlaced = False
        self._later: IDelayedCall | None = None
        self._timer: IDelayedCall | None = None
        self._timerAt = 0.0
        self._touched: dict[Program, Peer] = {}
        self._unneeded: deque[tuple[tuple[int, ...], IAddressHandle]] = deque()
        table = device.gidTable(1)
        index = usualGID(table)
        gid, attributes = table[index].gid, device.portAttributes(1)
        mtu = int(attributes.activeMTU.bytes)
        self.interface = table[index].netdev or attributes.netdev or gid.ip or str(gid)
        self._index = index
        with ExitStack() as undo:
            undo.callback(closed)
            self.domain = device.createProtectionDomain()
            undo.callback(self.domain.close)
            undo.callback(self._closeHandles)
            made: list[Channel] = []
            command, data = depthsWithin(shareOf(device, PINNED_SHARE), mtu)
            for number, most, depths in ((COMMAND, min(COMMAND_MTU, mtu), command), (DATA, mtu, data)):
                channel = self._openChannel(number, most, depths)
                undo.callback(channel.close)
                made.append(channel)
            self._channels = made
            self.core = Module(mtu, (made[0].sends, made[1].sends))
            self.stripesBudget = Budget(MOST_OF_MODULE)
            self.place = Place(gid, attributes.mac, (made[0].qpn, made[1].qpn), mtu)
            insight.modules.appear(reactor, self)
            undo.callback(insight.modules.leave, self)
            undo.callback(self._stopTimers)
            self._closing = undo.pop_all()

    def _openChannel(self, number: int, mtu: int, depths: Depths) -> Channel:
        """
        Open a channel; while the device has no memory for it, with queues of half the length.

        @raise txrdma.error.RDMAError: the device cannot create even the shortest queues.
        """
        while True:
            try:
                return Channel(
                    *(self._reactor, self.device, self.domain, (1, self._index), number, mtu, depths),
                    *(self._taken, self._broken),
                )
            except ResourceExhausted as error:
                if max(depths) <= SMALLEST_DEPTH:
                    raise
                depths = halved(depths)
                _log.warn(
                    "{device}: {error}; channel {number} is opened with {receives} receives. Raise ulimit -l",
                    device=self.device.name,
                    error=error,
                    number=number,
                    receives=depths[1],
                )

    def __repr__(self) -> str:
        return f"<ModulePort {self.device.name} {self._holders} holders>"

    def hold(self) -> Callable[[], None]:
        """Keep the module open; call the answer to let go of it. Twice is fine."""
        self._holders += 1
        isHeld = True

        def release() -> None:
            nonlocal isHeld
            if isHeld:
                isHeld = False
                self._holders -= 1
                if not self._holders:
                    self._close()

        return release

    @property
    def isAbandoned(self) -> bool:
        """True if all readers were removed from the reactor, as trial does after a failed test."""
        present = self._reactor.getReaders()
        return any(each.reader not in present for each in self._channels)

    def abandon(self) -> None:
        """End all connections without a word to their peers, and close all that the holders would close."""
        self._broken(Failure(DeviceUnavailable("all readers were removed from the reactor")))
        self._close()

    def _close(self) -> None:
        self._isClosed = True
        self._closing.close()

    @property
    def counters(self) -> Counter[str]:
        """The module's counters, by the component's names."""
        found = Counter(self.core.counters.named())
        found["num_recv_reposts"] = sum(each.reposts for each in self._channels)
        return found

    # Peers

    def addPeer(
        self,
        name: int,
        sender: int,
        place: Place,
        sequences: tuple[int, int],
        program: Program,
        allowance: int | None = None,
    ) -> Peer:
        """
        Add a peer, whose numbers have been exchanged.

        @param name: drawn by L{newName}, and C{sender} that of the peer.
        @param sequences: the first ones of this end, and of the peer.
        @param allowance: see L{Module.addPeer}.
        @raise InvalidRequest: the port has no route to the peer.
        """
        own = self.place.gid
        if own.isMapped != place.gid.isMapped and (own.ip is None or place.gid.ip is None):
            raise InvalidRequest(f"there is no route from {own.ip or own} to {place.gid.ip or place.gid}")
        route = _Route(self.domain.createAddressHandle(self.destinationOf(place)), place.qpns, program)
        addresses: tuple[Source, Source] = (
            sourceOf(place.gid, place.qpns[0]),
            sourceOf(place.gid, place.qpns[1]),
        )
        return self.core.addPeer(
            *(name, sender, addresses, *sequences, route, self._reactor.seconds()),
            mtu=place.mtu,
            allowance=allowance,
        )

    def destinationOf(self, place: Place) -> AddressVector:
        """The address of a peer's port, for address handles."""
        return AddressVector(place.gid, self._index, 1, _HOPS, dmac=place.mac)

    def newName(self) -> int:
        """Draw a number for a peer that is to come, and may send before this end knows it."""
        known = {peer.name for peer in self.core.peers}
        while (name := randbits(64)) in known:
            pass
        self.core.expected.expect(name)
        return name

    def forget(self, peer: Peer) -> None:
        """Drop a peer without notifying it."""
        route = peer.context
        assert isinstance(route, _Route)
        self.core.lose(peer, "the connection has ended")
        self._unneeded.append((tuple(each.posted for each in self._channels), route.handle))
        self._closeHandles()

    def _closeHandles(self) -> None:
        """Close the handles of peers that have gone when their last packets have left: these look there."""
        unneeded = self._unneeded
        while unneeded and all(
            each.isClosed or each.left >= posted
            for each, posted in zip(self._channels, unneeded[0][0], strict=True)
        ):
            unneeded.popleft()[1].close()

    def seconds(self) -> float:
        """The time by the reactor's clock."""
        return float(self._reactor.seconds())

    # Turns

    def sendFast(self, peer: Peer, tag: int, data: Buffer, context: object = None) -> bool:
        """
        Send a message at once, if it is alone: see L{FastPath<txrdma.btl._shortcuts.FastPath.sendFast>}.

        @return: False if it has to be sent by the general path.
        """
        if self._reportsPlaced or self._isClosed:
            return False
        core = self.core
        packet = core.sendFast(peer, tag, data)
        if packet is None:
            return False
        channel, head, payload = packet
        route = peer.context
        assert isinstance(route, _Route)
        credits = self._channels[channel].sendFast(route.handle, route.qpns[channel], head, payload)
        core.sentFast(peer, channel, tag, payload, context, self._reactor.seconds())
        if credits:
            core.completed(channel, credits)
        if not self._isBusy:
            self.soon()  # for the timer; a turn that is under way sees to it
        return True

    def soon(self) -> None:
        """Have a turn when the reactor is done with what it does: the packets of many calls go at once."""
        if self.core.isFull and not self._isClosed:
            self._send(self._reactor.seconds(), True)
        if not self._isBusy and self._later is None and not self._isClosed:
            self._later = self._reactor.callLater(0, self._laterTurn)

    def look(self) -> None:
        """Take all packets that are here."""
        for channel in self._channels:
            channel.look()

    def turn(self) -> None:
        """Report events, send what can be sent, and schedule the next deadline."""
        if self._isBusy or self._isClosed:
            return
        self._isBusy = True
        core = self.core
        try:
            now = self._reactor.seconds()
            packets, isReported = 0, True
            while (isReported or core.hasEvents) and not self._isClosed:
                isReported = self._reportEvents()
                packets += self._send(now)  # what is answered takes the acknowledgement with it
        finally:
            self._isBusy = False
        if self._isClosed:
            return
        if packets >= MOST_PACKETS or core.hasMoreLost:
            self.soon()
        self._schedule(core.deadline(), now)

    def _taken(self, channel: Channel, packets: Sequence[tuple[Source, memoryview]], left: int) -> None:
        core = self.core
        if left:
            core.completed(channel.number, left)
            self._closeHandles()
        if packets:
            now = self._reactor.seconds()
            number, received = channel.number, core.received
            if len(packets) > 1 or self._isBusy or not self._receiveFast(number, *packets[0], now):
                for source, packet in packets:
                    received(number, source, packet, now)
            core.batchEnded()
            if len(packets) >= MANY and not self._isBusy:
                self._send(now)
        self.turn()

    def _receiveFast(self, channel: int, source: Source, packet: memoryview, now: float) -> bool:
        """Deliver a single message at once: see L{FastPath.receiveFast}."""
        event = None if self._isClosed else self.core.receiveFast(channel, source, packet, now)
        if event is None:
            return False
        route = event.peer.context
        assert isinstance(route, _Route)
        program = route.program
        self._isBusy = True
        try:
            program.happened(event)
            program.turnEnded()
        except Exception:
            self._failed(event.peer)
        finally:
            self._isBusy = False
        return True

    def _failed(self, peer: Peer) -> None:
        """Log the exception that is being handled, and give up the peer whose program has raised it."""
        _log.failure("{module}: an event could not be processed; its connection ends", module=self)
        self.core.lose(peer, "an event could not be processed")

    def _reportEvents(self) -> bool:
        """Report events to their programs; True if there were any."""
        self._reportsPlaced = self.core.hasPlaced
        events = self.core.events()
        if not events:
            return False
        touched = self._touched
        latest: Peer | None = None
        for event in events:
            peer = event.peer
            if peer is not latest:  # many of one peer follow each other
                latest, route = peer, peer.context
                assert isinstance(route, _Route)
                happened = route.program.happened
                touched[route.program] = peer
            try:
                happened(event)
            except Exception:
                self._failed(peer)
        for program, peer in touched.items():
            try:
                program.turnEnded()
            except Exception:
                self._failed(peer)
        touched.clear()
        self._reportsPlaced = False
        return True

    def _send(self, now: float, isEarly: bool = False) -> int:
        if self.core.hasPlaced or self._reportsPlaced:
            return 0  # an acknowledgement would let the peer write where bytes are still to be read
        packets = self.core.outgoing(now, isEarly)
        if not packets:
            return 0
        batches: tuple[list[Packet], list[Packet]] = ([], [])
        for packet in packets:
            batches[packet.channel].append(packet)
        for channel, batch, destinationOf in zip(self._channels, batches, _DESTINATIONS):  # noqa: B905  # there are two of each
            if batch and (dropped := channel.send(batch, destinationOf)):
                self.core.completed(channel.number, dropped)
        return len(packets)

    def _laterTurn(self) -> None:
        self._later = None
        self.turn()

    def _schedule(self, deadline: float | None, now: float) -> None:
        """Set the timer to the deadline, or earlier: then it finds nothing due."""
        timer = self._timer
        if deadline is None:
            return
        if timer is None or not timer.active():  # somebody may have cancelled all calls, and told nobody
            self._timer = self._reactor.callLater(max(0.0, deadline - now), self._expired)
        elif self._timerAt > deadline:  # the call itself is some microseconds later
            timer.reset(max(0.0, deadline - now))
        else:
            return
        self._timerAt = deadline

    def _expired(self) -> None:
        """After a busy time late calls run before reads: process what has arrived meanwhile first."""
        self._timer = self._reactor.callLater(0, self._overdue)
        self._timerAt = 0.0

    def _overdue(self) -> None:
        self._timer = None
        self.look()
        if not self._isClosed:
            self.core.expired(self._reactor.seconds())
            self.turn()

    def _stopTimers(self) -> None:
        for each in (self._later, self._timer):
            if each is not None and each.active():
                each.cancel()
        self._later = self._timer = None

    def _broken(self, failure: Failure) -> None:
        """Lose all peers: completions are read no more."""
        self.isBroken = True
        for peer in self.core.peers:
            self.core.lose(peer, failure.getErrorMessage())
        self.turn()


_modules: dict[tuple[object, DevicePlace], ModulePort] = {}


def moduleOf(reactor: Any, device: DevicePlace) -> ModulePort:
    """
    The one module of a device on a reactor; to be held. One that is broken or abandoned has a successor.

    @param device: the string of a device, which is opened and closed, or an open device, which isn't closed.
    @raise ValueError: the string has no meaning.
    @raise txrdma.error.RDMAError: there is no such device, or it cannot create two queue pairs.
    """
    known = _modules.get((reactor, device))
    if known is not None and known.isBroken:
        del _modules[reactor, device]
    elif known is not None and known.isAbandoned:
        known.abandon()
    return oneOf(_modules, reactor, device, lambda opened, closed: ModulePort(reactor, opened, closed))
