"""
The lifeline: a TCP connection over which two modules introduce themselves and detect each other's end.

Before the first message each end sends two probes, a small packet and one as long as the MTU allows, so that
a path that drops long packets is reported as an error instead of stalling the connection. Each probe carries
a nonce, which the receiver echoes over the lifeline (as in RFC 9000, 8.2). The echo of the small one proves
that the peer receives packets at the address that it announced; only then the long probe and messages are
sent. After the last message the lifeline carries the last acknowledgement, so that neither end has to linger.

If the ends have several matching interfaces, each pair is a path of the connection with its own probes, and
messages use all of them: see L{txrdma.btl.core.path}.

As with TCP, the server is connected first: it sends READY when its probes have arrived. The client is
connected when it has received READY and its own probes have arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from secrets import randbits
from typing import Any, Final, Protocol

from twisted.internet.defer import CancelledError
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IAddress, ITCPTransport
from twisted.internet.protocol import connectionDone
from twisted.internet.protocol import Protocol as StreamProtocol
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.btl.core.events import (
    Event,
    MessageReceived,
    PackReceived,
    PeerClosed,
    ProbeReceived,
    ReceiveBufferRequested,
    SendCompleted,
    SendFailed,
)
from txrdma.btl.core.matching import Interface, match
from txrdma.btl.core.module import AMPLIFICATION
from txrdma.btl.core.path import FAILURES_ONLY, Message
from txrdma.btl.core.peer import Peer, PEER_CLOSED, REMOVED
from txrdma.btl.ends import deviceAt, DeviceSpecs, severalDevices
from txrdma.btl.errors import MessageFailed, PeerLost, Unreachable
from txrdma.btl.introductions import (
    checkVersion,
    decodeInterfaces,
    encodeInterfaces,
    frame,
    FrameHead,
    FrameKind,
    HEAD_LENGTH,
    Introduction,
    INTRODUCTION_LENGTH,
    isDecidable,
    LONGEST_FRAME,
)
from txrdma.btl.module import ChannelAddress, moduleOf, ModulePort
from txrdma.btl.probes import interfaceOf, PathValidation
from txrdma.btl.receivebuffers import RemoteReceiveBuffers
from txrdma.btl.wire import HEADER_LENGTH, VOID
from txrdma.error import RDMAError, WireError
from txrdma.iba.verbs import Buffer
from txrdma.kit.delayedcalls import Timer
from txrdma.kit.strings import escaped
from txrdma.kit.tcpkeepalive import keepAlive

_log = Logger()

PROBE_SECONDS: Final = 10.0
"""Seconds in which the probes must arrive: the time of usnic's forty attempts."""

EXCHANGE_SECONDS: Final = 30.0
"""Seconds in which both ends must be ready."""

TCP_KEEP_ALIVE: Final = (30, 10, 18)
"""
Keepalive of the lifeline, so that no middlebox on its path drops the connection's state: seconds of silence
before a probe, seconds between probes, and probes without an answer before the peer is lost: 3.5 minutes,
later than L{txrdma.btl.core.window.GIVE_UP}.
"""

MOST_EARLY: Final = 1024
"""
Largest number of messages that are queued until this end is connected, because the peer may be connected
slightly earlier; with more the connection fails. L{txrdma.btl.core.module.MOST_EARLY_BYTES} limits their
bytes.
"""

TCP_OVERHEAD: Final = 120
"""Bytes of headers that a client has sent at least when its introduction arrives: three of IPv4 and TCP."""

_GRACE_TURNS: Final = 3

Done = Callable[[Exception | None], None]
"""The outcome of a message: None if it has arrived, else the error."""


class LifelineUser(Protocol):
    """The user of a lifeline: L{BTLMessageTransport<txrdma.btl.transport.BTLMessageTransport>}."""

    def deliverMessages(self, messages: Sequence[tuple[int, memoryview]]) -> None: ...
    def eventsReported(self) -> None: ...
    def ended(self, reason: Failure) -> None: ...
    def isReport(self, tag: int) -> bool: ...


