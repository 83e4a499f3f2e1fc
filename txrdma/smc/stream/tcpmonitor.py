"""
Monitor of the TCP connection beside an SMC-R connection: detects how the peer ended.

While a connection uses SMC-R, its TCP connection carries no data (RFC 7609, 4.8.2). But the kernel closes it
with the process that owns it: by FIN, or by a reset where plain TCP would be reset. So its end shows the
reason that plain TCP would report. Messages that the link still has to deliver take precedence.

Theory of operation. Three events show how the peer ended, in any order: its state flags on the link, the end
of TCP, and the end of the link.

  - After its flags, the stream ends as they say. If TCP has ended, too, the monitor waits for the
    acknowledgement of the stream's last messages.
  - If TCP and the link have both ended without flags, the peer's process has exited.
  - If only one of them has ended, the others may be late: the monitor waits for L{GRACE} and longer. If they
    do not come, the peer is lost.

On a busy host a process may not run for seconds, at any point. So a process that ends sends the end of a
stream on the link before TCP closes. A link of shared memory ends with the peer's process: while it exists, a
missing message is only late.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from zope.interface import implementer

from twisted.internet.interfaces import IDelayedCall, IHalfCloseableProtocol, IPushProducer, IReactorTime
from twisted.internet.main import CONNECTION_DONE
from twisted.internet.protocol import connectionDone, Protocol
from twisted.internet.tcp import Connection
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.error import WireError
from txrdma.kit.delayedcalls import cancelCall, isPending
from txrdma.smc.group.interfaces import LinkedStream
from txrdma.smc.wire.clc import Decline, decodeFirst

_log = Logger()

_DONE: Final = Failure(CONNECTION_DONE)

GRACE: Final = 0.5
"""Seconds for the last acknowledgement after the end of TCP, and for the end of TCP after the link's."""

PACKET_GRACE: Final = 2.0
"""
Time in seconds after the end of TCP, without any message on the link, after which the peer is lost.

It decides only if packets are lost, since a stream ends before its TCP connection. They are sent again after
timeouts, which grow while a host is busy. Nothing else shows that a process was killed, so it is not longer.
"""

LONGEST_GRACE: Final = 10.0
"""Time in seconds after the end of TCP after which the peer is lost, even if the link still exists."""


