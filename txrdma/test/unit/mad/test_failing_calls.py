"""Each verb, or call of the kernel, fails once at each step of a management port, while others go on."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from typing import Any, cast

from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import RDMAError, ResourceExhausted
from txrdma.iba.verbs import QPAttributes, QPState
from txrdma.interfaces import IMADPort
from txrdma.mad.agent import MADAgent
from txrdma.mad.layouts.attributes import ManagementClass, Method
from txrdma.mad.layouts.pma import PortCounters
from txrdma.mad.ports import registration, verbsport
from txrdma.mad.ports.verbsport import IPollingReactor, VerbsPort
from txrdma.mad.server import MADServer
from txrdma.test.support.mad.pairs import Answers
from txrdma.test.unit.mad.test_umad import UmadCase
from txrdma.test.unit.mad.test_verbsport import VerbsPortCase
from txrdma.testing.failingcalls import FailingCalls, POLLS, VERBS

PERFORMANCE, ADMINISTRATION = ManagementClass.PERFORMANCE, ManagementClass.SUBN_ADM


class FailingCallCase(SynchronousTestCase):
    """A port is used beside that of a bystander, and calls the peer of that one."""

    near: MADAgent
    far: MADAgent
    makePort: Callable[[], IMADPort]
    resources: Callable[[], object]
    path: Any
    clock: Any
    result: Callable[[Any], Any]
    wait: Callable[[Callable[[], object]], None]
    pause: Callable[[float], None]

    def use(self) -> None:
        """Open a port, serve a class, make a call and close the port, as far as each step succeeds."""
        make = self.makePort
        with contextlib.suppress(RDMAError), MADAgent(self.clock, make(), timeoutSeconds=0.5) as agent:
            with contextlib.suppress(RDMAError):
                MADServer(agent).handle(ADMINISTRATION, Answers(lambda request: None), (Method.REPORT,))
            outcome: list[object] = []
            agent.PerformanceGet(PortCounters, self.path).addBoth(outcome.append)
            self.wait(lambda: outcome)

    def check(self, calls: FailingCalls, use: Callable[[], None], least: int) -> None:
        """Fail one call after the other, and check the calls of a bystander, and what is left."""
        MADServer(self.far).handle(PERFORMANCE, Answers(lambda request: PortCounters()), (Method.GET,))
        calls.begin(0)
        use()
        self.pause(1.0)
        before, number, isReached = self.resources(), 0, True
        while isReached:
            number += 1
            bystander = self.near.PerformanceGet(PortCounters, self.path)
            calls.begin(number)
            use()
            isReached, what = calls.count >= number, f"call {number}: {calls.failed}"
            calls.begin(0)
            for each in (bystander, self.near.PerformanceGet(PortCounters, self.path)):
                self.wait(lambda each=each: each.called)  # type: ignore[misc]
                self.assertEqual(self.successResultOf(each), PortCounters(), what)
            self.pause(1.0)
            self.assertEqual(self.resources(), before, what)
            self.assertLessEqual(len(self.flushLoggedErrors()), 1, what)
        self.assertGreater(number, least)


class VerbsPortTests(VerbsPortCase, FailingCallCase):
    """Ports on the same software device, as agents of a process may have."""

    def setUp(self) -> None:
        self.patch(verbsport, "RECEIVES", 64)
        self.calls = FailingCalls(self.patch, lambda name: ResourceExhausted(f"{name} fails"))
        for owner, name in (*VERBS, *POLLS):
            self.calls.watch(owner, name)
        super().setUp()
        self.near, self.far = self.agent, self.other

    def makePort(self) -> VerbsPort:
        return VerbsPort(cast("IPollingReactor", self.clock), self.devices[0], closesDevice=False)

    def resources(self) -> object:
        kinds = ("domains", "_queuePairs", "_channels", "_completionQueues", "keys")
        return len(self.clock.readers), [len(getattr(self.devices[0], kind)) for kind in kinds]

    def test_each(self) -> None:
        """While a port is opened, used and closed."""
        self.check(self.calls, self.use, 30)

    def test_restart(self) -> None:
        """While queue pairs of ports are restarted."""

        def use() -> None:
            pair = self.ports[0]._pair
            with contextlib.suppress(RDMAError):
                pair.modify(QPAttributes(state=QPState.ERR))
            self.wait(lambda: pair.state is QPState.RTS)

        self.check(self.calls, use, 10)

    def test_lostCompletions(self) -> None:
        """A poll fails, drops completions and moves the queue pair to ERR: it is restarted all the same."""
        MADServer(self.far).handle(PERFORMANCE, Answers(lambda request: PortCounters()), (Method.GET,))
        port = self.ports[0]
        usual, lost = port._queue.poll, list[object]()

        def poll(limit: int) -> Any:
            found = usual(limit)
            if found and not lost:
                lost.extend(found)
                port._pair.modify(QPAttributes(state=QPState.ERR))
                raise ResourceExhausted("a test's")
            return found

        self.patch(port._queue, "poll", poll)
        outcomes: list[object] = []
        for count in (1, 2):
            self.near.PerformanceGet(PortCounters, self.path).addBoth(outcomes.append)
            self.wait(lambda count=count: len(outcomes) == count)  # type: ignore[misc]
        self.wait(lambda: port._pair.state is QPState.RTS)
        self.assertTrue(lost)
        self.assertEqual(outcomes[1:], [PortCounters()])  # the first one may be lost
        self.assertEqual(len(self.flushLoggedErrors(ResourceExhausted)), 1)


class UmadTests(UmadCase, FailingCallCase):
    """Ports that the kernel has opened for different files, as for different programs."""

    def setUp(self) -> None:
        super().setUp()
        self.near, self.far = self.agent("roce0"), self.agent("roce1")
        self.gids = self.near.port.endPort.gids

    def makePort(self) -> IMADPort:
        port = self.port("roce0")
        self.assertEqual(port.endPort.gids, self.gids)  # a port without its GIDs is not opened
        return port

    def resources(self) -> object:
        return len(self.clock.readers), len(self.kernel.files)

    def test_each(self) -> None:
        """While a port is opened, used and closed."""
        for code in (errno.ENOMEM, errno.EMFILE):
            calls = FailingCalls(self.patch, lambda name: OSError(code, os.strerror(code)))  # noqa: B023
            for name in ("open", "readv", "write"):
                calls.watch(self.kernel, name)
            calls.watch(registration, "ioctl")
            calls.watch(self.clock, "addReader")
            calls.watch(os, "open")  # of attributes in sysfs
            self.check(calls, self.use, 10)
