"""
The routes on a RoCE port: RC connections, and datagrams.

Each drives the cores of one queue pair; L{txrdma.soft.rc.roce} has the shared socket and timer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from twisted.logger import Logger

from txrdma.iba.headers import Opcode
from txrdma.iba.types import MTU, QPN
from txrdma.iba.verbs import (
    Access,
    AddressVector,
    AsyncEventKind,
    Buffer,
    Completion,
    CompletionOpcode,
    MigrationState,
    QPState,
    SendRequest,
)
from txrdma.soft.core.directdatagrams import DirectDatagrams
from txrdma.soft.core.queuepair import SoftQueuePair
from txrdma.soft.core.route import Route
from txrdma.soft.rc._datagram import Datagrams
from txrdma.soft.rc._migration import Migration
from txrdma.soft.rc._packets import Event, heading, Incoming, Received, Retired
from txrdma.soft.rc._requester import Requester
from txrdma.soft.rc._responder import Responder
from txrdma.soft.rc.peers import PortRoute, RoutesPort, UDPPeer
from txrdma.soft.shared.datagramlane import DatagramLane

_log = Logger()

_FIRST_ANSWER: Final = int(Opcode.RC_RDMA_READ_RESPONSE_FIRST)
_LAST_ANSWER: Final = int(Opcode.RC_ATOMIC_ACKNOWLEDGE)
_LAST_OF_RC: Final = 0x1F


def _report(owner: SoftQueuePair, events: Sequence[Event]) -> None:
    """Report events to the queue pair; if that raises for one, the others are reported all the same."""
    try:
        for event in events:
            if isinstance(event, Completion):
                owner.sendCompleted(event)
            elif isinstance(event, Retired):
                owner.retired(event.requests)
            elif isinstance(event, Received):
                owner.receiveCompleted(event.completion, event.solicited)
            else:
                owner.failed(event.kind)
    except Exception:
        _report(owner, events[[each is event for each in events].index(True) + 1 :])
        raise


def _required(value: int | None) -> int:
    """Return an attribute that is set in this state."""
    assert value is not None
    return value


class RoCERoute(Route, PortRoute):
    """The connection of an RC queue pair over UDP; its C{requester} exists from RTS on."""

    name = "rocev2"
    polled = False

    def __init__(self, port: RoutesPort, owner: SoftQueuePair, peer: UDPPeer) -> None:
        attributes = owner.attributes
        self.number = owner.number
        self.port = port
        self._owner = owner
        self._address = attributes.address
        self._peer = peer
        # Packets are also accepted by the alternate path, and by the path before the last migration.
        self._alternate: UDPPeer | None = None
        self._former: UDPPeer | None = None
        self._migration = Migration()
        self._isArming = False  # the migration state is not MIGRATED
        self._refusalReported = False
        self._ports = [port]
        self._destination = QPN(_required(attributes.destinationQPN))
        self._heading = heading(self._destination)
        self._mtu = MTU(_required(attributes.pathMTU)).bytes
        self.responder = Responder(
            owner.number,
            owner.keys,
            owner.domain,
            owner.receives,
            mtu=self._mtu,
            psn=_required(attributes.rqPSN),
            access=int(attributes.access or Access.NONE),
            maxDestRDAtomic=_required(attributes.maxDestRDAtomic),
            minRNRTimer=_required(attributes.minRNRTimer),
            batch=port.batch(self._mtu),
        )
        self.requester: Requester | None = None
        self._establishedReported = False
        self._stopped = False
        port.register(self)

    def __repr__(self) -> str:
        return f"<RoCERoute {self.number:#08x} to {self._peer.ip} port {self._peer.port}>"

    # Route

    @property
    def rewinds(self) -> int:
        return 0 if self.requester is None else self.requester.rewinds

    def post(self, requests: Sequence[SendRequest]) -> None:
        assert self.requester is not None
        self.requester.post(requests, self.port.seconds())
        self.port.turn(self)

    def flush(self) -> list[tuple[int, CompletionOpcode]]:
        left = self._stop()
        with _log.failuresHandled("Unexpected error while {route!r} was flushed", route=self):
            self.deliver()
        return left

    def attributesChanged(self) -> None:
        attributes = self._owner.attributes
        self.responder.retune(
            int(attributes.access or Access.NONE),
            _required(attributes.maxDestRDAtomic),
            _required(attributes.minRNRTimer),
        )
        if self.requester is not None:
            self.requester.retune(*self._retryAttributes())
        elif attributes.state is QPState.RTS:
            timeout, retryCount, rnrRetry, maxRDAtomic = self._retryAttributes()
            self.requester = Requester(
                self.number,
                self._owner.keys,
                self._owner.domain,
                mtu=self._mtu,
                psn=_required(attributes.sqPSN),
                timeout=timeout,
                retryCount=retryCount,
                rnrRetry=rnrRetry,
                maxRDAtomic=maxRDAtomic,
                batch=self.port.batch(self._mtu),
                mostInFlight=self.port.mostInFlight,
            )
        if attributes.address is not self._address and attributes.address is not None:
            self._readdress(attributes.address)
        if attributes.migrationState is MigrationState.REARM is not self._migration.state:
            self._rearm()
        elif self._isArming and attributes.migrationState is MigrationState.MIGRATED:
            self._alternate = None
            self._setMigration(MigrationState.MIGRATED)

    def migrate(self) -> None:
        if self._migrate(self.port.seconds()):
            self.responder.remind()
            self.port.turn(self)

    def close(self) -> None:
        try:
            self._stop()
        finally:
            for port in self._ports:
                port.forget(self)

    def _stop(self) -> list[tuple[int, CompletionOpcode]]:
        self._stopped = True
        self._acknowledge()
        self.responder.flush()
        return [] if self.requester is None else self.requester.flush()

    def _acknowledge(self) -> None:
        """Send the pending acknowledgement, unless READs are unanswered, which it would acknowledge, too."""
        with _log.failuresHandled("Unexpected error: {route!r} has not sent an acknowledgement", route=self):
            if not self.responder.pending:
                for run in self.responder.outgoing(self.port.seconds()):
                    self.port.emitNow(self._peer, self._heading, run)

    def _retryAttributes(self) -> tuple[int, int, int, int]:
        attributes = self._owner.attributes
        return (
            _required(attributes.timeout),
            _required(attributes.retryCount),
            _required(attributes.rnrRetry),
            _required(attributes.maxRDAtomic),
        )

    # Paths (IBA 17.2.8).

    def _peerAt(self, address: AddressVector) -> UDPPeer | None:
        """
        Return the peer at an address, and receive its packets by the port of the device that leads there.

        @return: None if that port's address is of another IP family.
        """
        port = self.port.siblings.get(address.port, self.port)
        peer = port.peerAt(address)
        if peer is None:
            return None
        if port not in self._ports:
            self._ports.append(port)
        port.register(self)
        return peer.inClass(address.trafficClass)

    def _sendTo(self, peer: UDPPeer) -> None:
        """Send to this peer from now on, by its port; packets of the former one are still accepted."""
        self._former, self._peer = self._peer, peer
        if peer.at is not self.port:
            self.port.release(self)
            self.port = peer.at

    def _readdress(self, address: AddressVector) -> None:
        """Send to the new address that C{modify} has set."""
        self._address = address
        peer = self._peerAt(address)
        if peer is not None:
            self._sendTo(peer)

    def _setMigration(self, state: MigrationState) -> None:
        """Change the migration state, which packets carry as the MigReq bit."""
        self._migration.state = state
        self._isArming = state is not MigrationState.MIGRATED
        self._heading = heading(self._destination, self._migration.request)
        if self.requester is not None:
            self.requester.arm(state is MigrationState.ARMED)

    def _rearm(self) -> None:
        """Arm the alternate path; an acknowledgement informs the peer."""
        address = self._owner.attributes.alternateAddress
        self._alternate = None if address is None else self._peerAt(address)
        self._refusalReported = False
        if self._alternate is None:
            self._migrationFailed()
            return
        self._setMigration(MigrationState.REARM)
        self.responder.remind()
        self.port.turn(self)

    def _migrate(self, now: float) -> bool:
        """Migrate to the alternate path; False if it is unusable."""
        alternate = self._alternate
        if alternate is None or not alternate.at.isEnabled:
            self._migrationFailed()
            return False
        self._alternate = None
        self._sendTo(alternate)
        self._setMigration(MigrationState.MIGRATED)
        self._owner.migrationChanged(MigrationState.MIGRATED)
        self._address = self._owner.attributes.address
        if self.requester is not None:
            self.requester.retune(*self._retryAttributes())
            self.requester.moved(now)
        return True

    def _migrationFailed(self) -> None:
        """Raise PATH_MIGRATION_FAILED, once per loaded alternate path."""
        if not self._refusalReported:
            self._refusalReported = True
            self._owner.raiseEvent(AsyncEventKind.PATH_MIGRATION_FAILED)

    def _admits(self, peer: UDPPeer, migrationRequest: bool) -> bool:
        """Return whether packets come from the peer, possibly from another UDP port or by another path."""
        if _isSame(peer, self._peer) or _isSame(peer, self._alternate) or _isSame(peer, self._former):
            return True
        if self._isArming and migrationRequest and not self._stopped:
            self._migrationFailed()  # it migrates to an unknown path
        return False

    def _trackMigration(self, peer: UDPPeer, migrationRequest: bool, now: float) -> None:
        """Update the migration state by the MigReq bit of a received packet."""
        state = self._migration.packetReceived(
            migrationRequest, _isSame(peer, self._peer), _isSame(peer, self._alternate)
        )
        if state is MigrationState.ARMED:
            self._setMigration(state)
            self._owner.migrationChanged(state)
            self.responder.remind()
        elif state is MigrationState.MIGRATED:
            self._migrate(now)

    # PortRoute

    def received(self, run: Incoming, peer: UDPPeer, now: float) -> bool:
        if peer is not self._peer and not self._admits(peer, run.migrationRequest):
            return False
        opcode = run.opcode
        if opcode > _LAST_OF_RC:
            return False
        if self._stopped:
            return True
        if self._isArming:
            self._trackMigration(peer, run.migrationRequest, now)
        requester = self.requester
        if _FIRST_ANSWER <= opcode <= _LAST_ANSWER:
            if requester is not None:
                requester.received(run, now)
                if requester.pathFailed:
                    self._pathFailed(requester, now)
            return True
        self.responder.received(run, now)
        if requester is None and not self._establishedReported and self.responder.isEstablished:
            self._establishedReported = True
            self._owner.raiseEvent(AsyncEventKind.COMMUNICATION_ESTABLISHED)
        return True

    def transmit(self, now: float) -> bool:
        emit, peer, head = self.port.emit, self._peer, self._heading
        if self.requester is not None:
            for run in self.requester.outgoing(now):
                emit(peer, head, run)
        for run in self.responder.outgoing(now):
            emit(peer, head, run)
        return self.responder.pending

    def deliver(self) -> None:
        _report(self._owner, self.responder.events())
        if self.requester is not None:
            _report(self._owner, self.requester.events())

    def deadline(self) -> float | None:
        return None if self.requester is None else self.requester.deadline()

    def expired(self, now: float) -> None:
        requester = self.requester
        if requester is not None:
            requester.expired(now)
            if requester.pathFailed:
                self._pathFailed(requester, now)

    def fail(self) -> None:
        self._owner.raised()

    def _pathFailed(self, requester: Requester, now: float) -> None:
        """Use the alternate path after the retries on this one; stay on this one if that is impossible."""
        if not self._migrate(now):
            requester.abandoned(now)


def _isSame(peer: UDPPeer, known: UDPPeer | None) -> bool:
    """Return whether two peers are one path: peers send from any UDP port, to port 4791 or the device's."""
    return peer is known or (
        known is not None and peer.ip == known.ip and peer.at.address == known.at.address
    )


