"""
Frames of MADs around the bytes of an attribute.

Frames are declared in L{txrdma.mad.layouts.messages}; those of subnet, performance and communication
management, which sweeps, monitors and servers send in large numbers, are packed here by hand (0.7
microseconds instead of 4.6, Python 3.11).
"""

from __future__ import annotations

from struct import error as structError
from struct import Struct
from typing import Final, NamedTuple

from txrdma.error import InvalidRequest
from txrdma.iba.path import IBDRPath, IBPath
from txrdma.mad.layouts.attributes import ManagementClass, Method
from txrdma.mad.layouts.messages import (
    BMFormat,
    CommMgtFormat,
    CongMgtFormat,
    DevMgtFormat,
    formatOf,
    MADFormat,
    MADHeader,
    RMPPHeader,
    SAFormat,
    VendorOUIFormat,
)

LONGEST_ROUTE: Final = 63
"""Maximum number of hops of a directed route (IBA 14.2.2.1)."""

_CONGESTION_LOG: Final = 0x0013
_LOG_DATA: Final = 32
"""
Size of the log data in congestion control, which precedes the data of all its attributes (IBA annex A10.4.1).
"""

_DIRECTED: Final = Struct(">IIQHxxIQHH28x64sx63s64x")
_DIRECTED_CLASS: Final = 0x01810100
_LID_ROUTED: Final = Struct(">BBBBHHQHHIQ32x64s128x")
_PERFORMANCE: Final = Struct(">BBBBHHQHHI40x192s")
_COMMUNICATION: Final = Struct(">BBBBHHQHHI232s")
_COMMUNICATION_BYTES: Final = 232


class Keys(NamedTuple):
    """Keys that some classes require in requests: M_Key, SM_Key, B_Key, CC_Key, and the OUI of a vendor."""

    mkey: int = 0
    smKey: int = 0
    bkey: int = 0
    ccKey: int = 0
    oui: int = 0


NO_KEYS: Final = Keys()


def managementPacket(
    method: int, transactionID: int, attributeID: int, modifier: int, payload: bytes, path: IBPath, mkey: int
) -> bytes:
    """
    Make a datagram of subnet management, with a directed route if the path is one.

    @raise InvalidRequest: the route is too long, or a value does not fit into its field.
    """
    try:
        if not isinstance(path, IBDRPath):
            return _LID_ROUTED.pack(
                1, 0x01, 1, method, 0, 0, transactionID, attributeID, 0, modifier, mkey, payload
            )
        route = path.drPath
        head, hops, slid, dlid = _DIRECTED_CLASS | method, len(route), path.drSLID, path.drDLID
        if hops > LONGEST_ROUTE:
            raise InvalidRequest(f"a directed route has at most {LONGEST_ROUTE} hops, not {hops}")
        return _DIRECTED.pack(
            head, hops, transactionID, attributeID, modifier, mkey, slid, dlid, payload, bytes(route)
        )
    except (structError, TypeError, ValueError) as error:
        raise InvalidRequest(f"no such datagram: {error}") from error


def performancePacket(
    method: int, transactionID: int, attributeID: int, modifier: int, payload: bytes
) -> bytes:
    """
    Make a datagram of performance management: a monitor sends thousands per second.

    @raise InvalidRequest: a value does not fit into its field.
    """
    try:
        return _PERFORMANCE.pack(1, 0x04, 1, method, 0, 0, transactionID, attributeID, 0, modifier, payload)
    except (structError, TypeError, ValueError) as error:
        raise InvalidRequest(f"no such datagram: {error}") from error


def frame(
    managementClass: int,
    method: int,
    transactionID: int,
    attributeID: int,
    modifier: int,
    payload: bytes,
    keys: Keys = NO_KEYS,
    componentMask: int = 0,
    rmpp: RMPPHeader | None = None,
    status: int = 0,
    attributeOffset: int = 0,
) -> bytes:
    """
    Make a datagram of any class except subnet management.

    @raise txrdma.error.WireError: a value does not fit into its field.
    """
    kind = formatOf(managementClass)
    if kind is CommMgtFormat and len(payload) <= _COMMUNICATION_BYTES:
        try:
            return _COMMUNICATION.pack(
                *(1, managementClass, kind.classVersion, method, status, 0, transactionID),
                *(attributeID, 0, modifier, payload),
            )
        except structError:
            pass  # the layout below reports the field
    header = MADHeader(
        baseVersion=1,
        managementClass=ManagementClass(managementClass),
        classVersion=kind.classVersion,
        method=Method(method),
        status=status,
        transactionID=transactionID,
        attributeID=attributeID,
        attributeModifier=modifier,
    )
    return _framed(kind, header, payload, keys, componentMask, rmpp or RMPPHeader(), attributeOffset).encode()


def _framed(
    kind: type[MADFormat],
    header: MADHeader,
    payload: bytes,
    keys: Keys,
    componentMask: int,
    rmpp: RMPPHeader,
    attributeOffset: int,
) -> MADFormat:
    log = b""
    if kind is CongMgtFormat and header.attributeID == _CONGESTION_LOG:
        log, payload = payload[:_LOG_DATA], payload[_LOG_DATA:]
    capacity = 256 - kind.dataOffset
    if len(payload) > capacity:
        raise InvalidRequest(f"{kind.__name__} has room for {capacity} bytes, not {len(payload)}")
    content = payload.ljust(capacity, b"\0")
    if kind is SAFormat:
        return SAFormat(
            header=header,
            rmpp=rmpp,
            smKey=keys.smKey,
            attributeOffset=attributeOffset,
            componentMask=componentMask,
            payload=content,
        )
    if kind is DevMgtFormat:
        return DevMgtFormat(header=header, rmpp=rmpp, payload=content)
    if kind is VendorOUIFormat:
        return VendorOUIFormat(header=header, rmpp=rmpp, oui=keys.oui, payload=content)
    if kind is BMFormat:
        return BMFormat(header=header, bkey=keys.bkey, payload=content)
    if kind is CongMgtFormat:
        return CongMgtFormat(
            header=header, ccKey=keys.ccKey, logData=log.ljust(_LOG_DATA, b"\0"), payload=content
        )
    return kind(header=header, payload=content)  # type: ignore[call-arg]  # each has these two
