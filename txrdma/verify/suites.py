"""Contracts on devices that a user names, as test cases: verbs, message connections, management."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any, cast, ClassVar, Final

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.endpoints import TCP4ClientEndpoint, TCP4ServerEndpoint
from twisted.internet.epollreactor import EPollReactor
from twisted.python.failure import Failure
from twisted.trial.unittest import SkipTest, SynchronousTestCase

from txrdma.btl.connections import ClientEndpoint, ServerEndpoint
from txrdma.cm.connections.endpoints import RDMAClientEndpoint, RDMAServerEndpoint
from txrdma.error import DeviceUnavailable
from txrdma.iba.path import IBPath
from txrdma.iba.types import LID, QPN
from txrdma.iba.verbs import LinkLayer
from txrdma.interfaces import IMADPort, IVerbsDevice
from txrdma.mad.ports import openMADPort
from txrdma.messages.protocol import MessageFactory
from txrdma.testing import contracts
from txrdma.testing.protocols import MessageRecorder
from txrdma.testing.reactors import RealTime
from txrdma.testing.verbs.quirks import OURS, Quirks, RXE
from txrdma.verbs.devices import openDevice
from txrdma.verify.subject import SOFTWARE_ROCE, Subject

_SLOWNESS: Final = 3.0
"""Factor for time limits: the host may be busy."""

_SETTLING_STEPS: Final = 5
"""Iterations of the reactor in which a queue pair for datagrams posts its receives."""


def quirksOf(driver: str) -> Quirks:
    """Return a driver's permitted deviations: Linux resolves addresses for RTR, adapters drop silently."""
    known = {"soft": OURS, SOFTWARE_ROCE: RXE}
    return known.get(driver) or replace(OURS, needsPeerForRTR=True, longDatagramFails=False)


class OnDevices(RealTime):
    """
    A test case with two devices, which may be the same.

    @cvar subject: the devices and ports.
    """

    subject: ClassVar[Subject]
    slowness = _SLOWNESS

    def result(self, deferred: Deferred[Any], seconds: float = 10.0) -> Any:
        """Return the result of a Deferred, or raise its failure."""
        results: list[Any] = []
        deferred.addBoth(results.append)
        self.runUntil(lambda: results, seconds)
        if isinstance(results[0], Failure):
            results[0].raiseException()
        return results[0]


class VerbsTests(OnDevices, contracts.VerbsDeviceContract, SynchronousTestCase):
    """Queue pairs, memory and completions."""

    def setUp(self) -> None:
        """Skip tests of features that the device does not have."""
        contract = getattr(type(self), self._testMethodName).__qualname__
        if "Atomic" in contract and not all(end.hasAtomics for end in self.subject):
            raise SkipTest("the device has no atomics")
        if "Datagram" in contract and any(end.isIWARP for end in self.subject):
            raise SkipTest("iWARP has no datagrams")
        super().setUp()

    def makeDevices(self) -> tuple[IVerbsDevice, IVerbsDevice]:
        self.createReactor()
        return self._open(0), self._open(1)

    def _open(self, which: int) -> IVerbsDevice:
        device = openDevice(self.reactor, self.subject[which].device)
        self.addCleanup(device.close)
        return device


@cache
def _sharedReactor() -> Any:
    """Return the reactor of all tests of connections, because managers and modules outlive the tests."""
    return EPollReactor()


class Connections(OnDevices, contracts.RemoteMemoryContract, contracts.MessageContract):
    """Message connections from the first device to the second."""

    def setUp(self) -> None:
        super().setUp()
        self.reactor = _sharedReactor()

    def waitUntil(self, condition: Callable[[], object], seconds: float = 30.0) -> None:
        self.runUntil(condition, seconds / _SLOWNESS)

    def connectedBy(self, one: MessageRecorder, other: MessageRecorder) -> None:
        """Connect two protocols through a temporary port."""
        port = self.result(self.server().listen(MessageFactory(lambda: other)))
        self.addCleanup(self._end, port, one, other)
        self.result(self.client(port.getHost()).connect(MessageFactory(lambda: one)))
        self.waitUntil(lambda: one.transport and other.transport)

    def _end(self, port: Any, *ends: MessageRecorder) -> None:
        for each in ends:
            if each.transport:
                each.transport.abortConnection()
        self.result(maybeDeferred(port.stopListening))

    def server(self) -> Any:
        """Return an endpoint of the second device."""
        raise NotImplementedError

    def client(self, address: Any) -> Any:
        """Return an endpoint of the first device, for the address of the server."""
        raise NotImplementedError


class RDMATests(contracts.AtomicMemoryContract, Connections, SynchronousTestCase):
    """C{rdma:}, by the communication manager."""

    def setUp(self) -> None:
        super().setUp()
        if not self.subject[1].address:
            raise SkipTest("the port has no IP address")

    def server(self) -> RDMAServerEndpoint:
        return RDMAServerEndpoint(self.reactor, 0, self.subject[1].device)

    def client(self, address: Any) -> RDMAClientEndpoint:
        there = self.subject[1].address
        return RDMAClientEndpoint(self.reactor, there, address.port, self.subject[0].device)


