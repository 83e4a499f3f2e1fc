"""
Bounds of the data that a server buffers for a client that sends without waiting for the handshake.
"""

from __future__ import annotations

import time
from typing import Any

from twisted.internet.defer import Deferred

from txrdma.error import Refused
from txrdma.smc.group.group import LinkGroup
from txrdma.smc.group.groups import linkGroups
from txrdma.smc.wire.clc import Decline, Diagnosis
from txrdma.test.support.smc.races import Listener, RaceTestCase
from txrdma.testing.smc.scenario import DEVICE

FLOOD = bytes(range(256)) * 8192
MOST = 256 * 1024
"""Bytes of several reads of a socket."""


class BoundsTests(RaceTestCase):
    """A client that sends without end during the handshake."""

    def accept(self) -> tuple[Any, Any, Listener]:
        """Return the client's socket, the server's handshake and the server's protocol."""
        there = Listener()
        accepting = self.accepting(self.options, there)
        return self.connectSocket(accepting, latency=1e-4), accepting, there

    def test_decidingServerBuffersFewReadsAndLosesNoByte(self) -> None:
        decision: Deferred[None] = Deferred()

        async def reserve(group: LinkGroup, *_: object) -> None:
            await decision

        self.patch(LinkGroup, "reserve", reserve)
        socket, accepting, there = self.accept()
        left = self.proposal() + FLOOD
        for _ in range(2000):
            sent = 0
            try:
                sent = socket.send(left[:16384])
            except BlockingIOError:
                pass
            left = left[sent:]
            self.wait(1e-4)
        self.assertLess(len(accepting._core.state.buffer), MOST)
        self.assertGreater(len(left), len(FLOOD) // 2)
        decision.errback(Refused("no room", Diagnosis.MEM))
        for _ in range(10_000):
            try:
                left = left[socket.send(left[:16384]) :]
            except BlockingIOError:
                pass
            self.wait(1e-3)
            if not left and len(there.received) == len(FLOOD):
                break
        self.assertEqual((there.mode, there.received), ("TCP", FLOOD))

    def test_onlyFirstDeclineAfterServersIsNoData(self) -> None:
        socket, accepting, there = self.accept()
        decline = Decline(bytes(8), Diagnosis.MEM).encode()
        socket.send(self.proposal())
        self.until(lambda: linkGroups(self.server, DEVICE).links())
        accepting._decline(Diagnosis.MEM)
        began = time.process_time()
        left = decline * 10_000
        while left:
            try:
                left = left[socket.send(left[:16384]) :]
            except BlockingIOError:
                pass
            self.wait(1e-3)
        self.until(lambda: there.mode and len(there.received) >= 9_998 * len(decline), 20)
        self.assertEqual(there.received, decline * (len(there.received) // len(decline)))
        self.assertLess(time.process_time() - began, 20)
