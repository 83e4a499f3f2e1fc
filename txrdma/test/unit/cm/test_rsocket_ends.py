"""
How streams by rsockets end, in simulated time.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.error import ConnectionDone
from twisted.internet.protocol import Factory

from txrdma.cm.rsocket.endpoints import Options, RSocketClientEndpoint, RSocketServerEndpoint
from txrdma.test.support.cm.messaging import MessagingCase
from txrdma.testing.protocols import ProducerRecorder, Recorder

_UNPROBED = Options(keepalive=None)


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
        producer = ProducerRecorder(client.transport.unregisterProducer)
        client.transport.registerProducer(producer, True)
        client.transport.write(bytes(70_000))  # few enough that the peer gives no more credits
        client.transport.loseConnection()
        self.wait(lambda: client.lost.called, 5.0)
        self.assertIs(client.reason.type, ConnectionDone)
        self.assertEqual(producer.calls, ["pause", "resume"])
        port.stopListening()
        self.assertNothingLeft()
