"""Part of a fabric that was already swept: a node and its neighbourhood."""

from __future__ import annotations

from txrdma.error import InvalidRequest
from txrdma.fabric.model import Fabric, Node, Port
from txrdma.fabric.neighbourhood import around
from txrdma.fabric.nodenames import NodeNames
from txrdma.fabric.targets import combined, parsedTarget
from txrdma.iba.path import IBDRPath, IBPath
from txrdma.iba.types import GID, GUID


def part(fabric: Fabric, first: Node, hops: int) -> Fabric:
    """Return a fabric of the nodes at most C{hops} links away from C{first}; outer links lead out of it."""
    found = Fabric()
    found.nodes = {node.guid: node for node in around(first, hops)}
    found.problems = fabric.problems
    return found


def located(fabric: Fabric, target: str, names: NodeNames) -> Node:
    """
    Return the node that C{target} names. Directed routes begin where the sweep of the fabric began.

    @raise InvalidRequest: no node or several nodes match the target.
    """
    try:
        return _at(fabric, target)
    except InvalidRequest as error:
        guids = set(names.guids(target))
        found = [
            node
            for node in fabric.nodes.values()
            if node.guid in guids or target in (node.description, names.name(node.guid, node.description))
        ]
        if len(found) > 1:
            raise InvalidRequest(f"{target!r} is the name of several nodes") from None
        if not found:
            raise InvalidRequest(f"{error}, and no node has this name") from None
        return found[0]


def _at(fabric: Fabric, target: str) -> Node:
    known: object
    both = combined(target)
    known = parsedTarget(target) if both is None else both[0]
    if isinstance(known, IBDRPath):
        return _along(fabric, next((node for node in fabric.nodes.values() if _isFirst(node)), None), known)
    if isinstance(known, IBPath):
        known = known.dgid if known.dgid is not None and not known.dlid else known.dlid
    found: Node | Port | None
    if isinstance(known, int):
        found = fabric.byLID(known)
    else:
        guid = known.guid if isinstance(known, GID) else known
        assert isinstance(guid, GUID)  # nothing else is left
        found = fabric.byGUID(guid)
    if found is None:
        raise InvalidRequest(f"{target} is not in the snapshot")
    node = found.node if isinstance(found, Port) else found
    return node if both is None else _along(fabric, node, IBDRPath.fromString(both[1]))


def _isFirst(node: Node) -> bool:
    return node.route == IBDRPath()


def _along(fabric: Fabric, node: Node | None, route: IBDRPath) -> Node:
    """Return the node at the end of a route that begins at C{node}."""
    if node is None:
        raise InvalidRequest(f"{route}: the snapshot does not contain the local port")
    for hop in route.drPath:
        port = node.known(hop)
        if port is None or port.peer is None:
            raise InvalidRequest(f"{route}: in the snapshot no link is known at port {hop} of {node}")
        node = port.peer.node
    return node
