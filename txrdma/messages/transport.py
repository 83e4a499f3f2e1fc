"""
The base class of message transports: producers, exceptions of the application, and the reactor's shutdown.

Each kind of connection subclasses L{MessageTransport}. It calls C{_begin} when the connection is established,
C{_pauseProducer} and C{_resumeProducer} depending on the queued messages, and C{_end} when the connection has
ended. C{_call} calls the application: an exception closes this connection only.
"""

from __future__ import annotations

from collections.abc import Callable
from errno import EADDRINUSE, EADDRNOTAVAIL
from operator import methodcaller
from typing import Any, ClassVar

from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IPushProducer
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.error import DeviceUnavailable, RDMAError
from txrdma.kit.compiling import mypyc_attr
from txrdma.kit.connectionlog import ConnectionRecord
from txrdma.kit.shutdown import IClosesOnShutdown, Stopping
from txrdma.messages.address import MessageAddress

_log = Logger()


def cannotListen(device: Any, port: object, error: RDMAError) -> CannotListenError:
    """
    Return the error of a server that cannot listen; as over TCP, it contains that of a system call.

    @param device: the device, or its string; C{port}: the port, or the service.
    """
    place = device if isinstance(device, str) else device.name
    usual = EADDRNOTAVAIL if isinstance(error, DeviceUnavailable) else EADDRINUSE
    number = getattr(error.__cause__, "errno", None) or usual
    text = str(error).replace(f"[Errno {number}] ", "")  # which that of OSError begins with
    return CannotListenError(place, port, OSError(number, text))


@mypyc_attr(allow_interpreted_subclasses=True)
class MessageTransport:
    """
    The base of transports that provide L{IMessageTransport<txrdma.messages.interfaces.IMessageTransport>}.

    @cvar kind: the prefix of endpoint strings, for the log.
    @ivar protocol: the L{IMessageProtocol<txrdma.messages.interfaces.IMessageProtocol>} of the connection.
    @ivar route: the path of the data, such as C{shared-memory}.
    @ivar isClient: whether this end has opened the connection.
    @ivar record: counts the bytes of messages for the log; from C{_begin} on.
    """

    kind: ClassVar[str]
    protocol: Any = None
    isClient = False
    record: ConnectionRecord
    _producer: IPushProducer | None = None
    _isStreaming = False
    _isProducerPaused = False
    _stopping: Stopping | None = None

    # For subclasses

    @property
    def _hasEnded(self) -> bool:
        """Whether the connection is closed."""
        raise NotImplementedError

    def _proceed(self) -> None:
        """Send queued messages. After C{loseConnection}, close when all are sent and there is no producer."""
        raise NotImplementedError

    def _applicationFailed(self) -> None:
        """Close the connection at once, because the application raised an exception."""
        self.abortConnection()

    def loseConnection(self) -> None:
        raise NotImplementedError

    def abortConnection(self) -> None:
        raise NotImplementedError

    @property
    def route(self) -> str:
        raise NotImplementedError

    def getHost(self) -> MessageAddress:
        raise NotImplementedError

    def getPeer(self) -> MessageAddress:
        raise NotImplementedError

    def _begin(self, reactor: Any) -> None:
        """Connect the protocol, and let the connection be closed when the reactor stops."""
        self._seconds: Callable[[], float] = reactor.seconds
        self.record = ConnectionRecord(self.isClient, self.route, reactor.seconds())
        self._stopping = Stopping(reactor, self.protocol, self.leave, self.abortConnection)
        self._call(methodcaller("makeConnection", self), self.protocol)

    def _end(self, reason: Failure) -> None:
        """
        Stop the producer, log the end, and call C{connectionLost}. Streams log their end themselves.

        It may be called again after an exception.
        """
        if self.protocol is not None:
            with _log.failuresHandled("{transport}: its end cannot be logged", transport=self):
                self._dismissProducer()
                if not IClosesOnShutdown.providedBy(self.protocol):
                    self.record.ended(self.kind, (self.getHost(), self.getPeer()), reason, self._seconds())
            try:
                self._call(methodcaller("connectionLost", reason), self.protocol)
            finally:
                self.protocol = None  # also after a SystemExit: it is called once
        if self._stopping is not None:
            self._stopping.ended()
            self._stopping = None

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        """Call the application; an exception closes this connection only."""
        try:
            function(*arguments)
        except Exception:
            self._logFailure()

    def _logFailure(self) -> None:
        """Log the current exception of the application, and close the connection."""
        _log.failure("{transport} closes, because the application raised an exception", transport=self)
        self._applicationFailed()

    # The producer

    def registerProducer(self, producer: IPushProducer, streaming: bool) -> None:
        if self._producer is not None:
            raise RuntimeError("the connection has a producer already")
        if self._hasEnded:
            producer.stopProducing()
            return
        self._producer, self._isStreaming, self._isProducerPaused = producer, streaming, not streaming
        if not streaming:
            producer.resumeProducing()

    def unregisterProducer(self) -> None:
        self._producer = None
        self._proceed()

    def _pauseProducer(self) -> None:
        """Pause a push producer; a pull producer is not called until C{_resumeProducer}."""
        if self._producer is not None and not self._isProducerPaused:
            self._isProducerPaused = True
            self._call(methodcaller("pauseProducing"), self._producer)

    def _resumeProducer(self) -> None:
        if self._producer is not None and self._isProducerPaused:
            self._isProducerPaused = not self._isStreaming  # a pull producer is called again
            self._call(methodcaller("resumeProducing"), self._producer)

    def _dismissProducer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            self._call(methodcaller("stopProducing"), producer)

    # Closing

    def stopProducing(self) -> None:
        """Close the connection, since its consumer wants no more messages."""
        self.loseConnection()

    def leave(self) -> None:
        """Close the connection as C{loseConnection} does, without waiting for the producer."""
        self._dismissProducer()
        self.loseConnection()


def protocolFor(factory: Any, peer: object) -> Any:
    """
    Build a protocol.

    @param factory: a factory of messages, or of streams.
    @return: None if the factory rejects the connection.
    @raise TypeError: the factory has built something else.
    """
    protocol = factory.buildProtocol(peer)
    if protocol is not None and not callable(getattr(protocol, "makeConnection", None)):
        raise TypeError(f"{factory!r} built {protocol!r}, which is not a protocol")
    return protocol
