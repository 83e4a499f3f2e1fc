"""
Twisted's own protocols and policies: line receivers, STARTTLS, producers, throttling, PROXY.
"""

from __future__ import annotations

import random
from typing import Any

from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.endpoints import serverFromString
from twisted.internet.protocol import Protocol
from twisted.internet.task import deferLater
from twisted.protocols import basic, policies

from txrdma.test.system.foreign.programs.program import BIG, digest, Ends, factoryOf, Program


class _Lines(basic.LineReceiver):
    """Answers lines; after C{raw N}, N bytes of raw data follow."""

    transport: Any
    MAX_LENGTH = 1 << 20

    def lineReceived(self, line: bytes) -> None:
        if line.startswith(b"raw "):
            self._missing = int(line[4:])
            self._raw = bytearray()
            self.setRawMode()
        elif line == b"quit":
            self.sendLine(b"bye")
            self.transport.loseConnection()
        else:
            self.sendLine(line[::-1])

    def rawDataReceived(self, data: bytes) -> None:
        self._raw += data[: self._missing]
        data, self._missing = data[self._missing :], self._missing - len(data)
        if self._missing <= 0:
            self.sendLine(digest(bytes(self._raw)).encode())
            self.setLineMode(data)


class _Answers(basic.LineReceiver):
    """Collects lines until the end."""

    transport: Any
    MAX_LENGTH = 1 << 20

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.done: Deferred[list[str]] = Deferred()

    def lineReceived(self, line: bytes) -> None:
        self.lines.append(line)

    def connectionLost(self, reason: Any = None) -> None:
        self.done.callback([digest(b"\n".join(self.lines)), reason.type.__name__])


class Lines(Program):
    """A C{LineReceiver} that receives one byte at a time, and switches between lines and raw data."""

    async def serve(self, ends: Ends) -> None:
        await ends.listen(factoryOf(_Lines))

    async def use(self, ends: Ends) -> object:
        talk = b"one\r\ntwo\r\nraw 30000\r\n" + BIG[:30000] + b"three\r\n"
        talk += b"raw 5\r\nabcdefour\r\nquit\r\nlost\r\n"
        inOne = await ends.connect(factoryOf(_Answers))
        inOne.transport.write(talk)
        saw = [await inOne.done]
        inTurns = await ends.connect(factoryOf(_Answers))
        for at in range(len(talk)):
            inTurns.transport.write(talk[at : at + 1])
            if at % 50 == 0:
                await deferLater(ends.reactor, 0)
        saw.append(await inTurns.done)
        atOnce = await ends.connect(factoryOf(_Answers))
        for at in range(len(talk)):
            atOnce.transport.write(talk[at : at + 1])
        saw.append(await atOnce.done)
        return saw


class Strings(Program):
    """C{Int32StringReceiver}: 10,000 strings of changing lengths, and one of 3 MB."""

    async def serve(self, ends: Ends) -> None:
        class Server(basic.Int32StringReceiver):
            MAX_LENGTH = 1 << 30

            def stringReceived(self, string: bytes) -> None:
                self.sendString(string)

        await ends.listen(factoryOf(Server))

    async def use(self, ends: Ends) -> object:
        count = 10_001
        done: Deferred[str] = Deferred()

        class Client(basic.Int32StringReceiver):
            transport: Any
            MAX_LENGTH = 1 << 30
            parts: list[bytes] = []  # there is one client

            def stringReceived(self, string: bytes) -> None:
                self.parts.append(string)
                if len(self.parts) == count:
                    self.transport.loseConnection()
                    done.callback(digest(b"|".join(self.parts)))

        client = await ends.connect(factoryOf(Client))
        for number in range(count - 1):
            client.sendString(BIG[: number % 500])
        client.sendString(BIG)
        return await done


class _Upgrading(basic.LineReceiver):
    """C{STARTTLS}: the rest of the connection uses TLS."""

    transport: Any

    def __init__(self, certificate: Any) -> None:
        self._certificate = certificate

    def lineReceived(self, line: bytes) -> None:
        if line == b"STARTTLS":
            self.sendLine(b"READY")
            self.transport.startTLS(self._certificate.options())
        elif line.startswith(b"send "):
            self.transport.write(BIG)
            self.sendLine(b"")
        elif line == b"quit":
            self.transport.loseConnection()
        else:
            self.sendLine(line.upper())


