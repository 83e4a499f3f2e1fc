"""
Endpoints on the real reactor: who speaks SMC with whom, and what happens when one does not.
"""

from __future__ import annotations

import gc
import os
import socket
from typing import Any

from zope.interface.verify import verifyObject

from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.error import (
    ConnectError,
    ConnectingCancelledError,
    ConnectionDone,
    ConnectionRefusedError,
)
from twisted.internet.protocol import connectionDone, Factory, Protocol
from twisted.internet.task import deferLater
from twisted.internet.testing import EventLoggingObserver
from twisted.logger import globalLogPublisher, Logger
from twisted.python import log
from twisted.python.failure import Failure

from txrdma.error import Refused
from txrdma.interfaces import ISMCStatus, ISMCTransport
from txrdma.kit.logs import RateLimitedLogger
from txrdma.smc.handshake import outcomes
from txrdma.smc.handshake.outcomes import NotSMC
from txrdma.smc.signalling import localclient as announcing
from txrdma.smc.signalling.local import listenerName
from txrdma.smc.signalling.owners import TCPAddress
from txrdma.smc.stream import connectionstatus as status
from txrdma.smc.wire.clc import Diagnosis
from txrdma.test.support.smc.ends import EndsTestCase, reactor
from txrdma.testing.protocols import Echo, Greeter, Recorder, Recorders
from txrdma.unix import sockets as unixsockets
from txrdma.unix.sockets import Credentials

NOT_THERE = r"device=soft\:192.0.2.1"


