"""
The two processes of a measurement on verbs: C{python -m benchmarks.verbsends server|client ORDERS}.

They are two ends of L{txrdma.pingpong}, which find each other over a stream; both use L{txrdma.interfaces}
only, so any device will do. Orders and results are JSON: C{device}, C{core}, C{reactor}, C{listen} or
C{connect}, and for the client C{transfers}, C{measures}, C{sizes}, C{seconds} and C{depth}.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from benchmarks.ends import cpuSeconds, Orders, prepare, tell


def main(role: str, orders: Orders) -> None:
    """Run one end."""
    prepare(orders)
    from twisted.internet.defer import Deferred
    from twisted.internet.endpoints import clientFromString, serverFromString
    from twisted.internet.stdio import StandardIO
    from twisted.internet.task import react

    from benchmarks.scenarios import Waiting
    from txrdma.pingpong.measurement import Measurement
    from txrdma.pingpong.plan import Measure, Transfer
    from txrdma.pingpong.report import asDict
    from txrdma.pingpong.run import Running, Series
    from txrdma.pingpong.session import connect, Server, Side
    from txrdma.verbs.devices import openDevice

    def side(reactor: Any) -> Side:
        return Side(
            reactor,
            lambda address: openDevice(reactor, orders["device"]),
            lambda device: device.close(),
            orders.get("devicePort", 1),
        )

    async def server(reactor: Any) -> None:
        listening = await serverFromString(reactor, orders["listen"]).listen(Server(side(reactor)))
        told: Deferred[None] = Deferred()
        StandardIO(Waiting(told))
        tell({"port": getattr(listening.getHost(), "port", None)})
        await told
        tell({"cpu": cpuSeconds()})

    async def client(reactor: Any) -> None:
        ours = await connect(clientFromString(reactor, orders["connect"]), side(reactor))
        found: list[dict[str, object]] = []
        latest = cpuSeconds()

        def took(measurement: Measurement) -> None:
            nonlocal latest
            told = asDict(measurement)
            told.pop("histogram", None)
            now = cpuSeconds()
            found.append({**told, "cpu": now - latest})
            latest = now

        series = Series(
            transfers=[Transfer(name) for name in orders["transfers"]],
            measures=[Measure(name) for name in orders["measures"]],
            sizes=orders["sizes"],
            iterations=orders.get("iterations", 0),
            seconds=orders.get("seconds", 1.0),
            warmup=orders.get("warmup", 100),
            depth=orders.get("depth", 64),
            inline=orders.get("inline", 0),
        )
        try:
            await Running(ours, series, took).run()
        finally:
            ours.close()
        tell({"results": found, "mode": found[0]["route"] if found else ""})

    react(server if role == "server" else client)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
