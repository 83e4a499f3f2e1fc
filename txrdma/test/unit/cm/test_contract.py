"""The contract of message connections with the communication manager."""

from __future__ import annotations

from collections.abc import Callable

from txrdma.messages.protocol import MessageFactory
from txrdma.test.support.cm.messaging import MessagingCase
from txrdma.testing.contracts import AtomicMemoryContract, MessageContract, RemoteMemoryContract
from txrdma.testing.protocols import MessageRecorder


class MessageContractTests(AtomicMemoryContract, RemoteMemoryContract, MessageContract, MessagingCase):
    """Two hosts on a simulated network, with a service ID as of C{ib:}."""

    def connectedBy(self, one: MessageRecorder, other: MessageRecorder) -> None:
        self.serve(MessageFactory(lambda: other))
        connecting = self.connectBy(self.path(), MessageFactory(lambda: one))
        connecting.addErrback(lambda failure: self.fail(str(failure)))
        self.wait(lambda: one.transport and other.transport)

    def waitUntil(self, condition: Callable[[], object], seconds: float = 30.0) -> None:
        self.wait(condition, seconds)


class PortContractTests(MessageContractTests):
    """The same with a port as of C{rdma:}."""

    def connectedBy(self, one: MessageRecorder, other: MessageRecorder) -> None:
        self.listenAt(MessageFactory(lambda: other))
        self.result(self.connectTo(MessageFactory(lambda: one)))
        self.wait(lambda: one.transport and other.transport)
