"""
Limits of a software device, and errors for requests that exceed them.

Follows InfiniBand Architecture vol. 1, 11.2.1.2 (query HCA) and 11.2.4 to 11.2.8 (errors of creation).
"""

from __future__ import annotations

from collections.abc import Sized
from typing import Final

from txrdma.error import InvalidRequest, ResourceExhausted
from txrdma.iba.verbs import Capacity, DeviceLimits

LIMITS: Final = DeviceLimits(
    maxQueuePairs=1 << 15,  # half of the numbers of a share
    maxQueuePairRequests=1 << 16,
    maxSegments=256,
    maxCompletionQueues=1 << 16,
    maxCompletionQueueDepth=1 << 22,
    maxMemoryRegions=1 << 20,
    maxMemoryRegionLength=1 << 40,
    maxInline=1 << 31,  # the longest message (IBA 9.7.7.1.1.1); inline bytes are not copied when posted
    maxRDAtomic=16,
    maxDestRDAtomic=16,
    maxProtectionDomains=1 << 16,
    maxAddressHandles=1 << 20,
    maxSharedReceiveQueues=1 << 16,
    maxSharedReceiveQueueRequests=1 << 16,
    maxSharedReceiveQueueSegments=256,
)


def checkAvailable(there: Sized, most: int, what: str) -> None:
    if len(there) >= most:
        raise ResourceExhausted(f"the device has the maximum of {most} {what}")


def checkRange(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InvalidRequest(f"{name} is from {least} to {most}, not {value}")


def checkCapacity(capacity: Capacity, limits: DeviceLimits) -> None:
    for name, most in (
        ("maxSend", limits.maxQueuePairRequests),
        ("maxReceive", limits.maxQueuePairRequests),
        ("maxSendSegments", limits.maxSegments),
        ("maxReceiveSegments", limits.maxSegments),
        ("maxInline", limits.maxInline),
    ):
        checkRange(name, getattr(capacity, name), 0, most)
