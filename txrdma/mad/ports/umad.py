"""
Management ports of the kernel: C{/dev/infiniband/umadN}.

Follows the kernel's interface to user space, version 5. Each class that is sent or served has a separate
agent in the kernel, which puts the agent's number into the upper half of transaction IDs.

The kernel waits for the answer to each request as well, and returns the request when it has timed out. It
accepts no second request with the same transaction ID meanwhile. So its timeout is a tenth shorter than that
of the program, and a retransmission that is too early is stored until the kernel has returned the first
request.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from struct import error as structError
from struct import Struct
from typing import Final, NamedTuple

from zope.interface import implementer

from twisted.internet.interfaces import IReactorFDSet, IReadDescriptor
from twisted.logger import Logger

from txrdma.error import DeviceUnavailable, InvalidRequest, RDMAError, ResourceExhausted
from txrdma.iba.path import GMP_QKEY, IBPath, MADEndPort
from txrdma.iba.types import DEFAULT_PKEY, GID, GUID, LID, PKey, QPN
from txrdma.iba.verbs import Buffer
from txrdma.interfaces import IMADPort, IMADReceiver
from txrdma.kit.logs import errorText
from txrdma.mad.core.addressing import HOPS, mayBeFrom, partitionIndex, sourceIndex
from txrdma.mad.core.transfers import isRMPP, RMPP_CLASSES
from txrdma.mad.layouts.messages import formatOf
from txrdma.mad.ports.descriptor import DescriptorPort
from txrdma.mad.ports.registration import Registry
from txrdma.ports import EndPort

_log = Logger()

_TRAP_REPRESS: Final = 0x07
_HEADER: Final = 64
_SHORTEST: Final = 16
"""Shortest datagram that can be handled: up to its transaction ID."""

_LONGEST_READ: Final = _HEADER + 64 * 1024
_BATCH: Final = 64
_KERNEL_MILLISECONDS: Final = 900
"""Milliseconds that the kernel waits for each second of the program's wait."""

_LONGEST_WAIT: Final = 0x7FFFFFFF
"""Longest timeout in milliseconds that the kernel can count."""

_GONE: Final = (errno.EIO, errno.ENODEV, errno.ENXIO, errno.EPIPE)
"""Error numbers of a device that was removed."""

_RESENDS: Final = 7
"""Number of times that the kernel sends segments of an RMPP transfer again, each after 2 seconds."""

# Agent, status, timeout in milliseconds, retries, length: in the host's order; what follows is big-endian.
_LOCAL: Final = Struct("=IIIII")
_REMOTE: Final = Struct(">IIHBBBBBB16sI")
_PKEY_INDEX: Final = Struct("=H6x")


def _keyOf(datagram: Buffer) -> bytes:
    """Key of a request and of its answer: the class, and the program's part of the transaction ID."""
    return bytes(datagram[1:2]) + bytes(datagram[12:16])


class _Agent(NamedTuple):
    """An agent with the kernel, for one class."""

    number: int
    managementClass: int


class Envelope(NamedTuple):
    """Header of the kernel in front of a received datagram."""

    sqpn: int
    qkey: int
    lid: int
    serviceLevel: int
    pathBits: int
    hasGRH: bool
    gidIndex: int
    hopLimit: int
    trafficClass: int
    gid: bytes
    flowLabel: int
    pkeyIndex: int
    isSMI: bool


