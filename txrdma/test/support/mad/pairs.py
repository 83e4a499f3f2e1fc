"""Two management ports joined by a lossy wire on a Clock, and a request handler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from zope.interface import implementer

from twisted.internet.interfaces import IReadDescriptor
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.iba.path import IBPath, MADEndPort
from txrdma.iba.types import GID, GUID, LID, QPN
from txrdma.iba.verbs import Buffer
from txrdma.interfaces import IMADHandler, IMADPort, IMADReceiver
from txrdma.mad.agent import MADAgent
from txrdma.mad.core.addressing import mayBeFrom
from txrdma.mad.layouts.attributes import ManagementClass, Method
from txrdma.mad.layouts.messages import MADRequest
from txrdma.mad.server import MADServer
from txrdma.testing.reactors import ReactorClock


@implementer(IMADHandler)
class Answers:
    """
    A handler that answers as the test defines.

    @ivar asked: received requests.
    """

    def __init__(self, how: Callable[[MADRequest], object]) -> None:
        self.how = how
        self.asked: list[MADRequest] = []

    def handle(self, request: MADRequest) -> object:
        self.asked.append(request)
        return self.how(request)


@implementer(IMADPort)
class WiredPort:
    """
    One end of the wire.

    @ivar failing: exceptions that the next calls of C{send} raise.
    """

    transactionIDBits = 32
    hasSMI = True
    doesRMPP = False

    def __init__(self, wire: Wire, lid: int) -> None:
        self.name = f"wire:{lid}"
        self.endPort = MADEndPort(
            portGUID=GUID.fromInt(lid), gids=(GID.fromParts(0xFE80 << 48, GUID.fromInt(lid)),), lid=LID(lid)
        )
        self.receiver: IMADReceiver | None = None
        self._wire = wire
        self.isClosed = False
        self.failing: list[Exception] = []

    def start(self, receiver: IMADReceiver) -> None:
        self.receiver = receiver

    def serve(self, managementClass: int, methods: Sequence[int], oui: int = 0) -> Callable[[], None]:
        return lambda: None

    def send(self, datagram: Buffer, path: IBPath, answerWithin: float = 0.0) -> None:
        if self.failing:
            raise self.failing.pop(0)
        self._wire.carry(bytes(datagram), path, self)

    def pathOf(self, envelope: object) -> IBPath:
        assert isinstance(envelope, IBPath)
        return envelope

    def isFrom(self, envelope: object, path: IBPath) -> bool:
        assert isinstance(envelope, IBPath)
        return mayBeFrom(path, envelope.slid, envelope.sgid, self.endPort.lidMask)

    def refresh(self) -> MADEndPort:
        return self.endPort

    def close(self) -> None:
        self.isClosed = True


class Wire:
    """
    A wire between two ports, LID 1 and LID 2.

    @ivar sent: all sent datagrams with the LIDs of their senders.
    @ivar lose: returns whether a datagram is lost.
    @ivar change: returns the datagrams that arrive instead of one: none, one or more.
    @ivar delay: returns the seconds by which a datagram arrives late.
    """

    def __init__(self, clock: Clock, seed: int = 0, loss: float = 0.0) -> None:
        self.clock = clock
        self.sent: list[tuple[int, bytes]] = []
        self.random = Random(seed)
        self.lose: Callable[[bytes], bool] = lambda datagram: self.random.random() < loss
        self.change: Callable[[bytes], Sequence[bytes]] = lambda datagram: (datagram,)
        self.delay: Callable[[], float] = lambda: 0.0
        self.ports = (WiredPort(self, 1), WiredPort(self, 2))

    def carry(self, datagram: bytes, path: IBPath, source: WiredPort) -> None:
        lid = source.endPort.lid
        self.sent.append((lid, datagram))
        if self.lose(datagram):
            return
        other = self.ports[1 if source is self.ports[0] else 0]
        if path.dlid not in (other.endPort.lid, 0xFFFF):
            return
        qpn = QPN(0 if datagram[1:2] in (b"\x01", b"\x81") else 1)
        came = IBPath(slid=lid, dlid=other.endPort.lid, sqpn=qpn, dqpn=qpn, pkey=path.pkey, qkey=path.qkey)
        for one in self.change(datagram):
            self.clock.callLater(0.001 + self.delay(), self._arrive, other, one, came)

    @staticmethod
    def _arrive(port: WiredPort, datagram: bytes, path: IBPath) -> None:
        if port.receiver is not None and not port.isClosed:
            port.receiver.received(datagram, path)


TO_1 = IBPath(dlid=LID(1), dqpn=QPN(1))
TO_2 = IBPath(dlid=LID(2), dqpn=QPN(1))


def removedDescriptors(test: SynchronousTestCase, clock: ReactorClock) -> list[int]:
    """Return a list to which each reader that is removed from the reactor adds its descriptor."""
    removed: list[int] = []
    remove = clock.removeReader

    def removeReader(reader: IReadDescriptor) -> None:
        removed.append(reader.fileno())
        remove(reader)

    test.patch(clock, "removeReader", removeReader)
    return removed


class WiredTestCase(SynchronousTestCase):
    """
    Two agents, joined by a wire; the other one serves.

    @cvar options: options of both agents.
    """

    options: dict[str, Any] = {}

    def setUp(self) -> None:
        self.clock = Clock()
        self.wire = Wire(self.clock)
        self.agent, self.other = (MADAgent(self.clock, port, **self.options) for port in self.wire.ports)
        self.server = MADServer(self.other)

    def serve(
        self,
        how: Callable[[MADRequest], object],
        managementClass: int = ManagementClass.PERFORMANCE,
        methods: Sequence[Method] = (Method.GET, Method.SET),
        oui: int = 0,
    ) -> Answers:
        answers = Answers(how)
        self.server.handle(managementClass, answers, methods, oui)
        return answers


def pass_(clock: Clock, seconds: float, step: float = 0.001) -> None:
    clock.pump([step] * round(seconds / step))