class StartTLS(Program):
    """TLS that starts in mid-stream, directly after plain bytes; 3 MB over it, and an orderly end."""

    needs = ("pyOpenSSL",)
    imports = ("OpenSSL",)

    async def serve(self, ends: Ends) -> None:
        certificate = ends.certificate()
        await ends.listen(factoryOf(lambda: _Upgrading(certificate)))

    async def use(self, ends: Ends) -> object:
        from twisted.internet.ssl import CertificateOptions

        saw: list[object] = []
        for _ in range(3):

            class Client(_Answers):
                def lineReceived(self, line: bytes) -> None:
                    super().lineReceived(line)
                    if line == b"READY":
                        self.transport.startTLS(CertificateOptions())
                        for output in (b"secret", b"send it", b"quit"):
                            self.sendLine(output)

            client = await ends.connect(factoryOf(Client))
            for output in (b"plain", b"STARTTLS"):
                client.sendLine(output)
            saw.append(await client.done)
        return saw


class _Wild:
    """A producer that writes irregularly, ignores pauses, and pauses and resumes its own transport."""

    def __init__(self, reactor: Any, transport: Any, data: bytes, seed: int) -> None:
        self._reactor = reactor
        self._transport = transport
        self._rest = data
        self._random = random.Random(seed)
        self._isPaused = False
        self._isOver = False
        self.done: Deferred[None] = Deferred()
        transport.registerProducer(self, True)
        self._fit()

    def _fit(self) -> None:
        if self._isOver:
            return
        chance = self._random
        if not self._isPaused:
            for _ in range(chance.randrange(4)):
                size = chance.choice([1, 10, 1000, 50_000, 200_000])
                self._transport.write(self._rest[:size])
                self._rest = self._rest[size:]
        step = chance.randrange(6)
        if step == 0:
            self._transport.pauseProducing()
            self._reactor.callLater(chance.random() * 0.01, self._transport.resumeProducing)
        elif step == 1:
            self._transport.pauseProducing()
            self._transport.resumeProducing()
        elif step == 2:
            self._transport.resumeProducing()
        elif step == 3:
            self._transport.unregisterProducer()
            self._transport.registerProducer(self, True)
            self._isPaused = False
        if self._rest:
            self._reactor.callLater(chance.choice([0, 0, 0.001]), self._fit)
        else:
            self._isOver = True
            self._transport.unregisterProducer()
            self.done.callback(None)

    def pauseProducing(self) -> None:
        self._isPaused = True

    def resumeProducing(self) -> None:
        self._isPaused = False

    def stopProducing(self) -> None:
        self._isOver = True


class _WildEnd(Protocol):
    """Sends 3 MB by a producer that ignores pauses, and half-closes afterwards."""

    transport: Any

    def __init__(self, reactor: Any, seed: int) -> None:
        self._reactor = reactor
        self._seed = seed
        self._received: list[bytes] = []
        self._size = 0
        self.done: Deferred[list[str]] = Deferred()

    def connectionMade(self) -> None:
        self._wild = _Wild(self._reactor, self.transport, BIG[self._seed :], self._seed)
        self._wild.done.addCallback(lambda _: self._maybe())

    def dataReceived(self, data: bytes) -> None:
        self._received.append(data)
        self._size += len(data)
        self._maybe()

    def _maybe(self) -> None:
        if self._wild.done.called and self._size == len(BIG) - self._seed:
            self.transport.loseConnection()

    def connectionLost(self, reason: Any = None) -> None:
        self.done.callback([digest(b"".join(self._received)), reason.type.__name__])


