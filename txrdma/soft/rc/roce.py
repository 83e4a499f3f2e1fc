"""
RoCE v2: the queue pairs of this process on one UDP port.

Converts between UDP datagrams and the cores' runs of packets, checks the ICRC, and runs the timer that all
cores share. Follows annex A17 of the InfiniBand Architecture vol. 1.

Theory of operation. The carrier passes datagrams of one sender to C{received}. Those with a correct ICRC and
equal first eight bytes of the BTH form a run, which goes to the route of its queue pair. Routes act on
packets at once, but answer in C{batchEnded}, so that one acknowledgement serves for all. C{serve} lets a
route emit packets into the frame, which one system call sends: when it is full, when packets of another peer
or length follow, and at the end. Then it delivers the route's events and schedules its deadline. While the
carrier accepts nothing, frames are queued, and routes wait for C{writable}.
"""

from __future__ import annotations

from collections import deque
from itertools import groupby
from struct import pack, Struct
from typing import cast, Final

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from txrdma.error import DeviceUnavailable, InvalidRequest
from txrdma.iba.pcap import RoCECapture
from txrdma.iba.roce import crc32, IDENTIFICATION_CHANGES, LARGEST, RESIDUE
from txrdma.iba.types import DEFAULT_PKEY, MTU, QPN, ROCE_PORT
from txrdma.iba.verbs import AddressVector, QPKind
from txrdma.kit.delayedcalls import cancelCall, isPending
from txrdma.kit.forwardclock import sharedForwardClock
from txrdma.kit.logs import errorText
from txrdma.soft.core.netdev import softMAC, udpPort
from txrdma.soft.core.queuepair import SoftQueuePair
from txrdma.soft.core.route import Route
from txrdma.soft.core.routeport import RoutePort
from txrdma.soft.rc._packets import (
    ACKNOWLEDGE,
    BTH_LENGTH,
    FRAME,
    HEAD_AND_WORD,
    headsOf,
    ICRC_LENGTH,
    Incoming,
    Outgoing,
    PSN_MASK,
    slicesOf,
)
from txrdma.soft.rc.counters import RoCECounters
from txrdma.soft.rc.groups import AttachedRoutes
from txrdma.soft.rc.localpeers import LocalPeers
from txrdma.soft.rc.peers import PortRoute, RoutesPort, UDPPeer
from txrdma.soft.rc.routes import DatagramRoute, RoCERoute
from txrdma.soft.rc.udp import DatagramCarrier, RawAddress
from txrdma.soft.shared.datagramlane import DatagramLane
from txrdma.soft.shared.datagrams import SharedDatagrams

_log = Logger()

_HEAD: Final = Struct(">Q")
_ICRC: Final = Struct("<I")
_PADDING: Final = tuple(bytes(count) for count in range(4))
_MEMBER: Final = int(DEFAULT_PKEY) & 0x7FFF
_IDENTIFICATIONS: Final = len(IDENTIFICATION_CHANGES)
_PEERS: Final = 4096
_QUIET: Final = 64
"""Polls in which the socket was empty, after which only one in L{_RECHECK} reads it, if there are lanes."""

_RECHECK: Final = 16
_FRAME_LENGTH: Final = LARGEST + 7 & ~7

_Grid = tuple[list[memoryview], list[memoryview]]


