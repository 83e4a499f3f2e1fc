"""Messages of the communication manager, one of each kind, and their datagrams."""

from __future__ import annotations

from txrdma.cm.layouts.messages import APR, DREP, DREQ, LAP, MRA, REJ, REP, REQ, RTU, SIDRREP, SIDRREQ
from txrdma.mad.core.frames import frame
from txrdma.mad.layouts.attributes import Attribute, ManagementClass, Method

KINDS: tuple[type[Attribute], ...] = (REQ, MRA, REJ, REP, RTU, DREQ, DREP, SIDRREQ, SIDRREP, LAP, APR)


def datagramOf(message: Attribute, transactionID: int = 7) -> bytes:
    """Return the datagram of a message to queue pair 1."""
    number = type(message).attributeID
    return frame(ManagementClass.COMM_MGT, Method.SEND, transactionID, number, 0, message.encode())
