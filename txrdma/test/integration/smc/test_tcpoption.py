"""
SMC's TCP option as used by endpoints; a model of the kernel's part determines which sockets have it.
"""

from __future__ import annotations

import socket
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import serverFromString
from twisted.internet.protocol import Factory
from twisted.internet.task import deferLater

from txrdma.error import WireError
from txrdma.smc.common.reactoruse import reactorUse
from txrdma.smc.group.groups import linkGroups
from txrdma.smc.handshake import _machine
from txrdma.smc.signalling import localsignal
from txrdma.smc.signalling.option.shared import sharedOption
from txrdma.smc.wire.clc import Decline, decode, Diagnosis, Proposal
from txrdma.test.support.smc.ends import EndsTestCase, reactor
from txrdma.test.support.smc.tcpoption import ModelCarrier
from txrdma.testing.protocols import Echo, Greeter, Recorder, Recorders

DEVICE = r"device=soft\:127.0.0.1:ueid=TXRDMA"
EYECATCHER = bytes.fromhex("e2d4c3d9")


class MarkedTestCase(EndsTestCase):
    """A test with the model in place of this machine's kernel."""

    def setUp(self) -> None:
        super().setUp()
        self.model = ModelCarrier()
        self.patch(sharedOption(reactor), "open", lambda: self.model)

    def forgetPresence(self) -> None:
        """Disable announcements, as if the other end were on another host."""
        self.patch(localsignal, "channelTo", lambda reactor, target: None)


class BothEndsTests(MarkedTestCase):
    """Both ends use txrdma."""

    async def pair(self, server: str = DEVICE, client: str = DEVICE) -> tuple[Any, Any]:
        """Return a client and a server after an echo."""
        listen, connect = f"smc:127.0.0.1:0:{server}", "smc:127.0.0.1:{}:" + client
        made, accepted = await self.ends(Echo, Recorder, listen, connect)
        made.transport.write(b"hello")
        self.assertEqual(await made.receiving(5), b"hello")
        return made, accepted

    async def test_separateEndsDetectEachOtherByOption(self) -> None:
        self.forgetPresence()
        for end in await self.pair():
            self.assertEqual((end.smc.mode, end.smc.version), ("SMC-R", 2))
        self.assertEqual((len(self.model.clients), len(self.model.listeners)), (1, 1))
        self.assertEqual(self.model.forgotten, 2)

    async def test_expectedClientSendsNoOptionAndUsesSMC(self) -> None:
        for end in await self.pair():
            self.assertEqual(end.smc.mode, "SMC-R")
        self.assertEqual(self.model.clients, [])

    async def test_optionNoMarksNoSocket(self) -> None:
        self.forgetPresence()
        for end in await self.pair(f"{DEVICE}:option=no", f"{DEVICE}:option=no"):
            self.assertEqual((end.smc.mode, end.smc.fallbackReason), ("TCP", Diagnosis.PEERNOSMC))
        self.assertEqual((self.model.clients, self.model.listeners), ([], []))

    async def test_endWithoutDeviceSendsNoOption(self) -> None:
        self.forgetPresence()
        for device in (r"soft\:192.0.2.1", r"soft\:route=shared-memory"):
            for end in await self.pair(f"device={device}", f"device={device}"):
                self.assertEqual((end.smc.mode, end.smc.fallbackReason), ("TCP", Diagnosis.PEERNOSMC))
        self.assertEqual((self.model.clients, self.model.listeners), ([], []))

    async def test_carrierIsClosedWithLastPortAndConnection(self) -> None:
        self.forgetPresence()
        factory, number, port = await self.listening(Echo, f"smc:127.0.0.1:0:{DEVICE}")
        client, server = await self.join(factory, f"smc:127.0.0.1:{number}:{DEVICE}")
        await port.stopListening()
        self.assertTrue(self.model.isOpen)
        client.transport.loseConnection()
        await client.lost
        await server.lost
        for _ in range(500):
            if reactorUse(reactor).isIdle:
                break
            await deferLater(reactor, 0.01)
        self.assertFalse(self.model.isOpen)

    async def test_portInUseLeavesNeitherCarrierNorDeviceOpen(self) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            text = f"smc:127.0.0.1:{taken.getsockname()[1]}:{DEVICE}"
            await self.assertFailure(
                serverFromString(reactor, text).listen(Factory.forProtocol(Echo)), Exception
            )
        self.assertEqual(len(self.model.listeners), 1)
        self.assertFalse(self.model.isOpen)


class ForeignTestCase(MarkedTestCase):
    """A test whose other end is not txrdma: the test reads and writes its CLC messages."""

    def setUp(self) -> None:
        super().setUp()
        self.forgetPresence()

    async def dial(self, isMarked: bool) -> tuple[Any, Deferred[Any]]:
        """Return a listening end to which an endpoint has connected, and the Deferred of the protocol."""
        factory, number, port = await self.listening(Recorder, "tcp:0:interface=127.0.0.1")
        if isMarked:
            self.model.listeners.append(port.socket)
        accepted = factory.next()
        connecting = Deferred.fromCoroutine(self.connect(f"smc:127.0.0.1:{number}:{DEVICE}"))
        return await accepted, connecting

    async def meet(self, isMarked: bool, kind: type[Recorder]) -> tuple[Any, Any, Any]:
        """Return an end that has connected to a listener, and the listener's factory with its protocol."""
        factory, number = await self.serve(f"smc:127.0.0.1:0:{DEVICE}", kind)
        accepted = factory.next()
        client = socket.socket()
        client.bind(("127.0.0.1", 0))
        if isMarked:
            self.model.clients.append(client)
        client.setblocking(False)
        client.connect_ex(("127.0.0.1", number))
        self.addCleanup(client.close)
        unknownPeers = Recorders()
        reactor.adoptStreamConnection(client.fileno(), socket.AF_INET, unknownPeers)
        [unknownPeer] = unknownPeers.protocols
        self.addCleanup(self._disconnect, unknownPeer)
        return unknownPeer, factory, accepted


