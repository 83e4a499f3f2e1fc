"""Hostile peers of the communication manager: its messages, and those of C{rdma:} and C{rsocket:}."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from twisted.internet.protocol import Factory

from txrdma.cm import connection as connectionModule
from txrdma.cm import manager as managerModule
from txrdma.cm.connections import adapter as adapterModule
from txrdma.cm.connections import attempt as attemptModule
from txrdma.cm.connections import endpoints as endpointsModule
from txrdma.cm.connections.endpoints import RDMAClientEndpoint, RDMAServerEndpoint
from txrdma.cm.core.dispatcher import BACKLOG
from txrdma.cm.rsocket.endpoints import RSocketClientEndpoint, RSocketServerEndpoint
from txrdma.mad import agent as agentModule
from txrdma.mad.ports import verbsport as verbsportModule
from txrdma.soft import device as deviceModule
from txrdma.soft.core import memory as memoryModule
from txrdma.testing.hostile.scenario import HostileScenario
from txrdma.testing.hostile.talkers import MessageTalker, Pair, StreamTalker, Talker
from txrdma.testing.hostile.wiring import RC, UD
from txrdma.testing.outcome import check
from txrdma.testing.protocols import Recorders
from txrdma.testing.smc.hosts import Host

PORT: Final = 7471


class CMScenario(HostileScenario):
    """A simulation with a hostile peer of a message listener."""

    channels: tuple[str, ...] = (UD, UD, RC)
    chance = (
        (managerModule, "urandom"),
        (connectionModule, "randbits"),
        (attemptModule, "randbits"),
        (endpointsModule, "randbelow"),
        (agentModule, "urandom"),
        (memoryModule, "randbits"),
        (deviceModule, "randbelow"),
    )
    constants = ((verbsportModule, "RECEIVES", 256),)
    quiet = 2000.0

    client: Any = RDMAClientEndpoint
    server: Any = RDMAServerEndpoint
    talker: type[Talker] = MessageTalker

    def begin(self) -> None:
        self._pairs: dict[tuple[Host, str], list[Pair]] = {}
        self._ports = []
        for host in (self.victim, self.hostile):
            endpoint = self.server(host, PORT, host.device)
            self._ports.append(self.successOf(endpoint.listen(_Serving(self, host))))

    def connect(self, client: Host, server: Host) -> Pair:
        pair = Pair(self.talker())
        self._pairs.setdefault((server, client.address), []).append(pair)

        def begin() -> None:
            endpoint = self.client(client, server.address, PORT, client.device)
            self.watch(client, endpoint.connect(Recorders(lambda: pair.client)))

        client.callLater(0, begin)
        return pair

    def serve(self, server: Host, address: str) -> Talker:
        """Create the server's end of a connection from the host that claims this address."""
        talker = self.talker()
        for pair in self._pairs.get((server, address), ()):
            if pair.server is None:
                pair.server = talker
                break
        return self.accept(talker) if server is self.victim else talker

    def judge(self) -> None:
        """Check the limits of the victim's manager."""
        for key, adapter in adapterModule._adapters.items():
            if key[0] is self.victim:
                present = len(adapter.localManager._core._connections)
                check(present <= BACKLOG + 8, f"the manager has {present} connections")

    def end(self) -> None:
        """Stop listening at the victim; the hostile host has ended before."""
        self._ports[0].stopListening()

    def close(self) -> None:
        """Close the open adapters: that of a host that was killed, or all after a failure."""
        for key, adapter in list(adapterModule._adapters.items()):
            if key[0] in self.hosts:
                with suppress(Exception):  # the host may have failed
                    adapter._closing.close()


class RSocketScenario(CMScenario):
    """A simulation with a hostile peer of a stream listener."""

    client = RSocketClientEndpoint
    server = RSocketServerEndpoint
    talker = StreamTalker


class _Serving(Factory):
    """A factory for the protocols of a server."""

    noisy = False

    def __init__(self, scenario: CMScenario, host: Host) -> None:
        self._scenario, self._host = scenario, host

    def buildProtocol(self, addr: Any) -> Any:
        """Build the server's end of a connection; the client's address may be forged."""
        address = getattr(addr, "address", addr)
        return self._scenario.serve(self._host, address.host)
