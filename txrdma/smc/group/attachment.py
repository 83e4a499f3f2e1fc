"""
The verbs objects of a link on its device: protection domain, completion queues, queue pair, posted receives.

The attributes of the queue pair are those that Linux uses for SMC-R.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Final, TypeVar, Union

from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.error import RDMAError, Refused
from txrdma.iba.types import MTU
from txrdma.iba.verbs import (
    Access,
    AddressVector,
    Capacity,
    Completion,
    QPAttributes,
    QPKind,
    QPState,
    ReceiveRequest,
    Segment,
)
from txrdma.interfaces import (
    ICompletionChannel,
    ICompletionQueue,
    IMemoryRegion,
    IProtectionDomain,
    IQueuePair,
    IVerbsDevice,
)
from txrdma.kit.values import frozen
from txrdma.smc.terms.offer import Candidate
from txrdma.smc.wire.clc import Accept, Confirm, Diagnosis
from txrdma.smc.wire.llc import AddLink
from txrdma.verbs.completions import CompletionReader

_log = Logger()

WINDOW: Final = 40
"""Largest number of unacknowledged messages: the peer has at least 48 receives posted."""

_ROUTED_HOPS: Final = 64
"""The hop limit if there are routers between the two ends (Linux)."""

_RECEIVES: Final = 64
_RECEIVE_SIZE: Final = 48
_RECEIVE_SIZE_V2: Final = 8192
"""Bytes of the longest LLC message of version 2, which may contain the keys of all buffers."""

_TIMEOUT: Final = 15
"""Acknowledgement timeout of Linux's SMC-R for adapters: 134 ms (4.096 us * 2**15)."""

_PATIENT_TIMEOUT: Final = 25
"""
Acknowledgement timeout of 137 s, for peers whose program acknowledges. With seven retries that is 18 minutes,
as long as Linux retries in TCP (tcp(7), tcp_retries2).
"""

_Handler = Callable[[Sequence[Completion]], None]


@frozen(eq=False)
class DevicePort:
    """
    A port of an open device.

    @ivar candidate: the port, as handshakes offer it.
    @ivar maxInline: largest number of inline bytes of a request.
    @ivar isActive: whether the port was active when the device was queried last.
    """

    device: IVerbsDevice
    candidate: Candidate
    maxInline: int
    isActive: bool = True

    @property
    def key(self) -> tuple[IVerbsDevice, int]:
        """Identity of the port: its device and its number."""
        return self.device, self.candidate.port


PeerEnd = Union[Accept, Confirm, AddLink]
"""A message with the peer's queue pair and its first PSN."""

_VerbsObjectT = TypeVar("_VerbsObjectT", IMemoryRegion, ICompletionChannel, ICompletionQueue, IQueuePair)


def _closedBy(undo: ExitStack, each: _VerbsObjectT) -> _VerbsObjectT:
    """Register a verbs object for closing; an error while closing is logged."""

    def close() -> None:
        with _log.failuresHandled("{each!r} of an SMC-R link could not be closed", each=each):
            each.close()

    undo.callback(close)
    return each


class Attachment:
    """
    The verbs objects of one link.

    @ivar receives: memory of all receives.
    @ivar requests: the receives; the identifier of each is its offset in that memory.
    @ivar reader: reader of receive completions, started by C{connect}.
    @ivar sendReader: reader of send completions, started only when one is awaited.
    """

    def __init__(
        self,
        reactor: Any,
        port: DevicePort,
        domain: IProtectionDomain,
        version: int,
        received: _Handler,
        sent: _Handler,
        failed: Callable[[Failure], None],
    ) -> None:
        """
        @param domain: protection domain of the port's device; it is not closed with this object.
        @param version: version of SMC-R: messages of version 2 may be long.
        @param received: called with receive completions.
        @param sent: called with send completions.
        @param failed: called when completions can't be read any more.
        """
        device = port.device
        byProgram = device.attributes.acknowledgesByProgram
        self._timeout = _PATIENT_TIMEOUT if byProgram else _TIMEOUT
        self._candidate = port.candidate
        self.domain = domain
        capacity = Capacity(
            maxSend=3 * (WINDOW + 8),
            maxReceive=_RECEIVES,
            maxSendSegments=2,
            maxInline=port.maxInline,
        )
        size = _RECEIVE_SIZE if version == 1 else _RECEIVE_SIZE_V2
        self.receives = memoryview(bytearray(_RECEIVES * size))
        with ExitStack() as undo:
            region = _closedBy(undo, domain.registerMemory(self.receives, Access.LOCAL_WRITE))
            channel = _closedBy(undo, device.createChannel())
            self._queue = _closedBy(undo, device.createCompletionQueue(_RECEIVES, channel))
            self.reader = CompletionReader(reactor, channel, [self._queue], received, failed=failed)
            sendChannel = _closedBy(undo, device.createChannel())
            self.sendQueue = _closedBy(undo, device.createCompletionQueue(capacity.maxSend, sendChannel))
            self.sendReader = CompletionReader(reactor, sendChannel, [self.sendQueue], sent, failed=failed)
            self.queuePair = _closedBy(
                undo, domain.createQueuePair(QPKind.RC, self.sendQueue, self._queue, capacity)
            )
            rights = Access.LOCAL_WRITE | Access.REMOTE_WRITE
            self.queuePair.modify(
                QPAttributes(state=QPState.INIT, pkeyIndex=0, port=port.candidate.port, access=rights)
            )
            self._undo = undo.pop_all()
        self.requests = [
            ReceiveRequest(at, (Segment(region.address + at, size, region.lkey),))
            for at in range(0, _RECEIVES * size, size)
        ]

    def connect(self, peerEnd: PeerEnd, psn: int, isDirect: bool) -> None:
        """Connect the queue pair to the peer's; C{isDirect}: without a router. Raises L{Refused}."""
        queuePair, candidate = self.queuePair, self._candidate
        hops = 1 if isDirect else _ROUTED_HOPS
        queuePair.postReceive(self.requests)
        self.reader.start()
        try:
            queuePair.modify(
                QPAttributes(
                    state=QPState.RTR,
                    address=AddressVector(
                        peerEnd.gid, candidate.gidIndex, candidate.port, hopLimit=hops, dmac=peerEnd.mac
                    ),
                    pathMTU=MTU(min(peerEnd.mtu, candidate.mtu)),
                    destinationQPN=peerEnd.qpn,
                    rqPSN=peerEnd.psn,
                    maxDestRDAtomic=1,
                    minRNRTimer=5,
                )
            )
            queuePair.modify(
                QPAttributes(
                    state=QPState.RTS,
                    sqPSN=psn,
                    timeout=self._timeout,
                    retryCount=7,
                    rnrRetry=7,
                    maxRDAtomic=1,
                )
            )
        except RDMAError as error:
            raise Refused(f"the queue pair could not be connected: {error}", Diagnosis.ERR_RDYLNK) from error

    def close(self) -> None:
        self.reader.stop()
        self.sendReader.stop()
        self._undo.close()
