"""
General management datagrams by a dedicated queue pair, on any verbs device.

Follows InfiniBand Architecture vol. 1, 13.5.1 (datagrams of classes other than subnet management may come
from any queue pair; the general services interface is queue pair 1) and 11.4.2.1 (a received datagram's GRH).

Queue pair 1 of a kernel's device remains the kernel's: peers answer requests, but must know the number of
this queue pair to send requests. Queue pair 1 of a software device can be used.

On a kernel device this needs the right to use Q_Keys with the upper bit set (CAP_NET_RAW).
"""

from __future__ import annotations

from collections import deque, OrderedDict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import lru_cache
from typing import Final, NamedTuple

from zope.interface import alsoProvides, implementer

from twisted.internet.interfaces import IDelayedCall, IReactorFDSet, IReactorTime, IReadDescriptor
from twisted.logger import Logger

from txrdma.error import DeviceUnavailable, InvalidRequest, RDMAError
from txrdma.iba.headers import GRH
from txrdma.iba.internet import IPv4
from txrdma.iba.path import GMP_QKEY, IBPath, MADEndPort
from txrdma.iba.types import DEFAULT_PKEY, GID, GUID, LID, PKey, QPN
from txrdma.iba.verbs import (
    Access,
    AddressVector,
    AsyncEventKind,
    Buffer,
    Capacity,
    Completion,
    GIDEntry,
    Operation,
    QPAttributes,
    QPKind,
    QPState,
    ReceiveRequest,
    Segment,
    SendRequest,
    Status,
)
from txrdma.interfaces import AsyncEvent, IAddressHandle, IMADPort, IMADReceiver, IServiceClaims, IVerbsDevice
from txrdma.kit.delayedcalls import cancelCall
from txrdma.kit.logs import errorText
from txrdma.mad.core.addressing import HOPS, mayBeFrom, partitionIndex, sourceIndex
from txrdma.mad.layouts.messages import MAD_LENGTH
from txrdma.mad.ports.descriptor import DescriptorPort

_log = Logger()

SENDS: Final = 64
RECEIVES: Final = 1024
"""
Number of receives: several windows of RMPP transfers (L{txrdma.mad.core.rmpp.WINDOW}); with none left
datagrams are lost.
"""

HANDLES: Final = 4 * SENDS
"""
Maximum number of cached address handles: more than can be in use at once, so that the least recently used
one is free.
"""

_BATCH: Final = 64
_BUDGET: Final = 8
_GRH: Final = 40
_STRIDE: Final = 320
_RECEIVE: Final = 1 << 16
_RESPONSE: Final = 0x80
_NO_GID: Final = GID(bytes(16))
_CHANGES: Final = (
    AsyncEventKind.GID_CHANGE,
    AsyncEventKind.LID_CHANGE,
    AsyncEventKind.PKEY_CHANGE,
    AsyncEventKind.SM_CHANGE,
    AsyncEventKind.CLIENT_REREGISTER,
    AsyncEventKind.PORT_ACTIVE,
)


class IPollingReactor(IReactorFDSet, IReactorTime):
    """Parts of a reactor that the port uses."""


class Arrival(NamedTuple):
    """Source of a received datagram. C{grh} is empty without one."""

    grh: bytes
    sqpn: int
    slid: int
    serviceLevel: int


