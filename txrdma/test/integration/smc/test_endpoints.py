"""
Endpoints on the real reactor: which connections use SMC-R, fallback to TCP, and peers that misbehave.
"""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Callable
from typing import Any

from zope.interface.verify import verifyObject

from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.endpoints import clientFromString, HostnameEndpoint
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
from txrdma.smc.handshake import _machine, outcomes
from txrdma.smc.handshake.outcomes import NotSMC
from txrdma.smc.handshake.proposing import ClientNegotiation
from txrdma.smc.signalling import localclient as announcing
from txrdma.smc.signalling.local import Announced, listenerName
from txrdma.smc.signalling.owners import TCPAddress
from txrdma.smc.signalling.silence import silentPeers
from txrdma.smc.stream import connectionstatus as status
from txrdma.smc.wire.clc import Diagnosis
from txrdma.test.support.smc.ends import EndsTestCase, reactor
from txrdma.test.support.streaming import Unnamed
from txrdma.testing.protocols import Echo, Greeter, Recorder, Recorders
from txrdma.testing.reactors import unqueuedSeconds, waitUntil
from txrdma.unix import sockets as unixsockets
from txrdma.unix.sockets import Credentials

NOT_THERE = r"device=soft\:192.0.2.1"


class ModeTests(EndsTestCase):
    """For each kind of server and client, the connection has the expected mode and diagnoses."""

    async def check(
        self, server: str, client: str, mode: str, reasons: tuple[Any, Any], peers: Any = None
    ) -> None:
        """Connect, transfer data in both directions, check what both transports report, and close."""
        factory, port = await self.serve(server, Echo)
        accepted = factory.next()
        protocol = await self.connect(client.format(port))
        protocol.transport.write(b"over there " * 1000)
        self.assertEqual(await protocol.receiving(11000), b"over there " * 1000)
        other = await accepted  # a server with C{peer=smc} builds its protocol when it has received bytes
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
            self.assertEqual((end.smc.bytesSent, end.smc.bytesReceived), (11000, 11000))
            self.assertIn(end.smc.mode, [each.mode for each in status.statuses()])
        if peers is not None:
            self.assertEqual((protocol.smc.peerDiagnosis, other.smc.peerDiagnosis), peers)
        self.assertEqual(other.received, b"over there " * 1000)
        protocol.transport.loseConnection()
        for end in (protocol, other):
            await end.lost
            end.reason.trap(ConnectionDone)

    async def test_modesAndReasonsOfEachKindOfServerAndClient(self) -> None:
        smc, soft, routed = "smc:127.0.0.1:{}", ":device=soft", r":device=soft\:route\=rocev2"
        agreed = ":peer=smc"
        for server, client in (
            ("smc:127.0.0.1:0", smc),
            ("smc:0", smc),  # a listener on all interfaces is found at each address of the host
            ("smc:0", "smc:127.0.0.5:{}"),
            (r"smc:0:interface=\:\:", r"smc:\:\:1:{}"),
            (r"smc:0:interface=\:\:", smc),  # it accepts IPv4 as well
            ("smc:127.0.0.1:0" + agreed, smc + agreed),  # without signalling
            ("smc:127.0.0.1:0" + agreed, smc),
            ("smc:127.0.0.1:0" + soft, smc + soft),
            ("smc:127.0.0.1:0" + routed, smc + routed),
            ("smc:127.0.0.1:0" + soft, smc),
            (r"smc:127.0.0.1:0:device=soft\:127.0.0.3", smc),
        ):
            await self.check(server, client, "SMC-R", (None, None))
        noSMC, declined, noDevice = Diagnosis.PEERNOSMC, Diagnosis.PEERDECL, Diagnosis.NOSMCDEV
        unreachable = Diagnosis.ERR_RDYLNK
        for server, client, reasons, peers in (
            ("smc:127.0.0.1:0" + routed, smc, (unreachable, declined), (None, unreachable)),
            ("tcp:0:interface=127.0.0.1", smc, (noSMC, "plain"), None),
            ("smc:127.0.0.1:0", "tcp:127.0.0.1:{}", ("plain", noSMC), None),
            ("smc:127.0.0.1:0" + agreed, "tcp:127.0.0.1:{}", ("plain", noSMC), None),
            ("smc:127.0.0.1:0:" + NOT_THERE, smc, (declined, noDevice), (noDevice, None)),
            ("smc:127.0.0.1:0", smc + ":" + NOT_THERE, (noDevice, declined), (None, noDevice)),
        ):
            await self.check(server, client, "TCP", reasons, peers)

    async def test_name(self) -> None:
        """
        A host name is resolved; a listener at the host's IPv4 address is found without delay, as with TCP.
        """
        self.patch(HostnameEndpoint, "_DEFAULT_ATTEMPT_DELAY", 1000.0)
        await self.check("smc:127.0.0.1:0", "smc:localhost:{}", "SMC-R", (None, None))

    async def test_connectionIsAnnouncedFromBindAddress(self) -> None:
        for kind, mode in (("smc", "SMC-R"), ("tcp", "TCP")):
            listen, connect = f"{kind}:0:interface=127.0.0.1", "smc:127.0.0.1:{}:bindAddress=127.0.0.7"
            one, other = await self.ends(listen=listen, connect=connect)
            self.assertEqual((one.smc.mode, one.transport.getHost().host), (mode, "127.0.0.7"))
            self.assertEqual(other.transport.getPeer().host, "127.0.0.7")

    async def test_sessionNumber(self) -> None:
        """A server's transports have C{sessionno}, as in Twisted; some programs (Cowrie) read it."""
        for kind in "tcp", "smc":
            factory, port = await self.serve(f"{kind}:0:interface=127.0.0.1")
            for _ in range(2):
                coming = factory.next()
                client = await self.connect(f"{kind}:127.0.0.1:{port}")
                await coming
                self.assertFalse(hasattr(client.transport, "sessionno"))
            self.assertEqual([one.transport.sessionno for one in factory.protocols], [0, 1])
        self.assertEqual(factory.protocols[1].transport.smc.mode, "SMC-R")

    async def test_connectionsOfAnotherUserUsePlainTCP(self) -> None:
        for module in (announcing, unixsockets):
            self.patch(module, "peerOf", lambda connection: Credentials(1, 65533))
        await self.check(
            "smc:127.0.0.1:0",
            "smc:127.0.0.1:{}",
            "TCP",
            (Diagnosis.PEERNOSMC, Diagnosis.PEERNOSMC),
        )


