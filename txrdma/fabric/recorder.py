"""
Records a fabric: reads all tables and counters that the checks of L{txrdma.fabric.recording} need.

The checks themselves make the requests, and their answers are recorded; other tables are read in addition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

from typing_extensions import Unpack

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from txrdma.fabric.creditloops import exhaust
from txrdma.fabric.errorcorrection import correctionFindings
from txrdma.fabric.errorcounters import CounterSurvey, ERROR_COUNTERS, Thresholds
from txrdma.fabric.health import managerFindings
from txrdma.fabric.model import Fabric, Node, Port, Problem
from txrdma.fabric.recording import Answers, keyOf, Recording
from txrdma.fabric.routechecks import routeFindings
from txrdma.fabric.routing import multicastTable
from txrdma.fabric.tables import ignoringFailure, TableSurvey
from txrdma.iba.path import IBPath, MADEndPort
from txrdma.kit.rawfields import peek
from txrdma.mad.errors import MADError
from txrdma.mad.layouts.smp import PKeyTable, PortInfo, VLArbitrationTable
from txrdma.mad.paths import toLID
from txrdma.mad.rpcs import CallOptions, RPCs
from txrdma.mad.schedule import MADSchedule

_KEYS_IN_BLOCK: Final = 32
_WEIGHTS_IN_BLOCK: Final = 32
_lowCap, _highCap = peek(PortInfo, "vlArbitrationLowCap"), peek(PortInfo, "vlArbitrationHighCap")
_ALL: Final = Thresholds(dict.fromkeys(ERROR_COUNTERS, -1))
"""Thresholds that all counters exceed, so that each is read."""


class RecordingRPCs(RPCs):
    """
    Makes calls by another object, and records their answers.

    @ivar calls: number of completed calls.
    @ivar lost: number of calls without an answer, by the name of the attribute, except those of vendors.
    """

    def __init__(
        self, rpcs: RPCs, answers: Answers, completed: Callable[[int], object] = lambda calls: None
    ) -> None:
        """@param completed: called with the number of calls after each of them."""
        self.retries = rpcs.retries
        self.calls = 0
        self.lost: Counter[str] = Counter()
        self._rpcs = rpcs
        self._answers = answers
        self._completed = completed

    def call(
        self,
        rpc: str,
        payload: Any,
        path: IBPath | None = None,
        attributeModifier: int = 0,
        **options: Unpack[CallOptions],
    ) -> Deferred[Any]:
        name, key = keyOf(payload, path, attributeModifier)
        answers = self._answers.setdefault((rpc, name), {})

        def ended(result: Any) -> Any:
            self.calls += 1
            self._completed(self.calls)
            if isinstance(result, list):
                answers[key] = [one.encode() for one in result]
            elif not isinstance(result, Failure):
                answers[key] = result.encode()
            elif isinstance(result.value, MADError):
                answers[key] = result.value.status
            elif rpc != "VendGet":  # most hosts ignore these
                self.lost[name] += 1
            return result

        return self._rpcs.call(rpc, payload, path, attributeModifier, **options).addBoth(ended)


def expectedCalls(fabric: Fabric) -> int:
    """Return the approximate number of calls of L{record}, to show its progress."""
    number = 0
    for node in fabric.nodes.values():
        info = node.switchInfo
        linked = len(node.linked())
        number += 4 * linked + 3 * (node.numPorts if node.isSwitch else linked)
        if info is not None:
            number += info.linearFDBTop // 64 + 2
    return number


async def record(
    rpcs: RPCs,
    endPort: MADEndPort,
    fabric: Fabric,
    at: float,
    maxOutstanding: int,
    completed: Callable[[int], object] = lambda calls: None,
    cooperate: Callable[[Iterator[None]], Awaitable[object]] = exhaust,
    problems: list[Problem] | None = None,
) -> Recording:
    """
    Read the tables and counters of a fabric, and all else that its checks need.

    Nodes that do not answer are left out: the checks of the recording report them.

    @param at: current time, in seconds since 1970.
    @param completed: called with the number of calls after each of them.
    @param cooperate: runs steps of milliseconds.
    @param problems: receives a problem for each attribute of which answers are missing.
    """
    recording = Recording(fabric, at, endPort)
    recorder = RecordingRPCs(rpcs, recording.answers, completed)
    tables = await TableSurvey(recorder, endPort, fabric, maxOutstanding).run()
    schedule = MADSchedule(recorder, maxOutstanding)
    nodes = [node for node in fabric.nodes.values() if node.lid]
    works = (ignoringFailure(work) for node in nodes for work in _worksOf(schedule, endPort, node))
    await schedule.run(mqueue=works)
    await routeFindings(recorder, endPort, fabric, tables.linear, cooperate, tables.adaptive)
    await managerFindings(recorder, endPort, fabric)
    survey = CounterSurvey(recorder, endPort, _ALL, withData=True, maxOutstanding=maxOutstanding)
    await survey.run(nodes)
    await correctionFindings(recorder, endPort, fabric, Thresholds(), maxOutstanding)
    if problems is not None:
        for name, many in recorder.lost.items():
            problems.append(
                Problem("incomplete", "the snapshot", f"{name}: {many} requests without an answer")
            )
    return recording


def _worksOf(rpcs: RPCs, endPort: MADEndPort, node: Node) -> Iterator[Any]:
    """Return the queries for the tables of a node that no check needs."""
    if node.isSwitch:
        yield multicastTable(rpcs, toLID(endPort, node.lid), node.numPorts, node.switchInfo)
    for port in node.linked():
        if port.lid and port.raw:
            yield _arbitration(rpcs, endPort, port)
            if not node.isSwitch:
                yield _pkeys(rpcs, endPort, port)


async def _arbitration(rpcs: RPCs, endPort: MADEndPort, port: Port) -> None:
    number = port.number if port.node.isSwitch else 0
    for cap, first in ((_lowCap(port.raw), 1), (_highCap(port.raw), 3)):
        for block in range(-(-cap // _WEIGHTS_IN_BLOCK)):
            modifier = VLArbitrationTable.modifier(number, first + block)
            await rpcs.SubnGet(VLArbitrationTable, toLID(endPort, port.lid), modifier)


async def _pkeys(rpcs: RPCs, endPort: MADEndPort, port: Port) -> None:
    for block in range(-(-port.node.info.partitionCap // _KEYS_IN_BLOCK)):
        answer = await rpcs.SubnGet(PKeyTable, toLID(endPort, port.lid), PKeyTable.modifier(block))
        if not any(answer.pkeys):
            break
