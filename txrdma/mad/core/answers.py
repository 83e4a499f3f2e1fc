"""
Answers to calls of this end: whether they match, redirections, and the records of tables.

Follows InfiniBand Architecture vol. 1, 13.4.6.4 (which answer belongs to which request), 13.4.8.1
(redirection) and 15.2.1 (tables). Nothing here reads a clock or a socket.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Final

from txrdma.error import WireError
from txrdma.iba.path import GMP_QKEY, IBPath
from txrdma.iba.types import LID, PKey, QPN
from txrdma.kit.wire import Buffer
from txrdma.mad.layouts.attributes import Attribute, Method, RPC
from txrdma.mad.layouts.messages import ClassPortInfo, formatOf, MAD_LENGTH, SAFormat
from txrdma.mad.layouts.sa import PathRecord

HEADER: Final = Struct(">BBBBH2xQH2xI")
"""Base version, class, class version, method, status, transaction, attribute, modifier."""

OFFSETS: Final = {number: formatOf(number).dataOffset for number in range(256)}
"""Offset of the attribute in a MAD, by the number of the management class."""

TABLES: Final = (Method.GET_TABLE_RESP, Method.GET_MULTI_RESP)


def check(rpc: RPC, kind: type[Attribute], request: bytes, answer: bytes) -> None:
    """Check an answer of the same class and transaction; raise L{WireError} if it answers another request."""
    name = kind.__name__
    base, _, version, method, _, _, attributeID, modifier = HEADER.unpack_from(answer)
    asked = HEADER.unpack_from(request)
    if method != rpc.answer:
        raise WireError(name, 3, f"{rpc.name} is answered by {Method(method).name}")
    if (base, version) != (asked[0], asked[2]):
        raise WireError(name, 0, f"the answer is of version {base}, its class of {version}")
    if not isOf(rpc, kind, attributeID):
        raise WireError(name, 16, f"the answer is of attribute {attributeID:#06x}")
    if modifier != asked[7]:
        raise WireError(name, 20, f"the answer has the modifier {modifier:#x}, not {asked[7]:#x}")


def isOf(rpc: RPC, kind: type[Attribute], attributeID: int) -> bool:
    """True if an answer may have this attribute ID: that of PathRecord also answers a GetMulti."""
    return attributeID in (kind.attributeID, PathRecord.attributeID if rpc.method is Method.GET_MULTI else -1)


def answerOf(rpc: RPC, kind: type[Attribute], first: bytes, message: bytes) -> Attribute | Records:
    """
    Answer in the message of an RMPP transfer.

    @param first: first datagram of the transfer; C{message} is the attribute data of all of them.
    @return: the attribute; for a table its records, not decoded yet.
    @raise WireError: the message is not such an attribute.
    """
    if rpc.answer in TABLES:
        return Records(PathRecord if rpc.method is Method.GET_MULTI else kind, first, message)
    return kind.decode(message)


def rawKind(kind: type[Attribute]) -> type[Attribute]:
    """Return a kind of attribute that is decoded as its bytes; its name begins with an underscore."""
    size = kind.size

    def decode(buffer: Buffer, offset: int = 0) -> Any:
        return bytes(buffer[offset : offset + size])

    content = {"attributeID": kind.attributeID, "rpcs": kind.rpcs, "size": size}
    return type(f"_{kind.__name__}", (Attribute,), {**content, "decode": staticmethod(decode)})


def redirected(path: IBPath, datagram: bytes) -> IBPath | None:
    """
    Path to the node that a REDIRECT answer names (IBA 13.4.8.1).

    @return: None if it names no node. The path has no LID if the answer has a GID only.
    @raise WireError: the answer is too short.
    """
    info = ClassPortInfo.decode(datagram, OFFSETS[datagram[1]])
    hasGID = any(info.redirectGID.raw)
    if not hasGID and not info.redirectLID:
        return None
    return IBPath(
        slid=path.slid,
        dlid=LID(info.redirectLID),
        serviceLevel=info.redirectServiceLevel,
        sgid=path.sgid,
        dgid=info.redirectGID if hasGID and (path.hasGRH or not info.redirectLID) else None,
        hopLimit=path.hopLimit,
        trafficClass=info.redirectTrafficClass,
        flowLabel=info.redirectFlowLabel,
        pkey=PKey(info.redirectPKey) or path.pkey,
        dqpn=QPN(info.redirectQPN) or QPN(1),
        qkey=info.redirectQKey or GMP_QKEY,
        packetLifeTime=path.packetLifeTime,
    )


MOST_RECORDS: Final = 500_000
"""Maximum number of records of a table: a subnet of 49,151 LIDs has at most some 450,000 ends of links."""


class Records:
    """
    Records of a table, decoded in slices.

    @ivar count: number of all records.
    @ivar decoded: the records decoded so far.
    """

    def __init__(self, kind: type[Attribute], first: bytes, message: bytes) -> None:
        """
        @param first: first datagram of the table; its header has the distance of records.
        @raise WireError: the message is not a whole number of records.
        """
        size = kind.size
        header = first if len(first) == MAD_LENGTH else first[:MAD_LENGTH].ljust(MAD_LENGTH, b"\0")
        distance = SAFormat.decode(header).attributeOffset * 8 or -(-size // 8) * 8
        if distance < size:
            raise WireError(kind.__name__, 44, f"records of {size} bytes are {distance} apart")
        self.count = (len(message) + distance - size) // distance
        if self.count > MOST_RECORDS:
            raise WireError(kind.__name__, 44, f"there are {self.count} records, more than {MOST_RECORDS}")
        if any(message[self.count * distance :]):
            raise WireError(kind.__name__, 44, f"after {self.count} records there is a partial one")
        self.decoded: list[Attribute] = []
        self._decode = kind.decode
        self._message = message
        self._distance = distance

    def more(self, most: int) -> bool:
        """
        Decode up to this many further records.

        @return: True if all records are decoded now.
        """
        begin = len(self.decoded)
        end = min(self.count, begin + most)
        decode, message, distance = self._decode, self._message, self._distance
        self.decoded += [decode(message, number * distance) for number in range(begin, end)]
        return end == self.count


def whole(first: bytes, message: bytes) -> bytes:
    """The message of an RMPP transfer, for ports that segment it themselves: headers and all data."""
    return first[: OFFSETS[first[1]]] + message
