"""
The two processes of a measurement on verbs: C{python -m benchmarks.verbsends server|client ORDERS}.

They are two ends of L{txrdma.pingpong}, which meet over a stream; any device works, since they use only
L{txrdma.interfaces}. Orders and results are JSON: C{device}, C{core}, C{reactor}, and C{listen} or C{connect}
as in L{benchmarks.ends}; for the client's scenario see L{benchmarks.verbsroles}.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from benchmarks.orders import cpuSeconds, Orders, prepare, sendMessage

TIMEOUT = 18
"""ACK timeout of about a second, for busy machines."""


def main(role: str, orders: Orders) -> None:
    prepare(orders)
    from twisted.internet.defer import Deferred
    from twisted.internet.endpoints import clientFromString, serverFromString
    from twisted.internet.stdio import StandardIO
    from twisted.internet.task import react

    from benchmarks import verbsroles
    from benchmarks.scenarios import Waiting
    from txrdma.pingpong.link import TestSide
    from txrdma.pingpong.session import PingpongServer
    from txrdma.verbs.devices import openDevice

    def side(reactor: Any) -> TestSide:
        return TestSide(
            reactor,
            lambda address: openDevice(reactor, orders["device"]),
            timeout=TIMEOUT,
        )

    async def server(reactor: Any) -> None:
        listening = await serverFromString(reactor, orders["listen"]).listen(PingpongServer(side(reactor)))
        notified: Deferred[None] = Deferred()
        StandardIO(Waiting(notified))
        sendMessage({"port": getattr(listening.getHost(), "port", None)})
        await notified
        sendMessage({"cpu": cpuSeconds()})

    async def client(reactor: Any) -> None:
        endpoint = clientFromString(reactor, orders["connect"])
        sendMessage(await verbsroles.clients[orders["scenario"]](endpoint, side(reactor), orders))

    react(server if role == "server" else client)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
