"""Host names in endpoints for messages."""

from __future__ import annotations

from twisted.internet import reactor
from twisted.trial.unittest import TestCase

from txrdma.cm.connections.hostnames import addressesOf


class RealTests(TestCase):
    """Twisted's own resolver."""

    async def test_localhost(self) -> None:
        """C{localhost} resolves to a loopback address."""
        self.assertIn("127.0.0.1", await addressesOf(reactor, "localhost"))
