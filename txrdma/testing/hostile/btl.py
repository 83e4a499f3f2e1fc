"""Hostile peers of the byte transfer layer: the introduction over TCP, and its datagrams."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, Final

from zope.interface import implementer

from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, succeed

from txrdma.btl import lifeline as lifelineModule
from txrdma.btl import module as moduleModule
from txrdma.btl import probes as probesModule
from txrdma.btl.connections import ClientEndpoint, MOST_OPENING, ServerEndpoint
from txrdma.btl.core.expected import MOST_NAMES
from txrdma.btl.introductions import FrameHead, HEAD_LENGTH, INTRODUCTION_LENGTH, MAGIC
from txrdma.messages.interfaces import IMessageProtocolFactory
from txrdma.soft import device as deviceModule
from txrdma.soft.core import memory as memoryModule
from txrdma.testing.hostile.plans import HostilePlan
from txrdma.testing.hostile.scenario import HostileScenario
from txrdma.testing.hostile.talkers import MessageTalker, Pair
from txrdma.testing.hostile.wiring import TamperedSocket, TCP, UD
from txrdma.testing.outcome import check
from txrdma.testing.protocols import Recorders
from txrdma.testing.smc.hosts import connectedSockets, Host, MemoryTCP

_SECONDS: Final = 50e-6


def lengthOf(data: bytes) -> int:
    """Return the length of the first introduction or frame; 0 while it is not known."""
    if len(data) < HEAD_LENGTH:
        return 0
    if data[:3] == MAGIC.to_bytes(3, "big"):
        return INTRODUCTION_LENGTH
    return HEAD_LENGTH + FrameHead.decode(data[:HEAD_LENGTH]).length


def resized(message: bytes) -> bytes:
    """Return a frame whose head has the frame's length."""
    if len(message) < HEAD_LENGTH or message[:3] == MAGIC.to_bytes(3, "big"):
        return message
    return message[:2] + (len(message) - HEAD_LENGTH & 0xFFFF).to_bytes(2, "big") + message[HEAD_LENGTH:]


class _ServerStream:
    """A stream endpoint of a server, whose connections are sockets in memory."""

    def __init__(self, scenario: BTLScenario, server: Host) -> None:
        self._scenario, self._server = scenario, server

    def listen(self, factory: Any) -> Deferred[Any]:
        """Store the factory of the server."""
        self._scenario.accepting[self._server] = factory
        return succeed(self)


class _ClientStream:
    """A stream endpoint of a client, whose connection is a socket in memory."""

    def __init__(self, scenario: BTLScenario, ends: tuple[Host, Host], pair: Pair) -> None:
        self._scenario, self._ends, self._pair = scenario, ends, pair

    def connect(self, factory: Any) -> Deferred[Any]:
        """Connect to the server."""
        protocol = factory.buildProtocol(None)
        self._scenario.join(*self._ends, protocol, self._pair)
        return succeed(protocol)


class BTLScenario(HostileScenario):
    """A simulation with a hostile peer of a module."""

    channels = (TCP, UD)
    chance = (
        (moduleModule, "randbits"),
        (lifelineModule, "randbits"),
        (probesModule, "token_bytes"),
        (memoryModule, "randbits"),
        (deviceModule, "randbelow"),
    )
    constants: Sequence[tuple[Any, str, object]] = (
        (moduleModule, "COMMAND_DEPTHS", (64, 256)),
        (moduleModule, "DATA_DEPTHS", (64, 256)),
    )
    resize = {TCP: resized}
    quiet = 400.0

    def __init__(self, plan: HostilePlan) -> None:
        super().__init__(plan)
        self.served: dict[int, Pair] = {}
        self.accepting: dict[Host, Any] = {}

    def devicesOf(self, host: Host) -> Any:
        """Return the device of a host's endpoints, or a list with the device of each path."""
        return host.device

    def begin(self) -> None:
        for host in (self.victim, self.hostile):
            stream: Any = _ServerStream(self, host)
            ServerEndpoint(host, stream, self.devicesOf(host)).listen(_Serving(self, host))

    def connect(self, client: Host, server: Host) -> Pair:
        pair = Pair(MessageTalker())
        stream: Any = _ClientStream(self, (client, server), pair)
        endpoint = ClientEndpoint(client, stream, self.devicesOf(client))
        self.watch(client, endpoint.connect(Recorders(lambda: pair.client)))
        return pair

    def join(self, client: Host, server: Host, protocol: Any, pair: Pair) -> None:
        """Connect a client's protocol to one that the server's factory builds."""
        port = next(self.numbers)
        sockets = connectedSockets(self.world, Random(port), client, server, port, _SECONDS)
        self.served[port] = pair
        accepted = self.accepting[server].buildProtocol(IPv4Address("TCP", client.address, port))
        for socket, each in zip(reversed(sockets), (accepted, protocol), strict=True):
            if socket.host is self.hostile:
                TamperedSocket(socket, self.tamper, lengthOf)
            socket.host.callLater(0, MemoryTCP(socket, each).begin)

    def judge(self) -> None:
        """Check the listener's tables, and those of the victim's module."""
        accepting = self.accepting[self.victim]
        check(accepting._exchanges <= MOST_OPENING, f"{accepting._exchanges} exchanges")
        for key, module in moduleModule._modules.items():
            if key[0] is self.victim:
                core = module.core
                check(len(core.expected._packets) <= MOST_NAMES, "too many expected peers")
                check(
                    0 <= core._budget.used <= core._budget.most, f"{core._budget.used} bytes are incomplete"
                )

    def end(self) -> None:
        """Check that the listener has no state of clients left."""
        accepting = self.accepting[self.victim]
        left = (accepting._exchanges, *accepting._exchangesOf, *accepting._clientsOf, *accepting.unintroduced)
        check(left == (0,), f"the listener still has {left}")

    def close(self) -> None:
        """Close the open modules: that of a host that was killed, or all after a failure."""
        for key, module in list(moduleModule._modules.items()):
            if key[0] in self.hosts:
                module._isClosed = True
                module._closing.close()


class BTLPathsScenario(BTLScenario):
    """A simulation in which connections have two paths, since each host has a device with two ports."""

    constants = (*BTLScenario.constants, (probesModule, "_prefixLength", lambda gid: 24))  # else of this host

    def makeDevice(self, host: Host) -> Any:
        """Create the device of a host."""
        host.addresses = host.address, host.address.replace("10.0.1.", "10.0.2.")
        return self.world.network.device(*host.addresses)

    def devicesOf(self, host: Host) -> Any:
        return [host.device] * 2


@implementer(IMessageProtocolFactory)
class _Serving:
    """A factory for the protocols of a server."""

    def __init__(self, scenario: BTLScenario, host: Host) -> None:
        self._scenario, self._host = scenario, host

    def buildProtocol(self, peer: Any) -> MessageTalker:
        talker = self._scenario.served[peer.port].server = MessageTalker()
        return self._scenario.accept(talker) if self._host is self._scenario.victim else talker
