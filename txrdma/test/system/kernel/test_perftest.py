"""
perftest's programs with C{-R} in both roles: the kernel's communication manager and txrdma's.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred

from txrdma.cm.connections.endpoints import RDMAClientEndpoint, RDMAServerEndpoint
from txrdma.test.system.kernel import Box, record, Witness
from txrdma.test.system.kernel.cmworld import CMTestCase, counted, Program, since
from txrdma.test.system.kernel.world import RXE
from txrdma.testing.perftest import connect, serve, TERMS, Test
from txrdma.verify.perftest import AVERAGE, resultIn, TYPICAL

BOXES = (Box(rxe=False, timeout=600),)

PORT = 18515
LENGTH, COUNT = 5000, 100
CONTENTS = bytes(range(250)) * (LENGTH // 250)


class PerftestTests(CMTestCase):
    """Transfers between rxe and the software device."""

    witness = Witness("rdma: over the software device", "perftest -R on rxe", "WRITE, READ, SEND, both roles")
    programs = tuple(test.program for test in Test)

    def perftest(self, test: Test, *words: str) -> Program:
        """Start a program of perftest on rxe."""
        options = ("-R", "-F", "-d", RXE, "-s", str(LENGTH), "-n", str(COUNT), "-p", str(PORT))
        return self.start(test.program, *options, *words)

    def weServe(self, test: Test) -> Any:
        """Serve perftest's client; return the results of txrdma's server."""
        endpoint = RDMAServerEndpoint(self.reactor, PORT, self.soft, TERMS)
        served = Deferred.fromCoroutine(serve(endpoint, test, CONTENTS))
        before = counted()
        program = self.perftest(test, self.there)
        output = self.succeeded(program)
        found = self.result(served)
        self.assertEqual([since(before).get(kind) for kind in ("tx req", "rx rep", "tx rtu")], [2, 2, 2])
        value = resultIn(output, TYPICAL if test is Test.READ else AVERAGE)
        if test is Test.READ:
            record(f"{test.program}, us", round(value))
        else:
            record(f"{test.program}, MiB/s", round(value, 2))
        self.assertRegex(output, rf"\b{LENGTH}\s+{COUNT}\s")
        return found

    def weConnect(self, test: Test) -> tuple[Any, str]:
        """Connect to perftest's server; return the results of txrdma's client, and the server's output."""
        program = self.perftest(test)
        self.expectOutput(program, "Waiting for client to connect")
        before = counted()
        endpoint = RDMAClientEndpoint(self.reactor, self.here, PORT, self.soft, TERMS)
        client = connect(self.reactor, endpoint, test, LENGTH, COUNT)
        found = self.result(Deferred.fromCoroutine(client), 9.0)
        output = self.succeeded(program)
        self.assertEqual([since(before).get(kind) for kind in ("tx rep", "rx rtu")], [2, 2])
        return found, output

    def test_theyWrite(self) -> None:
        """ib_write_bw writes to txrdma's memory, and reports its results."""
        found = self.weServe(Test.WRITE)
        self.assertEqual(found.reported, (LENGTH, COUNT))
        self.assertNotEqual(found.memory[:LENGTH], CONTENTS)

    def test_theyRead(self) -> None:
        """ib_read_lat reads txrdma's memory, which does not change."""
        self.assertEqual(self.weServe(Test.READ).memory[:LENGTH], CONTENTS)

    def test_theySend(self) -> None:
        """ib_send_bw sends messages, all of which txrdma receives."""
        self.assertEqual(self.weServe(Test.SEND).messages, [LENGTH] * COUNT)

    def test_weWrite(self) -> None:
        """ib_write_bw prints the results of txrdma's client."""
        _, output = self.weConnect(Test.WRITE)
        self.assertRegex(output, rf"\b{LENGTH}\s+{COUNT}\s")

    def test_weRead(self) -> None:
        """txrdma reads as many bytes of ib_read_lat's memory as it shares."""
        found, _ = self.weConnect(Test.READ)
        self.assertEqual(len(found.read), LENGTH)

    def test_weSend(self) -> None:
        """ib_send_bw receives as many messages as it expects, and prints its results."""
        _, output = self.weConnect(Test.SEND)
        self.assertRegex(output, rf"\b{LENGTH}\s+{COUNT}\s")  # the rate of a slow guest is printed as 0.00