class ModeTests(EndsTestCase):
    """Every pair of ends ends in the mode that it should."""

    async def check(
        self, server: str, client: str, mode: str, reasons: tuple[Any, Any], peers: Any = None
    ) -> None:
        """Connect, send something both ways, close; and look at what both sides say of it."""
        factory, port = await self.serve(server, Echo)
        accepted = factory.next()
        protocol = await self.connect(client.format(port=port))
        protocol.transport.write(b"over there " * 1000)
        self.assertEqual(await protocol.hearing(11000), b"over there " * 1000)
        other = await accepted
        for end, reason in ((protocol, reasons[0]), (other, reasons[1])):
            if end.smc is None:
                self.assertEqual(reason, "plain")
                continue
            verifyObject(ISMCTransport, end.transport)
            verifyObject(ISMCStatus, end.smc)
            self.assertEqual((end.smc.mode, end.smc.fallbackReason), (mode, reason))
            self.assertEqual(end.smc.device[:4], "soft" if mode == "SMC-R" else "")
            reported = end.smc.toDict()
            self.assertEqual(reported["mode"], mode)
            self.assertEqual(reported["fallbackReason"], None if reason is None else reason.name)
            self.assertIn(end.smc.mode, [each.mode for each in status.statuses()])
        if peers is not None:
            self.assertEqual((protocol.smc.peerDiagnosis, other.smc.peerDiagnosis), peers)
        self.assertEqual(other.received, b"over there " * 1000)
        protocol.transport.loseConnection()
        for end in (protocol, other):
            await end.lost
            end.reason.trap(ConnectionDone)

    async def test_both(self) -> None:
        """Two that speak SMC, on one host and of one user, speak it."""
        await self.check("smc:127.0.0.1:0", "smc:127.0.0.1:{port}", "SMC-R", (None, None))

    async def test_everyInterface(self) -> None:
        """A listener on every interface is found by any address."""
        await self.check("smc:0", "smc:127.0.0.1:{port}", "SMC-R", (None, None))
        await self.check("smc:0", "smc:127.0.0.5:{port}", "SMC-R", (None, None))
        await self.check(r"smc:0:interface=\:\:", r"smc:\:\:1:{port}", "SMC-R", (None, None))

    async def test_dualStack(self) -> None:
        """IPv4 clients find a listener that takes both."""
        await self.check(r"smc:0:interface=\:\:", "smc:127.0.0.1:{port}", "SMC-R", (None, None))

    async def test_name(self) -> None:
        """Names are looked up; who listens at this host's IPv4 address is found at once, as with TCP."""
        begun = reactor.seconds()
        await self.check("smc:127.0.0.1:0", "smc:localhost:{port}", "SMC-R", (None, None))
        self.assertLess(reactor.seconds() - begun, 0.29)

    async def test_bindAddress(self) -> None:
        """A connection comes from the address that is said, and can be announced from there."""
        for kind, mode in (("smc", "SMC-R"), ("tcp", "TCP")):
            factory, port = await self.serve(f"{kind}:0:interface=127.0.0.1")
            accepted = factory.next()
            one = await self.connect(f"smc:127.0.0.1:{port}:bindAddress=127.0.0.7")
            self.assertEqual((one.smc.mode, one.transport.getHost().host), (mode, "127.0.0.7"))
            self.assertEqual((await accepted).transport.getPeer().host, "127.0.0.7")

    async def test_agreed(self) -> None:
        """Two that were told so speak SMC without asking."""
        await self.check("smc:127.0.0.1:0:peer=smc", "smc:127.0.0.1:{port}:peer=smc", "SMC-R", (None, None))

    async def test_agreedServer(self) -> None:
        """A client that asks is welcome at a server that was told."""
        await self.check("smc:127.0.0.1:0:peer=smc", "smc:127.0.0.1:{port}", "SMC-R", (None, None))

    async def test_sessionNumber(self) -> None:
        """A server's transports have numbers as Twisted's have, which some programs read (Cowrie)."""
        for kind in "tcp", "smc":
            factory, port = await self.serve(f"{kind}:0:interface=127.0.0.1")
            for _ in range(2):
                coming = factory.next()
                client = await self.connect(f"{kind}:127.0.0.1:{port}")
                await coming
                self.assertFalse(hasattr(client.transport, "sessionno"))
            self.assertEqual([one.transport.sessionno for one in factory.protocols], [0, 1])
        self.assertEqual(factory.protocols[1].transport.smc.mode, "SMC-R")

    async def test_explicitDevice(self) -> None:
        """A device by name serves as well."""
        await self.check(
            "smc:127.0.0.1:0:device=soft", "smc:127.0.0.1:{port}:device=soft", "SMC-R", (None, None)
        )

    async def test_rocev2(self) -> None:
        """The software device carries it by UDP, where that is asked for."""
        server = r"smc:127.0.0.1:0:device=soft\:route\=rocev2"
        client = r"smc:127.0.0.1:{port}:device=soft\:route\=rocev2"
        await self.check(server, client, "SMC-R", (None, None))

    async def test_otherDevices(self) -> None:
        """The ends may have different devices, as long as one reaches the other."""
        await self.check("smc:127.0.0.1:0:device=soft", "smc:127.0.0.1:{port}", "SMC-R", (None, None))
        await self.check(
            r"smc:127.0.0.1:0:device=soft\:127.0.0.3", "smc:127.0.0.1:{port}", "SMC-R", (None, None)
        )

    async def test_unreachableDevice(self) -> None:
        """Devices that can't reach each other: the client finds out, and both go on by TCP."""
        await self.check(
            r"smc:127.0.0.1:0:device=soft\:route\=rocev2",
            "smc:127.0.0.1:{port}",
            "TCP",
            (Diagnosis.ERR_RDYLNK, Diagnosis.PEERDECL),
            (None, Diagnosis.ERR_RDYLNK),
        )

    async def test_plainServer(self) -> None:
        """A server that knows nothing of SMC gets the application's bytes, and no other."""
        await self.check(
            "tcp:0:interface=127.0.0.1", "smc:127.0.0.1:{port}", "TCP", (Diagnosis.PEERNOSMC, "plain")
        )

    async def test_plainClient(self) -> None:
        """A client that knows nothing of SMC is served."""
        await self.check("smc:127.0.0.1:0", "tcp:127.0.0.1:{port}", "TCP", ("plain", Diagnosis.PEERNOSMC))

    async def test_plainClientOfAgreedServer(self) -> None:
        """A server that was told otherwise serves a plain client, too: its first bytes are no Proposal."""
        await self.check(
            "smc:127.0.0.1:0:peer=smc", "tcp:127.0.0.1:{port}", "TCP", ("plain", Diagnosis.PEERNOSMC)
        )

    async def test_serverDeclines(self) -> None:
        """Without a device the server declines, and both go on by TCP."""
        await self.check(
            "smc:127.0.0.1:0:" + NOT_THERE,
            "smc:127.0.0.1:{port}",
            "TCP",
            (Diagnosis.PEERDECL, Diagnosis.NOSMCDEV),
            (Diagnosis.NOSMCDEV, None),
        )

    async def test_clientDeclines(self) -> None:
        """Without a device the client declines, and both go on by TCP."""
        await self.check(
            "smc:127.0.0.1:0",
            "smc:127.0.0.1:{port}:" + NOT_THERE,
            "TCP",
            (Diagnosis.NOSMCDEV, Diagnosis.PEERDECL),
            (None, Diagnosis.NOSMCDEV),
        )

    async def test_anotherUser(self) -> None:
        """Memory is not shared with another user: plain TCP."""
        for module in (announcing, unixsockets):
            self.patch(module, "peerOf", lambda connection: Credentials(1, 65533))
        self.patch(announcing, "acceptingUsers", lambda target: {65533})
        await self.check(
            "smc:127.0.0.1:0",
            "smc:127.0.0.1:{port}",
            "TCP",
            (Diagnosis.PEERNOSMC, Diagnosis.PEERNOSMC),
        )


