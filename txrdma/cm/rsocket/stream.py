"""
The end of a stream over an RDMA connection: an L{RSocket}, on the transport of a connection for messages.

What is written waits for the end of the reactor's turn, or of a batch of completions. How connections end is
what TCP would tell: who closes hears C{ConnectionDone} when the peer's memory has all that was written, and
what has come before the peer's end is delivered before the protocol hears of that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from zope.interface import implementer

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IDelayedCall, IReactorCore
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.python.log import callWithContext

from txrdma.cm.connections.terms import MessageAddress
from txrdma.cm.interfaces import IMessageTransport, IPreparedProtocol
from txrdma.cm.messages import CMPath
from txrdma.cm.rsocket._core import RSocket, Sizes, understood
from txrdma.cm.rsocket._receiving import Violation
from txrdma.cm.rsocket.messages import ConnectionData
from txrdma.iba.verbs import Segment
from txrdma.interfaces import IMemoryRegion
from txrdma.streams import Address, Front

_log = Logger()

STOPPING_SECONDS: Final = 1.0
"""The time that a process which ends has for handing over what was written, and again for saying goodbye."""


def addressOf(address: MessageAddress) -> Address:
    """The address of an end, as Twisted has it for TCP."""
    kind = IPv6Address if ":" in address.host else IPv4Address
    return kind("TCP", address.host, address.port)


@implementer(IPreparedProtocol)
class StreamEnd:
    """
    An end of a connection: a protocol of messages, beneath one of bytes.

    @ivar host: the address of this end; C{peer}: the peer's.
    """

    answer = b""

    def __init__(
        self,
        reactor: Any,
        sizes: Sizes,
        keepalive: float | None,
        isClient: bool,
        dress: Callable[[StreamEnd], Front | None],
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        """
        @param keepalive: seconds between probes of an idle peer; None is never.
        @param dress: makes the transport, with the protocol; None where there is to be none.
        @param ended: called when the protocol has heard of the end.
        """
        self.isClient = isClient
        self.keepalive = keepalive
        self.context: dict[Any, Any] = {}
        self.protocol: Any = None
        self.isOpen = self.isEnding = self.isDeaf = self.isPaused = self.isNoticed = False
        self.disconnected = False
        self._reactor, self._sizes, self._dress, self._endedCall = reactor, sizes, dress, ended
        self._core: RSocket | None = None
        self._own = ConnectionData()
        self._peerData = ConnectionData()
        self._transport: IMessageTransport | None = None
        self._front: Front | None = None
        self._local: IMemoryRegion | None = None
        self._rest = b""
        self._failure: Failure | None = None
        self._isBusy = self._isGone = self._isClean = self._isReadEndTold = self._isLeaving = False
        self._wasCut = self._mustFlush = False
        self._later: IDelayedCall | None = None
        self._probing: IDelayedCall | None = None
        self._trigger: object = None
        self._stopping: Deferred[None] | None = None

    def __repr__(self) -> str:
        return f"<StreamEnd {'client' if self.isClient else 'server'} {self._transport!r}>"

    # Making it

    def prepare(self, transport: IMessageTransport) -> bytes:
        """Allocate the memory of the stream, and make the connection data that tell of it."""
        remote = transport.allocateMemory(self._sizes.remote)
        self._local = transport.allocateMemory(self._sizes.local)
        self._core = core = RSocket(self._sizes, remote.view, self._local.view)
        self._own = core.greeting(remote.address, remote.rkey)
        return self._own.encode()

    def introduce(self, privateData: bytes) -> None:
        """
        Take the connection data of the peer.

        @raise txrdma.error.WireError: they are of another version, or make no sense.
        """
        self._peerData = understood(privateData)

    def makeConnection(self, transport: IMessageTransport) -> None:
        """Begin: the connection is established."""
        assert self._core is not None
        self._transport = transport
        self.host: Address = addressOf(transport.getHost())
        self.peer: Address = addressOf(transport.getPeer().address)
        self._core.begin(self._own, self._peerData)
        front = self._dress(self)
        if front is None:
            transport.abortConnection()
            return
        self._front = front
        self.isOpen = True
        if IReactorCore.providedBy(self._reactor):
            self._trigger = self._reactor.addSystemEventTrigger("before", "shutdown", self._stopped)
        self.setKeepAlive(self.keepalive)
        self._isBusy = True
        callWithContext(self.context, front.begun)
        self._isBusy = False
        self._turn()

    def connectionMade(self) -> None:
        """Do nothing: C{makeConnection} has begun."""

    # What the application wants: see txrdma.streams

    @property
    def connected(self) -> bool:
        """Whether there is an application that has not heard of the end."""
        return self._front is not None

    @property
    def backlog(self) -> int:
        """Bytes that are not posted yet."""
        return 0 if self._core is None else self._core.backlog

    def write(self, data: bytes) -> int:
        """Take bytes to be sent; the length of the backlog."""
        if self._core is None or self._isLeaving:
            self._wasCut = True
        else:
            self._core.write(data)
            self._mustFlush = True
        self._soon()
        return self.backlog

    def writeSequence(self, chunks: Sequence[bytes]) -> None:
        """Take several byte strings to be sent."""
        self.write(b"".join(chunks))

    def close(self) -> None:
        """End the connection when all is posted that was written, and a producer is done."""
        if self.connected and not self.isDeaf:
            self.isDeaf = True
            self.closeWriting()

    def closeWriting(self) -> None:
        """Write nothing any more when all is posted that was written, and a producer is done."""
        self.isEnding = True
        self._soon()

    def abort(self) -> None:
        """End the connection at once, and forget what is not posted."""
        if self.connected and self._failure is None:
            self._giveUp(Failure(ConnectionAborted()))

    def resume(self) -> None:
        """Deliver again what arrives, soon."""
        if self.isPaused:
            self.isPaused = False
            self._soon()

    def blame(self, where: str) -> None:
        """End the connection because the application has raised: for its peer in order, as with TCP."""
        _log.failure("Unhandled error in {where}", where=where)
        self._failure = self._failure or Failure()
        self.isDeaf, self.isOpen = True, False
        if self._core is not None:
            self._core.drop()
            self._core.close()
        self._soon()

    def setKeepAlive(self, seconds: float | None) -> None:
        """Probe an idle peer so often, or never."""
        self.keepalive = seconds
        probing, self._probing = self._probing, None
        if probing is not None:
            probing.cancel()
        if seconds is not None and not self._isGone:
            self._probing = self._reactor.callLater(seconds, self._probe)

    def _probe(self) -> None:
        self._probing = None
        if self._core is not None and not self._isLeaving:
            self._core.probe()
        self.setKeepAlive(self.keepalive)
        self._turn()

    # What the connection brings: see IMessageProtocol

    def messageReceived(self, data: bytes, immediate: int | None) -> None:
        """End the connection: its peer does not speak this protocol."""
        self._violated("it has sent a message of another kind")

    def writeReceived(self, length: int, immediate: int) -> None:
        """Take a message of the peer."""
        core = self._core
        if core is None or core.isOver:
            return
        try:
            core.arrived(immediate, length)
        except Violation as error:
            self._violated(str(error))
        self._turn()

    def writeCompleted(self, identifier: int) -> None:
        """Note that a message is in the peer's memory."""
        # A producer that has written in its turn has its next one when that has arrived.
        if self._core is not None and (self._core.completed() or self._mustFlush):
            self._turn()

    def pathMigrated(self, path: CMPath) -> None:
        """Go on: where packets go is no concern of a stream."""

    def memoryLost(self) -> None:
        """Keep what has come and is not read."""
        core = self._core
        while core is not None and core.unread:
            self._rest += core.read()

    def connectionLost(self, reason: Failure) -> None:
        """End, by what the connection beneath says and by what the peer has said before."""
        core, self._core = self._core, None
        self._isGone, self._transport = True, None
        if core is not None:  # there is no memory any more
            self._wasCut = self._wasCut or core.wasCut
            hasSaid = not (core.isWritable or core.backlog) and reason.check(ConnectionDone) is not None
            self._isClean = core.isOver or core.hasParted or (self.isDeaf and hasSaid and core.isDelivered)
        self.setKeepAlive(None)
        self._soon()

    def _violated(self, what: str) -> None:
        _log.warn("{end} ends, as the peer breaks the rules: {what}", end=self, what=what)
        self._giveUp(Failure(ConnectionLost(what)))

    def _giveUp(self, failure: Failure) -> None:
        self._failure = failure
        self.isDeaf, self.isOpen = True, False
        if self._core is not None:
            self._core.drop()
        self._isLeaving = True
        self._reactor.callLater(0, self._cut)

    def _cut(self) -> None:
        if self._transport is not None:
            self._transport.abortConnection()
        else:
            self._turn()

    # A turn

    def _soon(self) -> None:
        """Have a turn when the reactor is done with what it does."""
        if not self._isBusy and self._later is None and self.connected:
            self._later = self._reactor.callLater(0, self._laterTurn)

    def _laterTurn(self) -> None:
        self._later = None
        self._turn()

    def _turn(self) -> None:
        """Deliver what has come, post what can be posted, and do what follows for the end."""
        if self._isBusy:
            return
        self._isBusy = True
        try:
            again = True
            while again and self.connected:
                self._deliver()
                self._post()
                again = self._conclude()
        finally:
            self._isBusy = False

    def _deliver(self) -> None:
        core = self._core
        while self.connected and (self.isDeaf or not self.isPaused):
            data, self._rest = self._rest, b""
            if not data and core is not None and core.unread:
                data = core.read()
            if not data:
                break
            if self.isDeaf:
                continue
            try:
                callWithContext(self.context, self.protocol.dataReceived, data)
            except BaseException:
                self.blame("dataReceived")

    def _post(self) -> None:
        """Post what can be posted, and let a producer have its turn when all is."""
        core, transport = self._core, self._transport
        if core is None or transport is None or self._isLeaving:
            return
        assert self._local is not None
        if self.isEnding and self.isOpen and not core.backlog and not self.isNoticed:
            self._endWriting(core)
        self._write(core, transport)
        front = self._front
        if self._mustFlush and not core.backlog and front is not None:
            self._mustFlush = False
            if self.isOpen:
                callWithContext(self.context, front.flushed)
                self._write(core, transport)

    def _write(self, core: RSocket, transport: IMessageTransport) -> None:
        assert self._local is not None
        address, lkey = self._local.address, self._local.lkey
        for begin, length, remote, rkey, immediate in core.outgoing():
            transport.write(Segment(address + begin, length, lkey), remote, rkey, immediate)

    def _endWriting(self, core: RSocket) -> None:
        """End writing: all is posted that was written."""
        self.isOpen = False
        if self.isDeaf:
            core.close()
            return
        core.closeWriting()
        if self._front is not None:
            callWithContext(self.context, self._front.writeEnded)

    def _conclude(self) -> bool:
        """Do what follows for the end; whether there is something to deliver or to post after that."""
        core = self._core
        if core is not None and core.isReadable and not (core.isOver or core.hasParted):
            return False  # the usual case
        if core is not None and core.isOver and not self._isLeaving:
            self.memoryLost()
            self._leave()
            return True
        if core is not None and core.hasParted:
            self._leave()
        isReadable = core.isReadable if core is not None else not self._isClean
        isUnread = bool(self._rest) or (core is not None and core.unread > 0)
        mayHear = not self.isPaused or self.isDeaf
        if mayHear and not (isReadable or isUnread or self._isReadEndTold):
            self._isReadEndTold = True
            self._readEnded()
            return True
        self._maybeEnd()
        return False

    def _leave(self) -> None:
        """End the connection beneath: both ends have said all that they have to say."""
        if not self._isLeaving:
            self._isLeaving = True
            if self._transport is not None:
                self._transport.loseConnection()

    def _readEnded(self) -> None:
        """Tell the protocol that all is read; who does not close by halves closes by that."""
        front = self._front
        if self.isDeaf or front is None:
            return
        if front.knowsHalves:
            callWithContext(self.context, front.readEnded)
            return
        self.isDeaf, self.isOpen = True, False
        callWithContext(self.context, front.dismiss)
        if self._core is not None:
            self._core.drop()
            self._core.close()

    def _maybeEnd(self) -> None:
        """Tell the protocol of the end, if there is nothing to come before."""
        if not self._isGone or (self._rest and not self.isDeaf and self._failure is None):
            return
        if self._failure is not None:
            self._end(self._failure)
        elif not self._isClean or (self._wasCut and not self._isReadEndTold):
            self._end(Failure(ConnectionLost()))
        elif self.isDeaf:
            self._end(Failure(ConnectionDone()))
        elif self._wasCut:
            self._end(Failure(ConnectionLost()))

    def _end(self, reason: Failure) -> None:
        front, self._front = self._front, None
        later, self._later = self._later, None
        if later is not None:
            later.cancel()
        if self._trigger is not None:
            self._reactor.removeSystemEventTrigger(self._trigger)
            self._trigger = None
        self.disconnected, self.isDeaf, self.isOpen = True, True, False
        if front is not None:
            callWithContext(self.context, front.ended, reason)
        self._endedCall()
        stopping, self._stopping = self._stopping, None
        if stopping is not None:
            stopping.callback(None)

    def _stopped(self) -> Deferred[None] | None:
        """Hand over what was written, as the process is about to end."""
        self._trigger = None
        if not self.connected:
            return None
        if not self.isDeaf and self._failure is None:
            self._failure = Failure(ConnectionLost())
        self.isDeaf, self.isNoticed, self.isEnding = True, False, True
        stopped: Deferred[None] = Deferred()
        self._stopping = stopped
        late = [
            self._reactor.callLater(STOPPING_SECONDS, self._hurry),
            self._reactor.callLater(2 * STOPPING_SECONDS, self._cut),
        ]
        self._turn()

        def cancel(_: None) -> None:
            for each in late:
                if each.active():
                    each.cancel()

        return stopped.addBoth(cancel)

    def _hurry(self) -> None:
        """Say goodbye without what the peer has no room for, as Twisted's TCP does."""
        if self._core is not None:
            self._core.drop()
        self._turn()
