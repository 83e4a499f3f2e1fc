"""The counters of a RoCE port."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class RoCECounters:
    """
    The counters of one RoCE port: packets sent, received and dropped.

    @ivar datagramsSent: RoCE packets; C{writes} counts the calls that sent them.
    @ivar wrongICRC: dropped: corrupted packets.
    @ivar malformed: dropped: too short, or of an unknown version or partition.
    @ivar strays: dropped: for an unknown queue pair, or from a host that is not its peer.
    """

    packetsSent: int = 0
    bytesSent: int = 0
    writes: int = 0
    packetsReceived: int = 0
    bytesReceived: int = 0
    reads: int = 0
    wrongICRC: int = 0
    malformed: int = 0
    strays: int = 0
