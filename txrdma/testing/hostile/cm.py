"""
Hostile peers of the communication manager: its messages, and those of C{rdma:} and C{rsocket:} connections.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from twisted.internet.protocol import Factory

from txrdma.cm import manager as managerModule
from txrdma.cm._manager import BACKLOG
from txrdma.cm.connections import adapter as adapterModule
from txrdma.cm.connections import endpoints as endpointsModule
from txrdma.cm.connections import opening as openingModule
from txrdma.cm.connections.endpoints import RDMAClientEndpoint, RDMAServerEndpoint
from txrdma.cm.rsocket.endpoints import RSocketClientEndpoint, RSocketServerEndpoint
from txrdma.mad import agent as agentModule
from txrdma.mad.ports import verbsport as verbsportModule
from txrdma.soft import device as deviceModule
from txrdma.soft import memory as memoryModule
from txrdma.testing.hostile.plans import drawHostile, HostilePlan
from txrdma.testing.hostile.scenario import HostileScenario, Played, playHostile
from txrdma.testing.hostile.talkers import MessageTalker, Pair, StreamTalker, Talker
from txrdma.testing.hostile.wiring import RC, UD
from txrdma.testing.outcome import check
from txrdma.testing.protocols import Recorders
from txrdma.testing.smc.hosts import Host

CHANNELS: Final = (UD, UD, RC)
PORT: Final = 7471


class CMScenario(HostileScenario):
    """A simulation in which a peer of a listener for messages is hostile."""

    chance = (
        (managerModule, "urandom"),
        (managerModule, "randbelow"),
        (openingModule, "randbelow"),
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
        """Listen at the victim."""
        self._latest: dict[str, Pair] = {}
        endpoint = self.server(self.victim, PORT, self.victim.device)
        self._port = self.successOf(endpoint.listen(_Serving(self)))

    def connect(self, client: Host) -> Pair:
        """Begin a connection of a host to the victim."""
        pair = self._latest[client.address] = Pair(self.talker())

        def begin() -> None:
            endpoint = self.client(client, self.victim.address, PORT, client.device)
            endpoint.connect(Recorders(lambda: pair.client)).addErrback(lambda _: None)

        client.callLater(0, begin)
        return pair

    def serve(self, host: str) -> Talker:
        """Make the victim's end of a connection of the host that claims to have this address."""
        talker = self.accept(self.talker())
        pair = self._latest.get(host)
        if pair is not None and pair.server is None:
            pair.server = talker
        return talker

    def judge(self) -> None:
        """Check the limits of the victim's manager."""
        for key, adapter in adapterModule._adapters.items():
            if key[0] is self.victim:
                present = len(adapter.own._core._connections)
                check(present <= BACKLOG + 8, f"the manager has {present} connections")

    def end(self) -> None:
        """Stop listening."""
        self._port.stopListening()

    def close(self) -> None:
        """Close the adapters that are open: that of a host that was killed, or all after a failure."""
        for key, adapter in list(adapterModule._adapters.items()):
            if key[0] in self.hosts:
                with suppress(Exception):  # of a host that has failed
                    adapter._closing.close()


class RSocketScenario(CMScenario):
    """A simulation in which a peer of a listener for streams is hostile."""

    client = RSocketClientEndpoint
    server = RSocketServerEndpoint
    talker = StreamTalker


class _Serving(Factory):
    """Builds the protocols of the victim."""

    noisy = False

    def __init__(self, scenario: CMScenario) -> None:
        self._scenario = scenario

    def buildProtocol(self, addr: Any) -> Any:
        """Build the server's end of a connection, from a client that any address is claimed of."""
        address = getattr(addr, "address", addr)
        return self._scenario.serve(address.host)


def drawCM(seed: int) -> HostilePlan:
    """Draw the plan of a simulation."""
    return drawHostile(seed, CHANNELS)


def playMessages(plan: HostilePlan) -> Played:
    """
    Play the plan of a simulation with C{rdma:}.

    @raise Violation: a promise was broken.
    """
    return playHostile(CMScenario, plan)


def playRSockets(plan: HostilePlan) -> Played:
    """
    Play the plan of a simulation with C{rsocket:}.

    @raise Violation: a promise was broken.
    """
    return playHostile(RSocketScenario, plan)