class FirstWordTests(EndsTestCase):
    """Servers that send first are not delayed, and each end receives only the application's bytes."""

    async def test_plainClientGetsGreetingWithoutDelay(self) -> None:
        factory, port = await self.serve(kind=Greeter)
        begun = unqueuedSeconds()
        protocol = await self.connect(f"tcp:127.0.0.1:{port}")
        self.assertEqual(await protocol.receiving(11), Greeter.greeting)
        self.assertLess(unqueuedSeconds() - begun, 1.0)

    async def test_bytesDirectlyAfterDeclineAreDelivered(self) -> None:
        factory, port = await self.serve("smc:127.0.0.1:0:" + NOT_THERE, Greeter)
        protocol = await self.connect(f"smc:127.0.0.1:{port}")
        self.assertEqual(await protocol.receiving(11), Greeter.greeting)
        self.assertEqual(protocol.received, Greeter.greeting)
        self.assertEqual(protocol.smc.mode, "TCP")
        self.assertEqual((factory.protocols[0].smc.bytesSent, protocol.smc.bytesReceived), (11, 11))

    async def test_declineAfterUnreadWithdrawalIsNoData(self) -> None:
        """A listener is stopped before it reads that a client which it kept waiting uses plain TCP."""
        for name in ("CLC_TIMEOUT", "LATE_DECLINE_TIMEOUT"):
            self.patch(_machine, name, 0.05)
        _, number, port = await self.listening(Greeter)
        genuine = Announced.expect

        def expect(announced: Announced, withdrawn: Callable[[], None]) -> None:
            (channel,) = (
                each for key, each in announcing._channelsOn(reactor).items() if key[1].port == number
            )
            for announcement in list(channel._open.values()):
                announcement.close()
            genuine(announced, withdrawn)
            port.stopListening()

        self.patch(Announced, "expect", expect)
        protocol = await self.connect(f"smc:127.0.0.1:{number}")
        await protocol.receiving(11)
        self.assertEqual(protocol.received, Greeter.greeting)


