"""Pings like librdmacm's C{rping}: recorded ones, between two hosts, and with peers that break the rules."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from twisted.internet.defer import CancelledError
from twisted.trial.unittest import SynchronousTestCase

from txrdma.cm.rping import LARGEST, PingClient, pingFor, PingServer, TERMS, textOf
from txrdma.cm.terms import Terms
from txrdma.error import DeviceUnavailable
from txrdma.iba.headers import Opcode, RETH
from txrdma.messages.memory import MemoryName
from txrdma.messages.protocol import MessageFactory
from txrdma.test.support.captures import packets
from txrdma.test.support.cm.messaging import MessagingCase
from txrdma.testing.protocols import MessageRecorder


class RecordedTests(SynchronousTestCase):
    """Two pings of librdmacm's."""

    def test_advertisedMemoryIsUsed(self) -> None:
        adverts, places = [], []
        for captured in packets("rping"):
            packet = captured.packet
            reth = packet.get(RETH)
            if packet.bth.opcode == Opcode.RC_SEND_ONLY:
                advert = MemoryName.decode(packet.payload)
                self.assertEqual(advert.encode(), packet.payload)
                adverts.append((captured.source, advert))
            elif reth is not None:
                places.append(MemoryName(address=reth.address, key=int(reth.rkey), length=reth.length))
        self.assertEqual([each for source, each in adverts if source == "10.77.0.1"], places)
        self.assertEqual([each for source, each in adverts if source == "10.77.0.2"], [MemoryName()] * 4)

    def test_recordedBytesAreNumberedPings(self) -> None:
        data = [
            captured.packet.payload
            for captured in packets("rping")
            if captured.packet.bth.opcode in (Opcode.RC_RDMA_READ_RESPONSE_ONLY, Opcode.RC_RDMA_WRITE_ONLY)
        ]
        self.assertEqual(data, [pingFor(number, 64) for number in (0, 0, 1, 1)])

    @given(st.integers(0, 1 << 40), st.integers(1, LARGEST))
    def test_pingHasLengthAndPlainText(self, number: int, size: int) -> None:
        ping = pingFor(number, size)
        self.assertEqual((len(ping), ping[-1]), (size, 0))
        self.assertTrue(textOf(ping).isprintable())

    def test_otherBytes(self) -> None:
        """Bytes of a peer's ping that are not printable are escaped."""
        self.assertEqual(textOf(b"a\\\x1b[31m\n\xff\0b"), "a\\\\x1b[31m\\x0a\\xff")


class PingTests(MessagingCase):
    def setUp(self) -> None:
        super().setUp()
        self.reported: list[str] = []
        self.client = PingClient(3, 500, True, self.reported.append)
        self.server = PingServer(lambda ping: None)
        self.client.ended.addErrback(self.note)
        self.server.ended.addErrback(self.note)
        self.failed: list[str] = []

    def note(self, failure: Any) -> None:
        failure.trap(DeviceUnavailable, CancelledError)
        self.failed.append(failure.getErrorMessage())

    def connect(self, client: Any, server: Any, terms: Terms = TERMS) -> None:
        """Connect two protocols, and wait until both have ended."""
        port = self.serve(MessageFactory(lambda: server), terms)
        self.result(self.connectBy(self.path(), MessageFactory(lambda: client), terms=terms))
        port.stopListening()

    def test_allPingsReturn(self) -> None:
        received: list[str] = []
        self.server = PingServer(received.append)
        self.connect(self.client, self.server)
        self.assertEqual(self.result(self.client.ended), 3)
        self.assertEqual(self.result(self.server.ended), 3)
        self.assertEqual(self.reported, [textOf(pingFor(number, 500)) for number in range(3)])
        self.assertEqual(received, self.reported)
        self.assertNothingLeft()

    def endless(self) -> PingClient:
        """Connect a client that sends pings until the end, and wait for some of them."""
        client = PingClient(0, 10, True, lambda ping: None)
        client.ended.addErrback(self.note)
        self.connect(client, self.server)
        self.wait(lambda: client.pings > 10)
        return client

    def test_endlessPingsUntilCancelled(self) -> None:
        self.endless().ended.cancel()
        self.wait(lambda: self.server.ended.called and self.failed)
        self.assertNothingLeft()

    def test_earlyServerEndIsReported(self) -> None:
        client = self.endless()
        self.server.transport.loseConnection()
        self.wait(lambda: client.ended.called and self.server.ended.called)
        self.assertIn(f"after {client.pings} pings", self.failed[0])

    def liar(self, *messages: MemoryName | bytes) -> str:
        """Have a client send these messages, and return the server's error."""
        unknownPeer = MessageRecorder()
        self.connect(unknownPeer, self.server, Terms(messageBytes=64, reads=1, usesCredits=False))
        shared = MemoryName.decode(unknownPeer.transport.share(64).name)
        for message in messages:
            raw = message
            if isinstance(message, MemoryName):
                raw = message.replace(address=shared.address, key=shared.key).encode()
            answers = len(unknownPeer.messages)
            unknownPeer.transport.sendMessage(raw)
            self.wait(lambda n=answers: unknownPeer.lost or len(unknownPeer.messages) > n)  # type: ignore[misc]  # lambda
        self.wait(lambda: self.server.ended.called and unknownPeer.lost)
        self.assertNothingLeft()
        (output,) = self.failed
        return output

    def test_liars(self) -> None:
        """A client that breaks the rules is disconnected, with a reason."""
        for messages, reason in (
            ((bytes(15),), "sent 15 bytes"),
            ((MemoryName(length=LARGEST + 1),), "ping of 65537 bytes"),
            ((MemoryName(),), "ping of 0 bytes"),
            ((MemoryName(length=64), MemoryName(length=63)), "a sink of 63"),
            ((MemoryName(length=65),), "after 0 pings"),  # foreign memory
        ):
            self.setUp()
            self.assertIn(reason, self.liar(*messages))

    def test_clientThatDoesNotWaitIsDisconnected(self) -> None:
        unknownPeer = MessageRecorder()
        self.connect(unknownPeer, self.server)
        shared = unknownPeer.transport.share(64)
        for _ in range(2):
            unknownPeer.transport.sendMessage(shared.name)
        self.wait(lambda: self.server.ended.called)
        self.assertIn("did not wait", self.failed[0])

    def test_comparingClientReportsDifference(self) -> None:

        class Spoiling(MessageRecorder):
            def messageReceived(self, data: bytes, immediate: int | None) -> None:
                super().messageReceived(data, immediate)
                if len(self.messages) == 2:
                    ping = bytearray(pingFor(0, 500))
                    ping[77] ^= 1
                    self.transport.write(data, ping)
                self.transport.sendMessage(bytes(16))

        self.connect(self.client, Spoiling())
        self.wait(lambda: self.client.ended.called)
        expected = "ping 0 was returned with different bytes, from byte 77 on, after 0 pings"
        self.assertEqual(self.failed, [expected])
        self.assertEqual(self.reported, [])