class DatagramRoute(Route, PortRoute):
    """
    The route of a UD queue pair, to and from any address, without acknowledgements and deadlines.

    @ivar polled: whether polling finds datagrams in the socket, without the reactor.
    @ivar inbox: queue of datagrams that need no receives; None if receives are used.
    @ivar bufferBytes: bytes of packets for which the socket has space.
    """

    name = "rocev2"

    def __init__(self, port: RoutesPort, owner: SoftQueuePair) -> None:
        attributes = owner.attributes
        self.number = owner.number
        self.port = port
        self.polled, self.bufferBytes = port.isLive, port.mostInFlight
        self.inbox: DirectDatagrams | None = None
        self._lane: DatagramLane | None = None
        self._laneTo: tuple[AddressVector, QPN] | None = None
        self._owner = owner
        self.datagrams = Datagrams(
            owner.number,
            owner.keys,
            owner.domain,
            owner.receives,
            mtu=port.longestDatagram,
            psn=attributes.sqPSN or 0,
            qkey=attributes.qkey or 0,
        )
        port.register(self)

    def __repr__(self) -> str:
        return f"<DatagramRoute {self.number:#08x}>"

    # Route

    def post(self, requests: Sequence[SendRequest]) -> None:
        port = self.port
        done, size = self.datagrams.write(requests, port.directLaneTo)
        if done:
            port.wrote(done, size)
            self.deliver()
        if done < len(requests):
            self.datagrams.post(requests[done:] if done else requests, port.seconds())
        if done:  # the caller does this if C{post} raises
            self._owner.retired(done)
        if done < len(requests):
            port.turn(self)

    def poll(self) -> None:
        self.port.poll()

    def arm(self, sends: bool, receives: bool, solicitedOnly: bool) -> None:
        if receives:
            self.port.arm()

    def flush(self) -> list[tuple[int, CompletionOpcode]]:
        left = self.datagrams.flush()
        with _log.failuresHandled("Unexpected error while {route!r} was flushed", route=self):
            self.deliver()
        return left

    def attributesChanged(self) -> None:
        attributes = self._owner.attributes
        self.datagrams.retune(attributes.qkey or 0, attributes.sqPSN)

    def close(self) -> None:
        try:
            self.datagrams.flush()
        finally:
            self.port.forget(self)

    def put(self, address: AddressVector, qpn: QPN, qkey: int, head: Buffer, body: Buffer) -> bool:
        port, lane = self.port, self._lane
        if lane is None or not lane.isUp or (address, qpn) != self._laneTo or not port.isEnabled:
            lane = self._lane = port.directLaneTo(address, qpn)
            self._laneTo = address, qpn  # most datagrams have the same destination as the last
        size = 0 if lane is None else self.datagrams.put(lane, qpn, qkey, head, body)
        if size:
            port.wrote(1, size)
        return size > 0

    def attachMulticast(self, group: str) -> None:
        self.port.attach(self, group)

    def detachMulticast(self, group: str) -> None:
        self.port.detach(self, group)

    # PortRoute

    def received(self, run: Incoming, peer: UDPPeer, now: float) -> bool:
        if run.opcode <= _LAST_OF_RC:
            return False
        if self.inbox is None or not self.datagrams.receivedInto(
            self.inbox, run, peer.source, peer.codepoint
        ):
            self.datagrams.received(run, self.port.grhFor(peer, run.stride), now)
        return True

    def take(self, payload: memoryview, qkey: int, source: int, header: bytes, solicited: bool) -> None:
        """Process one datagram received through shared memory."""
        completion = self.datagrams.take(payload, qkey, source, header)
        if completion is not None:
            self._owner.receiveCompleted(completion, solicited)
            if completion.status:
                self._owner.failed()

    def transmit(self, now: float) -> bool:
        """Emit pending datagrams; those without a reachable address are dropped."""
        latest: AddressVector | None = None
        peer: UDPPeer | None = None
        emit, there, head = self.port.emitDatagram, -1, 0
        for address, destination, run in self.datagrams.outgoing(now):
            if address is not latest:  # a batch often has a single destination
                latest, peer = address, self.port.peerAt(address)
                if peer is not None:
                    peer = peer.inClass(address.trafficClass)
            if destination != there:
                there, head = destination, heading(destination)
            if peer is not None:
                emit(peer, head, run)
        return False

    def deliver(self) -> None:
        _report(self._owner, self.datagrams.events())

    def fail(self) -> None:
        self._owner.raised()
