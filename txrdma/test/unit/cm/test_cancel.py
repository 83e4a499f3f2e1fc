"""Every pending operation can be cancelled at every step, and releases everything."""

from __future__ import annotations

from functools import partial
from typing import Any, TYPE_CHECKING
from unittest.mock import Mock

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectionDone
from twisted.internet.protocol import Factory, Protocol
from twisted.python.failure import Failure

from txrdma.cm.connections.adapter import adapterOf
from txrdma.cm.connections.datagramqueues import SENDS
from txrdma.cm.connections.datagrams import (
    DatagramClientEndpoint,
    DatagramProtocol,
    DatagramServerEndpoint,
)
from txrdma.cm.connections.endpoints import RDMAClientEndpoint
from txrdma.cm.layouts.messages import SIDRREP
from txrdma.cm.rsocket.endpoints import RSocketClientEndpoint, RSocketServerEndpoint
from txrdma.cm.terms import Terms
from txrdma.error import DeviceUnavailable, InvalidRequest
from txrdma.iba.types import QPN
from txrdma.messages.protocol import MessageFactory
from txrdma.test.support.cm.cancelling import abort, CancelCase, KernelCancelCase, lose
from txrdma.test.support.cm.librdmacm import FakeChannel
from txrdma.test.support.cm.messaging import PORT, SERVICE
from txrdma.test.unit.cm.test_names import ResolvingClock
from txrdma.testing.protocols import MessageRecorder

READS = 5
"""Number of reads in a test, of which one can be outstanding."""

READING = Terms(sends=2, reads=1, usesCredits=False)

if TYPE_CHECKING:
    Base = CancelCase
else:
    Base = object


class PortTests(Base):
    """Connects to ports, reads, and closed ports, with every connection manager."""

    def streams(self) -> Any:
        return self.listenAt(Factory.forProtocol(Protocol), RSocketServerEndpoint)

    def streaming(self) -> Deferred[Any]:
        return self.connectTo(Factory.forProtocol(Protocol), RSocketClientEndpoint)

    def test_messages(self) -> None:
        """A cancelled attempt to connect releases everything; an established connection is aborted."""
        self.attempted(self.listening, self.connecting, abort)

    def test_lostMessageConnection(self) -> None:
        self.attempted(self.listening, self.connecting, lose)

    def test_streams(self) -> None:
        self.attempted(self.streams, self.streaming, lose)

    def test_rejected(self) -> None:
        self.patch(self, "made", lambda: None)

        def unlessCancelled(failure: Failure) -> Failure | None:
            return failure if failure.check(CancelledError) else None

        def connecting() -> Deferred[Any]:
            return self.connecting().addErrback(unlessCancelled)

        self.attempted(self.listening, connecting, lambda made: None)

    def test_cancelledByApplication(self) -> None:
        """An attempt that the client's factory or protocol cancels fails; a connected protocol is lost."""

        class Reluctant(MessageRecorder):
            def connectionMade(self) -> None:
                super().connectionMade()
                asked.cancel()

        def build() -> MessageRecorder:
            if made is inFactory:
                asked.cancel()
            return made

        self.listening()
        inFactory, inProtocol = MessageRecorder(), Reluctant()
        for made in (inFactory, inProtocol):
            terms = Terms(keepalive=5.0, usesCredits=False)
            asked = self.connecting(terms=terms, factory=MessageFactory(build))
            self.failure(asked, CancelledError)
            self.pause(1.0)
            isMade = made is inProtocol
            self.assertEqual((made.isMade, len(made.lost)), (isMade, int(isMade)))
        self.part()

    def test_factoryCancelsAndRaises(self) -> None:
        """An exception of a factory that has cancelled the attempt is logged."""

        def build() -> MessageRecorder:
            asked.cancel()
            raise RuntimeError("buildProtocol")

        self.listening()
        asked = self.connecting(factory=MessageFactory(build))
        self.failure(asked, CancelledError)
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)
        self.part()

    def read(self, which: int) -> Deferred[Any]:
        """Start a connection with several reads; return the Deferred of one of them."""
        client, server = self.opened(READING)
        there = server.transport.share(64)
        there.view[:5] = b"hello"
        reads: list[Deferred[Any]] = [client.transport.read(there.name, 64) for _ in range(READS)]
        self.reading = client, [read for each, read in enumerate(reads) if each != which]
        return reads[which]

    def readEnd(self, made: object) -> None:
        """Assert that the other reads return their bytes, and close in order."""
        client, others = self.reading
        self.wait(lambda: all(each.called for each in others))
        for each in others:
            self.assertEqual(self.successResultOf(each), b"hello".ljust(64, b"\0"))
        client.transport.loseConnection()
        self.wait(lambda: client.lost)
        client.lost[0].trap(ConnectionDone)

    def test_cancelledReads(self) -> None:
        for which in (0, READS - 1):
            self.everywhere(partial(self.read, which), self.readEnd)
        self.part()

    def test_cancelledReadAtTheEnd(self) -> None:

        def begin() -> Deferred[Any]:
            asked = self.read(READS - 1)
            self.reading[0].transport.loseConnection()
            return asked

        self.everywhere(begin, self.readEnd)
        self.part()

    def test_bothClose(self) -> None:
        """Ends that close at the same time, so that their DREQs cross, leave nothing after time-wait."""
        lose(self.opened()[0])
        before = self.atRest()
        for steps in range(4):
            client, server = self.opened()
            client.transport.loseConnection()
            for _ in range(steps):
                self.clock.step()
            server.transport.loseConnection()
            self.wait(lambda c=client, s=server: c.lost and s.lost)  # type: ignore[misc]  # a lambda
            for each in (client, server):
                each.lost[0].trap(ConnectionDone)
            self.assertHeld(before, steps)
            self.talk(steps)
        self.part()

    def test_stopListening(self) -> None:
        self.stopped(self.listening, self.connecting)

    def test_stopListeningForStreams(self) -> None:
        self.stopped(self.streams, self.streaming)


