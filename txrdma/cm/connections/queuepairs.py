"""
Attributes of queue pairs, by the messages that make a connection of them.

Follows InfiniBand Architecture vol. 1, 12.7 and 12.9.7. A passive queue pair is made ready to receive and to
send before the REP goes out, an active one before the RTU.
"""

from __future__ import annotations

from txrdma.cm.layouts.messages import CMPath, REP, REQ
from txrdma.cm.layouts.paths import pathOf, reversedPath
from txrdma.iba.types import MTU
from txrdma.iba.verbs import Access, AddressVector, QPAttributes, QPState


def toInit(port: int, responderResources: int, pkeyIndex: int = 0) -> QPAttributes:
    """
    The attributes with which a reliable connected queue pair leaves C{RESET}.

    @param port: the device's port of the primary path.
    @param responderResources: with any, the peer may read, and use atomics.
    """
    access = Access.LOCAL_WRITE | Access.REMOTE_WRITE
    if responderResources:
        access |= Access.REMOTE_READ | Access.REMOTE_ATOMIC
    return QPAttributes(state=QPState.INIT, port=port, pkeyIndex=pkeyIndex, access=access)


def toReceive(
    request: REQ, reply: REP, isActive: bool, port: int = 1, sgidIndex: int = 0, minRNRTimer: int = 0
) -> QPAttributes:
    """
    The attributes with which a queue pair becomes ready to receive.

    @param isActive: this end sent the REQ.
    @param sgidIndex: the place of the primary path's own GID in the port's table.
    @param minRNRTimer: the code of the pause that senders make while nothing is posted; 0 is 0.65 seconds.
    """
    path = request.primary if isActive else reversedPath(request.primary)
    mine, theirs = (request, reply) if isActive else (reply, request)
    return QPAttributes(
        state=QPState.RTR,
        address=addressOf(path, port, sgidIndex),
        pathMTU=MTU(int(request.pathMTU)),
        destinationQPN=reply.localQPN if isActive else request.localQPN,
        rqPSN=mine.startingPSN,
        maxDestRDAtomic=min(mine.responderResources, theirs.initiatorDepth),
        minRNRTimer=minRNRTimer,
    )


def toSend(request: REQ, reply: REP, isActive: bool) -> QPAttributes:
    """
    The attributes with which a queue pair becomes ready to send.

    @param isActive: this end sent the REQ.
    """
    mine, theirs = (request, reply) if isActive else (reply, request)
    timeout = request.primary.localACKTimeout
    if isActive:
        timeout = pathOf(request.primary).qpTimeout(reply.targetACKDelay)
    return QPAttributes(
        state=QPState.RTS,
        sqPSN=theirs.startingPSN,
        timeout=timeout,
        retryCount=request.retryCount,
        rnrRetry=theirs.rnrRetryCount,
        maxRDAtomic=min(mine.initiatorDepth, theirs.responderResources),
    )


def addressOf(path: CMPath, port: int, sgidIndex: int) -> AddressVector:
    """The address vector of packets that leave by a path."""
    way = pathOf(path)
    return AddressVector(
        dgid=path.remoteGID,
        sgidIndex=sgidIndex,
        port=port,
        hopLimit=path.hopLimit,
        trafficClass=path.trafficClass,
        flowLabel=path.flowLabel,
        serviceLevel=path.serviceLevel,
        dlid=way.dlid,
    )
