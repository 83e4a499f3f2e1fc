"""
The messages of communication management.

Follows InfiniBand Architecture vol. 1, 12.6 to 12.11. Each has 232 bytes after the header; private data has
no length field: unused bytes are zero.
"""

from __future__ import annotations

from typing import Final

from txrdma.error import InvalidRequest, WireError
from txrdma.iba.types import GID, GUID, LID, QPN
from txrdma.kit.wire import bits, Code, data, Layout, nested, wire
from txrdma.mad.layouts.attributes import Attribute, attribute, key
from txrdma.mad.layouts.values import PathMTU, Rate

REQ_PRIVATE_BYTES: Final = 92
REP_PRIVATE_BYTES: Final = 196
DREQ_PRIVATE_BYTES: Final = 220
"""Largest number of bytes of private data that a REQ, a REP or a DREQ carries (IBA vol. 1, 12.6)."""


def checkPrivateData(octets: bytes, maximum: int, what: str = "private data") -> None:
    """Check that private data fits into a message. Raises L{InvalidRequest} if the data is too long."""
    if len(octets) > maximum:
        raise InvalidRequest(f"the message has at most {maximum} bytes of {what}, not {len(octets)}")


def checkFits(message: Layout) -> None:
    """
    Check that a message with fields of the application can be encoded.

    @raise InvalidRequest: the value of a field is too large, or has the wrong length.
    """
    try:
        message.encode()
    except WireError as error:
        raise InvalidRequest(
            f"{type(message).__name__} can't be sent: a field is too large or too long"
        ) from error


class CMTransport(Code):
    """The requested transport service of a connection (IBA 12.7.8)."""

    RC = 0
    UC = 1
    RD = 2
    EXTENDED = 3


class RejectReason(Code):
    """The reason of a REJ (IBA 12.6.7.2)."""

    NO_QP = 1
    NO_EEC = 2
    NO_RESOURCES = 3
    TIMEOUT = 4
    UNSUPPORTED_REQUEST = 5
    INVALID_COMM_ID = 6
    INVALID_COMM_INSTANCE = 7
    INVALID_SERVICE_ID = 8
    INVALID_TRANSPORT_TYPE = 9
    STALE_CONNECTION = 10
    RDC_DOES_NOT_EXIST = 11
    PRIMARY_GID_REJECTED = 12
    PRIMARY_LID_REJECTED = 13
    INVALID_PRIMARY_SL = 14
    INVALID_PRIMARY_TRAFFIC_CLASS = 15
    INVALID_PRIMARY_HOP_LIMIT = 16
    INVALID_PRIMARY_PACKET_RATE = 17
    ALTERNATE_GID_REJECTED = 18
    ALTERNATE_LID_REJECTED = 19
    INVALID_ALTERNATE_SL = 20
    INVALID_ALTERNATE_TRAFFIC_CLASS = 21
    INVALID_ALTERNATE_HOP_LIMIT = 22
    INVALID_ALTERNATE_PACKET_RATE = 23
    CM_AND_PORT_REDIRECT = 24
    PORT_REDIRECT = 25
    INVALID_PATH_MTU = 26
    INSUFFICIENT_RESPONDER_RESOURCES = 27
    CONSUMER_REJECT = 28
    RNR_RETRY_COUNT_REJECT = 29
    DUPLICATE_LOCAL_COMM_ID = 30
    UNSUPPORTED_CLASS_VERSION = 31
    INVALID_PRIMARY_FLOW_LABEL = 32
    INVALID_ALTERNATE_FLOW_LABEL = 33
    VENDOR_OPTION_NOT_SUPPORTED = 35


class MessageKind(Code):
    """The message to which an MRA or a REJ refers; in a REJ, C{LAP} means none (IBA 12.6.6, 12.6.7)."""

    REQ = 0
    REP = 1
    LAP = 2


class FailoverAccepted(Code):
    """The answer of a REP to the alternate path of its REQ (IBA 12.6.8). On the wire, 0 means accepted."""

    ACCEPTED = 0
    NOT_SUPPORTED = 1
    REJECTED = 2


