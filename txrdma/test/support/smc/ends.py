"""
Servers and clients of C{smc} endpoints on the real reactor, for tests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet import reactor as theReactor
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.task import deferLater
from twisted.trial.unittest import TestCase

from txrdma.smc.group import groups
from txrdma.smc.group.groups import closeLinkGroups
from txrdma.smc.signalling.silence import silentPeers
from txrdma.testing.protocols import Recorder, Recorders

reactor: Any = theReactor


class EndsTestCase(TestCase):
    """A test with servers and clients, which are closed when it ends."""

    timeout = 60

    def setUp(self) -> None:
        self.patch(groups, "CLOSING_SECONDS", 0.5)  # peers in processes that were killed do not answer
        self.addCleanup(self._finish)
        self._ended: list[Recorder] = []

    async def _finish(self) -> None:
        closeLinkGroups(reactor)
        silentPeers(reactor)._until.clear()  # another test may get the port number of a silent listener
        # TCP connections without an owner close within a few reactor iterations.
        for _ in range(50):
            internal = set(reactor._internalReaders)
            if not any(reader not in internal for reader in reactor.getReaders()):
                break
            await deferLater(reactor, 0.01)

    async def listening(
        self, kind: Callable[[], Any] = Recorder, text: str = "smc:127.0.0.1:0"
    ) -> tuple[Any, int, Any]:
        """Listen, and return the factory, the port number and the port."""
        factory = Recorders(kind)
        port = await serverFromString(reactor, text).listen(factory)
        self.addCleanup(port.stopListening)
        return factory, port.getHost().port, port

    async def serve(
        self, text: str = "smc:127.0.0.1:0", kind: Callable[[], Any] = Recorder
    ) -> tuple[Any, int]:
        """Listen, and return the factory and the port number."""
        factory, number, _ = await self.listening(kind, text)
        return factory, number

    async def connect(self, text: str, kind: Callable[[], Any] = Recorder) -> Any:
        """Connect, and return the protocol; its connection is aborted after the test unless it has ended."""
        protocol = await clientFromString(reactor, text).connect(Recorders(kind))
        self.addCleanup(self._disconnect, protocol)
        return protocol

    async def join(self, factory: Any, text: str, kind: Callable[[], Any] = Recorder) -> tuple[Any, Any]:
        """Connect to a listener's factory, and return the client's and the server's protocol."""
        accepted = factory.next()
        client = await self.connect(text, kind)
        return client, await accepted

    async def ends(
        self,
        server: Callable[[], Any] = Recorder,
        client: Callable[[], Any] = Recorder,
        listen: str = "smc:127.0.0.1:0",
        connect: str = "smc:127.0.0.1:{}",
    ) -> tuple[Any, Any]:
        """Listen and connect, and return the client's and the server's protocol."""
        factory, port = await self.serve(listen, server)
        return await self.join(factory, connect.format(port), client)

    def attempt(self, text: str) -> Deferred[Any]:
        """Start to connect, and return the Deferred of the endpoint."""
        connecting: Deferred[Any] = clientFromString(reactor, text).connect(Recorders())
        return connecting

    async def _disconnect(self, protocol: Any) -> None:
        if protocol.transport is not None and not protocol.lost.called:
            protocol.transport.abortConnection()
            await protocol.lost
