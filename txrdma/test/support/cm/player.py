"""
One of two processes that connect: C{python -m txrdma.test.support.cm.player server|client HERE THERE COUNT}.
"""

from __future__ import annotations

import sys

from twisted.internet.defer import Deferred
from twisted.internet.task import react

from txrdma.cm.connection import CMConnection
from txrdma.cm.core.events import (
    ConnectionEstablished,
    ConnectionReplied,
    ConnectionRequested,
    Disconnected,
    Event,
    TimewaitOver,
)
from txrdma.cm.layouts.messages import REP, REQ
from txrdma.cm.manager import ConnectionManager
from txrdma.iba.path import IBPath
from txrdma.iba.types import GID, QPN
from txrdma.mad import MADAgent, MADServer, openMADPort

SERVICE = 0x1000000000000042


class Player:
    """
    One end of some connections, which it counts until all have ended.

    @ivar ended: fires when the last connection's ids are free.
    """

    def __init__(self, count: int) -> None:
        self.left = count
        self.established = 0
        self.ended: Deferred[None] = Deferred()

    def handle(self, connection: CMConnection, event: Event) -> None:
        """Perform the action that the event requests; the client disconnects."""
        if isinstance(event, ConnectionRequested):
            connection.accept(REP(localQPN=QPN(event.request.localQPN + 1)))
        elif isinstance(event, ConnectionReplied):
            connection.ready()
        elif isinstance(event, ConnectionEstablished):
            self.established += 1
            if connection.isActive:
                connection.disconnect()
        elif isinstance(event, Disconnected):
            connection.disconnect()
        elif isinstance(event, TimewaitOver):
            self.left -= 1
            if not self.left:
                self.ended.callback(None)


async def main(reactor: object, role: str, here: str, there: str, count: str) -> None:
    """Run a role, and print its result."""
    agent = MADAgent(reactor, openMADPort(reactor, f"vmad:soft:{here}:qpn=1"))  # type: ignore[arg-type]  # react's
    manager = ConnectionManager(MADServer(agent))
    player = Player(int(count))
    if role == "server":
        manager.listen(SERVICE, player.handle)
        print("listening", flush=True)
    else:
        path = IBPath(sgid=GID.fromIP(here), dgid=GID.fromIP(there), hopLimit=64, packetLifeTime=14)
        for number in range(player.left):
            qpn = QPN(2 * number + 2)
            request = REQ(serviceID=SERVICE, localQPN=qpn, maxCMRetries=15, remoteCMResponseTimeout=16,
                          localCMResponseTimeout=16)  # fmt: skip
            manager.connect(request, path, player.handle)
    await player.ended
    print(player.established, len(manager._core), flush=True)
    manager.close()
    agent.close()


if __name__ == "__main__":
    react(lambda reactor: Deferred.fromCoroutine(main(reactor, *sys.argv[1:])))
