"""
The messages of one SMC-R connection from first contact to its end, recorded for L{sequences}.

The two hosts of L{txrdma.testing.smc.hosts} use a simulated network; everything above the sockets is the real
code. The client sends a greeting, the server answers, and the client sends another message and closes after
the answer.
"""

from __future__ import annotations

from functools import cache
from itertools import groupby
from random import Random
from typing import Any

from sequences import Step

from twisted.internet.protocol import Protocol

from txrdma.iba.roce import RoCEPacket
from txrdma.smc.common.reactoruse import reactorUse
from txrdma.smc.group.groups import closeLinkGroups, useDevice
from txrdma.smc.handshake.accepting import ServerNegotiation
from txrdma.smc.handshake.outcomes import Outcomes
from txrdma.smc.handshake.proposing import ClientNegotiation
from txrdma.smc.terms.options import Options
from txrdma.smc.wire import clc, llc
from txrdma.smc.wire.cdc import CDC, CDC_TYPE, StateFlags
from txrdma.testing.smc.hosts import connectedSockets, Host, MemoryTCP, World

_LATENCY = 1e-3
_ADDRESSES = {"198.51.100.1": "client", "198.51.100.2": "server"}
_TURNS = 10_000
_ACKNOWLEDGED = "acknowledged"


class _Talker(Protocol):
    """
    A protocol that records its calls.

    @ivar where: C{"client"}, which sends first and closes, or C{"server"}.
    """

    def __init__(self, recording: Recording, where: str) -> None:
        self.where = where
        self._note = recording.note

    def connectionMade(self) -> None:
        self._note(self.where, "connectionMade()")
        if self.where == "client":
            self._write(b"hello")

    def dataReceived(self, data: bytes) -> None:
        self._note(self.where, f"dataReceived({data!r})")
        if data == b"hello":
            self._write(b"good day")
        elif self.where == "client":
            self._write(b"bye")
            self._note(self.where, "loseConnection()")
            self.transport.loseConnection()

    def connectionLost(self, reason: Any) -> None:
        self._note(self.where, f"connectionLost({reason.type.__name__})")

    def _write(self, data: bytes) -> None:
        self._note(self.where, f"write({data!r})")
        self.transport.write(data)


class Recording:
    """One connection, as steps in the order in which they happened."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._world = world = World(1)
        carry = world.network.carry

        def watched(data: bytes, segment: int, source: Any, destination: Any) -> None:
            for begin in range(0, len(data), segment):
                self._carried(_ADDRESSES[source.address], data[begin : begin + segment])
            carry(data, segment, source, destination)

        world.network.carry = watched  # type: ignore[method-assign]  # to see what it carries
        world.network.faults = type(world.network.faults)(delaySeconds=_LATENCY)
        self._hosts = [self._host(address) for address in _ADDRESSES]

    def note(self, where: str, what: str) -> None:
        """Record a call of a protocol, or by it."""
        self.steps.append(Step("note", where, "", "", what))

    def run(self) -> list[Step]:
        """Run the connection."""
        client, server = self._hosts
        sockets = connectedSockets(self._world, Random(1), client, server, 50_000, _LATENCY)
        options = Options(device="simulated", agreed=True)
        there = _Talker(self, "server")
        asking = ClientNegotiation(client, options, Outcomes("client"), lambda: _Talker(self, "client"))
        accepting = ServerNegotiation(server, options, Outcomes("server"), lambda: there, None)
        asking.finished().addErrback(lambda failure: self.note("client", str(failure.value)))
        for socket, protocol in zip(sockets, (asking, accepting), strict=True):
            name = "client" if protocol is asking else "server"
            socket.sniffer = lambda data, name=name: self._onPacket(name, data)
            self._watchEnd(socket, name)
            MemoryTCP(socket, protocol).begin()
        for _ in range(_TURNS):
            if all(socket.isClosed for socket in sockets) or not self._world.turn():
                break
        steps = self.steps.copy()
        for host in self._hosts:
            closeLinkGroups(host)
        self._world.close()
        return steps

    def _host(self, address: str) -> Host:
        host = Host(self._world, address, lambda: self._world.network.device(address))
        useDevice(host, "simulated", host.openDevice())
        reactorUse(host).hold()  # as services do, by listening: the link group stays
        return host

    def _send(self, where: str, kind: str, what: str) -> None:
        other = "client" if where == "server" else "server"
        self.steps.append(Step("message", where, other, kind, what))

    def _watchEnd(self, socket: Any, where: str) -> None:
        """Record the first FIN."""
        for name in ("shutdown", "close"):
            call = getattr(socket, name)

            def watched(*args: Any, call: Any = call) -> None:
                if not socket._isShut and not socket.isClosed:
                    self._send(where, "tcp", "FIN")
                call(*args)

            setattr(socket, name, watched)

    def _onPacket(self, where: str, data: bytes) -> None:
        """Record bytes on the TCP connection: CLC messages, each in one piece."""
        message = clc.decode(data)
        self._send(where, "tcp", f"CLC {type(message).__name__}")

    def _carried(self, where: str, datagram: bytes) -> None:
        """Record a RoCE packet."""
        packet = RoCEPacket.decode(datagram)
        operation = packet.bth.opcode.name
        if "RDMA_WRITE" in operation:
            self._send(where, "rdma", f"WRITE of {len(packet.payload)} bytes")
        elif "SEND" in operation and packet.payload[0] == CDC_TYPE:
            self._send(where, "rdma", _describe(CDC.decode(packet.payload)))
        elif "SEND" in operation:
            message = llc.decode(packet.payload)
            answer = ", response" if message.isResponse else ""
            self._send(where, "rdma", f"LLC {message.type.name.replace('_', ' ')}{answer}")
        elif "ACKNOWLEDGE" in operation:
            self._send(where, "rdma", _ACKNOWLEDGED)


def _describe(message: CDC) -> str:
    """Return a description of a CDC message."""
    description = f"CDC: produced {message.producerCount}, consumed {message.consumerCount}"
    flags = [flag.name or "" for flag in StateFlags if flag in message.state]
    return ", ".join([description, *(flag.replace("_", " ") for flag in flags)])


@cache
def connection() -> tuple[Step, ...]:
    """Return all steps of the connection."""
    return tuple(Recording().run())


def part(name: str) -> list[Step]:
    """
    Return a part of the connection.

    @param name: C{"handshake"}: up to the first bytes, without acknowledgements; or C{"ending"}: from the
        client's last bytes on, with successive acknowledgements merged into one.
    @raise ValueError: there is no such part.
    """
    steps = list(connection())
    closing = next(n for n, step in enumerate(steps) if "bye" in step.text)
    if name == "ending":
        return [step for step, _ in groupby(steps[closing:])]
    if name != "handshake":
        raise ValueError(f"there is no part {name!r}")
    shown = [step for step in steps[:closing] if step.text != _ACKNOWLEDGED]
    return shown[: next(n for n, step in enumerate(shown) if "good day" in step.text)]