class APStatus(Code):
    """The status of a LAP's alternate path in its answer (IBA 12.8.2)."""

    LOADED = 0
    INVALID_COMM_ID = 1
    NOT_SUPPORTED = 2
    REJECTED = 3
    REDIRECT = 4
    IS_CURRENT = 5
    QPN_EECN_DO_NOT_MATCH = 6
    LID_REJECTED = 7
    GID_REJECTED = 8
    FLOW_LABEL_REJECTED = 9
    TRAFFIC_CLASS_REJECTED = 10
    HOP_LIMIT_REJECTED = 11
    PACKET_RATE_REJECTED = 12
    SL_REJECTED = 13


class SIDRStatus(Code):
    """The status of a SIDR_REQ in its answer (IBA 12.11.2)."""

    VALID = 0
    SERVICE_ID_NOT_SUPPORTED = 1
    REJECTED = 2
    NO_QP = 3
    REDIRECT = 4
    VERSION_NOT_SUPPORTED = 5


@wire(44)
class CMPath(Layout):
    """One of the two paths in a REQ (IBA 12.6.5). Only the alternate path has C{sapSupported}."""

    localLID: LID = bits(16)
    remoteLID: LID = bits(16)
    localGID: GID = data(16)
    remoteGID: GID = data(16)
    flowLabel: int = bits(20)
    reserved: int = bits(6)
    packetRate: Rate = bits(6)
    trafficClass: int = bits(8)
    hopLimit: int = bits(8)
    serviceLevel: int = bits(4)
    subnetLocal: bool = bits(1)
    reserved2: int = bits(3)
    localACKTimeout: int = bits(5)
    sapSupported: bool = bits(1)
    reserved3: int = bits(2)


@attribute(0x0010, "CommMgtSend", size=232)
class REQ(Attribute):
    """Request for communication (IBA 12.6.5)."""

    localCommID: int = key(32)
    reserved: int = bits(8)
    vendorID: int = key(24)
    serviceID: int = key(64)
    localCAGUID: GUID = data(8)
    reserved2: int = bits(32)
    localQKey: int = key(32)
    localQPN: QPN = bits(24)
    responderResources: int = bits(8)
    localEECN: int = bits(24)
    initiatorDepth: int = bits(8)
    remoteEECN: int = bits(24)
    remoteCMResponseTimeout: int = bits(5)
    transport: CMTransport = bits(2)
    endToEndFlowControl: bool = bits(1)
    startingPSN: int = bits(24)
    localCMResponseTimeout: int = bits(5)
    retryCount: int = bits(3)
    pkey: int = key(16)
    pathMTU: PathMTU = bits(4)
    rdcExists: bool = bits(1)
    rnrRetryCount: int = bits(3)
    maxCMRetries: int = bits(4)
    srq: bool = bits(1)
    extendedTransport: int = bits(3)
    primary: CMPath = nested()
    alternate: CMPath = nested()
    privateData: bytes = data(92)


@attribute(0x0011, "CommMgtSend", size=232)
class MRA(Attribute):
    """Message receipt acknowledgement: the answer takes longer (IBA 12.6.6)."""

    localCommID: int = key(32)
    remoteCommID: int = key(32)
    messageMRAed: MessageKind = bits(2)
    reserved: int = bits(6)
    serviceTimeout: int = bits(5)
    reserved2: int = bits(3)
    privateData: bytes = data(222)


@attribute(0x0012, "CommMgtSend", size=232)
class REJ(Attribute):
    """Reject (IBA 12.6.7). C{additionalInfo} has C{rejectInfoLength} valid bytes."""

    localCommID: int = key(32)
    remoteCommID: int = key(32)
    messageRejected: MessageKind = bits(2)
    reserved: int = bits(6)
    rejectInfoLength: int = bits(7)
    reserved2: int = bits(1)
    reason: RejectReason = bits(16)
    additionalInfo: bytes = data(72)
    privateData: bytes = data(148)


