"""
Node names as labels of time series: each new name begins a new series, which databases store for weeks.

A node can set any NodeDescription. The first change is used at once, the next one when it has lasted for a
minute, and each further one after twice that time, up to a day. A day without changes resets this.
"""

from __future__ import annotations

from collections.abc import Collection
from math import inf
from typing import Final

from txrdma.fabric.model import Node
from txrdma.iba.types import GUID
from txrdma.kit.values import record

_FIRST_SECONDS: Final = 60.0
_MOST_SECONDS: Final = 86400.0


@record
class _Named:
    """A node's published name, the time of the change, and the name that will replace it if it lasts."""

    reported: str
    since: float
    needs: float = 0.0
    other: str = ""
    otherSince: float = inf


class SteadyNames:
    """
    Names of the nodes of a fabric that do not change too often.

    @ivar dueAt: time after which a name may change although the fabric is the same.
    """

    def __init__(self) -> None:
        self.dueAt = inf
        self._nodes: dict[GUID, _Named] = {}

    def observe(self, nodes: Collection[Node], now: float) -> None:
        """Process the current names of nodes; other nodes are forgotten."""
        before, self._nodes = self._nodes, {}
        self.dueAt = inf
        for node in nodes:
            named = before.get(node.guid)
            if named is None:
                named = _Named(node.description, now)
            elif node.description == named.reported:
                named.otherSince = inf
            else:
                self._renamed(named, node.description, now)
            self._nodes[node.guid] = named

    def _renamed(self, named: _Named, name: str, now: float) -> None:
        if named.otherSince == inf or named.other != name:
            named.other, named.otherSince = name, now
        if now - named.since >= _MOST_SECONDS:
            named.needs = 0.0
        due = named.otherSince + named.needs
        if now >= due:
            needs = min(_MOST_SECONDS, max(_FIRST_SECONDS, 2 * named.needs))
            named.reported, named.since, named.needs, named.otherSince = name, now, needs, inf
        else:
            self.dueAt = min(self.dueAt, due)

    def of(self, node: Node) -> str:
        """Return the name of an observed node."""
        return self._nodes[node.guid].reported
