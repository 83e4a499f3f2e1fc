"""
The routes on a RoCE port: RC connections, and datagrams.

Each drives the cores of one queue pair; what they share is in L{txrdma.soft.roce}.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol, TYPE_CHECKING

from txrdma.iba.headers import Opcode
from txrdma.iba.types import MTU, QPN
from txrdma.iba.verbs import Access, Completion, CompletionOpcode, QPState, SendRequest
from txrdma.soft._datagram import Datagrams
from txrdma.soft._packets import Event, Incoming, Received, Retired
from txrdma.soft._requester import Requester
from txrdma.soft._responder import Responder

if TYPE_CHECKING:
    from txrdma.soft._route import Owner
    from txrdma.soft.roce import Peer, RoCEPort

_FIRST_ANSWER: Final = int(Opcode.RC_RDMA_READ_RESPONSE_FIRST)
_LAST_ANSWER: Final = int(Opcode.RC_ATOMIC_ACKNOWLEDGE)
_LAST_OF_RC: Final = 0x1F


class PortRoute(Protocol):
    """What a port asks of the routes on it."""

    number: QPN

    def received(self, run: Incoming, peer: Peer, now: float) -> bool:
        """Packets for this queue pair; False when they are none of its business."""

    def transmit(self, now: float) -> bool:
        """Hand what is to be sent to the port; True when there is more for the next turn."""

    def deliver(self) -> None:
        """Tell the queue pair what has happened."""

    def deadline(self) -> float | None:
        """When C{expired} is to be called."""

    def expired(self, now: float) -> None:
        """That time has come."""


def _tell(owner: Owner, events: Sequence[Event]) -> None:
    """Hand the events of a core to its queue pair."""
    for event in events:
        if isinstance(event, Completion):
            owner.sendCompleted(event)
        elif isinstance(event, Retired):
            owner.retired(event.requests)
        elif isinstance(event, Received):
            owner.receiveCompleted(event.completion, event.solicited)
        else:
            owner.failed(event.kind)


def _said(value: int | None) -> int:
    """An attribute that the state machine of queue pairs insists on."""
    assert value is not None
    return value


class RoCERoute:
    """
    The connection of an RC queue pair, by UDP.

    @ivar requester: None until the queue pair may send.
    """

    name = "rocev2"
    polled = False

    def __init__(self, port: RoCEPort, owner: Owner, peer: Peer) -> None:
        attributes = owner.attributes
        self.number = owner.number
        self._port = port
        self._owner = owner
        self._peer = peer
        self._destination = QPN(_said(attributes.destinationQPN))
        self._mtu = MTU(_said(attributes.pathMTU)).bytes
        self.responder = Responder(
            owner.number,
            owner.keys,
            owner.domain,
            owner.receives,
            mtu=self._mtu,
            psn=_said(attributes.rqPSN),
            access=int(attributes.access or Access.NONE),
            maxDestRDAtomic=_said(attributes.maxDestRDAtomic),
            minRNRTimer=_said(attributes.minRNRTimer),
            batch=port.batch,
        )
        self.requester: Requester | None = None
        self._stopped = False
        port.register(self)

    def __repr__(self) -> str:
        return f"<RoCERoute {self.number:#08x} to {self._peer.ip} port {self._peer.port}>"

    # Route

    def post(self, requests: Sequence[SendRequest]) -> None:
        """Carry these out, in order, after those before."""
        assert self.requester is not None
        self.requester.post(requests, self._port.seconds())
        self._port.turn(self)

    def receivesPosted(self) -> None:
        """A peer that was told to wait comes again by itself."""

    def poll(self) -> None:
        """The reactor does that."""

    def arm(self, sends: bool, receives: bool, solicitedOnly: bool) -> None:
        """The reactor wakes by itself."""

    def flush(self) -> list[tuple[int, CompletionOpcode]]:
        """Stop; what is not completed, oldest first."""
        self._stopped = True
        self.responder.flush()
        return [] if self.requester is None else self.requester.flush()

    def attributesChanged(self) -> None:
        """C{modify} has changed timers, counters or the state."""
        attributes = self._owner.attributes
        self.responder.retune(
            int(attributes.access or Access.NONE),
            _said(attributes.maxDestRDAtomic),
            _said(attributes.minRNRTimer),
        )
        if self.requester is not None:
            self.requester.retune(*self._patience())
        elif attributes.state is QPState.RTS:
            timeout, retryCount, rnrRetry, maxRDAtomic = self._patience()
            self.requester = Requester(
                self.number,
                self._owner.keys,
                self._owner.domain,
                mtu=self._mtu,
                psn=_said(attributes.sqPSN),
                timeout=timeout,
                retryCount=retryCount,
                rnrRetry=rnrRetry,
                maxRDAtomic=maxRDAtomic,
                batch=self._port.batch,
            )

    def close(self) -> None:
        """Let go."""
        self.flush()
        self._port.forget(self)

    def _patience(self) -> tuple[int, int, int, int]:
        attributes = self._owner.attributes
        return (
            _said(attributes.timeout),
            _said(attributes.retryCount),
            _said(attributes.rnrRetry),
            _said(attributes.maxRDAtomic),
        )

    # PortRoute

    def received(self, run: Incoming, peer: Peer, now: float) -> bool:
        """Packets for this queue pair, which must come from its peer's host (IBA 9.6.1.1.3)."""
        if peer is not self._peer and peer.ip != self._peer.ip:
            return False
        opcode = run.opcode
        if opcode > _LAST_OF_RC:
            return False
        if self._stopped:
            return True
        if _FIRST_ANSWER <= opcode <= _LAST_ANSWER:
            if self.requester is not None:
                self.requester.received(run, now)
        else:
            self.responder.received(run, now)
        return True

    def transmit(self, now: float) -> bool:
        """Hand what is to be sent to the port; True when there is more for the next turn."""
        emit, peer, destination = self._port.emit, self._peer, self._destination
        if self.requester is not None:
            for run in self.requester.outgoing(now):
                emit(peer, destination, run)
        for run in self.responder.outgoing(now):
            emit(peer, destination, run)
        return self.responder.pending

    def deliver(self) -> None:
        """Tell the queue pair what has happened."""
        _tell(self._owner, self.responder.events())
        if self.requester is not None:
            _tell(self._owner, self.requester.events())

    def deadline(self) -> float | None:
        """That of the requester."""
        return None if self.requester is None else self.requester.deadline()

    def expired(self, now: float) -> None:
        """An answer, or the end of a pause, is due."""
        if self.requester is not None:
            self.requester.expired(now)


