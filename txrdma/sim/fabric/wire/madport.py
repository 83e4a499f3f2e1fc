"""A management port attached to a simulated fabric, with the interface of a real device's port."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from zope.interface import implementer

from twisted.logger import Logger

from txrdma.error import DeviceUnavailable, InvalidRequest, ResourceExhausted
from txrdma.iba.path import GMP_QKEY, IBPath, MADEndPort
from txrdma.iba.types import DEFAULT_PKEY, GID, LID, PKey, QPN
from txrdma.iba.verbs import Buffer
from txrdma.interfaces import IMADPort, IMADReceiver
from txrdma.mad.core.addressing import mayBeFrom
from txrdma.mad.layouts.messages import MAD_LENGTH
from txrdma.mad.layouts.smp import PKeyTable, PortInfo
from txrdma.sim.fabric.model.nodes import PortAttachment, SimulatedPort, SUBNET_TIMEOUT
from txrdma.sim.fabric.model.pkeys import block

_log = Logger()


class SimulatedEnvelope(NamedTuple):
    """
    Headers of a datagram that was routed by LID; the path is made from them on demand.

    @ivar sent: path that the sender gave.
    @ivar lid: source LID, one that the sending port has.
    """

    sent: IBPath
    lid: LID
    isSMP: bool
    isAnswer: bool = False

    def back(self) -> SimulatedEnvelope:
        """Return the headers of the answer to this datagram."""
        return self._replace(isAnswer=True)

    def path(self) -> IBPath:
        """Return the path of the datagram, as its receiver sees it."""
        sent = self.sent
        path = IBPath(
            slid=self.lid,
            dlid=sent.dlid,
            serviceLevel=sent.serviceLevel,
            sgid=sent.sgid,
            dgid=sent.dgid,
            pkey=sent.pkey,
            dqpn=QPN(0 if self.isSMP else sent.dqpn or 1),
            sqpn=QPN(0 if self.isSMP else sent.sqpn or 1),
            qkey=0 if self.isSMP else sent.qkey or GMP_QKEY,
        )
        return path.reverse() if self.isAnswer else path


@implementer(IMADPort)
class SimulatedMADPort(PortAttachment):
    """
    A management port attached to a port of a simulated node.

    Requests that it serves are not passed to the agents of the node.
    """

    transactionIDBits = 64
    hasSMI = True
    doesRMPP = False

    def __init__(
        self, send: Callable[[SimulatedMADPort, bytes, IBPath], None], port: SimulatedPort, name: str = ""
    ) -> None:
        """@param send: sends a datagram of this port along a path."""
        super().__init__(port)
        self.name = name or f"sim:node={port.node.identifier}"
        self.endPort = self.refresh()
        self._receiver: IMADReceiver | None = None
        self._isClosed = False
        self._closers: list[Callable[[], None]] = []
        self._sent = send

    def __repr__(self) -> str:
        return f"<SimulatedMADPort {self.port} LID {self.port.lid}>"

    def start(self, receiver: IMADReceiver) -> None:
        self._receiver = receiver

    def serve(self, managementClass: int, methods: Sequence[int], oui: int = 0) -> Callable[[], None]:
        wanted = {(managementClass, method): oui for method in methods}
        for attachment in self.port.attachments:
            if any(attachment.serves(*key) for key in wanted):
                raise ResourceExhausted(f"class {managementClass:#04x} is served at {self.port} already")
        self._served.update(wanted)

        def end() -> None:
            for key in wanted:
                self._served.pop(key, None)

        return end

    def send(self, datagram: Buffer, path: IBPath, answerWithin: float = 0.0) -> None:
        if self._isClosed:
            raise DeviceUnavailable(f"{self.name} is closed")
        if len(datagram) != MAD_LENGTH:
            raise InvalidRequest(f"a datagram has {MAD_LENGTH} bytes here, not {len(datagram)}")
        self._sent(self, bytes(datagram), path)

    def deliver(self, datagram: bytes, envelope: object) -> None:
        receiver = self._receiver
        if receiver is not None and not self._isClosed:
            try:
                receiver.received(datagram, envelope)
            except Exception:
                _log.failure("while a datagram of {port} was handled", port=self.name)

    def pathOf(self, envelope: object) -> IBPath:
        if isinstance(envelope, SimulatedEnvelope):
            return envelope.path()
        assert isinstance(envelope, IBPath)
        return envelope

    def isFrom(self, envelope: object, path: IBPath) -> bool:
        if not isinstance(envelope, SimulatedEnvelope):
            return True
        sent = envelope.sent
        slid, sgid = (sent.dlid, sent.dgid) if envelope.isAnswer else (envelope.lid, sent.sgid)
        return mayBeFrom(path, slid, sgid, self.endPort.lidMask)

    def refresh(self) -> MADEndPort:
        """Read the addresses and P_Keys of the port, which the subnet manager may have changed."""
        port = self.port
        info = PortInfo.decode(port.info)
        keys = PKeyTable.decode(block(port, 0)).pkeys
        self.endPort = MADEndPort(
            portGUID=port.guid,
            gids=(GID.fromParts(info.gidPrefix, port.guid),),
            portNum=port.number,
            lid=info.lid,
            lidMask=info.lmc,
            smLID=info.masterSMLID,
            smServiceLevel=info.masterSMSL,
            pkeys=tuple(PKey(key) for key in keys if key) or (DEFAULT_PKEY,),
            # A port without an SM has 31, which is more than two hours.
            subnetTimeout=info.subnetTimeOut if info.masterSMLID else SUBNET_TIMEOUT,
        )
        return self.endPort

    def whenClosed(self, callback: Callable[[], None]) -> None:
        """Add a function that L{close} will call."""
        self._closers.append(callback)

    def close(self) -> None:
        if self._isClosed:
            return
        self._isClosed = True
        self.detach()
        for callback in self._closers:
            callback()

    def changed(self, mustRegister: bool) -> None:
        """Read the port again after a Set of its PortInfo, and report changes to the receiver."""
        receiver, before = self._receiver, self.endPort
        if receiver is not None and not self._isClosed and (self.refresh() != before or mustRegister):
            receiver.portChanged(mustRegister)

    def lose(self, reason: str) -> None:
        """Close the port, and report it lost, like a device that was removed."""
        receiver = self._receiver
        self.close()
        if receiver is not None:
            receiver.portLost(reason)
