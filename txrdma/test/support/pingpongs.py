"""
Shared by tests of pingpong: two links in simulated time, or on a real reactor.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, cast, TypeVar

from zope.interface import implementer

from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IProtocol, IProtocolFactory, IStreamClientEndpoint
from twisted.internet.protocol import Factory
from twisted.python.failure import Failure
from twisted.test.iosim import connect, FakeTransport, IOPump

from txrdma.interfaces import IVerbsDevice
from txrdma.pingpong.link import TestSide
from txrdma.pingpong.plan import LinkSettings, Measure, Test, Transfer
from txrdma.sim.network import SimulatedNetwork
from txrdma.testing.reactors import ReactorClock, SteppedTime

ADDRESS = IPv4Address("TCP", "192.0.2.1", 18516)

_T = TypeVar("_T")


class PumpedClock(ReactorClock):
    """A clock that pumps the bytes of connections in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.pumps: list[IOPump] = []

    def step(self) -> None:
        """Transfer queued bytes, which takes no time; if there are none, advance to the next delayed call."""
        output = [pump.pump() for pump in self.pumps]
        if not any(output):
            super().step()

    def nanoseconds(self) -> int:
        """Return the simulated time like C{perf_counter_ns}."""
        return round(self.seconds() * 1e9)


@implementer(IStreamClientEndpoint)
class PumpedEndpoint:
    """
    An endpoint that connects to a server in this process by memory.

    @ivar pumps: of the connections; the clock calls them.
    """

    def __init__(self, clock: PumpedClock, server: Factory) -> None:
        self.server = server
        self.pumps = clock.pumps

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        client, server = protocolFactory.buildProtocol(ADDRESS), self.server.buildProtocol(ADDRESS)
        assert client is not None
        self.pumps.append(connect(server, FakeTransport(server, True), client, FakeTransport(client, False)))
        return succeed(client)


class SimulatedLinks(SteppedTime):
    """A test case with links on a simulated network."""

    def setUp(self) -> None:
        super().setUp()
        self.clock: PumpedClock = PumpedClock()
        self.network = SimulatedNetwork(self.clock, seed=7)
        self.devices: list[IVerbsDevice] = []
        for host in (1, 2):
            device = self.network.device(f"192.0.2.{host}")
            self.addCleanup(device.close)
            self.devices.append(device)

    def side(self, host: int, **more: Any) -> TestSide:
        """Return the configuration of one end, whose device stays open."""
        return TestSide(
            cast(Any, self.clock),
            lambda address: self.devices[host],
            lambda device: None,
            now=self.clock.nanoseconds,
            **more,
        )

    def successOf(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Return the result of a coroutine, advancing the clock until it ends; raise its exception."""
        ended: list[object] = []
        Deferred.fromCoroutine(coroutine).addBoth(ended.append)
        self.runUntil(lambda: ended)
        if isinstance(ended[0], Failure):
            ended[0].raiseException()
        return cast(_T, ended[0])

    def runUntil(self, condition: Callable[[], object]) -> None:
        """Advance the clock until a condition holds, for at most a minute."""
        self.wait(condition, 60.0)


def addTests(cls: type[Any], check: Callable[[Any, Transfer, Measure], None]) -> None:
    """Add a test for each kind of test to a test case, which calls C{check} for it."""
    for transfer in Transfer:
        for measure in Measure:

            def test(self: Any, transfer: Transfer = transfer, measure: Measure = measure) -> None:
                check(self, transfer, measure)

            test.__name__ = f"test_{transfer.value}{measure.value.capitalize()}"
            test.__doc__ = f"{measure.value.capitalize()} of {transfer.value}."
            setattr(cls, test.__name__, test)


def settingsFor(test: Test) -> LinkSettings:
    """Return the settings of the link for a test."""
    return LinkSettings(
        *(test.transfer.kind, test.size, test.depth),
        inline=test.inline,
        check=test.check,
        atomics=test.transfer is Transfer.ATOMIC,
    )
