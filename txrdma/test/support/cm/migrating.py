"""
One end of a connection that migrates: C{python -m txrdma.test.support.cm.migrating ROLE HERE THERE MEBIBYTES
[wire]}.

C{HERE} and C{THERE} are two addresses each, separated by a comma. The client sends, and twice takes down the
port of its device that the connection uses: during the transfer, and again when another path is loaded. With
C{wire} it prints C{add} or C{del} and the number of the network that is to be cut or restored instead.
"""

from __future__ import annotations

import sys
from hashlib import sha256
from random import Random
from typing import Any

from zope.interface import implementer

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IPushProducer
from twisted.internet.task import react
from twisted.python.failure import Failure

from txrdma.cm.connections.endpoints import IBClientEndpoint, IBServerEndpoint
from txrdma.cm.connections.protocol import RDMAProtocol
from txrdma.cm.layouts.messages import CMPath
from txrdma.cm.terms import Terms
from txrdma.iba.path import IBPath
from txrdma.iba.types import GID
from txrdma.messages.protocol import MessageFactory
from txrdma.soft.core import roundtrip
from txrdma.soft.device import SoftDevice

SERVICE = 0x1000000000000042
BLOCK = 1 << 16
TERMS = Terms(messageBytes=BLOCK, receives=16, sends=16, retryCount=3)
CUTS = 2


class Player(RDMAProtocol):
    """
    A protocol that hashes all bytes, and counts migrations.

    @ivar ended: fires with the reason of the end.
    """

    def __init__(self) -> None:
        self.hash = sha256()
        self.length = self.migrations = 0
        self.ended: Deferred[str] = Deferred()

    def messageReceived(self, data: bytes, immediate: int | None) -> None:
        self.count(data)

    def count(self, data: bytes) -> None:
        """Add sent or received bytes."""
        self.hash.update(data)
        self.length += len(data)

    def pathMigrated(self, path: CMPath) -> None:
        self.migrations += 1

    def connectionLost(self, reason: Failure) -> None:
        assert reason.type is not None
        self.ended.callback(reason.type.__name__)


@implementer(IPushProducer)
class Sender(Player):
    """The end that sends, and disables ports or networks."""

    def __init__(self, paths: list[IBPath], total: int, cutsWire: bool) -> None:
        super().__init__()
        self.paths, self.total, self.cutsWire = paths, total, cutsWire
        self.random = Random(1)
        self.cuts = 0
        self.cutAt = 0
        self.down = 0
        self.isPaused = False

    @property
    def device(self) -> SoftDevice:
        """The device, which is shared with the transport."""
        device = self.transport.adapter.device._device  # type: ignore[attr-defined]
        assert isinstance(device, SoftDevice)
        return device

    def connectionMade(self) -> None:
        self.load()
        self.transport.registerProducer(self, True)
        self.resumeProducing()

    def load(self) -> None:
        """Load the path that is not in use, and cut the one in use after some more data."""
        (other,) = (each for each in self.paths if each.sgid != self.transport.path.localGID)
        self.transport.loadAlternatePath(other).addCallbacks(self.loaded, self.ended.errback)

    def loaded(self, path: CMPath) -> None:
        """Both ends have loaded the path."""
        self.cutAt = self.length + self.total // 8

    def resumeProducing(self) -> None:
        self.isPaused = False
        self.feed()

    def feed(self) -> None:
        """Send until everything is sent or the transport pauses."""
        while not self.isPaused and self.length < self.total:
            data = self.random.randbytes(BLOCK)
            self.count(data)
            self.transport.sendMessage(data)
            if self.cutAt and self.length >= self.cutAt and self.cuts < CUTS:
                self.cut()
            if self.length >= self.total and self.cuts < CUTS:
                self.total += BLOCK  # a path is still being loaded
        if self.length >= self.total and self.migrations >= CUTS:
            self.transport.unregisterProducer()
            self.transport.loseConnection()

    def pauseProducing(self) -> None:
        self.isPaused = True

    def stopProducing(self) -> None:
        self.isPaused = True

    def cut(self) -> None:
        """Disable the path in use."""
        self.cutAt = 0
        self.cuts += 1
        gid = self.transport.path.localGID
        self.down = next(number for number in (1, 2) if gid in self.device.gids(number))
        self.enable(False)

    def enable(self, isEnabled: bool) -> None:
        """Disable or enable a port, or its network."""
        if self.cutsWire:
            print("del" if isEnabled else "add", self.down - 1, flush=True)
        else:
            self.device.setPortEnabled(self.down, isEnabled)

    def pathMigrated(self, path: CMPath) -> None:
        super().pathMigrated(path)
        if self.down:
            self.enable(True)
            self.down = 0
        if self.cuts < CUTS:
            self.load()
        else:
            self.feed()


async def main(reactor: Any, role: str, here: str, there: str, mebibytes: str, wire: str = "") -> None:
    """Run a role, and print its result: length, hash, migrations and the end."""
    device = f"soft:{here}:route=rocev2"
    if role == "server":
        player = Player()
        endpoint = IBServerEndpoint(reactor, SERVICE, device, TERMS)
        port = await endpoint.listen(MessageFactory(lambda: player))
        print("listening", flush=True)
    else:
        paths = [
            IBPath(sgid=GID.fromIP(one), dgid=GID.fromIP(other), hopLimit=64, packetLifeTime=14)
            for one, other in zip(here.split(","), there.split(","), strict=True)
        ]
        player = Sender(paths, int(mebibytes) << 20, bool(wire))
        client = IBClientEndpoint(reactor, SERVICE, paths[0], device, TERMS)
        await client.connect(MessageFactory(lambda: player))
    reason = await player.ended
    if role == "server":
        port.stopListening()
    print(player.length, player.hash.hexdigest(), player.migrations, reason, flush=True)


if __name__ == "__main__":
    roundtrip.PATH_SECONDS = 2.0  # type: ignore[misc]  # half the time until a migration
    react(lambda reactor: Deferred.fromCoroutine(main(reactor, *sys.argv[1:])))
