"""Management ports with prepared answers, which measure the cost of the local end alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct

from zope.interface import implementer

from twisted.internet.interfaces import IReactorTime

from txrdma.iba.path import IBPath, MADEndPort
from txrdma.iba.types import GID, GUID, LID, QPN
from txrdma.iba.verbs import Buffer, NodeType
from txrdma.interfaces import IMADPort, IMADReceiver
from txrdma.mad.layouts.attributes import ManagementClass, Method
from txrdma.mad.layouts.messages import MADHeader, RMPPHeader, RMPPType, SAFormat
from txrdma.mad.layouts.sa import PathRecord
from txrdma.mad.layouts.smp import NodeInfo
from txrdma.mad.layouts.values import PathMTU, Rate

_ROOM = 200
"""Bytes of records in each segment of subnet administration."""

_SA_OVERHEAD = 20
"""Bytes between the RMPP header and the records, which lengths include."""

_RMPP = Struct(">24xBB2xII")
_PREFIX = 0xFE80 << 48


@implementer(IMADPort)
class ReadyPort:
    """A port whose prepared answers arrive in the next iteration of the reactor, all at once."""

    name = "ready"
    transactionIDBits = 64
    hasSMI = True
    doesRMPP = False
    endPort = MADEndPort(GUID.fromInt(1), (), lid=LID(1), smLID=LID(2))

    def __init__(self, reactor: IReactorTime) -> None:
        self._reactor = reactor
        self._answers: list[bytes] = []
        self._receiver: IMADReceiver | None = None

    def start(self, receiver: IMADReceiver) -> None:
        self._receiver = receiver

    def serve(self, managementClass: int, methods: Sequence[int], oui: int = 0) -> Callable[[], None]:
        """Ignore handlers: the port delivers no requests."""
        return lambda: None

    def send(self, datagram: Buffer, path: IBPath, answerWithin: float = 0.0) -> None:
        """Queue the prepared answer."""
        if not self._answers:
            self._reactor.callLater(0, self._turn)
        self._answers += self.answers(datagram)

    def answers(self, datagram: Buffer) -> Sequence[bytes]:
        """Return the answers to a request."""
        raise NotImplementedError

    def _turn(self) -> None:
        answers, self._answers = self._answers, []
        receiver = self._receiver
        if receiver is not None:
            for answer in answers:
                receiver.received(answer, None)

    def pathOf(self, envelope: object) -> IBPath:
        """Return the path of an answer."""
        return IBPath(slid=LID(2), dlid=LID(1), dqpn=QPN(1), sqpn=QPN(1))

    def isFrom(self, envelope: object, path: IBPath) -> bool:
        """Return True: there is only one node."""
        return True

    def refresh(self) -> MADEndPort:
        """Do nothing: the port does not change."""
        return self.endPort

    def close(self) -> None:
        self._receiver = None


class NodeInfoPort(ReadyPort):
    """Returns the same NodeInfo for every directed route."""

    def __init__(self, reactor: IReactorTime) -> None:
        super().__init__(reactor)
        info = NodeInfo(nodeType=NodeType.SWITCH, numPorts=36, nodeGUID=GUID.fromInt(2), localPortNum=1)
        header = MADHeader(
            baseVersion=1,
            managementClass=ManagementClass.SUBN_DIRECTED,
            classVersion=1,
            method=Method.GET_RESP,
            status=0x8000,
            attributeID=NodeInfo.attributeID,
        )
        whole = header.encode().ljust(64, b"\0") + info.encode().ljust(192, b"\0")
        self._head, self._tail = whole[:8], whole[16:]

    def answers(self, datagram: Buffer) -> Sequence[bytes]:
        return (self._head + datagram[8:16] + self._tail,)


class AdministrationPort(ReadyPort):
    """
    Subnet administration with a table of path records, which respects the RMPP window.

    @ivar segments: the table as datagrams without transaction IDs, made before the measurement.
    """

    def __init__(self, reactor: IReactorTime, records: int) -> None:
        super().__init__(reactor)
        table = b"".join(
            PathRecord(
                sgid=GID.fromParts(_PREFIX, GUID.fromInt(1)),
                dgid=GID.fromParts(_PREFIX, GUID.fromInt(number + 1)),
                slid=LID(1),
                dlid=LID(number % 0xBFFF + 1),
                pkey=0xFFFF,
                mtu=PathMTU(5),
                rate=Rate(16),
                packetLifeTime=18,
            ).encode()
            for number in range(records)
        )
        self.segments = list(_segments(table))
        self._sent = 0

    def answers(self, datagram: Buffer) -> Sequence[bytes]:
        _version, kind, _acknowledged, windowEnd = _RMPP.unpack_from(datagram)
        if kind != RMPPType.ACK:
            self._sent, windowEnd = 0, 1
        begin, self._sent = self._sent, max(self._sent, min(windowEnd, len(self.segments)))
        identifier = datagram[8:16]
        return [each[:8] + identifier + each[16:] for each in self.segments[begin : self._sent]]


def _segments(table: bytes) -> list[bytes]:
    header = MADHeader(
        baseVersion=1,
        managementClass=ManagementClass.SUBN_ADM,
        classVersion=2,
        method=Method.GET_TABLE_RESP,
        attributeID=PathRecord.attributeID,
    )
    pieces = [table[at : at + _ROOM] for at in range(0, len(table), _ROOM)] or [b""]
    made = []
    for number, piece in enumerate(pieces, 1):
        isLast = number == len(pieces)
        length = len(table) + _SA_OVERHEAD * len(pieces) if number == 1 else 0
        rmpp = RMPPHeader(
            version=1,
            type=RMPPType.DATA,
            active=True,
            first=number == 1,
            last=isLast,
            data1=number,
            data2=len(piece) + _SA_OVERHEAD if isLast else length,
        )
        offset = PathRecord.size // 8
        frame = SAFormat(header=header, rmpp=rmpp, attributeOffset=offset, payload=piece.ljust(_ROOM, b"\0"))
        made.append(frame.encode())
    return made