class FallbackForbiddenTests(EndsTestCase):
    async def test_clientFailsWithReasonAndServersProtocolIsDisconnected(self) -> None:
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

    async def test_bytesAndEndPolledWithFailureAreIgnored(self) -> None:
        _, port = await self.serve("tcp:0:interface=127.0.0.1")
        raised: list[Exception] = []

        def failed(negotiation: ClientNegotiation, reason: Failure) -> None:
            try:
                negotiation.dataReceived(b"late")
                negotiation.readConnectionLost()
            except Exception as error:
                raised.append(error)
            real(negotiation, reason)

        real = ClientNegotiation._failed
        self.patch(ClientNegotiation, "_failed", failed)
        await self.assertFailure(self.attempt(f"smc:127.0.0.1:{port}:fallback=no"), NotSMC)
        self.assertEqual(raised, [])

    async def test_clientsErrorAfterDeclineHasPeersDiagnosis(self) -> None:
        factory, port = await self.serve("smc:127.0.0.1:0:" + NOT_THERE)
        error = await self.assertFailure(self.attempt(f"smc:127.0.0.1:{port}:fallback=no"), NotSMC)
        self.assertEqual((error.reason, error.peerDiagnosis), (Diagnosis.PEERDECL, Diagnosis.NOSMCDEV))
        self.assertIn("NOSMCDEV", str(error))

    async def test_plainConnectionIsClosedWithoutProtocolAndReasonIsLogged(self) -> None:
        self.patch(outcomes, "_rateLimited", RateLimitedLogger(Logger()))  # other tests may log this port
        events = EventLoggingObserver.createWithCleanup(self, globalLogPublisher)
        factory, port = await self.serve("smc:127.0.0.1:0:fallback=no")
        protocol = await self.connect(f"tcp:127.0.0.1:{port}")
        await protocol.lost
        self.assertEqual(factory.protocols, [])
        self.assertIn("PEERNOSMC", [str(event.get("reason")) for event in events])


