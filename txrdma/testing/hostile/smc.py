"""Hostile peers of SMC-R: the CLC handshake over TCP; LLC, CDC and RDMA writes on queue pairs."""

from __future__ import annotations

import secrets
from dataclasses import replace
from random import Random
from typing import Any, Final

from txrdma.error import WireError
from txrdma.smc.common.reactoruse import reactorUse
from txrdma.smc.group import groups as groupsModule
from txrdma.smc.group import ports as portsModule
from txrdma.smc.group.group import LinkGroup
from txrdma.smc.group.groups import closeLinkGroups, hasLinkGroups, linkGroups, useDevice
from txrdma.smc.handshake.accepting import HandshakeCount, ServerNegotiation
from txrdma.smc.handshake.outcomes import Outcomes
from txrdma.smc.handshake.proposing import ClientNegotiation
from txrdma.smc.terms.options import Options
from txrdma.smc.wire.clc import decodeFirst, HEADER_LENGTH
from txrdma.soft import device as deviceModule
from txrdma.soft.core import memory as memoryModule
from txrdma.testing.hostile.scenario import HostileScenario
from txrdma.testing.hostile.talkers import Pair, StreamTalker
from txrdma.testing.hostile.wiring import RC, TamperedSocket, TCP
from txrdma.testing.outcome import check
from txrdma.testing.smc.hosts import connectedSockets, Host, MemoryTCP

DEVICE: Final = "hostile"
_SECONDS: Final = 50e-6
_RING_BYTES: Final = 16384
_OPTIONS: Final = Options(device=DEVICE, agreed=True)


def lengthOf(data: bytes) -> int:
    """Return the length of the first CLC message; of all bytes if there is none; 0 while it is not known."""
    try:
        length, message = decodeFirst(data)
    except WireError:
        return len(data)
    return length if message is not None else 0


def resized(message: bytes) -> bytes:
    """Return a CLC message whose header has the message's length."""
    if len(message) < HEADER_LENGTH:
        return message
    return message[:5] + (len(message) & 0xFFFF).to_bytes(2, "big") + message[7:]


class SMCScenario(HostileScenario):
    """A simulation with a hostile peer of a listener, over RoCE."""

    channels: tuple[str, ...] = (TCP, TCP, RC)
    chance = (
        (secrets, "randbits"),
        (secrets, "token_bytes"),
        (memoryModule, "randbits"),
        (deviceModule, "randbelow"),
    )
    constants = (
        (portsModule, "_instance", lambda pid: b"ID"),
        (groupsModule, "CLOSING_SECONDS", 0.0),  # seconds of real time
    )
    resize = {TCP: resized}
    quiet = 200.0

    def begin(self) -> None:
        """Use SMC on all hosts, as listening services do."""
        self._crowd = HandshakeCount()
        self._uses = [reactorUse(host).hold() for host in self.hosts]
        for host in self.hosts:
            groups = useDevice(host, DEVICE, host.device)
            groups.ringSize = lambda: _RING_BYTES  # type: ignore[method-assign]  # small rings are fast

    def makeDevice(self, host: Host) -> Any:
        """Create the device of a host, which acknowledges messages by itself like an adapter."""
        device = self.world.network.device(host.address)
        device.attributes = replace(device.attributes, acknowledgesByProgram=False)
        return device

    def connect(self, client: Host, server: Host) -> Pair:
        pair = Pair(StreamTalker())
        port = next(self.numbers)

        def build() -> StreamTalker:
            talker = pair.server = StreamTalker()
            return self.accept(talker) if server is self.victim else talker

        def buildClient() -> Any:
            return pair.client

        crowd = self._crowd if server is self.victim else HandshakeCount()
        accepting = ServerNegotiation(server, _OPTIONS, Outcomes("server"), build, None, crowd)
        asking = ClientNegotiation(client, _OPTIONS, Outcomes("client"), buildClient)
        self.watch(client, asking.finished())
        sockets = connectedSockets(self.world, Random(port), client, server, port, _SECONDS)
        for socket, each in zip(reversed(sockets), (accepting, asking), strict=True):
            if socket.host is self.hostile:
                TamperedSocket(socket, self.tamper, lengthOf)
            socket.host.callLater(0, MemoryTCP(socket, each).begin)
        return pair

    def groups(self) -> list[LinkGroup]:
        """Return the link groups of the victim."""
        return linkGroups(self.victim, DEVICE).groups() if hasLinkGroups(self.victim) else []

    def judge(self) -> None:
        """Check the limits of the victim's link groups."""
        check(self._crowd.present <= _OPTIONS.handshakes, f"{self._crowd.present} handshakes")
        check(len(self.groups()) <= _OPTIONS.maxgroups, f"{len(self.groups())} link groups")

    def end(self) -> None:
        """Check that no connection is left, and close the link groups."""
        check(self._crowd.present == 0, f"{self._crowd.present} handshakes remain")
        for group in self.groups():
            check(not group.core.connections, f"{group!r} still has {group.core.connections}")
            held = group.flows or group._lingering
            check(not held, f"{group!r} still has {held}")
            check(all(buffer.isIdle for buffer in group.pool), f"{group!r} still uses a ring")
        self.close()

    def close(self) -> None:
        for host in self.hosts:
            closeLinkGroups(host)
        # A killed host does not release its uses.
        for use in (*self._uses, *reactorUse(self.hostile)._uses):
            use.release()
