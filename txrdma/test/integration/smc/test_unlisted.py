"""
Attributes of Twisted's TCP ports and transports that programs use although no interface lists them.
"""

from __future__ import annotations

from itertools import product

from txrdma.test.support.smc.ends import EndsTestCase
from txrdma.testing.protocols import Echo


class TransportTests(EndsTestCase):
    async def test_clientAndHostnameIdentifyClientAlsoAfterEnd(self) -> None:
        """C{client} is what the socket returns, which for IPv6 has a flow label and a zone, too."""
        for scheme, (host, more) in product(("tcp", "smc"), (("127.0.0.1", ()), ("::1", (0, 0)))):
            quoted = host.replace(":", r"\:")
            factory, number = await self.serve(f"{scheme}:0:interface={quoted}", Echo)
            one = await self.connect(f"{scheme}:{quoted}:{number}")
            one.transport.write(b"x")
            await one.receiving(1)
            [server] = factory.protocols
            expected = (host, one.transport.getHost().port, *more)
            self.assertEqual((server.transport.client, server.transport.hostname), (expected, host), scheme)
            one.transport.loseConnection()
            await server.lost
            self.assertEqual(server.transport.client, expected, scheme)

    async def test_socketOfTCPConnectionCanBeQueried(self) -> None:
        factory, number = await self.serve("smc:127.0.0.1:0", Echo)
        one = await self.connect(f"smc:127.0.0.1:{number}:fallback=no")
        self.assertEqual(one.transport.socket.getpeername(), ("127.0.0.1", number))
