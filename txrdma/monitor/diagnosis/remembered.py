"""
The fabric that a former process has stored, for pages before the first sweep.

The events of nodes and links have names, GUIDs and port numbers. LIDs, states, widths and speeds are unknown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from txrdma.fabric.model import Fabric
from txrdma.iba.types import GUID
from txrdma.iba.verbs import NodeType
from txrdma.mad.layouts.smp import NodeInfo
from txrdma.monitor.diagnosis.thresholds import PortKey

_MOST_HOST_PORTS: Final = 2
"""A node with more links counts as a switch: the events do not have its type."""


def rememberedFabric(
    nodes: Mapping[GUID, tuple[str, str]], links: Iterable[tuple[PortKey, PortKey]]
) -> Fabric:
    """
    Return a fabric of these nodes and links.

    @param nodes: name of each node, and of the port that leads to it.
    @raise ValueError: a port number is invalid.
    """
    links = [link for link in links if link[0][0] in nodes and link[1][0] in nodes]
    numbers: defaultdict[GUID, list[int]] = defaultdict(list)
    for guid, number in (end for link in links for end in link):
        numbers[guid].append(number)
    fabric = Fabric()
    for guid, (name, _beyond) in nodes.items():
        linked = numbers[guid]
        kind = NodeType.SWITCH if len(linked) > _MOST_HOST_PORTS else NodeType.CHANNEL_ADAPTER
        info = NodeInfo(nodeType=kind, nodeGUID=guid, portGUID=guid, numPorts=max(linked, default=1))
        node, _isNew = fabric.add(info)
        node.description = name.removesuffix(f" ({guid})")
    for (one, number), (other, peer) in links:
        fabric.link(fabric.nodes[one].port(number), fabric.nodes[other].port(peer))
    return fabric
