"""
Destinations of packets for queue pair 1: a service, or a connection of a device.

Follows InfiniBand Architecture vol. 1, 12.6 and 12.11 (messages of communication management) and 13.4.3 (the
header of management datagrams), behind BTH and DETH (9.2.1, 9.3.5).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from txrdma.iba.verbs import Buffer

MAD: Final = 12 + 8
"""Offset of the management datagram in a packet."""

CLASS: Final = MAD + 1
ATTRIBUTE: Final = MAD + 16
BODY: Final = MAD + 24
REMOTE_ID: Final = BODY + 4
"""Offset of the remote communication ID; a SIDR_REP has its request ID at L{BODY}."""

_SERVICE_ID: Final = BODY + 8
COMM_MGT: Final = 0x07


class CMAttribute(IntEnum):
    """The messages whose receiver is not found by a remote communication ID (IBA 12.6.1, 12.11.1)."""

    REQ = 0x0010
    SIDR_REQ = 0x0017
    SIDR_REP = 0x0018


class Destination(NamedTuple):
    """
    The destination of a packet for queue pair 1; empty for classes other than communication management.

    @ivar share: share in a communication ID.
    """

    serviceID: int | None = None
    share: int | None = None


def destinationOf(packet: Buffer) -> Destination:
    """Return the destination of a packet, given from its BTH on."""
    raw = bytes(packet[: _SERVICE_ID + 8])
    if len(raw) < _SERVICE_ID + 8 or raw[CLASS] != COMM_MGT:
        return Destination()
    attribute = int.from_bytes(raw[ATTRIBUTE : ATTRIBUTE + 2], "big")
    if attribute in (CMAttribute.REQ, CMAttribute.SIDR_REQ):
        return Destination(serviceID=int.from_bytes(raw[_SERVICE_ID:], "big"))
    return Destination(share=raw[BODY if attribute == CMAttribute.SIDR_REP else REMOTE_ID])
