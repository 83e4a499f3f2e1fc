"""
Attributes of queue pairs, derived from REQ and REP.

Follows InfiniBand Architecture vol. 1, 12.7 and 12.9.7. A passive queue pair enters RTR and RTS before the
REP is sent, an active one before the RTU.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from txrdma.cm.layouts.messages import CMPath, REP, REQ
from txrdma.cm.layouts.paths import pathOf
from txrdma.iba.types import MTU
from txrdma.iba.verbs import Access, AddressVector, Capacity, DeviceAttributes, QPAttributes, QPState

PATIENT_TIMEOUT: Final = 20
"""
The timeout where programs acknowledge packets: 4.3 seconds, encoded; with seven retries, 34 seconds. Lost
packets are sent again much earlier: see L{txrdma.soft.core.roundtrip}.
"""

_SHARED: Final = 256
"""Number of addresses, and of capacities, that connections share."""

WRITABLE: Final = Access.LOCAL_WRITE | Access.REMOTE_WRITE
"""Access flags of a queue pair whose peer may write, but neither read nor use atomic operations."""

READABLE: Final = WRITABLE | Access.REMOTE_READ | Access.REMOTE_ATOMIC
"""All access. Operators of flags are slow, so this is not computed for each connection."""


def toInit(port: int, responderResources: int, pkeyIndex: int = 0) -> QPAttributes:
    """
    Return the attributes for the transition of a reliable connected queue pair to INIT.

    @param port: the device's port of the primary path.
    @param responderResources: outstanding reads and atomics of the peer; with 0 it may not use them.
    """
    access = READABLE if responderResources else WRITABLE
    return QPAttributes(state=QPState.INIT, port=port, pkeyIndex=pkeyIndex, access=access)


def toReceive(
    request: REQ, reply: REP, isActive: bool, address: AddressVector, minRNRTimer: int = 0
) -> QPAttributes:
    """
    Return the attributes for the transition to RTR.

    @param isActive: this end sent the REQ.
    @param address: the destination of the primary path: see L{addressOf}.
    @param minRNRTimer: the delay of senders that find no receive, encoded; 0 is 0.65 seconds.
    """
    own, peer = (request, reply) if isActive else (reply, request)
    return QPAttributes(
        state=QPState.RTR,
        address=address,
        pathMTU=MTU(int(request.pathMTU)),
        destinationQPN=reply.localQPN if isActive else request.localQPN,
        rqPSN=own.startingPSN,
        maxDestRDAtomic=min(own.responderResources, peer.initiatorDepth),
        minRNRTimer=minRNRTimer,
    )


def leastTimeout(attributes: DeviceAttributes) -> int:
    """Return the shortest timeout of queue pairs of a device, encoded."""
    return PATIENT_TIMEOUT if attributes.acknowledgesByProgram else 0


def toSend(request: REQ, reply: REP, isActive: bool, leastTimeout: int = 0) -> QPAttributes:
    """
    Return the attributes for the transition to RTS.

    @param isActive: this end sent the REQ.
    @param leastTimeout: the timeout, encoded, if that of the path and the peer's device is shorter.
    """
    own, peer = (request, reply) if isActive else (reply, request)
    timeout = request.primary.localACKTimeout
    if isActive:
        timeout = pathOf(request.primary).qpTimeout(reply.targetACKDelay)
    return QPAttributes(
        state=QPState.RTS,
        sqPSN=peer.startingPSN,
        timeout=max(timeout, leastTimeout),
        retryCount=request.retryCount,
        rnrRetry=peer.rnrRetryCount,
        maxRDAtomic=min(own.initiatorDepth, peer.responderResources),
    )


@lru_cache(maxsize=_SHARED)
def capacityOf(sends: int, receives: int, inline: int) -> Capacity:
    """
    Return the capacity of queue pairs of connections.

    @param inline: the number of bytes that can be sent inline.
    """
    return Capacity(sends, receives, 1, 1, inline)


@lru_cache(maxsize=_SHARED)
def addressOf(path: CMPath, port: int = 1, sgidIndex: int = 0, lidMask: int = 0) -> AddressVector:
    """
    Return the address vector of a path.

    @param port: the port with the path's source GID, which is at C{sgidIndex} of its table.
    @param lidMask: the LMC of the port.
    """
    return AddressVector(
        dgid=path.remoteGID,
        sgidIndex=sgidIndex,
        port=port,
        hopLimit=path.hopLimit,
        trafficClass=path.trafficClass,
        flowLabel=path.flowLabel,
        serviceLevel=path.serviceLevel,
        dlid=pathOf(path).dlid,
        sourcePathBits=path.localLID & (1 << lidMask) - 1,
    )