@implementer(IMADPort, IReadDescriptor)
class UmadPort(DescriptorPort):
    """
    A port of an RDMA device of this host, opened through the kernel's umad.

    RMPP transfers are segmented and reassembled by the kernel, or by txrdma with C{rmpp=False}.
    """

    transactionIDBits = 32

    def __init__(self, reactor: IReactorFDSet, endPort: EndPort, rmpp: bool = True) -> None:
        """
        @param endPort: the port; L{txrdma.ports.getEndPort} finds it.
        @param rmpp: let the kernel segment and reassemble RMPP transfers.
        @raise DeviceUnavailable: the port has no device file, or this process may not open it.
        """
        super().__init__(reactor)
        self.doesRMPP = rmpp
        self.name = f"umad:{endPort.device.name}/{endPort.number}"
        self._sysfs = endPort
        self._agents: dict[tuple[int, int, int], _Agent] = {}
        self._served: dict[int, list[_Agent]] = {}
        # Requests whose answers the kernel waits for, each with its stored retransmission, if any.
        self._awaited: dict[bytes, tuple[bytes, bytes] | None] = {}
        self._buffer = bytearray(_LONGEST_READ)
        self._madName = endPort.madName
        try:
            self._fd = os.open(f"/dev/infiniband/{self._madName}", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise DeviceUnavailable(f"{self.name}: {error}") from error
        self._registry = Registry(self._fd)
        with ExitStack() as undo:
            undo.callback(os.close, self._fd)
            self.endPort = self.refresh()
            self.hasSMI = self._tryAgent(0, 0x81)
            undo.pop_all()

    def __repr__(self) -> str:
        return f"<UmadPort {self.name} LID {self.endPort.lid}>"

    # IMADPort

    def serve(self, managementClass: int, methods: Sequence[int], oui: int = 0) -> Callable[[], None]:
        """
        Let the kernel also deliver requests of this class with these methods.

        @raise ResourceExhausted: another program, or the kernel itself, receives them already.
        @raise InvalidRequest: the kernel has no such class.
        """
        if self._closed:
            raise DeviceUnavailable(f"{self.name} is closed")
        mask = 0
        for method in methods:
            mask |= 1 << (method & 0x7F)
        try:
            agent = self._register(managementClass, mask, oui)
        except OSError as error:
            if error.errno == errno.EINVAL and mask and self._permitsClass(managementClass, oui):
                raise ResourceExhausted(f"{self.name}: class {managementClass:#x} is in use") from error
            raise self._refused(error, f"class {managementClass:#x} can't be served") from error
        serving = self._served.setdefault(managementClass, [])
        serving.append(agent)

        def end() -> None:
            if agent in serving:
                serving.remove(agent)
                self._unregister(agent)

        return end

    def send(self, datagram: Buffer, path: IBPath, answerWithin: float = 0.0) -> None:
        if self._closed:
            raise DeviceUnavailable(f"{self.name} is closed")
        managementClass = datagram[1]
        isResponse = bool(datagram[3] & 0x80)
        serving = self._served.get(managementClass) if isResponse else None
        agent = serving[0] if serving else self._agentFor(managementClass, datagram)
        header = self._envelope(agent, datagram, path, answerWithin)
        if answerWithin and not isResponse:
            key = _keyOf(datagram)
            if key in self._awaited:  # sent when the kernel has returned the first one
                self._awaited[key] = header, bytes(datagram)
                return
            self._awaited[key] = None
        self._write(header, bytes(datagram))

    def pathOf(self, envelope: object) -> IBPath:
        assert isinstance(envelope, Envelope)
        end = self.endPort
        sgid = dgid = None
        if envelope.hasGRH:
            sgid = GID(envelope.gid)
            dgid = end.gids[envelope.gidIndex] if envelope.gidIndex < len(end.gids) else None
        pkey = end.pkeys[envelope.pkeyIndex] if envelope.pkeyIndex < len(end.pkeys) else DEFAULT_PKEY
        return IBPath(
            slid=LID(envelope.lid),
            dlid=LID(end.lid | envelope.pathBits),
            serviceLevel=envelope.serviceLevel,
            sgid=sgid,
            dgid=dgid,
            trafficClass=envelope.trafficClass,
            flowLabel=envelope.flowLabel,
            hopLimit=envelope.hopLimit,
            pkey=pkey,
            sqpn=QPN(envelope.sqpn),
            dqpn=QPN(0 if envelope.isSMI else 1),
            qkey=0 if envelope.isSMI else GMP_QKEY,
        )

    def isFrom(self, envelope: object, path: IBPath) -> bool:
        assert isinstance(envelope, Envelope)
        sgid = GID(envelope.gid) if envelope.hasGRH else None
        return mayBeFrom(path, envelope.lid, sgid, self.endPort.lidMask)

    def refresh(self) -> MADEndPort:
        port = self._sysfs
        self._gids = port.gidTable()
        gids = tuple(entry.gid for entry in self._gids)
        self.endPort = MADEndPort(
            portGUID=port.guid or (gids[0].guid if gids else GUID(bytes(8))),
            gids=gids,
            portNum=port.number,
            lid=port.lid,
            lidMask=port.lidMask,
            smLID=port.smLID,
            smServiceLevel=port.smServiceLevel,
            pkeys=tuple(port.pkeys()) or (DEFAULT_PKEY,),
            names=tuple(filter(None, (f"{port.device.name}/{port.number}", port.device.name, port.netdev))),
        )
        return self.endPort

    def _release(self) -> None:
        os.close(self._fd)  # the kernel removes the agents

    # IReadDescriptor

    def fileno(self) -> int:
        return self._fd if not self._closed else -1

    def doRead(self) -> None:
        for _ in range(_BATCH):
            if self._closed:
                return
            try:
                length = self._read()
            except BlockingIOError:
                return
            except OSError as error:
                (self._lost if error.errno in _GONE else self._readFailed)(error)
                return
            self._failures = 0
            header, datagram = bytes(self._buffer[:_HEADER]), bytes(self._buffer[_HEADER:length])
            if len(self._buffer) > _LONGEST_READ:  # it has grown for this one
                self._buffer = bytearray(_LONGEST_READ)
            try:
                self._arrived(header, datagram)
            except Exception:
                _log.failure(
                    "the receiver of {port} raised when it was called with a datagram", port=self.name
                )

    # The kernel's interface.

    def _write(self, header: bytes, datagram: bytes) -> None:
        try:
            os.write(self._fd, header + datagram)
        except OSError as error:
            self._awaited.pop(_keyOf(datagram), None)
            raise self._refused(error, "the kernel refuses the datagram") from error

    def _refused(self, error: OSError, what: str) -> RDMAError:
        """Exception for an error of a system call; a port whose device was removed is reported as lost."""
        # Before Linux 5.6 nothing else shows that: reading blocks for ever, and EINVAL is ambiguous.
        if error.errno in _GONE or (error.errno == errno.EINVAL and self._sysfs.madName != self._madName):
            self._lost(error)
            return DeviceUnavailable(f"{self.name} is gone: {error}")
        if error.errno in (errno.EAGAIN, errno.ENOMEM, errno.ENOBUFS):
            return ResourceExhausted(f"{self.name}: {what}: the kernel's buffers are full: {error}")
        return InvalidRequest(f"{self.name}: {what}: {error}")

    def _read(self) -> int:
        """Read one datagram into the buffer, which grows for RMPP transfers; returns the length."""
        try:
            return os.readv(self._fd, [self._buffer])
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            needed = _LOCAL.unpack_from(self._buffer)[4]
            self._buffer = bytearray(max(needed, 2 * len(self._buffer)))
            return os.readv(self._fd, [self._buffer])

    def _arrived(self, header: bytes, datagram: bytes) -> None:
        receiver = self._receiver
        assert receiver is not None
        if len(header) < _HEADER or len(datagram) < _SHORTEST:
            return
        _agent, status, _timeout, _retries, _length = _LOCAL.unpack_from(header)
        isResponse = bool(datagram[3] & 0x80)
        if status:
            if not isResponse:  # an undelivered response is not reported
                self._kernelTimedOut(receiver, datagram, os.strerror(status))
            return
        if isResponse or datagram[3] == _TRAP_REPRESS:
            self._awaited.pop(_keyOf(datagram), None)
        qpn, qkey, lid, sl, bits, hasGRH, gidIndex, hops, tclass, gid, flow = _REMOTE.unpack_from(header, 20)
        (pkeyIndex,) = _PKEY_INDEX.unpack_from(header, 56)
        isSMI = datagram[1] & 0x7F == 1
        remote = (qpn, qkey, lid, sl, bits, bool(hasGRH), gidIndex, hops, tclass, gid, flow)
        receiver.received(datagram, Envelope(*remote, pkeyIndex, isSMI))

    def _kernelTimedOut(self, receiver: IMADReceiver, datagram: bytes, reason: str) -> None:
        """Handle the kernel's timeout of a request: send the stored retransmission, or report the request."""
        again = self._awaited.pop(_keyOf(datagram), None)
        if again is None:
            receiver.undeliverable(datagram, reason)
            return
        self._awaited[_keyOf(datagram)] = None
        try:
            self._write(*again)
        except RDMAError as error:
            receiver.undeliverable(datagram, str(error))

    def _envelope(self, agent: _Agent, datagram: Buffer, path: IBPath, answerWithin: float) -> bytes:
        end = self.endPort
        isSMI = agent.managementClass & 0x7F == 1
        milliseconds = min(int(answerWithin * _KERNEL_MILLISECONDS), _LONGEST_WAIT)
        if answerWithin and not milliseconds:
            milliseconds = 1  # with 0 the kernel would not wait at all
        resends = _RESENDS if self.doesRMPP and isRMPP(bytes(datagram[:36])) else 0
        pkeyIndex = self._pkeyIndex(path.pkey)
        try:
            local = _LOCAL.pack(agent.number, 0, milliseconds, resends, len(datagram))
            remote = _REMOTE.pack(
                0 if isSMI else path.dqpn or 1,
                0 if isSMI else path.qkey or GMP_QKEY,
                path.dlid,
                path.serviceLevel,
                path.slid & ((1 << end.lidMask) - 1),
                path.dgid is not None,
                sourceIndex(self._gids, path),
                path.hopLimit if end.lid else path.hopLimit or HOPS,
                path.trafficClass,
                path.dgid.raw if path.dgid is not None else bytes(16),
                path.flowLabel,
            )
        except structError as error:
            raise InvalidRequest(f"{self.name}: {path} does not fit into a header: {error}") from error
        return local + remote + _PKEY_INDEX.pack(pkeyIndex)

    def _pkeyIndex(self, pkey: PKey) -> int:
        """Index of a partition in the P_Key table."""
        index = partitionIndex(self.endPort.pkeys, pkey)
        if index is None:
            raise InvalidRequest(f"{self.name} is not in partition {pkey:#06x}")
        return index

    def _agentFor(self, managementClass: int, datagram: Buffer) -> _Agent:
        """Agent for requests of a class, registered when it is first needed."""
        oui = int.from_bytes(datagram[37:40], "big") if 0x30 <= managementClass <= 0x4F else 0
        key = (managementClass, oui, 0)
        agent = self._agents.get(key)
        if agent is None:
            try:
                agent = self._agents[key] = self._register(managementClass, 0, oui)
            except OSError as error:
                raise self._refused(error, f"class {managementClass:#x} cannot be sent here") from error
        return agent

    def _permitsClass(self, managementClass: int, oui: int) -> bool:
        """True if the kernel allows an agent for the class without requests."""
        try:
            self._unregister(self._register(managementClass, 0, oui))
        except OSError:
            return False
        return True

    def _tryAgent(self, qpn: int, managementClass: int) -> bool:
        try:
            self._agents[managementClass, 0, 0] = self._register(managementClass, 0, 0)
        except OSError as error:
            if error.errno in (errno.EPROTONOSUPPORT, errno.EINVAL, errno.EPERM):
                return False
            raise DeviceUnavailable(f"{self.name}: {error}") from error
        return True

    def _register(self, managementClass: int, methods: int, oui: int) -> _Agent:
        version = formatOf(managementClass).classVersion
        qpn = 0 if managementClass & 0x7F == 1 else 1
        rmpp = self.doesRMPP and managementClass in RMPP_CLASSES
        number = self._registry.register(qpn, managementClass, version, methods, oui, rmpp)
        return _Agent(number, managementClass)

    def _unregister(self, agent: _Agent) -> None:
        if not self._closed:
            try:
                self._registry.unregister(agent.number)
            except OSError as error:
                _log.debug(
                    "{port}: cannot unregister an agent: {error}", port=self.name, error=errorText(error)
                )
