"""
RemoteReceiveBuffers of a connection: memory that each end makes for the long messages of the other one.

Between two software devices of one host a reliable queue pair maps the peer's memory. So when a connection
has its first long message both ends make such a queue pair each, which the frames behind the introductions
tell of, and a landing. The datagrams bring everything else, and all bytes for which there is no landing: the
two are not on one host, one of them does not want it, or the queue pair has failed.

It is the queue pair that tells whether memory is shared: it knows the peer's memory itself, or does not
(L{IDirectLane<txrdma.interfaces.IDirectLane>}).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger

from txrdma.btl._landing import Landing
from txrdma.btl._peer import GONE, OPEN, Peer
from txrdma.btl.introductions import FrameKind, LandingPart, QueuePairPart
from txrdma.btl.module import ModulePort, Place
from txrdma.error import RDMAError, ResourceExhausted
from txrdma.iba.types import MTU, QPN, RKey
from txrdma.iba.verbs import Access, Capacity, QPAttributes, QPKind, QPState
from txrdma.interfaces import IDirectLane, IMemoryRegion, IPlacing, IQueuePair
from txrdma.kit.wire import Buffer

_log = Logger()

HOLD_SECONDS: Final = 0.05
"""Seconds for which long messages wait to hear whether the peer has a landing."""

MOST_LANDINGS: Final = 256 << 20
"""Bytes of memory for the long messages of all peers; what is never written to takes none of the host's."""

SMALLEST_LANDING: Final = 1 << 20
"""Bytes of memory for the long messages of one peer, of which a few would do little good."""

_SHARE: Final = 16
_RETRIES: Final = 7
_TIMEOUT: Final = 16


def newLanding(module: ModulePort) -> tuple[IMemoryRegion, Callable[[], None]]:
    """
    Make memory for the long messages of a peer: a share of what is left, so that the first have most.

    @return: the memory, and a function that gives it back, to be called once.
    @raise ResourceExhausted: too little is left.
    """
    length = (MOST_LANDINGS - module.landingBytes) // _SHARE
    if length < SMALLEST_LANDING:
        raise ResourceExhausted(f"{module.landingBytes} bytes are kept for long messages of other peers")
    memory = module.domain.allocateMemory(length, Access.LOCAL_WRITE | Access.REMOTE_WRITE)
    module.landingBytes += length

    def release() -> None:
        module.landingBytes -= length
        memory.close()

    return memory, release


