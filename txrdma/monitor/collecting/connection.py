"""Base of both ends of the connection between a monitor and a collector."""

from __future__ import annotations

from typing import Any

from twisted.logger import Logger
from twisted.protocols.basic import Int32StringReceiver

from txrdma.error import RDMAError
from txrdma.kit.connectionlog import describe
from txrdma.monitor.collecting.wire import MOST_BYTES

_log = Logger()


class MessageConnection(Int32StringReceiver):
    """A connection of messages, each after its length; one that is too long or invalid closes it."""

    MAX_LENGTH = MOST_BYTES
    transport: Any
    _hasEnded = False

    def send(self, message: bytes) -> None:
        self.sendString(message)  # type: ignore[no-untyped-call]  # of Twisted's

    def stringReceived(self, string: bytes) -> None:
        if not self._hasEnded:
            try:
                self.messageReceived(string)
            except RDMAError as error:
                self.end(str(error))

    def lengthLimitExceeded(self, length: int) -> None:
        self.end(f"a message has {length} bytes")

    def messageReceived(self, message: bytes) -> None:
        """Process a message; the connection ends with the reason of an L{RDMAError}."""
        raise NotImplementedError

    def end(self, reason: str) -> None:
        """Log the reason, and end the connection. Idempotent."""
        if not self._hasEnded:
            self._hasEnded = True
            peer = describe(self.transport.getPeer())
            _log.warn("the connection with {peer} ends: {why}", peer=peer, why=reason)
            self.transport.abortConnection()