class FirstWordTests(EndsTestCase):
    """Servers that speak first are not held up, and nobody hears a byte that is not meant for him."""

    async def test_smc(self) -> None:
        """By SMC the greeting comes as by TCP."""
        factory, port = await self.serve(kind=Greeter)
        protocol = await self.connect(f"smc:127.0.0.1:{port}")
        self.assertEqual(await protocol.hearing(11), Greeter.greeting)
        self.assertEqual(protocol.smc.mode, "SMC-R")

    async def test_plainServer(self) -> None:
        """A plain server's greeting is the application's."""
        factory, port = await self.serve("tcp:0:interface=127.0.0.1", Greeter)
        protocol = await self.connect(f"smc:127.0.0.1:{port}")
        self.assertEqual(await protocol.hearing(11), Greeter.greeting)
        self.assertEqual(factory.protocols[0].received, b"")

    async def test_plainClient(self) -> None:
        """A plain client is greeted at once: nobody waits for a Proposal."""
        factory, port = await self.serve(kind=Greeter)
        begun = reactor.seconds()
        protocol = await self.connect(f"tcp:127.0.0.1:{port}")
        self.assertEqual(await protocol.hearing(11), Greeter.greeting)
        self.assertLess(reactor.seconds() - begun, 1.0)

    async def test_greetingBeforeTheDecline(self) -> None:
        """What a server says right behind its Decline is the application's, to the byte."""
        factory, port = await self.serve("smc:127.0.0.1:0:" + NOT_THERE, Greeter)
        protocol = await self.connect(f"smc:127.0.0.1:{port}")
        self.assertEqual(await protocol.hearing(11), Greeter.greeting)
        self.assertEqual(protocol.received, Greeter.greeting)
        self.assertEqual(protocol.smc.mode, "TCP")


