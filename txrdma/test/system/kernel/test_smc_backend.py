"""
C{smc:} endpoints with C{backend=kernel}: AF_SMC sockets at both ends.
"""

from __future__ import annotations

import os
import platform
import socket
from hashlib import sha256
from typing import Any

from twisted.trial.unittest import TestCase

from txrdma.smc.stream.connectionstatus import statuses
from txrdma.test.system.kernel import Box, OUTSIDE, record, Witness
from txrdma.testing.endpoints import EndpointContract

BOXES = (Box(smc=True),)


class KernelEndpointTests(EndpointContract, TestCase):
    """The contract of endpoints with the kernel's SMC-R over rxe."""

    SERVER = "smc:10.77.0.2:0:backend=kernel"
    CLIENT = "smc:10.77.0.2:{port}:bindAddress=10.77.0.1:backend=kernel"
    PLAIN_SERVER = "tcp:0:interface=10.77.0.2"
    PLAIN_CLIENT = "tcp:10.77.0.2:{port}:bindAddress=10.77.0.1"
    ABORT_IS_SEEN = False
    SECONDS = 30.0
    timeout = 120
    witness = Witness("smc: with backend=kernel", "Linux AF_SMC", "both roles: streams, ends, fallback")

    skip = OUTSIDE
    if OUTSIDE is None and os.uname().release.startswith("6.1."):
        skip = "rxe of this kernel reports no flushed receives: SMC-R sockets would hang"

    async def test_devices(self) -> None:
        """The status has the device and the GIDs of the link, the same for two connections."""
        here, there = await self.pair()
        other, _ = await self.pair()
        self.assertEqual((here.transport.smc.device, there.transport.smc.device), ("rxe0", "rxe1"))
        self.assertEqual(here.transport.smc.route, "kernel")
        self.assertEqual(here.transport.smc.linkGroup, other.transport.smc.linkGroup)
        self.assertIn("10.77.0.1", here.transport.smc.linkGroup.replace("::ffff:", ""))

    async def test_listed(self) -> None:
        """C{txrdma connections} lists both ends."""
        here, there = await self.pair()
        reported = [each.toDict() for each in statuses()]
        self.assertEqual({each["role"] for each in reported}, {"client", "server"})
        [client] = [each for each in reported if each["role"] == "client"]
        self.assertEqual(client["mode"], "SMC-R")
        self.assertTrue(str(client["peer"]).startswith("10.77.0.2:"))
        self.assertEqual(client["cursors"], {"produced": 0, "peerConsumed": 0, "arrived": 0, "consumed": 0})
        for end in (here, there):
            await self.end(end)
        self.assertEqual(statuses(), [])

    async def test_abortWithUnreadBytes(self) -> None:
        """A close with unread bytes is a lost connection for the peer, as with TCP."""
        here, there = await self.pair()
        there.transport.pauseProducing()
        here.transport.write(b"nobody reads this")
        await self.until(lambda: there.transport.smc.toDict()["cursors"]["arrived"] == 17)
        there.transport.abortConnection()
        await self.until(lambda: here.lost is not None or here.hasEnded)
        record("seen", "orderly" if here.lost is None else type(here.lost.value).__name__)


class IPv6Pairs:
    """Connections over sockets of IPv6."""

    timeout = 60

    pair: Any = EndpointContract.pair
    until: Any = EndpointContract.until
    listening: Any = EndpointContract.listening
    connecting: Any = EndpointContract.connecting
    end: Any = EndpointContract.end
    SECONDS = 30.0


class MappedTests(IPv6Pairs, TestCase):
    """
    IPv4 addresses mapped into IPv6.

    Over rxe, Linux supports SMC-R with no other IPv6 addresses: version 2 needs IPv4 addresses, and version 1
    needs GIDs of RoCE v1, which rxe does not have. Linux 6.12 does not treat mapped addresses as IPv4 either.
    """

    skip = KernelEndpointTests.skip
    witness = Witness(
        "smc: with backend=kernel", "Linux AF_SMC", "IPv6 sockets, mapped addresses, both roles"
    )
    HERE, THERE = r"\:\:ffff\:10.77.0.1", r"\:\:ffff\:10.77.0.2"

    async def test_smc(self) -> None:
        """Both ends over IPv6 sockets report their mode, and exchange a MiB in both directions at once."""
        here, there = await self.pair(
            f"smc:{self.THERE}:0:backend=kernel",
            f"smc:{self.THERE}:{{port}}:bindAddress={self.HERE}:backend=kernel",
        )
        release = tuple(int(number) for number in platform.release().split(".")[:2])
        mode = "SMC-R" if release >= (6, 14) else "TCP"
        record("served by", mode)
        for end, device, address in ((here, "rxe0", "10.77.0.1"), (there, "rxe1", "10.77.0.2")):
            self.assertEqual(end.transport.socket.family, socket.AF_INET6)
            self.assertEqual(end.transport.getHost().host, f"::ffff:{address}")
            reported = end.transport.smc
            self.assertEqual((reported.mode, reported.device), (mode, device if mode == "SMC-R" else ""))
        data = bytes(range(256)) * 4096
        for end in (here, there):
            end.transport.write(data)
        for end in (here, there):
            await self.until(lambda each=end: each.received == len(data))
            self.assertEqual(end.digest.digest(), sha256(data).digest())


class LoopbackTests(IPv6Pairs, TestCase):
    """Addresses without an RDMA device: the handshake is SMC's, the connection plain TCP."""

    skip = OUTSIDE
    witness = Witness("smc: with backend=kernel", "Linux AF_SMC", "IPv6; a device at neither end")
    ADDRESS = r"\:\:1"

    async def test_ipv6(self) -> None:
        """Both ends of an IPv6 connection report the fallback's reason and the peer's diagnosis."""
        server, client = (
            rf"smc:{self.ADDRESS}:0:backend=kernel",
            rf"smc:{self.ADDRESS}:{{port}}:backend=kernel",
        )
        here, there = await self.pair(server, client)
        here.transport.write(b"hello")
        await self.until(lambda: there.received == 5)
        for end in (here, there):
            self.assertEqual(end.transport.smc.mode, "TCP")
            self.assertEqual(end.transport.getHost().host, "::1")
        self.assertEqual(here.transport.smc.fallbackReason.name, "NOSMCDEV")
        self.assertEqual(there.transport.smc.fallbackReason.name, "PEERDECL")
        self.assertEqual(there.transport.smc.peerDiagnosis.name, "NOSMCDEV")
