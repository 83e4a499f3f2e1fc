"""Exchange of pingpong messages between two ends over any stream transport."""

from __future__ import annotations

from collections import deque
from typing import Final, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime, ITCPTransport
from twisted.internet.protocol import connectionDone, Protocol
from twisted.python.failure import Failure

from txrdma.error import RDMAError, Refused, WireError
from txrdma.pingpong.bootstrap import decode, encode, LineSplitter, Message, nameOf, Trouble

ANSWER_SECONDS: Final = 15.0
_MOST_WAITING: Final = 16

_M = TypeVar("_M", bound=Message)


class ConversationLost(RDMAError):
    """The connection to the other end is lost or was closed, or the other end does not answer in time."""


class Conversation(Protocol):
    """
    Protocol that sends messages, and receives them one at a time.

    Its end is reported by L{receive} and C{broken}; messages sent later are discarded.

    @ivar opened: fires when the transport is connected.
    @ivar broken: fires once, with the error that has ended the conversation.
    @ivar error: error that has ended the conversation; None until then.
    @ivar gone: fires when the transport is disconnected.
    """

    def __init__(self, reactor: IReactorTime) -> None:
        self.opened: Deferred[Conversation] = Deferred()
        self.broken: Deferred[Exception] = Deferred()
        self.gone: Deferred[None] = Deferred()
        self._reactor = reactor
        self._splitter = LineSplitter()
        self._received: deque[Message] = deque()
        self._waiting: Deferred[Message] | None = None
        self.error: Exception | None = None

    # Messages.

    def send(self, message: Message) -> None:
        """Send a message, unless the conversation has ended."""
        if self.error is None and self.transport is not None:
            self.transport.write(encode(message))

    async def receive(self, *kinds: type[_M], seconds: float | None = ANSWER_SECONDS) -> _M:
        """
        Wait for the next message, which must be of one of these kinds.

        @param seconds: timeout; None for no timeout.
        @raise Refused: the peer has sent C{trouble}.
        @raise ConversationLost: the connection is lost or the timeout has expired.
        @raise WireError: the message is invalid or of another kind.
        """
        message = await self._next(seconds)
        if not isinstance(message, kinds):
            wanted = " or ".join(map(nameOf, kinds))
            error = WireError("pingpong message", 0, f"{nameOf(type(message))} instead of {wanted}")
            self.end(error)
            raise error
        return message

    def end(self, error: Exception, shouldReport: bool = True) -> None:
        """End the conversation with an error, which by default is sent to the peer as C{trouble}."""
        if self.error is not None:
            return
        if shouldReport:
            self.send(Trouble(str(error)))
        self.error = error
        if self.transport is not None:
            self.transport.loseConnection()
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.errback(error)
        self.broken.callback(error)

    # IProtocol

    def connectionMade(self) -> None:
        """Disable Nagle's algorithm, enable keepalive, and fire C{opened}."""
        transport = ITCPTransport(self.transport, None)
        if transport is not None:
            transport.setTcpNoDelay(True)
            transport.setTcpKeepAlive(True)
        self.opened.callback(self)

    def dataReceived(self, data: bytes) -> None:
        try:
            for line in self._splitter.take(data):
                if self.error is None:
                    self._take(decode(line))
        except WireError as error:
            self.end(error)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """End the conversation, and fire C{gone}."""
        self.end(ConversationLost("the other end has gone"), shouldReport=False)
        self.gone.callback(None)

    def _take(self, message: Message) -> None:
        if isinstance(message, Trouble):
            self.end(Refused(f"the other end reports: {message.reason}"), shouldReport=False)
        elif self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            waiting.callback(message)
        elif len(self._received) < _MOST_WAITING:
            self._received.append(message)
        else:
            self.end(WireError("pingpong message", 0, "more than requested"))

    def _next(self, seconds: float | None) -> Deferred[Message]:
        waiting: Deferred[Message] = Deferred(self._forget)
        if self._received:
            waiting.callback(self._received.popleft())
        elif self.error is not None:
            waiting.errback(self.error)
        else:
            self._waiting = waiting
            if seconds is not None:
                waiting.addTimeout(seconds, self._reactor, self._late)
        return waiting

    def _forget(self, waiting: Deferred[Message]) -> None:
        self._waiting = None

    def _late(self, result: object, seconds: float) -> Failure:
        self.end(ConversationLost(f"the other end has sent nothing for {seconds:g} seconds"))
        assert self.error is not None
        return Failure(self.error)
