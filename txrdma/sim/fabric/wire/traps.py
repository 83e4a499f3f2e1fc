"""
Notices that nodes of a simulated fabric send as traps.

Follows InfiniBand Architecture vol. 1, 14.2.5.1 (traps of subnet management).
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from txrdma.iba.path import IBPath
from txrdma.iba.types import GID, LID
from txrdma.kit.rawfields import peek
from txrdma.kit.wire import Layout
from txrdma.mad.core.frames import managementPacket
from txrdma.mad.layouts.attributes import Method
from txrdma.mad.layouts.messages import MADHeaderDirected, Notice, NoticeType, SMPFormatDirected
from txrdma.mad.layouts.traps import BadKeyDetails, BadMKeyDetails, GIDDetails, LinkDetails, Trap

SWITCH: Final = 2
CLASS_MANAGER: Final = 4

_DIRECTED: Final = 0x81
_class, _hopCount = peek(MADHeaderDirected, "managementClass"), peek(MADHeaderDirected, "hopCount")
_drSLID = peek(SMPFormatDirected, "drSLID")
_ASKED: Final = Struct(">3xB12xH2xIQ")


def linkChanged(lid: LID) -> Notice:
    """Return the notice of trap 128: a link of a switch went up or down."""
    return _notice(Trap.LINK_STATE_CHANGE, NoticeType.URGENT, SWITCH, lid, LinkDetails(lid=lid))


def badMKey(lid: LID, producer: int, request: bytes) -> Notice:
    """Return the notice of trap 256: an SMP had a wrong M_Key."""
    method, attribute, modifier, mkey = _ASKED.unpack_from(request)
    isDirected = _class(request) == _DIRECTED
    details = BadMKeyDetails(
        lid=lid,
        drSLID=LID(_drSLID(request) if isDirected else 0),
        method=method,
        attributeID=attribute,
        attributeModifier=modifier,
        mkey=mkey,
        drNotice=isDirected,
        drHopCount=_hopCount(request) if isDirected else 0,
    )
    return _notice(Trap.BAD_MKEY, NoticeType.SECURITY, producer, lid, details)


def badKey(trap: Trap, lid: LID, producer: int, path: IBPath, key: int) -> Notice:
    """Return the notice of trap 257 or 258: a datagram had a wrong P_Key or Q_Key."""
    details = BadKeyDetails(
        lid1=path.slid, lid2=path.dlid, key=key, serviceLevel=path.serviceLevel, qp1=path.sqpn, qp2=path.dqpn
    )
    return _notice(trap, NoticeType.SECURITY, producer, lid, details)


def gidChanged(trap: Trap, lid: LID, gid: GID) -> Notice:
    """Return the notice of a trap from 64 to 67: a port or a multicast group was added or removed."""
    return _notice(trap, NoticeType.SUBNET_MANAGEMENT, CLASS_MANAGER, lid, GIDDetails(gid=gid))


def trapDatagram(notice: Notice, transaction: int) -> bytes:
    """Return the datagram of a Trap with this notice."""
    return managementPacket(Method.TRAP, transaction, Notice.attributeID, 0, notice.encode(), IBPath(), 0)


def _notice(trap: Trap, kind: NoticeType, producer: int, lid: LID, details: Layout) -> Notice:
    return Notice(
        isGeneric=True,
        type=kind,
        producerType=producer,
        trapNumber=trap,
        issuerLID=lid,
        details=details.encode(),
    )
