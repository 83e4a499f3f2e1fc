"""
Counters of a module, by the names that Open MPI's usnic component gives them.
"""

from __future__ import annotations

import re
from typing import Final

_CAPITAL: Final = re.compile("(?=[A-Z])")


class Counters:
    """
    The counters of one module.

    @ivar totalSends: packets of every kind, with those that are sent again.
    @ivar resends: segments that were sent again.
    @ivar timeoutRetrans: segments that a timer has found lost; C{fastRetrans}: that acknowledgements of later
        ones have. What is acknowledged before its turn comes is not sent again.
    @ivar fragSends: new segments but for chunks and packs; C{chunkSends}: chunks; C{ackSends}:
        acknowledgements that are packets of their own.
    @ivar unkRecvs: packets whose sender is unknown, or has another address.
    @ivar dupRecvs: segments within the window that have come before.
    @ivar oowLowRecvs: segments below the window, C{oowHighRecvs} above it.
    @ivar badfragRecvs: chunks and puts that fit nowhere, or contradict others; packs that contradict
        themselves.
    @ivar oldDupAcks: acknowledgements of less than is acknowledged already; C{dupAcks}: of the same.
    @ivar maxSentWindowSize: most segments that were on their way to a peer; C{maxRcvdWindowSize}: most
        segments from the first one missing to the last one received.
    @ivar badHeaderRecvs: packets that are no segment of this version (our own counter, as those below).
    @ivar packSends: new segments of several messages each; C{packRecvs}: those that have come.
    @ivar badAckRecvs: acknowledgements of segments that were never sent.
    @ivar spuriousResends: segments that were sent again although they had arrived, as their receiver reports.
    @ivar noMemoryRecvs: chunks dropped, to be sent again, because too much is being reassembled.
    @ivar refusedRecvs: segments that were refused; C{refusedSends}: segments that the peer has refused.
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
        """All counters by their names there, such as C{num_oow_low_recvs}; maxima have no C{num_}."""
        return {_nameOf(each): getattr(self, each) for each in self.__slots__}


def _nameOf(attribute: str) -> str:
    name = _CAPITAL.sub("_", attribute).lower()
    return name if name.startswith("max_") else f"num_{name}"
