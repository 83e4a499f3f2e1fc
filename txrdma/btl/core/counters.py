"""
Counters of a module, named as in Open MPI's usnic component.
"""

from __future__ import annotations

import re
from typing import Final

_CAPITAL: Final = re.compile("(?=[A-Z])")


class ModuleCounters:
    """
    The counters of one module.

    @ivar totalSends: packets of every kind, including retransmissions.
    @ivar resends: retransmitted segments.
    @ivar timeoutRetrans: segments considered lost because of a timeout; C{fastRetrans}: because later ones
        were acknowledged. Segments that are acknowledged before they are retransmitted count here, but not in
        C{resends}.
    @ivar fragSends: new segments other than chunks and packs; C{chunkSends}: chunks; C{ackSends}:
        acknowledgements sent as separate packets.
    @ivar unkRecvs: packets whose sender is unknown or has a different address.
    @ivar dupRecvs: duplicate segments within the window.
    @ivar oowLowRecvs: segments below the window, C{oowHighRecvs} above it.
    @ivar badfragRecvs: invalid or contradictory chunks and puts, and invalid packs.
    @ivar oldDupAcks: acknowledgements older than the last one; C{dupAcks}: equal to the last one.
    @ivar maxSentWindowSize: largest number of segments in flight to a peer; C{maxRcvdWindowSize}: largest
        distance from the first missing segment to the last received one.
    @ivar badHeaderRecvs: packets that are not segments of this version (usnic does not have this counter, nor
        those below).
    @ivar packSends: new segments of several messages each; C{packRecvs}: received ones.
    @ivar badAckRecvs: acknowledgements of segments that were never sent.
    @ivar spuriousResends: segments that were retransmitted although they had arrived, as the receiver
        reports.
    @ivar noMemoryRecvs: chunks dropped because the memory for reassembly was exhausted; the peer retransmits
        them.
    @ivar refusedRecvs: segments that this end refused; C{refusedSends}: segments that the peer refused.
    @ivar rdmaSends: new segments whose bytes were written into a peer's receive buffer; C{rdmaBytes}: their
        bytes; C{rdmaRecvs}: such segments received; C{rdmaMisses}: pieces sent as packets because the receive
        buffer was not accessible.
    """

    __slots__ = (
        *("totalSends", "resends", "timeoutRetrans", "fastRetrans", "chunkSends", "fragSends", "ackSends"),
        *("totalRecvs", "unkRecvs", "dupRecvs", "oowLowRecvs", "oowHighRecvs", "fragRecvs", "chunkRecvs"),
        *("badfragRecvs", "ackRecvs", "oldDupAcks", "dupAcks", "maxSentWindowSize", "maxRcvdWindowSize"),
        *(
            "badHeaderRecvs",
            "badAckRecvs",
            "spuriousResends",
            "noMemoryRecvs",
            "packRecvs",
            "packSends",
            "refusedRecvs",
            "refusedSends",
            "rdmaSends",
            "rdmaBytes",
            "rdmaRecvs",
            "rdmaMisses",
        ),
    )

    def __init__(self) -> None:
        self.totalSends = self.resends = self.timeoutRetrans = self.fastRetrans = 0
        self.chunkSends = self.fragSends = self.ackSends = 0
        self.totalRecvs = self.unkRecvs = self.dupRecvs = self.oowLowRecvs = self.oowHighRecvs = 0
        self.fragRecvs = self.chunkRecvs = self.badfragRecvs = self.ackRecvs = 0
        self.oldDupAcks = self.dupAcks = self.maxSentWindowSize = self.maxRcvdWindowSize = 0
        self.badHeaderRecvs = self.badAckRecvs = self.spuriousResends = 0
        self.packSends = self.packRecvs = 0
        self.noMemoryRecvs = self.refusedRecvs = self.refusedSends = 0
        self.rdmaSends = self.rdmaBytes = self.rdmaRecvs = self.rdmaMisses = 0

    def named(self) -> dict[str, int]:
        """
        Return all counters by usnic's names, such as C{num_oow_low_recvs}; maxima have no prefix C{num_}.
        """
        return {_nameOf(each): getattr(self, each) for each in self.__slots__}


def _nameOf(attribute: str) -> str:
    name = _CAPITAL.sub("_", attribute).lower()
    return name if name.startswith("max_") else f"num_{name}"
