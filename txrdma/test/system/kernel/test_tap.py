"""
The software device on this machine and the kernel's rxe in the guest, joined by a TAP device.

The suite runs outside of the guest; L{txrdma.test.system.kernel.agent} is its peer inside.
"""

from __future__ import annotations

import os
from time import monotonic
from typing import Any

from twisted.internet import reactor as theReactor
from twisted.internet.endpoints import clientFromString, connectProtocol
from twisted.internet.task import deferLater
from twisted.trial.unittest import TestCase

from txrdma.test.system.kernel import Box, record, Witness
from txrdma.test.system.kernel.agent import Asking
from txrdma.test.system.kernel.party import Party
from txrdma.verbs.devices import openDevice

BOXES = (Box(rxe=False, tap=True, mtu=4200),)

reactor: Any = theReactor  # a module, to the type checker
MEBIBYTE = 1 << 20
PIECES = 16
WHOLE = PIECES * MEBIBYTE
PATIENCE_SECONDS = 90
GRH = 40
DONE = "RC SEND, WRITE, READ of 16 MiB with equal hashes, atomics, wrong keys, UD"


class Exchanges(TestCase):
    """
    A party on the software device at the local end of the TAP device, and the kernel's party behind it.

    @cvar weBegin: whether the local party sends the requests.
    """

    timeout = 200
    skip = (
        None if "LAB_PEER" in os.environ else os.environ.get("LAB_NO_PEER", "needs a guest: make test-kernel")
    )
    weBegin: bool
    beginner: Party | Asking
    other: Party | Asking

    async def setUp(self) -> None:  # type: ignore[override]  # trial waits for coroutines
        kernelParty = await self._connected()
        self.addCleanup(kernelParty.transport.loseConnection)
        device = openDevice(reactor, f"soft:{os.environ['LAB_HERE']}:port=4791:route=rocev2")
        self.addCleanup(device.close)
        softParty = Party(reactor, device)
        self.addCleanup(softParty.close)
        self.beginner, self.other = (softParty, kernelParty) if self.weBegin else (kernelParty, softParty)

    async def _connected(self) -> Any:
        """Connect to the agent, which starts slowly."""
        end = monotonic() + PATIENCE_SECONDS
        peer = clientFromString(reactor, f"tcp:{os.environ['LAB_PEER']}:timeout=5")
        while True:
            try:
                return await connectProtocol(peer, Asking())
            except Exception:
                if monotonic() > end:
                    raise
                await deferLater(reactor, 0.5)

    async def open(self, kind: str, size: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Connect both queue pairs; return the terms of both."""
        first = await self.beginner.call("open", kind=kind, size=size)
        second = await self.other.call("open", kind=kind, size=size)
        await self.beginner.call("connect", peer=second)
        await self.other.call("connect", peer=first)
        self.assertEqual((first["mtu"], second["mtu"]), (4096, 4096))
        return first, second

    async def assertSame(self, length: int) -> None:
        """Compare the lower half of both memories."""
        first = await self.beginner.call("digest", offset=0, length=length)
        second = await self.other.call("digest", offset=0, length=length)
        self.assertEqual(first, second)

    async def measured(self, operation: str, peer: dict[str, Any]) -> None:
        """Transfer everything in pieces, and record the throughput."""
        begun = monotonic()
        ended = await self.beginner.call(
            "send", operation=operation, peer=peer, length=MEBIBYTE, pieces=PIECES
        )
        self.assertEqual(ended, ["SUCCESS"])
        record(f"{operation} MiB/s", PIECES / (monotonic() - begun))

    async def test_send(self) -> None:
        """Sixteen messages of a MiB fill as many receives."""
        _, other = await self.open("RC", WHOLE)
        await self.beginner.call("fill", offset=0, length=WHOLE, seed=1)
        await self.other.call("receive", offset=0, length=MEBIBYTE, count=PIECES)
        await self.measured("SEND", other)
        for received in await self.other.call("received", count=PIECES):
            self.assertEqual((received["status"], received["length"]), ("SUCCESS", MEBIBYTE))
        await self.assertSame(WHOLE)

    async def test_write(self) -> None:
        """Sixteen MiB are written; the last request has immediate data."""
        _, other = await self.open("RC", WHOLE)
        await self.beginner.call("fill", offset=0, length=WHOLE, seed=2)
        await self.other.call("receive", offset=0, length=64)
        await self.measured("RDMA_WRITE", other)
        ended = await self.beginner.call(
            "send", operation="RDMA_WRITE_WITH_IMMEDIATE", peer=other, length=100, immediate=0x12345678
        )
        self.assertEqual(ended, ["SUCCESS"])
        [received] = await self.other.call("received")
        self.assertEqual((received["status"], received["immediate"]), ("SUCCESS", 0x12345678))
        await self.assertSame(WHOLE)

    async def test_read(self) -> None:
        """Sixteen MiB are read."""
        _, other = await self.open("RC", WHOLE)
        await self.other.call("fill", offset=0, length=WHOLE, seed=3)
        await self.measured("RDMA_READ", other)
        await self.assertSame(WHOLE)

    async def test_atomics(self) -> None:
        """Atomics add to and swap the peer's numbers, and return the previous values."""
        _, other = await self.open("RC", 4096)
        await self.other.call("setNumber", offset=64, value=(1 << 64) - 2)
        for operation, expected, before, after in (
            ("FETCH_AND_ADD", {"operand": 5}, (1 << 64) - 2, 3),
            ("COMPARE_AND_SWAP", {"compare": 4, "operand": 9}, 3, 3),
            ("COMPARE_AND_SWAP", {"compare": 3, "operand": 9}, 3, 9),
        ):
            ended = await self.beginner.call(
                "send", operation=operation, peer=other, length=8, there=64, **expected
            )
            self.assertEqual(ended, ["SUCCESS"])
            self.assertEqual(await self.beginner.call("number", offset=0), before)
            self.assertEqual(await self.other.call("number", offset=64), after)

    async def test_datagrams(self) -> None:
        """Datagrams of four KiB arrive, each after the space for its GRH."""
        size, count = 4096, 16
        beginner, other = await self.open("UD", count * (GRH + size))
        await self.beginner.call("fill", offset=0, length=size, seed=4)
        await self.other.call("receive", offset=0, length=GRH + size, count=count)
        for _ in range(count):
            ended = await self.beginner.call("send", operation="SEND", peer=other, length=size)
            self.assertEqual(ended, ["SUCCESS"])
        sent = await self.beginner.call("digest", offset=0, length=size)
        for index, received in enumerate(await self.other.call("received", count=count)):
            self.assertEqual((received["status"], received["length"]), ("SUCCESS", GRH + size))
            self.assertEqual(received["from"], beginner["qpn"])
            place = index * (GRH + size) + GRH
            self.assertEqual(await self.other.call("digest", offset=place, length=size), sent)

    async def test_wrongKey(self) -> None:
        """An invalid key fails the request with a remote access error."""
        _, other = await self.open("RC", 4096)
        ended = await self.beginner.call(
            "send", operation="RDMA_WRITE", peer={**other, "rkey": other["rkey"] ^ 0xFF00}, length=100
        )
        self.assertEqual(ended, ["REM_ACCESS_ERR"])


class WeBeginTests(Exchanges):
    """txrdma's software device sends the requests."""

    weBegin = True
    witness = Witness("software device", "rxe, over TAP", f"requester: {DONE}")


class TheyBeginTests(Exchanges):
    """The kernel's rxe sends the requests."""

    weBegin = False
    witness = Witness("software device", "rxe, over TAP", f"responder: {DONE}")


del Exchanges
