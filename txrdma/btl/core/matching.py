"""
Matching of the interfaces of two processes: pairs of a local interface and one of the peer.

A weighted assignment, as in Open MPI's usnic component: each interface is in at most one pair. Of the
assignments with the largest number of pairs, the one with the highest total speed is chosen. Pairs within one
network come first; pairs that need a router are made only if no two interfaces share a network.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_network
from typing import Final

from txrdma.iba.types import GID
from txrdma.kit.values import frozen

MOST_INTERFACES: Final = 8
"""Largest number of interfaces for one connection; the best assignment is found by trying all."""

USUAL_SPEED: Final = 1_000_000_000
"""Bits per second of an interface whose speed is unknown."""


@frozen
class Interface:
    """
    A network interface that one of the two processes offers.

    @ivar prefixLength: length of the network prefix in bits, for the address family of the interface.
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
    """Return the speed of a pair in bits per second: that of the slower interface."""
    return min(one.speed or USUAL_SPEED, other.speed or USUAL_SPEED)


def match(local: Sequence[Interface], remote: Sequence[Interface]) -> list[tuple[int, int]]:
    """
    Match interfaces. Both ends get the same result if both pass the client's interfaces first.

    @return: pairs of indices into the two sequences, in the order of the first.
    """
    same = [[a.network is not None and a.network == b.network for b in remote] for a in local]
    isOneNetwork = any(map(any, same))

    def mayPair(index: int, other: int) -> bool:
        if isOneNetwork:
            return same[index][other]
        return local[index].gid.isMapped == remote[other].gid.isMapped

    # By the set of used interfaces of the second sequence: number of pairs, their total speed, and the pairs.
    best: dict[int, tuple[int, int, list[tuple[int, int]]]] = {0: (0, 0, [])}
    for index, one in enumerate(local):
        for taken, (count, carried, pairs) in list(best.items()):
            for number, other in enumerate(remote):
                if taken >> number & 1 or not mayPair(index, number):
                    continue
                more = (count + 1, carried + speedOf(one, other), [*pairs, (index, number)])
                known = best.get(taken | 1 << number)
                if known is None or known[:2] < more[:2]:
                    best[taken | 1 << number] = more
    return max(best.values(), key=lambda each: each[:2])[2]
