"""C{twistd smc-proxy}: a proxy through which programs without support for SMC-R use it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from zope.interface import implementer

from twisted.application.service import IService, MultiService
from twisted.internet import interfaces
from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.error import ConnectionDone
from twisted.internet.protocol import connectionDone, Factory, Protocol
from twisted.logger import Logger
from twisted.python import usage
from twisted.python.failure import Failure

from txrdma.kit.connectionlog import describe
from txrdma.kit.delayedcalls import cancelCall
from txrdma.kit.logs import errorText, RateLimitedLogger
from txrdma.tap.listening import ListeningService

_log = Logger()
_rateLimited = RateLimitedLogger(_log)


class IStreamTransport(interfaces.ITCPTransport, interfaces.IConsumer, interfaces.IPushProducer):
    """The interfaces that stream transports provide."""


@dataclass
class Statistics:
    """
    Counts of a proxy.

    @ivar accepted: accepted connections.
    @ivar failed: accepted connections for which the connection to the target failed.
    @ivar forwards: bytes passed to the target.
    @ivar backwards: bytes passed back.
    @ivar modes: ended connections of both sides by their mode, see L{modeOf}.
    """

    accepted: int = 0
    failed: int = 0
    forwards: int = 0
    backwards: int = 0
    modes: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        modes = ", ".join(f"{count} {mode}" for mode, count in sorted(self.modes.items()))
        return (
            f"{self.accepted} connections accepted, {self.failed} not passed on; "
            f"{self.forwards} bytes forwards, {self.backwards} bytes back; {modes or 'nothing connected'}"
        )


def modeOf(transport: object) -> str:
    """Return C{SMC-R}, C{TCP after fallback (NOSMCDEV)}, or C{plain} for other transports."""
    status = getattr(transport, "smc", None)
    if status is None:
        return "plain"
    reason = status.fallbackReason
    return f"{status.mode} after fallback ({reason.name})" if reason is not None else str(status.mode)


@implementer(interfaces.IHalfCloseableProtocol)
class Side(Protocol):
    """
    One of the two connections of a pair.

    Each transport is the other's push producer, so a slow reader pauses the writer on the other side.

    @ivar ended: whether the end of the stream was received.
    @ivar isOpen: whether the connection is open.
    @ivar received: bytes received.
    """

    transport: IStreamTransport
    other: Side | None = None
    ended = False
    isOpen = False

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self.received = 0

    def connectionMade(self) -> None:
        self.isOpen = True
        self._pair.connected(self)

    def dataReceived(self, data: bytes) -> None:
        assert self.other is not None, "paused until the other side is connected"
        self.received += len(data)
        self.other.transport.write(data)

    def readConnectionLost(self) -> None:
        """Close the write side of the other connection, which may still send."""
        self.ended = True
        other = self.other
        if other is None or not other.isOpen:
            self.transport.loseConnection()
            return
        other.transport.unregisterProducer()
        if other.ended:
            other.transport.loseConnection()
            self.transport.loseConnection()
        elif interfaces.ISSLTransport.providedBy(other.transport):
            other.transport.loseConnection()  # Twisted's TLS does not support half-closed connections
        else:
            other.transport.loseWriteConnection()

    def writeConnectionLost(self) -> None:
        """Do nothing: the write side was closed by L{readConnectionLost}."""

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.isOpen = False
        self._pair.lost(self)
        other = self.other
        if other is None or not other.isOpen:
            return
        other.transport.unregisterProducer()
        if reason.check(ConnectionDone):
            other.transport.loseConnection()
        else:
            other.transport.abortConnection()


class Pair:
    """
    An accepted connection and the connection to the target.

    @ivar near: the accepted connection.
    @ivar far: the connection to the target.
    @ivar finished: fires when both have ended.
    """

    def __init__(self, factory: ProxyFactory) -> None:
        self._factory = factory
        self.near = Side(self)
        self.far = Side(self)
        self._attempt: Deferred[interfaces.IProtocol] | None = None
        self.finished: Deferred[None] = Deferred()

    def connected(self, side: Side) -> None:
        """Connect to the target when the accepted connection has its transport."""
        if side is self.near:
            side.transport.pauseProducing()
            self._factory.began(self)
            self._attempt = self._factory.connect(self.far)
            self._attempt.addCallbacks(self._joined, self._refused)

    def _joined(self, _: object) -> None:
        self._attempt = None
        near, far = self.near, self.far
        near.other, far.other = far, near
        near.transport.registerProducer(far.transport, True)
        far.transport.registerProducer(near.transport, True)
        near.transport.resumeProducing()

    def _refused(self, reason: Failure) -> None:
        self._attempt = None
        if self.near.isOpen:
            self._factory.refused(self, reason)
            self.near.transport.abortConnection()

    def lost(self, side: Side) -> None:
        """Handle the loss of one of the two connections."""
        self._factory.count(self, side)
        if self._attempt is not None:
            self._attempt.cancel()
        if not self.near.isOpen and not self.far.isOpen:
            self._factory.pairs.discard(self)
            self.finished.callback(None)

    def close(self) -> None:
        """Close both connections after the received bytes were passed on."""
        for side in (self.near, self.far):
            if side.isOpen:
                side.transport.unregisterProducer()
                side.transport.loseConnection()

    def abort(self) -> None:
        """Abort both connections."""
        for side in (self.near, self.far):
            if side.isOpen:
                side.transport.abortConnection()


class ProxyFactory(Factory):
    """
    Accepts connections, and connects each to the target.

    @ivar pairs: the open pairs.
    """

    noisy = False

    def __init__(self, target: interfaces.IStreamClientEndpoint, targetName: str) -> None:
        self._target = target
        self._targetName = targetName
        self.pairs: set[Pair] = set()
        self.statistics = Statistics()

    def buildProtocol(self, address: interfaces.IAddress | None) -> Protocol:
        return Pair(self).near

    def connect(self, far: Side) -> Deferred[interfaces.IProtocol]:
        return self._target.connect(Factory.forProtocol(lambda: far))

    def began(self, pair: Pair) -> None:
        """Count an accepted connection."""
        self.pairs.add(pair)
        self.statistics.accepted += 1

    def refused(self, pair: Pair, reason: Failure) -> None:
        """Log that the connection to the target failed."""
        self.statistics.failed += 1
        _rateLimited.warn(
            (self._targetName, reason.type),
            "Connection from {peer} not passed on to {target}: {reason}",
            peer=describe(pair.near.transport.getPeer()),
            target=self._targetName,
            reason=errorText(reason.value),
        )

    def count(self, pair: Pair, side: Side) -> None:
        """Count the bytes and the mode of a connection that has ended."""
        self.statistics.modes[modeOf(side.transport)] += 1
        if side is pair.near:
            self.statistics.forwards += side.received
        else:
            self.statistics.backwards += side.received


class ProxyService(ListeningService):
    """A listening proxy that logs its statistics when it stops."""

    command = "smc-proxy"

    GRACE_SECONDS = 5.0
    """Seconds until open connections are aborted at shutdown."""

    def __init__(
        self,
        reactor: interfaces.IReactorTime,
        server: interfaces.IStreamServerEndpoint,
        target: interfaces.IStreamClientEndpoint,
        targetName: str,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # of Twisted's
        self._reactor = reactor
        self.factory = ProxyFactory(target, targetName)
        self.listen(server, self.factory)

    def stopService(self) -> Deferred[None]:
        """Stop listening, close the connections, and log the statistics."""
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        await MultiService.stopService(self)
        pairs = list(self.factory.pairs)
        for pair in pairs:
            pair.close()
        ended = DeferredList([pair.finished for pair in pairs])
        grace = self._reactor.callLater(self.GRACE_SECONDS, self._abort, pairs)
        await ended
        cancelCall(grace)
        _log.info("smc-proxy: {statistics}", statistics=self.factory.statistics)

    def _abort(self, pairs: list[Pair]) -> None:
        for pair in pairs:
            pair.abort()


class Options(usage.Options):
    """The command line of C{twistd smc-proxy}."""

    synopsis = "[options]"
    longdesc = (
        "Accepts connections at one endpoint and forwards each to another. With smc: on one of the sides, "
        "programs use SMC-R without supporting it: "
        "twistd smc-proxy --listen tcp:9000 --connect smc:host:9001"
    )
    optParameters = [
        ["listen", "l", None, "Server endpoint string to listen on, such as smc:9001."],
        ["connect", "c", None, "Client endpoint string of the target, such as tcp:localhost:80."],
    ]

    def postOptions(self) -> None:
        """Parse the endpoint strings, to report errors before the service starts."""
        from twisted.internet import reactor

        for key in ("listen", "connect"):
            if not self[key]:
                raise usage.UsageError(
                    f"--{key} is missing: twistd smc-proxy --listen STRING --connect STRING"
                )
        self["server"] = self._endpoint("listen", lambda string: serverFromString(reactor, string))
        self["target"] = self._endpoint("connect", lambda string: clientFromString(reactor, string))
        self["reactor"] = reactor

    def _endpoint(self, key: str, parse: Callable[[str], object]) -> object:
        try:
            return parse(self[key])
        except Exception as error:  # parsers of endpoint strings raise any exception
            raise usage.UsageError(f"--{key} {self[key]}: {errorText(error)}") from error


def makeService(options: Options) -> IService:
    """Create the service for C{twistd}."""
    return ProxyService(options["reactor"], options["server"], options["target"], options["connect"])
