"""
Signs that a fabric has changed, without I/O: the nodes to query again, and when a sweep may follow.

Any host can cause notices and silences, so what they cost is bounded.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from txrdma.fabric.model import Fabric, Node, Port
from txrdma.fabric.refreshing import leadingTo
from txrdma.iba.types import GID, GUID
from txrdma.mad.layouts.messages import Notice
from txrdma.mad.layouts.traps import detailsOf, Trap

_CHANGES: Final = frozenset(
    (Trap.GID_IN_SERVICE, Trap.GID_OUT_OF_SERVICE, Trap.LINK_STATE_CHANGE, Trap.LOCAL_CHANGES)
    + (Trap.SYSTEM_IMAGE_GUID_CHANGE,)
)
"""Traps after which the fabric may have other nodes or links."""

MOST_NEW: Final = 4096
"""Maximum number of unknown nodes of which notices are remembered; with more of them, a sweep follows."""

MOST_UNPLANNED: Final = 4
"""Maximum number of consecutive sweeps that notices and other signs of change may cause; others wait."""

UNPLANNED_SECONDS: Final = 30.0
"""Seconds after which signs of change may cause another sweep."""


class ChangeSigns:
    """
    Nodes that may have changed.

    @ivar nodes: GUIDs of known nodes, in the order of their signs; C{newNodes} has those of unknown nodes.
    """

    def __init__(self) -> None:
        self.nodes: dict[GUID, None] = {}
        self.newNodes: set[GUID] = set()
        self._ports: dict[int, Port] = {}
        self._indexed = -1

    @property
    def isEmpty(self) -> bool:
        return not (self.nodes or self.newNodes)

    def clear(self) -> None:
        """Forget all signs: a sweep finds what has changed."""
        self.nodes.clear()
        self.newNodes.clear()

    def fabricReplaced(self) -> None:
        """Forget the ports of the former fabric, which would keep its nodes in memory."""
        self._ports, self._indexed = {}, -1

    def noticed(self, notice: Notice, fabric: Fabric, version: int) -> bool:
        """
        Add the node of a notice.

        @param version: number that grows with each change of the fabric.
        @return: True if only a sweep can find what has changed.
        """
        if notice.trapNumber not in _CHANGES:
            return False
        details = detailsOf(notice)
        gid = getattr(details, "gid", None)
        if isinstance(gid, GID):
            node = leadingTo(fabric.byGUID(gid.guid))
        else:
            node = self._nodeAt(getattr(details, "lid", 0), fabric, version)
        if node is not None:
            self.nodes[node.guid] = None
        elif not isinstance(gid, GID):
            return True
        elif notice.trapNumber == Trap.GID_IN_SERVICE:  # else it is gone, or its switch reports it, too
            self.newNodes.add(gid.guid)
            if len(self.newNodes) > MOST_NEW:
                self.newNodes.clear()
                return True
        return False

    def _nodeAt(self, lid: int, fabric: Fabric, version: int) -> Node | None:
        if self._indexed != version:  # each notice costs a look-up, and not a search of all ports
            self._indexed, self._ports = version, fabric.byLIDs()
        port = self._ports.get(lid)
        return None if port is None else port.node


class UnplannedSweeps:
    """
    Sweeps because of signs of change: at most L{MOST_UNPLANNED} begin in
    C{MOST_UNPLANNED * UNPLANNED_SECONDS}.
    """

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=MOST_UNPLANNED)

    def next(self, now: float, at: float) -> float | None:
        """Return the time of another sweep, which is not before C{at}; None if one is due already."""
        times = self._times
        if times and times[-1] > now:
            return None
        if len(times) == MOST_UNPLANNED:
            at = max(at, times[0] + MOST_UNPLANNED * UNPLANNED_SECONDS)
        times.append(at)
        return at

    def begin(self, now: float) -> None:
        """Note that a sweep begins, which takes the place of one that is due."""
        if self._times and self._times[-1] > now:
            self._times[-1] = now