class FallbackForbiddenTests(EndsTestCase):
    """C{fallback=no}."""

    async def test_client(self) -> None:
        """Connecting fails, and the reason is told; the server's protocol hears the end."""
        factory, port = await self.serve("tcp:0:interface=127.0.0.1")
        accepted = factory.next()
        error = await self.assertFailure(self.attempt(f"smc:127.0.0.1:{port}:fallback=no"), NotSMC)
        self.assertIsInstance(error, ConnectError)
        self.assertIsInstance(error, Refused)
        self.assertEqual((error.reason, error.peerDiagnosis), (Diagnosis.PEERNOSMC, None))
        self.assertIn("PEERNOSMC", str(error))
        other = await accepted
        await other.lost
        self.assertEqual(other.received, b"")

    async def test_declined(self) -> None:
        """The peer's diagnosis is told, too."""
        factory, port = await self.serve("smc:127.0.0.1:0:" + NOT_THERE)
        error = await self.assertFailure(self.attempt(f"smc:127.0.0.1:{port}:fallback=no"), NotSMC)
        self.assertEqual((error.reason, error.peerDiagnosis), (Diagnosis.PEERDECL, Diagnosis.NOSMCDEV))
        self.assertIn("NOSMCDEV", str(error))

    def attempt(self, text: str) -> Deferred[Any]:
        connecting: Deferred[Any] = clientFromString(reactor, text).connect(Recorders())
        return connecting

    async def test_server(self) -> None:
        """The listener drops who can't, without a protocol, and says why in the log."""
        self.patch(outcomes, "_rateLimited", RateLimitedLogger(Logger()))  # others may have told of this port
        events = EventLoggingObserver.createWithCleanup(self, globalLogPublisher)
        factory, port = await self.serve("smc:127.0.0.1:0:fallback=no")
        protocol = await self.connect(f"tcp:127.0.0.1:{port}")
        await protocol.lost
        self.assertEqual(factory.protocols, [])
        self.assertIn("PEERNOSMC", [str(event.get("reason")) for event in events])

    async def test_smc(self) -> None:
        """Where SMC can be had it changes nothing."""
        factory, port = await self.serve("smc:127.0.0.1:0:fallback=no")
        protocol = await self.connect(f"smc:127.0.0.1:{port}:fallback=no")
        self.assertEqual(protocol.smc.mode, "SMC-R")


