"""
The notices that nodes of a simulated fabric send by themselves.

Follows InfiniBand Architecture vol. 1, 14.2.5.1 (traps of subnet management).
"""

from __future__ import annotations

from typing import Final

from txrdma.iba.path import IBPath
from txrdma.iba.types import LID
from txrdma.mad._frames import managementPacket
from txrdma.mad.attributes import Method
from txrdma.mad.messages import Notice, NoticeType

_SWITCH: Final = 2
_ANY: Final = 1
_KEY: Final = slice(24, 32)


def linkChanged(lid: LID) -> Notice:
    """Trap 128: a link of a switch went up or down."""
    return Notice(
        isGeneric=True,
        type=NoticeType.URGENT,
        producerType=_SWITCH,
        trapNumber=128,
        issuerLID=lid,
        details=lid.to_bytes(2, "big") + bytes(52),
    )


def badMKey(lid: LID, request: bytes) -> Notice:
    """Trap 256: somebody asked with a wrong M_Key."""
    details = b"".join(
        (
            *(bytes(2), lid.to_bytes(2, "big"), bytes(2)),
            *(request[3:4], bytes(1), request[16:18], request[20:24], request[_KEY]),
        )
    )
    return Notice(
        isGeneric=True,
        type=NoticeType.SECURITY,
        producerType=_ANY,
        trapNumber=256,
        issuerLID=lid,
        details=details.ljust(54, b"\0"),
    )


def trapDatagram(notice: Notice, transaction: int) -> bytes:
    """The datagram that carries it."""
    return managementPacket(Method.TRAP, transaction, Notice.attributeID, 0, notice.encode(), IBPath(), 0)