class TroubleTests(EndsTestCase):
    """Peers that misbehave, failures, cancellation, and resources that must be released."""

    async def plainListener(self, protocol: Protocol) -> int:
        _, number = await self.serve("tcp:0:interface=127.0.0.1", lambda: protocol)
        return number

    async def inReactor(self) -> tuple[int, int]:
        """Return the numbers of delayed calls and of readers that are not internal, after 50 ms."""
        await deferLater(reactor, 0.05)
        readers = set(reactor.getReaders()) - reactor._internalReaders
        return len(reactor.getDelayedCalls()), len(readers)

    async def test_squatterCanOnlyCausePlainTCP(self) -> None:
        silent = Recorder()
        port = await self.plainListener(silent)
        squatter = await reactor_listenUNIX(listenerName(TCPAddress("127.0.0.1", port)))
        self.addCleanup(squatter.stopListening)
        self.patch(announcing, "ANSWER_SECONDS", 0.1)
        protocol = await self.connect(f"smc:127.0.0.1:{port}")
        self.assertEqual((protocol.smc.mode, protocol.smc.fallbackReason), ("TCP", Diagnosis.PEERNOSMC))
        protocol.transport.write(b"mine")
        await waitUntil(reactor, lambda: silent.received == b"mine")

    async def test_bytesThatBeginLikeProposalAreData(self) -> None:
        forged = bytes.fromhex("e2d4c3d901003410") + bytes(44) + b"and more"
        for listen in ("smc:127.0.0.1:0", "smc:127.0.0.1:0:peer=smc"):
            factory, port = await self.serve(listen)
            accepted = factory.next()
            protocol = await self.connect(f"tcp:127.0.0.1:{port}")
            protocol.transport.write(forged)
            self.assertEqual(await (await accepted).receiving(len(forged)), forged, listen)

    async def test_incompleteHandshakeDelaysNoOtherClient(self) -> None:
        factory, port = await self.serve("smc:127.0.0.1:0:peer=smc:timeout=300")
        slow = await self.connect(f"tcp:127.0.0.1:{port}")
        slow.transport.write(bytes.fromhex("e2d4c3d901003410"))
        quick = await self.connect(f"smc:127.0.0.1:{port}:peer=smc")
        self.assertEqual(quick.smc.mode, "SMC-R")
        await waitUntil(reactor, lambda: factory.protocols)
        self.assertEqual([each.smc.mode for each in factory.protocols], ["SMC-R"])

    async def test_incompleteHandshakeFallsBack(self) -> None:
        factory, port = await self.serve("smc:127.0.0.1:0:peer=smc:timeout=0.05")
        slow = await self.connect(f"tcp:127.0.0.1:{port}")
        slow.transport.write(bytes.fromhex("e2d4c3d901003410"))
        await waitUntil(reactor, lambda: factory.protocols and factory.protocols[0].received)
        self.assertEqual(factory.protocols[0].smc.mode, "TCP")
        self.assertEqual(factory.protocols[0].received, bytes.fromhex("e2d4c3d901003410"))

    async def test_unansweredHandshakeFailsOrFallsBack(self) -> None:
        self.patch(_machine, "LATE_DECLINE_TIMEOUT", 0.05)
        port = await self.plainListener(Recorder())
        connecting = self.attempt(f"smc:127.0.0.1:{port}:peer=smc:timeout=0.2")
        try:
            protocol = await connecting
        except Exception as error:
            self.assertIsInstance(error, (ConnectError, Refused))
        else:
            self.assertEqual(protocol.smc.mode, "TCP")
            protocol.transport.abortConnection()
            await protocol.lost

    async def test_exceptionInConnectionMadeEndsOneConnectionOnly(self) -> None:
        """
        A client whose C{connectionMade} raises on plain TCP is disconnected, as with TCP, and others that
        wait for the same listener connect; also if its C{connectionLost} raises.
        """

        class Broken(Recorder):
            def connectionMade(self) -> None:
                super().connectionMade()
                raise ZeroDivisionError

            def connectionLost(self, reason: Failure = connectionDone) -> None:
                super().connectionLost(reason)
                raise ZeroDivisionError

        _, port = await self.serve("tcp:0:interface=127.0.0.1")
        squatter = await reactor_listenUNIX(listenerName(TCPAddress("127.0.0.1", port)))
        self.addCleanup(squatter.stopListening)
        self.patch(announcing, "ANSWER_SECONDS", 0.1)
        broken = Recorders(Broken)
        endpoints = [clientFromString(reactor, f"smc:127.0.0.1:{port}") for _ in range(2)]
        endpoints[0].connect(broken)
        other: Any = await endpoints[1].connect(Recorders())
        self.addCleanup(self._disconnect, other)
        self.assertEqual(other.smc.mode, "TCP")
        await waitUntil(reactor, lambda: broken.protocols)  # which of them waits longer is not known
        (protocol,) = broken.protocols
        await protocol.lost
        protocol.reason.trap(ZeroDivisionError)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 2)

    async def test_cancelledAsSoonAsConnectReturns(self) -> None:
        factory, port = await self.serve()
        for host in ("127.0.0.1", "localhost", r"\:\:1"):
            connecting = self.attempt(f"smc:{host}:{port}")
            connecting.cancel()
            await self.assertFailure(connecting, ConnectingCancelledError)
        self.assertEqual(factory.protocols, [])

    async def cancel(self, port: int, isReached: Callable[[], object], keys: str = "") -> None:
        """Connect, cancel as soon as a condition is true, and check that nothing is left in the reactor."""
        before = await self.inReactor()
        connecting = self.attempt(f"smc:127.0.0.1:{port}{keys}")
        await waitUntil(reactor, isReached)
        connecting.cancel()
        await self.assertFailure(connecting, ConnectingCancelledError)
        self.assertEqual(await self.inReactor(), before)

    async def test_cancelledWhileAnnouncing(self) -> None:
        silent = Recorder()
        port = await self.plainListener(silent)
        mute = Recorders(Recorder)
        listening = reactor.listenUNIX(listenerName(TCPAddress("127.0.0.1", port)), mute)
        self.addCleanup(listening.stopListening)
        await self.cancel(port, lambda: mute.protocols)
        self.assertIsNone(silent.transport)

    async def test_cancelledWhileWaitingForAcceptance(self) -> None:
        silent = Recorder()
        port = await self.plainListener(silent)
        squatter = await reactor_listenUNIX(listenerName(TCPAddress("127.0.0.1", port)))
        self.addCleanup(squatter.stopListening)
        await self.cancel(port, lambda: silent.transport)

    async def test_listenerOfCancelledConnectionIsSilent(self) -> None:
        """The next connection uses plain TCP at once, since it might be cancelled as early."""
        self.patch(announcing, "GIVEN_UP_SECONDS", 0.0)
        silent = silentPeers(reactor)
        before = dict(silent.remaining(reactor.seconds()))
        await self.test_cancelledWhileWaitingForAcceptance()
        after = dict(silent.remaining(reactor.seconds()))
        self.assertEqual(len(after.keys() - before.keys()), 1)

    async def test_cancelledWhileWaitingForAnswerToProposal(self) -> None:
        silent = Recorder()
        port = await self.plainListener(silent)
        await self.cancel(port, lambda: silent.received, ":peer=smc")

    async def test_connectionWithoutProtocolIsClosedAndListenerContinues(self) -> None:
        factory, port = await self.serve()
        real = factory.buildProtocol
        factory.buildProtocol = lambda address: None
        first = await self.connect(f"smc:127.0.0.1:{port}")
        await first.lost
        factory.buildProtocol = real
        second = await self.connect(f"smc:127.0.0.1:{port}")
        self.assertEqual(second.smc.mode, "SMC-R")

    async def test_connectionWhoseLogPrefixRaisesIsClosed(self) -> None:
        """A protocol whose C{logPrefix} raises gets no connection, which is closed, as with TCP."""

        for keys in ("", ":version=2:ueid=A"):  # SMC-R, and a fallback to TCP
            factory, port = await self.serve(f"smc:127.0.0.1:0{keys}", Unnamed)
            client = await self.connect(f"smc:127.0.0.1:{port}")
            await client.lost
            self.assertFalse(factory.protocols[0].made.called)
            self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
            factory, port = await self.serve(f"smc:127.0.0.1:0{keys}")
            accepted = factory.next()
            connecting = clientFromString(reactor, f"smc:127.0.0.1:{port}").connect(Recorders(Unnamed))
            await self.assertFailure(connecting, ZeroDivisionError)
            await (await accepted).lost

    async def test_endedConnectionsLeaveNoDescriptors(self) -> None:
        factory, port = await self.serve(kind=Echo)

        async def once() -> None:
            protocol = await self.connect(f"smc:127.0.0.1:{port}")
            protocol.transport.write(b"x")
            await protocol.receiving(1)
            protocol.transport.loseConnection()
            await protocol.lost
            await factory.protocols[-1].lost

        def opened() -> int:
            gc.collect()  # closes files that other tests have left
            return len(os.listdir("/proc/self/fd"))

        await once()
        before = opened()
        for _ in range(5):
            await once()
        while (now := opened()) > before:  # until the reactor has closed them, or the test times out
            await deferLater(reactor, 0.01)
        self.assertLessEqual(now, before)  # not counted again, since other threads may open files

    async def test_connectionAddsReadersOfTCPAndNoDelayedCall(self) -> None:
        for server, client in (
            ("smc:127.0.0.1:0", "smc:127.0.0.1:{}"),
            ("smc:127.0.0.1:0:peer=smc", "smc:127.0.0.1:{}:peer=smc"),
            ("smc:127.0.0.1:0:timeout=100", "smc:127.0.0.1:{}:timeout=100"),
            ("smc:127.0.0.1:0:" + NOT_THERE, "smc:127.0.0.1:{}"),
            ("smc:127.0.0.1:0", "tcp:127.0.0.1:{}"),
            ("tcp:0:interface=127.0.0.1", "smc:127.0.0.1:{}"),
        ):
            factory, port = await self.serve(server)
            await self.connect(client.format(port))  # opens the device and a link
            before = await self.inReactor()
            await self.join(factory, client.format(port))
            after = await self.inReactor()
            self.assertLessEqual(after[0], before[0], client)  # an earlier call may be over on a busy machine
            self.assertEqual(after[1] - before[1], 2, client)

    async def test_failedConnectionLeavesNoReadersAndNoDelayedCalls(self) -> None:
        factory, port = await self.serve("tcp:0:interface=127.0.0.1")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            refused = probe.getsockname()[1]
            await self.assertFailure(self.attempt(f"smc:127.0.0.1:{refused}"), ConnectionRefusedError)
            before = await self.inReactor()
            await self.assertFailure(self.attempt(f"smc:127.0.0.1:{refused}"), ConnectionRefusedError)
            await self.assertFailure(self.attempt(f"smc:127.0.0.1:{port}:fallback=no"), NotSMC)
            self.assertEqual(await self.inReactor(), before)

    async def test_stoppedPortServesSMCAgain(self) -> None:
        _, _, port = await self.listening(Echo)
        for _ in range(2):
            number = port.getHost().port
            protocol = await self.connect(f"smc:127.0.0.1:{number}")
            self.assertEqual(protocol.smc.mode, "SMC-R")
            await port.stopListening()
            connecting = self.attempt(f"smc:127.0.0.1:{number}")
            await self.assertFailure(connecting, ConnectionRefusedError)
            port.startListening()

    async def test_logPrefixIsThatOfTCPInAllPhases(self) -> None:
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
                protocol.transport.write(b"hello")  # the server waits for this
            other = await accepted
            protocol.transport.write(b"hello")
            await other.receiving(5)
            other.transport.write(b"hello")
            await protocol.receiving(5)
            protocol.transport.loseConnection()
            await gatherResults([protocol.lost, other.lost])
            made, rest = output[:2], output[2:]
            if server.startswith("smc") and client.startswith("smc"):  # with TCP there is no prefix yet
                self.assertEqual(sorted(made), ["Talkative,0,127.0.0.1", "Talkative,client"])
            expected = ["Talkative,0,127.0.0.1", "Talkative,client"]
            self.assertEqual(sorted(set(rest)), expected, (server, client))
            output.clear()

    async def test_factoriesStartAndStopAsWithTCP(self) -> None:
        factory, port = await self.serve(kind=Echo)
        client = Recorders(Recorder)
        protocol: Any = await clientFromString(reactor, f"smc:127.0.0.1:{port}").connect(client)
        self.assertEqual((client.starts, client.stops, factory.starts), (1, 0, 1))
        protocol.transport.loseConnection()
        await protocol.lost
        await waitUntil(reactor, lambda: client.stops)
        self.assertEqual(client.stops, 1)

    async def test_clientFactoryStopsAfterPausedProtocolIsLost(self) -> None:
        events: list[str] = []

        class Paused(Recorder):
            def connectionMade(self) -> None:
                super().connectionMade()
                self.transport.pauseProducing()

            def dataReceived(self, data: bytes) -> None:
                events.append("data")

            def connectionLost(self, reason: Failure = connectionDone) -> None:
                events.append("lost")
                super().connectionLost(reason)

        class Noting(Recorders):
            stopped: Deferred[None]

            def stopFactory(self) -> None:
                events.append("stop")
                self.stopped.callback(None)

        factory, port = await self.serve()
        server, client = factory.next(), Noting(Paused)
        client.stopped = Deferred()
        protocol: Any = await clientFromString(reactor, f"smc:127.0.0.1:{port}").connect(client)
        there = await server
        there.transport.write(b"late")
        there.transport.loseConnection()
        await there.lost
        await deferLater(reactor, 0.05)
        protocol.transport.resumeProducing()
        await protocol.lost
        await client.stopped
        self.assertEqual(events, ["data", "lost", "stop"])


async def reactor_listenUNIX(name: str) -> Any:
    """Listen at a name, and answer announcements like a listener, without accepting a connection."""

    class Liar(Protocol):
        def dataReceived(self, data: bytes) -> None:
            assert self.transport is not None
            for line in data.splitlines():
                if line.startswith(b"connecting "):
                    number = int(line.split()[1])
                    self.transport.write(b"expected %d %d\n" % (number, os.geteuid()))

    return reactor.listenUNIX(name, Factory.forProtocol(Liar))
