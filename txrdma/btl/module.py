"""
Modules on a reactor: ports of verbs devices, whose channels serve all peers of this process.

A module is shared by all users of the same devices on the same reactor, and closed with the last of them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import ExitStack
from functools import partial
from math import inf
from secrets import randbits
from typing import Any, Final, Protocol, Union

from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.btl import status
from txrdma.btl.channels import bufferBytes, Channel, ReceivedPacket, Source, sourceOf
from txrdma.btl.core.events import (
    Event,
    MessageReceived,
    Packet,
    PackReceived,
    PeerFailed,
    SendCompleted,
    SendFailed,
)
from txrdma.btl.core.marks import ECT, NOT_ECT
from txrdma.btl.core.module import COMMAND_MTU, Module, MOST_PACKETS
from txrdma.btl.core.path import COMMAND, DATA
from txrdma.btl.core.peer import ENDED, Peer
from txrdma.error import DeviceUnavailable, InvalidRequest, ResourceExhausted
from txrdma.iba.types import GID, LID, MACAddress, MTU, QPN
from txrdma.iba.verbs import AddressVector, Buffer, usualGID
from txrdma.interfaces import IAddressHandle, IVerbsDevice
from txrdma.kit.delayedcalls import cancelCall, isPending
from txrdma.kit.forwardclock import sharedForwardClock
from txrdma.kit.logs import errorText, lacksDescriptors
from txrdma.kit.values import frozen
from txrdma.verbs.devices import DeviceSpec, sharedDevice
from txrdma.verbs.pinning import shareOf

_log = Logger()

COMMAND_DEPTHS: Final = (256, 4096)
"""Depths of the send and the receive queue of the command channel; received packets: one window."""

DATA_DEPTHS: Final = (1024, 4096)
"""
Depths of the queues of the data channel: many peers may each send a window between two reactor iterations.
"""

SMALLEST_DEPTH: Final = 16
"""Smallest depth of a queue. If the device has not enough memory for it, the module is not opened."""

PINNED_SHARE: Final = 4
"""
Largest fraction of C{ulimit -l} for the buffers of one module, on a device that pins memory.

The queues of both channels are halved until they fit; packets without a receive are dropped, and sent again.
"""

MANY: Final = 8
"""Packets of a batch that is acknowledged before it is reported, so that its sender continues meanwhile."""

MOST_INTERRUPTIONS: Final = 16
"""
Largest number of exceptions of a module that cannot be attributed to a peer, without L{PEACEFUL_SECONDS}
between two of them. The next one, while packets are received, ends the use of their port, so that repeated
ones do not fill the log.
"""

PEACEFUL_SECONDS: Final = 60.0
"""Seconds without such an exception after which earlier ones do not count any more."""

AGAIN_SECONDS: Final = 1.0
"""Seconds after such an exception until the next turn: one for each would fill the log at once."""

OVERDUE_SECONDS: Final = 0.02
"""
Seconds for which received packets are processed before a timer expires: a peer may send without a pause.
"""

_HOPS: Final = 64


@frozen
class ChannelAddress:
    """
    The address of a port of a module.

    @ivar gid: its GID; C{mac}: its link address, if it has one; C{lid}: its LID on InfiniBand.
    @ivar qpns: queue pair numbers of the command and the data channel.
    @ivar mtu: longest packet on the data channel, in bytes.
    """

    gid: GID
    mac: MACAddress | None
    qpns: tuple[QPN, QPN]
    mtu: int
    lid: LID = LID(0)


Paths = Sequence[Union[ChannelAddress, None]]
"""The address of a peer for each port of a module; None for a port that does not reach it."""


class Program(Protocol):
    """The user of a module: receives the events of one peer."""

    def handleEvent(self, event: Event) -> None:
        """Handle an event. The bytes of a message are valid until this returns."""

    def eventsReported(self) -> None:
        """Called after all events of a reactor iteration were reported."""


class _Route:
    """
    The context of a peer: where its packets are sent, and the program that receives its events.

    @ivar destinations: address and queue pair for each channel of the module.
    """

    __slots__ = ("destinations", "handles", "program")

    def __init__(
        self, handles: Sequence[Sequence[IAddressHandle]], peerAddresses: Paths, program: Program
    ) -> None:
        """
        @param handles: for each port the handles of the command and the data channel; empty if it does not
            reach the peer.
        """
        self.handles = [each for both in handles for each in both]
        self.destinations: list[tuple[IAddressHandle, QPN] | None] = []
        for both, address in zip(handles, peerAddresses, strict=True):
            self.destinations += [None, None] if address is None else zip(both, address.qpns, strict=True)
        self.program = program

    def useNoMarks(self, port: int) -> None:
        """Send the datagrams of a port's data channel without ECT(0), like those of its command channel."""
        command, data = self.destinations[2 * port + COMMAND], self.destinations[2 * port + DATA]
        if command is not None and data is not None:
            self.destinations[2 * port + DATA] = command[0], data[1]


