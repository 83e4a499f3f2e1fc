"""
Paths to ports, from text that users type.

Follows InfiniBand Architecture vol. 1, 15.2.5.16 (PathRecord) and annex A17 (addresses on RoCE v2).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, Union

from txrdma.iba.path import GMP_QKEY, IBDRPath, IBPath, MADEndPort
from txrdma.iba.types import GID, GUID, LID, MTU, PKey, QPN
from txrdma.mad.layouts.sa import PathRecord

Target = Union[int, GID, GUID, IBPath, str]
"""Name of a port: a LID, a GID, a port GUID, a path, or text of one of these."""

EndPort = Union[MADEndPort, Callable[[], MADEndPort]]
"""LID, GIDs and SM of the local port, or a function that returns them, as they may change."""

_GUID: Final = re.compile(r"0x[0-9a-fA-F]{9,16}|[0-9a-fA-F]{16}|[0-9a-fA-F]{1,4}(:[0-9a-fA-F]{1,4}){3}")
_LID: Final = re.compile(r"(?:lid\s*)?(0x[0-9a-fA-F]{1,4}|\d{1,5})", re.IGNORECASE)
_ROUTE: Final = re.compile(r"DR\b.*|0(,\s*\d+)+,?( .*)?", re.IGNORECASE)
_IPV4: Final = re.compile(r"\d+(\.\d+){3}")
_HIGHEST_LID: Final = 0xFFFE


def parseTarget(text: str, endPort: MADEndPort | None = None) -> LID | GID | GUID | IBPath:
    """
    Parse the text of a target: C{"7"}, C{"lid 7"}, C{"fe80::2:c903:1:2"}, C{"fe80::2%mlx5_0/1"},
    C{"10.0.0.2"}, C{"0x0002c90300010002"}, C{"DR 0,1,3"}, or the text of a path.

    @param endPort: the local port, whose name the scope of a GID (after the percent sign) must be. Without
        it, the scope is ignored.
    @raise ValueError: the text is none of these.
    """
    stripped = text.strip()
    if "(" in stripped:
        return IBPath.fromString(stripped)
    if _ROUTE.fullmatch(stripped):
        return IBDRPath.fromString(stripped)
    if _GUID.fullmatch(stripped):
        return GUID.fromString(stripped)
    if (match := _LID.fullmatch(stripped)) is not None:
        lid = int(match[1], 0 if match[1].startswith("0x") else 10)
        return checkedLID(lid)
    if " " in stripped:
        return IBPath.fromString(stripped)
    return parseGID(text, stripped, endPort)


def isName(text: str) -> bool:
    """Return whether this is none of the texts that L{parseTarget} accepts."""
    try:
        parseTarget(text)
    except ValueError:
        return True
    return False


def checkedLID(lid: int) -> LID:
    """
    Return a number as a LID.

    @raise ValueError: it is not from 1 to 0xFFFE; 0xFFFF is the permissive LID, which no port has.
    """
    if not 0 < lid <= _HIGHEST_LID:
        raise ValueError(f"LIDs are from 1 to {_HIGHEST_LID}, not {lid}")
    return LID(lid)


def parseGID(text: str, stripped: str, endPort: MADEndPort | None) -> GID:
    """
    Parse a GID with or without a scope, or an IPv4 address, which is a GID on RoCE v2.

    @raise ValueError: the text is not a GID, or the scope is not a name of the local port.
    """
    address, percent, scope = stripped.partition("%")
    try:
        gid = GID.fromIP(address) if _IPV4.fullmatch(address) else GID.fromString(address)
    except ValueError:
        raise ValueError(
            f"{text!r} is not a port: a LID (7), a GID (fe80::...), a port GUID (0x...) or a route (DR 0,1)"
        ) from None
    if percent and (not scope or (endPort is not None and not endPort.isCalled(scope))):
        raise ValueError(f"{text!r}: the scope {scope!r} is not a name of the local port")
    return gid


def current(endPort: EndPort) -> MADEndPort:
    """Return the current LID, GIDs and SM of the local port."""
    return endPort() if callable(endPort) else endPort


def toLID(endPort: MADEndPort, lid: int, serviceLevel: int = 0) -> IBPath:
    """Return the path from the local port to a LID for management datagrams."""
    return IBPath(
        slid=endPort.lid, dlid=LID(lid), serviceLevel=serviceLevel, dqpn=QPN(1), sqpn=QPN(1), qkey=GMP_QKEY
    )


def toSA(endPort: MADEndPort) -> IBPath:
    """Return the path to the subnet administration (SA, IBA 15.4.2), which is at the LID of the master SM."""
    return toLID(endPort, endPort.smLID, endPort.smServiceLevel)


def pathOf(record: PathRecord) -> IBPath:
    """Return the path that a PathRecord describes, for management datagrams."""
    isGlobal = record.hopLimit > 1
    return IBPath(
        slid=record.slid,
        dlid=record.dlid,
        serviceLevel=record.serviceLevel,
        sgid=record.sgid if isGlobal else None,
        dgid=record.dgid if isGlobal else None,
        trafficClass=record.trafficClass,
        flowLabel=record.flowLabel,
        hopLimit=record.hopLimit,
        pkey=PKey(record.pkey),
        dqpn=QPN(1),
        sqpn=QPN(1),
        qkey=GMP_QKEY,
        mtu=MTU(record.mtu) if int(record.mtu) in tuple(map(int, MTU)) else None,
        packetLifeTime=record.packetLifeTime or None,
        reversible=record.reversible,
    )
