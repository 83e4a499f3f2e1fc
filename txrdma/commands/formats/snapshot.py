"""Formats a fabric as a JSON snapshot with names and chassis."""

from __future__ import annotations

from typing import Any

from txrdma.fabric.chassis import chassis, positionOf
from txrdma.fabric.model import Fabric, Node
from txrdma.fabric.nodenames import NodeNames
from txrdma.fabric.snapshots import nodeDict, problemDicts


def snapshotDict(fabric: Fabric, names: NodeNames) -> dict[str, Any]:
    """Return a fabric for JSON, sorted, with names and chassis; it can be loaded again."""
    return {
        "nodes": [nodeDict(node, names) for node in fabric.ordered()],
        "chassis": [
            {
                "number": each.number,
                "guid": str(each.guid),
                "kind": each.kind,
                "nodes": [_member(node) for node in each.nodes],
            }
            for each in chassis(fabric)
        ],
        "problems": problemDicts(fabric),
    }


def _member(node: Node) -> dict[str, object]:
    at = positionOf(node)
    position = {} if at is None else {"board": at.board, "slot": at.slot, "chip": at.chip}
    return {"guid": str(node.guid), **position}
