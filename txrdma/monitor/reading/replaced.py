"""
Frees the memory of replaced fabrics in pieces.

Their nodes refer to each other, and a garbage collection of all of them would block the reactor.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import islice
from typing import Final
from weakref import finalize

from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater

from txrdma.fabric.model import breakUp, Fabric, Node
from txrdma.iba.types import GUID

_FREED: Final = 200
"""Number of nodes whose memory is freed before other work of the reactor runs."""


class ReplacedFabrics:
    """Nodes of fabrics to which nothing refers any more."""

    def __init__(self, reactor: IReactorTime) -> None:
        self._reactor = reactor
        self._left: deque[Mapping[GUID, Node]] = deque()

    def watch(self, fabric: Fabric) -> None:
        """Free the nodes of a fabric in a call of L{free} after it has been replaced."""
        finalize(fabric, self._left.append, fabric.nodes).atexit = False  # called in any thread

    async def free(self) -> None:
        """Free the nodes of replaced fabrics."""
        while self._left:
            nodes = iter(self._left.popleft().values())
            while some := list(islice(nodes, _FREED)):
                breakUp(some)
                if len(some) == _FREED:
                    await deferLater(self._reactor, 0.0)
