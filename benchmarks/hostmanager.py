"""
The cost of a connection request for another process of the host: C{python -m benchmarks.hostmanager}.

The process that coordinates UDP port 4791 of an address receives REQs, and forwards each to the process that
listens for its service. The processor time of both is measured, from the packet to the packet; a connection
has one such request.
"""

from __future__ import annotations

import socket
import sys
from random import randrange
from time import process_time
from typing import Any

from twisted.internet.testing import MemoryReactorClock

from txrdma.iba.types import QPN, ROCE_PORT
from txrdma.soft.host.member import PortMember

SERVICE = 0x01061D2F
BATCH = 25
ROUNDS = 400


class Sink:
    """Counts packets in place of a RoCE port."""

    received = 0

    def sendProbe(self, payload: bytes) -> None:
        """Drop a probe: the filter is not used here."""

    def forwarded(self, source: tuple[str, int], packet: memoryview) -> None:
        """Count a packet."""
        self.received += 1


def request() -> memoryview:
    """A packet with a REQ for the service, from BTH to ICRC."""
    mad = bytes((1, 7, 2, 3)) + bytes(12) + b"\x00\x10" + bytes(6) + bytes(8) + SERVICE.to_bytes(8, "big")
    return memoryview(bytes(5) + QPN(1).to_bytes(3, "big") + bytes(12) + mad.ljust(256, b"\0") + bytes(4))


def measure() -> float:
    """Return the microseconds of processor time of one forwarded request: the least of many batches."""
    reactor: Any = MemoryReactorClock()
    address = f"127.{randrange(2, 250)}.{randrange(2, 250)}.{randrange(2, 250)}"
    members, sinks, sockets = [], [], []
    for share in (1, 2):
        bound = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind((address, ROCE_PORT))
        sockets.append(bound)
        members.append(PortMember(reactor, address, share, bound))
        sinks.append(Sink())
        members[-1].start(sinks[-1].sendProbe, sinks[-1].forwarded)
    coordinator, member = members
    member.claim(SERVICE)
    for reader in tuple(reactor.getReaders()):
        reader.doRead()  # accept the member
    coordinator.receiveNow()
    packet, source, least = request(), ("192.0.2.1", 50_000), float("inf")
    for _ in range(ROUNDS):
        started = process_time()
        for _ in range(BATCH):
            coordinator.redirect(1, packet, source)
        member.receiveNow()
        least = min(least, (process_time() - started) / BATCH)
    if sinks[1].received != BATCH * ROUNDS:
        sys.exit(f"{sinks[1].received} of {BATCH * ROUNDS} requests were forwarded")
    for each in members:
        each.close()
    for bound in sockets:
        bound.close()
    return least * 1e6


if __name__ == "__main__":
    print(f"{measure():.1f} us of processor time for each forwarded request")
