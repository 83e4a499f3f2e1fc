"""The contract of message connections with the byte transfer layer."""

from __future__ import annotations

from collections.abc import Callable

from txrdma.sim.network import Faults
from txrdma.test.support.btl.hosts import HostsCase
from txrdma.testing.contracts import MessageContract, RemoteMemoryContract
from txrdma.testing.protocols import MessageRecorder


class MessageContractTests(RemoteMemoryContract, MessageContract, HostsCase):
    longest = 100_000

    def connectedBy(self, one: MessageRecorder, other: MessageRecorder) -> None:
        self.open(one, other)
        self.wait(lambda: one.transport and other.transport)

    def waitUntil(self, condition: Callable[[], object], seconds: float = 30.0) -> None:
        self.wait(condition, seconds)


class LossyMessageContractTests(MessageContractTests):
    """On a network that loses, duplicates and reorders."""

    slowBecause = "megabytes are sent in many packets, a twentieth of which is lost"

    faults = Faults(loss=0.05, duplication=0.05, jitterSeconds=0.001)