class PeerConnection(StreamProtocol):
    """
    The connection to a peer, from the exchange over TCP to its end.

    @ivar user: receives messages, after C{established} was called.
    @ivar host: local address of the TCP connection; C{peerHost}: the peer's.
    @ivar module: the module of the connection; C{peer}: its peer, after the introduction.
    @ivar isClient: whether this end has opened the TCP connection.
    """

    module: ModulePort
    peer: Peer
    host: IAddress | None = None
    peerHost: IAddress | None = None

    def __init__(
        self,
        reactor: Any,
        device: DeviceSpecs,
        established: Callable[[PeerConnection], LifelineUser | None],
        failed: Callable[[Failure], None],
        isClient: bool,
    ) -> None:
        """
        @param device: see L{DeviceSpecs}.
        @param established: called when messages can be sent; returns the receiver of events, or None to
            close.
        @param failed: called instead with the reason.
        @param isClient: whether this end has opened the TCP connection.
        """
        self._reactor, self._device = reactor, device
        self._established, self._failed = established, failed
        self.user: LifelineUser | None = None
        self._release: Callable[[], None] = lambda: None
        self._local: list[Introduction] = []  # of each port of the module
        self._validation: PathValidation | None = None  # after the peer's introduction
        self._first = 0  # the port of the path whose introduction is the peer's first
        self._receiveBuffers: RemoteReceiveBuffers | None = None
        self._received = b""
        self._introduction: Introduction | None = None
        self.isClient, self._isPeerReady = isClient, not isClient
        self._isOver = self._isClean = self._hasFailed = self._isAborted = False
        self._receivedBytes = 0
        self._early: list[tuple[int, memoryview]] = []
        self._lastAck: bytes | None = None
        self._failure: Failure | None = None
        self._timer, self._ending = Timer(reactor), Timer(reactor)

    def __repr__(self) -> str:
        return f"<PeerConnection to {self.peerHost}>"

    # Exchange

    def connectionMade(self) -> None:
        """Send the introduction."""
        transport: Any = self.transport
        self.host, self.peerHost = transport.getHost(), transport.getPeer()
        if ITCPTransport.providedBy(transport):
            transport.setTcpNoDelay(True)
            keepAlive(transport, *TCP_KEEP_ALIVE)
        self._timer.startAndRead(EXCHANGE_SECONDS, self._exchangeTimedOut)
        try:
            self._openModule(transport.getHost().host)
        except Exception:  # any failure to open a module: the peer waits for an answer
            self._giveUp(Failure())
            return
        transport.write(self._local[0].encode())

    def _openModule(self, host: str) -> None:
        """Open the module of all devices."""
        devices = [deviceAt(host) if each is None else each for each in severalDevices(self._device)]
        self.module = module = moduleOf(self._reactor, *devices)
        self._release = module.hold()
        name, sequence, count = module.newName(), randbits(32), len(module.ports)
        self._local = [Introduction.of(port.address, name, sequence, count) for port in module.ports]

    def dataReceived(self, data: bytes) -> None:
        """Process the peer's introduction and the following frames, or the reason why it has no module."""
        if self._isOver:
            return
        self._received += data
        self._receivedBytes += len(data)
        try:
            if self._introduction is None and self._received[0] != FrameKind.FAILED:
                if not isDecidable(self._received):
                    return
                checkVersion(int.from_bytes(self._received[:3], "big"), self._received[3])
                self._introduction = Introduction.decode(self._received)
                self._received = self._received[INTRODUCTION_LENGTH:]
                self._introduced(self._introduction)
            while not self._isOver and len(self._received) >= HEAD_LENGTH:
                head = FrameHead.decode(self._received)
                if head.length > LONGEST_FRAME:
                    raise WireError("FrameHead", 2, f"a frame of {head.length} bytes is too long")
                end = HEAD_LENGTH + head.length
                if len(self._received) < end:
                    break
                content, self._received = self._received[HEAD_LENGTH:end], self._received[end:]
                self._frameReceived(head.kind, content)
        except RDMAError:
            self._giveUp(Failure())

    def _introduced(self, introduction: Introduction) -> None:
        """Add the peer, or if an end has several interfaces, exchange these first."""
        if not self._local or self._isOver:
            return
        introduction.check()
        if introduction.interfaces == len(self._local) == 1:
            self._addPeer([(0, introduction)])
        else:
            offers = [
                (each, interfaceOf(port)) for each, port in zip(self._local, self.module.ports, strict=True)
            ]
            self._sendFrame(FrameKind.INTERFACES, encodeInterfaces(offers))

    def _match(self, remote: Sequence[tuple[Introduction, Interface]]) -> None:
        """Choose the paths; the peer chooses the same ones."""
        local = [interfaceOf(port) for port in self.module.ports]
        others = [each for _introduction, each in remote]
        if self.isClient:
            pairs = match(local, others)
        else:
            pairs = [(here, there) for there, here in match(others, local)]
        if not pairs:
            ends = (", ".join(str(each.gid.ip or each.gid) for each in some) for some in (local, others))
            raise Unreachable("there is no route from {} to {}".format(*ends))
        self._addPeer([(here, remote[there][0]) for here, there in pairs])

    def _addPeer(self, chosen: Sequence[tuple[int, Introduction]]) -> None:
        """
        Add the peer to the module, and send probes.

        @param chosen: ports of the module, each with the peer's introduction.
        """
        module, local, remote = self.module, self._local[0], chosen[0][1]
        peerAddresses: list[ChannelAddress | None] = [None] * len(module.ports)
        for port, introduction in chosen:
            peerAddresses[port] = introduction.address
        self.peer = peer = module.addPeer(
            *(local.name, remote.name, peerAddresses, (local.sequence, remote.sequence), self),
            AMPLIFICATION * (TCP_OVERHEAD + self._receivedBytes) // len(chosen),
        )
        peer.mayRequest = True
        self._introduction, self._first = remote, chosen[0][0]
        ordered = sorted(chosen, key=lambda each: each[0])
        longest = [min(module.ports[port].mtu, each.mtu) for port, each in ordered]
        echo = partial(self._sendFrame, FrameKind.ECHO)
        self._validation = validation = PathValidation(module, peer, longest, echo)
        validation.start()
        self._timer.startAndRead(PROBE_SECONDS, self._exchangeTimedOut)

    def _buffers(self) -> RemoteReceiveBuffers:
        """Return the receive buffers of the connection, which its first long message creates."""
        if self._receiveBuffers is None:
            assert self._introduction is not None
            port, channel = self.module.ports[self._first], self._introduction.address
            self._receiveBuffers = RemoteReceiveBuffers(
                self._reactor, self.module, self.peer, port, channel, self._sendFrame
            )
        return self._receiveBuffers

    def _probeReceived(self, nonce: bytes) -> None:
        """Process a probe of the peer."""
        validation = self._validation
        if validation is not None and validation.received(nonce):
            self._probesPassed(validation)

    def _echoed(self, validation: PathValidation, nonce: bytes) -> None:
        """Process a nonce that the peer has echoed."""
        if validation.echoed(nonce):
            self._timer.startAndRead(EXCHANGE_SECONDS, self._exchangeTimedOut)
            self._probesPassed(validation)

    def _probesPassed(self, validation: PathValidation) -> None:
        """
        Establish the connection if the probes of this end have passed, and for a server those of the client.

        The server's application may block its reactor as soon as it is connected, so the client must have
        everything that it needs before that.
        """
        if not validation.isProven:
            return
        if self.isClient:
            self._maybeEstablished()
        elif validation.hasEchoed:
            self._sendFrame(FrameKind.READY)
            # In the second iteration from now, so that READY is in the socket before the application runs.
            self._reactor.callLater(0, self._reactor.callLater, 0, self._maybeEstablished)

    def _frameReceived(self, kind: FrameKind, content: bytes) -> None:
        if kind == FrameKind.FAILED:
            reason = escaped(content.decode(errors="replace"))
            self._giveUp(Failure(Unreachable(f"the peer gives up: {reason}")))
        elif (validation := self._validation) is None:
            if kind == FrameKind.INTERFACES:
                self._match(decodeInterfaces(content))
        elif kind == FrameKind.READY:
            self._isPeerReady = True
            self._maybeEstablished()
        elif kind == FrameKind.FAREWELL:
            self.module.core.lastAckReceived(self.peer, content, self.module.seconds())
            self.module.turn()
        elif kind == FrameKind.ECHO:
            self._echoed(validation, content)
        elif kind in (FrameKind.QUEUE_PAIR, FrameKind.RECEIVE_BUFFER):
            # No RDMA to an address that is not validated; peers that follow the rules never ask for it.
            if validation.isProven:
                self._buffers().frameReceived(kind, content)

    def _maybeEstablished(self) -> None:
        """Report the connection, if the probes of this end have passed and the peer is ready."""
        isProven = self._validation is not None and self._validation.isProven
        if not isProven or not self._isPeerReady or self.user is not None or self._isAborted or self._isOver:
            return
        self._timer.stop()
        self.user = user = self._established(self)
        if user is None:
            self.abort()
            return
        early, self._early = self._early, []
        try:
            self.module.core.establish(self.peer)
            user.deliverMessages(early)
            user.eventsReported()
        except Exception:  # may be raised to the reactor, or after messages of the peer were lost
            _log.failure("{lifeline} closes: early messages cannot be delivered", lifeline=self)
            self.abort()
            return
        lastAck, self._lastAck = self._lastAck, None
        if lastAck is not None:
            self._sendClose(lastAck)

    def _exchangeTimedOut(self) -> None:
        """Give up an exchange that takes too long."""
        error = Unreachable(f"the peer has not introduced itself in {EXCHANGE_SECONDS:g} s: does it use btl?")
        if self._validation is not None:
            error = self._validation.failure(str(getattr(self.peerHost, "host", self.peerHost)))
        self._giveUp(Failure(error))

    def cancel(self) -> None:
        """Cancel an exchange whose result is no longer needed."""
        self._isAborted = True
        self._giveUp(Failure(CancelledError("the connection attempt was cancelled")))

    def _giveUp(self, failure: Failure) -> None:
        """End with an error."""
        if self._isOver:
            return
        self._failure = self._failure or failure
        transport: Any = self.transport
        if self.user is None:
            self._sendFrame(FrameKind.FAILED, failure.getErrorMessage().encode())
            transport.loseConnection()
            self._finish()
        else:
            transport.loseConnection()

    @property
    def route(self) -> str:
        """The device's name for the path of packets; with several rails, the first one's."""
        return self.module.route

    # Requests of the user; it sends single messages by the module itself

    def put(self, region: int, offset: int, data: Buffer, done: Done | None) -> None:
        """Write into memory of the peer: see L{Module.put<txrdma.btl.core.module.Module.put>}."""
        self.module.core.put(self.peer, region, offset, data, done)
        self.module.turnLater()

    def sendMany(self, tag: int, messages: list[Buffer], done: Done) -> int:
        """Send messages. Return how often C{done} is called; a call may report several messages."""
        peer = self.peer
        if max(map(len, messages)) <= peer.mtu - HEADER_LENGTH:
            bodies = [each if type(each) is bytes else bytes(each) for each in messages]
            return self.module.core.sendMany(peer, tag, bodies, done)
        for each in messages:
            self.module.core.send(peer, tag, each, done)
        return len(messages)

    def close(self) -> None:
        """Close the connection when everything that was sent has arrived."""
        if self._isOver or self._isAborted:
            return
        self.module.core.close(self.peer)
        self.module.turnLater()

    def abort(self) -> None:
        """Close at once and notify the peer."""
        if not self._isOver and not self._isAborted:
            self._isAborted = True
            self._failure = self._failure or Failure(ConnectionAborted())
            transport: Any = self.transport
            transport.loseConnection()  # sends pending frames, such as READY, but no FAREWELL

    # Events of the module: see L{txrdma.btl.module.Program}

    def handleEvent(self, event: Event) -> None:
        """Handle an event of the module."""
        if isinstance(event, MessageReceived):
            user = self.user
            if user is not None:
                user.deliverMessages(((event.tag, event.data),))
            else:
                self._messagesReceived(((event.tag, event.data),))
        elif isinstance(event, PackReceived):
            self._messagesReceived(event.messages)
        elif isinstance(event, SendCompleted):
            self._call(event.context, None)
        elif isinstance(event, SendFailed):
            # Messages that the peer has refused earlier do not matter for the end.
            self._hasFailed = self._hasFailed or event.peer.state >= PEER_CLOSED
            self._call(event.context, MessageFailed(event.reason))
        elif isinstance(event, ReceiveBufferRequested):
            if not self._isOver:
                self._buffers().request()
        elif isinstance(event, ProbeReceived):
            self._probeReceived(event.nonce)
        elif isinstance(event, PeerClosed):
            self._sendClose(b"".join(event.peer.acknowledgement()))
        else:
            if event.error is not None:
                _log.failure(
                    "{lifeline} ends: {reason}", Failure(event.error), lifeline=self, reason=event.reason
                )
            self._giveUp(Failure(ConnectionLost(event.reason)))

    def _messagesReceived(self, messages: Sequence[tuple[int, memoryview]]) -> None:
        """Deliver messages, or queue them until this end is connected."""
        user = self.user
        if user is not None:
            user.deliverMessages(messages)
        elif not self._isOver:
            self._early += [(tag, memoryview(bytes(data))) for tag, data in messages]
            self._isPeerReady = True  # READY, which uses the TCP connection, may arrive later
            self._maybeEstablished()
            if len(self._early) > MOST_EARLY:
                reason = f"the peer has sent {len(self._early)} messages before its probes arrived"
                self._giveUp(Failure(Unreachable(reason)))

    def _sendClose(self, acknowledgement: bytes) -> None:
        """Send the FAREWELL frame, and close the TCP connection, when this end is connected."""
        self._isPeerReady = True
        self._maybeEstablished()
        if self._validation is not None and not self._validation.isProven:
            self._lastAck = acknowledgement  # packets of the peer may overtake the echo of the last probe
            return
        self._isClean = not self._hasFailed
        self._sendFrame(FrameKind.FAREWELL, acknowledgement)
        transport: Any = self.transport
        transport.loseConnection()

    def _call(self, done: object, error: Exception | None) -> None:
        if done is FAILURES_ONLY:
            return
        try:
            done(error)  # type: ignore[operator]  # contexts are what send and put were given
        except Exception:
            _log.failure("{lifeline}: the callback of a message raised an exception", lifeline=self)

    def eventsReported(self) -> None:
        try:
            if self.user is not None:
                self.user.eventsReported()
        except Exception:
            _log.failure("{lifeline} closes: its user raised an exception", lifeline=self)
            self.abort()

    # End of the connection

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Handle the end of the TCP connection: the peer's process has ended, or this end has closed."""
        if self._isOver:
            return
        self._timer.stop()
        if self._validation is None:
            self._failure = self._failure or Failure(PeerLost("the peer has ended the exchange"))
        if self._isClean or self._failure is not None:
            self._finish()
        else:
            self._grace(_GRACE_TURNS)  # the peer's last packets may have arrived without being read yet

    def _grace(self, turns: int) -> None:
        """Process packets in this many further reactor iterations, and then end."""
        self._contain(self.module.poll)
        if turns and not self._isOver and not self._isClean:
            self._ending.start(0, self._grace, turns - 1)
        else:
            self._finish()

    def _finish(self) -> None:
        """Remove the peer and report the end."""
        if self._isOver:
            return
        self._timer.stop()
        self._ending.stop()
        # Before the peer is removed, which fails all its messages.
        if self._validation is not None:
            self._contain(self._endPeer, self.peer)
        if self._receiveBuffers is not None:
            self._contain(self._receiveBuffers.close)
        if self._validation is not None and not self._isClean and self._failure is None:
            gone = "the peer's process has ended"
            self._failure = Failure(PeerLost(gone) if self.user is None else ConnectionLost(gone))
        # From here on nested calls, by events of the last turn, return at once.
        self._isOver = True
        if self._validation is not None:
            self._contain(self.module.forget, self.peer)
            self._contain(self.module.turn)  # reports failures before the user is None
        self._contain(self._release)
        failure, user = self._failure, self.user
        self.user = None
        if user is not None:
            if failure is not None and failure.check(RDMAError) is not None:
                failure = Failure(ConnectionLost(failure.getErrorMessage()))  # the peer failed after this end
            user.ended(failure or Failure(ConnectionDone()))
        else:
            self._failed(failure or Failure(PeerLost("the peer has ended the exchange")))

    def _contain(self, step: Callable[..., object], *arguments: object) -> None:
        """Take a step of the end of the connection; after an exception, the connection still ends."""
        try:
            step(*arguments)
        except Exception:
            _log.failure("{lifeline} still ends after an exception", lifeline=self)

    def _endPeer(self, peer: Peer) -> None:
        """Note whether everything that was sent has arrived, if the peer has closed."""
        if peer.state == REMOVED:
            return
        hasPeerClosed = peer.state >= PEER_CLOSED
        hasArrived = not any(self._isUseful(each) for each in peer.unfinished())
        self._isClean = self._isClean or (hasPeerClosed and hasArrived and not self._hasFailed)

    def _isUseful(self, message: Message) -> bool:
        """Return whether a message that has not arrived would be of use to a peer that has closed."""
        user = self.user
        if message.kind == VOID or user is None:
            return message.kind != VOID
        return not all(map(user.isReport, message.allTags()))

    def _sendFrame(self, kind: FrameKind, content: bytes = b"") -> None:
        """Send a frame to the peer."""
        if self.transport is not None:
            self.transport.write(frame(kind, content))
