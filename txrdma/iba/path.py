"""
The way from one end port to another, as packet headers say it.

Follows InfiniBand Architecture vol. 1, chapters 7 (local route), 8 (global route) and 9 (transport).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

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

    def __str__(self) -> str:
        """What differs from the default, in words that L{fromString} reads: C{"lid 7 sl 1 dqpn 1"}."""
        said = [
            f"{word} {write(getattr(self, name))}"
            for word, (name, write, _) in _WORDS.items()
            if getattr(self, name) != getattr(_NOWHERE, name)
        ]
        if not self.reversible:
            said.append("one-way")
        return " ".join(said) or "lid 0"

    @classmethod
    def fromString(cls, text: str) -> IBPath:
        """
        Read what C{str} writes: words with a value each, in any order.

        @raise ValueError: a word, or a value, has no meaning.
        """
        values: dict[str, Any] = {}
        words = iter(text.split())
        for word in words:
            if word == "one-way":
                values["reversible"] = False
                continue
            if word not in _WORDS:
                raise ValueError(f"{word!r} says nothing about a path; {', '.join(_WORDS)} do")
            name, _, read = _WORDS[word]
            value = next(words, None)
            if value is None:
                raise ValueError(f"{word} what? Nothing stands behind it in {text!r}")
            values[name] = read(value)
        return cls(**values)

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


_NOWHERE: Final = IBPath()


def _number(text: str) -> int:
    return int(text, 0)


_WORDS: Final[dict[str, tuple[str, Callable[[Any], str], Callable[[str], Any]]]] = {
    "lid": ("dlid", str, _number),
    "slid": ("slid", str, _number),
    "sl": ("serviceLevel", str, _number),
    "dgid": ("dgid", str, GID.fromString),
    "sgid": ("sgid", str, GID.fromString),
    "tclass": ("trafficClass", str, _number),
    "flow": ("flowLabel", hex, _number),
    "hops": ("hopLimit", str, _number),
    "pkey": ("pkey", hex, _number),
    "dqpn": ("dqpn", str, _number),
    "sqpn": ("sqpn", str, _number),
    "psn": ("sqpsn", str, _number),
    "qkey": ("qkey", hex, _number),
    "rnr": ("minRNRTimer", str, _number),
    "mtu": ("mtu", lambda mtu: str(mtu.bytes), lambda text: MTU.fitting(_number(text))),
    "life": ("packetLifeTime", str, _number),
}
"""What each word of a path's text is about, and how its value is written and read."""


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

    def __str__(self) -> str:
        """C{"DR 0,1,3"}: the ports to leave by, after a 0 for the first; LIDs where they are said."""
        said = "DR " + ",".join(map(str, (0, *self.drPath)))
        if self.drSLID != PERMISSIVE_LID:
            said += f" slid {self.drSLID}"
        return said if self.drDLID == PERMISSIVE_LID else f"{said} dlid {self.drDLID}"

    @classmethod
    def fromString(cls, text: str) -> IBDRPath:
        """
        Read C{"DR 0,1,3"}, or C{"0,1,3"}; with C{slid} and C{dlid} where parts of it are LID routed.

        @raise ValueError: it is no directed route.
        """
        words = text.removeprefix("DR").split()
        try:
            first, *hops = [int(hop) for hop in words[0].split(",") if hop]
            lids = {name: LID(int(value, 0)) for name, value in zip(words[1::2], words[2::2], strict=True)}
            if first or not all(0 < hop < 255 for hop in hops) or lids.keys() - {"slid", "dlid"}:
                raise ValueError
        except (ValueError, IndexError):
            raise ValueError(f"{text!r} is no directed route, as DR 0,1,3 is: a 0, then ports") from None
        return cls(
            drPath=tuple(hops),
            drSLID=lids.get("slid", PERMISSIVE_LID),
            drDLID=lids.get("dlid", PERMISSIVE_LID),
        )

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
