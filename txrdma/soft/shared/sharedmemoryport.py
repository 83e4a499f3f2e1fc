"""
The route to queue pairs of other processes on the same host, through memory that both have mapped.

Two processes of one user find each other at an abstract UNIX socket (L{rendezvousName}); over the connection
they exchange boxes, doorbells and memory regions (L{txrdma.soft.shared._rendezvous}). The kernel closes the
connection when the peer's process ends for any reason.

Theory of operation. A queue pair that changes to RTR gets a route without memory. When one end posts its
first request, it makes a box and sends JOIN with the box and the numbers of its doorbells. The other end maps
the box, makes its own and answers with a JOIN. A JOIN for a queue pair that is not in RTR yet is retained, up
to a limit. LEAVE ends one queue pair, or refuses a JOIN; the end of the connection ends all queue pairs with
that process. Data needs no messages, except to access regions that cannot be mapped.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from ipaddress import ip_address
from typing import cast, Final

from twisted.logger import Logger, LogLevel

from txrdma.error import DeviceUnavailable, ProtectionError, RDMAError, ResourceExhausted, WireError
from txrdma.iba.types import GID, QPN, ROCE_PORT
from txrdma.iba.verbs import AsyncEventKind, QPKind
from txrdma.kit.logs import errorText, lacksMappings, RateLimitedLogger
from txrdma.soft.core.doorbellpage import DOORBELL_BYTES
from txrdma.soft.core.netdev import portOfQueuePair, udpPort
from txrdma.soft.core.queuepair import SoftQueuePair
from txrdma.soft.core.route import Route
from txrdma.soft.core.routeport import RoutePort
from txrdma.soft.shared._doorbells import Doorbell, PeerDoorbells
from txrdma.soft.shared._layout import REMOTE_READ, REMOTE_WRITE
from txrdma.soft.shared._rendezvous import (
    AccessReply,
    AccessRequest,
    DatagramRingOffer,
    decode,
    DoorbellNotice,
    Hello,
    Join,
    MAGIC,
    mapBox,
    PairNotice,
    Reach,
    RegionReply,
    RegionRequest,
    RendezvousKind,
    shareable,
    VERSION,
)
from txrdma.soft.shared._unopened import UnopenedLane
from txrdma.soft.shared.datagrams import DatagramLink, SharedDatagrams
from txrdma.soft.shared.peerdevice import PeerDevice
from txrdma.soft.shared.sharedqueuepair import SharedQueuePair, SharingReactor
from txrdma.soft.shared.unixpackets import Line, LocalRendezvous, UnixRendezvous
from txrdma.unix.sockets import Reactor

_log = Logger()
_rateLimited = RateLimitedLogger(_log)

_MOST_WAITING: Final = 256

MOST_UNANSWERED: Final = 32
"""
Maximum number of JOINs to one peer that await its JOIN: a process that is slow to read its socket could
otherwise use all descriptors of the other one.
"""

RING_BYTES: Final = 256 * 1024
_REMOTE: Final = REMOTE_WRITE | REMOTE_READ


class _ConnectedDevice(PeerDevice):
    """
    Another device, and the local queue pairs that are connected to it.

    @ivar queuePairs: queue pairs with a lane, by their local numbers.
    @ivar datagramLink: the lane for datagrams; None before the first one.
    @ivar _unopened: queue pairs that have no lane yet.
    @ivar _postponed: those of them that have sent, and wait until the peer has answered others.
    @ivar _unanswered: queue pairs whose JOIN the peer has not answered.
    @ivar _invitations: box, doorbells and doorbell byte of each JOIN for a queue pair that is not in RTR yet,
        by the peer's and the local number.
    """

    def __init__(self, port: SharedMemoryPort, name: tuple[str, int]) -> None:
        super().__init__(name)
        self.queuePairs: dict[QPN, SharedQueuePair] = {}
        self.datagramLink: DatagramLink | None = None
        self._port = port
        self._unopened: dict[QPN, UnopenedLane] = {}
        self._postponed: dict[QPN, UnopenedLane] = {}
        self._unanswered: set[QPN] = set()
        self._invitations: dict[tuple[QPN, QPN], tuple[mmap.mmap, list[Doorbell], int]] = {}
        self._peerDoorbells = PeerDoorbells()

    def connect(self, owner: SoftQueuePair, destination: QPN) -> Route:
        """
        Connect a local queue pair that is ready to receive; it gets a lane when either end sends.

        @raise DeviceUnavailable: no message can be sent to the device, for example because its process has
            ended.
        """
        for queue in (owner.sendQueue, owner.receiveQueue):
            self.doorbellNumber(queue.channel)  # raises if the channel is closed
        if self.isLost:  # nothing would fail the route any more
            raise DeviceUnavailable(f"{self.name[0]} port {self.name[1]} was lost while a message was sent")
        unopened = UnopenedLane(owner, destination, self._mayOpen, self._open, self._closed)
        if (destination, owner.number) in self._invitations:  # the peer has sent already
            return self._open(unopened).lane
        self._unopened[owner.number] = unopened
        return unopened

    def _mayOpen(self, unopened: UnopenedLane) -> bool:
        """Return whether a queue pair may open its lane now; if not, L{_answered} opens it."""
        if len(self._unanswered) < MOST_UNANSWERED:
            return True
        self._postponed[unopened.owner.number] = unopened
        return False

    def _answered(self, number: QPN) -> None:
        """Open postponed lanes if the peer has answered a JOIN, or its local queue pair is closed."""
        if number not in self._unanswered:
            return
        self._unanswered.remove(number)
        while self._postponed and len(self._unanswered) < MOST_UNANSWERED and not self.isLost:
            first, unopened = next(iter(self._postponed.items()))
            try:
                unopened.open()
            except RDMAError:
                if self._unanswered:  # their answers may release descriptors
                    return
                self._postponed.pop(first, None)
                unopened.owner.failed(AsyncEventKind.QP_FATAL)
            except Exception:  # the caller may be closing another queue pair
                self._postponed.pop(first, None)
                unopened.owner.raised()

    def _open(self, unopened: UnopenedLane) -> SharedQueuePair:
        """Give a queue pair its lane, and send JOIN."""
        port, owner = self._port, unopened.owner
        connection = SharedQueuePair(
            port.reactor, port.rendezvous, self, owner, unopened.destination, port.ring, self._remove
        )
        try:
            self._add(connection)
        except BaseException:
            connection.lane.close()
            raise
        if unopened.hasPeerLeft:  # there will be no answer
            self._unanswered.discard(owner.number)
        self._unopened.pop(owner.number, None)
        self._postponed.pop(owner.number, None)
        return connection

    def _closed(self, unopened: UnopenedLane) -> None:
        """Send LEAVE for a queue pair that is closed without ever having had a lane."""
        number = unopened.owner.number
        self._postponed.pop(number, None)
        if self._unopened.pop(number, None) is not None:
            self._sendLeave(number, unopened.destination)

    def _add(self, connection: SharedQueuePair) -> None:
        self.queuePairs[connection.number] = connection
        connection.invite()
        invitation = self._invitations.pop((connection.destination, connection.number), None)
        if invitation is not None:
            connection.join(*invitation)
            connection.watch()  # the peer may have written already: poll after the queues are attached
        else:
            self._unanswered.add(connection.number)

    def _remove(self, number: QPN) -> None:
        self.queuePairs.pop(number, None)
        self._answered(number)

    def lost(self, reason: str) -> None:
        """Close all connections to the device, and fail its queue pairs."""
        self.isLost = True
        lines, self.lines = self.lines, []
        for line in lines:
            line.close()
            self._port.unlink(line)
        self._port.forget(self)
        endings: list[Callable[[], object]] = [
            partial(_discard, *invitation) for invitation in self._invitations.values()
        ]
        self._invitations.clear()
        endings.append(self._peerDoorbells.close)
        if self.datagramLink is not None:
            endings.append(partial(self._port.datagrams.peerEnded, self.datagramLink))
        for end in endings:
            with _log.failuresHandled("Unexpected error while shared memory of a process was released"):
                end()
        queuePairs, unopened = list(self.queuePairs.values()), list(self._unopened.values())
        if queuePairs or unopened:
            _log.debug(
                "shared memory of {count} queue pairs with another process has ended: {reason}",
                count=len(queuePairs) + len(unopened),
                reason=reason,
            )
        for each in unopened:
            with _log.failuresHandled("Unexpected error while an unused queue pair was failed"):
                each.peerEnded(AsyncEventKind.QP_FATAL)
        for connection in queuePairs:
            try:
                connection.peerEnded(AsyncEventKind.QP_FATAL)
            except Exception:
                connection.owner.raised()

    # Messages of the peer. A handler removes descriptors that it keeps from the list.

    def joinReceived(self, parsed: Join, descriptors: list[int]) -> None:
        """Connect a queue pair to the peer's, whose box and doorbells the message names; or refuse it."""
        if len(descriptors) != 1:
            raise ValueError(f"a JOIN needs one descriptor, not {len(descriptors)}")
        key = (parsed.source, parsed.destination)
        if key in self._invitations:
            raise ValueError(f"a second JOIN of queue pair {parsed.source:#x} for {parsed.destination:#x}")
        connection = self.queuePairs.get(parsed.destination)
        unopened = self._unopened.get(parsed.destination)
        expected = connection or unopened
        # A refusal ends one queue pair of the peer; an exception would close the connection for all.
        isForAnother = expected is not None and expected.destination != parsed.source
        isTooMany = expected is None and len(self._invitations) >= _MOST_WAITING
        if isForAnother or isTooMany or (connection is not None and connection.isJoined):
            self.refuse(parsed)
            return
        if parsed.doorbellByte >= DOORBELL_BYTES:
            raise ValueError("there is no such doorbell byte")
        doorbells = self._peerDoorbells.acquire(parsed.receives, parsed.sends)
        if doorbells is None:  # the descriptor of one was lost
            self.refuse(parsed)
            return
        with ExitStack() as undo:
            for doorbell in doorbells:
                undo.callback(doorbell.release)
            try:
                box = mapBox(descriptors[0])
            except (OSError, ValueError) as error:
                if not lacksMappings(error):
                    raise
                _rateLimited.warn(
                    "refused",
                    "a queue pair of {address} port {port} fails: its memory can't be mapped: {error}",
                    address=self.name[0],
                    port=self.name[1],
                    error=errorText(error),
                )
                self.refuse(parsed)
                return
            undo.callback(box.close)
            if unopened is not None:
                try:
                    connection = unopened.open()
                except RDMAError:  # no memory or descriptor is left
                    self.refuse(parsed)
                    return
                if parsed.destination not in self.queuePairs:  # it has failed meanwhile
                    return
            undo.pop_all()
        if connection is None:
            self._invitations[key] = (box, doorbells, parsed.doorbellByte)  # until it is in RTR
        else:
            connection.join(box, doorbells, parsed.doorbellByte)
            connection.poll()  # the peer may have written and rung before its box was mapped
            self._answered(parsed.destination)

    def openDatagramLink(self) -> DatagramLink | None:
        """Return the lane for datagrams, made on first use; None for a device of another user."""
        if self.datagramLink is None and self.isTrusted:
            self.datagramLink = self._port.datagrams.open(self)
        return self.datagramLink

    def datagramRingReceived(self, parsed: DatagramRingOffer, descriptors: list[int]) -> None:
        """Attach the peer's box for datagrams; number 0 refuses the local box, so that UDP is used."""
        if not parsed.number:
            self._closeDatagramLink()
            return
        if len(descriptors) != 1:
            raise ValueError(f"a box for datagrams needs one descriptor, not {len(descriptors)}")
        if self.datagramLink is not None and self.datagramLink.lane.isUp:
            # The peer has taken the refusal of an earlier box for that of the one that is attached.
            self.refuseDatagramRing()
            return
        doorbells = self._peerDoorbells.acquire(parsed.number)
        if doorbells is not None and (datagramLink := self.openDatagramLink()) is not None:
            try:
                self._port.datagrams.join(datagramLink, descriptors[0], doorbells.pop())
                return
            except OSError as error:
                if not lacksMappings(error):
                    raise
        for doorbell in doorbells or ():
            doorbell.release()
        self.refuseDatagramRing()

    def refuseDatagramRing(self) -> None:
        """Refuse the peer's box, for example for lack of descriptors, so that datagrams use UDP."""
        self._closeDatagramLink()
        self.send(DatagramRingOffer(kind=RendezvousKind.DATAGRAM_RING).encode())

    def _closeDatagramLink(self) -> None:
        datagramLink, self.datagramLink = self.datagramLink, None
        if datagramLink is not None:
            self._port.datagrams.remove(datagramLink)

    def doorbellReceived(self, parsed: DoorbellNotice, descriptors: list[int]) -> None:
        """Handle a message about a doorbell of the peer, or a local one."""
        if parsed.kind is RendezvousKind.DOORBELL:
            try:
                self._peerDoorbells.add(parsed.number, descriptors, self.isTrusted)
            except OSError as error:
                if not lacksMappings(error):
                    raise
                self.send(parsed.replace(kind=RendezvousKind.DOORBELL_LOST).encode())
        elif parsed.kind is RendezvousKind.DOORBELL_CLOSED:
            self._peerDoorbells.remove(parsed.number)
        else:
            self.doorbells.forget(parsed.number)

    def refuse(self, parsed: Join) -> None:
        self._sendLeave(parsed.destination, parsed.source)

    def _sendLeave(self, source: QPN, destination: QPN) -> None:
        notice = PairNotice(kind=RendezvousKind.LEAVE, source=source, destination=destination)
        self.send(notice.encode())

    def leaveReceived(self, parsed: PairNotice) -> None:
        """End the connection to a queue pair that the peer has closed."""
        self._dropInvitation(parsed.source, parsed.destination)
        connection = self.connection(parsed.source, parsed.destination)
        unopened = self._unopened.get(parsed.destination)
        if connection is not None:
            connection.peerEnded(None)
            self._answered(parsed.destination)
        elif unopened is not None and unopened.destination == parsed.source:
            unopened.peerEnded(None)

    def fail(self, source: QPN, destination: QPN) -> None:
        """End the connection between two queue pairs, since a message about it could not be processed."""
        self._dropInvitation(source, destination)
        connected = self.queuePairs.get(destination) or self._unopened.get(destination)
        if connected is not None and connected.destination == source:
            connected.owner.failed(AsyncEventKind.QP_FATAL)  # sends LEAVE
        else:
            self._sendLeave(destination, source)

    def _dropInvitation(self, source: QPN, destination: QPN) -> None:
        invitation = self._invitations.pop((source, destination), None)
        if invitation is not None:
            _discard(*invitation)

    def connection(self, source: QPN, destination: QPN) -> SharedQueuePair | None:
        connection = self.queuePairs.get(destination)
        return connection if connection is not None and connection.destination == source else None

    def regionRequested(
        self, parsed: RegionRequest, answer: Callable[[bytes, tuple[int, ...]], None]
    ) -> None:
        connection = self.connection(parsed.source, parsed.destination)
        if connection is None:
            return  # closed already; the peer will receive LEAVE
        owner = connection.owner
        region = owner.keys.find(owner.domain, parsed.rkey)
        access = _allowed(owner)
        rights = 0 if region is None else region.rights & access & _REMOTE
        reply = RegionReply(
            kind=RendezvousKind.REGION_REPLY,
            source=parsed.destination,
            destination=parsed.source,
            rkey=parsed.rkey,
            access=access,
        )
        if region is None or not rights:
            answer(reply.encode(), ())
            return
        reply = reply.replace(rights=rights, address=region.address, length=region.length)
        if region.descriptor is not None:
            try:
                descriptor = shareable(region.descriptor, rights)
            except OSError:
                pass
            else:
                mapped = reply.replace(reach=Reach.MAPPED, validOffset=region.validOffset)
                try:
                    answer(mapped.encode(), (descriptor,))
                    return
                except ResourceExhausted:
                    pass
                finally:
                    os.close(descriptor)
        answer(reply.replace(reach=Reach.BY_MESSAGES).encode(), ())

    def accessRequested(
        self, parsed: AccessRequest, content: memoryview, answer: Callable[[bytes, tuple[int, ...]], None]
    ) -> None:
        connection = self.connection(parsed.source, parsed.destination)
        if connection is None:
            return
        owner = connection.owner
        need = REMOTE_WRITE if parsed.writing else REMOTE_READ
        reply = AccessReply(
            kind=RendezvousKind.ACCESS_REPLY, source=parsed.destination, destination=parsed.source
        )
        try:
            if not _allowed(owner) & need:
                raise ProtectionError("the queue pair does not allow it")
            memory = owner.keys.remote(owner.domain, parsed.rkey, parsed.address, parsed.length, need)
        except ProtectionError:
            answer(reply.encode(), ())
            return
        if parsed.writing:
            memory[:] = content
            answer(reply.replace(allowed=True).encode(), ())
        else:
            answer(reply.replace(allowed=True, length=parsed.length).encode() + memory, ())


