"""
A search through all states to which two managers lead one connection, from its REQ until its IDs are free.

The state machines are the real ones, with the dispatchers and their tables. The network may deliver any
message that was ever sent at any time, any number of times or never. Programs connect, accept, load alternate
paths and disconnect at any time; queue pairs migrate.

Each end is deterministic. So its states and transitions are computed once, when they are first needed, and a
state of both is three numbers: the states of the ends, and the set of messages that were sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from txrdma.cm.layouts.paths import areSame, reversedPath
from txrdma.kit.wire import Layout
from txrdma.test.support.cm.managers import Bounds, CLIENT, End, Fault, ONE_LOAD, openEnds, Sent, SERVER


class Edge(NamedTuple):
    """A step of one end: its state afterwards, the set of messages that it sends, and a fault."""

    name: str
    target: int
    sent: int
    fault: str | None = None


class Graph:
    """
    The states of one end, by number, with the steps between them.

    @ivar ends: an end in each state.
    """

    def __init__(self, first: End, messages: Messages) -> None:
        self._numbers: dict[tuple[object, ...], int] = {}
        self._messages = messages
        self.ends: list[End] = []
        self._steps: list[list[Edge] | None] = []
        self._received: list[dict[int, Edge | None]] = []
        self.migrated: dict[int, Edge] = {}
        self.numberOf(first)

    def numberOf(self, end: End) -> int:
        """Return the number of an end's state."""
        key = end.key()
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.ends)
            self.ends.append(end)
            self._steps.append(None)
            self._received.append({})
            if not end.becomesFree():
                raise Fault(f"an ID stays in a table: {end.state}")
        return number

    def _edge(self, name: str, number: int, step: Callable[[End], None]) -> Edge:
        end = self.ends[number].twin()
        try:
            step(end)
            end.settle()
            target = self.numberOf(end)
        except Fault as fault:
            return Edge(name, number, 0, str(fault))
        sent = 0
        for each in end.sent:
            sent |= 1 << self._messages.numberOf(each)
        return Edge(name, target, sent)

    def steps(self, number: int) -> list[Edge]:
        """Return the steps of an end without a message."""
        steps = self._steps[number]
        if steps is None:
            steps = self._steps[number] = [
                self._edge(name, number, step) for name, step in self.ends[number].steps()
            ]
        return steps

    def received(self, number: int, message: int) -> Edge | None:
        """Return the step by which an end receives a message; None beyond the bounds."""
        edges = self._received[number]
        if message not in edges:
            sent = self._messages.all[message]
            if self.ends[number].mayReceive(sent.message):
                name = f"{type(sent.message).__name__} {sent.transactionID}"
                edges[message] = self._edge(name, number, lambda end: end.receive(sent))
            else:
                edges[message] = None
        return edges[message]

    def migrate(self, number: int) -> Edge:
        """Return the step by which the queue pair of an end migrates."""
        if number not in self.migrated:
            self.migrated[number] = self._edge("migration", number, End.migrate)
        return self.migrated[number]


class Messages:
    """
    All messages, by number.

    @ivar to: the set of messages for each end, as bits.
    """

    def __init__(self) -> None:
        self.all: list[Sent] = []
        self.to = [0, 0]
        self._numbers: dict[Sent, int] = {}

    def numberOf(self, sent: Sent) -> int:
        """Return the number of a message."""
        number = self._numbers.get(sent)
        if number is None:
            number = self._numbers[sent] = len(self.all)
            self.all.append(sent)
            self.to[sent.target] |= 1 << number
        return number


World = tuple[int, int, int]
"""The numbers of the states of both ends, and the set of messages that were sent."""


@dataclass
class Found:
    """
    The result of a search.

    @ivar worlds: number of states of both ends; C{steps}: between them; C{ends}: states of each end.
    @ivar states: names of the states that connections had; C{messages}: kinds of messages.
    @ivar closed: number of states in which both ends have had a connection, and neither has one now.
    """

    worlds: int = 0
    steps: int = 0
    closed: int = 0
    migrated: int = 0
    ends: tuple[int, int] = (0, 0)
    states: set[str] = field(default_factory=set)
    messages: set[type[Layout]] = field(default_factory=set)
    fault: str | None = None
    story: tuple[str, ...] = ()


