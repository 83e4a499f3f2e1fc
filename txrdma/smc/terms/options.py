"""
Options of an C{smc:} endpoint, from its string or its arguments.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Final

from txrdma.kit.values import frozen
from txrdma.smc.terms.offer import Abilities, FEWEST_LINKS, MOST_LINKS, MOST_UEIDS, VERSIONS
from txrdma.smc.wire.clc import enterpriseID, MAX_SIZE_CODE, SMALLEST_BUFFER

LOCAL_DEVICE: Final = "soft:port=0:route=shared-memory"
"""The device of C{device=auto} for peers of this user on this host; it does not use UDP port 4791."""

USUAL_LINKS: Final = 2
"""Links of a link group where the device has more than one port, as on Linux."""

LARGEST_RING: Final = SMALLEST_BUFFER << MAX_SIZE_CODE
"""Bytes of the largest ring that the protocol has a code for: 512 MiB (Linux has all 16 codes)."""

GROUPS: Final = 1000
"""The usual limit of link groups of a process."""

MEMORY: Final = 1 << 30
"""The usual limit of the rings of a process, in bytes."""

HANDSHAKES: Final = 1024
"""The most handshakes that a listener has under way at once, by default."""


def ringSize(size: int) -> int:
    """The smallest valid ring (16 KiB times a power of two) of so many bytes; raises ValueError."""
    if not 0 < size <= LARGEST_RING:
        raise ValueError(f"{size} bytes: rings have from 1 to {LARGEST_RING}")
    return max(SMALLEST_BUFFER, 1 << (size - 1).bit_length())


@lru_cache(64)
def _abilities(versions: tuple[int, ...], ueids: tuple[str, ...], links: int) -> Abilities:
    """The versions, UEIDs and limits of an end with these options; raises ValueError."""
    if not versions or not VERSIONS.issuperset(versions):
        raise ValueError(f"{versions} are not versions of SMC-R: 1 and 2 are")
    if len(ueids) > MOST_UEIDS:
        raise ValueError(f"{len(ueids)} UEIDs, and {MOST_UEIDS} are the most")
    if 1 not in versions and not ueids:
        raise ValueError("version 2 needs a UEID")
    if not FEWEST_LINKS <= links <= MOST_LINKS:
        raise ValueError(f"a link group has {FEWEST_LINKS} to {MOST_LINKS} links, not {links}")
    return Abilities(frozenset(versions), tuple(map(enterpriseID, ueids)), maxLinks=links)


@frozen
class Options:
    """
    The options of an C{smc:} endpoint, a client's or a server's.

    @ivar backend: whose stack speaks SMC: C{"auto"} and C{"own"} (the same), or C{"kernel"}.
    @ivar device: C{"auto"}, or a device string: C{"soft"}.
    @ivar agreed: the other end is known to speak SMC (C{peer=smc}): no signalling is needed.
    @ivar timeout: seconds for the TCP connection (client, 30 when None) or for the handshake (server).
    @ivar fallback: whether plain TCP will do.
    @ivar bindAddress: where a client's TCP connection comes from; None leaves that to the system.
    @ivar versions: of SMC-R, that may be spoken; 2 comes before 1 where device, UEIDs and peer allow it.
    @ivar ueids: names of the enterprises that this end belongs to, at most 4. Version 2 needs one that both
        ends have.
    @ivar links: of a link group, at most, from 1 to 8; None: 2 where the device has a second port, else 1.
    @ivar option: announce SMC to other hosts and the Linux kernel by SMC's TCP option.
    @ivar runtime: a directory in which processes of other network namespaces of this host are met; C{""} is
        none, and None what C{TXRDMA_RUNTIME} of the environment says.
    @ivar autocork: what is written waits until the turn of the reactor, or the batch of messages that is
        being dealt with, has ended, and goes out together; otherwise each write goes out at once.
    @ivar sndbuf: bytes that may wait to be sent before a producer is paused.
    @ivar rcvbuf: bytes of the ring that the peer writes into, rounded up to a size of the protocol's; None:
        by the number of connections.
    @ivar keepalive: seconds of silence after which TEST LINK asks the peer of a link whether it is there, for
        groups that begin with a connection of this endpoint; None: when TCP would ask by this host's
        settings, or after 30 s where adapters answer.
    @ivar handshakes: maximum number of concurrent handshakes of a listener; further clients get plain TCP.
    @ivar maxgroups: link groups of this process. When there are so many, the oldest one without connections
        ends for a new one; without such a one the connection is plain TCP.
    @ivar maxmemory: bytes of all rings of this process; what happens at this limit is the same.
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
    sndbuf: int = 65536
    rcvbuf: int | None = None
    keepalive: float | None = None
    handshakes: int = HANDSHAKES
    maxgroups: int = GROUPS
    maxmemory: int = MEMORY

    def __post_init__(self) -> None:
        """Check versions, UEIDs, numbers and sizes; raises ValueError."""
        self.abilities(1)
        if self.rcvbuf is not None:
            ringSize(self.rcvbuf)

    @property
    def ring(self) -> int | None:
        """Size of a connection's ring in bytes; None: chosen by the number of connections."""
        return None if self.rcvbuf is None else ringSize(self.rcvbuf)

    @property
    def meetingDirectory(self) -> str:
        """Directory for processes of other network namespaces; empty without one."""
        return os.environ.get("TXRDMA_RUNTIME", "") if self.runtime is None else self.runtime

    def abilities(self, ports: int) -> Abilities:
        """The versions, UEIDs and limits of an end with these options, on a device with so many ports."""
        links = self.links
        if links is None:
            links = USUAL_LINKS if ports > 1 else FEWEST_LINKS
        return _abilities(self.versions, self.ueids, links)


USUAL: Final = Options()
"""The options of an endpoint string without any keys."""
