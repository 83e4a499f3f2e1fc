"""
The proxy of C{twistd smc-proxy}, in memory.
"""

from __future__ import annotations

from typing import cast

from zope.interface import implementer

from twisted.application.service import IService, IServiceMaker
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone, ConnectionLost, ConnectionRefusedError
from twisted.internet.interfaces import IProtocol, IStreamClientEndpoint
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.testing import StringTransport
from twisted.logger import capturedLogs
from twisted.plugin import getPlugins
from twisted.python.failure import Failure
from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase

from txrdma.tap.proxy import makeService, Options, ProxyFactory


class MemoryTransport(StringTransport):
    """A transport that records how it was closed, and accepts producers like TCP."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def loseConnection(self) -> None:
        self.calls.append("lose")

    def abortConnection(self) -> None:
        self.calls.append("abort")

    def loseWriteConnection(self) -> None:
        self.calls.append("loseWrite")


@implementer(IStreamClientEndpoint)
class WaitingEndpoint:
    """An endpoint that connects on request."""

    def __init__(self) -> None:
        self.cancelled = 0

    def connect(self, factory: object) -> Deferred[IProtocol]:
        self.factory = cast(Factory, factory)
        self.result: Deferred[IProtocol] = Deferred(self._cancel)
        return self.result

    def _cancel(self, _: object) -> None:
        self.cancelled += 1

    def succeed(self) -> MemoryTransport:
        protocol = self.factory.buildProtocol(None)
        assert protocol is not None
        transport = MemoryTransport()
        protocol.makeConnection(transport)
        self.result.callback(protocol)
        return transport


class PairTests(SynchronousTestCase):
    """Two connections, without sockets."""

    def setUp(self) -> None:
        self.target = WaitingEndpoint()
        self.factory = ProxyFactory(self.target, "smc:there:1")
        near = self.factory.buildProtocol(None)
        assert isinstance(near, Protocol)
        self.nearTransport = MemoryTransport()
        near.makeConnection(self.nearTransport)
        [self.pair] = self.factory.pairs

    def connect(self) -> None:
        self.farTransport = self.target.succeed()

    def test_waitsForTheTarget(self) -> None:
        """Nothing is read before the target is connected."""
        self.assertEqual(self.nearTransport.producerState, "paused")
        self.connect()
        self.assertEqual(self.nearTransport.producerState, "producing")

    def test_bothWays(self) -> None:
        """Bytes are forwarded in both directions and counted."""
        self.connect()
        self.pair.near.dataReceived(b"question")
        self.pair.far.dataReceived(b"an answer")
        self.assertEqual(self.farTransport.value(), b"question")
        self.assertEqual(self.nearTransport.value(), b"an answer")
        self.end(self.pair.near, ConnectionLost())
        self.end(self.pair.far, ConnectionDone())
        self.assertEqual((self.factory.statistics.forwards, self.factory.statistics.backwards), (8, 9))

    def end(self, side: Protocol, reason: Exception) -> None:
        side.connectionLost(Failure(reason))

    def test_backPressure(self) -> None:
        """Each transport is the producer of the other: a full one pauses the other."""
        self.connect()
        for transport, other in (
            (self.nearTransport, self.farTransport),
            (self.farTransport, self.nearTransport),
        ):
            self.assertIs(transport.producer, other)
            assert transport.producer is not None
            transport.producer.pauseProducing()
            self.assertEqual(other.producerState, "paused")
            transport.producer.resumeProducing()
            self.assertEqual(other.producerState, "producing")

    def test_halfClose(self) -> None:
        """A half-close is forwarded; the other direction continues, and the second one closes the pair."""
        self.connect()
        self.pair.near.readConnectionLost()
        self.assertEqual(self.farTransport.calls, ["loseWrite"])
        self.assertEqual(self.nearTransport.calls, [])
        self.pair.far.dataReceived(b"late answer")
        self.assertEqual(self.nearTransport.value(), b"late answer")
        self.pair.far.readConnectionLost()
        self.assertEqual(self.nearTransport.calls, ["lose"])
        self.assertEqual(self.farTransport.calls, ["loseWrite", "lose"])

    def test_abort(self) -> None:
        """A lost connection aborts the other one."""
        self.connect()
        self.end(self.pair.far, ConnectionLost())
        self.assertEqual(self.nearTransport.calls, ["abort"])
        self.assertIs(self.nearTransport.producer, None)

    def test_cleanEnd(self) -> None:
        """A cleanly closed connection lets the other one finish writing."""
        self.connect()
        self.end(self.pair.near, ConnectionDone())
        self.assertEqual(self.farTransport.calls, ["lose"])

    def test_refused(self) -> None:
        """An unreachable target is logged and counted, and the connection is closed."""
        with capturedLogs() as seen:
            self.target.result.errback(ConnectionRefusedError())
        self.assertEqual(self.nearTransport.calls, ["abort"])
        self.assertEqual(self.factory.statistics.failed, 1)
        [event] = [event for event in seen if event["log_namespace"] == "txrdma.tap.proxy"]
        self.assertEqual(event["target"], "smc:there:1")
        self.end(self.pair.near, ConnectionLost())
        self.assertEqual(self.factory.pairs, set())

    def test_goneBeforeTheTarget(self) -> None:
        """When the client disconnects, the connection attempt is cancelled."""
        self.end(self.pair.near, ConnectionLost())
        self.assertEqual(self.target.cancelled, 1)
        self.assertEqual(self.factory.pairs, set())
        self.assertEqual(self.factory.statistics.failed, 0)


class OptionsTests(SynchronousTestCase):
    def refusal(self, *arguments: str) -> str:
        return str(self.assertRaises(UsageError, Options().parseOptions, list(arguments)))

    def test_mistakes(self) -> None:
        """Every invalid string is a usage error that names the option and the string."""
        good = ("--connect", "tcp:localhost:80")
        self.assertIn("--listen is missing", self.refusal(*good))
        self.assertIn("--connect is missing", self.refusal("--listen", "tcp:0"))
        self.assertIn("--listen tcp:http", self.refusal("--listen", "tcp:http", *good))
        self.assertIn("--listen nonsense:1", self.refusal("--listen", "nonsense:1", *good))
        self.assertIn("--connect tcp:a", self.refusal("--listen", "tcp:0", "--connect", "tcp:a"))
        self.assertIn("--connect smc:a:b", self.refusal("--listen", "tcp:0", "--connect", "smc:a:b"))
        self.assertIn("--listen smc:0:color=red", self.refusal("--listen", "smc:0:color=red", *good))

    def test_service(self) -> None:
        """Valid strings create a service."""
        options = Options()
        options.parseOptions(["--listen", "tcp:0", "-c", "tcp:localhost:80"])
        self.assertTrue(IService.providedBy(makeService(options)))

    def test_plugin(self) -> None:
        """twistd lists the service."""
        names = {getattr(maker, "tapname", None) for maker in getPlugins(IServiceMaker)}
        self.assertIn("smc-proxy", names)