class OwnPortTests(PortTests, CancelCase):
    """Ports with txrdma's communication manager."""


class KernelPortTests(PortTests, KernelCancelCase):
    """Ports with the kernel's manager, by a fake librdmacm."""

    def test_refusedDREQ(self) -> None:
        """A connection that the kernel refuses to disconnect, as of a removed device, ends nevertheless."""
        for answered in (False, True):
            client, server = self.opened()
            refuse = Mock(side_effect=DeviceUnavailable("a test's"))
            patch = self.patch(client.transport.adapter.manager.channel, "disconnect", refuse)
            (server if answered else client).transport.loseConnection()
            self.wait(lambda c=client, s=server: c.lost and s.lost)  # type: ignore[misc]  # a lambda
            self.assertEqual(refuse.call_count, 1)
            patch.restore()
        self.part()

    def test_lostRTU(self) -> None:
        """A DREQ replaces a lost RTU: the messages before it are delivered."""

        def establish(channel: FakeChannel, number: int) -> None:
            channel._id(number).isEstablished = True

        self.listening()
        self.patch(FakeChannel, "establish", establish)
        client = self.result(self.connecting())
        reader = self.beside[1].transport._shared.reader
        reader.stop()  # as if the process had not run since its REP
        client.transport.sendMessage(b"one")
        lose(client)
        self.wait(lambda: client.lost)
        reader.start()
        server = self.served[-1]
        self.wait(lambda: server.lost)
        for each in (client, server):
            each.lost[0].trap(ConnectionDone)
        self.assertEqual(server.messages, [(b"one", None)])
        self.part()


class NamedTests(CancelCase):
    clockClass = ResolvingClock

    def test_everywhere(self) -> None:
        """An attempt for a host whose first address does not answer can be cancelled at every step."""
        clock = self.clock
        assert isinstance(clock, ResolvingClock)
        terms = Terms(usesCredits=False, maxCMRetries=2)
        endpoint = RDMAClientEndpoint(clock, "there.example", PORT, self.devices[0], terms)

        def begin() -> Deferred[Any]:
            asked = endpoint.connect(MessageFactory(MessageRecorder))
            resolution = clock.asked.pop()
            clock.callLater(0.01, resolution.answer, "10.0.1.9", "10.0.1.2")
            return asked

        self.attempted(self.listening, begin, abort)


