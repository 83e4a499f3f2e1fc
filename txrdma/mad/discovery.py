"""
Finding out what a fabric consists of, many questions at a time.

What cannot be found out becomes a L{Problem <txrdma.mad.fabric.Problem>} of the fabric; the sweep goes on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from txrdma.iba.path import IBDRPath
from txrdma.iba.types import GUID
from txrdma.iba.verbs import PhysicalState
from txrdma.mad.attributes import Attribute
from txrdma.mad.errors import MADError, MADFailure
from txrdma.mad.fabric import Fabric, Node, Port, Problem
from txrdma.mad.rpcs import RPCs
from txrdma.mad.smp import NodeDescription, NodeInfo, PortInfo, SwitchInfo
from txrdma.wire import data, wire

MAX_OUTSTANDING: Final = 128

_LINK_UP: Final = PhysicalState.LINK_UP


@wire(64)
class _PortInfo(Attribute):
    """As it came: a large fabric has many ports, and what they told is read when somebody asks."""

    attributeID = PortInfo.attributeID
    rpcs = PortInfo.rpcs
    content: bytes = data(64)


@wire(40)
class _NodeInfo(Attribute):
    """As it came: most tell of a switch that we know already."""

    attributeID = NodeInfo.attributeID
    rpcs = NodeInfo.rpcs
    content: bytes = data(40)


class Sweep:
    """
    One sweep by directed routes, from a port on.

    @ivar fabric: what was found so far.
    @ivar asked: how many questions were sent, and C{answered} how many have ended.
    @ivar progress: is called after answers, with how many have ended, and how many there are by now.
    """

    def __init__(
        self,
        agent: RPCs,
        maxOutstanding: int = MAX_OUTSTANDING,
        maxHops: int = 63,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """
        @param agent: remains its owner's.
        @param maxHops: how far from the beginning.
        """
        self.fabric = Fabric()
        self.asked = self.answered = 0
        self.progress = progress
        self._call = agent.call
        self._maxOutstanding = maxOutstanding
        self._maxHops = maxHops
        self._waiting: deque[tuple[type[Attribute], IBDRPath, int, Callable[..., None], Any]] = deque()
        self._open: dict[Deferred[Any], None] = {}
        self._done: Deferred[Fabric] | None = None

    def run(self, start: IBDRPath | None = None) -> Deferred[Fabric]:
        """
        Sweep.

        @param start: the route to begin at; the agent's own port unless said.
        @return: fires with the fabric, whatever the problems. Cancelling it cancels all that is on its way.
        """
        self._done = Deferred(lambda _: self._stop())
        self._ask(_NodeInfo, start or IBDRPath(), 0, self._found, None)
        return self._done

    # Questions.

    def _ask(
        self, kind: type[Attribute], route: IBDRPath, modifier: int, then: Callable[..., None], about: Any
    ) -> None:
        if len(self._open) >= self._maxOutstanding:
            self._waiting.append((kind, route, modifier, then, about))
            return
        self.asked += 1
        answer = self._call("SubnGet", kind, route, modifier)
        self._open[answer] = None
        answer.addBoth(self._told, answer, kind, route, then, about)

    def _told(
        self,
        result: Any,
        answer: Deferred[Any],
        kind: type[Attribute],
        route: IBDRPath,
        then: Callable[..., None],
        about: Any,
    ) -> None:
        self._open.pop(answer, None)
        if self._done is None:
            return
        self.answered += 1
        if isinstance(result, Failure):
            self._failed(result, kind, route)
        else:
            then(result, route, about)
        while self._waiting and len(self._open) < self._maxOutstanding:
            self._ask(*self._waiting.popleft())
        if self.progress is not None:
            self.progress(self.answered, self.asked + len(self._waiting))
        if not self._open and self._done is not None:
            done, self._done = self._done, None
            done.callback(self.fabric)

    def _failed(self, failure: Failure, kind: type[Attribute], route: IBDRPath) -> None:
        if not failure.check(MADFailure):
            done, self._done = self._done, None
            self._stop()
            if done is not None:
                done.errback(failure)
            return
        sort = "refused" if failure.check(MADError) else "unreachable"
        self._problem(sort, route, f"{kind.__name__.lstrip('_')}: {failure.getErrorMessage()}")

    def _problem(self, sort: str, route: IBDRPath, text: str) -> None:
        self.fabric.problems.append(Problem(sort, str(route), text))

    def _stop(self) -> None:
        self._done = None
        self._waiting.clear()
        for answer in tuple(self._open):
            answer.addErrback(lambda failure: None)
            answer.cancel()

    # Answers.

    def _found(self, told: _NodeInfo, route: IBDRPath, came: Port | None) -> None:
        """Somebody is at the end of this route."""
        content = told.content
        node = self.fabric.nodes.get(GUID(content[12:20]))
        number = content[36]
        isNew = node is None
        if node is None:
            node, _ = self.fabric.add(NodeInfo.decode(content), route)
        elif not node.isSwitch:
            node.portGUIDs[number] = GUID(content[20:28])
        isKnown = number in node.ports
        here = node.port(number)
        if came is not None and not self.fabric.link(came, here):
            self._problem(
                "duplicate-guid",
                route,
                f"port {number} of {node.guid} is at {came}, and is linked to {here.peer or came.peer}",
            )
            return
        if isNew:
            self._ask(NodeDescription, route, 0, self._named, node)
            if node.isSwitch:
                self._ask(SwitchInfo, route, 0, self._switched, node)
                for each in range(node.info.numPorts + 1):
                    self._ask(_PortInfo, route, each, self._ported, node.port(each))
        if not node.isSwitch and not isKnown:
            self._ask(_PortInfo, route, number, self._ported, here)

    @staticmethod
    def _named(told: NodeDescription, route: IBDRPath, node: Node) -> None:
        node.description = told.text

    @staticmethod
    def _switched(told: SwitchInfo, route: IBDRPath, node: Node) -> None:
        node.switchInfo = told

    def _ported(self, told: _PortInfo, route: IBDRPath, port: Port) -> None:
        content = port.raw = told.content
        if port.number == 0 or port.peer is not None or content[33] >> 4 != _LINK_UP:
            return
        isFirst = not route.drPath
        if (isFirst or port.node.isSwitch) and len(route.drPath) < self._maxHops:
            self._ask(_NodeInfo, route.then(port.number), 0, self._found, port)