class _Link:
    """One connection to a peer, which is None until its L{Hello} has arrived."""

    def __init__(self, port: SharedMemoryPort, line: Line, peer: _ConnectedDevice | None) -> None:
        self._port = port
        self.peer = peer
        self._greeted = False
        self.line = line
        line.start(self)
        hello = Hello(
            kind=RendezvousKind.HELLO,
            magic=MAGIC,
            version=VERSION,
            port=port.port,
            address=GID.fromIP(port.address),
        )
        self.line.send(hello.encode())

    def messageReceived(self, message: bytes, descriptors: list[int]) -> None:
        """Process a message; an invalid one closes the connection to this peer only."""
        try:
            self._process(message, descriptors)
        except (WireError, ValueError, OSError) as error:
            _rateLimited.warn(
                (self._port.address, self._port.port),
                "shared memory: invalid message of process {pid}: {error}",
                pid=self.line.process.pid,
                error=errorText(error),
            )
            self.line.close(str(error))
        except Exception:  # the caller may be the connection to another process
            _log.failure(
                "Unexpected error while a message of process {pid} was processed", pid=self.line.process.pid
            )
            try:
                self._refuse(message)
            except Exception:
                self.line.close("its message could not be processed")

    def _refuse(self, message: bytes) -> None:
        """Refuse a message that could not be processed, and fail the queue pair that it is for."""
        parsed, _ = decode(message)
        ofQueuePair = (Join, PairNotice, RegionRequest, RegionReply, AccessRequest, AccessReply)
        if self.peer is not None and isinstance(parsed, ofQueuePair):
            self.peer.fail(parsed.source, parsed.destination)
        else:
            self.descriptorsLost(message)

    def descriptorsLost(self, message: bytes) -> None:
        """Answer a message whose descriptors are lost: request them again, or refuse the connection."""
        try:
            parsed, _ = decode(message)
        except WireError as error:
            self.line.close(str(error))
            return
        peer = self.peer
        if peer is None or not self._greeted or isinstance(parsed, Hello):
            self.line.close("no HELLO was sent")
        elif isinstance(parsed, Join):
            peer.refuse(parsed)
        elif isinstance(parsed, DatagramRingOffer):
            peer.refuseDatagramRing()
        elif isinstance(parsed, DoorbellNotice):
            peer.send(parsed.replace(kind=RendezvousKind.DOORBELL_LOST).encode())
        elif isinstance(parsed, RegionReply):
            connection = peer.connection(parsed.source, parsed.destination)
            if connection is not None:
                connection.descriptorsLost(parsed.rkey)

    def _process(self, message: bytes, descriptors: list[int]) -> None:
        """Process a message by its type; raises ValueError, L{WireError} or OSError if it is invalid."""
        parsed, content = decode(message)
        if isinstance(parsed, Hello):
            self._helloReceived(parsed)
            return
        peer = self.peer
        if peer is None or not self._greeted:
            raise ValueError("no HELLO was sent")
        if isinstance(parsed, Join):
            peer.joinReceived(parsed, descriptors)
        elif isinstance(parsed, DoorbellNotice):
            peer.doorbellReceived(parsed, descriptors)
        elif isinstance(parsed, DatagramRingOffer):
            peer.datagramRingReceived(parsed, descriptors)
        elif isinstance(parsed, RegionRequest):
            peer.regionRequested(parsed, self.line.send)
        elif isinstance(parsed, AccessRequest):
            peer.accessRequested(parsed, content, self.line.send)
        elif isinstance(parsed, PairNotice) and parsed.kind is RendezvousKind.LEAVE:
            peer.leaveReceived(parsed)
        elif isinstance(parsed, (PairNotice, RegionReply, AccessReply)):
            connection = peer.connection(parsed.source, parsed.destination)
            if connection is None:
                # It is closed: its LEAVE is on the way to the peer.
                return
            if isinstance(parsed, RegionReply):
                connection.regionReceived(parsed, descriptors)
            elif isinstance(parsed, AccessReply):
                connection.accessReplied(parsed, content)
            else:
                connection.nudged()

    def _helloReceived(self, parsed: Hello) -> None:
        name = (parsed.address.ip or "", parsed.port)
        if parsed.magic != MAGIC or parsed.version != VERSION or self._greeted:
            raise ValueError(f"the peer has version {parsed.version}, not {VERSION}")
        if self.peer is None:
            self.peer = self._peerNamed(name)
            self.peer.lines.append(self.line)
        elif self.peer.name != name:
            raise ValueError(f"the peer is {name}, not {self.peer.name}")
        self._greeted = True

    def _peerNamed(self, name: tuple[str, int]) -> _ConnectedDevice:
        """Return the peer that claims this name; raises ValueError if another process has it."""
        for line in list(self._port.peer(name).lines):
            if line.process != self.line.process or line.hasPeerEnded:
                line.receiveNow()  # that process may have ended
        peer = self._port.peer(name)
        if any(line.process != self.line.process for line in peer.lines):
            raise ValueError(f"{name} is the name of another process")
        return peer

    def ended(self, reason: str) -> None:
        self._port.unlink(self.line)
        if self.peer is not None:
            self.peer.lost(reason)


