"""
Programs with special protocols: JSON-RPC by netstrings, HL7 of hospitals, Prometheus.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.protocol import Protocol

from txrdma.test.system.foreign.programs.program import BIG, digest, Ends, factoryOf, Program

_LONGEST = 1 << 20


class JSONRPC(Program):
    """txjsonrpc-ng's JSON-RPC by netstrings: 50 calls at a time, 500,000 characters each way, and a fault."""

    needs = ("txjsonrpc-ng",)
    imports = ("txjsonrpc_ng",)

    async def serve(self, ends: Ends) -> None:
        from txjsonrpc_ng.netstring.jsonrpc import JSONRPC as Receiver
        from txjsonrpc_ng.netstring.jsonrpc import RPCFactory

        class Adder(Receiver):
            def jsonrpc_add(self, *numbers: int) -> int:
                return sum(numbers)

            def jsonrpc_turn(self, text: str) -> str:
                return text[::-1]

        await ends.listen(RPCFactory(Adder, _LONGEST))

    async def use(self, ends: Ends) -> object:
        from txjsonrpc_ng import jsonrpclib
        from txjsonrpc_ng.netstring.jsonrpc import QueryFactory, QueryProtocol

        class Asking(QueryProtocol):
            MAX_LENGTH = _LONGEST

            def connectionLost(self, reason: Any) -> None:
                self.factory.clientConnectionLost(None, reason)  # endpoints do not call it

        async def call(method: str, *arguments: object) -> Any:
            factory = QueryFactory(method, jsonrpclib.VERSION_2, *arguments)
            factory.protocol = Asking
            answer = factory.deferred
            await ends.connect(factory)
            return await answer

        sums = await gatherResults([Deferred.fromCoroutine(call("add", number, 1)) for number in range(50)])
        turned = await call("turn", BIG[:250_000].hex())
        try:
            fault = await call("nothing")
        except Exception as error:
            fault = type(error).__name__
        return sums, digest(turned.encode()), str(fault)


class HL7(Program):
    """txHL7: 300 messages of a hospital, one of them of 600,000 characters, each acknowledged or refused."""

    needs = ("txHL7",)
    imports = ("txHL7", "hl7", "six")

    _HEAD = r"MSH|^~\&|A|B|C|D|20260101||ADT^A01|{number}|P|2.3" + "\r"

    async def serve(self, ends: Ends) -> None:
        from txHL7.mllp import MLLPFactory
        from txHL7.receiver import AbstractHL7Receiver

        class Receiver(AbstractHL7Receiver):
            def handleMessage(self, container: Any) -> Any:
                if "refuse" in str(container.message):
                    return container.reject("no")
                return container.ack()

            def getCodec(self) -> str:
                return "utf-8"

            def getTimeout(self) -> int:
                return 60

        await ends.listen(MLLPFactory(Receiver()))

    async def use(self, ends: Ends) -> object:
        class Sending(Protocol):
            def __init__(self) -> None:
                self.received = b""
                self.done: Deferred[bytes] = Deferred()

            def dataReceived(self, data: bytes) -> None:
                self.received += data
                if self.received.count(b"\x1c\r") == 300 and not self.done.called:
                    self.done.callback(self.received)

        sending = await ends.connect(factoryOf(Sending))
        for number in range(300):
            what = "refuse" if number % 7 == 3 else "x" * (600_000 if number == 150 else number)
            message = self._HEAD.format(number=number) + f"PID|||{what}\r"
            sending.transport.write(b"\x0b" + message.encode() + b"\x1c\r")
        received = await sending.done
        sending.transport.loseConnection()
        acknowledged = [line[:7].decode() for line in received.split(b"\r") if line.startswith(b"MSA")]
        return acknowledged


class Prometheus(Program):
    """prometheus-client's metrics by C{twisted.web} and WSGI: 2,000 counters, scraped 20 times at a time."""

    needs = ("prometheus-client",)
    imports = ("prometheus_client",)

    async def serve(self, ends: Ends) -> None:
        from prometheus_client import CollectorRegistry, Counter
        from prometheus_client.exposition import make_wsgi_app

        from twisted.python.threadpool import ThreadPool
        from twisted.web.server import Site
        from twisted.web.wsgi import WSGIResource

        registry = CollectorRegistry()
        counter = Counter("packets", "Packets of a port.", ["port"], registry=registry)
        for number in range(2000):
            counter.labels(str(number)).inc(number)
        pool = ThreadPool(1, 4)
        pool.start()
        ends.reactor.addSystemEventTrigger("before", "shutdown", pool.stop)
        await ends.listen(Site(WSGIResource(ends.reactor, pool, make_wsgi_app(registry))))

    async def use(self, ends: Ends) -> object:
        from twisted.web.client import readBody

        async def scrape() -> str:
            response = await ends.agent().request(b"GET", b"http://localhost/metrics")
            body = await readBody(response)
            return digest(b"\n".join(line for line in body.split(b"\n") if b"packets_total" in line))

        found = await gatherResults([Deferred.fromCoroutine(scrape()) for _ in range(20)])
        return sorted(found)
