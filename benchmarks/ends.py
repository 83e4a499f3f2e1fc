"""
The two processes of a measurement on Twisted: C{python -m benchmarks.ends server|client ORDERS}.

Orders and results are JSON. The server writes its port when it listens, and its result when its standard
input ends. The client writes its result and exits.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from benchmarks.orders import Orders, prepare, sendMessage


def main(role: str, orders: Orders) -> None:
    prepare(orders)
    from twisted.internet.defer import Deferred
    from twisted.internet.endpoints import clientFromString, serverFromString
    from twisted.internet.stdio import StandardIO
    from twisted.internet.task import react

    from benchmarks import connecting, contacts, failing, programs, scenarios

    rooms = (scenarios, programs, connecting, contacts, failing)
    servers = {name: each for room in rooms for name, each in room.servers.items()}
    clients = {name: each for room in rooms for name, each in room.clients.items()}

    async def server(reactor: Any) -> None:
        factory = servers[orders["scenario"]](orders)
        port = await serverFromString(reactor, orders["listen"]).listen(factory)
        notified: Deferred[None] = Deferred()
        StandardIO(scenarios.Waiting(notified))
        sendMessage({"port": port.getHost().port})
        await notified
        sendMessage({"cpu": factory.cpuSeconds(), "memory": factory.memory()})

    async def client(reactor: Any) -> None:
        endpoint = clientFromString(reactor, orders["connect"])
        sendMessage(await clients[orders["scenario"]](reactor, endpoint, orders))
        # measure while the peer exists: afterwards all shared memory would count as this process'
        if orders.get("stays"):
            await Deferred()

    react(server if role == "server" else client)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
