"""
Hostile peers: mutations of messages, and stored simulations of each protocol.
"""

from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

from twisted.logger import Logger
from twisted.trial.unittest import SynchronousTestCase

from txrdma.btl import lifeline as lifelineModule
from txrdma.btl.introductions import checkVersion
from txrdma.error import WireError
from txrdma.testing.hostile.btl import BTLScenario, resized
from txrdma.testing.hostile.plans import HostilePlan, Kind, Mutation
from txrdma.testing.hostile.scenario import Memory, playHostile
from txrdma.testing.hostile.tampering import Message, Tamper
from txrdma.testing.hostile.wiring import LINE, TamperedLines
from txrdma.testing.outcome import Violation
from txrdma.testing.plans import decodePlan, encodePlan
from txrdma.testing.plantests import playingStored


class TamperTests(SynchronousTestCase):
    """Each kind of mutation replaces one message of a channel."""

    def sent(self, kind: Kind, count: int = 1, offset: int = 0, value: int = 0) -> list[bytes]:
        """Send five messages, of which the third is mutated; return the sent ones."""
        usual = {"TCP": [Message(b"%d usual" % number) for number in range(5)]}
        mutation = Mutation("TCP", 2, kind, count, offset, value)
        tamper = Tamper((mutation,), usual, {"TCP": lambda message: b"%d:" % len(message) + message})
        messages = [Message(b"message %d" % number) for number in range(5)]
        found = [each.content for one in messages for each in tamper.replaced("TCP", one)]
        self.assertEqual(tamper.applied[kind.name], 1)
        self.assertEqual(found[:2], [b"message 0", b"message 1"])
        self.assertEqual(found[-1], b"message 4")
        return found[2:-1]

    def test_kinds(self) -> None:
        """Messages are omitted, repeated, reordered and changed."""
        second, third = b"message 2", b"message 3"
        self.assertEqual(self.sent(Kind.NEVER), [third])
        self.assertEqual(self.sent(Kind.TWICE), [second, second, third])
        self.assertEqual(self.sent(Kind.MANY, 4), [second] * 4 + [third])
        self.assertEqual(self.sent(Kind.SWAPPED), [third, second])
        self.assertEqual(self.sent(Kind.EARLY), [b"3 usual", second, third])
        self.assertEqual(self.sent(Kind.AGAIN), [second, b"message 1", third])
        self.assertEqual(self.sent(Kind.LONGER, 2, value=0), [second + b"\0\0", third])
        self.assertEqual(self.sent(Kind.SHORTER, 2), [b"message", third])
        self.assertEqual(self.sent(Kind.CHANGED, 1, offset=1, value=ord("i")), [b"missage 2", third])

    def test_lengths(self) -> None:
        """With an odd value the length in a message is adjusted."""
        self.assertEqual(self.sent(Kind.LONGER, 1, value=1)[0], b"10:message 2\1")

    def test_otherChannel(self) -> None:
        """Messages of other channels are counted separately, and not changed."""
        tamper = Tamper((Mutation("TCP", 0, Kind.NEVER, 1, 0, 0),), {}, {})
        message = Message(b"message")
        self.assertEqual(tamper.replaced("UD", message), [message])
        self.assertEqual(tamper.replaced("TCP", message), [])

    def test_descriptors(self) -> None:
        """A message sent again has its own descriptors, even if a recorded one had equal numbers."""
        files = [os.memfd_create(f"{number}") for number in range(2)]
        recorded = {LINE: [Message(b"0", files[:1]), Message(b"1", files[:1])]}
        carried: list[tuple[bytes, bool]] = []

        def carry(line: object, message: bytes, descriptors: list[int]) -> None:
            (descriptor,) = descriptors
            carried.append((message, os.path.sameopenfile(descriptor, files[int(message)])))
            os.close(descriptor)

        memory: Any = SimpleNamespace(carry=carry)
        host: Any = object()
        tamper = Tamper((Mutation(LINE, 1, Kind.AGAIN, 1, 0, 0),), recorded, {})
        self.addCleanup(TamperedLines(memory, host, tamper).close)
        for number, descriptor in enumerate(files):
            line = SimpleNamespace(peer=SimpleNamespace(reactor=host))
            memory.carry(line, b"%d" % number, [descriptor])
        self.assertEqual(carried, [(b"0", True), (b"1", True), (b"0", True)])

    def test_frames(self) -> None:
        """After its length was adjusted, a btl frame has that length in its header."""
        self.assertEqual(resized(b"\1\0\0\0abc"), b"\1\0\0\3abc")


class PlanTests(SynchronousTestCase):
    """Plans can be stored, and failures are found."""

    def test_stored(self) -> None:
        """A plan is the same after it was stored."""
        plan = BTLScenario.draw(3)
        self.assertEqual(decodePlan(HostilePlan, encodePlan(plan)), plan)

    def test_same(self) -> None:
        """A plan has the same effects each time."""
        plan = BTLScenario.draw(5)
        self.assertEqual(playHostile(BTLScenario, plan), playHostile(BTLScenario, plan))

    def test_defect(self) -> None:
        """A listener that does not expect malformed messages fails the simulation."""
        mutations = (Mutation("TCP", 0, Kind.CHANGED, 1, 0, 0xFF),)
        plan = HostilePlan(**{**vars(BTLScenario.draw(1)), "mutations": mutations})
        playHostile(BTLScenario, plan)
        real = checkVersion

        def check(magic: int, version: int) -> None:
            try:
                real(magic, version)
            except WireError:
                raise ZeroDivisionError("an unexpected exception") from None

        with mock.patch.object(lifelineModule, "checkVersion", check):
            self.assertRaisesRegex(Violation, "unexpected exception", playHostile, BTLScenario, plan)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_log(self) -> None:
        """A peer that repeats messages does not fill the log; a simulation that does fails."""
        mutations = tuple(
            Mutation(channel, at, Kind.MANY, 1500, 0, 0) for channel in ("TCP", "UD") for at in (0, 3)
        )
        plan = replace(BTLScenario.draw(1), mutations=mutations)
        self.assertGreater(playHostile(BTLScenario, plan).counts["MANY"], 1)

        def judge(_scenario: BTLScenario) -> None:
            for _ in range(101):
                Logger("txrdma.test").info("knocks")

        self.patch(BTLScenario, "judge", judge)
        self.assertRaisesRegex(Violation, "too often: knocks", playHostile, BTLScenario, plan)

    def test_memory(self) -> None:
        """Memory that a simulation leaks is detected."""
        memory, left = Memory(), []  # far more than what earlier tests in this process may release meanwhile
        with self.assertRaisesRegex(Violation, "objects are left"):
            for _ in range(3 * Memory.EVERY):
                left.append([object() for _ in range(10 * Memory.CACHES // Memory.EVERY)])
                memory.played()


@playingStored(
    "hostile-btl",
    "hostile-btl-paths",
    "hostile-btl-rdma",
    "hostile-btl-shared-memory",
    "hostile-btl-groups",
    "hostile-btl-groups-shared-memory",
    "hostile-soft",
    "hostile-rdma",
    "hostile-rsocket",
    "hostile-collector",
    "hostile-coordinator",
    "hostile-web",
)
class StoredTests(SynchronousTestCase):
    """A hostile peer of each protocol, as its scenario describes it."""


@playingStored("hostile-mad")
class MADTests(SynchronousTestCase):
    """A hostile peer of an agent with a server for management datagrams."""

    slowBecause = "tables of many datagrams are sent by all three hosts"
