"""
Both ends of a connection prove that they have a key, before any other bytes are processed.

::

    client                                                  server
      HELLO: its rank, the server's, nonce ------------------>
      <------------------------------------------------- nonce
      HMAC(key, client, HELLO, nonce) ----------------------->
      <------------------------- HMAC(key, server, HELLO, nonce)

A rank is the number of an end, and the key belongs to a pair of ranks: see L{txrdma.btl.groups.terms}. An end
that cannot prove its rank is closed; a server proves nothing to strangers. Afterwards the connection belongs
to another protocol, as if it had just been established. In a network in which others could change packets,
connections need TLS.
"""

from __future__ import annotations

import hmac
from collections import Counter
from collections.abc import Callable, Sequence
from secrets import token_bytes
from struct import Struct
from typing import Any, cast, Final

from zope.interface import implementer

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import (
    IAddress,
    IListeningPort,
    IProtocolFactory,
    IReactorTime,
    IStreamClientEndpoint,
    IStreamServerEndpoint,
)
from twisted.internet.protocol import connectionDone, Factory, Protocol
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.error import Refused
from txrdma.kit.delayedcalls import Timer
from txrdma.kit.logs import errorText, RateLimitedLogger

_rateLimited = RateLimitedLogger(Logger())

PROOF_SECONDS: Final = 10.0
"""Seconds in which an end must prove its rank."""

MOST_UNPROVED: Final = 256
"""
Clients of a listener that have not proved their rank. For a further one, the oldest is closed of the host
that has most: many connections of one host do not keep out those of others.
"""

_HELLO: Final = Struct(">4sHH16s")
_MAGIC: Final = b"txG2"
_NONCE: Final = 16
_PROOF: Final = 32


def _proof(key: bytes, role: bytes, hello: bytes, nonce: bytes) -> bytes:
    return hmac.digest(key, role + hello + nonce, "sha256")


class Prover(Protocol):
    """
    One end of a TCP connection until both ranks are proved; then it passes everything to another protocol.

    @ivar proved: fires with that protocol, or fails with L{Refused}.
    """

    transport: Any

    def __init__(self, reactor: IReactorTime, factory: IProtocolFactory, address: IAddress | None) -> None:
        self.proved: Deferred[Any] = Deferred(lambda _: self._abort())
        self._reactor, self._factory, self._address = reactor, factory, address
        self._data = b""
        self._inner: Any = None
        self._timer = Timer(reactor)

    def connectionMade(self) -> None:
        late = Refused("the peer did not prove its rank in time")
        self._timer.startAndRead(PROOF_SECONDS, self._fail, late)

    def dataReceived(self, data: bytes) -> None:
        if self._inner is not None:
            self._inner.dataReceived(data)
            return
        self._data += data
        try:
            self._received()
        except Refused as error:
            self._fail(error)

    def _received(self) -> None:
        """Process received bytes; raise L{Refused} if the peer does not prove its rank."""

    def _take(self, length: int) -> bytes | None:
        if len(self._data) < length:
            return None
        taken, self._data = self._data[:length], self._data[length:]
        return taken

    def refuse(self, why: str) -> None:
        """Close the connection, if the rank is not proved yet."""
        self._fail(Refused(why))

    def _fail(self, error: Refused) -> None:
        self._abort()
        if not self.proved.called:
            self.proved.errback(error)

    def _abort(self) -> None:
        self._timer.stop()
        if self.transport is not None:
            self.transport.abortConnection()

    def _succeed(self, last: bytes = b"") -> None:
        """Send the last bytes of this protocol, if there are any, and give the connection to another one."""
        self._timer.stop()
        inner: Any = self._factory.buildProtocol(cast(Any, self._address))
        if inner is None:
            raise Refused("the connection was rejected")
        self._inner = inner
        if last:
            self.transport.write(last)
        inner.makeConnection(self.transport)
        early, self._data = self._data, b""
        if early:
            inner.dataReceived(early)
        if not self.proved.called:
            self.proved.callback(inner)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._timer.stop()
        if not self.proved.called:
            why = "the peer has closed: the keys may differ, or it does not expect this end"
            if self._inner is not None:
                why = "the protocol of this end has raised an exception"
            self.proved.errback(Refused(why))
        if self._inner is not None:
            self._inner.connectionLost(reason)


class ClientProver(Prover):
    """The end that connects."""

    def __init__(
        self,
        reactor: IReactorTime,
        factory: IProtocolFactory,
        address: IAddress | None,
        rank: int,
        server: int,
        key: bytes,
    ) -> None:
        super().__init__(reactor, factory, address)
        self._key, self._server = key, server
        self._hello = _HELLO.pack(_MAGIC, rank, server, token_bytes(_NONCE))
        self._nonce: bytes | None = None

    def connectionMade(self) -> None:
        super().connectionMade()
        self.transport.write(self._hello)

    def _received(self) -> None:
        if self._nonce is None:
            self._nonce = self._take(_NONCE)
            if self._nonce is None:
                return
            self.transport.write(_proof(self._key, b"client", self._hello, self._nonce))
        proof = self._take(_PROOF)
        if proof is None:
            return
        if not hmac.compare_digest(proof, _proof(self._key, b"server", self._hello, self._nonce)):
            raise Refused(f"the peer cannot prove that its rank is {self._server}: the keys may differ")
        self._succeed()


