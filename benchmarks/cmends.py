"""
The two processes of a measurement of RDMA connections: C{python -m benchmarks.cmends server|client ORDERS}.

They use software devices, each at its own loopback address, or C{devices}, the server's at the address
C{host}. Orders and results are JSON: C{options} of the device string, and for the client C{count} and
C{parallel}, or C{connections}.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from typing import Any

from benchmarks.orders import cpuSeconds, memoryBytes, Orders, prepare, sendMessage


def _address(number: int) -> str:
    """Return a loopback address that is probably unique to this process."""
    pid = os.getpid()
    return f"127.{64 + number}.{pid >> 8 & 0xFF}.{pid & 0xFF or 1}"


def main(role: str, orders: Orders) -> None:
    prepare(orders)
    from twisted.internet.defer import Deferred, gatherResults
    from twisted.internet.stdio import StandardIO
    from twisted.internet.task import deferLater, react
    from twisted.python.failure import Failure

    from benchmarks.connecting import held
    from benchmarks.scenarios import Waiting
    from txrdma.cm.connections.endpoints import RDMAClientEndpoint, RDMAServerEndpoint
    from txrdma.cm.connections.protocol import RDMAProtocol
    from txrdma.cm.terms import Terms
    from txrdma.messages.protocol import MessageFactory

    terms = Terms(responseTimeout=orders.get("responseTimeout", 20))
    connected: dict[Any, None] = {}

    class Staying(RDMAProtocol):
        """The server's end of a connection."""

        def connectionMade(self) -> None:
            connected[self] = None

        def connectionLost(self, reason: Failure) -> None:
            connected.pop(self, None)

    class Visiting(RDMAProtocol):
        """The client's end of a connection, which closes at once if the orders require it."""

        def __init__(self) -> None:
            self.over: Deferred[None] = Deferred()

        def connectionLost(self, reason: Failure) -> None:
            self.over.callback(None)

    def device(number: int) -> str:
        chosen: list[str] = orders.get("devices", [])
        return chosen[number] if chosen else f"soft:{_address(number)}{orders['options']}"

    async def server(reactor: Any) -> None:
        endpoint = RDMAServerEndpoint(reactor, 0, device(0), terms)
        port: Any = await endpoint.listen(MessageFactory(Staying))
        notified: Deferred[None] = Deferred()
        StandardIO(Waiting(notified))
        gc.collect()
        before = memoryBytes()
        sendMessage({"port": f"{orders.get('host', _address(0))} {port.getHost().port}"})
        await notified
        sendMessage({"cpu": cpuSeconds(), "memory": held(before, max(len(connected), 1))})

    async def client(reactor: Any) -> None:
        host, port = orders["port"].split()
        endpoint = RDMAClientEndpoint(reactor, host, int(port), device(1), terms)

        async def visit(isBrief: bool = True) -> Any:
            protocol: Any = await endpoint.connect(MessageFactory(Visiting))
            route = protocol.transport.route
            if isBrief:
                protocol.transport.loseConnection()
                await protocol.over
            return route

        route = await visit()
        if "connections" in orders:
            gc.collect()
            before = memoryBytes()
            for _ in range(orders["connections"] // 20):
                await gatherResults([Deferred.fromCoroutine(visit(False)) for _ in range(20)])
            await deferLater(reactor, 0.5)
            sendMessage({"memory": held(before, orders["connections"]), "mode": f"RDMA CM {route}"})
            # measure while the client exists: afterwards all shared memory would count as the server's
            await Deferred()
        left = orders["count"]

        async def some() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                await visit()

        begun, spent = time.perf_counter(), cpuSeconds()
        await gatherResults([Deferred.fromCoroutine(some()) for _ in range(orders["parallel"])])
        taken = time.perf_counter() - begun
        cpu = (cpuSeconds() - spent) / orders["count"]
        sendMessage({"value": orders["count"] / taken, "cpu": cpu, "mode": f"RDMA CM {route}"})

    react(server if role == "server" else client)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
