"""
Discover a fabric: here a simulated one; with another string, the one that this host is part of.

Run it: python discover.py [sim:fattree:8 | ibsim | umad:mlx5_0/1]
"""

from __future__ import annotations

import sys

from twisted.internet.defer import Deferred
from twisted.internet.task import react

from txrdma.mad.agent import MADAgent
from txrdma.mad.discovery import Sweep
from txrdma.mad.ports import openMADPort


async def discover(reactor: object, port: str) -> None:
    agent = MADAgent(reactor, openMADPort(reactor, port))  # type: ignore[arg-type]  # any of Twisted's reactors
    fabric = await Sweep(agent).run()
    for node in fabric.nodes.values():
        print(node.type.name, node.guid, node.description, f"lid {node.lid}")
    for one, other in fabric.links():
        print(f"{one.node.description}[{one.number}] - {other.node.description}[{other.number}] {one.width}X")
    agent.close()


if __name__ == "__main__":
    port = sys.argv[1] if len(sys.argv) > 1 else "sim:fattree:8"
    react(lambda reactor: Deferred.fromCoroutine(discover(reactor, port)))