class ServerProver(Prover):
    """The end that listens."""

    def __init__(
        self,
        reactor: IReactorTime,
        factory: IProtocolFactory,
        address: IAddress | None,
        rank: int,
        keys: Sequence[bytes],
        admit: Callable[[int, IAddress | None], None],
    ) -> None:
        """
        @param admit: called with a proved rank; raises L{Refused} if a member of that rank is not expected.
        """
        super().__init__(reactor, factory, address)
        self._rank, self._keys, self._admit = rank, keys, admit
        self._hello = b""
        self._nonce = token_bytes(_NONCE)
        self._peer = -1

    def _received(self) -> None:
        if not self._hello:
            hello = self._take(_HELLO.size)
            if hello is None:
                return
            magic, peer, rank, _nonce = _HELLO.unpack(hello)
            if magic != _MAGIC or rank != self._rank or not 0 <= peer < len(self._keys) or peer == rank:
                raise Refused("the peer is not a member that connects to this one")
            self._hello, self._peer = hello, peer
            self.transport.write(self._nonce)
        proof = self._take(_PROOF)
        if proof is None:
            return
        key = self._keys[self._peer]
        if not hmac.compare_digest(proof, _proof(key, b"client", self._hello, self._nonce)):
            raise Refused(f"the peer cannot prove that its rank is {self._peer}: the keys may differ")
        self._admit(self._peer, self._address)
        self._succeed(_proof(key, b"server", self._hello, self._nonce))


@implementer(IStreamClientEndpoint)
class ProvedClientEndpoint:
    """A stream endpoint whose connections belong to a member of a known rank."""

    def __init__(
        self, reactor: IReactorTime, stream: IStreamClientEndpoint, rank: int, server: int, key: bytes
    ) -> None:
        """@param rank: the rank of this end; C{server}: the listener's rank; C{key}: their shared key."""
        self._reactor, self._stream, self._terms = reactor, stream, (rank, server, key)

    def connect(self, factory: IProtocolFactory) -> Deferred[Any]:
        """Connect, and let both ends prove their ranks; fails with L{Refused} if one cannot."""
        return Deferred.fromCoroutine(self._connect(factory))

    async def _connect(self, factory: IProtocolFactory) -> Any:
        terms = (self._reactor, factory, self._terms)
        prover: Any = await self._stream.connect(_ProverFactory(ClientProver, *terms))
        return await prover.proved


class _ProverFactory(Factory):
    noisy = False

    def __init__(
        self,
        prover: Callable[..., Prover],
        reactor: IReactorTime,
        factory: IProtocolFactory,
        terms: tuple[object, ...],
    ) -> None:
        """@param terms: arguments of C{prover} after the address."""
        self._prover, self._reactor, self._factory, self._terms = prover, reactor, factory, terms

    def buildProtocol(self, addr: IAddress | None) -> Prover:
        return self._prover(self._reactor, self._factory, addr, *self._terms)


@implementer(IStreamServerEndpoint)
class ProvedServerEndpoint:
    """A stream endpoint whose clients prove their rank before the factory makes a protocol for them."""

    def __init__(
        self,
        reactor: IReactorTime,
        stream: IStreamServerEndpoint,
        rank: int,
        keys: Sequence[bytes],
        admit: Callable[[int, IAddress | None], None],
    ) -> None:
        """
        @param rank: the rank of this end; C{keys}: the keys that it shares with other ends, by their ranks.
        @param admit: see L{ServerProver}.
        """
        self._reactor, self._stream, self._terms = reactor, stream, (rank, keys, admit)

    def listen(self, factory: IProtocolFactory) -> Deferred[IListeningPort]:
        return self._stream.listen(_ServerFactory(self._reactor, factory, self._terms))


class _ServerFactory(_ProverFactory):
    def __init__(self, reactor: IReactorTime, factory: IProtocolFactory, terms: tuple[object, ...]) -> None:
        super().__init__(ServerProver, reactor, factory, terms)
        self._unproved: dict[Prover, object] = {}  # with their hosts, the oldest first

    def buildProtocol(self, addr: IAddress | None) -> Prover:
        if len(self._unproved) >= MOST_UNPROVED:
            self._closeOne()
        prover = super().buildProtocol(addr)
        self._unproved[prover] = getattr(addr, "host", None)
        prover.proved.addBoth(self._ended, prover, addr)
        return prover

    def _closeOne(self) -> None:
        (host, _count), *_ = Counter(self._unproved.values()).most_common(1)
        oldest = next(prover for prover, each in self._unproved.items() if each == host)
        oldest.refuse("there are too many other clients")

    def _ended(self, result: object, prover: Prover, address: IAddress | None) -> None:
        del self._unproved[prover]
        if isinstance(result, Failure):
            _rateLimited.warn(
                str(getattr(address, "host", address)),
                "Closing a connection from {peer}, which has not proved its rank: {error}",
                peer=address,
                error=errorText(result.value),
            )
