"""
What tests of pingpong need: two links in simulated time, or on a real reactor.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, cast, TYPE_CHECKING, TypeVar

from zope.interface import implementer

from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import (
    IProtocol,
    IProtocolFactory,
    IStreamClientEndpoint,
)
from twisted.internet.protocol import Factory
from twisted.python.failure import Failure
from twisted.test.iosim import connect, FakeTransport, IOPump

from txrdma.interfaces import IVerbsDevice
from txrdma.pingpong.link import MeasuredLink
from txrdma.pingpong.plan import LinkSettings
from txrdma.pingpong.session import TestSide
from txrdma.sim.network import Faults, SimulatedNetwork
from txrdma.testing.reactors import ReactorClock

if TYPE_CHECKING:
    from twisted.trial.unittest import SynchronousTestCase

    Base = SynchronousTestCase
else:
    Base = object

ADDRESS = IPv4Address("TCP", "192.0.2.1", 18516)

_T = TypeVar("_T")


class PumpedClock(ReactorClock):
    """A clock that pumps the bytes of connections in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.pumps: list[IOPump] = []

    def step(self) -> None:
        """Pump, which takes no time; where there is nothing to pump, advance to the next delayed call."""
        output = [pump.pump() for pump in self.pumps]
        if not any(output):
            super().step()

    def nanoseconds(self) -> int:
        """As C{perf_counter_ns}."""
        return round(self.seconds() * 1e9)


@implementer(IStreamClientEndpoint)
class PumpedEndpoint:
    """
    Leads to a server in this process, by no network at all.

    @ivar pumps: of the connections that were made; the clock makes bytes flow.
    """

    def __init__(self, clock: PumpedClock, server: Factory) -> None:
        self.server = server
        self.pumps = clock.pumps

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        client, server = protocolFactory.buildProtocol(ADDRESS), self.server.buildProtocol(ADDRESS)
        assert client is not None
        self.pumps.append(connect(server, FakeTransport(server, True), client, FakeTransport(client, False)))
        return succeed(client)


class SimulatedLinks(Base):
    """A test case with links on a simulated network."""

    def setUp(self) -> None:
        super().setUp()
        self.clock = PumpedClock()
        self.network = SimulatedNetwork(self.clock, seed=7)
        self.devices: list[IVerbsDevice] = []
        for host in (1, 2):
            device = self.network.device(f"192.0.2.{host}")
            self.addCleanup(device.close)
            self.devices.append(device)

    def links(
        self, settings: LinkSettings, faults: Faults | None = None
    ) -> tuple[MeasuredLink, MeasuredLink]:
        if faults is not None:
            self.network.faults = faults
        one, other = (
            MeasuredLink(cast(Any, self.clock), device, settings, now=self.clock.nanoseconds)
            for device in self.devices
        )
        self.addCleanup(one.close)
        self.addCleanup(other.close)
        one.connect(other.here)
        other.connect(one.here)
        return one, other

    def side(self, host: int, **more: Any) -> TestSide:
        """How one of the two makes its end; its device stays."""
        return TestSide(
            cast(Any, self.clock),
            lambda address: self.devices[host],
            lambda device: None,
            now=self.clock.nanoseconds,
            **more,
        )

    def successOf(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """What comes of it, when the simulated world goes on; fails as it fails."""
        ended: list[object] = []
        doing = Deferred.fromCoroutine(coroutine)
        doing.addBoth(ended.append)
        self.runUntil(lambda: bool(ended))
        if isinstance(ended[0], Failure):
            ended[0].raiseException()
        return cast(_T, ended[0])

    def runUntil(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        """Let the simulated world go on."""
        deadline = self.clock.seconds() + seconds
        while not condition():
            if self.clock.seconds() > deadline:
                self.fail(f"{condition} does not hold after {seconds} seconds")
            self.clock.step()
