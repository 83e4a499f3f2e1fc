"""
Hostile peers of the byte transfer layer: the introduction over TCP, its datagrams, and its RDMA writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any, Final

from zope.interface import implementer

from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, succeed
from twisted.python.failure import Failure

from txrdma.btl import lifeline as lifelineModule
from txrdma.btl import module as moduleModule
from txrdma.btl import probes as probesModule
from txrdma.btl.connections import ClientEndpoint, MOST_OPENING, ServerEndpoint
from txrdma.btl.core.earlypackets import MOST_NAMES
from txrdma.btl.core.receivebuffer import LONG_REMOTE
from txrdma.btl.introductions import FrameHead, HEAD_LENGTH, INTRODUCTION_LENGTH, MAGIC
from txrdma.error import RDMAError
from txrdma.messages.interfaces import IMessageProtocolFactory
from txrdma.soft import device as deviceModule
from txrdma.soft.core import memory as memoryModule
from txrdma.testing.hostile.plans import HostilePlan
from txrdma.testing.hostile.scenario import HostileScenario
from txrdma.testing.hostile.talkers import MessageTalker, Pair
from txrdma.testing.hostile.wiring import RC, TamperedSocket, TCP, UD
from txrdma.testing.outcome import check
from txrdma.testing.protocols import Recorders
from txrdma.testing.smc.hosts import connectedSockets, Host, MemoryTCP

_SECONDS: Final = 50e-6
_NAME: Final = 1
"""Tag of the messages by which an end sends the name of its memory region to its peer."""

_SHARED_BYTES: Final = 1 << 17
_READ_BYTES: Final = 5000
_SIZES: Final = (LONG_REMOTE, 40_000, 70_000)
_MOST_ROUNDS: Final = 2


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


def closeModules(hosts: Sequence[Host]) -> None:
    """Close the open modules: that of a host that was killed, or all after a failure."""
    for key, module in list(moduleModule._modules.items()):
        if key[0] in hosts:
            module._isClosed = True
            module._closing.close()


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

    channels: tuple[str, ...] = (TCP, UD)
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

    talker: type[MessageTalker] = MessageTalker

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
        pair = Pair(self.talker())
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
        closeModules(self.hosts)


class BTLPathsScenario(BTLScenario):
    """A simulation in which connections have two paths, since each host has a device with two ports."""

    constants = (*BTLScenario.constants, (probesModule, "_prefixLength", lambda gid: 24))  # else of this host

    def makeDevice(self, host: Host) -> Any:
        """Create the device of a host."""
        host.addresses = host.address, host.address.replace("10.0.1.", "10.0.2.")
        return self.world.network.device(*host.addresses)

    def devicesOf(self, host: Host) -> Any:
        return [host.device] * 2


class MemoryTalker(MessageTalker):
    """
    An end that shares memory, and with each message writes to and reads from the peer's.

    @ivar shared: the memory of this end, after the connection is established.
    @ivar pending: writes and reads without a result.
    """

    shared: Any = None
    _remote: bytes | None = None

    def __init__(self) -> None:
        self.pending: set[Deferred[Any]] = set()

    def connectionMade(self) -> None:
        super().connectionMade()
        self.transport.setHandler(_NAME, self._named)
        self.shared = self.transport.share(_SHARED_BYTES)
        self.transport.post(_NAME, self.shared.name)

    def _named(self, name: memoryview) -> None:
        self._remote = bytes(name)

    def send(self, data: bytes) -> None:
        super().send(data)
        if self.isOpen and self._remote is not None:
            with suppress(RDMAError):
                self._wait(self.transport.write(self._remote, data))
                self._wait(self.transport.read(self._remote, min(len(data), _READ_BYTES)))

    def _wait(self, result: Deferred[Any]) -> None:
        self.pending.add(result)

        def ended(found: Any) -> None:
            self.pending.remove(result)
            if isinstance(found, Failure):
                found.trap(RDMAError)

        result.addBoth(ended)


class BTLRDMAScenario(BTLScenario):
    """A simulation with long messages, which RDMA writes, and with shared memory."""

    channels: tuple[str, ...] = (TCP, UD, UD, RC)
    exchanged = LONG_REMOTE
    talker = MemoryTalker

    def __init__(self, plan: HostilePlan) -> None:
        super().__init__(plan)
        self._pairs: list[tuple[Host, Pair]] = []

    @classmethod
    def draw(cls, seed: int) -> HostilePlan:
        plan = super().draw(seed)
        return replace(plan, size=_SIZES[seed % len(_SIZES)], rounds=min(plan.rounds, _MOST_ROUNDS))

    def connect(self, client: Host, server: Host) -> Pair:
        pair = super().connect(client, server)
        self._pairs.append((client, pair))
        return pair

    def _exchange(self, pair: Pair, when: str) -> None:
        super()._exchange(pair, when)
        ends = [each for each in (pair.client, pair.server) if isinstance(each, MemoryTalker)]
        self.until(lambda: not any(each.pending for each in ends), f"memory is not accessible {when}")

    def judge(self) -> None:
        """Check that only honest hosts have written into each other's memory, and that all requests end."""
        super().judge()
        for client, pair in self._pairs:
            isHonest = client is self.honest
            for each in (pair.client, pair.server) if isHonest else self._ends(pair)[:1]:
                if isinstance(each, MemoryTalker) and each.shared is not None:
                    changed = isHonest and bytes(each.shared.view).strip(b"\0")
                    check(not changed, "the memory of an honest connection has changed")
                    check(not (self.hostile.isDead and each.pending), "a read or write has no result")


@implementer(IMessageProtocolFactory)
class _Serving:
    """A factory for the protocols of a server."""

    def __init__(self, scenario: BTLScenario, host: Host) -> None:
        self._scenario, self._host = scenario, host

    def buildProtocol(self, peer: Any) -> MessageTalker:
        talker = self._scenario.served[peer.port].server = self._scenario.talker()
        return self._scenario.accept(talker) if self._host is self._scenario.victim else talker
