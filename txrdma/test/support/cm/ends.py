"""
Managers joined by a network that loses, duplicates and delays by a seed, and applications that use them.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from random import Random

from txrdma.cm.core.dispatcher import Dispatcher, Listener, Managed
from txrdma.cm.core.events import (
    AlternatePathRequested,
    ConnectionReplied,
    ConnectionRequested,
    Disconnected,
    Event,
    ServiceRequested,
)
from txrdma.cm.layouts.messages import APStatus, REP, REQ, SIDRREP
from txrdma.cm.layouts.paths import pathFor
from txrdma.iba.path import IBPath
from txrdma.iba.types import GID, GUID, QPN
from txrdma.kit.wire import Layout

SERVICE = 0x1000000000000042


class End:
    """
    A host: its manager, and an application that accepts every request and is ready immediately.

    @ivar happened: all events of all connections so far.
    @ivar answers: whether the application answers automatically; otherwise the test does.
    """

    def __init__(self, world: World, address: str, seed: int) -> None:
        self.world, self.address = world, address
        self.gid = GID.fromIP(address)
        random = Random(seed)
        self.manager = Dispatcher(GUID.fromInt(0x0200_0000 + seed), lambda: random.getrandbits(32))
        self.happened: list[tuple[Managed, Event]] = []
        self.answers = True
        self._qpns = count(100)

    def listen(self, backlog: int = 1024, offset: int = 0, pattern: bytes = b"") -> Listener:
        listener = Listener(SERVICE, backlog, offset, pattern)
        self.manager.listen(listener)
        return listener

    def pathTo(self, peer: End) -> IBPath:
        """Return the path to another host."""
        return IBPath(sgid=self.gid, dgid=peer.gid, hopLimit=64, packetLifeTime=14)

    def connect(self, peer: End, isPeerToPeer: bool = False, **fields: object) -> Managed:
        """Request a connection to another host."""
        path = self.pathTo(peer)
        request = REQ(
            serviceID=SERVICE,
            localQPN=QPN(next(self._qpns)),
            remoteCMResponseTimeout=17,
            localCMResponseTimeout=17,
            maxCMRetries=7,
            primary=pathFor(path),
        ).replace(**fields)
        managed = self.manager.connect(request, path, self.world.now, isPeerToPeer)
        self.turn()
        return managed

    def do(self, managed: Managed, what: Callable[[], object]) -> None:
        """Call a request of a connection."""
        what()
        self.manager.collect(managed, self.world.now)
        self.turn()

    def disconnect(self, managed: Managed) -> None:
        self.do(managed, lambda: managed.connection.disconnect(self.world.now))

    def turn(self) -> None:
        """Act on events, then send messages."""
        while events := self.manager.events():
            for managed, event in events:
                self.happened.append((managed, event))
                if self.answers:
                    self._answer(managed, event)
                    self.manager.collect(managed, self.world.now)
        for each in self.manager.outgoing():
            self.world.send(self, each.path, each.message, each.transactionID)

    def _answer(self, managed: Managed, event: Event) -> None:
        now = self.world.now
        if isinstance(event, ConnectionRequested):
            reply = REP(localQPN=QPN(next(self._qpns)), localCAGUID=self.manager.guid)
            managed.connection.opening.accept(reply, now)
        elif isinstance(event, ConnectionReplied):
            managed.connection.opening.ready(b"", now)
        elif isinstance(event, Disconnected) and event.request is not None:
            managed.connection.disconnect(now)
        elif isinstance(event, AlternatePathRequested):
            managed.connection.replyAlternatePath(event.transactionID, APStatus.LOADED, now)
        elif isinstance(event, ServiceRequested):
            managed.resolution.answer(SIDRREP(qpn=QPN(77), qkey=0x1234), now)

    def eventNames(self, managed: Managed) -> list[str]:
        """Return the names of a connection's events."""
        return [type(event).__name__ for who, event in self.happened if who is managed]


class World:
    """
    Two or more hosts, and simulated time.

    @ivar drops: returns whether a message is lost.
    """

    def __init__(self, seed: int = 0, loss: float = 0.0, doubling: float = 0.0) -> None:
        self.now = 0.0
        self.random = Random(seed)
        self.loss, self.doubling = loss, doubling
        self.drops: Callable[[Layout], bool] = lambda _message: False
        self.log: list[str] = []
        self._seed = seed
        self._ends: dict[GID, End] = {}
        self._flights: list[tuple[float, int, End, Layout, int, IBPath]] = []
        self._numbers = count()

    def end(self, address: str) -> End:
        made = End(self, address, self._seed * 1000 + len(self._ends) + 1)
        self._ends[made.gid] = made
        return made

    def send(self, sender: End, path: IBPath, message: Layout, transactionID: int) -> None:
        """Lose, duplicate, delay or deliver a message."""
        self.log.append(type(message).__name__)
        assert path.dgid is not None
        there = self._ends.get(path.dgid)
        if there is None or self.drops(message):
            return
        decoded = type(message).decode(message.encode())
        copies = 2 if self.random.random() < self.doubling else 1
        for _ in range(copies):
            if self.random.random() >= self.loss:
                at = self.now + 0.01 * (1 + self.random.random() * (10 if self.doubling else 0))
                heappush(self._flights, (at, next(self._numbers), there, decoded, transactionID, path))

    def run(self, until: float = 1e9) -> None:
        """Advance time until nothing is pending, or until the given time."""
        while True:
            times = [at for end in self._ends.values() if (at := end.manager.deadline()) is not None]
            if self._flights:
                times.append(self._flights[0][0])
            if not times or min(times) > until:
                self.now = until if until < 1e9 else self.now
                return
            self.now = max(self.now, min(times))
            if self._flights and self._flights[0][0] <= self.now:
                _, _, end, message, transaction, path = heappop(self._flights)
                end.manager.received(message, transaction, path, self.now)
                end.turn()
            else:
                for end in self._ends.values():
                    end.manager.expired(self.now)
                    end.turn()
