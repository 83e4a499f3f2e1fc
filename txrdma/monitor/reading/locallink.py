"""
Queries that show whether this process reaches any other node: if not, its own port is at fault.

Other nodes must not be reported for what the local link has lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

from txrdma.fabric.model import Fabric, localPortIn, Node
from txrdma.iba.path import IBDRPath
from txrdma.mad.agent import MADAgent
from txrdma.mad.errors import MADError, MADFailure
from txrdma.mad.layouts.messages import ClassPortInfo
from txrdma.mad.layouts.smp import NodeInfo
from txrdma.mad.paths import toLID
from txrdma.monitor.reading.settings import RETRIES

_PROBES: Final = 3
"""Number of nodes that are queried by their LIDs until one answers."""


async def isNeighbourSilent(agent: MADAgent, fabric: Fabric, timeoutSeconds: float) -> bool:
    """Return whether the node next to the local port does not answer; False if this is a port of a switch."""
    number = next((localPortIn(node.raw) for node in fabric.nodes.values() if node.isLocal), 0)
    if not number:  # a switch has several neighbours
        return False
    route = IBDRPath(drPath=(number,))
    try:
        await agent.SubnGet(NodeInfo, route, timeoutSeconds=timeoutSeconds, retries=RETRIES)
    except MADFailure as error:
        return not isinstance(error, MADError)  # which is an answer
    return False


async def anyAnswers(agent: MADAgent, nodes: Iterable[Node], timeoutSeconds: float) -> bool:
    """Return whether one of the first few nodes answers a request to its LID."""
    for node in islice(nodes, _PROBES):
        path = toLID(agent.port.endPort, node.lid)
        try:
            await agent.PerformanceGet(ClassPortInfo, path, timeoutSeconds=timeoutSeconds, retries=RETRIES)
        except MADFailure as error:
            if not isinstance(error, MADError):
                continue
        return True
    return False
