"""Options of an C{smc:} endpoint, from its string or its arguments."""

from __future__ import annotations

import os
from functools import lru_cache
from operator import index
from typing import Final

from txrdma.kit.values import frozen
from txrdma.smc.terms.offer import Abilities, FEWEST_LINKS, MOST_LINKS, MOST_UEIDS, VERSIONS
from txrdma.smc.wire.clc import enterpriseID, MAX_SIZE_CODE, SMALLEST_BUFFER

__all__ = ["Options"]

LOCAL_DEVICE: Final = "soft:port=0:route=shared-memory"
"""The device of C{device=auto} for peers of this user on this host; it does not use UDP port 4791."""

USUAL_LINKS: Final = 2
"""Default limit of links in a link group if the device has more than one port, as on Linux."""

LARGEST_RING: Final = SMALLEST_BUFFER << MAX_SIZE_CODE
"""Bytes of the largest ring for which the protocol has a code: 512 MiB (Linux supports all 16 codes)."""

GROUPS: Final = 1000
"""Default limit of link groups in a process."""

MEMORY: Final = 1 << 30
"""Default limit of all rings of a process, in bytes."""

HANDSHAKES: Final = 2048
"""Default limit of concurrent handshakes of a listener, of which one client may have half."""


RANGES: Final = {
    "links": (FEWEST_LINKS, MOST_LINKS),
    "sndbuf": (0, 1 << 40),
    "rcvbuf": (1, LARGEST_RING),
    "handshakes": (0, 1 << 31),
    "maxgroups": (0, 1 << 31),
    "maxmemory": (0, 1 << 50),
}
"""The least and greatest value of each number in L{Options}, and of the keys of endpoint strings for them."""


@lru_cache(64)
def _abilities(versions: tuple[int, ...], ueids: tuple[str, ...], links: int) -> Abilities:
    """Return the versions, UEIDs and limits of an end with these options; raises ValueError."""
    if not versions or not VERSIONS.issuperset(versions):
        raise ValueError(f"{versions} are not versions of SMC-R: 1 and 2 are")
    if len(ueids) > MOST_UEIDS:
        raise ValueError(f"{len(ueids)} UEIDs; at most {MOST_UEIDS} are allowed")
    if 1 not in versions and not ueids:
        raise ValueError("versions=2 requires ueid=")
    return Abilities(frozenset(versions), tuple(map(enterpriseID, ueids)), maxLinks=links)


@frozen
class Options:
    """
    The options of an C{smc:} endpoint, a client's or a server's.

    @ivar backend: the SMC stack: C{"auto"} and C{"own"} are the userspace stack, C{"kernel"} is Linux's.
    @ivar device: C{"auto"}, or a device string such as C{"soft"}.
    @ivar agreed: the peer is known to support SMC (C{peer=smc}): no signalling is needed.
    @ivar timeout: seconds for the TCP connection (client, 30 when None) or for the handshake (server).
    @ivar fallback: whether plain TCP is allowed.
    @ivar bindAddress: local address of a client's TCP connection; None: chosen by the system.
    @ivar versions: allowed versions of SMC-R; 2 is preferred to 1 if device, UEIDs and peer allow it.
    @ivar ueids: names of the enterprises that this end belongs to, at most 4. Version 2 requires a common
        one.
    @ivar links: limit of links in a link group, from 1 to 8; None: 2 if the device has a second port, else 1.
    @ivar option: announce SMC to other hosts and the Linux kernel by SMC's TCP option.
    @ivar runtime: directory for finding processes of other network namespaces of this host; C{""}: none;
        None: the environment variable C{TXRDMA_RUNTIME}.
    @ivar autocork: written bytes are queued until the reactor iteration or the current batch of messages
        ends, and sent together; otherwise each write is sent immediately.
    @ivar lowLatency: busy-poll longer for answers than processor time would justify (C{latency=low}), on the
        link that carries the connection.
    @ivar sndbuf: bytes that may be queued before a producer is paused.
    @ivar rcvbuf: bytes of the local ring, rounded up to a size of the protocol; None: chosen by the number of
        connections.
    @ivar keepalive: seconds of silence after which TEST LINK is sent on a link, for groups that were created
        for a connection of this endpoint; None: when TCP would send a probe by this host's settings, or after
        30 s if adapters acknowledge.
    @ivar handshakes: maximum number of concurrent handshakes of a listener, half of them for one client;
        further clients get plain TCP.
    @ivar maxgroups: limit of link groups in this process. At the limit, the oldest one without connections is
        closed for a new one; if there is none, the connection uses plain TCP.
    @ivar maxmemory: limit of all rings of this process, in bytes, with the same consequences.
    """

    device: str = "auto"
    agreed: bool = False
    timeout: float | None = None
    fallback: bool = True
    bindAddress: str | None = None
    backend: str = "auto"
    versions: tuple[int, ...] = (1, 2)
    ueids: tuple[str, ...] = ()
    links: int | None = None
    option: bool = True
    runtime: str | None = None
    autocork: bool = True
    lowLatency: bool = False
    sndbuf: int = 65536
    rcvbuf: int | None = None
    keepalive: float | None = None
    handshakes: int = HANDSHAKES
    maxgroups: int = GROUPS
    maxmemory: int = MEMORY

    def __post_init__(self) -> None:
        """Check versions, UEIDs, times, numbers and sizes; raises ValueError or TypeError."""
        if not isinstance(self.device, str):
            raise TypeError(f"device is a string, not {self.device!r}")
        self.abilities(1)
        for name in ("timeout", "keepalive"):
            seconds = getattr(self, name)
            if seconds is not None and not seconds > 0:
                raise ValueError(f"{name} is a number of seconds above 0, not {seconds}")
        for name, (least, most) in RANGES.items():
            number = getattr(self, name)
            isAutomatic = number is None and name in ("links", "rcvbuf")
            if not isAutomatic and not least <= index(number) <= most:
                raise ValueError(f"{name} is a number from {least} to {most}, not {number}")

    @property
    def ring(self) -> int | None:
        """
        Size of a connection's ring in bytes (16 KiB times a power of two); None: chosen by the number of
        connections.
        """
        return None if self.rcvbuf is None else max(SMALLEST_BUFFER, 1 << (self.rcvbuf - 1).bit_length())

    @property
    def meetingDirectory(self) -> str:
        """Directory for finding processes of other network namespaces; empty without one."""
        return os.environ.get("TXRDMA_RUNTIME", "") if self.runtime is None else self.runtime

    def abilities(self, ports: int) -> Abilities:
        """Return the versions, UEIDs and limits of these options, on a device with this number of ports."""
        links = self.links
        if links is None:
            links = USUAL_LINKS if ports > 1 else FEWEST_LINKS
        return _abilities(self.versions, self.ueids, links)


USUAL: Final = Options()
"""The default options: those of an endpoint string without keys."""
