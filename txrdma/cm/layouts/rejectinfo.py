"""
Additional information of a REJ, an APR or a SIDR_REP.

Follows InfiniBand Architecture vol. 1, 12.6.7.2, 12.8.2 and 12.11.2. A rejection of a value contains an
acceptable one, a redirection a ClassPortInfo.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Union

from txrdma.cm.layouts.messages import APR, APStatus, REJ, RejectReason, SIDRREP, SIDRStatus
from txrdma.error import WireError
from txrdma.iba.path import IBPath
from txrdma.iba.types import GID, GUID
from txrdma.kit.values import replace
from txrdma.kit.wire import Code
from txrdma.mad.layouts.messages import ClassPortInfo

Information = Union[GID, GUID, ClassPortInfo, int]
"""Additional information: an acceptable value, or for a timeout the CA GUID of the sender."""

_Kind = Union[type[GID], type[GUID], type[ClassPortInfo], int]

ROOM: Final = 72
"""Bytes for additional information in a message."""

_REASONS: Final[Mapping[Code, _Kind]] = {
    RejectReason.TIMEOUT: GUID,
    RejectReason.PRIMARY_GID_REJECTED: GID,
    RejectReason.PRIMARY_LID_REJECTED: 2,
    RejectReason.INVALID_PRIMARY_SL: 1,
    RejectReason.INVALID_PRIMARY_TRAFFIC_CLASS: 1,
    RejectReason.INVALID_PRIMARY_HOP_LIMIT: 1,
    RejectReason.INVALID_PRIMARY_PACKET_RATE: 1,
    RejectReason.ALTERNATE_GID_REJECTED: GID,
    RejectReason.ALTERNATE_LID_REJECTED: 2,
    RejectReason.INVALID_ALTERNATE_SL: 1,
    RejectReason.INVALID_ALTERNATE_TRAFFIC_CLASS: 1,
    RejectReason.INVALID_ALTERNATE_HOP_LIMIT: 1,
    RejectReason.INVALID_ALTERNATE_PACKET_RATE: 1,
    RejectReason.CM_AND_PORT_REDIRECT: ClassPortInfo,
    RejectReason.PORT_REDIRECT: ClassPortInfo,
    RejectReason.INVALID_PATH_MTU: 1,
    RejectReason.UNSUPPORTED_CLASS_VERSION: 1,
    RejectReason.INVALID_PRIMARY_FLOW_LABEL: 3,
    RejectReason.INVALID_ALTERNATE_FLOW_LABEL: 3,
}
_STATUSES: Final[Mapping[Code, _Kind]] = {
    APStatus.REDIRECT: ClassPortInfo,
    APStatus.LID_REJECTED: 2,
    APStatus.GID_REJECTED: GID,
    APStatus.FLOW_LABEL_REJECTED: 3,
    APStatus.TRAFFIC_CLASS_REJECTED: 1,
    APStatus.HOP_LIMIT_REJECTED: 1,
    APStatus.PACKET_RATE_REJECTED: 1,
    APStatus.SL_REJECTED: 1,
}
_RESOLUTIONS: Final[Mapping[Code, _Kind]] = {
    SIDRStatus.REDIRECT: ClassPortInfo,
    SIDRStatus.VERSION_NOT_SUPPORTED: 1,
}
"""For each reason, the type of its information; for a number, its length in bytes."""


def _kinds(reason: Code) -> Mapping[Code, _Kind]:
    if isinstance(reason, RejectReason):
        return _REASONS
    return _STATUSES if isinstance(reason, APStatus) else _RESOLUTIONS


def informationFor(reason: Code, value: Information | None) -> bytes:
    """
    Encode the additional information of a reason; nothing for None.

    @param reason: a L{RejectReason}, L{APStatus} or L{SIDRStatus}.
    @raise ValueError: the reason has no such information.
    """
    if value is None:
        return b""
    kind = _kinds(reason).get(reason)
    if isinstance(kind, int) and isinstance(value, int):
        if not 0 <= value < 1 << 8 * kind:
            raise ValueError(f"{value} does not fit into the {kind} bytes of {reason.name}")
        return value.to_bytes(kind, "big")
    if kind is ClassPortInfo and isinstance(value, ClassPortInfo):
        return value.encode()
    if isinstance(value, (GID, GUID)) and type(value) is kind:
        return value.raw
    raise ValueError(f"{value!r} is not additional information of {reason.name}")


def redirectedPath(path: IBPath, message: REJ | SIDRREP) -> IBPath | None:
    """
    Follow a redirection to another port.

    @param path: the path of the redirected request.
    @return: None if the redirection names no port, or a queue pair other than 1.
    """
    where = informationOf(message)
    if not isinstance(where, ClassPortInfo) or where.redirectQPN not in (0, 1):
        return None
    hasGID = any(where.redirectGID.raw)
    if not hasGID and not where.redirectLID:
        return None
    return replace(
        path,
        dgid=where.redirectGID if hasGID else path.dgid,
        dlid=where.redirectLID,
        serviceLevel=where.redirectServiceLevel,
        trafficClass=where.redirectTrafficClass,
        flowLabel=where.redirectFlowLabel,
    )


def informationOf(message: REJ | APR | SIDRREP) -> Information | None:
    """
    Decode the additional information of a message, by its reason and its length.

    None for a reason without additional information, and for information that is too short.
    """
    reason: Code
    if isinstance(message, REJ):
        reason, length = message.reason, message.rejectInfoLength
    elif isinstance(message, APR):
        reason, length = message.apStatus, message.additionalInfoLength
    else:
        reason, length = message.status, message.additionalInfoLength
    raw = message.additionalInfo[:length]
    kind = _kinds(reason).get(reason)
    if kind is None:
        return None
    if isinstance(kind, int):
        return int.from_bytes(raw[:kind], "big") if len(raw) >= kind else None
    try:
        if kind is ClassPortInfo:
            return ClassPortInfo.decode(raw)
        return GID(raw[:16]) if kind is GID else GUID(raw[:8])
    except (WireError, ValueError):
        return None
