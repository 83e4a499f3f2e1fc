"""
Streams of C{smc:} endpoints over the kernel's RDMA devices.
"""

from __future__ import annotations

import time
from hashlib import sha256
from random import Random
from typing import Any

from txrdma.test.system.kernel import Box, record, Witness
from txrdma.test.system.kernel.smcworld import PatientTestCase
from txrdma.testing.protocols import Echo, Recorder

BOXES = (Box(mtu=4200, timeout=300),)

SERVER = r"smc:0:interface=127.0.0.1:device=pyverbs\:rxe1:timeout=60"
CLIENT = r"smc:127.0.0.1:{port}:device=pyverbs\:rxe0:timeout=60:fallback=no"


class StreamTests(PatientTestCase):
    """txrdma's server and client, each at its own end of a wire."""

    timeout = 120
    witness = Witness("smc: over pyverbs", "smc: over pyverbs", "SMC-R streams over rxe")

    async def pair(self, kind: type[Recorder]) -> tuple[Any, Any]:
        """Return a client and a server."""
        factory, port = await self.serve(SERVER, kind)
        accepted = factory.next()
        client = await self.connect(CLIENT.format(port=port))
        return client, await accepted

    async def test_echo(self) -> None:
        """Echoed bytes return over SMC-R, through the devices that the strings name."""
        client, server = await self.pair(Echo)
        for end, device in ((client, "rxe0"), (server, "rxe1")):
            self.assertEqual((end.smc.mode, end.smc.route, end.smc.device), ("SMC-R", "verbs", device))
        client.transport.write(b"over there " * 1000)
        self.assertEqual(await client.receiving(11_000), b"over there " * 1000)

    async def test_bulk(self) -> None:
        """4 MiB arrive unchanged through smaller buffers."""
        client, server = await self.pair(Recorder)
        data = Random(3).randbytes(4 << 20)
        began = time.monotonic()
        whole = server.receiving(len(data))
        client.transport.write(data)
        await whole
        record("MB/s", round(len(data) / 1e6 / (time.monotonic() - began), 2))
        self.assertEqual(sha256(server.received).digest(), sha256(data).digest())

    async def test_close(self) -> None:
        """A close is reported to the other end, both are released, and a new connection works."""
        client, server = await self.pair(Echo)
        client.transport.write(b"the last word")
        await client.receiving(13)
        client.transport.loseConnection()
        await server.lost
        await client.lost
        client, _server = await self.pair(Echo)
        client.transport.write(b"and another")
        self.assertEqual(await client.receiving(11), b"and another")
