"""
Ports in the fabrics of ibsim: the contract of L{IMADPort}, attaching and detaching.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
from collections.abc import Sequence
from select import select

from txrdma.error import DeviceUnavailable
from txrdma.iba.path import IBDRPath, IBPath
from txrdma.mad import ports
from txrdma.mad.layouts.smp import NodeDescription
from txrdma.mad.ports import ibsim, openMADPort
from txrdma.mad.ports.ibsim import IbsimPort
from txrdma.mad.ports.strings import IbsimPortStringParser
from txrdma.test.support.mad.simulated import gmp, TWO_SWITCHES
from txrdma.test.system.ibsim.fabric import Ibsim, IbsimTestCase
from txrdma.testing.contracts import MADPortContract
from txrdma.testing.failingcalls import FailingCalls
from txrdma.testing.reactors import ReactorClock, unqueuedSeconds

NET = """
Switch 8 "left"
[1] "a"[1]
[2] "c"[1]
[3] "d"[1]

Hca 1 "a"
Hca 1 "c"
Hca 1 "d"
"""


class SelectingClock(ReactorClock):
    def step(self) -> None:
        """Wait for a descriptor for a short time."""
        readable, writable, _ = select(self.readers, self.writers, (), 0.005)
        for reader in readable:
            if reader in self.readers:
                reader.doRead()
        for writer in writable:
            if writer in self.writers:
                writer.doWrite()
        self.advance(0.005)


class IbsimTests(MADPortContract, IbsimTestCase):
    net = NET
    hasSM = True

    def setUp(self) -> None:
        self.clock = SelectingClock()
        super().setUp()

    def makePort(self, number: int) -> IbsimPort:
        return IbsimPort(self.clock, self.fabric.base, "ac"[number], isSM=number == 1)  # type: ignore[arg-type]  # all that it takes

    def pathTo(self, number: int) -> IBPath:
        return gmp(self.ports[number].endPort.lid)

    def step(self) -> None:
        self.clock.step()

    def time(self) -> SelectingClock:
        return self.clock

    def routes(self) -> Sequence[IBPath]:
        return IBPath(dlid=self.ports[1].endPort.lid), IBDRPath(drPath=(1, 2))

    def test_standstill(self) -> None:
        self.fabric.pause()
        begin = unqueuedSeconds()
        self.assertRaises(DeviceUnavailable, self.ports[0].refresh)
        self.assertLess(unqueuedSeconds() - begin, 1.0)
        self.fabric.goOn()
        self.until(self.isAnswering)
        self.fabric.stop()
        self.assertRaises(DeviceUnavailable, self.ports[0].refresh)

    def isAnswering(self) -> bool:
        try:
            return self.ports[0].refresh() == self.ports[0].endPort
        except DeviceUnavailable:
            return False

    def lose(self, number: int) -> None:
        self.fabric.stop()

    def restore(self, number: int) -> None:
        self.fabric = Ibsim(self.net, self.hasSM)
        self.addCleanup(self.fabric.stop)


class AttachingTests(IbsimTestCase):
    net = TWO_SWITCHES

    async def test_again(self) -> None:
        others = [self.agentAt("b") for _ in range(2)]  # so that the first slot is not free
        port = self.portAt("a")
        self.fabric.pause()
        port.close()
        goOn = threading.Timer(0.2, self.fabric.goOn)
        goOn.start()
        self.addCleanup(goOn.join)
        agent = self.agentAt("c")
        reported = await agent.SubnGet(NodeDescription, IBDRPath())
        self.assertEqual(reported.text, "c")
        for other in others:
            self.assertEqual((await other.SubnGet(NodeDescription, IBDRPath())).text, "b")

    async def test_behind(self) -> None:
        agent = self.agentAt("a")
        self.fabric.pause()
        routes = [IBDRPath(), IBDRPath(drPath=(1,)), IBDRPath(drPath=(1, 2))]
        answers = [agent.SubnGet(NodeDescription, routes[number % 3], retries=0) for number in range(5_000)]
        self.assertFalse(any(answer.called for answer in answers))
        self.fabric.goOn()
        reported = [(await answer).text for answer in answers]
        self.assertEqual(reported, (["a", "left", "b"] * 5_000)[:5_000])

    async def test_manyTimes(self) -> None:
        for _ in range(30):
            agent = self.agentAt("a")
            self.assertEqual((await agent.SubnGet(NodeDescription, IBDRPath())).text, "a")
            agent.close()

    async def test_failingCalls(self) -> None:
        """While each system call of opening a port fails once, another port goes on, and nothing is left."""
        other = self.agentAt("b")
        await other.SubnGet(NodeDescription, IBDRPath())  # starts the reactor
        calls = FailingCalls(self.patch, lambda name: OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)))
        for name in ("__init__", "bind", "connect", "send", "recvmsg", "setsockopt"):
            calls.watch(socket.socket, name)
        before, number, isReached = len(os.listdir("/proc/self/fd")), 0, True
        while isReached:
            number += 1
            calls.begin(number)
            with contextlib.suppress(DeviceUnavailable):
                self.portAt("a").close()
            isReached, what = calls.count >= number, f"{number}: {calls.failed}"
            calls.begin(0)
            self.assertEqual(len(os.listdir("/proc/self/fd")), before, what)
            answer = await other.SubnGet(NodeDescription, IBDRPath()).addErrback(lambda failure: failure)
            self.assertEqual(getattr(answer, "text", answer), "b", what)
        self.assertGreater(number, 15)

    async def test_ofAnotherUser(self) -> None:
        """The default port is not an ibsim of another user, but one of the same user."""
        self.patch(os, "environ", self.fabric.environment)
        self.patch(ports, "availableMADPorts", IbsimPortStringParser().available)
        openMADPort(ReactorClock()).close()
        self.patch(ibsim, "isTrusted", lambda user: user != os.geteuid())
        error = self.assertRaises(DeviceUnavailable, openMADPort, ReactorClock())
        self.assertIn(f"another user ({os.geteuid()})", str(error))
        openMADPort(ReactorClock(), "ibsim").close()