class RoCEPort(RoutePort):
    """The RoCE v2 routes of one port of a device, which has one UDP port."""

    canRest = False  # peers need acknowledgements in time

    def __init__(
        self,
        clock: IReactorTime,
        carrier: DatagramCarrier,
        capture: RoCECapture | None = None,
        longestDatagram: int = MTU.MTU_4096.bytes,
        lanes: SharedDatagrams | None = None,
    ) -> None:
        """
        @param carrier: sends and receives UDP datagrams; closed with the port.
        @param capture: records every packet, until its file can't be written; its owner closes the file.
        @param longestDatagram: bytes of the payload of a datagram; connections have a separate MTU.
        @param lanes: shared memory for datagrams to devices of this host.
        """
        self.counters = RoCECounters()
        self.address, self.port = carrier.address, carrier.port
        self.siblings: dict[int, RoutesPort] = {1: self}
        self.isEnabled = True
        self.isLive = carrier.isLive
        self._clock = clock
        self._time = sharedForwardClock(clock)
        self.seconds = self._time.seconds
        self._carrier = carrier
        self._capture = capture
        self.longestDatagram = longestDatagram
        self._routes: dict[QPN, PortRoute] = {}
        self._peers: dict[RawAddress, UDPPeer] = {}
        self._latestAddress: AddressVector | None = None
        self._latestPeer: UDPPeer | None = None
        self._touched: dict[PortRoute, None] = {}
        self._inTurn = self._closed = False
        # Datagrams that wait for room in the carrier.
        self._unsent: deque[tuple[bytes, int, UDPPeer]] = deque()
        # The frame: datagrams that go out in one piece.
        self._buffer = bytearray(_FRAME_LENGTH)
        self._view = memoryview(self._buffer)
        self._words, self._doubles = self._view.cast("I"), self._view.cast("Q")
        self._grids: dict[int, _Grid] = {}  # by length: one for each path MTU
        self._fill = self._segment = self._inFrame = 0
        self._framePeer: UDPPeer | None = None
        # Deadlines, and routes that have more to send.
        self._deadlines: dict[PortRoute, float] = {}
        self._timer: IDelayedCall | None = None
        self._timerAt = 0.0
        self._more: dict[PortRoute, None] = {}
        self._moreCall: IDelayedCall | None = None
        self._localPeers: LocalPeers | None = None
        self._lanes = lanes
        self._quiet = 0  # polls since a socket received something
        self._groups: dict[str, tuple[RoCEPort, AttachedRoutes]] = {}
        carrier.start(self.received, self.batchEnded, self.writable)
        if lanes is not None:
            self._localPeers = LocalPeers(self, lanes, self._routes)
            lanes.start(self._localPeers.datagramsReceived, self.batchEnded)
        self._time.join(self._setBack)

    def __repr__(self) -> str:
        return f"<RoCEPort {self.address} port {self.port}>"

    # RoutePort

    def connect(self, owner: SoftQueuePair) -> Route | None:
        """
        Return the route for a queue pair that changes to RTR; None for a destination of the other IP family.
        """
        if self._closed:
            raise DeviceUnavailable(f"{self!r} is closed")
        if owner.kind is QPKind.UD:
            return DatagramRoute(self, owner)
        address = owner.attributes.address
        peer = None if address is None else self.peerAt(address)
        if address is None or peer is None:
            return None
        return RoCERoute(self, owner, peer.inClass(address.trafficClass))

    def setEnabled(self, isEnabled: bool) -> None:
        """Take the port down or up; datagrams queued for the socket are dropped."""
        self.isEnabled = isEnabled and not self._closed
        if not isEnabled:
            self._unsent.clear()
        for port, _members in self._groups.values():
            port.setEnabled(isEnabled)

    def close(self) -> None:
        """Close the socket, and cancel the port's delayed calls."""
        if self._closed:
            return
        self._closed, self.isEnabled = True, False
        self._time.leave(self._setBack)
        cancelCall(self._timer)
        cancelCall(self._moreCall)
        self._timer = self._moreCall = None
        self._routes.clear()
        self._deadlines.clear()
        self._more.clear()
        self._unsent.clear()
        for port, _members in self._groups.values():
            port.close()
        self._groups.clear()
        self._carrier.close()

    # For routes.

    def batch(self, mtu: int) -> int:
        """Return the largest number of packets that one system call sends, of a path MTU of C{mtu} bytes."""
        return min(self._carrier.segments, LARGEST // (mtu + FRAME))

    @property
    def mostInFlight(self) -> int:
        """
        Bytes that the socket of a peer holds, if its buffer is as large as the local one.

        The system counts more than the payload: 15 % more if datagrams are merged, twice as much otherwise.
        """
        return self._carrier.receiveBuffer * (3 if self._carrier.merges else 2) // 4

    def poll(self) -> None:
        """Receive pending packets now, without the reactor."""
        lanes = self._lanes
        if lanes is None or not lanes.isOpen:
            self._pollSockets()
            return
        # The socket first, as earlier datagrams may be there; rarely if it is empty.
        self._quiet += 1
        if self._quiet < _QUIET or not self._quiet % _RECHECK:
            reads = self.counters.reads
            self._pollSockets()
            if self.counters.reads != reads:
                self._quiet = 0
        lanes.poll()

    def _pollSockets(self) -> None:
        self._carrier.poll()

    def drive(self) -> bool:
        """Receive, send and run the timer after the reactor has ended."""
        self._carrier.poll()
        self.writable()
        if self._timer is not None and self._timerAt <= self.seconds():
            cancelCall(self._timer)  # which other code may have cancelled, as trial does
            self._expired()
        return bool(self._deadlines)

    def arm(self) -> None:
        """Have packets in shared memory wake the reactor; poll once after this."""
        if self._lanes is not None and self._lanes.isOpen:
            self._lanes.arm()

    def register(self, route: PortRoute) -> None:
        """Pass packets for the route's queue pair number to the route."""
        self._routes[route.number] = route

    def forget(self, route: PortRoute) -> None:
        """Remove a closed route, which receives no more packets."""
        if self._routes.get(route.number) is route:
            del self._routes[route.number]
        self._deadlines.pop(route, None)
        self._more.pop(route, None)
        self._touched.pop(route, None)
        for group in list(self._groups):
            self.detach(route, group)
        if not self._deadlines:
            cancelCall(self._timer)
            self._timer = None

    def release(self, route: PortRoute) -> None:
        """Stop sending for a route that now uses another port for sending, but still receives here."""
        self._deadlines.pop(route, None)
        self._more.pop(route, None)

    def attach(self, route: PortRoute, group: str) -> None:
        """
        Also pass the packets of an IP multicast group to a route.

        @raise InvalidRequest: the group is of the other IP family.
        """
        if self._carrier.rawAddress(group, ROCE_PORT) is None:
            raise InvalidRequest(f"{self.address} can't join {group}, which is of the other IP family")
        if group not in self._groups:
            port = RoCEPort(self._clock, self._carrier.joined(group), self._capture, self.longestDatagram)
            port.counters, port.isEnabled = self.counters, self.isEnabled
            self._groups[group] = port, AttachedRoutes(port)
        _port, members = self._groups[group]
        members.routes[route] = None

    def detach(self, route: PortRoute, group: str) -> None:
        """Stop passing the packets of an IP multicast group to a route."""
        port, members = self._groups.get(group, (None, None))
        if port is not None and members is not None:
            members.routes.pop(route, None)
            if not members.routes:
                port.close()
                del self._groups[group]

    def peerAt(self, address: AddressVector) -> UDPPeer | None:
        """Return the peer at the end of a path; None if the IP family differs."""
        if address is self._latestAddress:  # most datagrams have the same destination as the last
            return self._latestPeer
        ip = address.dgid.ip
        if ip is None:
            return None
        port = udpPort(address)
        raw = self._carrier.rawAddress(ip, port)
        if raw is None:
            return None
        peer = self._peer(raw)
        if address.dmac == softMAC(ip, port):
            peer.most = _IDENTIFICATIONS
        self._latestAddress, self._latestPeer = address, peer
        return peer

    def turn(self, route: PortRoute) -> None:
        """Serve the route; during a batch of received packets at its end, to acknowledge all at once."""
        if self._inTurn:
            self._touched[route] = None
        elif not self._closed:
            self.serve(route, self.seconds())

    def serve(self, route: PortRoute, now: float) -> None:
        """Transmit, deliver events, and schedule the deadline of the route, which fails if that raises."""
        try:
            self._serve(route, now)
        except Exception:
            self.fail(route)

    def fail(self, route: PortRoute) -> None:
        """Fail a route for which an exception was raised; other routes continue."""
        self.release(route)
        route.fail()

    def _serve(self, route: PortRoute, now: float) -> None:
        """Serve a route: see L{serve}. While the socket's buffer is full, it sends nothing."""
        if not self._unsent:
            if route.transmit(now):
                self._later(route)
            if self._fill:
                self._flush()
            if self._localPeers is not None:
                self._localPeers.announce()
        else:
            self._more[route] = None
        route.deliver()
        deadline = route.deadline()
        if deadline is None:
            self._deadlines.pop(route, None)
        elif not self._closed:
            self._deadlines[route] = deadline
            if self._timer is None or deadline < self._timerAt:
                self._schedule(deadline, now)

    def _later(self, route: PortRoute) -> None:
        self._more[route] = None
        if self._moreCall is None:
            self._moreCall = self._clock.callLater(0, self._continueLater)

    def _continueLater(self) -> None:
        """Serve routes that had more to send than fits into one iteration."""
        self._moreCall = None
        self._continue()

    def _continue(self) -> None:
        more, self._more = self._more, {}
        now = self.seconds()
        for route in more:
            self.serve(route, now)

    # Time.

    def _setBack(self) -> None:
        """Renew delayed calls, which the reactor makes later by as much as the clock was set back."""
        if isPending(self._timer) and self._deadlines:
            self._schedule(min(self._deadlines.values()), self.seconds())
        if self._moreCall is not None and self._moreCall.active():
            self._moreCall.reset(0)

    def _schedule(self, deadline: float, now: float) -> None:
        cancelCall(self._timer)
        self._timerAt = deadline
        self._timer = self._clock.callLater(max(0.0, deadline - now) + self._time.margin, self._due)

    def _due(self) -> None:
        """Let the reactor read sockets first, since a busy one runs late calls before it reads."""
        self._timer = self._clock.callLater(0, self._expired)

    def _expired(self) -> None:
        self._timer = None
        now = self.seconds()
        for route, deadline in list(self._deadlines.items()):
            if deadline <= now and route in self._deadlines:
                try:
                    route.expired(now)
                except Exception:
                    self.fail(route)
                else:
                    route.port.serve(route, now)
        if self._deadlines and self._timer is None:
            self._schedule(min(self._deadlines.values()), now)

    # Out.

    def emit(self, peer: UDPPeer, heading: int, run: Outgoing) -> None:
        """Add packets with this C{heading} of the BTH to the frame, which is sent when it is full."""
        if run.packets > 1:
            self._emitRun(peer, heading, run)
            return
        opcode, psn, _packets, extension, payload, _size, acknowledge, solicited = run
        length = len(payload)
        behind = BTH_LENGTH + len(extension)
        pad = -(behind + length) & 3
        total = behind + length + pad + ICRC_LENGTH
        if (
            peer is not self._framePeer
            or total > self._segment
            or self._inFrame >= self._carrier.segments
            or self._fill + total > LARGEST
        ):
            if self._fill:
                self._flush()
            self._framePeer, self._segment = peer, total
        start = self._fill
        buffer, view = self._buffer, self._view
        head = opcode << 56 | solicited << 55 | pad << 52 | heading
        word = psn & PSN_MASK | (ACKNOWLEDGE if acknowledge else 0)
        HEAD_AND_WORD.pack_into(buffer, start, head, word)
        if extension:
            view[start + BTH_LENGTH : start + behind] = extension
        if length:
            view[start + behind : start + behind + length] = payload
        end = start + total - ICRC_LENGTH
        if pad:
            view[end - pad : end] = _PADDING[pad]
        state = peer.sending[total] ^ peer.changes[self._inFrame]
        _ICRC.pack_into(buffer, end, crc32(view[start:end], state))
        self._fill = start + total
        self._inFrame += 1
        if total < self._segment:
            self._flush()  # a shorter one must be the last

    def emitDatagram(self, peer: UDPPeer, heading: int, run: Outgoing) -> None:
        """Send a datagram, through shared memory if possible, else with the frame."""
        localPeers = self._localPeers
        lane = None if localPeers is None else localPeers.laneTo(peer, heading & 0xFFFFFF)
        if localPeers is None or lane is None:
            self.emit(peer, heading, run)
        elif self.isEnabled:
            localPeers.write(lane, heading, run)

    def directLaneTo(self, address: AddressVector, number: int) -> DatagramLane | None:
        """Return the lane of shared memory to the device with a queue pair at that address, if it is up."""
        localPeers = self._localPeers
        if localPeers is None or not self.isEnabled:
            return None
        peer = self.peerAt(address)
        return None if peer is None else localPeers.laneTo(peer, number)

    def wrote(self, packets: int, size: int) -> None:
        """Count packets sent through a lane, of C{size} bytes in total."""
        counters = self.counters
        counters.packetsSent += packets
        counters.bytesSent += size
        counters.writes += 1

    def emitNow(self, peer: UDPPeer, heading: int, run: Outgoing) -> None:
        """Send packets immediately, when a route ends."""
        self.emit(peer, heading, run)
        if self._fill:
            self._flush()

    def _emitRun(self, peer: UDPPeer, heading: int, run: Outgoing) -> None:
        """The hot loop of sending, about 0.5 us a packet: full packets without extension headers."""
        opcode, psn, packets, _extension, payload, size, acknowledge, _solicited = run
        total = size + FRAME
        targets, sealed = self._grids.get(total) or self._grid(total)
        states = peer.sendingStates(total)
        words = [word & PSN_MASK for word in range(psn, psn + packets)]
        if acknowledge:
            words[-1] |= ACKNOWLEDGE
        head = _HEAD.pack(opcode << 56 | heading)
        most = min(self._carrier.segments, len(targets))
        stride = total // 4
        done = 0
        while done < packets:
            if peer is not self._framePeer or total != self._segment or self._inFrame >= most:
                if self._fill:
                    self._flush()
                self._framePeer, self._segment = peer, total
            index = self._inFrame
            count = min(packets - done, most - index)
            after = index + count
            for target, part in zip(targets[index:after], slicesOf(size, size, packets)[done:], strict=False):
                target[:] = payload[part]
            # Strided slices set a field of all packets at once.
            begin, end = index * stride, after * stride
            self._doubles[begin // 2 : end // 2 : stride // 2] = memoryview(head * count).cast("Q")
            psns = pack(f">{count}I", *words[done : done + count])
            self._words[begin + 2 : end : stride] = memoryview(psns).cast("I")
            checks = pack(f"<{count}I", *map(crc32, sealed[index:after], states[index:after]))
            self._words[begin + stride - 1 : end : stride] = memoryview(checks).cast("I")
            done += count
            self._fill = after * total
            self._inFrame = after

    def _grid(self, total: int) -> _Grid:
        """For each packet of this length in the frame: views of its payload, and of all before the ICRC."""
        view = self._view
        starts = range(0, LARGEST // total * total, total)
        ends = [start + total - ICRC_LENGTH for start in starts]
        targets = [view[start + BTH_LENGTH : end] for start, end in zip(starts, ends, strict=True)]
        sealed = [view[start:end] for start, end in zip(starts, ends, strict=True)]
        self._grids[total] = grid = targets, sealed
        return grid

    def _flush(self) -> None:
        """Send the current frame, or queue it while the socket's buffer is full."""
        peer = self._framePeer
        assert peer is not None
        data, segment, count = self._view[: self._fill], self._segment, self._inFrame
        # First, since an exception must not leave the packets of one route to another one.
        self._fill = self._inFrame = self._segment = 0
        self._framePeer = None
        if self.isEnabled:
            counters = self.counters
            counters.packetsSent += count
            counters.bytesSent += len(data)
            counters.writes += 1
            if self._capture is not None:
                self._record(self._capture, data, segment, peer, True)
            if self._unsent or not self._carrier.send(data, segment, peer.raw, peer.trafficClass):
                self._unsent.append((bytes(data), segment, peer))

    def writable(self) -> None:
        """Send queued datagrams: the carrier accepts datagrams again."""
        unsent = self._unsent
        while unsent:
            data, segment, peer = unsent[0]
            if not self._carrier.send(memoryview(data), segment, peer.raw, peer.trafficClass):
                return
            unsent.popleft()
        self._continue()

    # In.

    def received(self, data: memoryview, segment: int, source: RawAddress, codepoint: int = 0) -> None:
        """Check received datagrams, and dispatch them to their routes."""
        if not self.isEnabled:
            return
        try:
            peer = self._peers.get(source) or self._peer(source)
            peer.hasSent(codepoint)
            if self._capture is not None:
                self._record(self._capture, data, segment, peer, False)
            now = self.seconds()
            self._inTurn = True
            self.counters.reads += 1
            size = len(data)
            if size <= segment and self._carrier.merges and size >= FRAME and not size & 3:
                if crc32(data, peer.taking[size]) == RESIDUE:  # fast path: a single datagram, without a loop
                    (head,) = _HEAD.unpack_from(data)
                    self._dispatch(head, data, size, 1, peer, now)
                    return
            if segment >= size or not self._several(peer, data, segment, now):
                self._single(peer, data, segment, peer.guess if segment >= size else 0, now)
        except Exception:
            _log.failure("Unexpected error: packets of RoCE to {port!r} are lost", port=self)

    def localPeerAt(self, source: tuple[str, int]) -> UDPPeer | None:
        """Return the peer on this host that sent packets through shared memory; None if they are dropped."""
        if not self.isEnabled:
            return None
        peer = self._peers.get(source) or self.peerNamed(*source)
        if peer is not None:
            peer.hasSent(0)
            self._inTurn = True
            self.counters.reads += 1
        return peer

    def peerNamed(self, ip: str, port: int) -> UDPPeer | None:
        """Return the peer with this IP address and UDP port; None if the IP family differs."""
        known = self._peers.get((ip, port))  # IPv4's names are those of sockets
        raw = self._carrier.rawAddress(ip, port) if known is None else None
        return known if raw is None else self._peer(raw)

    def packetReceived(self, packet: memoryview, peer: UDPPeer, now: float) -> None:
        """Process one packet from shared memory, of any kind."""
        size = len(packet)
        if size < FRAME or size & 3:
            self.counters.malformed += 1
            return
        (head,) = _HEAD.unpack_from(packet)
        self._dispatch(head, packet, size, 1, peer, now)

    def _several(self, peer: UDPPeer, data: memoryview, segment: int, now: float) -> bool:
        """
        Dispatch datagrams that were sent together; False if they are not numbered from 0, or an ICRC is
        wrong.

        The hot loop of receiving.
        """
        count = len(data) // segment
        if segment < FRAME or segment & 3 or count >= _IDENTIFICATIONS:
            return False
        whole = count * segment
        sums = peer.takingSums(segment, count)
        if crc32(data[:whole], sums[0]) != sums[count]:
            return False
        first = 0
        for head, alike in groupby(headsOf(segment, count).unpack_from(data)):
            last = first + len(tuple(alike))
            self._dispatch(head, data[first * segment : last * segment], segment, last - first, peer, now)
            first = last
        if whole < len(data):
            self._single(peer, data[whole:], segment, count, now)
        return True

    def _single(self, peer: UDPPeer, data: memoryview, segment: int, index: int, now: float) -> None:
        """Check different datagrams one by one; C{index} is the expected identification of the first."""
        states, changes = peer.taking, peer.changes
        unpack = _HEAD.unpack_from
        counters = self.counters
        head = begin = stride = count = 0
        for offset in range(0, len(data), segment):
            datagram = data[offset : offset + segment]
            length = len(datagram)
            if length < FRAME or length & 3:
                counters.malformed += 1
                right = False
            elif crc32(datagram, states[length] ^ changes[index]) == RESIDUE:
                right = True
            else:
                # Another identification than expected, which the CRC reveals, or a damaged datagram.
                identification = peer.inbound.identification(datagram)
                right = identification is not None and identification < peer.most
                counters.wrongICRC += not right
                index = identification or 0
            # The datagrams of one send are numbered consecutively.
            index = index + 1 if index < _IDENTIFICATIONS - 1 else 0
            if right:
                # C{count} datagrams from C{begin} on are alike; a different one ends their run.
                (this,) = unpack(datagram)
                if this == head and length == stride and count:
                    count += 1
                    continue
            if count:
                self._dispatch(head, data[begin : begin + count * stride], stride, count, peer, now)
            if right:
                head, begin, stride, count = this, offset, length, 1
            else:
                count = 0
        if count:
            self._dispatch(head, data[begin : begin + count * stride], stride, count, peer, now)
        if not self._carrier.merges:
            # Each datagram of a send arrives by a call of its own: expect the next number there.
            peer.guess = index

    def _dispatch(
        self, head: int, data: memoryview, stride: int, count: int, peer: UDPPeer, now: float
    ) -> None:
        """Pass a run of packets with equal first eight bytes of the BTH to its route."""
        counters = self.counters
        flags = head >> 48
        pad = flags >> 4 & 3
        if flags & 0xF or head >> 32 & 0x7FFF != _MEMBER or stride < FRAME + pad:
            counters.malformed += count
            return
        route = self._routes.get(QPN(head & 0xFFFFFF))
        run = Incoming(head >> 56, flags & 0x80 != 0, pad, data, stride, count, flags & 0x40 != 0)
        try:
            isAccepted = route is not None and route.received(run, peer, now)
        except Exception:
            self.fail(cast(PortRoute, route))
            return
        if route is None or not isAccepted:
            counters.strays += count
            return
        counters.packetsReceived += count
        counters.bytesReceived += len(data)
        self._touched[route] = None

    def batchEnded(self) -> None:
        """Serve the routes that received packets, at the end of a batch."""
        self._inTurn = False
        if self._touched:
            touched, self._touched = self._touched, {}
            now = self.seconds()
            for route in touched:
                if route.number in self._routes:
                    route.port.serve(route, now)

    # Peers.

    def _peer(self, raw: RawAddress) -> UDPPeer:
        peer = self._peers.get(raw)
        if peer is None:
            if len(self._peers) >= _PEERS:
                self._peers.clear()  # routes hold their own references
                self._latestAddress = None
            peer = self._peers[raw] = UDPPeer(raw, self)
        return peer

    def grhFor(self, peer: UDPPeer, length: int) -> bytes:
        """Return the 40 bytes before a datagram of this length: a GRH, or an IPv4 header in the last 20."""
        return peer.grh if peer.grhLength == length else peer.makeGRH(length)

    def _record(
        self, capture: RoCECapture, data: memoryview, segment: int, peer: UDPPeer, isOutgoing: bool
    ) -> None:
        """Write datagrams to the capture file; an error ends the capture."""
        here = self.address, self.port, softMAC(self.address, self.port)
        there = peer.ip, peer.port, softMAC(peer.ip, peer.port)
        now = self._clock.seconds()
        try:
            for offset in range(0, len(data), segment):
                packet = bytes(data[offset : offset + segment][:-ICRC_LENGTH])
                if len(packet) >= BTH_LENGTH:
                    capture.packet(*((here, there) if isOutgoing else (there, here)), packet, now)
        except OSError as error:  # such as a full file system
            self._capture = None
            _log.warn(
                "packets of RoCE at {address} port {port} are no longer recorded: {error}",
                address=self.address,
                port=self.port,
                error=errorText(error),
            )
