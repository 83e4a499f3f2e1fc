"""
Doorbells over shared memory: the system calls that wake a sleeping peer; and ends that rather poll for it.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from txrdma.test.support.smc.ends import EndsTestCase
from txrdma.testing.protocols import Echo
from txrdma.verbs._busypoll import SpinBudget
from txrdma.verbs.completions import CompletionReader

_MESSAGES = 100


class DoorbellTests(EndsTestCase):
    """Two ends in one process that do not busy-poll, on the real reactor."""

    def setUp(self) -> None:
        super().setUp()
        self.patch(SpinBudget, "isCrowded", lambda budget, now: True)

    async def connected(self) -> Any:
        """Return a client that has its first answer."""
        _, port = await self.serve(kind=Echo)
        client = await self.connect(f"smc:127.0.0.1:{port}")
        self.assertEqual(client.transport.smc.route, "shared-memory")
        client.transport.write(b"?")
        await client.receiving(1)
        return client

    async def test_messageToSleepingPeerWritesDoorbellOnce(self) -> None:
        client = await self.connected()
        count = 0
        write = os.write

        def counted(descriptor: int, data: Any) -> int:
            nonlocal count
            count += "eventfd" in os.readlink(f"/proc/self/fd/{descriptor}")
            return write(descriptor, data)

        self.patch(os, "write", counted)
        for number in range(2, _MESSAGES + 2):
            client.transport.write(b"?")
            await client.receiving(number)
        self.assertEqual(count, 2 * _MESSAGES)

    async def test_roundTripNeedsFewPythonCalls(self) -> None:
        """A round trip takes less than 180 calls, of both ends, the reactor and this test."""
        client = await self.connected()
        counted = 0

        def count(frame: Any, event: str, argument: Any) -> None:
            nonlocal counted
            counted += event == "call"

        self.addCleanup(sys.setprofile, sys.getprofile())
        sys.setprofile(count)
        for number in range(2, _MESSAGES + 2):
            client.transport.write(b"?")
            await client.receiving(number)
        sys.setprofile(None)
        self.assertLess(counted / _MESSAGES, 180)


class LowLatencyTests(EndsTestCase):
    """Both ends in one process, on the real reactor."""

    async def test_endsWithLowLatencyPollLonger(self) -> None:
        """C{latency=low} in a string applies to this end only."""
        preferred: list[CompletionReader] = []
        self.patch(CompletionReader, "preferLatency", lambda reader: preferred.append(reader))
        for listen, connect, number in (("", "", 0), ("low", "", 1), ("", "low", 1), ("low", "low", 2)):
            preferred.clear()
            listenText, connectText = (f":latency={each}" if each else "" for each in (listen, connect))
            await self.ends(listen=f"smc:127.0.0.1:0{listenText}", connect=f"smc:127.0.0.1:{{}}{connectText}")
            self.assertEqual(len(set(preferred)), number, (listen, connect))
