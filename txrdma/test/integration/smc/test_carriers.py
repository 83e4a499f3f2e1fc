"""
The interface of carriers, tested with a third carrier, which detects SMC by another option of the SYN.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from zope.interface import implementer

from twisted.internet.error import ConnectionRefusedError

from txrdma.smc import connecting, userspace
from txrdma.smc.handshake import proposing
from txrdma.smc.signalling.interfaces import IClientSignal, IDialing, IListenerSignal, IServerSignal
from txrdma.smc.signalling.owners import TCPAddress
from txrdma.smc.wire.clc import Diagnosis
from txrdma.test.support.smc.ends import EndsTestCase, reactor
from txrdma.testing.protocols import Echo

TCP_MAXSEG, TCP_SAVE_SYN, TCP_SAVED_SYN = 2, 27, 28
SIZE = 1111


@implementer(IClientSignal)
class SegmentApproach:
    """Signals SMC by the maximum segment size in its SYN, and assumes that the listener supports SMC."""

    isAwaited = isExpected = False
    process = user = None
    directory = ""

    def __init__(self, answer: bool, seen: list[str]) -> None:
        self.isSMC = answer
        self.seen = seen

    def prepare(self, client: IDialing, proceed: Callable[[], None]) -> None:
        self.seen.append("prepare")
        if self.isSMC:
            client.socket.setsockopt(socket.IPPROTO_TCP, TCP_MAXSEG, SIZE)
        if self.seen.count("prepare") == 1:
            client.renew()
        else:
            reactor.callLater(0, proceed)

    def failed(self, error: object) -> bool:
        self.seen.append("failed")
        return False

    def query(self, transport: Any, reported: Callable[[], None]) -> None:
        self.seen.append("ask")
        reactor.callLater(0, reported)

    def decideNow(self) -> None:
        self.seen.append("decideNow")

    def close(self) -> None:
        pass


@implementer(IServerSignal)
class SegmentArrival:
    """A client whose SYN has the segment size that signals SMC."""

    isSure = True
    process = user = None
    directory = ""

    def expect(self, withdrawn: Callable[[], None]) -> None:
        pass

    def refuse(self) -> bool:
        return False

    def settle(self) -> None:
        pass


@implementer(IListenerSignal)
class SegmentReception:
    """Reads the segment size from the saved SYNs of clients."""

    def prepare(self, listening: socket.socket) -> None:
        listening.setsockopt(socket.IPPROTO_TCP, TCP_SAVE_SYN, 1)

    def begin(self, place: TCPAddress) -> None:
        pass

    def arrived(self, transport: Any) -> SegmentArrival | None:
        syn = transport.socket.getsockopt(socket.IPPROTO_TCP, TCP_SAVED_SYN, 200)
        return SegmentArrival() if b"\2\4" + SIZE.to_bytes(2, "big") in syn else None

    def stop(self) -> None:
        pass


class SegmentCarrier:
    """A carrier like the TCP option of RFC 7609, but with an option that any socket can set."""

    def __init__(self, answer: bool = True) -> None:
        self.answer = answer
        self.seen: list[str] = []

    def approach(self) -> SegmentApproach:
        return SegmentApproach(self.answer, self.seen)

    def reception(self, room: int) -> SegmentReception:
        return SegmentReception()


class ThirdCarrierTests(EndsTestCase):
    """Endpoints and handshakes with a carrier that is not one of txrdma's."""

    async def pair(self, carrier: SegmentCarrier) -> tuple[Any, Any]:
        """Connect, and return client and server after an echo."""
        for module in (userspace, connecting, proposing):
            self.patch(module, "carrierFor", lambda reactor, options: carrier)
        client, server = await self.ends(Echo)
        client.transport.write(b"hello")
        self.assertEqual(await client.receiving(5), b"hello")
        return client, server

    async def test_smc(self) -> None:
        """
        An option that is set on a socket before it connects is in its SYN, and the listener reads it after
        accept.

        A socket that the carrier does not want is replaced by another one, which is prepared as well.
        """
        carrier = SegmentCarrier()
        client, server = await self.pair(carrier)
        self.assertEqual((client.smc.mode, server.smc.mode), ("SMC-R", "SMC-R"))
        self.assertEqual(carrier.seen, ["prepare", "prepare", "ask"])

    async def test_plain(self) -> None:
        """If the carrier detects no SMC, both ends use plain TCP."""
        client, server = await self.pair(SegmentCarrier(answer=False))
        for end in (client, server):
            self.assertEqual((end.smc.mode, end.smc.fallbackReason), ("TCP", Diagnosis.PEERNOSMC))

    async def test_failed(self) -> None:
        """A carrier is notified of a connection that could not be established."""
        carrier = SegmentCarrier()
        for module in (userspace, connecting, proposing):
            self.patch(module, "carrierFor", lambda reactor, options: carrier)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            with self.assertRaises(ConnectionRefusedError):
                await self.connect(f"smc:127.0.0.1:{probe.getsockname()[1]}")
        self.assertEqual(carrier.seen, ["prepare", "prepare", "failed"])
