"""
How streams by rsockets end, in simulated time.
"""

from __future__ import annotations

from typing import Any

from zope.interface import implementer

from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IPushProducer
from twisted.internet.protocol import Factory

from txrdma.cm.rsocket.endpoints import Options, RSocketClientEndpoint, RSocketServerEndpoint
from txrdma.test.support.cm.messaging import MessagingCase
from txrdma.test.support.smc.ends import Recorder

_UNPROBED = Options(keepalive=None)


@implementer(IPushProducer)
class Finishing:
    """A producer that has written everything, and unregisters when it is resumed."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.calls: list[str] = []

    def pauseProducing(self) -> None:
        self.calls.append("pause")

    def resumeProducing(self) -> None:
        self.calls.append("resume")
        self._transport.unregisterProducer()

    def stopProducing(self) -> None:
        self.calls.append("stop")


class ProducerTests(MessagingCase):
    """Connections that are closed while a producer is registered."""

    def test_finishesWhenResumed(self) -> None:
        """The connection ends at once when its producer unregisters as it is resumed, without any probe."""
        factory = Factory.forProtocol(Recorder)
        port: Any = self.successResultOf(
            RSocketServerEndpoint(self.clock, 7471, self.devices[1], options=_UNPROBED).listen(factory)
        )
        endpoint = RSocketClientEndpoint(self.clock, "10.0.1.2", 7471, self.devices[0], _UNPROBED)
        client = self.result(endpoint.connect(Factory.forProtocol(Recorder)))
        self.pause(0.1)  # until nothing is under way that would give the connection another turn
        producer = Finishing(client.transport)
        client.transport.registerProducer(producer, True)
        client.transport.write(bytes(70_000))  # few enough that the peer gives no more credits
        client.transport.loseConnection()
        self.wait(lambda: client.lost.called, 5.0)
        self.assertIs(client.reason.type, ConnectionDone)
        self.assertEqual(producer.calls, ["pause", "resume"])
        port.stopListening()
        self.assertNothingLeft()
