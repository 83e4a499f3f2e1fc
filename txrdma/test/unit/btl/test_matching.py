"""Matching of the interfaces of two processes."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as some

from twisted.trial.unittest import SynchronousTestCase

from txrdma.btl.core.matching import Interface, match, speedOf
from txrdma.iba.types import GID

GIGABIT = 1_000_000_000


def interface(address: str, speed: int = GIGABIT, prefixLength: int = 24) -> Interface:
    """Return an interface at an IP address."""
    return Interface(GID.fromIP(address), prefixLength, speed)


_addresses = some.builds("10.0.{}.{}".format, some.integers(0, 3), some.integers(1, 5)) | some.builds(
    "fd00:0:0:{}::{}".format, some.integers(0, 2), some.integers(1, 3)
)
_interfaces = some.lists(
    some.builds(interface, _addresses, some.sampled_from((0, GIGABIT, 10 * GIGABIT, 25 * GIGABIT))),
    max_size=4,
    unique_by=lambda each: each.gid,
)


def isSame(one: Interface, other: Interface) -> bool:
    """Return whether two interfaces are in one network."""
    return one.gid.isMapped == other.gid.isMapped and one.network == other.network


def worth(local: list[Interface], remote: list[Interface], pairs: list[tuple[int, int]]) -> tuple[int, int]:
    """Return the number of pairs, and their speed."""
    return len(pairs), sum(speedOf(local[here], remote[there]) for here, there in pairs)


def everyAssignment(local: list[Interface], remote: list[Interface]) -> list[list[tuple[int, int]]]:
    """Return all assignments that pair each interface with another one or none."""
    places = [*range(len(remote)), *([-1] * len(local))]
    return [
        [(here, there) for here, there in enumerate(chosen) if there >= 0]
        for chosen in set(permutations(places, len(local)))
    ]


class MatchingTests(SynchronousTestCase):
    @given(_interfaces, _interfaces)
    def test_best(self, local: list[Interface], remote: list[Interface]) -> None:
        """No allowed assignment has more pairs, or as many with more speed; no interface is used twice."""
        pairs = match(local, remote)
        self.assertEqual(len({here for here, _there in pairs}), len(pairs))
        self.assertEqual(len({there for _here, there in pairs}), len(pairs))
        isOneNetwork = any(isSame(one, other) for one in local for other in remote)

        def isAllowed(each: list[tuple[int, int]]) -> bool:
            if isOneNetwork:
                return all(isSame(local[here], remote[there]) for here, there in each)
            return all(local[here].gid.isMapped == remote[there].gid.isMapped for here, there in each)

        self.assertTrue(isAllowed(pairs))
        best = max(worth(local, remote, each) for each in everyAssignment(local, remote) if isAllowed(each))
        self.assertEqual(worth(local, remote, pairs), best)

    def test_rules(self) -> None:
        """Networks, prefix lengths, speeds and routes decide, in this order."""
        one, two, three = interface("10.0.1.1"), interface("10.0.2.1"), interface("10.0.3.1")
        fast, fastPeer = interface("10.0.1.2", 25 * GIGABIT), interface("10.0.1.9", 25 * GIGABIT)
        near, far = interface("10.0.1.1", prefixLength=16), interface("10.0.2.1", prefixLength=16)
        routed = [interface("10.9.1.9"), interface("10.9.2.9")]
        for case, local, remote, pairs in (
            ("in any order", [one, two, three], [interface("10.0.2.9"), fastPeer], [(0, 1), (1, 0)]),
            ("the faster one", [one, fast], [fastPeer], [(1, 0)]),
            ("one in common", [one, two], [interface("10.0.2.9"), routed[1]], [(1, 0)]),
            ("both prefixes are short", [near], [far], [(0, 0)]),
            ("one prefix is long", [near, two], [far], [(0, 0)]),
            ("IPv4 and IPv6", [one], [interface("fd00::1")], []),
        ):
            self.assertEqual(match(local, remote), pairs, case)
        self.assertEqual(len(match([one, two], routed)), 2)
