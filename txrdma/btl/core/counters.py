"""Counters of a module, named as in Open MPI's usnic component."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Final

from txrdma.kit.values import record

_CAPITAL: Final = re.compile("(?=[A-Z])")


@record(eq=False)
class ModuleCounters:
    """The counters of one module. Those after C{maxRcvdWindowSize} are not in usnic."""

    totalSends: int = 0  # packets of every kind, including retransmissions
    resends: int = 0  # retransmitted segments
    # Segments considered lost, because of a timeout, or because later ones were acknowledged. Those that are
    # acknowledged before they are retransmitted count here, but not as resends.
    timeoutRetrans: int = 0
    fastRetrans: int = 0
    chunkSends: int = 0
    fragSends: int = 0  # new segments other than chunks and packs
    ackSends: int = 0  # acknowledgements sent as separate packets
    totalRecvs: int = 0
    unkRecvs: int = 0  # packets whose sender is unknown or has a different address
    dupRecvs: int = 0  # duplicate segments within the window
    oowLowRecvs: int = 0  # segments below the window
    oowHighRecvs: int = 0  # segments above the window
    fragRecvs: int = 0
    chunkRecvs: int = 0
    badfragRecvs: int = 0  # invalid or contradictory chunks and puts, and invalid packs
    ackRecvs: int = 0
    oldDupAcks: int = 0  # acknowledgements older than the last one
    dupAcks: int = 0  # acknowledgements equal to the last one
    maxSentWindowSize: int = 0  # largest number of segments in flight to a peer
    maxRcvdWindowSize: int = 0  # largest distance from the first missing segment to the last received one
    badHeaderRecvs: int = 0  # packets that are not segments of this version
    badAckRecvs: int = 0  # acknowledgements of segments that were never sent
    spuriousResends: int = 0  # segments retransmitted although they had arrived, as the receiver reports
    noMemoryRecvs: int = 0  # chunks dropped for lack of memory for reassembly; the peer retransmits them
    packRecvs: int = 0
    packSends: int = 0  # new segments of several messages each
    refusedRecvs: int = 0  # segments that this end refused
    refusedSends: int = 0  # segments that the peer refused
    rdmaSends: int = 0  # new segments whose bytes were written into a peer's receive buffer
    rdmaBytes: int = 0
    rdmaRecvs: int = 0
    rdmaMisses: int = 0  # pieces sent as packets because the receive buffer was not accessible
    markedRecvs: int = 0  # segments with a congestion mark of a router

    def named(self) -> dict[str, int]:
        """
        Return all counters by usnic's names, such as C{num_oow_low_recvs}; maxima have no prefix C{num_}.
        """
        return {_nameOf(each.name): getattr(self, each.name) for each in fields(self)}


def _nameOf(attribute: str) -> str:
    name = _CAPITAL.sub("_", attribute).lower()
    return name if name.startswith("max_") else f"num_{name}"