@attribute(0x0013, "CommMgtSend", size=232)
class REP(Attribute):
    """Reply to a request for communication (IBA 12.6.8)."""

    localCommID: int = key(32)
    remoteCommID: int = key(32)
    localQKey: int = key(32)
    localQPN: QPN = bits(24)
    vendorIDHigh: int = bits(8)
    localEECN: int = bits(24)
    vendorIDMiddle: int = bits(8)
    startingPSN: int = bits(24)
    vendorIDLow: int = bits(8)
    responderResources: int = bits(8)
    initiatorDepth: int = bits(8)
    targetACKDelay: int = bits(5)
    failoverAccepted: FailoverAccepted = bits(2)
    endToEndFlowControl: bool = bits(1)
    rnrRetryCount: int = bits(3)
    srq: bool = bits(1)
    reserved: int = bits(4)
    localCAGUID: GUID = data(8)
    privateData: bytes = data(196)


@attribute(0x0014, "CommMgtSend", size=232)
class RTU(Attribute):
    """Ready to use (IBA 12.6.9)."""

    localCommID: int = key(32)
    remoteCommID: int = key(32)
    privateData: bytes = data(224)


@attribute(0x0015, "CommMgtSend", size=232)
class DREQ(Attribute):
    """Request for release (IBA 12.6.10)."""

    localCommID: int = key(32)
    remoteCommID: int = key(32)
    remoteQPN: QPN = bits(24)
    reserved: int = bits(8)
    privateData: bytes = data(220)


@attribute(0x0016, "CommMgtSend", size=232)
class DREP(Attribute):
    """Reply to a request for release (IBA 12.6.11)."""

    localCommID: int = key(32)
    remoteCommID: int = key(32)
    privateData: bytes = data(224)


@attribute(0x0017, "CommMgtSend", size=232)
class SIDRREQ(Attribute):
    """Service ID resolution request, for a datagram service's queue pair (IBA 12.11.1)."""

    requestID: int = key(32)
    pkey: int = key(16)
    reserved: int = bits(16)
    serviceID: int = key(64)
    privateData: bytes = data(216)


@attribute(0x0018, "CommMgtSend", size=232)
class SIDRREP(Attribute):
    """Service ID resolution response: the queue pair and its Q_Key (IBA 12.11.2)."""

    requestID: int = key(32)
    status: SIDRStatus = bits(8)
    additionalInfoLength: int = bits(8)
    vendorIDHigh: int = bits(16)
    qpn: QPN = bits(24)
    vendorIDLow: int = bits(8)
    serviceID: int = key(64)
    qkey: int = key(32)
    additionalInfo: bytes = data(72)
    privateData: bytes = data(136)


@attribute(0x0019, "CommMgtSend", size=232)
class LAP(Attribute):
    """Load alternate path (IBA 12.8.1). The order of its path's fields differs from a REQ."""

    localCommID: int = key(32)
    remoteCommID: int = key(32)
    reserved: int = bits(32)
    remoteQPN: QPN = bits(24)
    remoteCMResponseTimeout: int = bits(5)
    reserved2: int = bits(3)
    reserved3: int = bits(32)
    alternateLocalLID: LID = bits(16)
    alternateRemoteLID: LID = bits(16)
    alternateLocalGID: GID = data(16)
    alternateRemoteGID: GID = data(16)
    alternateFlowLabel: int = bits(20)
    reserved4: int = bits(4)
    alternateTrafficClass: int = bits(8)
    alternateHopLimit: int = bits(8)
    reserved5: int = bits(2)
    alternatePacketRate: Rate = bits(6)
    alternateServiceLevel: int = bits(4)
    alternateSubnetLocal: bool = bits(1)
    reserved6: int = bits(3)
    alternateLocalACKTimeout: int = bits(5)
    reserved7: int = bits(3)
    privateData: bytes = data(168)


@attribute(0x001A, "CommMgtSend", size=232)
class APR(Attribute):
    """Alternate path response (IBA 12.8.2)."""

    localCommID: int = key(32)
    remoteCommID: int = key(32)
    additionalInfoLength: int = bits(8)
    apStatus: APStatus = bits(8)
    reserved: int = bits(16)
    additionalInfo: bytes = data(72)
    privateData: bytes = data(148)