def _dropAfter(events: list[Event], failed: Event) -> None:
    """Remove the later messages of a peer, because one of its events has failed: they would follow a gap."""
    begin = 1 + next(number for number, each in enumerate(events) if each is failed)
    events[begin:] = [
        each
        for each in events[begin:]
        if each.peer is not failed.peer or not isinstance(each, (MessageReceived, PackReceived))
    ]


Depths = tuple[int, int]
"""The depths of a send queue and of a receive queue."""


def halved(depths: Depths) -> Depths:
    """Return half of each depth, but at least L{SMALLEST_DEPTH}."""
    sends, receives = (max(depth // 2, SMALLEST_DEPTH) for depth in depths)
    return sends, receives


def depthsWithin(most: int | None, mtu: int) -> tuple[Depths, Depths]:
    """
    Return the depths of the command and the data channel, halved until their buffers fit.

    @param most: largest number of bytes of the buffers of both channels; None for no limit.
    @param mtu: longest packet on the data channel, in bytes.
    """
    command, data = COMMAND_DEPTHS, DATA_DEPTHS
    while most is not None and max(*command, *data) > SMALLEST_DEPTH:
        if bufferBytes(command, min(COMMAND_MTU, mtu)) + bufferBytes(data, mtu) <= most:
            break
        command, data = halved(command), halved(data)
    return command, data


class ChannelPort:
    """
    A port of a device, with two channels.

    @ivar device: the device, which is not closed with the port; C{portNumber}: the port's number there.
    @ivar address: the address of the port; C{mtu}: its MTU in bytes.
    @ivar domain: the protection domain of its objects; C{channels}: the command and the data channel.
    @ivar interface: name of its network interface, for messages.
    @ivar receiveBufferBytes: bytes allocated for receive buffers of peers.
    """

    def __init__(
        self,
        reactor: Any,
        device: IVerbsDevice,
        portNumber: int,
        number: int,
        handleBatch: Callable[[Channel, int, Sequence[ReceivedPacket]], None],
        broken: Callable[[int, Failure], None],
    ) -> None:
        """
        @param number: number of the port in its module.
        @param broken: called with the number of the port when a channel has failed.
        @raise txrdma.error.RDMAError: the device cannot create two queue pairs.
        """
        self._reactor, self.device, self.portNumber = reactor, device, portNumber
        self._handleBatch, self._broken = handleBatch, partial(broken, number)
        self.receiveBufferBytes = 0
        table = device.gidTable(portNumber)
        index = usualGID(table)
        gid, attributes = table[index].gid, device.portAttributes(portNumber)
        self.mtu = mtu = attributes.longestDatagram or attributes.activeMTU.bytes
        self.interface = table[index].netdev or attributes.netdev or gid.ip or str(gid)
        self._index = index
        with ExitStack() as undo:
            self.domain = device.createProtectionDomain()
            undo.callback(self.domain.close)
            command, data = depthsWithin(shareOf(device, PINNED_SHARE), mtu)
            self.channels: list[Channel] = []
            for each, most, depths in ((COMMAND, min(COMMAND_MTU, mtu), command), (DATA, mtu, data)):
                channel = self._openChannel(2 * number + each, most, depths)
                undo.callback(channel.close)
                self.channels.append(channel)
            qpns = (self.channels[COMMAND].qpn, self.channels[DATA].qpn)
            self.address = ChannelAddress(gid, attributes.mac, qpns, mtu, attributes.lid)
            self._closing = undo.pop_all()

    def _openChannel(self, number: int, mtu: int, depths: Depths) -> Channel:
        """
        Open a channel. While the device has not enough memory for it, halve its depths, unless a descriptor
        is missing.

        @raise txrdma.error.RDMAError: the device cannot create even the smallest queues.
        """
        while True:
            try:
                return Channel(
                    *(self._reactor, self.device, self.portNumber, self.domain, number, mtu, depths),
                    *(self._handleBatch, self._broken),
                )
            except ResourceExhausted as error:
                if max(depths) <= SMALLEST_DEPTH or lacksDescriptors(error.__cause__):
                    raise
                depths = halved(depths)
                _log.warn(
                    "{device}: {error}; channel {number} is opened with {receives} receives. Raise ulimit -l",
                    device=self.device.name,
                    error=errorText(error),
                    number=number,
                    receives=depths[1],
                )

    def close(self) -> None:
        self._closing.close()

    def handle(self, address: ChannelAddress, codepoint: int = NOT_ECT) -> IAddressHandle:
        """
        Create an address handle of a peer.

        @param codepoint: the ECN field of datagrams that are sent with it.
        @raise InvalidRequest: the port has no route to the peer.
        """
        own = self.address.gid
        if own.isMapped != address.gid.isMapped and (own.ip is None or address.gid.ip is None):
            raise InvalidRequest(f"there is no route from {own.ip or own} to {address.gid.ip or address.gid}")
        return self.domain.createAddressHandle(self.destinationOf(address, codepoint))

    def destinationOf(self, address: ChannelAddress, codepoint: int = NOT_ECT) -> AddressVector:
        """Return the attributes of the address handle for a peer's port."""
        place = self._index, self.portNumber, _HOPS, codepoint
        return AddressVector(address.gid, *place, dlid=address.lid, dmac=address.mac)


class ModulePort:
    """
    A L{Module} on a reactor: its ports, one timer, and the receivers of events.

    @ivar core: the module itself; call L{turnLater} after its methods.
    @ivar ports: its ports; C{port}: the first one.
    @ivar isBroken: whether a channel has failed, so that new peers need another module.
    @ivar seconds: returns the time for the core, which never goes back, in seconds.
    """

    def __init__(
        self,
        reactor: Any,
        devices: Sequence[tuple[IVerbsDevice, int]],
        closed: Callable[[], None] = lambda: None,
    ) -> None:
        """
        @param devices: devices, each with the number of a port.
        @param closed: called when the last user has released it and everything is closed.
        @raise txrdma.error.RDMAError: a device cannot create two queue pairs.
        """
        self._reactor = reactor
        self._holders = 0
        self._isBusy = self._isClosed = self.isBroken = self._reportsPlaced = False
        self._interruptions = 0
        self._interruptedAt = 0.0
        self._scheduledTurn: IDelayedCall | None = None
        self._timer: IDelayedCall | None = None
        self._timerAt = 0.0
        self._clock = sharedForwardClock(reactor)
        self.seconds = self._clock.seconds
        self._touched: dict[Program, Peer] = {}
        self._unneeded: deque[tuple[tuple[int, ...], list[IAddressHandle]]] = deque()
        self._channels: list[Channel] = []
        self.ports: list[ChannelPort] = []
        with ExitStack() as undo:
            undo.callback(closed)
            undo.callback(self._closeHandles)
            for number, (device, portNumber) in enumerate(devices):
                port = ChannelPort(reactor, device, portNumber, number, self._handleBatch, self._broken)
                undo.callback(port.close)
                self.ports.append(port)
                self._channels += port.channels
            self.port = self.ports[0]
            mtu = max(port.mtu for port in self.ports)
            credits = [each.sends for each in self._channels]
            self.core = Module(mtu, credits, rooms=[port.channels[DATA].room for port in self.ports])
            status.modules.add(reactor, self.core, lambda: self.counters)
            undo.callback(status.modules.leave, self.core)
            undo.callback(self._stopTimers)
            undo.callback(self._clock.leave, self._setBack)
            self._clock.join(self._setBack)
            self._closing = undo.pop_all()

    def __repr__(self) -> str:
        return f"<ModulePort {[each.device.name for each in self.ports]} {self._holders} holders>"

    def hold(self) -> Callable[[], None]:
        """Keep the module open, and return a function that releases it. That function is idempotent."""
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
        """Return whether all readers were removed from the reactor, as trial does after a failed test."""
        present = self._reactor.getReaders()
        return any(each.reader not in present for each in self._channels)

    def abandon(self) -> None:
        """End all connections without notifying their peers, and close the module for all users."""
        failure = Failure(DeviceUnavailable("all readers were removed from the reactor"))
        for number in range(len(self.ports)):
            self._broken(number, failure)
        self._close()

    def _close(self) -> None:
        self._isClosed = True
        self._closing.close()

    @property
    def counters(self) -> Counter[str]:
        """Return the module's counters by usnic's names."""
        found = Counter(self.core.counters.named())
        found["num_recv_reposts"] = sum(each.reposts for each in self._channels)
        return found

    # Peers

    def addPeer(
        self,
        name: int,
        sender: int,
        peerAddresses: Paths,
        sequences: tuple[int, int],
        program: Program,
        allowance: int | None = None,
    ) -> Peer:
        """
        Add a peer after the exchange of introductions. Its MTU is the largest one of IBA that all ports
        accept.

        @param name: the result of L{newName}; C{sender}: the name that the peer has chosen for this end.
        @param peerAddresses: the address of the peer for each port.
        @param sequences: first sequence numbers of this end and of the peer.
        @param allowance: see L{Module.addPeer}.
        @raise InvalidRequest: a port has no route to the peer.
        """
        pairs = list(zip(self.ports, peerAddresses, strict=True))
        most = min(min(port.mtu, address.mtu) for port, address in pairs if address is not None)
        with ExitStack() as undo:
            handles: list[list[IAddressHandle]] = []
            addresses: list[Source | None] = []
            for port, address in pairs:
                handles.append([])
                for codepoint in (NOT_ECT, ECT):
                    if address is not None:
                        handles[-1].append(port.handle(address, codepoint))
                        undo.callback(handles[-1][-1].close)
                for each in (COMMAND, DATA):
                    addresses.append(None if address is None else sourceOf(address.gid, address.qpns[each]))
            peer = self.core.addPeer(
                *(name, sender, addresses, *sequences),
                *(_Route(handles, peerAddresses, program), self.seconds()),
                mtu=MTU.fitting(most).bytes,
                allowance=allowance,
            )
            undo.pop_all()
        return peer

    def newName(self) -> int:
        """Choose a random name for a future peer, which may send packets before its introduction arrives."""
        while self.core.hasPeer(name := randbits(64)):
            pass
        self.core.expected.expect(name)
        return name

    def forget(self, peer: Peer) -> None:
        """Remove a peer without notifying it."""
        self.core.lose(peer, "the connection has ended")
        posted = tuple(each.posted for each in self._channels)
        self._unneeded.append((posted, peer.context.handles))
        self._closeHandles()

    def _closeHandles(self) -> None:
        """
        Close the address handles of removed peers whose last packets are completed, because these still use
        the handles.
        """
        unneeded = self._unneeded
        while unneeded and all(
            each.isClosed or each.completed >= posted
            for each, posted in zip(self._channels, unneeded[0][0], strict=True)
        ):
            for handle in unneeded.popleft()[1]:
                with _log.failuresHandled("{module} could not close an address handle", module=self):
                    handle.close()

    def _setBack(self) -> None:
        """Let the timers be set again, because the reactor's are late: the system's clock was set back."""
        self._timerAt = inf
        if self._scheduledTurn is not None and isPending(self._scheduledTurn):
            self._scheduledTurn.reset(0)

    # Reactor iterations

    def sendFast(self, peer: Peer, tag: int, data: Buffer, context: object = None) -> bool:
        """
        Send a single message immediately: see L{FastPath<txrdma.btl.core.shortcuts.FastPath.sendFast>}.

        @return: False if it has to be sent by the general path.
        """
        if self._reportsPlaced or self._isClosed:
            return False
        core = self.core
        packet = core.sendFast(peer, tag, data)
        if packet is None:
            return False
        channel, head, payload = packet
        address, qpn = peer.context.destinations[channel]
        try:
            credits = self._channels[channel].sendFast(address, qpn, head, payload)
            now = self.seconds()
            core.sentFast(peer, channel, tag, payload, context, now, credits)
        except Exception:  # is raised to the program; another message must not use the sequence number
            core.lose(peer, "a message could not be sent")
            self.turnLater()
            raise
        if not self._isBusy:  # a call of C{turn} in progress sets the timer
            try:
                self._schedule(core.deadline(), now)
            except Exception as error:  # the message was sent
                self._interrupted(error)
                self.turnLater()
            if core.hasEvents:
                self.turnLater()
        return True

    def turnLater(self) -> None:
        """
        Call L{turn} at the end of this reactor iteration, so that the packets of many calls are sent
        together.
        """
        if self.core.isFull and not self._isClosed:
            self._send(self.seconds(), True)
        if not self._isBusy and self._scheduledTurn is None and not self._isClosed:
            self._scheduledTurn = self._reactor.callLater(0, self._runScheduledTurn)

    @property
    def route(self) -> str:
        return self._channels[0].route

    def poll(self, seconds: float = inf) -> None:
        """
        Process packets that have been received, now for at most this many seconds, and the others in the next
        reactor iteration.
        """
        end = self.seconds() + seconds
        hasMore = [each.poll(lambda: self.seconds() < end) for each in self._channels]
        if True in hasMore and not self._isClosed:
            cancelCall(self._timer)
            self._timer, self._timerAt = self._reactor.callLater(0, self._overdue), 0.0

    def turn(self) -> None:
        """Report events, send what can be sent, and schedule the next deadline."""
        if self._isBusy or self._isClosed:
            return
        core, now = self.core, self.seconds()
        packets, isReported, isUnfinished = 0, True, True
        self._isBusy = True
        try:
            while (isReported or core.hasEvents) and not self._isClosed:
                isReported = self._reportEvents()
                packets += self._send(now)  # answers carry the acknowledgement
            if not self._isClosed:
                self._schedule(core.deadline(), now)
            isUnfinished = packets >= MOST_PACKETS or core.hasMoreLost or core.hasEvents
        except Exception as error:
            self._interrupted(error)
        finally:  # after an exception, also one that ends the program, everything is unfinished
            self._isBusy = False
            if isUnfinished:
                self.turnLater()

    def _interrupted(self, error: Exception) -> None:
        """
        Log an exception that cannot be attributed to a peer. Packets that are lost are sent again.

        @raise Exception: the same one, if it is not one of the first L{MOST_INTERRUPTIONS}. The next turn is
            L{AGAIN_SECONDS} later.
        """
        now = self.seconds()
        if now > self._interruptedAt + PEACEFUL_SECONDS:
            self._interruptions = 0
        self._interruptions, self._interruptedAt = self._interruptions + 1, now
        if self._interruptions > MOST_INTERRUPTIONS:
            if self._scheduledTurn is None and not self._isClosed:
                self._scheduledTurn = self._reactor.callLater(AGAIN_SECONDS, self._runScheduledTurn)
            raise error
        _log.failure("{module}: an exception may have lost packets", Failure(error), module=self)

    def _handleBatch(self, channel: Channel, completed: int, packets: Sequence[ReceivedPacket]) -> None:
        core = self.core
        try:
            if completed:
                core.completed(channel.number, completed)
                self._closeHandles()
            if packets:
                now = self.seconds()
                number, received = channel.number, core.received
                if len(packets) > 1 or self._isBusy or not self._receiveFast(number, *packets[0], now):
                    for source, packet, codepoint in packets:
                        received(number, source, packet, now, codepoint)
                if core.isSettled(now):
                    return  # the usual case of an acknowledgement, or of a message that was answered
                core.batchEnded()
                # The handlers of many messages may take long; the sender should have window space meanwhile.
                if len(packets) >= MANY and not self._isBusy:
                    self._send(now)
            self.turn()
        except Exception as error:
            self._interrupted(error)
            self.turn()  # reports messages while their packets are valid

    def _receiveFast(
        self, channel: int, source: Source, packet: memoryview, codepoint: int, now: float
    ) -> bool:
        """Deliver a single message immediately: see L{FastPath.receiveFast}."""
        try:
            event = None if self._isClosed else self.core.receiveFast(channel, source, packet, now, codepoint)
        except Exception as error:
            self.core.loseSender(channel, source, packet, error)
            return True
        if event is None:
            return False
        program = event.peer.context.program
        self._isBusy = True
        try:
            program.handleEvent(event)
            program.eventsReported()
        except Exception:
            self._failed(event.peer)
        finally:
            self._isBusy = False
        return True

    def _failed(self, peer: Peer, event: Event | None = None) -> None:
        """
        Log the current exception, and close the peer whose user has raised it.

        @param event: the event that could not be processed. If a message was sent, it fails.
        """
        reason = "an event could not be processed"
        _log.failure(f"{{module}}: {reason}; its connection ends", module=self)
        if isinstance(event, (SendCompleted, SendFailed)):
            with _log.failuresHandled("{module}: a message could not be reported as failed", module=self):
                peer.context.program.handleEvent(SendFailed(peer, event.context, reason))
        if peer.state >= ENDED:  # then C{lose} reports nothing
            with _log.failuresHandled("{module}: a failure could not be processed", module=self):
                peer.context.program.handleEvent(PeerFailed(peer, reason, None))
        self.core.lose(peer, reason)

    def _reportEvents(self) -> bool:
        """Report events to the users of their peers. Return whether there were any."""
        hasPlaced = self.core.hasPlaced
        events = self.core.events()
        self._reportsPlaced = hasPlaced and bool(events)  # also ends what an exception has left
        if not events:
            return False
        touched = self._touched
        latest: Peer | None = None
        for event in events:
            peer = event.peer
            if peer is not latest:  # consecutive packets often have the same peer
                latest, program = peer, peer.context.program
                handleEvent = program.handleEvent
                touched[program] = peer
            try:
                handleEvent(event)
            except Exception:
                self._failed(peer, event)
                _dropAfter(events, event)
        for program, peer in touched.items():
            try:
                program.eventsReported()
            except Exception:
                self._failed(peer)
        touched.clear()
        self._reportsPlaced = False
        return True

    def _send(self, now: float, isEarly: bool = False) -> int:
        if self.core.hasPlaced or self._reportsPlaced:
            return 0  # an acknowledgement would let the peer overwrite unread bytes
        packets, unmarked = self.core.outgoing(now, isEarly), self.core.unmarked
        while unmarked:
            peer, port = unmarked.pop()
            try:
                peer.context.useNoMarks(port)
            except Exception as error:
                self.core.lose(peer, "its packets cannot be sent without marks", error)
        if not packets:
            return 0
        failure: Exception | None = None
        batches: list[list[Packet]] = [[] for _each in self._channels]
        for packet in packets:
            batches[packet.channel].append(packet)
        for number, batch in enumerate(batches):
            if batch:
                try:
                    credits = self._channels[number].send(batch)
                except Exception as error:
                    failure = self._notSent(number, batch, error) or failure
                    continue
                if credits:
                    self.core.completed(number, credits)
        if failure is not None:
            self._interrupted(failure)
        return len(packets)

    def _notSent(self, number: int, batch: Sequence[Packet], error: Exception) -> Exception | None:
        """
        Lose the peer for whose packets a channel has raised an exception. If they are of several peers, those
        of each are sent separately, to find it.

        @return: the exception, if it cannot be attributed to a peer.
        """
        core, groups = self.core, dict[Peer, list[Packet]]()
        for packet in batch:
            groups.setdefault(packet.peer, []).append(packet)
        if len(groups) == 1:
            core.completed(number, len(batch))
            core.lose(batch[0].peer, "packets to the peer could not be sent", error)
            return None
        hasFailed = False
        for packets in groups.values():
            try:
                core.completed(number, self._channels[number].send(packets))
            except Exception as another:
                hasFailed = True
                self._notSent(number, packets, another)
        return None if hasFailed else error

    def _runScheduledTurn(self) -> None:
        self._scheduledTurn = None
        self.turn()

    def _schedule(self, deadline: float | None, now: float) -> None:
        """Set the timer to the deadline, unless it already expires earlier."""
        timer = self._timer
        if deadline is None:
            return
        delay = max(0.0, deadline - now) + self._clock.margin
        if timer is None or not timer.active():  # trial may have cancelled all calls
            self._timer = self._reactor.callLater(delay, self._expired)
        elif self._timerAt > deadline:  # the call itself is some microseconds later
            timer.reset(delay)
        else:
            return
        self._timerAt = deadline

    def _expired(self) -> None:
        """
        Set the timer again if all deadlines have been postponed since. Otherwise process received packets
        first: after a busy period, the reactor runs late calls before reads.
        """
        self._timer, now, isDue = None, self.seconds(), True
        try:
            isDue = self.core.isDue(now)
        finally:
            if isDue:
                self._timer = self._reactor.callLater(0, self._overdue)
                self._timerAt = 0.0
            else:
                self._schedule(self.core.deadline(), now)

    def _overdue(self) -> None:
        self._timer = None
        try:
            self.poll(OVERDUE_SECONDS)
            if not self._isClosed:
                self.core.expired(self.seconds())
        finally:
            self.turn()  # it sets the next timer

    def _stopTimers(self) -> None:
        for each in (self._scheduledTurn, self._timer):
            cancelCall(each)
        self._scheduledTurn = self._timer = None

    def _broken(self, number: int, failure: Failure) -> None:
        """Stop using a port, because its completions can no longer be read."""
        self.isBroken = True
        self.core.losePort(number, failure.getErrorMessage(), self.seconds())
        self.turn()


_modules: dict[tuple[object, Hashable], ModulePort] = {}


def moduleOf(reactor: Any, *devices: DeviceSpec) -> ModulePort:
    """
    Return the module of one or more devices on a reactor; call its L{ModulePort.hold}. A broken or abandoned
    one is replaced.

    @param devices: device strings, whose devices are opened and closed, or open devices, which are not
        closed. A device that occurs again contributes its next port, if it has another one.
    @raise ValueError: a device string is invalid.
    @raise txrdma.error.RDMAError: there is no such device, or it cannot create two queue pairs.
    """
    key = (reactor, devices)
    known = _modules.get(key)
    if known is not None and known.isBroken:
        del _modules[key]
    elif known is not None and known.isAbandoned:
        known.abandon()
    elif known is not None:
        return known
    with ExitStack() as undo:
        opened = []
        for index, each in enumerate(devices):
            device = sharedDevice(reactor, each) if isinstance(each, str) else each
            if isinstance(each, str):
                undo.callback(device.close)
            portNumber = 1 + devices[:index].count(each)
            if portNumber <= device.portCount:
                opened.append((device, portNumber))
        closing = undo.pop_all()
        made: ModulePort | None = None

        def closed() -> None:
            if made is not None and _modules.get(key) is made:
                del _modules[key]
            closing.close()

        made = _modules[key] = ModulePort(reactor, opened, closed)
    return made


def abandonModules(reactor: Any) -> None:
    """Close all modules and connections of a reactor that has stopped for good."""
    for key, each in list(_modules.items()):
        if key[0] is reactor:
            with _log.failuresHandled("a module cannot be closed after the end of its reactor"):
                each.abandon()
