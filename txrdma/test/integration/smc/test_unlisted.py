"""
Attributes of Twisted's TCP ports and transports that programs use although no interface lists them.
"""

from __future__ import annotations

from txrdma.test.support.smc.ends import EndsTestCase
from txrdma.testing.protocols import Echo


class TransportTests(EndsTestCase):
    async def test_clientAndHostnameIdentifyClientAlsoAfterEnd(self) -> None:
        for scheme in ("tcp", "smc"):
            factory, number = await self.serve(f"{scheme}:0:interface=127.0.0.1", Echo)
            one = await self.connect(f"{scheme}:127.0.0.1:{number}")
            one.transport.write(b"x")
            await one.receiving(1)
            [server] = factory.protocols
            host = one.transport.getHost()
            self.assertEqual(server.transport.client, (host.host, host.port))
            self.assertEqual(server.transport.hostname, "127.0.0.1")
            one.transport.loseConnection()
            await server.lost
            self.assertEqual(server.transport.client, (host.host, host.port))

    async def test_clientOfIPv6HasFlowLabelAndZone(self) -> None:
        for scheme in ("tcp", "smc"):
            factory, number = await self.serve(rf"{scheme}:0:interface=\:\:1", Echo)
            one = await self.connect(rf"{scheme}:\:\:1:{number}")
            one.transport.write(b"x")
            await one.receiving(1)
            [server] = factory.protocols
            host = one.transport.getHost()
            self.assertEqual(server.transport.client, (host.host, host.port, 0, 0))

    async def test_socketOfTCPConnectionCanBeQueried(self) -> None:
        factory, number = await self.serve("smc:127.0.0.1:0", Echo)
        one = await self.connect(f"smc:127.0.0.1:{number}:fallback=no")
        self.assertEqual(one.transport.socket.getpeername(), ("127.0.0.1", number))
