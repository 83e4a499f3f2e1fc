"""The log event at the end of a connection, over each transport."""

from __future__ import annotations

from random import randrange
from typing import Any, ClassVar

from twisted.internet import reactor as theReactor
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.testing import EventLoggingObserver
from twisted.logger import globalLogPublisher
from twisted.trial.unittest import TestCase

from txrdma.btl.connections import connect as btlConnect
from txrdma.btl.connections import listen as btlListen
from txrdma.kit.connectionlog import ConnectionLog, connectionLog, NAMESPACE
from txrdma.smc.group.groups import closeLinkGroups
from txrdma.testing.protocols import MessageRecorder, Recorder, Recorders
from txrdma.testing.reactors import waitUntil

reactor: Any = theReactor

KEYS = {
    *("kind", "role", "route", "host", "peer", "bytesSent", "bytesReceived", "seconds"),
    *("fallbackReason", "ending", "reason", "suppressed"),
}
"""The keys of docs/observability.md."""


class EventTests(TestCase):
    """Two ends in this process: the client sends 3,000 bytes, the server 10, and the client closes."""

    timeout = 60
    there: ClassVar[str] = ".".join(["127", *(str(randrange(2, 250)) for _ in range(3))])

    def setUp(self) -> None:
        fresh = ConnectionLog(connectionLog._log)
        for name in ("_left", "_refilledAt", "suppressed"):  # other tests may have used up the burst
            self.patch(connectionLog, name, getattr(fresh, name))
        observer = self.observer = EventLoggingObserver()
        globalLogPublisher.addObserver(observer)
        self.addCleanup(globalLogPublisher.removeObserver, observer)
        self.addCleanup(closeLinkGroups, reactor)

    def events(self) -> dict[str, dict[str, Any]]:
        """Return the events of both ends by their role."""
        found = [each for each in self.observer if each.get("log_namespace") == NAMESPACE]
        self.assertEqual(len(found), 2, found)
        return {event["role"]: {key: event[key] for key in KEYS} for event in found}

    def check(self, kind: str, route: str, fallbacks: tuple[str, str] = ("", "")) -> None:
        """Check the events of both ends; C{fallbacks}: the reasons of the client and of the server."""
        found = self.events()
        client, server = found["client"], found["server"]
        for event, reason in zip((client, server), fallbacks, strict=True):
            expected = {"kind": kind, "route": route, "fallbackReason": reason, "ending": "done"}
            self.assertEqual({key: event[key] for key in expected}, expected)
            self.assertTrue(0 < event["seconds"] < 60, event)
            self.assertEqual((event["suppressed"], event["reason"]), (0, "Connection was closed cleanly."))
        self.assertEqual((client["bytesSent"], client["bytesReceived"]), (3000, 10))
        self.assertEqual((server["bytesSent"], server["bytesReceived"]), (10, 3000))
        self.assertEqual(client["peer"], server["host"])

    async def connected(self, server: str, client: str) -> tuple[Any, Any, Any]:
        """Return both ends of a new stream, and the listening port."""
        factory = Recorders(Recorder)
        port: Any = await serverFromString(reactor, server).listen(factory)
        coming = factory.next()
        one = await clientFromString(reactor, client.format(port=port.getHost().port)).connect(Recorders())
        return one, await coming, port

    async def stream(self, server: str, client: str) -> None:
        """Exchange bytes over a stream."""
        one, other, port = await self.connected(server, client)
        one.transport.write(bytes(3000))
        await other.receiving(3000)
        other.transport.write(bytes(10))
        await one.receiving(10)
        one.transport.loseConnection()
        await one.lost
        await other.lost
        await port.stopListening()

    async def test_bothEndsOfSharedMemoryLogEvent(self) -> None:
        await self.stream("smc:127.0.0.1:0", "smc:127.0.0.1:{port}")
        self.check("smc", "shared-memory")

    async def test_bothEndsOfSoftwareRoCELogEvent(self) -> None:
        device = r":device=soft\:route\=rocev2"
        await self.stream("smc:127.0.0.1:0" + device, "smc:127.0.0.1:{port}" + device)
        self.check("smc", "rocev2")

    async def test_bothEndsOnTCPLogEventWithReasons(self) -> None:
        await self.stream(r"smc:127.0.0.1:0:device=soft\:192.0.2.1", "smc:127.0.0.1:{port}")
        self.check("smc", "tcp", ("PEERDECL (NOSMCDEV)", "NOSMCDEV"))

    async def test_rsocketLogsStreamAndNotItsRDMAConnection(self) -> None:
        await self.stream(
            f"rsocket:0:interface={self.there}", f"rsocket:{self.there}:{{port}}:bindAddress={self.there}"
        )
        self.check("rsocket", "shared-memory")

    async def test_btlLogsStreamAndNotItsMessages(self) -> None:
        await self.stream("btl:127.0.0.1:0", "btl:127.0.0.1:{port}")
        self.check("btl", "rocev2")

    async def unread(self, server: str, client: str) -> None:
        """Check that bytes that arrive after the application has closed the connection are not counted."""
        one, other, port = await self.connected(server, client)
        other.transport.write(bytes(10))
        one.transport.write(bytes(3000))
        one.transport.loseConnection()
        await one.lost
        await other.lost
        await port.stopListening()
        found = self.events()
        self.assertEqual((len(one.received), len(other.received)), (0, 3000))
        self.assertEqual((found["client"]["bytesReceived"], found["server"]["bytesReceived"]), (0, 3000))

    async def test_smcCountsNoBytesAfterApplicationClosed(self) -> None:
        await self.unread("smc:127.0.0.1:0", "smc:127.0.0.1:{port}")

    async def test_rsocketCountsNoBytesAfterApplicationClosed(self) -> None:
        await self.unread(
            f"rsocket:0:interface={self.there}", f"rsocket:{self.there}:{{port}}:bindAddress={self.there}"
        )

    async def test_btlCountsNoBytesAfterApplicationClosed(self) -> None:
        await self.unread("btl:127.0.0.1:0", "btl:127.0.0.1:{port}")

    async def messages(self, factory: Any, one: Any) -> None:
        one.transport.sendMessage(bytes(2000))
        one.transport.sendMessage(bytes(1000), 7)
        await waitUntil(reactor, lambda: factory.protocols and len(factory.protocols[0].messages) == 2)
        (other,) = factory.protocols
        other.transport.sendMessage(bytes(10))
        await waitUntil(reactor, lambda: one.messages)
        one.transport.loseConnection()
        await waitUntil(reactor, lambda: one.lost and other.lost)

    async def test_bothEndsOfRDMAMessagesLogEvent(self) -> None:
        factory = Recorders(MessageRecorder)
        port: Any = await serverFromString(reactor, f"rdma:{self.there}:0").listen(factory)
        text = rf"rdma:{self.there}:{port.getHost().port}:device=soft\:{self.there}"
        one: Any = await clientFromString(reactor, text).connect(Recorders(MessageRecorder))
        await self.messages(factory, one)
        await port.stopListening()
        self.check("rdma", "shared-memory")

    async def test_bothEndsOfBTLMessagesLogEvent(self) -> None:
        factory = Recorders(MessageRecorder)
        port: Any = await btlListen(reactor, 0, factory, "127.0.0.1")
        one = await btlConnect(reactor, "127.0.0.1", port.getHost().port, Recorders(MessageRecorder))
        await self.messages(factory, one)
        await port.stopListening()
        self.check("btl", "rocev2")
