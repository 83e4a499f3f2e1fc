"""
Paths in messages: conversion from and to paths of programs, reversal and comparison.

Follows InfiniBand Architecture vol. 1, 12.7.11 to 12.7.22. Within the communication manager a path is the
L{CMPath} of a REQ, as its sender sees it; a LAP has the same fields in a different order.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from txrdma.cm.layouts.messages import CMPath, LAP
from txrdma.iba.path import IBPath, PERMISSIVE_LID, SUBNET_TIMEOUT
from txrdma.iba.types import GID, LID
from txrdma.mad.layouts.values import Rate

NO_PATH: Final = CMPath()
_NO_GID: Final = GID(bytes(16))

_SHARED: Final = 256
"""Number of paths that connections share: each takes up to 0.5 KiB with its GIDs."""


@lru_cache(maxsize=_SHARED)
def pathFor(path: IBPath, ackDelay: int = 0, rate: Rate = Rate.GBPS_2_5) -> CMPath:
    """
    Return the path of a REQ for packets that are sent over C{path}.

    @param ackDelay: the encoded time in which the sender's port acknowledges.
    """
    isRouted = path.dgid is not None and path.hopLimit > 1
    noLIDs = not path.slid and not path.dlid
    return CMPath(
        localLID=PERMISSIVE_LID if isRouted and noLIDs else path.slid,
        remoteLID=PERMISSIVE_LID if isRouted and noLIDs else path.dlid,
        localGID=path.sgid or _NO_GID,
        remoteGID=path.dgid or _NO_GID,
        flowLabel=path.flowLabel,
        packetRate=rate,
        trafficClass=path.trafficClass,
        hopLimit=path.hopLimit,
        serviceLevel=path.serviceLevel,
        subnetLocal=not isRouted,
        localACKTimeout=path.qpTimeout(ackDelay),
    )


def pathOf(path: CMPath) -> IBPath:
    """Return the path of packets to the peer, from the path of a REQ; without LIDs if it has only GIDs."""
    lids = path.localLID, path.remoteLID
    slid, dlid = (LID(0), LID(0)) if lids == (PERMISSIVE_LID, PERMISSIVE_LID) else lids
    return IBPath(
        slid=slid,
        dlid=dlid,
        sgid=None if path.localGID == _NO_GID else path.localGID,
        dgid=None if path.remoteGID == _NO_GID else path.remoteGID,
        flowLabel=path.flowLabel,
        trafficClass=path.trafficClass,
        hopLimit=path.hopLimit,
        serviceLevel=path.serviceLevel,
        packetLifeTime=lifeTimeOf(path),
    )


def lifeTimeOf(path: CMPath) -> int:
    """Return a path's encoded packet lifetime: half of its ACK timeout, if it has one."""
    return path.localACKTimeout - 1 if path.localACKTimeout else SUBNET_TIMEOUT


@lru_cache(maxsize=_SHARED)
def sharedPath(path: CMPath) -> CMPath:
    """Return an equal path, the same for all connections from the same address to the same address."""
    return path


@lru_cache(maxsize=_SHARED)
def reversedPath(path: CMPath) -> CMPath:
    """Return a path as its other end sees it."""
    return path.replace(
        localLID=path.remoteLID,
        remoteLID=path.localLID,
        localGID=path.remoteGID,
        remoteGID=path.localGID,
    )


def isPath(path: CMPath) -> bool:
    """True if a path of a REQ is present: a missing alternate path is all zeros."""
    hasLIDs = bool(path.localLID or path.remoteLID)
    return hasLIDs or path.localGID != _NO_GID or path.remoteGID != _NO_GID


def isLocal(path: CMPath) -> bool:
    """True if both ends of a path are at the same address."""
    return path.localGID == path.remoteGID != _NO_GID


def areSame(one: CMPath, other: CMPath) -> bool:
    """True if two paths of one end are the same; LIDs are compared on InfiniBand links only."""
    return _endpointsOf(one) == _endpointsOf(other)


def _endpointsOf(path: CMPath) -> tuple[object, ...]:
    isRoCE = PERMISSIVE_LID in (path.localLID, path.remoteLID) or not (path.localLID or path.remoteLID)
    lids = () if isRoCE else (path.localLID, path.remoteLID)
    return path.localGID, path.remoteGID, path.flowLabel, path.serviceLevel, path.trafficClass, lids


_ALTERNATE: Final = {
    name: f"alternate{name[0].upper()}{name[1:]}"
    for name in (
        *("localLID", "remoteLID", "localGID", "remoteGID", "flowLabel", "packetRate", "trafficClass"),
        *("hopLimit", "serviceLevel", "subnetLocal", "localACKTimeout"),
    )
}
"""The fields of a path, with their names in a LAP."""


def alternateOf(lap: LAP) -> CMPath:
    """Return the alternate path of a LAP, as its sender sees it."""
    return CMPath(**{name: getattr(lap, inLAP) for name, inLAP in _ALTERNATE.items()})


def lapFor(path: CMPath, lap: LAP) -> LAP:
    """Return a LAP with this alternate path."""
    return lap.replace(**{inLAP: getattr(path, name) for name, inLAP in _ALTERNATE.items()})
