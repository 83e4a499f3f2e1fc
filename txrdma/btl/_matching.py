"""
Matching of the interfaces of two processes: which local interface talks to which one of the peer.

A weighted assignment, as in Open MPI's usnic component: each interface is in one pair at most. There are as
many pairs as there can be; of these assignments the one counts that carries most. Interfaces of one network
come before all others: only where no two are in the same network pairs are made that routers have to join.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_network
from typing import Final

from txrdma.iba.types import GID
from txrdma.kit.values import frozen

MOST_INTERFACES: Final = 8
"""Interfaces that a process may offer for one connection: the best assignment is found by trying all."""

USUAL_SPEED: Final = 1_000_000_000
"""Bits per second of an interface whose speed nobody knows."""


@frozen
class Interface:
    """
    An interface that one of two processes offers.

    @ivar prefixLength: bits of the address that name its network, of its own family.
    @ivar speed: bits per second; 0 if unknown.
    """

    gid: GID
    prefixLength: int
    speed: int

    @property
    def network(self) -> str | None:
        """Name of the interface's network; None without an IP address."""
        ip = self.gid.ip
        if ip is None:
            return None
        return str(ip_network((ip, min(self.prefixLength, 32 if self.gid.isMapped else 128)), strict=False))


def speedOf(one: Interface, other: Interface) -> int:
    """Bits per second of a pair: those of the slower one."""
    return min(one.speed or USUAL_SPEED, other.speed or USUAL_SPEED)


def match(ours: Sequence[Interface], remote: Sequence[Interface]) -> list[tuple[int, int]]:
    """
    Match interfaces. Both ends have the same result, if both name those of the client first.

    @return: pairs of places in the two sequences, in the order of the first.
    """
    same = [[a.network is not None and a.network == b.network for b in remote] for a in ours]
    isOneNetwork = any(map(any, same))

    def mayPair(place: int, other: int) -> bool:
        if isOneNetwork:
            return same[place][other]
        return ours[place].gid.isMapped == remote[other].gid.isMapped

    # By the set of theirs that are taken: how many pairs there are, what they carry, and the pairs.
    best: dict[int, tuple[int, int, list[tuple[int, int]]]] = {0: (0, 0, [])}
    for place, one in enumerate(ours):
        for taken, (count, carried, pairs) in list(best.items()):
            for number, other in enumerate(remote):
                if taken >> number & 1 or not mayPair(place, number):
                    continue
                more = (count + 1, carried + speedOf(one, other), [*pairs, (place, number)])
                known = best.get(taken | 1 << number)
                if known is None or known[:2] < more[:2]:
                    best[taken | 1 << number] = more
    return max(best.values(), key=lambda each: each[:2])[2]