class BTLTests(Connections, SynchronousTestCase):
    """C{btl:}, over datagrams."""

    def server(self) -> ServerEndpoint:
        listening = TCP4ServerEndpoint(self.reactor, 0, interface="127.0.0.1")
        return ServerEndpoint(self.reactor, listening, self.subject[1].device)

    def client(self, address: Any) -> ClientEndpoint:
        stream = TCP4ClientEndpoint(self.reactor, "127.0.0.1", address.port)
        return ClientEndpoint(self.reactor, stream, self.subject[0].device)


class Management(OnDevices, contracts.MADPortContract):
    """Management datagrams; devices are not removed."""

    def setUp(self) -> None:
        """Skip ports that this user may not open."""
        self.createReactor()
        try:
            super().setUp()
        except DeviceUnavailable as error:
            if isinstance(error.__cause__, (PermissionError, FileNotFoundError)):
                raise SkipTest(str(error)) from error
            raise

    def begin(self, number: int) -> None:
        super().begin(number)
        for _ in range(_SETTLING_STEPS):
            self.step()

    def step(self) -> None:
        self.reactor.iterate(0.005)

    def time(self) -> Any:
        return self.reactor

    def lose(self, number: int) -> None:
        """Skip the test."""
        raise SkipTest("would remove a device of this host")

    def pathTo(self, number: int, qpn: int = 1) -> IBPath:
        here, there = self.subject[1 - number], self.subject[number]
        if there.linkLayer is LinkLayer.INFINIBAND:
            return IBPath(dlid=LID(there.lid), dqpn=QPN(qpn))
        return IBPath(sgid=here.gid, dgid=there.gid, dqpn=QPN(qpn))


class DatagramMADTests(Management, SynchronousTestCase):
    """Management datagrams through UD queue pairs that this process opens, if it may use their Q_Key."""

    def makePort(self, number: int) -> IMADPort:
        """Open a queue pair for datagrams."""
        end = self.subject[number]
        return openMADPort(self.reactor, f"vmad:{end.device}:endport={end.port}")

    def pathTo(self, number: int, qpn: int = 1) -> IBPath:
        return super().pathTo(number, cast(Any, self.ports[number]).qpn)


class KernelMADTests(Management, SynchronousTestCase):
    """
    Management datagrams by the kernel's queue pair 1.

    Linux (6.12) delivers no response to a request that was sent to an IPv4 address: it compares the GIDs of
    both, and the IP header of the response contains none. So paths have IPv6 addresses, such as link-local
    ones.
    """

    def setUp(self) -> None:
        """Skip ports that have only IPv4 addresses."""
        if any(end.linkLayer is LinkLayer.ETHERNET and end.gid6 is None for end in self.subject):
            raise SkipTest("the port has no IPv6 address, and Linux delivers no responses of IPv4 addresses")
        super().setUp()

    def pathTo(self, number: int, qpn: int = 1) -> IBPath:
        """Return the path to a queue pair of that port, from and to IPv6 addresses on Ethernet."""
        path = super().pathTo(number, qpn)
        if self.subject[number].linkLayer is LinkLayer.INFINIBAND:
            return path
        return replace(path, sgid=self.subject[1 - number].gid6, dgid=self.subject[number].gid6)

    def makePort(self, number: int) -> IMADPort:
        """Open the device file of the port, which needs permission."""
        end = self.subject[number]
        return openMADPort(self.reactor, f"umad:{end.kernelName}/{end.port}")


_OWN: Final = ("test_closing",)
"""Tests of many seconds that hardly depend on the device."""

SUITES: Final = {
    "verbs": (VerbsTests,),
    "rdma": (RDMATests,),
    "btl": (BTLTests,),
    "mad": (DatagramMADTests, KernelMADTests),
}
"""Test cases by part of a run."""


def casesOf(part: str, subject: Subject, patience: float = 1.0) -> Iterator[SynchronousTestCase]:
    """
    Yield the tests of a part, always in the same order.

    @param patience: factor for time limits.
    """
    for suite in SUITES[part]:
        if suite is KernelMADTests and not all(end.kernelName for end in subject):
            continue
        made = type(
            suite.__name__,
            (suite,),
            {"subject": subject, "slowness": _SLOWNESS * patience, "__module__": __name__},
        )
        if suite is VerbsTests:
            made.quirks = tuple(quirksOf(end.driver) for end in subject)  # type: ignore[attr-defined]
            made.ports = tuple(end.port for end in subject)  # type: ignore[attr-defined]
        for name in sorted(dir(made)):
            if name.startswith("test_") and name not in _OWN:
                yield made(name)
