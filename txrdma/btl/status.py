"""Counters of this process's C{btl} modules, and a socket by which tools of the same user read them."""

from __future__ import annotations

from typing import Any, Final

from txrdma.btl.core.module import Module
from txrdma.unix.answers import StatusServer

NAMESPACE: Final = "txrdma/btl"
"""The prefix of the abstract names of status sockets."""


def report() -> dict[str, Any]:
    """
    Return the status of this process.

    @return: C{counters} of all its modules, by usnic's names; C{gauges}: current numbers of modules, peers
        and unacknowledged bytes.
    """
    peers = [peer for module in modules.parts for peer in module.peers]
    return {
        "counters": dict(modules.counters()),
        "gauges": {
            "modules": len(modules.parts),
            "peers": len(peers),
            "queuedBytes": sum(peer.queuedBytes for peer in peers),
        },
    }


modules: StatusServer[Module] = StatusServer(NAMESPACE, "txrdma btl-stats", report)
