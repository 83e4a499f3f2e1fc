"""
C{smc:}, C{btl:} and C{rdma:} over rxe in one process of an unprivileged user, who may pin 8 MiB.

Run as root, as C{python -m txrdma.test.system.kernel.unprivileged}; it drops its privileges and writes one
line of JSON, an object with an object for each transport.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import sys
from collections.abc import Callable
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import (
    clientFromString,
    connectProtocol,
    serverFromString,
    TCP4ClientEndpoint,
    TCP4ServerEndpoint,
)
from twisted.internet.task import react

from txrdma.btl.connections import ClientEndpoint, ServerEndpoint
from txrdma.cm.connections.endpoints import RDMAClientEndpoint, RDMAServerEndpoint
from txrdma.messages.protocol import MessageFactory
from txrdma.smc.handshake import _machine
from txrdma.testing.protocols import Echo, MessageRecorder, Recorder, Recorders

LIMIT: Final = 8 << 20
"""Bytes that the process may pin: the default of Linux."""

EXCHANGED: Final = 1 << 18
"""Bytes exchanged over each transport."""

MESSAGE: Final = 4096
NOBODY: Final = 65534
_CLIENT, _SERVER = "pyverbs:rxe0", "pyverbs:rxe1"
_KEEP_CAPABILITIES: Final = 8
_CAPABILITY_VERSION: Final = 0x20080522
_READ_ALL: Final = 1 << 2
"""CAP_DAC_READ_SEARCH: modules that are imported later may be in root's home directory."""


def dropPrivileges() -> None:
    """Become an unprivileged user, who may read all files but has no other capability."""
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (LIMIT, LIMIT))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_KEEP_CAPABILITIES, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    sets = (ctypes.c_uint32 * 6)(_READ_ALL, _READ_ALL, 0, 0, 0, 0)
    if libc.capset(header, sets):
        raise OSError(ctypes.get_errno(), "capset")


def status(name: str) -> str:
    """A line of C{/proc/self/status}, by its name."""
    with open("/proc/self/status") as lines:
        return next(line.split()[1] for line in lines if line.startswith(f"{name}:"))


def pinned() -> int:
    """Bytes that the process has pinned."""
    return 1024 * int(status("VmPin"))


class Counted(MessageRecorder):
    """A message protocol that fires when it has received enough bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.bytesReceived = 0
        self.done: Deferred[None] = Deferred()

    def messageReceived(self, data: bytes, immediate: int | None) -> None:
        self.bytesReceived += len(data)
        if self.bytesReceived == EXCHANGED:
            self.done.callback(None)


class Both(Counted):
    """A server that echoes messages."""

    def messageReceived(self, data: bytes, immediate: int | None) -> None:
        super().messageReceived(data, immediate)
        self.transport.sendMessage(data)


async def overSMC(reactor: Any) -> dict[str, Any]:
    """Exchange bytes with an echo server over C{smc:}."""
    _machine.CLC_TIMEOUT = 60.0  # emulated code opens a device in seconds
    device = r"device=pyverbs\:rxe{}:peer=smc:timeout=60"
    server = serverFromString(reactor, "smc:0:interface=127.0.0.1:" + device.format(1))
    port: Any = await server.listen(Recorders(Echo))
    client = clientFromString(reactor, f"smc:127.0.0.1:{port.getHost().port}:" + device.format(0))
    recorder = await connectProtocol(client, Recorder())
    recorder.transport.write(bytes(EXCHANGED))
    await recorder.receiving(EXCHANGED)
    found = {"bytes": len(recorder.received), "mode": recorder.smc.mode, "pinned": pinned()}
    recorder.transport.loseConnection()
    await port.stopListening()
    return found


async def exchange(client: Counted) -> dict[str, Any]:
    """Exchange messages with an echo server."""
    for _ in range(EXCHANGED // MESSAGE):
        client.transport.sendMessage(bytes(MESSAGE))
    await client.done
    return {"bytes": client.bytesReceived, "pinned": pinned()}


async def overBTL(reactor: Any) -> dict[str, Any]:
    """Exchange messages over C{btl:}."""
    way = TCP4ServerEndpoint(reactor, 0, interface="127.0.0.1")
    port: Any = await ServerEndpoint(reactor, way, _SERVER).listen(Recorders(Both))
    to = TCP4ClientEndpoint(reactor, "127.0.0.1", port.getHost().port)
    client: Any = await ClientEndpoint(reactor, to, _CLIENT).connect(Recorders(Counted))
    found = await exchange(client)
    client.transport.loseConnection()
    await port.stopListening()
    return found


async def overRDMA(reactor: Any) -> dict[str, Any]:
    """Exchange messages over C{rdma:} on the same device."""
    port: Any = await RDMAServerEndpoint(reactor, 7471, _CLIENT).listen(MessageFactory(Both))
    endpoint = RDMAClientEndpoint(reactor, "10.77.0.1", 7471, _CLIENT)
    client: Any = await endpoint.connect(MessageFactory(Counted))
    found = await exchange(client)
    client.transport.loseConnection()
    await port.stopListening()
    return found


async def main(reactor: Any) -> None:
    """Use each transport once."""
    found: dict[str, Any] = {"capabilities": int(status("CapEff"), 16), "user": os.getuid()}
    transports: dict[str, Callable[[Any], Any]] = {"smc": overSMC, "btl": overBTL, "rdma": overRDMA}
    for name, use in transports.items():
        found[name] = await use(reactor)
    print(json.dumps(found), flush=True)
    os._exit(0)  # the result is complete; other suites test closing


if __name__ == "__main__":
    dropPrivileges()
    react(main, sys.argv[1:])
