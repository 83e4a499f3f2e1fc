"""
LLC messages, one of each type, for tests of the rules of links and link groups.
"""

from __future__ import annotations

from txrdma.iba.types import GID, MACAddress, QPN, RKey
from txrdma.smc.group._linkstate import LinkEnd
from txrdma.smc.wire.llc import (
    AddLink,
    AddLinkContinuation,
    Body,
    ConfirmLink,
    ConfirmRKey,
    ConfirmRKeyContinuation,
    DeleteLink,
    DeleteReason,
    DeleteRKey,
    LinkRKey,
    RequestAddLink,
    RKeyPair,
    TestLink,
)

FAR = LinkEnd(MACAddress(bytes((9,)) * 6), GID(bytes((9,)) * 16), QPN(9))


def bodies(link: int) -> list[Body]:
    """Return the body of a message of each type, with this link number."""
    return [
        ConfirmLink(mac=FAR.mac, gid=FAR.gid, qpn=FAR.qpn, link=link),
        AddLink(mac=FAR.mac, gid=FAR.gid, qpn=FAR.qpn, link=link, mtu=1, psn=1),
        AddLinkContinuation(link=link, remaining=0, pairs=(RKeyPair(), RKeyPair())),
        DeleteLink(link=link, reason=DeleteReason.LOST_PATH),
        RequestAddLink(gidCount=1, gid=FAR.gid),
        ConfirmRKey(rkey=RKey(77), address=4096, onLinks=(LinkRKey(), LinkRKey())),
        ConfirmRKeyContinuation(remaining=0, onLinks=(LinkRKey(), LinkRKey(), LinkRKey())),
        DeleteRKey(count=1, rkeys=(RKey(77), *[RKey(0)] * 7)),
        TestLink(userData=bytes(16)),
    ]
