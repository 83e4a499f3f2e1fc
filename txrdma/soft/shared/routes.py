"""
The way to queue pairs of other processes on the same host: by memory that both have mapped.

Two processes of one user find each other at an abstract UNIX socket (L{rendezvousName}); over the connection
they pass boxes, doorbells and memory regions to each other (L{txrdma.soft.shared._rendezvous}). Its end is
the end of the peer: the kernel tells at once, however that process died.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from typing import cast, Final

from twisted.logger import Logger

from txrdma.error import DeviceUnavailable, ProtectionError, WireError
from txrdma.iba.types import GID, QPN
from txrdma.iba.verbs import AsyncEventKind, QPKind
from txrdma.kit.logs import Seldom
from txrdma.soft.core.netdev import udpPort
from txrdma.soft.core.queuepair import SoftQueuePair
from txrdma.soft.core.route import Route
from txrdma.soft.shared._doorbells import Doorbell, PeerDoorbells
from txrdma.soft.shared._layout import REMOTE_READ, REMOTE_WRITE, RING_BYTES
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
    MessageKind,
    PairNotice,
    Reach,
    RegionReply,
    RegionRequest,
    shareable,
    VERSION,
)
from txrdma.soft.shared.datagrams import DatagramLink, SharedDatagrams
from txrdma.soft.shared.peerprocess import PeerProcess
from txrdma.soft.shared.sharedqueuepair import SharedQueuePair, SharingReactor
from txrdma.soft.shared.unixpackets import Line, NO_DESCRIPTORS, Rendezvous, UnixRendezvous
from txrdma.unix.sockets import Reactor

_log = Logger()
_seldom = Seldom(_log)

_MOST_WAITING: Final = 256
_REMOTE: Final = REMOTE_WRITE | REMOTE_READ


class _Peer(PeerProcess):
    """
    Another process, with all that connects us to it.

    @ivar attachments: by our queue pairs' numbers.
    @ivar datagramLink: for datagrams, since the first of them.
    """

    def __init__(self, port: SharedMemoryPort, name: tuple[str, int]) -> None:
        super().__init__(name)
        self.attachments: dict[QPN, SharedQueuePair] = {}
        self.datagramLink: DatagramLink | None = None
        self._port = port
        self._invitations: dict[tuple[QPN, QPN], tuple[mmap.mmap, list[Doorbell]]] = {}
        self._theirBells = PeerDoorbells()

    def add(self, attachment: SharedQueuePair) -> None:
        """A queue pair of ours is ready to receive."""
        self.attachments[attachment.number] = attachment
        attachment.invite()
        invitation = self._invitations.pop((attachment.destination, attachment.number), None)
        if invitation is not None:
            attachment.join(*invitation)
            attachment.watch()  # the peer may have written before: look, once we are part of our queues

    def remove(self, number: QPN) -> None:
        """Forget the attachment of a queue pair of ours that has ended."""
        self.attachments.pop(number, None)

    def lost(self, reason: str) -> None:
        """Drop the other process for this reason: close its connections, and end its attachments."""
        self.isLost = True
        lines, self.lines = self.lines, []
        for line in lines:
            line.close()
            self._port.unlink(line)
        self._port.forget(self)
        for invitation in self._invitations.values():
            _discard(*invitation)
        self._invitations.clear()
        self._theirBells.close()
        if self.datagramLink is not None:
            self._port.datagrams.over(self.datagramLink)
        attachments = list(self.attachments.values())
        if attachments:
            _log.debug(
                "memory is shared no more with a process of this host, by {count} queue pairs: {reason}",
                count=len(attachments),
                reason=reason,
            )
        for attachment in attachments:
            try:
                attachment.peerGone(AsyncEventKind.QP_FATAL)
            except Exception:
                attachment.fail()

    # What it says. Descriptors that are kept are taken out of the list.

    def isJoined(self, told: Join, descriptors: list[int]) -> None:
        if len(descriptors) != 1:
            raise ValueError(f"an invitation comes with one descriptor, not {len(descriptors)}")
        key = (told.source, told.destination)
        if key in self._invitations or len(self._invitations) >= _MOST_WAITING:
            raise ValueError("too many invitations")
        attachment = self.attachments.get(told.destination)
        if attachment is not None and (attachment.destination != told.source or attachment.isJoined):
            self.refuse(told)
            return
        doorbells = self._theirBells.held(told.receives, told.sends)
        if doorbells is None:  # there was no descriptor for one
            self.refuse(told)
            return
        try:
            box = mapBox(descriptors[0])
        except (OSError, ValueError) as error:
            for doorbell in doorbells:
                doorbell.release()
            if not isinstance(error, OSError) or error.errno not in NO_DESCRIPTORS:
                raise
            self.refuse(told)
            return
        if attachment is None:
            self._invitations[key] = (box, doorbells)  # its queue pair is not ready yet
        else:
            attachment.join(box, doorbells)
            attachment.lane.poll()  # the peer may have written, and rung for it, before we could see its box

    def openDatagramLink(self) -> DatagramLink | None:
        """
        The lane for datagrams to and from the peer, which is made now or was before.

        There is none to a process of another user, as nothing but its doorbell could wake it.
        """
        if self.datagramLink is None and self.isTrusted:
            self.datagramLink = self._port.datagrams.open(self)
        return self.datagramLink

    def datagramRingReceived(self, told: DatagramRingOffer, descriptors: list[int]) -> None:
        """Take the peer's box for datagrams, or hear that it could not take ours: then UDP does."""
        if not told.number:
            self._closeDatagramLink()
            return
        if len(descriptors) != 1 or (self.datagramLink is not None and self.datagramLink.lane.isUp):
            raise ValueError("one box for datagrams, and one descriptor with it")
        doorbells = self._theirBells.held(told.number)
        if doorbells is not None and (datagramLink := self.openDatagramLink()) is not None:
            try:
                self._port.datagrams.isJoined(datagramLink, descriptors[0], doorbells.pop())
                return
            except OSError as error:
                if error.errno not in NO_DESCRIPTORS:
                    raise
        for doorbell in doorbells or ():
            doorbell.release()
        self.refuseDatagramRing()

    def refuseDatagramRing(self) -> None:
        """Tell the peer that we can't take its box, for want of a descriptor: datagrams go by UDP."""
        self._closeDatagramLink()
        self.send(DatagramRingOffer(kind=MessageKind.DATAGRAM_RING).encode())

    def _closeDatagramLink(self) -> None:
        datagramLink, self.datagramLink = self.datagramLink, None
        if datagramLink is not None:
            self._port.datagrams.remove(datagramLink)

    def rang(self, told: DoorbellNotice, descriptors: list[int]) -> None:
        """Take what the peer says of a doorbell, of its own or of ours."""
        if told.kind is MessageKind.DOORBELL:
            self._theirBells.came(told.number, descriptors, self.isTrusted)
        elif told.kind is MessageKind.DOORBELL_CLOSED:
            self._theirBells.gone(told.number)
        else:
            self.doorbells.lost(told.number)

    def refuse(self, told: Join) -> None:
        """Refuse an invitation of the peer's queue pair, which does not meet one of ours."""
        refusal = PairNotice(kind=MessageKind.LEAVE, source=told.destination, destination=told.source)
        self.send(refusal.encode())

    def left(self, told: PairNotice) -> None:
        invitation = self._invitations.pop((told.source, told.destination), None)
        if invitation is not None:
            _discard(*invitation)
        attachment = self.attachment(told.source, told.destination)
        if attachment is not None:
            attachment.peerGone(None)

    def attachment(self, source: QPN, destination: QPN) -> SharedQueuePair | None:
        """Our attachment between these two queue pairs, None if there is none."""
        attachment = self.attachments.get(destination)
        return attachment if attachment is not None and attachment.destination == source else None

    def wanted(self, told: RegionRequest, answer: Callable[[bytes, tuple[int, ...]], None]) -> None:
        attachment = self.attachment(told.source, told.destination)
        if attachment is None:
            return  # it has just left, and the peer will hear it
        owner = attachment.owner
        region = owner.keys.find(owner.domain, told.rkey)
        access = _allowed(owner)
        rights = 0 if region is None else region.rights & access & _REMOTE
        reply = RegionReply(
            kind=MessageKind.REGION_REPLY,
            source=told.destination,
            destination=told.source,
            rkey=told.rkey,
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
                reply = reply.replace(reach=Reach.MAPPED, validOffset=region.validOffset)
                answer(reply.encode(), (descriptor,))
                os.close(descriptor)
                return
        answer(reply.replace(reach=Reach.BY_MESSAGES).encode(), ())

    def accessed(
        self, told: AccessRequest, content: memoryview, answer: Callable[[bytes, tuple[int, ...]], None]
    ) -> None:
        attachment = self.attachment(told.source, told.destination)
        if attachment is None:
            return
        owner = attachment.owner
        need = REMOTE_WRITE if told.writing else REMOTE_READ
        reply = AccessReply(kind=MessageKind.ACCESS_REPLY, source=told.destination, destination=told.source)
        try:
            if not _allowed(owner) & need:
                raise ProtectionError("the queue pair does not allow it")
            memory = owner.keys.remote(owner.domain, told.rkey, told.address, told.length, need)
        except ProtectionError:
            answer(reply.encode(), ())
            return
        if told.writing:
            memory[:] = content
            answer(reply.replace(allowed=True).encode(), ())
        else:
            answer(reply.replace(allowed=True, length=told.length).encode() + memory, ())


class _Link:
    """
    One connection to a peer.

    @ivar peer: None until it has said who it is.
    """

    def __init__(self, port: SharedMemoryPort, line: Line, peer: _Peer | None) -> None:
        self._port = port
        self.peer = peer
        self._greeted = False
        self.line = line
        line.start(self)
        hello = Hello(
            kind=MessageKind.HELLO,
            magic=MAGIC,
            version=VERSION,
            port=port.port,
            address=GID.fromIP(port.address),
        )
        self.line.send(hello.encode())

    def heard(self, message: bytes, descriptors: list[int]) -> None:
        """Act on a message: whatever is wrong with it costs this peer its connection, and nobody else."""
        try:
            self._dispatch(message, descriptors)
        except (WireError, ValueError, OSError) as error:
            _seldom.warn(
                (self._port.address, self._port.port),
                "process {pid}, with which memory was to be shared, is not to be understood: {error}",
                pid=self.line.process.pid,
                error=error,
            )
            self.line.close(str(error))

    def descriptorsLost(self, message: bytes) -> None:
        """Answer a message whose descriptors were lost: request them again, or refuse the connection."""
        try:
            told, _ = decode(message)
        except WireError as error:
            self.line.close(str(error))
            return
        peer = self.peer
        if peer is None or not self._greeted:
            self.line.close("it does not say who it is")
        elif isinstance(told, Join):
            peer.refuse(told)
        elif isinstance(told, DatagramRingOffer):
            peer.refuseDatagramRing()
        elif isinstance(told, DoorbellNotice):
            peer.send(told.replace(kind=MessageKind.DOORBELL_LOST).encode())
        elif isinstance(told, RegionReply):
            attachment = peer.attachment(told.source, told.destination)
            if attachment is not None:
                attachment.descriptorsLost(told.rkey)

    def _dispatch(self, message: bytes, descriptors: list[int]) -> None:
        told, content = decode(message)
        if isinstance(told, Hello):
            self._hello(told)
            return
        peer = self.peer
        if peer is None or not self._greeted:
            raise ValueError("it does not say who it is")
        if isinstance(told, Join):
            peer.isJoined(told, descriptors)
        elif isinstance(told, DoorbellNotice):
            peer.rang(told, descriptors)
        elif isinstance(told, DatagramRingOffer):
            peer.datagramRingReceived(told, descriptors)
        elif isinstance(told, RegionRequest):
            peer.wanted(told, self.line.send)
        elif isinstance(told, AccessRequest):
            peer.accessed(told, content, self.line.send)
        elif isinstance(told, PairNotice) and told.kind is MessageKind.LEAVE:
            peer.left(told)
        elif isinstance(told, (PairNotice, RegionReply, AccessReply)):
            attachment = peer.attachment(told.source, told.destination)
            if attachment is None:
                return
            if isinstance(told, RegionReply):
                attachment.regionReceived(told, descriptors)
            elif isinstance(told, AccessReply):
                attachment.moved(told, content)
            else:
                attachment.nudged()

    def _hello(self, told: Hello) -> None:
        name = (told.address.ip or "", told.port)
        if told.magic != MAGIC or told.version != VERSION or self._greeted:
            raise ValueError(f"this is version {VERSION}, not {told.version}")
        if self.peer is None:
            self.peer = self._peerNamed(name)
            self.peer.lines.append(self.line)
        elif self.peer.name != name:
            raise ValueError(f"asked for {self.peer.name}, and {name} answers")
        self._greeted = True

    def _peerNamed(self, name: tuple[str, int]) -> _Peer:
        """
        The peer of this name, which is only a claim.

        @raise ValueError: another process has the name, by the kernel's word on who is at its connections.
        """
        for line in list(self._port.peer(name).lines):
            if line.process != self.line.process:
                line.receiveNow()  # it may have ended
        peer = self._port.peer(name)
        if any(line.process != self.line.process for line in peer.lines):
            raise ValueError(f"it says that it is {name}, which is another process")
        return peer

    def ended(self, reason: str) -> None:
        """The connection is closed: so is all that belonged to it."""
        self._port.unlink(self.line)
        if self.peer is not None:
            self.peer.lost(reason)


class SharedMemoryPort:
    """
    The local end of routes through shared memory: a L{RoutePort <txrdma.soft.core.routeport.RoutePort>}.

    @ivar address: our device's IP address, and C{port} its UDP port: by these we are found.
    @ivar datagrams: the lanes for datagrams, which are somebody else's to send.
    """

    def __init__(
        self,
        reactor: SharingReactor,
        address: str,
        port: int,
        ring: int = RING_BYTES,
        rendezvous: Rendezvous | None = None,
    ) -> None:
        """
        @param rendezvous: how other processes are met; by UNIX sockets without it.
        @raise DeviceUnavailable: our name is taken.
        """
        self.reactor = reactor
        self.address = address
        self.port = port
        self.rendezvous = rendezvous or UnixRendezvous(cast(Reactor, reactor))
        self._ring = ring
        self._isResting = False
        self._peers: dict[tuple[str, int], _Peer] = {}
        self._links: dict[Line, _Link] = {}
        self.datagrams = SharedDatagrams(reactor, self.rendezvous, self._datagramLinkTo, self._lost)
        try:
            self._listener = self.rendezvous.listen(address, port, self._accepted)
        except OSError as error:
            raise DeviceUnavailable(
                f"no rendezvous for shared memory at {address} port {port}: {error}"
            ) from error

    def connect(self, owner: SoftQueuePair) -> Route | None:
        """The route to a queue pair of a process on this host, when such a process is there."""
        attributes = owner.attributes
        if owner.kind is not QPKind.RC or attributes.address is None or attributes.destinationQPN is None:
            return None
        address = attributes.address.dgid.ip
        if address is None:
            return None
        peer = self._reach((address, udpPort(attributes.address)))
        if peer is None:
            return None
        attachment = SharedQueuePair(
            self.reactor, self.rendezvous, peer, owner, attributes.destinationQPN, self._ring, peer.remove
        )
        try:
            peer.add(attachment)
        except BaseException:
            attachment.lane.close()
            raise
        return attachment.lane

    def _datagramLinkTo(self, name: tuple[str, int]) -> DatagramLink | None:
        """The lane for datagrams to that device, when its process is one of this host."""
        peer = self._reach(name)
        return None if peer is None else peer.openDatagramLink()

    def _lost(self, name: tuple[str, int], reason: str) -> None:
        """Close all connections to the process of that device."""
        peer = self._peers.get(name)
        if peer is not None:
            peer.lost(reason)

    def drive(self) -> bool:
        """Do nothing: what peers say of connections that there are is found by queues."""
        return False

    def setEnabled(self, isEnabled: bool) -> None:
        """Do nothing: shared memory does not depend on a network port."""

    @property
    def resting(self) -> SharedMemoryPort:
        """The port itself rests: what peers write stays in shared memory, what they say in sockets."""
        return self

    def rest(self) -> None:
        """Leave the reactor: peers wait with what needs an answer."""
        self._isResting = True
        self.datagrams.rest()
        self._listener.setReading(False)
        for line in self._links:
            line.setReading(False)
            line.setWriting(False)
        for attachment in self._joints():
            attachment.rest()

    def wake(self) -> None:
        """Be part of the reactor, again or still."""
        self._isResting = False
        self.datagrams.wake()
        self._listener.setReading(True)
        for line in self._links:
            line.setReading(True)
            line.setWriting(True)
        for attachment in self._joints():
            attachment.wake()

    def _joints(self) -> list[SharedQueuePair]:
        """The attachments of all our queue pairs to those of other processes."""
        return [attachment for peer in self._peers.values() for attachment in peer.attachments.values()]

    def _reach(self, name: tuple[str, int]) -> _Peer | None:
        peer = self._peers.get(name)
        if peer is not None and peer.lines:
            return peer
        line = self.rendezvous.connect(*name)
        if line is None:
            return None
        peer = self.peer(name)
        self._link(line, peer)
        if line.isClosed:
            return None
        peer.lines.append(line)
        return peer

    def _link(self, line: Line, peer: _Peer | None) -> None:
        link = _Link(self, line, peer)
        if not line.isClosed:  # the peer may have died before our first message
            self._links[line] = link

    def peer(self, name: tuple[str, int]) -> _Peer:
        """The one with that name, which may be new to us."""
        if name not in self._peers:
            self._peers[name] = _Peer(self, name)
        return self._peers[name]

    def _accepted(self, line: Line) -> None:
        self._link(line, None)

    def unlink(self, line: Line) -> None:
        """Forget a connection to a peer, because it is closed."""
        self._links.pop(line, None)

    def forget(self, peer: _Peer) -> None:
        """Forget another process, because it is gone."""
        if self._peers.get(peer.name) is peer:
            del self._peers[peer.name]

    def close(self) -> None:
        """Close the rendezvous, and all connections. Twice is fine."""
        self._listener.close()
        self.datagrams.close()
        for peer in list(self._peers.values()):
            peer.lost("we close")
        for line in list(self._links):
            line.close()
        self._links.clear()


def _allowed(owner: SoftQueuePair) -> int:
    """The remote access rights that the peer has to this queue pair's memory."""
    attributes = owner.attributes
    access = int(attributes.access or 0)
    return access if attributes.maxDestRDAtomic else access & ~REMOTE_READ


def _discard(box: mmap.mmap, doorbells: list[Doorbell]) -> None:
    box.close()
    for doorbell in doorbells:
        doorbell.release()