class Producers(Program):
    """Producers at both ends that pause, resume, and take turns at registering, ten connections at a time."""

    async def serve(self, ends: Ends) -> None:
        await ends.listen(factoryOf(lambda: _WildEnd(ends.reactor, 17)))

    async def use(self, ends: Ends) -> object:
        made = [ends.connect(factoryOf(lambda: _WildEnd(ends.reactor, 17))) for _ in range(10)]
        return await gatherResults([end.done for end in await gatherResults(made)])


class Limits(Program):
    """C{ThrottlingFactory} and C{TimeoutMixin}: a sixth connection is refused, and idle ones end."""

    async def serve(self, ends: Ends) -> None:
        class Server(Protocol, policies.TimeoutMixin):
            transport: Any

            def connectionMade(self) -> None:
                self.setTimeout(1.0)

            def dataReceived(self, data: bytes) -> None:
                self.resetTimeout()
                self.transport.write(data)

            def connectionLost(self, reason: Any = None) -> None:
                self.setTimeout(None)

        limit = 1_000_000
        throttling = policies.ThrottlingFactory(factoryOf(Server), 5, limit)
        await ends.listen(throttling)

    async def use(self, ends: Ends) -> object:
        ended: list[str] = []

        class Client(Protocol):
            transport: Any

            def __init__(self) -> None:
                self.received, self.over = bytearray(), Deferred[str]()

            def dataReceived(self, data: bytes) -> None:
                self.received += data

            def connectionLost(self, reason: Any = None) -> None:
                self.over.callback(reason.type.__name__)

        clients = []
        for number in range(6):
            client = await ends.connect(factoryOf(Client))
            clients.append(client)
            if number == 4:
                await deferLater(ends.reactor, 0.2)  # until the server has accepted all five
        ended.append(await clients[5].over)
        clients[0].transport.write(BIG[:1_500_000])
        ended += [await client.over for client in clients[1:5]]
        begun = ends.reactor.seconds()
        ended.append(await clients[0].over)
        return [ended, digest(bytes(clients[0].received)), ends.reactor.seconds() - begun < 20]


class PROXY(Program):
    """A server behind C{haproxy:}, which gets the address in the PROXY line."""

    async def serve(self, ends: Ends) -> None:
        class Server(Protocol):
            transport: Any

            def dataReceived(self, data: bytes) -> None:
                self.transport.write(f"{self.transport.getPeer().host} {digest(data)}\n".encode())
                self.transport.loseConnection()

        endpoint = serverFromString(ends.reactor, "haproxy:" + ends.string)
        ends.ports.append(await endpoint.listen(factoryOf(Server)))

    async def use(self, ends: Ends) -> object:
        saw = []
        for line in (b"PROXY TCP4 192.0.2.7 192.0.2.8 1 2\r\nhello", b"PROXY UNKNOWN\r\nhello", b"hello\r\n"):
            client = await ends.connect(factoryOf(_Answers))
            client.delimiter = b"\n"
            client.transport.write(line)
            done = await client.done
            saw.append([done, [each.decode() for each in client.lines if b"127." not in each]])
        return saw


class Service(Program):
    """C{ClientService}: it connects again when the server closes, and is stopped while it connects."""

    async def serve(self, ends: Ends) -> None:
        class Server(Protocol):
            transport: Any

            def dataReceived(self, data: bytes) -> None:
                self.transport.write(b"again")
                self.transport.loseConnection()

        await ends.listen(factoryOf(Server))

    async def use(self, ends: Ends) -> object:
        from twisted.application.internet import ClientService

        received: list[str] = []

        class Client(Protocol):
            transport: Any

            def connectionMade(self) -> None:
                self.transport.write(b"x")

            def connectionLost(self, reason: Any = None) -> None:
                received.append(reason.type.__name__)

        service = ClientService(ends.endpoint, factoryOf(Client), lambda _: 0.0, ends.reactor)
        service.startService()
        while len(received) < 30:
            await service.whenConnected()
            await deferLater(ends.reactor, 0.001)
        await service.stopService()
        for number in range(30):
            hasty = ClientService(ends.endpoint, factoryOf(Protocol), clock=ends.reactor)
            hasty.startService()
            await deferLater(ends.reactor, 0.0005 * number)
            await hasty.stopService()
        return sorted(set(received))
