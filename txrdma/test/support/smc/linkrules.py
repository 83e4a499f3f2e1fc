"""
LLC messages, one of each type, for tests of the rules of links and link groups.
"""

from __future__ import annotations

from txrdma.iba.types import GID, MACAddress, QPN, RKey
from txrdma.smc.group._groupstate import LinkEnd
from txrdma.smc.wire import llc

FAR = LinkEnd(MACAddress(bytes((9,)) * 6), GID(bytes((9,)) * 16), QPN(9))


def bodies(link: int) -> list[llc.Body]:
    """Return the body of a message of each type, with this link number."""
    return [
        llc.ConfirmLink(mac=FAR.mac, gid=FAR.gid, qpn=FAR.qpn, link=link),
        llc.AddLink(mac=FAR.mac, gid=FAR.gid, qpn=FAR.qpn, link=link, mtu=1, psn=1),
        llc.AddLinkContinuation(link=link, remaining=0, pairs=(llc.RKeyPair(), llc.RKeyPair())),
        llc.DeleteLink(link=link, reason=llc.DeleteReason.LOST_PATH),
        llc.RequestAddLink(gidCount=1, gid=FAR.gid),
        llc.ConfirmRKey(rkey=RKey(77), address=4096, onLinks=(llc.LinkRKey(), llc.LinkRKey())),
        llc.ConfirmRKeyContinuation(remaining=0, onLinks=(llc.LinkRKey(), llc.LinkRKey(), llc.LinkRKey())),
        llc.DeleteRKey(count=1, rkeys=(RKey(77), *[RKey(0)] * 7)),
        llc.TestLink(userData=bytes(16)),
    ]