class Search:
    def __init__(self, bounds: Bounds = ONE_LOAD) -> None:
        self._messages = Messages()
        self._graphs = [Graph(end, self._messages) for end in openEnds(bounds)]
        self._bounds = bounds
        self._pairs: dict[tuple[int, int], str | None] = {}

    def run(self, most: float = float("inf")) -> Found:
        """Search at most this number of states, until an invariant is violated."""
        found = Found()
        first: World = (0, 0, 0)
        before: dict[World, tuple[World, str]] = {first: (first, "")}
        waiting = deque([first])
        while waiting and found.worlds < most:
            world = waiting.popleft()
            found.worlds += 1
            for which, edge in self._successors(world):
                found.steps += 1
                after = self._after(world, which, edge)
                fault = edge.fault or self._broken(after)
                if fault is not None:
                    found.fault, found.story = fault, self._story(before, world, edge)
                    return found
                if after not in before:
                    before[after] = world, f"{edge.name} {('client', 'server', '')[which]}"
                    waiting.append(after)
        self._count(found, before)
        return found

    def _after(self, world: World, which: int, edge: Edge) -> World:
        client, server, sent = world
        if which == CLIENT:
            return edge.target, server, sent | edge.sent
        if which == SERVER:
            return client, edge.target, sent | edge.sent
        return self._graphs[CLIENT].migrate(client).target, self._graphs[SERVER].migrate(server).target, sent

    def _successors(self, world: World) -> Iterator[tuple[int, Edge]]:
        for which, graph in enumerate(self._graphs):
            number = world[which]
            for edge in graph.steps(number):
                yield which, edge
            rest = world[2] & self._messages.to[which]
            while rest:
                low = rest & -rest
                rest ^= low
                received = graph.received(number, low.bit_length() - 1)
                if received is not None:
                    yield which, received
        pairs = [graph.ends[number].qp for graph, number in zip(self._graphs, world[:2], strict=True)]
        mayMigrate = [
            qp is not None and qp.alternate is not None and graph.ends[number].migrations > 0
            for qp, graph, number in zip(pairs, self._graphs, world[:2], strict=True)
        ]
        if all(mayMigrate):
            yield 2, Edge("migration", 0, 0)
        for which in (CLIENT, SERVER):
            if mayMigrate[which] and pairs[1 - which] is None:  # its peer's queue pair is closed
                yield which, self._graphs[which].migrate(world[which])

    def _broken(self, world: World) -> str | None:
        """Return the invariant that two ends violate together."""
        numbers = world[:2]
        if numbers not in self._pairs:
            client, server = (graph.ends[number] for graph, number in zip(self._graphs, numbers, strict=True))
            self._pairs[numbers] = broken(client, server)
        return self._pairs[numbers]

    def _story(self, before: dict[World, tuple[World, str]], world: World, edge: Edge) -> tuple[str, ...]:
        story = [edge.name]
        while world != (0, 0, 0):
            world, name = before[world]
            story.append(name)
        return tuple(reversed(story))

    def _count(self, found: Found, worlds: dict[World, Any]) -> None:
        found.ends = len(self._graphs[CLIENT].ends), len(self._graphs[SERVER].ends)
        found.messages = {type(each.message) for each in self._messages.all}
        clients, servers = (graph.ends for graph in self._graphs)
        found.states = {end.state for ends in (clients, servers) for end in ends}
        for client, server, _ in worlds:
            ends = clients[client], servers[server]
            found.closed += all(end.drawn and end.managed is None for end in ends)
            found.migrated += any(end.migrations < self._bounds.migrations for end in ends)


def broken(client: End, server: End) -> str | None:
    """Return the invariant that two ends violate together, or None."""
    if client.managed is None or server.managed is None:
        return None
    one, other = client.connection, server.connection
    for end, peer in ((client, server), (server, client)):
        if end.isEstablished and not end.connection.opening.isActive and not peer.isEstablished:
            return "the passive end is established before the active one"
    if client.qp is None or server.qp is None or not (client.isEstablished and server.isEstablished):
        return None
    if one.opening.isActive == other.opening.isActive:
        return "both ends are active, or both passive"
    if (one.remoteCommID, other.remoteCommID, one.remoteQPN) != (
        other.localCommID,
        one.localCommID,
        other.localQPN,
    ):
        return "ends are connected to somebody else"
    if not areSame(client.qp.path, reversedPath(server.qp.path)):
        return "queue pairs use different paths"
    first, second = client.qp.alternate, server.qp.alternate
    if first is not None and second is not None and not areSame(first, reversedPath(second)):
        return "queue pairs are armed for different paths"
    alternate = one.alternate
    if alternate is not None and alternate.state == "IDLE" and first is not None and second is None:
        return "the active end has an alternate path that the passive one has not"
    return None
