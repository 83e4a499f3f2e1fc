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

from txrdma.iba.path import IBDRPath, IBPath
from txrdma.iba.verbs import PhysicalState
from txrdma.mad.attributes import Attribute
from txrdma.mad.errors import MADError, MADFailure
from txrdma.mad.fabric import Fabric, Node, Port, Problem
from txrdma.mad.rpcs import RPCs
from txrdma.mad.smp import NodeDescription, NodeInfo, PortInfo, SwitchInfo

MAX_OUTSTANDING: Final = 128


class Sweep:
    """
    One sweep by directed routes, from a port on.

    @ivar fabric: what was found so far.
    @ivar asked: how many questions were sent, and C{answered} how many have ended.
    """

    def __init__(
        self,
        agent: RPCs,
        maxOutstanding: int = MAX_OUTSTANDING,
        maxHops: int = 63,
        progress: Callable[[Sweep], None] | None = None,
    ) -> None:
        """
        @param agent: remains its owner's.
        @param maxHops: how far from the beginning.
        @param progress: is called after every answer.
        """
        self.fabric = Fabric()
        self.asked = self.answered = 0
        self._agent = agent
        self._maxOutstanding = maxOutstanding
        self._maxHops = maxHops
        self._progress = progress
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
        self._ask(NodeInfo, start or IBDRPath(), 0, self._found, None)
        return self._done

    # Questions.

    def _ask(
        self, kind: type[Attribute], route: IBDRPath, modifier: int, then: Callable[..., None], about: Any
    ) -> None:
        if len(self._open) >= self._maxOutstanding:
            self._waiting.append((kind, route, modifier, then, about))
            return
        self.asked += 1
        answer = self._agent.call("SubnGet", kind, route, modifier)
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
        if self._progress is not None:
            self._progress(self)
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
        self._problem(sort, route, f"{kind.__name__}: {failure.getErrorMessage()}")

    def _problem(self, sort: str, route: IBDRPath, text: str) -> None:
        self.fabric.problems.append(Problem(sort, routeText(route), text))

    def _stop(self) -> None:
        self._done = None
        self._waiting.clear()
        for answer in tuple(self._open):
            answer.addErrback(lambda failure: None)
            answer.cancel()

    # Answers.

    def _found(self, info: NodeInfo, route: IBDRPath, came: Port | None) -> None:
        """Somebody is at the end of this route."""
        node, isNew = self.fabric.add(info, route)
        here = node.port(info.localPortNum)
        if came is not None and not self.fabric.link(came, here):
            self._problem(
                "duplicate-guid",
                route,
                f"port {here.number} of {node.guid} is at {came}, and is linked to {here.peer or came.peer}",
            )
            return
        if isNew:
            self._ask(NodeDescription, route, 0, self._named, node)
            if node.isSwitch:
                self._ask(SwitchInfo, route, 0, self._switched, node)
                for number in range(node.info.numPorts + 1):
                    self._ask(PortInfo, route, number, self._ported, node.port(number))
        if not node.isSwitch and not here.raw:
            here.raw = bytes(64)  # it is being asked
            self._ask(PortInfo, route, here.number, self._ported, here)

    @staticmethod
    def _named(told: NodeDescription, route: IBDRPath, node: Node) -> None:
        node.description = told.text

    @staticmethod
    def _switched(told: SwitchInfo, route: IBDRPath, node: Node) -> None:
        node.switchInfo = told

    def _ported(self, told: PortInfo, route: IBDRPath, port: Port) -> None:
        port.raw = told.encode()
        if port.number == 0 or port.peer is not None or told.portPhysicalState is not PhysicalState.LINK_UP:
            return
        isFirst = not route.drPath
        if (port.node.isSwitch or isFirst) and len(route.drPath) < self._maxHops:
            self._ask(NodeInfo, route.then(port.number), 0, self._found, port)


def routeText(path: IBPath) -> str:
    """A path, in the words that people type it in: C{"DR 0,1,3"}, C{"lid 7"}."""
    if isinstance(path, IBDRPath):
        return "DR " + ",".join(map(str, (0, *path.drPath)))
    return f"lid {path.dlid}"
