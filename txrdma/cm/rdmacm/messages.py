"""
REQs and REPs for connections of the kernel's manager, which does not report the messages themselves.

The kernel reports addresses, a few parameters, and attributes of the queue pair. The REQ and the REP made of
them lead to the same attributes (see L{txrdma.cm.connections.queuepairs}).
"""

from __future__ import annotations

from typing import Final

from txrdma.cm.layouts.ipcm import IPAddresses
from txrdma.cm.layouts.messages import CMPath, REP, REP_PRIVATE_BYTES, REQ, REQ_PRIVATE_BYTES
from txrdma.cm.layouts.paths import reversedPath
from txrdma.cm.rdmacm.library import Ends, Parameters, Prepared
from txrdma.iba.path import PERMISSIVE_LID
from txrdma.iba.types import DEFAULT_PKEY, LID
from txrdma.mad.layouts.values import PathMTU

HEADER: Final = 36
"""Bytes of a REQ's private data that the kernel itself writes and reads: addresses of both ends."""


def pathFrom(ends: Ends, prepared: Prepared) -> CMPath:
    """The primary path, as this end sees it."""
    isRoutable = prepared.isGlobal and prepared.hopLimit > 1
    return CMPath(
        localLID=PERMISSIVE_LID if isRoutable else LID(prepared.pathBits),
        remoteLID=PERMISSIVE_LID if isRoutable else LID(prepared.dlid),
        localGID=ends.sgid,
        remoteGID=ends.dgid,
        flowLabel=prepared.flowLabel,
        trafficClass=prepared.trafficClass,
        hopLimit=prepared.hopLimit,
        serviceLevel=prepared.serviceLevel,
        subnetLocal=not isRoutable,
        localACKTimeout=prepared.timeout,
    )


def _partition(ends: Ends, prepared: Prepared) -> int:
    """The P_Key of a connection; the default one over Ethernet, where the kernel reports none (IBA A16)."""
    return DEFAULT_PKEY if prepared.isGlobal and not prepared.dlid else ends.pkey


def requestOf(serviceID: int, ends: Ends, parameters: Parameters, prepared: Prepared) -> REQ:
    """The REQ of a peer, with addresses before the private data as on the wire."""
    privateData = _withAddresses(ends.destination, ends.source, parameters.privateData)
    return REQ(
        serviceID=serviceID,
        localQPN=parameters.qpn,
        startingPSN=prepared.sqPSN,
        pathMTU=PathMTU(prepared.pathMTU),
        pkey=_partition(ends, prepared),
        responderResources=parameters.initiatorDepth,  # of the peer: it serves what we begin
        initiatorDepth=parameters.responderResources,
        retryCount=prepared.retryCount,
        rnrRetryCount=prepared.rnrRetry,
        primary=reversedPath(pathFrom(ends, prepared)),
        privateData=privateData,
    )


def _withAddresses(active: tuple[str, int], passive: tuple[str, int], privateData: bytes) -> bytes:
    """The private data of a REQ from one address to another, as on the wire."""
    header = IPAddresses(*active, passive[0]).toPrivateData(privateData)
    return header.ljust(REQ_PRIVATE_BYTES, b"\0")[:REQ_PRIVATE_BYTES]


def requestSent(request: REQ, ends: Ends, prepared: Prepared) -> REQ:
    """The REQ of this end, with fields filled in by the kernel, which also chooses the port of this end."""
    return request.replace(
        startingPSN=prepared.rqPSN,
        pathMTU=PathMTU(prepared.pathMTU),
        pkey=_partition(ends, prepared),
        retryCount=prepared.retryCount,
        primary=pathFrom(ends, prepared),
        privateData=_withAddresses(ends.source, ends.destination, request.privateData[HEADER:]),
    )


def replyOf(parameters: Parameters, prepared: Prepared) -> REP:
    """The REP of a peer."""
    return REP(
        localQPN=prepared.destinationQPN,
        startingPSN=prepared.sqPSN,
        responderResources=parameters.initiatorDepth,
        initiatorDepth=parameters.responderResources,
        rnrRetryCount=prepared.rnrRetry,
        privateData=parameters.privateData.ljust(REP_PRIVATE_BYTES, b"\0"),
    )
