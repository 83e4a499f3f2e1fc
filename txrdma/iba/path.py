"""
The way from one end port to another, as packet headers say it.

Follows InfiniBand Architecture vol. 1, chapters 7 (local route), 8 (global route) and 9 (transport).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from txrdma.iba.types import DEFAULT_PKEY, GID, GUID, LID, MTU, PKey, QPN

PERMISSIVE_LID: Final = LID(0xFFFF)
"""The LID of whoever gets it: of both ends of a directed route without LID-routed parts (IBA 4.1.3)."""

GMP_QKEY: Final = 0x80010000
"""The Q_Key of queue pair 1 (IBA 10.2.5)."""


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
    @ivar packetLifeTime: how long a packet is on its way at most, a time's code; None where nobody knows.
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
    packetLifeTime: int | None = None
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


@dataclass(frozen=True, slots=True)
class IBDRPath(IBPath):
    """
    A directed route: the ports to leave by, hop by hop (IBA 14.2.2).

    @ivar drPath: from the first hop's port on; empty is the port itself.
    @ivar drSLID: where a LID-routed part before the directed one ends; C{drDLID} where one after it does.
    """

    slid: LID = PERMISSIVE_LID
    dlid: LID = PERMISSIVE_LID
    drPath: tuple[int, ...] = ()
    drSLID: LID = PERMISSIVE_LID
    drDLID: LID = PERMISSIVE_LID

    def then(self, port: int) -> IBDRPath:
        """One hop more, by that port."""
        return replace(self, drPath=(*self.drPath, port))


@dataclass(frozen=True, slots=True)
class MADEndPort:
    """
    What senders of management datagrams have to know of their own port.

    @ivar subnetTimeout: how long packets are on their way at most, a time's code (IBA 14.2.5.6).
    """

    portGUID: GUID
    gids: tuple[GID, ...]
    portNum: int = 1
    lid: LID = LID(0)
    lidMask: int = 0
    smLID: LID = LID(0)
    smServiceLevel: int = 0
    pkeys: tuple[PKey, ...] = (DEFAULT_PKEY,)
    subnetTimeout: int = 18
