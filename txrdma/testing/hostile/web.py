"""Hostile clients of the fabric monitor's site: requests, logins, streams of events and connections."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any, Final

from twisted.internet.address import IPv4Address
from twisted.internet.task import deferLater

from txrdma.kit import webaccess
from txrdma.kit.passwords import Account, PasswordHash
from txrdma.kit.webaccess import AccessControl, GUESS_SECONDS, Guesses, MOST_GUESSES
from txrdma.mad.agent import MADAgent
from txrdma.monitor.reading.poller import FabricPoller
from txrdma.monitor.series.exposition import guidText
from txrdma.monitor.web import events
from txrdma.monitor.web import searches as searchesModule
from txrdma.monitor.web import site as siteModule
from txrdma.monitor.web.site import MonitorSite
from txrdma.monitor.web.watch import Watch
from txrdma.sim.clock import SimulatedClock
from txrdma.sim.fabric import SimulatedFabric
from txrdma.sim.nets.fattree import fatTree
from txrdma.soft import device as deviceModule
from txrdma.soft.core import memory as memoryModule
from txrdma.testing.hostile.plans import HostilePlan
from txrdma.testing.hostile.scenario import HostileScenario
from txrdma.testing.hostile.talkers import Pair, Talker
from txrdma.testing.hostile.webacts import (
    Act,
    contentsOf,
    Deed,
    drawWeb,
    isForeign,
    isRefused,
    PASSWORD,
    TOKEN,
    USER,
    WebPlan,
)
from txrdma.testing.hostile.webclients import Browser, OwnedTCP, Served, Stranger
from txrdma.testing.hostile.wiring import TamperedSocket, TCP
from txrdma.testing.outcome import check
from txrdma.testing.smc.hosts import connectedSockets, Host, MemorySocket

_SECONDS: Final = 50e-6
"""Time of data to the other end."""

_NOW: Final = 1e6
"""Seconds between the readings of the fabric and the simulation: pages show ages in days."""

_HASHED_SECONDS: Final = 0.01
_EVENT_SECONDS: Final = 2.0
_EVENT: Final = "x" * 40_000
_IDLE_SECONDS: Final = 120.0
"""Seconds without data after which each connection must have ended: timeouts of requests, and of events."""

_PENDING: Final = 1 << 20
"""Maximum number of octets that wait for a client: the longest answer, and an event."""


@cache
def _readPoller() -> tuple[FabricPoller, float]:
    """Return a poller that has read a fabric with a fault, and was stopped, with the time of that."""
    clock = SimulatedClock()
    fabric = SimulatedFabric(clock, fatTree(4))
    hosts = [name for name, node in fabric.nodes.items() if not node.isSwitch]
    agent = MADAgent(clock, fabric.attach(hosts[0]))
    poller = FabricPoller(clock, agent)
    poller.start()
    clock.pump([0.5] * 80)
    fabric.cut(hosts[-1])
    clock.pump([0.5] * 80)
    poller.stop()
    agent.close()
    fabric.close()
    return poller, clock.seconds()


def _most(counts: Iterable[int]) -> int:
    return max(counts, default=0)


class WebScenario(HostileScenario):
    """A simulation with a hostile client of a monitor's site, which has several addresses."""

    channels = (TCP,)
    chance = ((memoryModule, "randbits"), (deviceModule, "randbelow"))
    constants = (
        *((siteModule, "MOST_CONNECTIONS", 24), (siteModule, "MOST_OF_CLIENT", 8)),
        *((siteModule, "MOST_CLOSING", 2), (siteModule, "MOST_AT_ONCE", 3)),
        *((webaccess, "MOST_GUESSERS", 10), (webaccess, "MOST_OF_ADDRESS", 20)),
        *((webaccess, "MOST_LOGINS", 6), (webaccess, "MOST_SAME", 5), (webaccess, "MOST_LOGGED", 20)),
        (searchesModule, "MOST_RESULTS", 4),
        *((events, "MOST_READERS", 6), (events, "MOST_WAITING", 8), (events, "MOST_BYTES", 200_000)),
    )
    plan: WebPlan

    def __init__(self, plan: WebPlan) -> None:
        super().__init__(plan)
        self._usual: dict[bytes, bytes] = {}
        self._browsers: list[Browser] = []
        self._strangers: list[Stranger] = []
        self._isOver = True
        self._compared = Counter[tuple[bool, str]]()

    @classmethod
    def draw(cls, seed: int) -> WebPlan:
        return drawWeb(seed)

    @classmethod
    def plain(cls, plan: HostilePlan) -> HostilePlan:
        return replace(super().plain(plan), acts=(), isOpen=False)  # type: ignore[call-arg]  # of WebPlan

    def begin(self) -> None:
        (poller, began), victim = _readPoller(), self.victim
        self._guid = guidText(min(poller.fabric.nodes)).encode()  # type: ignore[union-attr]  # it was read
        watch = Watch(poller, None, lambda: began + _NOW + victim.seconds())
        self._access = AccessControl()
        if not self.plan.isOpen:
            users = {USER: Account(PasswordHash.of(PASSWORD, 1))}
            guesses = Guesses(victim.seconds)
            self._access = AccessControl([TOKEN], users, guesses, inThread=self._compare)
        self.site = MonitorSite(victim, watch, access=self._access)
        self.site.factory.reactor = victim
        self.site.start()
        self._isOver = False
        self._publish()

    def _compare(self, work: Any, *arguments: Any) -> Any:
        attempt = next(iter(self._access._logins.values()))[0]
        isKnown = work.__self__ in self._access._users.values()
        self._compared[isKnown, attempt.address] += 1
        return deferLater(self.victim, _HASHED_SECONDS, work, *arguments)

    def _publish(self) -> None:
        """Check the limits, and send events as rounds of readings do."""
        self.judge()
        if not self._isOver:
            self.site.hub.fabricChanged()
            self.site.hub.publish("round", {"edges": _EVENT})
            for each in self._browsers:
                each.keep()
            self.victim.callLater(_EVENT_SECONDS, self._publish)

    def connect(self, client: Host, server: Host) -> Pair:
        served = Served(self.publish)
        pair = Pair(Talker(), served)
        if client is self.honest:
            pair.client = browser = Browser(client, served, self.join, self.checkPage)
            self._browsers.append(browser)
            client.callLater(0, browser.begin)
        else:
            pair.client = stranger = Stranger(client, served, self.answered)
            self._strangers.append(stranger)
            client.callLater(0, self.join, client, stranger, served, stranger, 0, True)
        self.accept(served)
        return pair

    def join(
        self,
        client: Host,
        protocol: Any,
        served: Served,
        talker: Any,
        number: int = 0,
        isTampered: bool = False,
    ) -> None:
        """Connect a protocol to the monitor, from one of the addresses of its host."""
        port = next(self.numbers)
        sockets = connectedSockets(self.world, Random(port), client, self.victim, port, _SECONDS)
        address = f"10.0.{number + 1}.{client.address.rpartition('.')[2]}"
        sockets[0].address = (address, port)
        if isTampered:
            TamperedSocket(sockets[0], self.tamper, lambda data: data.find(b"\n") + 1)
        client.callLater(0, OwnedTCP(sockets[0], protocol, talker.ended).begin)
        self.victim.callLater(0, self._accept, sockets[1], served)

    def _accept(self, socket: MemorySocket, served: Served) -> None:
        """Accept a connection at the monitor."""
        accepted = self.site.factory.buildProtocol(IPv4Address("TCP", *socket.peer.address))
        served.transports.append(OwnedTCP(socket, accepted, served.ended))
        served.transports[-1].begin()

    def _talk(self, pair: Pair) -> None:
        super()._talk(pair)
        for act in self.plan.acts:
            self.hostile.callLater(act.at, self._do, act)

    def _endHostile(self, pair: Pair) -> None:
        self._visit()
        super()._endHostile(pair)

    def _visit(self) -> None:
        """Let another client of the honest host get pages while the hostile one is connected."""
        served = self.accept(Served(self.publish))
        browser = Browser(self.honest, served, self.join, self.checkPage, hasEvents=False)
        browser.begin()
        self.until(lambda: browser.isMade, "a new client is not connected")
        browser.send(b"pages")
        self.until(lambda: served.received, "a new client gets no pages")
        browser.close()

    def _do(self, act: Act) -> None:
        """Carry out an act of the hostile client."""
        if not self._isTalking:
            return
        for content in contentsOf(act, self._guid):
            stranger = Stranger(self.hostile, Served(self.publish), self.answered, act)
            stranger.content = content
            self._strangers.append(stranger)
            number = 2 if act.deed is Deed.IDLE else act.address
            self.join(self.hostile, stranger, stranger.served, stranger, number)
        self.victim.callLater(0.001, self.judge)

    def publish(self, octets: int) -> None:
        """Send an event to all readers."""
        self.site.hub.publish("finding", {"octets": octets})

    def checkPage(self, path: bytes, code: int, body: bytes) -> None:
        """Check an answer of the bystander: only numbers may differ from the first one at the same path."""
        shown = re.sub(rb"\d+", b"0", body)
        if code != 200 or shown != self._usual.setdefault(path, shown):
            self.problems.append(f"the bystander gets {code} at {path!r}: {body[:200]!r}")

    def answered(self, act: Act | None, code: int) -> None:
        """Count an answer of the hostile client, which may need credentials, or another Host."""
        self._outcome[f"{code}"] += 1
        if code >= 500 and code not in (501, 503, 505):
            self.problems.append(f"{act} is answered by {code}")
        if act is not None and isRefused(act) and code not in (100, 400, 413):
            self.problems.append(f"{act} is answered by {code}, in spite of its body")
        if act is None or code not in (200, 303, 304) or act.deed is Deed.IDLE:
            return
        isStrange = act.deed is Deed.LOGINS or not act.login.isRight
        if isForeign(act) if self.plan.isOpen else isStrange:
            self.problems.append(f"{act} is answered by {code}")

    def judge(self) -> None:
        """Check the limits of the site's tables, and of what waits for clients."""
        self._strangers = [each for each in self._strangers if each.served.lost is None]
        factory, hub, access = self.site.factory, self.site.hub, self._access
        ofClients = list(map(len, factory._clients.values()))
        ends = [*self.accepted, *(each.served for each in self._strangers)]
        begun = {each for end in ends for each in end.transports if each.isOpen}  # type: ignore[attr-defined]
        channels: list[Any] = [each._channel for own in factory._clients.values() for each in own]
        bodies = [len(one.content.getvalue()) for each in channels for one in each.requests if one.content]
        guessers = [len(each._known) for each in (access._guesses, access._unknownNames, access._addresses)]
        minutes = 1 + int(self.victim.seconds() / GUESS_SECONDS)
        compared = Counter[str]()
        for (_isKnown, address), number in self._compared.items():
            compared[address] += number
        guessed = [number for (isKnown, _address), number in self._compared.items() if isKnown]
        for what, count, most in (
            ("connections", factory._connections, siteModule.MOST_CONNECTIONS),
            ("counted connections", sum(ofClients), factory._connections),
            ("connections of a client", _most(ofClients), siteModule.MOST_OF_CLIENT),
            ("closing connections", len(factory._closing), siteModule.MOST_CLOSING),
            ("open connections", len(begun), factory._connections + len(factory._closing)),
            ("waiting requests", len(factory._waiting), factory._connections),
            ("readers", len(hub.readers), events.MOST_READERS),
            ("waiting events", _most(len(one._waiting) for one in hub.readers), events.MOST_WAITING),
            ("octets of events", _most(one._bytes for one in hub.readers), events.MOST_BYTES),
            (
                "searches",
                len(self.site.watch.searches._results),
                searchesModule.MOST_RESULTS + factory._connections,
            ),
            ("logins", len(access._logins), webaccess.MOST_LOGINS),
            ("attempts", _most(map(len, access._logins.values())), webaccess.MOST_SAME),
            ("guessers", max(guessers), webaccess.MOST_GUESSERS),
            ("comparisons with hashes", _most(compared.values()), webaccess.MOST_OF_ADDRESS * minutes),
            ("guesses for a user", _most(guessed), MOST_GUESSES * minutes),
            ("octets for a client", _most(each.pending for each in begun), _PENDING),
            ("octets of a body", _most(bodies), siteModule.MOST_BODY),
        ):
            check(count <= most, f"{count} {what}; at most {most} are allowed")
        now = self.victim.seconds()
        for each in self._strangers:
            check(now - each.activeAt <= _IDLE_SECONDS, f"a connection has no timeout: {each.act}")

    def end(self) -> None:
        """Check that the site has no clients, and stop it."""
        factory = self.site.factory
        counted = (factory._connections, factory._clients, factory._closing, factory._waiting)
        left = (*counted, self.site.hub.readers, self._access._logins)
        check(not any(left), f"{left} are left")
        self.close()

    def close(self) -> None:
        if not self._isOver:
            self._isOver = True
            self.site.stop()
            self.site.factory.stopFactory()
