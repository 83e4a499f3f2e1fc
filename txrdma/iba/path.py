"""
The way from one end port to another, as packet headers say it.

Follows InfiniBand Architecture vol. 1, chapters 7 (local route), 8 (global route) and 9 (transport).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from txrdma.iba.types import DEFAULT_PKEY, GID, LID, MTU, PKey, QPN


@dataclass(frozen=True, slots=True)
class IBPath:
    """
    One direction of a connection: what stands, or stood, in the headers of its packets.

    A path for sending says what will be sent; a path of something received says what it had.

    @ivar slid: LRH, as C{dlid} and C{serviceLevel}.
    @ivar sgid: GRH, as C{dgid}, C{trafficClass}, C{flowLabel} and C{hopLimit}; without GIDs there is no GRH.
    @ivar pkey: BTH, as C{dqpn} and C{sqpsn}.
    @ivar qkey: DETH, as C{sqpn}.
    @ivar minRNRTimer: AETH of "receiver not ready", a code.
    @ivar reversible: whether the same way leads back.
    """

    slid: LID = LID(0)
    dlid: LID = LID(0)
    serviceLevel: int = 0
    sgid: GID | None = None
    dgid: GID | None = None
    trafficClass: int = 0
    flowLabel: int = 0
    hopLimit: int = 0
    pkey: PKey = DEFAULT_PKEY
    dqpn: QPN = QPN(0)
    sqpsn: int = 0
    qkey: int = 0
    sqpn: QPN = QPN(0)
    minRNRTimer: int = 0
    mtu: MTU | None = None
    reversible: bool = True

    @property
    def hasGRH(self) -> bool:
        """Whether packets carry a global route header."""
        return self.dgid is not None

    def reverse(self) -> IBPath:
        """
        The way back.

        @raise ValueError: it has to be asked for: this path is not reversible.
        """
        if not self.reversible:
            raise ValueError("this path is not reversible")
        return replace(
            self,
            slid=self.dlid,
            dlid=self.slid,
            sgid=self.dgid,
            dgid=self.sgid,
            dqpn=self.sqpn,
            sqpn=self.dqpn,
        )
