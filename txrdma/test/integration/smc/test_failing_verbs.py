"""
Each verb fails once, at each step of a connection: no object of the device leaks, and other connections
continue.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from txrdma.error import ResourceExhausted
from txrdma.smc.group import link
from txrdma.smc.group.groups import closeLinkGroups, LinkGroups
from txrdma.soft.core.completion import SoftCompletionChannel, SoftCompletionQueue
from txrdma.soft.core.queuepair import SoftQueuePair
from txrdma.soft.device import SoftDevice, SoftProtectionDomain
from txrdma.test.integration.smc.test_failover import TwoLinkTestCase
from txrdma.test.support.compiled import skipIfCompiled
from txrdma.test.support.smc.races import Listener, RaceTestCase
from txrdma.testing.smc.hosts import Host

VERBS = (
    (SoftDevice, "createProtectionDomain"),
    (SoftDevice, "createChannel"),
    (SoftDevice, "createCompletionQueue"),
    (SoftProtectionDomain, "createQueuePair"),
    (SoftProtectionDomain, "registerMemory"),
    (SoftProtectionDomain, "allocateMemory"),
    (SoftQueuePair, "modify"),
    (SoftQueuePair, "postReceive"),
)
"""The verbs that connections use, on devices of a simulated network."""


class FailingVerbTests(RaceTestCase):
    """A connection whose n-th call of a verb fails, for all n, while another connection is established."""

    PAUSE = 0.0
    """Seconds to wait after the first bytes, for further links."""

    def setUp(self) -> None:
        super().setUp()
        self.count = self.failing = 0
        self.open: set[Any] = set()
        for owner, name in VERBS:
            self.countCalls(owner, name)
        for kind in (SoftProtectionDomain, SoftCompletionChannel, SoftCompletionQueue, SoftQueuePair):
            self.noteClose(kind)

    def countCalls(self, owner: type, name: str, times: int = 1) -> None:
        """
        Count the calls of a verb, record the created objects, and raise from call number C{failing} on.

        @param times: number of calls that raise.
        """
        real: Callable[..., Any] = getattr(owner, name)

        def verb(instance: Any, *arguments: Any) -> Any:
            self.count += 1
            if 0 <= self.count - self.failing < times and self.failing:
                raise ResourceExhausted(f"{name} fails")
            made = real(instance, *arguments)
            if type(made) in (
                SoftProtectionDomain,
                SoftCompletionChannel,
                SoftCompletionQueue,
                SoftQueuePair,
            ):
                self.open.add(made)
            return made

        self.patch(owner, name, verb)

    def noteClose(self, kind: type) -> None:
        """Record which objects are closed."""
        real: Callable[..., Any] = kind.close  # type: ignore[attr-defined]  # each of these has it

        def close(instance: Any) -> None:
            self.open.discard(instance)
            real(instance)

        self.patch(kind, "close", close)

    def begin(self, client: Host) -> tuple[Listener, Listener]:
        """Connect, and wait until the server has received data, or one end has ended."""
        here, there, _ = self.connect(
            Listener(lambda instance: instance.transport.write(b"hello")), client=client
        )
        self.until(lambda: there.received or here.reason or there.reason)
        self.wait(self.PAUSE)
        return here, there

    def play(self) -> None:
        """Connect from a third host, send data, and abort."""
        third = self.host(9)
        for end in self.begin(third):
            if end.transport is not None:
                end.transport.abortConnection()
        self.wait(1.0)
        closeLinkGroups(third)
        for group in self.groupsOf[self.server].groups():
            if not group.streams():
                group.close("the test goes on")

    def test_failedFirstContactLeaksNoVerbsObjectAtEitherEnd(self) -> None:
        near, far = self.pair()
        self.wait(self.PAUSE)
        before, self.count = set(self.open), 0
        self.play()
        verbs = self.count
        self.assertGreater(verbs, 15)
        for number in range(1, verbs + 1):
            self.assertEqual(len(self.open), len(before), f"verb {number - 1}")
            self.count, self.failing = 0, number
            self.play()
            self.flushLoggedErrors(ResourceExhausted)
            self.assertEqual(self.flushLoggedErrors(), [])
        received = len(far.received)
        near.transport.write(b"still there")
        self.until(lambda: len(far.received) > received)
        self.assertEqual((near.reason, far.reason), (None, None))

    def test_failedVerbsOfJoiningConnectionsEndNoOtherConnectionOfTheGroup(self) -> None:
        """
        Connections between the same hosts need verbs for their rings, and for messages of the link.

        A list of requests that is refused once is posted again: it contains bytes of all connections.
        """
        skipIfCompiled()
        self.countCalls(SoftQueuePair, "postSend")
        self.patch(link, "_REPOST", 1)
        pairs = [self.pair()]
        self.wait(self.PAUSE)
        for number in range(1, 25):
            self.count, self.failing = 0, number
            while self.count <= number:  # some connections need no verb
                pairs.append(self.begin(self.client))
            self.assertLessEqual(len(self.flushLoggedErrors()), 1, number)
        self.assertGreater(len(pairs), 50)
        for ends in pairs:
            for near, far in (ends, reversed(ends)):
                received = len(far.received)
                near.transport.write(b"still there")
                self.until(lambda far=far, received=received: len(far.received) > received)  # type: ignore[misc]
                self.assertIsNone(near.reason)
        self.assertEqual([end.mode for end in pairs[0]], ["SMC-R"] * 2)
        self.assertEqual(len(self.groupsOf[self.server].groups()), 1)


class StagedTests(FailingVerbTests):
    """Verbs that fail once, on devices that send from registered memory."""

    def groups(self, host: Host) -> LinkGroups:
        made = super().groups(host)
        for device in made.devices:
            device.limits = replace(device.limits, maxInline=64)
        made._portsChanged()
        return made


class SecondLinkTests(FailingVerbTests, TwoLinkTestCase):
    """Verbs that fail once, with two ports at each end, so that a second link is added."""

    PAUSE = 0.2

    def test_failedPostMovesConnectionsToOtherLink(self) -> None:
        near, far = self.pair()
        self.wait(self.PAUSE)
        self.countCalls(SoftQueuePair, "postSend", times=2)
        self.count, self.failing = 0, 1
        near.transport.write(b"still there")
        self.until(lambda: far.received)
        far.transport.write(b"here, too")
        self.until(lambda: near.received)
        self.assertEqual((near.reason, far.reason), (None, None))
        self.assertGreater(self.count, 2)
