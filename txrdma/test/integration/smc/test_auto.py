"""
C{device=auto}: real RDMA ports first, then shared memory, then TCP.

The real port is one of the software device's here; that of pyverbs is for the box (test_auto of test.kernel).
"""

from __future__ import annotations

from typing import Any

from txrdma.iba.types import GID
from txrdma.smc.common.realports import realPorts
from txrdma.smc.handshake.choice import reachesOthers
from txrdma.smc.handshake.proposing import ClientNegotiation
from txrdma.smc.terms.options import Options
from txrdma.test.support.smc.ends import EndsTestCase
from txrdma.testing.protocols import Echo

ROCE = "soft:127.0.0.1:route=rocev2"


class AutoTests(EndsTestCase):
    """Both ends in this process."""

    def found(self, found: tuple[str, int] | None) -> None:
        """That real port belongs to every connection."""
        self.patch(realPorts, "isAny", lambda: found is not None)
        self.patch(realPorts, "portFor", lambda own, peer: found)

    async def route(self, listening: str = "", more: str = "") -> Any:
        """What a connection goes by."""
        _, port = await self.serve(f"smc:127.0.0.1:0{listening}", Echo)
        client = await self.connect(f"smc:127.0.0.1:{port}{more}")
        client.transport.write(b"hello")
        await client.hearing(5)
        return client.smc.route

    async def test_real(self) -> None:
        """The port that belongs to the connection is used, by both ends."""
        self.patch(GID, "isLoopback", False)  # as a real port's address is not
        self.found((ROCE, 1))
        self.assertEqual(await self.route(), "rocev2")

    async def test_none(self) -> None:
        """Where there is none it is shared memory."""
        self.found(None)
        self.assertEqual(await self.route(), "shared-memory")

    async def test_failing(self) -> None:
        """A device that can't be opened is left alone for a while, and shared memory serves."""
        self.found(("pyverbs:nowhere", 1))
        failed: list[str] = []
        self.patch(realPorts, "fail", failed.append)
        self.assertEqual(await self.route(), "shared-memory")
        self.assertEqual(set(failed), {"pyverbs:nowhere"})

    async def test_otherPort(self) -> None:
        """A port that the device does not have, or that has no GID, is as good as none."""
        self.found((ROCE, 2))
        self.assertEqual(await self.route(), "shared-memory")

    async def test_clientHasNone(self) -> None:
        """A client without a real port proposes shared memory, and the server follows."""
        self.found((ROCE, 1))
        self.patch(ClientNegotiation, "_hardwareGroups", lambda negotiation: None)
        self.assertEqual(await self.route(), "shared-memory")

    def test_reachesOthers(self) -> None:
        """Endpoints with a device of their own reach other hosts, those with C{auto} if there is one."""
        self.found(None)
        self.assertFalse(reachesOthers(Options()))
        self.assertTrue(reachesOthers(Options(device="soft")))
        self.found((ROCE, 1))
        self.assertTrue(reachesOthers(Options()))
