"""Pingpong over the software device's two routes, on real reactors."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.test.reactormixins import ReactorBuilder
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from txrdma.pingpong.engine import answering, asking
from txrdma.pingpong.link import MeasuredLink, TestSide
from txrdma.pingpong.measurement import Measurement
from txrdma.pingpong.plan import Measure, Test, Transfer
from txrdma.soft.device import openSoftDevice
from txrdma.test.support.pingpongs import addTests, settingsFor
from txrdma.testing.reactors import Base
from txrdma.verbs.completions import CompletionReader
from txrdma.verbs.polling import PollingReactor


class DeviceTests(Base):
    """Every kind of test between two devices; contents are verified."""

    route = "rocev2"
    buildReactor: Callable[[], Any]

    def check(self, transfer: Transfer, measure: Measure, events: bool) -> None:
        """Check that all messages arrive with the expected contents."""
        reactor = self.buildReactor()
        size = 8 if transfer is Transfer.ATOMIC else 1000
        test = Test(transfer, measure, size, 60, depth=8, check=True)
        links = []
        side = TestSide(
            reactor, lambda address: openSoftDevice(reactor, port=0, route=self.route), events=events
        )
        for _ in range(2):
            device = side.open(None)
            self.addCleanup(device.close)
            link = MeasuredLink(side, device, settingsFor(test))
            self.addCleanup(link.close)
            links.append(link)
        here, there = links
        here.connect(there.here)
        there.connect(here.here)
        far, near = answering(there, test), asking(here, test)
        far.start()
        near.start()
        measurement = self.wait(reactor, near.done)
        remote = self.wait(reactor, far.conclude(near.messages))
        if measure is Measure.BIDIRECTIONAL:
            self.wait(reactor, near.conclude(far.messages))
        self.assertEqual((measurement.wrong, remote.wrong), (0, 0))
        self.assertEqual(measurement.messages + measurement.lost, 60)
        self.assertGreater(measurement.nanoseconds, 0)
        self.assertEqual(measurement.route, "rocev2" if transfer is Transfer.UD else self.route)

    def wait(self, reactor: Any, doing: Deferred[Measurement]) -> Measurement:
        """Run the reactor until the condition holds."""
        ended: list[Measurement | Failure] = []

        def end(result: Measurement | Failure) -> None:
            ended.append(result)
            reactor.callLater(0, lambda: None)  # otherwise the polling reactor sleeps until a timer is due

        doing.addBoth(end)
        deadline = time.monotonic() + 20
        while not ended:
            self.assertLess(time.monotonic(), deadline)
            reactor.iterate(0.001)
        (found,) = ended
        if isinstance(found, Failure):
            found.raiseException()
        assert isinstance(found, Measurement)
        return found


def _check(case: DeviceTests, transfer: Transfer, measure: Measure) -> None:
    """Poll for completions; measure latency by events, too."""
    case.check(transfer, measure, events=measure is Measure.LATENCY)
    case.check(transfer, measure, events=False)


addTests(DeviceTests, _check)


class RoCEPingPongTests(DeviceTests, ReactorBuilder):
    """Tests over UDP on the loopback interface."""


class SharedMemoryPingPongTests(DeviceTests, ReactorBuilder):
    route = "shared-memory"


for _cases in (RoCEPingPongTests.makeTestCaseClasses(), SharedMemoryPingPongTests.makeTestCaseClasses()):
    globals().update({name: case for name, case in _cases.items() if "_EPoll" in name})


class PollingPingPongTests(SharedMemoryPingPongTests, SynchronousTestCase):
    """Tests over shared memory, on the reactor that polls completion queues before it sleeps."""

    def buildReactor(self) -> Any:
        return PollingReactor()

    def test_readerOfEventsIsNotPolled(self) -> None:
        added: list[object] = []
        addPollable = PollingReactor.addPollable

        def add(reactor: PollingReactor, pollable: Any) -> None:
            added.append(pollable)
            addPollable(reactor, pollable)

        self.patch(PollingReactor, "addPollable", add)
        for events in (True, False):
            self.check(Transfer.SEND, Measure.LATENCY, events)
            areReaders = {isinstance(each, CompletionReader) for each in added}
            self.assertEqual(areReaders, set() if events else {True})