class PathTests(CancelCase):
    """Alternate paths that are being loaded."""

    addresses = (("10.0.1.1", "10.0.2.1"), ("10.0.1.2", "10.0.2.2"))

    def test_everywhere(self) -> None:
        """A path can be cancelled while it is loaded or armed; the connection continues in order."""

        def begin() -> Deferred[Any]:
            self.opening = self.opened()
            loading: Deferred[Any] = self.opening[0].transport.loadAlternatePath(self.path(1))
            return loading

        def end(made: object) -> None:
            client, server = self.opening
            self.wait(lambda: client.transport.alternate is not None)  # a LAP cannot be withdrawn
            client.transport.sendMessage(b"goodbye")
            self.closed(client, server)
            self.assertEqual([data for data, _ in server.messages], [b"goodbye"])
            client.lost[0].trap(ConnectionDone)

        self.everywhere(begin, end)
        self.part()


class ServiceTests(CancelCase):
    def serving(self) -> Any:
        return self.listenAt(MessageFactory(DatagramProtocol), DatagramServerEndpoint)

    def asking(self, kind: type[DatagramProtocol] = DatagramProtocol) -> Deferred[Any]:
        return self.connectTo(MessageFactory(kind), DatagramClientEndpoint)

    def test_resolve(self) -> None:
        here, there = (adapterOf(self.clock, device).localManager for device in self.devices)
        end = there.serve(SERVICE, lambda question, path: SIDRREP(qpn=QPN(7), qkey=1))
        self.everywhere(lambda: here.resolve(SERVICE, self.path()), lambda found: None)
        end()
        self.part()

    def test_connect(self) -> None:
        self.attempted(self.serving, self.asking, lose)

    def test_stopListening(self) -> None:
        self.stopped(self.serving, self.asking)

    def test_managerClosesDuringQuestions(self) -> None:
        manager = adapterOf(self.clock, self.devices[0]).localManager
        asked = [manager.resolve(SERVICE, self.path()) for _ in range(2)]

        def giveUp(failure: Failure) -> Failure:
            for each in asked:
                each.cancel()
            return failure

        for each in asked:
            each.addErrback(giveUp)
        manager.close()
        kinds = {self.failureResultOf(each).type for each in asked}
        self.assertEqual(kinds, {DeviceUnavailable, CancelledError})
        self.assertEqual(manager._resolving, {})

    def test_cancelledByOwnFactory(self) -> None:
        """An attempt that its factory or protocol cancels releases everything; the protocol is stopped."""

        class Cancelling(DatagramProtocol):
            def __init__(self) -> None:
                self.calls: list[str] = []
                made.append(self)
                if not isLater:
                    asked.cancel()

            def startProtocol(self) -> None:
                self.calls.append("start")
                asked.cancel()

            def stopProtocol(self) -> None:
                self.calls.append("stop")

        self.serving()
        made: list[Cancelling] = []
        for isLater in (False, True):
            asked = self.asking(Cancelling)
            self.failure(asked, CancelledError)
            self.assertEqual(made.pop().calls, ["start", "stop"] if isLater else [])
        self.part()

    def test_failingProtocolLeavesNothing(self) -> None:

        class Failing(DatagramProtocol):
            def startProtocol(self) -> None:
                raise RuntimeError("a test's")

        before = self.held()
        service = DatagramServerEndpoint(self.clock, PORT, self.devices[1])
        self.failureResultOf(service.listen(MessageFactory(Failing)), RuntimeError)
        self.assertEqual(self.held(), before)
        self.serving()
        self.failure(self.asking(Failing), RuntimeError)
        lose(self.beside[0])
        self.assertNothingLeft()

    def test_unsendableDatagramsFreeTheirSlots(self) -> None:
        self.serving()
        client = self.result(self.asking())
        self.patch(
            client.transport._adapter.domain,
            "createAddressHandle",
            Mock(side_effect=InvalidRequest("there is no path")),
        )
        for _ in range(SENDS + 1):
            self.assertRaises(InvalidRequest, client.transport.write, b"lost")
        self.assertEqual((len(client.transport._queuePairs[0]._free), client.transport.dropped), (SENDS, 0))
        lose(client)
        self.part()
