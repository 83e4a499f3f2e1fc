"""
The TCP connection beside an SMC-R connection: silent, until it tells how the peer ended.

While a connection lives on SMC-R its TCP connection carries nothing (RFC 7609, 4.8.2), but the kernel closes
it with the process that owns it, by FIN, and resets it where an application would be reset. So it knows what
the application would be told by plain TCP; what the link still has to say comes first.
"""

from __future__ import annotations

from typing import Final
from typing import Protocol as Shape

from zope.interface import implementer

from twisted.internet.interfaces import IDelayedCall, IHalfCloseableProtocol, IReactorTime
from twisted.internet.main import CONNECTION_DONE
from twisted.internet.protocol import connectionDone, Protocol
from twisted.internet.tcp import Connection
from twisted.logger import Logger
from twisted.python.failure import Failure

_log = Logger()

GRACE: Final = 0.5
"""
Seconds between the end of TCP and that of the link, or the last messages that are under way there.

A process that dies ends both, in no particular order.
"""


class MonitoredStream(Shape):
    """
    The stream, as its TCP connection sees it.

    @ivar hasReceivedEnd: the peer has said that it closes or aborts, or the application is gone: whatever
        becomes of TCP is no news.
    @ivar mayBeSilent: the peer has said that it writes no more, and owes us nothing.
    @ivar awaitsDelivery: the application has closed, and hears so when the peer has what was posted.
    @ivar hasArrived: the peer has all that was posted.
    @ivar isStopping: this process ends.
    """

    @property
    def hasReceivedEnd(self) -> bool: ...
    @property
    def mayBeSilent(self) -> bool: ...
    @property
    def awaitsDelivery(self) -> bool: ...
    @property
    def isStopping(self) -> bool: ...
    @property
    def hasArrived(self) -> bool: ...

    def doubt(self) -> None:
        """See of all that is posted whether it arrives (L{TCPMonitor.doubt}), since TCP has ended."""

    def look(self) -> None:
        """Take in what the link has brought."""

    def violated(self, what: str) -> None:
        """The peer does what it must not."""

    def vanished(self) -> None:
        """The peer's process is gone, and its kernel has closed TCP in order."""

    def reset(self) -> None:
        """The peer is lost, without a word; what has arrived is read first."""

    def stopped(self) -> None:
        """The process ends: take leave of the peer."""


@implementer(IHalfCloseableProtocol)
class TCPMonitor(Protocol):
    """
    Watches the TCP connection of one stream.

    @ivar tcp: the connection.
    """

    def __init__(self, stream: MonitoredStream, tcp: Connection, reactor: IReactorTime) -> None:
        self.tcp = tcp
        self._stream: MonitoredStream | None = stream
        self._reactor = reactor
        self._grace: IDelayedCall | None = None
        self._hasEnded = self._isLinkGone = self._isCut = False

    # What TCP brings

    def dataReceived(self, data: bytes) -> None:
        """Bytes where none may be: the peer has lost its way, or fell back and must hear of the end."""
        stream = self._stream
        if stream is not None:
            self.cut()  # first: a peer that fell back to TCP would take a FIN for an end in order
            stream.violated("bytes on the TCP connection")

    def readConnectionLost(self) -> None:
        """A FIN: the peer's process is gone, or (Linux) it has closed its writing half here, too."""
        self._hasEnded = True
        stream = self._stream
        if stream is None:
            self.tcp.loseConnection()
        else:
            stream.doubt()
            self._judge(stream)

    def writeConnectionLost(self) -> None:
        """Our half of TCP was closed, which only the end does."""

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """A reset, or the end of this process's reactor."""
        stream = self._stream
        if stream is None:
            return
        if stream.isStopping:
            stream.stopped()
            return
        stream.look()
        if not stream.hasReceivedEnd:
            stream.reset()

    # What the link brings

    def linkLost(self, mayVanish: bool) -> None:
        """
        There is no link any more; all that it had brought is taken in.

        @param mayVanish: nothing that the peer sent before can be missing, even if its process has died.
        """
        self._isLinkGone = True
        stream = self._stream
        if stream is None or stream.hasReceivedEnd:
            return
        if mayVanish:
            self._judge(stream)
        else:
            self._giveUp(stream)

    def _judge(self, stream: MonitoredStream) -> None:
        """Do what both together mean; wait for the second a while."""
        stream.look()
        if self._stream is None:
            return
        if stream.hasReceivedEnd:
            if self._hasEnded and stream.awaitsDelivery and not stream.hasArrived:
                self._wait()  # the peer's process may be gone, and nobody acknowledges any more
        elif self._hasEnded and self._isLinkGone:
            stream.vanished()
        elif self._isLinkGone or not stream.mayBeSilent:
            self._wait()

    def doubt(self) -> None:
        """See whether there is somebody to take what was posted after the end of TCP."""
        stream = self._stream
        if stream is not None and not stream.hasArrived:
            self._wait()

    def _wait(self) -> None:
        if self._grace is None:
            self._grace = self._reactor.callLater(GRACE, self._waited)

    def _waited(self) -> None:
        self._grace = None
        stream = self._stream
        if stream is None:
            return
        if stream.hasReceivedEnd:
            if stream.awaitsDelivery and not stream.hasArrived:
                stream.reset()
        elif self._isLinkGone or not stream.mayBeSilent or not stream.hasArrived:
            self._giveUp(stream)

    def _giveUp(self, stream: MonitoredStream) -> None:
        if self._isLinkGone:
            self.cut()
        stream.reset()

    def cut(self) -> None:
        """Reset TCP: the peer may be alive, and hears by no other way that there is no link any more."""
        self._isCut = True
        self.tcp.abortConnection()

    # The end

    def finish(self, inOrder: bool) -> None:
        """
        Close TCP: the stream is over, for its application at least.

        In order that is done at once, not in the reactor's next turn: an application that has heard of the
        end may look what is left in the reactor, as trial does.

        @param inOrder: by FIN; otherwise by a reset, so that a peer that does not know yet hears of it.
        """
        self._stream = None
        grace, self._grace = self._grace, None
        if grace is not None and grace.active():
            grace.cancel()
        with _log.failuresHandled(
            "Unhandled error at the end of {tcp}", tcp=self.tcp
        ):  # by a client's factory
            self._finishTCP(inOrder)

    def _finishTCP(self, inOrder: bool) -> None:
        tcp = self.tcp
        if not inOrder:
            tcp.abortConnection()
        elif not tcp.connected or self._isCut:
            pass
        elif tcp.dataBuffer or tcp._tempDataLen:
            tcp.loseConnection()
            why = tcp.doWrite()
            if why is not None:
                tcp.connectionLost(Failure(why))
        else:  # that comes to the same, by five system calls more
            tcp.connectionLost(Failure(CONNECTION_DONE))