class TroubleTests(EndsTestCase):
    """Ends that do not do what they should."""

    async def plainListener(self, protocol: Protocol) -> int:
        port = await serverFromString(reactor, "tcp:0:interface=127.0.0.1").listen(
            Factory.forProtocol(lambda: protocol)
        )
        self.addCleanup(port.stopListening)
        return int(port.getHost().port)

    def attempt(self, text: str) -> Deferred[Any]:
        connecting: Deferred[Any] = clientFromString(reactor, text).connect(Recorders())
        return connecting

    async def inReactor(self) -> tuple[int, int]:
        """How many delayed calls and readers there are, without the reactor's own, when all is quiet."""
        await deferLater(reactor, 0.05)
        readers = set(reactor.getReaders()) - reactor._internalReaders
        return len(reactor.getDelayedCalls()), len(readers)

    async def test_refused(self) -> None:
        """Where nobody listens, connecting fails as it does with TCP."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
            connecting = clientFromString(reactor, f"smc:127.0.0.1:{port}").connect(Recorders())
            await self.assertFailure(connecting, ConnectionRefusedError)

    async def test_squatter(self) -> None:
        """A process that answers in the listener's place, but does not accept, can't do harm: plain TCP."""
        silent = Recorder()
        port = await self.plainListener(silent)
        squatter = await reactor_listenUNIX(listenerName(TCPAddress("127.0.0.1", port)))
        self.addCleanup(squatter.stopListening)
        self.patch(announcing, "ANSWER_SECONDS", 0.1)
        protocol = await self.connect(f"smc:127.0.0.1:{port}")
        self.assertEqual((protocol.smc.mode, protocol.smc.fallbackReason), ("TCP", Diagnosis.PEERNOSMC))
        protocol.transport.write(b"mine")
        while silent.received != b"mine":
            await deferLater(reactor, 0.01)

    async def test_forgedProposal(self) -> None:
        """A proposal that nobody announced is the application's business."""
        forged = bytes.fromhex("e2d4c3d901003410") + bytes(44)
        factory, port = await self.serve()
        accepted = factory.next()
        protocol = await self.connect(f"tcp:127.0.0.1:{port}")
        protocol.transport.write(forged)
        other = await accepted
        self.assertEqual(await other.hearing(len(forged)), forged)

    async def test_forgedProposalAgreed(self) -> None:
        """To a server that was told of SMC, what begins as CLC and is none is the application's, whole."""
        forged = bytes.fromhex("e2d4c3d901003410") + bytes(44) + b"and more"
        factory, port = await self.serve("smc:127.0.0.1:0:peer=smc")
        accepted = factory.next()
        protocol = await self.connect(f"tcp:127.0.0.1:{port}")
        protocol.transport.write(forged)
        other = await accepted
        self.assertEqual(await other.hearing(len(forged)), forged)

    async def test_slowProposal(self) -> None:
        """A handshake that does not get on ends; the listener serves others meanwhile."""
        factory, port = await self.serve("smc:127.0.0.1:0:peer=smc:timeout=1")
        slow = await self.connect(f"tcp:127.0.0.1:{port}")
        slow.transport.write(bytes.fromhex("e2d4c3d901003410"))
        quick = await self.connect(f"smc:127.0.0.1:{port}:peer=smc")
        self.assertEqual(quick.smc.mode, "SMC-R")
        while len(factory.protocols) < 2:
            await deferLater(reactor, 0.01)
        self.assertEqual(factory.protocols[1].smc.mode, "TCP")
        self.assertEqual(factory.protocols[1].received, bytes.fromhex("e2d4c3d901003410"))

    async def test_silentServer(self) -> None:
        """A server that accepts and never answers costs the handshake's time, no more."""
        silent = Recorder()
        port = await self.plainListener(silent)
        connecting = clientFromString(reactor, f"smc:127.0.0.1:{port}:peer=smc:timeout=0.2").connect(
            Recorders()
        )
        try:
            protocol = await connecting
        except Exception as error:
            self.assertIsInstance(error, (ConnectError, Refused))
        else:
            self.assertEqual(protocol.smc.mode, "TCP")
            protocol.transport.abortConnection()
            await protocol.lost

    async def test_cancelAtOnce(self) -> None:
        """Connecting can be cancelled before it begins in earnest, to a name or to an address."""
        factory, port = await self.serve()
        for host in ("127.0.0.1", "localhost", r"\:\:1"):
            connecting = clientFromString(reactor, f"smc:{host}:{port}").connect(Recorders())
            connecting.cancel()
            await self.assertFailure(connecting, ConnectingCancelledError)
        self.assertEqual(factory.protocols, [])

    async def test_cancelWhileAnnouncing(self) -> None:
        """Connecting can be cancelled while the listener is asked; that leaves nothing in the reactor."""
        silent = Recorder()
        port = await self.plainListener(silent)
        asked: list[Protocol] = []

        class Mute(Protocol):
            def connectionMade(self) -> None:
                asked.append(self)

        mute = reactor.listenUNIX(listenerName(TCPAddress("127.0.0.1", port)), Factory.forProtocol(Mute))
        self.addCleanup(mute.stopListening)
        before = await self.inReactor()
        connecting = clientFromString(reactor, f"smc:127.0.0.1:{port}").connect(Recorders())
        while not asked:
            await deferLater(reactor, 0.01)
        connecting.cancel()
        await self.assertFailure(connecting, ConnectingCancelledError)
        self.assertEqual(await self.inReactor(), before)
        self.assertIsNone(silent.transport)

    async def test_cancelWhileWaiting(self) -> None:
        """Connecting can be cancelled while the listener should say that it has accepted."""
        silent = Recorder()
        port = await self.plainListener(silent)
        squatter = await reactor_listenUNIX(listenerName(TCPAddress("127.0.0.1", port)))
        self.addCleanup(squatter.stopListening)
        before = await self.inReactor()
        connecting = clientFromString(reactor, f"smc:127.0.0.1:{port}").connect(Recorders())
        while silent.transport is None:
            await deferLater(reactor, 0.01)
        connecting.cancel()
        await self.assertFailure(connecting, ConnectingCancelledError)
        self.assertEqual(await self.inReactor(), before)

    async def test_cancelInHandshake(self) -> None:
        """Connecting can be cancelled while the server thinks."""
        silent = Recorder()
        port = await self.plainListener(silent)
        connecting = clientFromString(reactor, f"smc:127.0.0.1:{port}:peer=smc").connect(Recorders())
        while not silent.received:
            await deferLater(reactor, 0.01)
        connecting.cancel()
        await self.assertFailure(connecting, ConnectingCancelledError)

    async def test_nobodyInTheFactory(self) -> None:
        """A factory that gives no protocol costs its own connection, not the listener."""
        factory, port = await self.serve()
        real = factory.buildProtocol
        factory.buildProtocol = lambda address: None
        first = await self.connect(f"smc:127.0.0.1:{port}")
        await first.lost
        factory.buildProtocol = real
        second = await self.connect(f"smc:127.0.0.1:{port}")
        self.assertEqual(second.smc.mode, "SMC-R")

    async def test_descriptors(self) -> None:
        """Connections that have ended leave no descriptors."""
        factory, port = await self.serve(kind=Echo)

        async def once() -> None:
            protocol = await self.connect(f"smc:127.0.0.1:{port}")
            protocol.transport.write(b"x")
            await protocol.hearing(1)
            protocol.transport.loseConnection()
            await protocol.lost
            await factory.protocols[-1].lost

        def opened() -> int:
            gc.collect()  # files that other tests have left to it
            return len(os.listdir("/proc/self/fd"))

        await once()
        before = opened()
        for _ in range(5):
            await once()
        while (now := opened()) > before:  # the reactor still has to close them; the test's timeout ends this
            await deferLater(reactor, 0.01)
        self.assertLessEqual(now, before)  # not counted again: other threads open files for short times

    async def test_nothingLeft(self) -> None:
        """When a connection has begun nothing of that is left in the reactor, but for two TCP sockets."""
        for server, client in (
            ("smc:127.0.0.1:0", "smc:127.0.0.1:{port}"),
            ("smc:127.0.0.1:0:peer=smc", "smc:127.0.0.1:{port}:peer=smc"),
            ("smc:127.0.0.1:0:timeout=100", "smc:127.0.0.1:{port}:timeout=100"),
            ("smc:127.0.0.1:0:" + NOT_THERE, "smc:127.0.0.1:{port}"),
            ("smc:127.0.0.1:0", "tcp:127.0.0.1:{port}"),
            ("tcp:0:interface=127.0.0.1", "smc:127.0.0.1:{port}"),
        ):
            factory, port = await self.serve(server)
            await self.connect(client.format(port=port))  # and with it the device, and a link
            before = await self.inReactor()
            accepted = factory.next()
            await self.connect(client.format(port=port))
            await accepted
            after = await self.inReactor()
            self.assertEqual((after[0] - before[0], after[1] - before[1]), (0, 2), client)

    async def test_nothingLeftOfFailures(self) -> None:
        """A connection that can't be had leaves nothing at all."""
        factory, port = await self.serve("tcp:0:interface=127.0.0.1")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            refused = probe.getsockname()[1]
            await self.assertFailure(self.attempt(f"smc:127.0.0.1:{refused}"), ConnectionRefusedError)
            before = await self.inReactor()
            await self.assertFailure(self.attempt(f"smc:127.0.0.1:{refused}"), ConnectionRefusedError)
            await self.assertFailure(self.attempt(f"smc:127.0.0.1:{port}:fallback=no"), NotSMC)
            self.assertEqual(await self.inReactor(), before)

    async def test_listensAgain(self) -> None:
        """A port that has stopped can listen again, and serves by SMC-R again, also at another number."""
        factory = Recorders(Echo)
        port: Any = await serverFromString(reactor, "smc:0:interface=127.0.0.1").listen(factory)
        self.addCleanup(port.stopListening)
        for _ in range(2):
            number = port.getHost().port
            protocol = await self.connect(f"smc:127.0.0.1:{number}")
            self.assertEqual(protocol.smc.mode, "SMC-R")
            await port.stopListening()
            connecting = clientFromString(reactor, f"smc:127.0.0.1:{number}").connect(Recorders())
            await self.assertFailure(connecting, ConnectionRefusedError)
            port.startListening()

    async def test_logPrefix(self) -> None:
        """What a protocol logs, at any time, stands behind its own name, as with TCP."""
        output: list[str] = []

        class Talkative(Recorder):
            def connectionMade(self) -> None:
                log.msg("here I am")
                super().connectionMade()

            def dataReceived(self, data: bytes) -> None:
                log.msg("here I am")
                super().dataReceived(data)

            def connectionLost(self, reason: Failure = connectionDone) -> None:
                log.msg("here I am")
                super().connectionLost(reason)

        def observe(event: Any) -> None:
            if event["message"] == ("here I am",):
                output.append(event["system"])

        log.addObserver(observe)
        self.addCleanup(log.removeObserver, observe)
        for server, client in (
            ("tcp:0:interface=127.0.0.1", "tcp:127.0.0.1:{}"),
            ("smc:127.0.0.1:0", "smc:127.0.0.1:{}"),
            ("smc:127.0.0.1:0:" + NOT_THERE, "smc:127.0.0.1:{}"),
            ("smc:127.0.0.1:0", "tcp:127.0.0.1:{}"),
            ("smc:127.0.0.1:0:peer=smc", "tcp:127.0.0.1:{}"),
            ("tcp:0:interface=127.0.0.1", "smc:127.0.0.1:{}"),
        ):
            factory, port = await self.serve(server, Talkative)
            accepted = factory.next()
            protocol = await self.connect(client.format(port), Talkative)
            if "peer=smc" in server:
                protocol.transport.write(b"hello")  # which the server waits for
            other = await accepted
            protocol.transport.write(b"hello")
            await other.hearing(5)
            other.transport.write(b"hello")
            await protocol.hearing(5)
            protocol.transport.loseConnection()
            await gatherResults([protocol.lost, other.lost])
            made, rest = output[:2], output[2:]
            if server.startswith("smc") and client.startswith("smc"):  # TCP's have no name yet
                self.assertEqual(sorted(made), ["Talkative,0,127.0.0.1", "Talkative,client"])
            expected = ["Talkative,0,127.0.0.1", "Talkative,client"]
            self.assertEqual(sorted(set(rest)), expected, (server, client))
            output.clear()

    async def test_factoriesStartAndStop(self) -> None:
        """Factories are told when they are in use, as with TCP."""
        factory, port = await self.serve(kind=Echo)
        client = Recorders(Recorder)
        protocol: Any = await clientFromString(reactor, f"smc:127.0.0.1:{port}").connect(client)
        self.assertEqual((client.starts, client.stops, factory.starts), (1, 0, 1))
        protocol.transport.loseConnection()
        await protocol.lost
        await deferLater(reactor, 0.1)
        self.assertEqual(client.stops, 1)


async def reactor_listenUNIX(name: str) -> Any:
    """Somebody who answers as our listener does, but accepts nothing."""

    class Liar(Protocol):
        def dataReceived(self, data: bytes) -> None:
            assert self.transport is not None
            self.transport.write(b"expected 1 %d\n" % os.geteuid())

    return reactor.listenUNIX(name, Factory.forProtocol(Liar))