@implementer(IMADPort, IReadDescriptor)
class VerbsPort(DescriptorPort):
    """
    A port of a verbs device, by an unreliable datagram queue pair.

    @ivar qpn: the queue pair's number, to which requests are sent; 1 on the general services interface.
    """

    transactionIDBits = 64
    hasSMI = False
    doesRMPP = False

    def __init__(
        self,
        reactor: IPollingReactor,
        device: IVerbsDevice,
        number: int = 1,
        *,
        isGSI: bool = False,
        closesDevice: bool = True,
    ) -> None:
        """
        @param device: device of the port, closed with it unless C{closesDevice} is False.
        @param number: number of the device's port.
        @param isGSI: whether to be the general services interface of the device's port, by its queue pair 1:
            software devices assign it to the first request.
        @raise InvalidRequest: the device has no such port, or does not offer queue pair 1.
        @raise txrdma.error.ResourceExhausted: the device has no queue pair or memory left, or the port's
            queue pair 1 is in use.
        """
        super().__init__(reactor)
        self.name = f"vmad:{device.name}"
        self.name += (f":endport={number}" if number != 1 else "") + (":qpn=1" if isGSI else "")
        self._kind = QPKind.GSI if isGSI else QPKind.UD
        self._clock = reactor
        self._again: IDelayedCall | None = None
        self._device = device
        self._number = number
        self._handles: OrderedDict[AddressVector, IAddressHandle] = OrderedDict()
        self._latest: tuple[IBPath | None, IAddressHandle | None] = None, None
        self._waiting: deque[tuple[bytes, IBPath]] = deque()
        self._free = deque(range(SENDS))
        self._posted = 0
        self._used: list[int] = []  # slots of receives to post again
        self._mayMiss = False  # a failed read may have lost completions
        self._closers: list[Callable[[], None]] = [device.close if closesDevice else lambda: None]
        self._claims = IServiceClaims(device, None) if isGSI else None
        if self._claims is not None:
            alsoProvides(self, IServiceClaims)
            self.share = self._claims.share
        with ExitStack() as undo:
            undo.callback(self._release)
            self._make()
            self.endPort = self.refresh()
            self._open()
            undo.pop_all()

    def __repr__(self) -> str:
        return f"<VerbsPort {self.name} queue pair {self.qpn:#x}>"

    def claimService(self, serviceID: int) -> Callable[[], None]:
        """Receive requests for a service ID; see L{IServiceClaims}."""
        assert self._claims is not None  # the interface is not provided otherwise
        return self._claims.claimService(serviceID)

    # IMADPort

    def start(self, receiver: IMADReceiver) -> None:
        super().start(receiver)
        self._turn()

    def send(self, datagram: Buffer, path: IBPath, answerWithin: float = 0.0) -> None:
        if self._closed:
            raise DeviceUnavailable(f"{self.name} is closed")
        if len(datagram) != MAD_LENGTH:
            raise InvalidRequest(f"a datagram has {MAD_LENGTH} bytes here, not {len(datagram)}")
        if datagram[1] & 0x7F == 1:
            raise InvalidRequest(f"{self.name}: subnet management needs queue pair 0")
        if partitionIndex((self._pkey,), path.pkey) is None:
            raise InvalidRequest(f"{self.name} is in partition {self._pkey:#06x}, not {path.pkey:#06x}")
        if path.dgid is None and not path.dlid:
            raise InvalidRequest(f"{self.name}: {path} has neither a GID nor a LID")
        if self._free and not self._waiting:
            self._post(datagram, path)
        else:
            self._checkSpace(self._waiting)
            self._waiting.append((bytes(datagram), path))

    def pathOf(self, envelope: object) -> IBPath:
        assert isinstance(envelope, Arrival)
        sgid = dgid = None
        trafficClass = flowLabel = hopLimit = 0
        if envelope.grh:
            sgid, dgid, trafficClass, flowLabel, hopLimit = grhFields(envelope.grh)
        return IBPath(
            slid=LID(envelope.slid),
            dlid=self.endPort.lid,
            serviceLevel=envelope.serviceLevel,
            sgid=sgid,
            dgid=dgid,
            trafficClass=trafficClass,
            flowLabel=flowLabel,
            hopLimit=hopLimit,
            pkey=self._pkey,
            sqpn=QPN(envelope.sqpn),
            dqpn=self.qpn,
            qkey=GMP_QKEY,
        )

    def isFrom(self, envelope: object, path: IBPath) -> bool:
        assert isinstance(envelope, Arrival)
        sgid = grhFields(envelope.grh)[0] if envelope.grh else None
        return mayBeFrom(path, envelope.slid, sgid, self.endPort.lidMask)

    def refresh(self) -> MADEndPort:
        device, number = self._device, self._number
        port = device.portAttributes(number)
        self._gids: Sequence[GIDEntry] = device.gidTable(number)
        self._latest = None, None
        gids = tuple(entry.gid for entry in self._gids)
        known = next((gid.guid for gid in gids if gid != _NO_GID and not gid.isMapped), None)
        pkeys = tuple(device.pkeys(number)) or (DEFAULT_PKEY,)
        self.endPort = MADEndPort(
            portGUID=known or device.attributes.nodeGUID or GUID(bytes(8)),
            gids=gids,
            portNum=number,
            lid=port.lid,
            lidMask=port.lidMask,
            smLID=port.smLID,
            smServiceLevel=port.smServiceLevel,
            pkeys=pkeys,
            names=(device.name, f"{device.name}/{number}"),
            qpn=self.qpn,
        )
        return self.endPort

    # The queue pair.

    def _make(self) -> None:
        device = self._device
        domain = device.createProtectionDomain()
        self._closers.append(domain.close)
        channel = device.createChannel()
        self._closers.append(channel.close)
        queue = device.createCompletionQueue(SENDS + RECEIVES, channel)
        self._closers.append(queue.close)
        self._memory = domain.allocateMemory((SENDS + RECEIVES) * _STRIDE, Access.LOCAL_WRITE)
        self._closers.append(self._memory.close)
        self._domain = domain
        self._pair = domain.createQueuePair(self._kind, queue, queue, Capacity(SENDS, RECEIVES, 1, 1))
        self._closers.append(self._pair.close)
        self.qpn: QPN = self._pair.number
        self._channel, self._queue = channel, queue
        self._closers.append(device.subscribe(self._asyncEvent))

    def _open(self) -> None:
        """Bring the queue pair from RESET to RTS, with all receives posted."""
        index = partitionIndex(self.endPort.pkeys, DEFAULT_PKEY) or 0
        self._pkey: PKey = self.endPort.pkeys[index]
        modify = self._pair.modify
        modify(QPAttributes(state=QPState.INIT, pkeyIndex=index, port=self._number, qkey=GMP_QKEY))
        self._receive(range(RECEIVES))
        modify(QPAttributes(state=QPState.RTR))
        modify(QPAttributes(state=QPState.RTS, sqPSN=0))

    def _release(self) -> None:
        cancelCall(self._again)
        self._again = None
        self._waiting.clear()
        handles = [handle.close for handle in self._handles.values()]
        self._handles.clear()
        self._latest = None, None
        closers, self._closers = self._closers, []
        for close in (*reversed(closers[1:]), *handles, *closers[:1]):
            try:
                close()
            except RDMAError as error:
                _log.debug("{port}: cannot close: {error}", port=self.name, error=errorText(error))

    def _receive(self, slots: Sequence[int]) -> None:
        address, lkey, view = self._memory.address, self._memory.lkey, self._memory.view
        requests = []
        for slot in slots:
            at = (SENDS + slot) * _STRIDE
            view[at] = 0  # clear an earlier GRH: an IPv4 header overwrites only its second half
            segment = Segment(address + at, _GRH + MAD_LENGTH, lkey)
            requests.append(ReceiveRequest(_RECEIVE + slot, (segment,)))
        self._pair.postReceive(requests)
        self._posted += len(slots)

    def _post(self, datagram: Buffer, path: IBPath) -> None:
        handle = self._handleTo(path)
        slot = self._free.popleft()
        at = slot * _STRIDE
        self._memory.view[at : at + MAD_LENGTH] = datagram
        request = SendRequest(
            slot, Operation.SEND, (Segment(self._memory.address + at, MAD_LENGTH, self._memory.lkey),)
        )
        request.address = handle
        request.remoteQPN = path.dqpn or QPN(1)
        request.remoteQKey = path.qkey or GMP_QKEY
        try:
            self._pair.postSend([request])
        except RDMAError:
            self._free.append(slot)
            raise

    def _handleTo(self, path: IBPath) -> IAddressHandle:
        known, handle = self._latest
        if known is not path and known != path:
            handle = self._handleFor(path)
            self._latest = path, handle
        assert handle is not None  # with a path
        return handle

    def _handleFor(self, path: IBPath) -> IAddressHandle:
        hasLIDs = bool(self.endPort.lid)
        address = AddressVector(
            path.dgid or _NO_GID,
            sgidIndex=sourceIndex(self._gids, path),
            port=self._number,
            hopLimit=path.hopLimit if hasLIDs else path.hopLimit or HOPS,
            trafficClass=path.trafficClass,
            flowLabel=path.flowLabel,
            serviceLevel=path.serviceLevel,
            dlid=path.dlid,
        )
        handles = self._handles
        handle = handles.get(address)
        if handle is not None:
            handles.move_to_end(address)
            return handle
        if len(handles) >= HANDLES:
            handles.popitem(last=False)[1].close()
        handle = handles[address] = self._domain.createAddressHandle(address)
        return handle

    # IReadDescriptor

    def fileno(self) -> int:
        return self._channel.fileno() if not self._closed else -1

    def doRead(self) -> None:
        if self._again is None:
            self._turn()

    def _turn(self) -> None:
        """Process some completions, and continue in the next turn if there are more, or if this failed."""
        self._again = None
        isEmpty = False
        try:
            self._channel.takeEvents()
            if self._failures:
                self._postAgain()
            isEmpty = self._read()
            self._failures = 0
        except Exception as error:
            self._mayMiss = True
            self._readFailed(error)
        if not (isEmpty or self._closed):
            self._again = self._clock.callLater(0, self._turn)

    def _read(self) -> bool:
        """
        Process some completions; return whether the queue is empty.

        The queue is armed when it has been emptied once, so that answers, which complete meanwhile, do not
        wake the reactor. It is polled until it is empty after that: later completions wake the reactor.
        """
        isArmed = False
        for _ in range(_BUDGET):
            batch = self._queue.poll(_BATCH)
            if batch:
                self._completed(batch)
                if self._closed:
                    break
            elif isArmed:
                return True
            if not isArmed and len(batch) < _BATCH:
                isArmed = True
                self._queue.arm()
        return False

    # Completions.

    def _completed(self, completions: Sequence[Completion]) -> None:
        for completion in completions:
            if completion.identifier >= _RECEIVE:
                self._posted -= 1
                if completion.status is Status.SUCCESS:
                    self._used.append(completion.identifier - _RECEIVE)
                    self._received(completion)
            else:
                self._sent(completion)
            if self._closed:
                return
        self._postAgain()

    def _postAgain(self) -> None:
        """Post used receives and waiting datagrams, or restart a queue pair that has failed."""
        state = self._pair.state  # which an adapter reads by a system call
        if state is not QPState.RTS:
            self._restart()
            state = self._pair.state
        if self._used and state is QPState.RTS:
            self._receiveAgain()
        self._postWaiting()

    def _postWaiting(self) -> None:
        """Post waiting datagrams; for a wrong destination only its own datagram fails."""
        while self._waiting and self._free and not self._closed and self._pair.state is QPState.RTS:
            datagram, path = self._waiting.popleft()
            try:
                self._post(datagram, path)
            except DeviceUnavailable:
                raise
            except RDMAError as error:
                self._undelivered(datagram, str(error))

    def _undelivered(self, datagram: bytes, why: str) -> None:
        """Notify the receiver of a request that was not sent; answers are dropped silently."""
        if self._receiver is None or datagram[3] & _RESPONSE:
            return
        with _log.failuresHandled(
            "the receiver of {port} raised when it was called with an unsent datagram", port=self.name
        ):
            self._receiver.undeliverable(datagram, why)

    def _received(self, completion: Completion) -> None:
        at = (SENDS + completion.identifier - _RECEIVE) * _STRIDE
        if completion.length != _GRH + MAD_LENGTH:
            _log.debug(
                "{port}: dropping a datagram of {length} bytes",
                port=self.name,
                length=completion.length - _GRH,
            )
            return
        begin = at + _GRH
        datagram = bytes(self._memory.view[begin : begin + MAD_LENGTH])
        grh = bytes(self._memory.view[at:begin]) if completion.hasGRH else b""
        if datagram[1] & 0x7F == 1:
            return  # subnet management does not use queue pair 1 (IBA 13.5.1)
        receiver = self._receiver
        assert receiver is not None
        arrival = Arrival(grh, completion.sourceQPN, completion.sourceLID, completion.serviceLevel)
        try:
            receiver.received(datagram, arrival)
        except Exception:
            _log.failure("the receiver of {port} raised when it was called with a datagram", port=self.name)

    def _sent(self, completion: Completion) -> None:
        slot = completion.identifier
        self._free.append(slot)
        if completion.status is not Status.SUCCESS:
            datagram = bytes(self._memory.view[slot * _STRIDE :][:MAD_LENGTH])
            self._undelivered(datagram, f"it could not be sent: {completion.status.name}")

    def _receiveAgain(self) -> None:
        """Post used receives; those that the device refuses are posted with the next ones."""
        try:
            self._receive(self._used)
        except RDMAError as error:
            if not self._posted or isinstance(error, DeviceUnavailable):
                raise
            count = len(self._used)
            _log.warn(
                "{port}: {count} receives: {error}", port=self.name, count=count, error=errorText(error)
            )
        else:
            self._used = []

    def _restart(self) -> None:
        """
        Restart a queue pair after a failed send or restart. In ERR, wait until all requests are completed,
        unless their completions may be lost.
        """
        state = self._pair.state
        if state is QPState.SQE:
            self._pair.modify(QPAttributes(state=QPState.RTS, currentState=QPState.SQE))
        elif state is not QPState.ERR or self._mayMiss or not self._posted and len(self._free) == SENDS:
            _log.warn("{port}: the queue pair failed and is restarted", port=self.name)
            self._pair.modify(QPAttributes(state=QPState.RESET))
            self._posted, self._used, self._free = 0, [], deque(range(SENDS))
            self._mayMiss = False
            self._open()

    def _asyncEvent(self, event: AsyncEvent) -> None:
        if event.kind is AsyncEventKind.DEVICE_FATAL:
            self._lost("the device is gone")
        elif event.kind in _CHANGES and event.port in (None, self._number):
            try:
                self.refresh()
            except RDMAError as error:
                _log.debug(
                    "{port}: cannot query its attributes: {error}", port=self.name, error=errorText(error)
                )
            if self._receiver is not None:
                self._receiver.portChanged(event.kind is AsyncEventKind.CLIENT_REREGISTER)


@lru_cache(maxsize=256)
def grhFields(grh: bytes) -> tuple[GID, GID, int, int, int]:
    """
    Source, destination, traffic class, flow label and hop limit in the GRH of a datagram.

    With RoCE v2 over IPv4 these are in the IPv4 header, in the last 20 of the 40 bytes (annex A17).
    """
    if grh[0] >> 4 != 6 and grh[20] >> 4 == 4:
        ip = IPv4.decode(grh, 20)
        source, destination = (GID(bytes(10) + b"\xff\xff" + raw) for raw in (ip.source, ip.destination))
        return source, destination, ip.typeOfService, 0, ip.timeToLive
    header = GRH.decode(grh)
    return header.sgid, header.dgid, header.trafficClass, header.flowLabel, header.hopLimit
