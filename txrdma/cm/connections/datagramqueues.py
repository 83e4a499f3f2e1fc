"""
The queue pair of datagrams of one port, with its memory and its address handles.

Follows InfiniBand Architecture vol. 1, 9.8 (unreliable datagrams).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Final

from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.cm.connections.adapter import Adapter, SharedCompletionQueue
from txrdma.error import RDMAError
from txrdma.iba.types import GID, QPN
from txrdma.iba.verbs import (
    Access,
    AddressVector,
    Buffer,
    Capacity,
    Completion,
    CompletionOpcode,
    Operation,
    QPAttributes,
    QPKind,
    QPState,
    ReceiveRequest,
    Segment,
    SendRequest,
    Status,
)
from txrdma.interfaces import IAddressHandle, IMulticast
from txrdma.mad.ports.verbsport import grhFields

_log = Logger()

QKEY: Final = 0x01234567
"""The Q_Key of all queue pairs of RDMA CM's UDP port space."""

RECEIVES: Final = 128
"""Posted receives: datagrams beyond them are lost until the protocol has handled some."""

SENDS: Final = 64
"""Outstanding sends."""

HANDLES: Final = 4 * SENDS
"""Number of address handles that a queue pair retains."""

_GRH: Final = 40
_HOPS: Final = 64
_RECEIVE: Final = 1 << 16


class DatagramQueuePair:
    """
    A queue pair of unreliable datagrams at one port of a device.

    @ivar port: number of the port.
    @ivar longest: largest length of a datagram in bytes: the payload of one packet.
    """

    def __init__(
        self,
        adapter: Adapter,
        place: tuple[int, int],
        received: Callable[[bytes, GID, QPN, int], None],
        failed: Callable[[], None],
    ) -> None:
        """
        @param place: number of the port, and the table index of its GID.
        @param received: called with each datagram, its sender, and the number of the port.
        @param failed: called when the queue pair has failed; the caller closes it.
        @raise RDMAError: the device has too few resources.
        """
        self.port, self._index = place
        self._adapter, self._deliver, self._failed = adapter, received, failed
        self._shared: SharedCompletionQueue | None = None
        self._handles: OrderedDict[GID, IAddressHandle] = OrderedDict()
        self._free = list(range(SENDS))
        with ExitStack() as undo:
            self.longest = int(adapter.mtuOf(self.port).bytes)
            self._stride = self.longest + _GRH
            shared = self._shared = adapter.reserve(SENDS + RECEIVES)
            undo.callback(lambda: adapter.detach(shared, getattr(self, "_pair", None), SENDS + RECEIVES))
            undo.callback(self._closeHandles)
            memory = adapter.domain.allocateMemory((SENDS + RECEIVES) * self._stride, Access.LOCAL_WRITE)
            self._memory = memory
            undo.callback(memory.close)
            queue, capacity = shared.queue, Capacity(SENDS, RECEIVES, 1, 1)
            self._pair = adapter.domain.createQueuePair(QPKind.UD, queue, queue, capacity)
            undo.callback(self._pair.close)
            adapter.attach(shared, self._pair, self)
            self._pair.modify(QPAttributes(state=QPState.INIT, pkeyIndex=0, port=self.port, qkey=QKEY))
            self._post(range(RECEIVES))
            self._pair.modify(QPAttributes(state=QPState.RTR))
            self._pair.modify(QPAttributes(state=QPState.RTS, sqPSN=0))
            self._closing = undo.pop_all()

    def __repr__(self) -> str:
        return f"<DatagramQueuePair {self.number:#x} at port {self.port}>"

    @property
    def gid(self) -> GID:
        """GID of the port; zeros while it has no address."""
        return self._adapter.gidAt(self.port, self._index)

    @property
    def number(self) -> QPN:
        return self._pair.number

    @property
    def multicast(self) -> IMulticast | None:
        """The queue pair as a member of multicast groups; None if it is closed, or cannot be one."""
        return None if self._shared is None else IMulticast(self._pair, None)

    def write(self, data: Buffer, gid: GID, qpn: QPN, qkey: int) -> bool:
        """
        Send a datagram; return False if it is dropped because too many are being sent.

        @raise RDMAError: the device refuses it, or has no address of the destination's IP version.
        """
        if not self._free and self._shared is not None:
            self._shared.poll()  # some may have completed
        if not self._free or self._shared is None:
            return False
        slot = self._free.pop()
        begin = slot * self._stride
        self._memory.view[begin : begin + len(data)] = data
        segments = (Segment(self._memory.address + begin, len(data), self._memory.lkey),) if data else ()
        request = SendRequest(slot, Operation.SEND, segments)
        request.remoteQPN, request.remoteQKey = qpn, qkey
        try:
            request.address = self._handleTo(gid)
            self._pair.postSend([request])
        except RDMAError:
            self._free.append(slot)
            raise
        return True

    # Completions: see L{txrdma.cm.connections.adapter.CompletionHandler}

    def completed(self, batch: Sequence[Completion]) -> None:
        for completion in batch:
            if self._shared is None:
                return
            if completion.status is not Status.SUCCESS:
                _log.warn(
                    "{queuePair} is closed, since a request failed: {status}",
                    queuePair=self,
                    status=completion.status,
                )
                self._failed()
            elif completion.opcode is CompletionOpcode.RECEIVE:
                self._received(completion)
            else:
                self._free.append(completion.identifier)

    def pathChanged(self) -> None:
        """Do nothing: datagrams have no alternate paths."""

    def broken(self, failure: Failure) -> None:
        """Close, since completions could not be read or handled."""
        self._failed()

    def _received(self, completion: Completion) -> None:
        slot = completion.identifier - _RECEIVE
        begin = (SENDS + slot) * self._stride
        grh = bytes(self._memory.view[begin : begin + _GRH])
        data = bytes(self._memory.view[begin + _GRH : begin + completion.length])
        self._post((slot,))
        if completion.hasGRH:  # always on RoCE
            self._deliver(data, grhFields(grh)[0], completion.sourceQPN, self.port)

    def _post(self, slots: Sequence[int]) -> None:
        address, lkey, stride = self._memory.address, self._memory.lkey, self._stride
        requests = []
        for slot in slots:
            begin = (SENDS + slot) * stride
            self._memory.view[begin] = 0  # clear an old GRH: an IPv4 header overwrites only its second half
            requests.append(ReceiveRequest(_RECEIVE + slot, (Segment(address + begin, stride, lkey),)))
        self._pair.postReceive(requests)

    def _handleTo(self, gid: GID) -> IAddressHandle:
        handle = self._handles.get(gid)
        if handle is not None:
            self._handles.move_to_end(gid)
            return handle
        if len(self._handles) >= HANDLES:
            self._handles.popitem(last=False)[1].close()
        # The port may have addresses of several networks.
        port, index = self._adapter.requireGID(self._adapter.sourceGID(gid))
        if port != self.port:
            index = self._index
        address = AddressVector(gid, sgidIndex=index, port=self.port, hopLimit=_HOPS)
        handle = self._handles[gid] = self._adapter.domain.createAddressHandle(address)
        return handle

    def close(self) -> None:
        """Close everything. Idempotent."""
        self._shared = None
        self._closing.close()

    def _closeHandles(self) -> None:
        while self._handles:
            self._handles.popitem()[1].close()
