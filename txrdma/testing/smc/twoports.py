"""
Simulations of SMC-R connections between hosts with two ports each, of which one at a time fails and recovers.

L{txrdma.testing.smc.scenario} checks the promises. A cut network or a port that goes down must not affect a
connection while the other network works.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from random import Random
from typing import Final

from txrdma.smc.group.group import LinkGroup
from txrdma.smc.group.groups import LinkGroups, linkGroups, useDevice
from txrdma.soft.device import SoftDevice
from txrdma.testing.outcome import check, Outcome
from txrdma.testing.smc.hosts import Host
from txrdma.testing.smc.plans import drawStreams, EventPlan, EVENTS, FailurePlan, StreamPlan
from txrdma.testing.smc.scenario import DEVICE, HARMLESS, playScenario, StreamScenario

_PATHS: Final = ("cut", "down", "flap")
"""Events: a network is cut without notice; one of its ports goes down; both networks fail alternately."""

_NETWORKS: Final = ("198.51.100", "203.0.113")

_LONGEST_FAULT: Final = 20.0
"""Seconds of the longest temporary fault; conversations end some time after it."""


@dataclass(frozen=True)
class TwoPortPlan(StreamPlan):
    """
    The plan of a simulation.

    @ivar isSplit: whether each port has its own device.
    @ivar failing: number of the network that fails.
    """

    isSplit: bool
    failing: int


def drawTwoPorts(seed: int) -> TwoPortPlan:
    """Draw the plan of a simulation."""
    streams = drawStreams(seed, (*_PATHS * 5, *EVENTS))
    random = Random(f"two ports {seed}")
    counts = random.choice(((2, 2), (2, 2), (2, 2), (2, 2), (1, 2), (2, 1)))
    failing = 1 if 1 in counts else random.randrange(2)
    one, other = (
        replace(host, ports=count, links=random.choice((None, None, None, 2, 3, 1)) if count == 2 else 2)
        for host, count in zip(streams.hosts, counts, strict=True)
    )
    kinds = [event.kind for event in streams.events]
    events = streams.events
    if "flap" in kinds:
        event = events[kinds.index("flap")]
        events = (replace(event, kind="down" if failing else "flap"),)
    return TwoPortPlan(
        **{
            **vars(streams),
            "hosts": (one, other),
            "events": tuple(_withFailures(random, each) for each in events),
        },
        isSplit=random.random() < 0.5,
        failing=failing,
    )


def _withFailures(random: Random, event: EventPlan) -> EventPlan:
    """Draw the failures of an event, and return the event with them."""
    if event.kind not in _PATHS:
        return event
    if event.kind == "flap":
        failures = [
            FailurePlan(random.random() < 0.5, random.randrange(2), 0.5 * random.random())
            for _ in range(random.choice((2, 4, 6)))
        ]
    else:
        seconds = random.choice((0.01, 0.5, _LONGEST_FAULT, 1e6)) * random.random()
        failures = [FailurePlan(event.kind == "down", random.randrange(2), seconds)]
    return replace(event, failures=tuple(failures))


class TwoPortScenario(StreamScenario):
    """A simulation of SMC-R connections between hosts with two ports, according to its plan."""

    plan: TwoPortPlan
    harmless: tuple[str, ...] = (*HARMLESS, *_PATHS)

    def __init__(self, plan: TwoPortPlan) -> None:
        super().__init__(plan)
        self.devices: dict[Host, list[SoftDevice]] = {}
        for host, each in self.hostPlans.items():
            number = host.address.rpartition(".")[2]
            host.addresses = tuple(f"{network}.{number}" for network in _NETWORKS[: each.ports])
        if any(options.links == 1 for options in self.options.values()):
            self.harmless = HARMLESS  # the only link fails

    def openDevice(self, address: str) -> SoftDevice:
        """Open one device of the host with that address, or one for each port; return the first."""
        host = self.hostAt(address)
        plan, segments = self.plan, self.hostPlans[host].segments
        addresses = [(each,) for each in host.addresses] if plan.isSplit else [host.addresses]
        devices = [self.world.network.device(*each, mtu=plan.mtu, segments=segments) for each in addresses]
        for device in devices[1:]:
            self.watched(device)
        self.devices[host] = devices
        return devices[0]

    def _groups(self, host: Host) -> LinkGroups:
        if host.triggers:
            return linkGroups(host, DEVICE)
        host.openDevice()
        groups = useDevice(host, DEVICE, *self.devices[host])
        groups.ringSize = lambda: next(self.ringSizes[host])  # type: ignore[method-assign]  # small rings
        return groups

    # Events

    def part(self) -> None:
        for network in range(len(_NETWORKS)):
            self._cut(network)

    def happen(self, event: EventPlan) -> None:
        """Trigger an event of a network or port, or one of L{StreamScenario}."""
        if event.kind not in _PATHS:
            super().happen(event)
            return
        self.kinds.append(event.kind)
        self.world.network.note(event.kind)
        if event.kind == "flap":
            self._flap(0, event.failures)
        else:
            self._fail(self.plan.failing, event.failures[0])

    def _fail(self, network: int, failure: FailurePlan) -> None:
        """Cut a network, or take one of its ports down."""
        if not all(self._hasOther(group, network) for host in self.hosts for group in self._linkGroups(host)):
            self.harmless = HARMLESS  # a group has no second link yet
        host = self.hosts[failure.host]
        if failure.isPort:
            self._enable(host, network, False)
        else:
            self._cut(network)
        if failure.seconds <= _LONGEST_FAULT:  # else permanent
            self.world.clock.callLater(failure.seconds, self._enable, host, network, True)
            self.world.clock.callLater(failure.seconds, self._mend, network)

    def _hasOther(self, group: LinkGroup, network: int) -> bool:
        """Return whether a group has an active link that a failure of this network does not affect."""
        for link in group.links:
            ends = (link.life.local, link.life.remote)
            isTouched = any(end is None or str(end.gid.ip).startswith(_NETWORKS[network]) for end in ends)
            if link.isActive and not isTouched:
                return True
        return False

    def _flap(self, network: int, failures: tuple[FailurePlan, ...]) -> None:
        """Let both networks fail alternately, each as soon as all groups have several active links."""
        if all(pair.isOver for pair in self.pairs) or any(host.isDead for host in self.hosts):
            return
        counts = [
            sum(link.isActive for link in group.links)
            for host in self.hosts
            for group in self._linkGroups(host)
        ]
        if counts and min(counts) > 1:
            self._fail(network, failures[0])
            network, failures = 1 - network, failures[1:]
        if failures and self.world.clock.seconds() < 100:
            self.world.clock.callLater(1.0, self._flap, network, failures)

    def _enable(self, host: Host, network: int, isEnabled: bool) -> None:
        devices = self.devices.get(host, [])
        for device in devices:
            for number, port in enumerate(device.ports, 1):
                if port.address.startswith(_NETWORKS[network]) and not device._closed and not host.isDead:
                    device.setPortEnabled(number, isEnabled)

    def _paths(self, network: int) -> list[tuple[str, str]]:
        """Return the pairs of addresses of which at least one is on a network."""
        one, other = self.hosts
        name = _NETWORKS[network]
        return [
            pair
            for pair in product(one.addresses, other.addresses)
            if any(each.startswith(name) for each in pair)
        ]

    def _cut(self, network: int) -> None:
        for one, other in self._paths(network):
            self.world.network.partition(one, other)

    def _mend(self, network: int) -> None:
        for one, other in self._paths(network):
            self.world.network.join(one, other)

    def judge(self) -> None:
        """Check the promises after all connections have ended, and that no group has too many links."""
        super().judge()
        for host in self.hosts:
            for group in self._linkGroups(host):
                most = max(self.options[host].links or 2, 1)
                check(len(group.links) <= most + 1, f"{group!r} has the links {group.links}")


def playTwoPorts(plan: TwoPortPlan) -> Outcome:
    """
    Run the simulation of a plan.

    @raise Violation: a promise was violated.
    """
    return playScenario(TwoPortScenario, plan)