@implementer(IHalfCloseableProtocol, IPushProducer)
class TCPMonitor(Protocol):
    """
    Protocol of the TCP connection of one stream.

    @ivar _stream: the stream; None after its end.
    @ivar _grace: the call after the grace period, while the monitor waits, since C{_waitingSince}.
    @ivar _hasEnded: the peer has closed TCP; C{_hasLinkEnded}: the link has ended.
    @ivar _isCut: TCP was reset by this end.
    """

    def __init__(
        self, stream: LinkedStream, tcp: Connection, reactor: IReactorTime, clock: Callable[[], float]
    ) -> None:
        """@param clock: returns the time in seconds; it never goes back."""
        self.tcp = tcp
        self._stream: LinkedStream | None = stream
        self._reactor = reactor
        self._seconds = clock
        self._grace: IDelayedCall | None = None
        self._waitingSince = 0.0
        self._hasEnded = self._hasLinkEnded = self._isCut = False
        tcp.registerProducer(self, True)  # for stopProducing

    # Called by TCP

    def dataReceived(self, data: bytes) -> None:
        """Close the connection: data on TCP is a violation, or the peer has fallen back to TCP."""
        stream = self._stream
        if stream is not None:
            self.cut()  # first: a peer that fell back to TCP would take a FIN for an orderly end
            try:
                _size, message = decodeFirst(data)
            except WireError:
                message = None
            if isinstance(message, Decline):
                stream.declined(message.diagnosis)
            else:
                stream.violated("bytes on the TCP connection")

    def readConnectionLost(self) -> None:
        """Handle a FIN: the peer's process has ended, or (Linux) it has closed its write side."""
        self._hasEnded = True
        stream = self._stream
        if stream is None:
            self.tcp.loseConnection()
        else:
            stream.confirmEach()
            self._decide(stream)

    def writeConnectionLost(self) -> None:
        """Do nothing: the local half is closed only at the end."""

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Handle a reset, or the end of this process's reactor."""
        stream = self._stream
        if stream is None or stream.isStopping:
            return
        stream.poll()
        if not stream.hasReceivedEnd:
            stream.reset()

    def stopProducing(self) -> None:
        """Send the end of the stream if the process stops: Twisted calls this before it closes the socket."""
        stream = self._stream
        if stream is not None and stream.isStopping:
            stream.stopped()

    def pauseProducing(self) -> None:
        """Do nothing: nothing is written to TCP."""

    resumeProducing = pauseProducing

    # Called by the stream

    def linkLost(self, mayHaveExited: bool) -> None:
        """Handle the end of the link, after its last messages; C{mayHaveExited}: no data is missing."""
        self._hasLinkEnded = True
        stream = self._stream
        if stream is None or stream.hasReceivedEnd:
            return
        if mayHaveExited:
            self._decide(stream)
        else:
            self._reset(stream)

    def _decide(self, stream: LinkedStream) -> None:
        """Decide how the peer ended, from the ends of both TCP and the link."""
        stream.checkReceipt()
        if self._stream is None:
            return
        if stream.hasReceivedEnd:
            if self._hasEnded and stream.awaitsDelivery and not stream.hasArrived:
                self._wait()  # the peer's process may have died without acknowledging
        elif self._hasEnded and self._hasLinkEnded:
            stream.peerExited()
        elif self._hasLinkEnded or not stream.mayBeSilent:
            self._wait()

    def confirmEach(self) -> None:
        """Wait for an acknowledgement of messages posted after the end of TCP."""
        stream = self._stream
        if stream is not None and not stream.hasArrived:
            self._wait()

    def _wait(self) -> None:
        if self._grace is None:
            self._waitingSince = self._seconds()
            self._grace = self._reactor.callLater(GRACE, self._graceEnded)

    def clockSetBack(self) -> None:
        """Start the grace period of the TCP connection again: its timer is late if the clock was set back."""
        if isPending(self._grace):
            cancelCall(self._grace)
            self._grace = self._reactor.callLater(GRACE, self._graceEnded)

    def _graceEnded(self) -> None:
        """Let the reactor read TCP first, since a process that did not run has late calls."""
        self._grace = self._reactor.callLater(0, self._decideAfterGrace)

    def _decideAfterGrace(self) -> None:
        """Wait longer, or consider the peer lost."""
        stream, self._grace = self._stream, None
        if stream is None:
            return
        now = self._seconds()
        until = now if self._hasLinkEnded else self._deadline(stream)
        if self._stream is None:
            pass
        elif until > now:
            self._grace = self._reactor.callLater(until - now, self._graceEnded)
        elif stream.hasReceivedEnd:
            if stream.awaitsDelivery and not stream.hasArrived:
                stream.reset()
        elif self._hasLinkEnded or not stream.mayBeSilent or not stream.hasArrived:
            self._reset(stream)

    def _deadline(self, stream: LinkedStream) -> float:
        """Return the time until which to wait for messages of the link, which come late if a host is busy."""
        since = self._waitingSince
        receivedAt, latest = max(since, stream.checkReceipt()), since + LONGEST_GRACE
        if stream.isShared and not stream.hasReceivedEnd:
            return latest  # the peer's process exists
        return min(receivedAt + (GRACE if stream.isShared else PACKET_GRACE), latest)

    def _reset(self, stream: LinkedStream) -> None:
        """End the stream, whose peer is lost, as a reset ends TCP."""
        if self._hasLinkEnded:
            self.cut()
        stream.reset()

    def cut(self) -> None:
        """Reset TCP: otherwise a live peer does not notice that the link has failed."""
        self._isCut = True
        self.tcp.abortConnection()

    # The end

    def finish(self, inOrder: bool) -> None:
        """
        Close TCP, because the stream has ended, for its application at least.

        An orderly close happens at once, not in the next reactor iteration, since an application that got
        C{connectionLost} may check that the reactor is clean, as trial does.

        @param inOrder: close by FIN; otherwise by a reset, which a peer notices even if it is in its
            handshake.
        """
        self._stream = None
        cancelCall(self._grace)
        try:
            self._finishTCP(inOrder)
        except BaseException:  # a client's factory may raise
            _log.failure("Unhandled error at the end of {tcp}", tcp=self.tcp)

    def _finishTCP(self, inOrder: bool) -> None:
        tcp = self.tcp
        if not inOrder:
            tcp.abortConnection()
        elif not tcp.connected or self._isCut:
            pass
        elif len(tcp.dataBuffer) + getattr(tcp, "_tempDataLen", 1):
            tcp.loseConnection()
            why = tcp.doWrite()
            if why is not None:
                tcp.connectionLost(Failure(why))
        else:  # saves five system calls compared with loseConnection
            tcp.connectionLost(_DONE)