class ForeignTests(ForeignTestCase):
    """The other end is not txrdma's, with or without the option."""

    async def test_proposal(self) -> None:
        """A listener that returned the option gets a Proposal; if it declines, the connection uses TCP."""
        unknownPeer, connecting = await self.dial(isMarked=True)
        head = await unknownPeer.receiving(8)
        proposal = decode(await unknownPeer.receiving(int.from_bytes(head[5:7], "big")))
        assert isinstance(proposal, Proposal)
        self.assertEqual(proposal.version, 2)
        decline = Decline.inVersion(2, bytes(8), Diagnosis.NOSMCDEV)
        unknownPeer.transport.write(decline.encode() + b"in plain TCP")
        ours = await connecting
        self.assertEqual(await ours.receiving(12), b"in plain TCP")
        self.assertEqual((ours.smc.mode, ours.smc.peerDiagnosis), ("TCP", Diagnosis.NOSMCDEV))

    async def test_listenerWithoutOptionGetsOnlyDataOfApplication(self) -> None:
        unknownPeer, connecting = await self.dial(isMarked=False)
        ours = await connecting
        ours.transport.write(b"hello")
        self.assertEqual(await unknownPeer.receiving(5), b"hello")
        self.assertEqual(ours.smc.fallbackReason, Diagnosis.PEERNOSMC)
        self.assertEqual(len(self.model.clients), 1)

    async def test_unansweredProposalMeansNoOptionOnNextSYN(self) -> None:
        self.patch(_machine, "CLC_TIMEOUT", 0.05)
        self.patch(_machine, "LATE_DECLINE_TIMEOUT", 0.05)
        unknownPeer, connecting = await self.dial(isMarked=True)
        ours = await connecting
        self.assertEqual(ours.smc.fallbackReason, Diagnosis.TIMEOUT_CL)
        self.assertTrue(unknownPeer.received.startswith(EYECATCHER))
        again = await self.connect(f"smc:127.0.0.1:{unknownPeer.transport.getHost().port}:{DEVICE}")
        self.assertEqual(again.smc.fallbackReason, Diagnosis.PEERNOSMC)
        self.assertEqual(len(self.model.clients), 1)

    async def test_markedClient(self) -> None:
        """A server waits for a client with the option, even if it writes first; the client may decline."""
        unknownPeer, factory, accepted = await self.meet(True, Greeter)
        await deferLater(reactor, 0.05)
        self.assertEqual((factory.protocols, unknownPeer.received), ([], b""))
        unknownPeer.transport.write(Decline.inVersion(2, bytes(8), Diagnosis.NOSMCDEV).encode())
        server = await accepted
        self.assertEqual(await unknownPeer.receiving(11), b"220 hello\r\n")
        self.assertEqual((server.smc.mode, server.smc.peerDiagnosis), ("TCP", Diagnosis.NOSMCDEV))

    async def test_clientWithoutOptionIsWrittenToImmediately(self) -> None:
        unknownPeer, _factory, accepted = await self.meet(False, Greeter)
        self.assertEqual(await unknownPeer.receiving(11), b"220 hello\r\n")
        self.assertEqual((await accepted).smc.fallbackReason, Diagnosis.PEERNOSMC)


class ForgedTests(ForeignTestCase):
    """The option without CLC, and CLC without the option."""

    def assertNothingLeft(self) -> None:
        """Assert that no link group was made."""
        self.assertEqual(linkGroups(reactor, "soft:127.0.0.1").groups(), [])

    async def test_markedClientThatWritesUsesTCPWithEachByte(self) -> None:
        unknownPeer, factory, accepted = await self.meet(True, Echo)
        unknownPeer.transport.write(b"GET / HTTP/1.0\r\n\r\n")
        server = await accepted
        self.assertEqual((server.smc.mode, server.smc.fallbackReason), ("TCP", Diagnosis.PEERNOSMC))
        self.assertEqual(await unknownPeer.receiving(18), b"GET / HTTP/1.0\r\n\r\n")
        self.assertEqual(len(factory.protocols), 1)
        self.assertNothingLeft()

    async def test_listenerThatMisreadsProposalCostsOneConnection(self) -> None:
        unknownPeer, connecting = await self.dial(isMarked=True)
        head = await unknownPeer.receiving(8)
        await unknownPeer.receiving(int.from_bytes(head[5:7], "big"))
        number = unknownPeer.transport.getHost().port
        unknownPeer.transport.write(b"HTTP/1.0 400 Bad Request\r\n\r\n")
        error = await self.assertFailure(connecting, WireError)
        self.assertIn("no eyecatcher", str(error))
        await unknownPeer.lost
        self.model.isOpen = True  # it was closed with the only connection
        again = await self.connect(f"smc:127.0.0.1:{number}:{DEVICE}")
        self.assertEqual((again.smc.mode, again.smc.fallbackReason), ("TCP", Diagnosis.PEERNOSMC))
        self.assertEqual(len(self.model.clients), 1)
        self.assertNothingLeft()