class RemoteReceiveBuffers:
    """The landings of one connection, and the queue pair that reaches the peer's."""

    def __init__(
        self,
        reactor: Any,
        module: ModulePort,
        peer: Peer,
        its: Place,
        tell: Callable[[FrameKind, bytes], None],
    ) -> None:
        """
        @param its: the place of the peer's module.
        @param tell: sends a frame to the peer.
        """
        self._reactor, self._tell = reactor, tell
        self._module, self._peer, self._its = module, peer, its
        self._timer: IDelayedCall | None = None
        self._pair: IQueuePair | None = None
        self._isConnected = self._isClosed = False
        self._closing = ExitStack()
        peer.mayAsk = True

    def ask(self) -> None:
        """Have both ends make a landing, where they share memory, unless that was tried before."""
        if self._pair is None and not self._isClosed:
            try:
                self._makePair()
            except RDMAError as error:
                self._refuse(error)

    def _answered(self) -> None:
        """Let long messages go, by the way that they have now."""
        timer, self._timer = self._timer, None
        if timer is not None:
            if timer.active():
                timer.cancel()
            self._module.core.goOn(self._peer)
            self._module.soon()

    def heard(self, kind: FrameKind, content: bytes) -> None:
        """
        Take what the peer tells of its queue pair, or of its landing.

        @raise txrdma.error.WireError: there is less in the frame than there should be.
        """
        if kind == FrameKind.QUEUE_PAIR:
            qpn = QPN(QueuePairPart.decode(content).qpn)
            if not self._isClosed and not self._isConnected:
                try:
                    self._connect(qpn)
                except RDMAError as error:
                    self._refuse(error)
        elif not self._isClosed and self._pair is not None:
            part = LandingPart.decode(content)
            if part.length:
                self._prepare(self._pair, part)
            else:
                self.close()

    def _makePair(self) -> IQueuePair:
        """Make a queue pair, and tell the peer of it."""
        device, domain, closing = self._module.device, self._module.domain, self._closing
        channel = device.createChannel()
        closing.callback(channel.close)
        queue = device.createCompletionQueue(1, channel)  # nothing is posted: pieces are written at once
        closing.callback(queue.close)
        pair = domain.createQueuePair(QPKind.RC, queue, queue, Capacity(1, 1, 1, 1))
        closing.callback(pair.close)
        access = Access.LOCAL_WRITE | Access.REMOTE_WRITE
        pair.modify(QPAttributes(state=QPState.INIT, pkeyIndex=0, port=1, access=access))
        self._pair = pair
        self._peer.mayAsk = False
        if self._peer.state == OPEN:  # who ends waits for nothing
            self._peer.isAsking = True
            self._timer = self._reactor.callLater(HOLD_SECONDS, self._answered)
        self._tell(FrameKind.QUEUE_PAIR, QueuePairPart(qpn=pair.number).encode())
        return pair

    def _connect(self, qpn: QPN) -> None:
        """
        Connect the queue pair to the peer's, and make a landing for the peer.

        @raise RDMAError: the two share no memory, or there is no room for a landing.
        """
        pair = self._makePair() if self._pair is None else self._pair
        module, its = self._module, self._its
        pair.modify(
            QPAttributes(
                state=QPState.RTR,
                address=module.wayTo(its),
                pathMTU=MTU.fitting(min(its.mtu, module.place.mtu)),
                destinationQPN=qpn,
                rqPSN=0,
                maxDestRDAtomic=0,
                minRNRTimer=0,
            )
        )
        rts = QPAttributes(
            state=QPState.RTS,
            sqPSN=0,
            timeout=_TIMEOUT,
            retryCount=_RETRIES,
            rnrRetry=_RETRIES,
            maxRDAtomic=0,
        )
        pair.modify(rts)
        if IDirectLane(pair, None) is None:
            raise ResourceExhausted(f"no memory is shared with the peer ({pair.route})")
        self._isConnected = True
        memory, release = newLanding(module)
        self._closing.callback(release)
        self._peer.ownLanding = memory.view
        part = LandingPart(rkey=memory.rkey, address=memory.address, length=memory.length)
        self._tell(FrameKind.LANDING, part.encode())

    def _prepare(self, pair: IQueuePair, part: LandingPart) -> None:
        """Find out how the peer's landing is reached."""
        placing = IPlacing(pair, None)
        if placing is not None:
            placing.prepare(RKey(part.rkey), partial(self._known, pair, placing, part))

    def _known(self, pair: IQueuePair, placing: IPlacing, part: LandingPart) -> None:
        """Use the peer's landing from now on, if it is reached."""
        if not self._isClosed and self._peer.state != GONE and self._peer.landing is None:
            lane = IDirectLane(pair, None)
            found = None if lane is None else lane.targetOf(RKey(part.rkey), part.address, part.length)
            if found is not None:
                self._use(pair, placing, *found)
            self._answered()

    def _use(self, pair: IQueuePair, placing: IPlacing, target: memoryview, valid: memoryview) -> None:
        ready, isPeerGone = QPState.RTS, placing.isPeerGone

        def write(place: int, data: Buffer) -> bool:
            if valid[0] != 1 or pair.state is not ready or isPeerGone():
                return False
            target[place : place + len(data)] = data
            return True

        self._peer.landing = Landing(len(target), write)
        _log.debug(
            "long messages to {peer} go by shared memory, {length} bytes of it",
            peer=self._its.gid.ip,
            length=len(target),
        )

    def _refuse(self, error: RDMAError) -> None:
        """Leave everything to datagrams, and tell the peer that there is no landing."""
        _log.debug("long messages with {peer} go by datagrams: {error}", peer=self._its.gid.ip, error=error)
        self.close()
        self._tell(FrameKind.LANDING, LandingPart().encode())

    def close(self) -> None:
        """Let go of the peer's landing, and of this end's own. Twice is fine."""
        self._isClosed = True
        self._peer.landing = self._peer.ownLanding = None
        self._closing.close()
        self._answered()
