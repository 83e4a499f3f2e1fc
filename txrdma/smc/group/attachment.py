"""
The verbs objects of a link on its device: protection domain, completion queues, queue pair, posted receives.

The attributes of the queue pair are those that Linux uses for SMC-R.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

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
from txrdma.interfaces import IVerbsDevice
from txrdma.smc.wire.clc import Accept, Confirm, Diagnosis
from txrdma.verbs.completions import CompletionReader

_log = Logger()

WINDOW: Final = 40
"""Messages that the peer may not have received yet: it has 48 receives."""

_RECEIVES: Final = 64
_RECEIVE_SIZE: Final = 48

_TIMEOUT: Final = 15
"""Linux's for SMC-R, 134 ms (4.096 us * 2**15): adapters answer for themselves."""

_PATIENT_TIMEOUT: Final = 25
"""
137 s, where a peer's program has to answer, which may be busy.

With seven retries that is 18 minutes: Linux gives TCP about 15 minutes to have data acknowledged (tcp(7),
tcp_retries2).
"""

_Handler = Callable[[Sequence[Completion]], None]


class Attachment:
    """
    The verbs objects of one link.

    @ivar receives: the memory of the receives, one behind the other.
    @ivar requests: the receives; the identifier of each is its offset in that memory.
    @ivar reader: hands over what has been received, from C{connect} on.
    @ivar sendReader: hands over what has been sent; it is started only when somebody waits for that.
    """

    def __init__(
        self,
        reactor: Any,
        device: IVerbsDevice,
        maxInline: int,
        received: _Handler,
        sent: _Handler,
        failed: Callable[[Failure], None],
    ) -> None:
        """
        @param maxInline: the most bytes of a request that need no registered memory.
        @param received: takes completions of receives.
        @param sent: takes completions of sends.
        @param failed: hears that completions can be taken no more.
        """
        byProgram = device.attributes.acknowledgesByProgram
        self._timeout = _PATIENT_TIMEOUT if byProgram else _TIMEOUT
        self.domain = device.createProtectionDomain()
        capacity = Capacity(
            maxSend=3 * (WINDOW + 8), maxReceive=_RECEIVES, maxSendSegments=2, maxInline=maxInline
        )
        self._channel = device.createChannel()
        self._queue = device.createCompletionQueue(_RECEIVES, self._channel)
        self.reader = CompletionReader(reactor, self._channel, [self._queue], received, failed=failed)
        self._sendChannel = device.createChannel()
        self.sendQueue = device.createCompletionQueue(capacity.maxSend, self._sendChannel)
        self.sendReader = CompletionReader(reactor, self._sendChannel, [self.sendQueue], sent, failed=failed)
        self.queuePair = self.domain.createQueuePair(QPKind.RC, self.sendQueue, self._queue, capacity)
        rights = Access.LOCAL_WRITE | Access.REMOTE_WRITE
        self.queuePair.modify(QPAttributes(state=QPState.INIT, pkeyIndex=0, port=1, access=rights))
        self.receives = memoryview(bytearray(_RECEIVES * _RECEIVE_SIZE))
        region = self.domain.registerMemory(self.receives, Access.LOCAL_WRITE)
        self.requests = [
            ReceiveRequest(at, (Segment(region.address + at, _RECEIVE_SIZE, region.lkey),))
            for at in range(0, _RECEIVES * _RECEIVE_SIZE, _RECEIVE_SIZE)
        ]

    def connect(self, answer: Accept | Confirm, mtu: MTU, psn: int, gidIndex: int) -> None:
        """
        Make the queue pair ready to send to the peer's.

        @param psn: the first packet sequence number that we send.
        @param gidIndex: of our GID, in the port's table.
        @raise Refused: the device can't do it.
        """
        queuePair = self.queuePair
        queuePair.postReceive(self.requests)
        self.reader.start()
        try:
            queuePair.modify(
                QPAttributes(
                    state=QPState.RTR,
                    address=AddressVector(answer.gid, gidIndex, hopLimit=1, dmac=answer.mac),
                    pathMTU=MTU(min(answer.mtu, mtu)),
                    destinationQPN=answer.qpn,
                    rqPSN=answer.psn,
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
            raise Refused(f"the queue pair did not get ready: {error}", Diagnosis.ERR_RDYLNK) from error

    def close(self) -> None:
        """Destroy all of it, children first; memory of the domain was closed before."""
        self.reader.stop()
        self.sendReader.stop()
        queues, channels = (self._queue, self.sendQueue), (self._channel, self._sendChannel)
        for each in (self.queuePair, *queues, *channels, self.domain):
            try:
                each.close()
            except Exception:
                _log.failure(
                    "An RDMA device could not close what a link of SMC-R had of it ({each!r})", each=each
                )
