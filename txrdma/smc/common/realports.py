"""
A cache of this host's RDMA ports, by the network interface of a connection, and of devices that failed.

L{txrdma.smc.handshake.negotiation} uses it for C{device=auto}, and L{txrdma.ports.pnet} finds the port.
Reading all ports and interfaces takes milliseconds, so the result is cached for some seconds. Nothing is read
without an RDMA device or without pyverbs.
"""

from __future__ import annotations

import os
from functools import lru_cache
from importlib.util import find_spec
from time import monotonic
from typing import Final, TYPE_CHECKING

from twisted.logger import Logger

from txrdma.error import DeviceUnavailable
from txrdma.kit.logs import errorText, RateLimitedLogger
from txrdma.verbs.strings import DEVICES

if TYPE_CHECKING:
    from txrdma.ports.pnet import Networks

_rateLimited = RateLimitedLogger(Logger())

_MOST_CHOICES: Final = 1024
LIFE: Final = 10.0
"""Seconds for which ports, interfaces and tables are cached, and failed devices are not used."""


@lru_cache(1)
def hasPyverbs() -> bool:
    """Return whether pyverbs is installed, without importing it."""
    try:
        return find_spec("pyverbs") is not None
    except (ImportError, ValueError):
        return False


class RealPorts:
    """Cached information about RDMA ports; C{failed}: times until which failed devices are not used."""

    def __init__(self) -> None:
        self._until = 0.0
        self._networks: Networks | None = None
        self._isAny = False
        self._choices: dict[tuple[str, str], tuple[str, int] | None] = {}
        self.failed: dict[str, float] = {}

    def isAny(self) -> bool:
        """Return whether there is a device that could be opened."""
        now = monotonic()
        if now >= self._until:
            self._until = now + LIFE
            self._networks = None
            self._choices.clear()
            self._isAny = hasPyverbs() and _isAnyDevice()
        return self._isAny

    def portFor(self, local: str, peer: str) -> tuple[str, int] | None:
        """Return the device string and port number for a connection between these IP addresses, or None."""
        if not self.isAny():
            return None
        key = (local, peer)
        if key not in self._choices:
            if len(self._choices) >= _MOST_CHOICES:
                self._choices.clear()
            self._choices[key] = self._find(local, peer)
        choice = self._choices[key]
        return None if choice is None or monotonic() < self.failed.get(choice[0], 0.0) else choice

    def _find(self, local: str, peer: str) -> tuple[str, int] | None:
        # Not at the top: most hosts have no RDMA device, and do not need it.
        from txrdma.ports.pnet import Networks

        try:
            if self._networks is None:
                self._networks = Networks.read()
            found = self._networks.portFor(local, peer)
        except (DeviceUnavailable, OSError) as error:
            _rateLimited.warn("ports", "can't list RDMA ports: {error}", error=errorText(error))
            return None
        return None if found.port is None else (f"pyverbs:{found.port.device}", found.port.number)

    def fail(self, device: str) -> None:
        """Do not use a device for some seconds, because it could not be opened."""
        self.failed[device] = monotonic() + LIFE


def _isAnyDevice() -> bool:
    try:
        return bool(os.listdir(DEVICES))
    except OSError:
        return False


realPorts: Final = RealPorts()
"""The real ports of this host, for all reactors of the process."""