class SharedMemoryPort(RoutePort):
    """The local end of routes through shared memory, found by the device's IP address and UDP port."""

    canRest = True  # data waits in shared memory, and messages in sockets

    def __init__(
        self,
        reactor: SharingReactor,
        address: str,
        port: int,
        ring: int = RING_BYTES,
        rendezvous: LocalRendezvous | None = None,
    ) -> None:
        """
        @param ring: bytes of the ring of each lane.
        @param rendezvous: connects to other processes; by default, through abstract UNIX sockets.
        @raise DeviceUnavailable: the name is in use.
        """
        self.reactor = reactor
        self.address = address
        self.port = port
        self.rendezvous = rendezvous or UnixRendezvous(cast(Reactor, reactor))
        self.ring = ring
        self._peers: dict[tuple[str, int], _ConnectedDevice] = {}
        self._links: dict[Line, _Link] = {}
        self.datagrams = SharedDatagrams(reactor, self.rendezvous, self._datagramLinkTo, self._lost)
        try:
            self._listener = self.rendezvous.listen(address, port, self._accepted)
        except OSError as error:
            raise DeviceUnavailable(
                f"no rendezvous for shared memory at {address} port {port}: {error}"
            ) from error

    def connect(self, owner: SoftQueuePair) -> Route | None:
        """Return the route to a queue pair of a process on this host; None without such a process."""
        attributes = owner.attributes
        if owner.kind is not QPKind.RC or attributes.address is None or attributes.destinationQPN is None:
            return None
        address = attributes.address.dgid.ip
        if address is None:
            return None
        number = udpPort(attributes.address)
        names = [(address, number)]
        if number == ROCE_PORT and (sharing := portOfQueuePair(attributes.destinationQPN)) is not None:
            names.append((address, sharing))
        found = (find(name) for find in (self._known, self._connect) for name in names)
        peer = next(filter(None, found), None)
        if peer is None:
            if address == self.address or ip_address(address).is_loopback:
                _rateLimited.emit(
                    LogLevel.debug,  # usually its process has ended
                    (address, number),
                    "no shared memory with {address} port {port} of this host: its process has ended, "
                    "belongs to another user, or has another version of shared memory than {version}",
                    address=address,
                    port=number,
                    version=VERSION,
                )
            return None
        return peer.connect(owner, attributes.destinationQPN)

    def _datagramLinkTo(self, name: tuple[str, int]) -> DatagramLink | None:
        """Return the lane for datagrams to that device; None without a process on this host."""
        peer = self._connect(name)
        return None if peer is None else peer.openDatagramLink()

    def _lost(self, name: tuple[str, int], reason: str) -> None:
        peer = self._peers.get(name)
        if peer is not None:
            peer.lost(reason)

    def rest(self) -> None:
        """Leave the reactor; requests of peers wait."""
        self.datagrams.rest()
        self._listener.setReading(False)
        for line in self._links:
            line.setReading(False)
            line.setWriting(False)
        for connection in self._queuePairs():
            connection.rest()

    def wake(self) -> None:
        """Return to the reactor. Idempotent."""
        self.datagrams.wake()
        self._listener.setReading(True)
        for line in self._links:
            line.setReading(True)
            line.setWriting(True)
        for connection in self._queuePairs():
            connection.wake()

    def _queuePairs(self) -> list[SharedQueuePair]:
        return [connection for peer in self._peers.values() for connection in peer.queuePairs.values()]

    def _known(self, name: tuple[str, int]) -> _ConnectedDevice | None:
        """Return the device of this name, if there is a connection to it, and its process has not ended."""
        peer = self._peers.get(name)
        if peer is None:
            return None
        for line in tuple(peer.lines):
            if line.hasPeerEnded:  # another process may have the name already
                line.receiveNow()
        return peer if peer.lines else None

    def _connect(self, name: tuple[str, int]) -> _ConnectedDevice | None:
        """
        Return the device of this name; None if there is none.

        @raise RDMAError: there is one, but it cannot be reached now. To use UDP instead would not help, as
            its process waits for the queue pair in shared memory.
        """
        known = self._known(name)
        if known is not None:
            return known
        line = self.rendezvous.connect(*name)
        if line is None:
            return None
        peer = self.peer(name)
        self._link(line, peer)
        if line.isClosed:
            raise DeviceUnavailable(f"{name[0]} port {name[1]} was lost while the first message was sent")
        peer.lines.append(line)
        return peer

    def _link(self, line: Line, peer: _ConnectedDevice | None) -> None:
        link = _Link(self, line, peer)
        if not line.isClosed:  # the peer may have died before the first message
            self._links[line] = link

    def peer(self, name: tuple[str, int]) -> _ConnectedDevice:
        if name not in self._peers:
            self._peers[name] = _ConnectedDevice(self, name)
        return self._peers[name]

    def _accepted(self, line: Line) -> None:
        self._link(line, None)

    def unlink(self, line: Line) -> None:
        self._links.pop(line, None)

    def forget(self, peer: _ConnectedDevice) -> None:
        if self._peers.get(peer.name) is peer:
            del self._peers[peer.name]

    def close(self) -> None:
        self._listener.close()
        self.datagrams.close()
        for peer in list(self._peers.values()):
            peer.lost("the device is closed")
        for line in list(self._links):
            line.close()
        self._links.clear()


def _allowed(owner: SoftQueuePair) -> int:
    """Return the remote access rights that the peer has to this queue pair's memory."""
    attributes = owner.attributes
    access = int(attributes.access or 0)
    return access if attributes.maxDestRDAtomic else access & ~REMOTE_READ


def _discard(box: mmap.mmap, doorbells: list[Doorbell], doorbellByte: int) -> None:
    box.close()
    for doorbell in doorbells:
        doorbell.release()
