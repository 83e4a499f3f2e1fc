"""
C{device=auto} uses a real RDMA port if there is one, else shared memory.

A port of the software device replaces the real port here; L{txrdma.test.system.kernel.test_auto} tests ports
of pyverbs.
"""

from __future__ import annotations

from typing import Any

from txrdma.iba.types import GID
from txrdma.smc.common.realports import realPorts
from txrdma.smc.handshake.carriers import reachesOthers
from txrdma.smc.handshake.proposing import ClientNegotiation
from txrdma.smc.terms.options import Options
from txrdma.test.support.smc.ends import EndsTestCase
from txrdma.testing.protocols import Echo

ROCE = "soft:127.0.0.1:route=rocev2"


class AutoTests(EndsTestCase):
    """Connections with both ends in this process."""

    def found(self, found: tuple[str, int] | None) -> None:
        """Let each connection have this real port, or none."""
        self.patch(realPorts, "isAny", lambda: found is not None)
        self.patch(realPorts, "portFor", lambda own, peer: found)

    async def route(self, listening: str = "", more: str = "") -> Any:
        """Connect, and return the route of the connection."""
        _, port = await self.serve(f"smc:127.0.0.1:0{listening}", Echo)
        client = await self.connect(f"smc:127.0.0.1:{port}{more}")
        client.transport.write(b"hello")
        await client.receiving(5)
        return client.smc.route

    async def test_bothEndsUseRealPortOfConnection(self) -> None:
        self.patch(GID, "isLoopback", False)  # real ports have no loopback address
        self.found((ROCE, 1))
        self.assertEqual(await self.route(), "rocev2")

    async def test_sharedMemoryIsUsedWithoutRealPort(self) -> None:
        self.found(None)
        self.assertEqual(await self.route(), "shared-memory")

    async def test_deviceThatFailsToOpenIsReportedAndSharedMemoryUsed(self) -> None:
        self.found(("pyverbs:nowhere", 1))
        failed: list[str] = []
        self.patch(realPorts, "fail", failed.append)
        self.assertEqual(await self.route(), "shared-memory")
        self.assertEqual(set(failed), {"pyverbs:nowhere"})

    async def test_missingPortNumberLeadsToSharedMemory(self) -> None:
        self.found((ROCE, 2))
        self.assertEqual(await self.route(), "shared-memory")

    async def test_clientWithoutRealPortProposesSharedMemory(self) -> None:
        self.found((ROCE, 1))
        self.patch(ClientNegotiation, "_hardwareGroups", lambda negotiation: None)
        self.assertEqual(await self.route(), "shared-memory")

    def test_reachesOthers(self) -> None:
        """Endpoints with an explicit device reach other hosts; with C{auto} only if there is a real port."""
        self.found(None)
        self.assertFalse(reachesOthers(Options()))
        self.assertTrue(reachesOthers(Options(device="soft")))
        self.found((ROCE, 1))
        self.assertTrue(reachesOthers(Options()))
