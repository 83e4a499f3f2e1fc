"""
The contract of message connections with the communication manager.
"""

from __future__ import annotations

from collections.abc import Callable

from txrdma.cm.connections.endpoints import IBClientEndpoint, USUAL
from txrdma.messages.protocol import MessageFactory
from txrdma.test.support.cm.messaging import MessagingCase, SERVICE
from txrdma.testing.contracts import AtomicMemoryContract, MessageContract, RemoteMemoryContract
from txrdma.testing.protocols import MessageRecorder


class MessageContractTests(AtomicMemoryContract, RemoteMemoryContract, MessageContract, MessagingCase):
    """Two hosts on a simulated network."""

    def connectedBy(self, one: MessageRecorder, other: MessageRecorder) -> None:
        self.serve(MessageFactory(lambda: other))
        endpoint = IBClientEndpoint(self.clock, SERVICE, self.path(), self.devices[0], USUAL)
        endpoint.connect(MessageFactory(lambda: one)).addErrback(lambda failure: self.fail(str(failure)))
        self.wait(lambda: one.transport and other.transport)

    def waitUntil(self, condition: Callable[[], object], seconds: float = 30.0) -> None:
        self.wait(condition, seconds)