class DatagramRoute:
    """The way of a UD queue pair to everybody."""

    name = "rocev2"
    polled = False

    def __init__(self, port: RoCEPort, owner: Owner) -> None:
        attributes = owner.attributes
        self.number = owner.number
        self._port = port
        self._owner = owner
        self.datagrams = Datagrams(
            owner.number,
            owner.keys,
            owner.domain,
            owner.receives,
            mtu=port.mtu,
            psn=attributes.sqPSN or 0,
            qkey=attributes.qkey or 0,
        )
        port.register(self)

    def __repr__(self) -> str:
        return f"<DatagramRoute {self.number:#08x}>"

    # Route

    def post(self, requests: Sequence[SendRequest]) -> None:
        """Send these, in order, after those before."""
        self.datagrams.post(requests, self._port.seconds())
        self._port.turn(self)

    def receivesPosted(self) -> None:
        """What came before is lost."""

    def poll(self) -> None:
        """The reactor does that."""

    def arm(self, sends: bool, receives: bool, solicitedOnly: bool) -> None:
        """The reactor wakes by itself."""

    def flush(self) -> list[tuple[int, CompletionOpcode]]:
        """Stop; what is not completed, oldest first."""
        return self.datagrams.flush()

    def attributesChanged(self) -> None:
        """C{modify} has changed the Q_Key, or the PSN to begin with."""
        attributes = self._owner.attributes
        self.datagrams.retune(attributes.qkey or 0, attributes.sqPSN)

    def close(self) -> None:
        """Let go."""
        self.flush()
        self._port.forget(self)

    # PortRoute

    def received(self, run: Incoming, peer: Peer, now: float) -> bool:
        """Datagrams for this queue pair."""
        if run.opcode <= _LAST_OF_RC:
            return False
        self.datagrams.received(run, self._port.grhFor(peer, run.stride), now)
        return True

    def transmit(self, now: float) -> bool:
        """Hand what is to be sent to the port; what leads nowhere is lost."""
        for address, destination, run in self.datagrams.outgoing(now):
            peer = self._port.peerAt(address)
            if peer is not None:
                self._port.emit(peer, destination, run)
        return False

    def deliver(self) -> None:
        """Tell the queue pair what has happened."""
        _tell(self._owner, self.datagrams.events())

    def deadline(self) -> float | None:
        """Never."""
        return None

    def expired(self, now: float) -> None:
        """Datagrams wait for nothing."""
