"""The guest's network configuration before its command, as lines of shell."""

from __future__ import annotations

from typing import NamedTuple

ROCE_PORT = 4791


class End(NamedTuple):
    """One end of a wire: a network interface, its address, and the RDMA device on it."""

    interface: str
    address: str
    device: str


PAIRS = (
    (End("v0", "10.77.0.1", "rxe0"), End("v1", "10.77.0.2", "rxe1")),
    (End("v2", "10.77.0.3", "rxe2"), End("v3", "10.77.0.4", "rxe3")),
)
"""Wires of a guest, each with two ends, all in one subnet."""


def pairs(mtu: int, count: int = 1) -> list[str]:
    """
    Return the configuration of the first C{count} of L{PAIRS}, each the two ends of a veth pair.

    rxe listens in the first network namespace only, so all are there; and Linux delivers packets between
    local addresses over C{lo}, where rxe does not receive them. Rules therefore send packets for the other
    end over the wire, where the table of local addresses accepts them. Programs must bind to their source
    address.
    """
    chosen = PAIRS[:count]
    lines = ["echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad"]
    for one, other in chosen:
        lines.append(f"ip link add {one.interface} mtu {mtu} type veth peer name {other.interface} mtu {mtu}")
    names = " ".join(end.interface for pair in chosen for end in pair)
    lines += [
        f"for each in all {names}; do echo 0 >/proc/sys/net/ipv4/conf/$each/rp_filter; done",
        f"for each in {names}; do echo 1 >/proc/sys/net/ipv4/conf/$each/accept_local; done",
        f"for each in {names}; do ip link set $each up; done",
    ]
    for number, pair in enumerate(chosen):
        lines += [f"ip addr add {end.address}/24 dev {end.interface}" for end in pair]
        lines += routes(number)
        for place, (ours, theirs) in enumerate((pair, pair[::-1])):
            table = _table(number, place)
            lines += [
                f"ip rule add pref {table} iif {ours.interface} lookup local",
                f"ip rule add pref {table + 10} to {theirs.address} lookup {table}",
            ]
    lines += ["ip rule add pref 30 lookup local", "ip rule del pref 0"]
    ends = [end for pair in chosen for end in pair]
    return lines + [f"rdma link add {end.device} type rxe netdev {end.interface}" for end in ends]


def routes(number: int) -> list[str]:
    """Return the routes over one of L{PAIRS}, which Linux deletes when an interface goes down."""
    lines = []
    pair = PAIRS[number]
    for place, (ours, theirs) in enumerate((pair, pair[::-1])):
        at = f"dev {ours.interface}"
        lines += [
            f"read -r hardware </sys/class/net/{theirs.interface}/address",
            f"ip neigh replace {theirs.address} lladdr $hardware {at} nud permanent",
            f"ip route replace {theirs.address} {at} src {ours.address} table {_table(number, place)}",
        ]
    return lines


def _table(number: int, place: int) -> int:
    """Return the routing table of one end of a wire, whose number is its rule's preference."""
    return 10 + 2 * number + place


def joined(index: int, address: str) -> list[str]:
    """
    Return the configuration of a TAP device's end with that address and prefix length: eth0 and rxe2, and so
    on.
    """
    return [
        f"ip link set eth{index} up",
        f"ip addr add {address} dev eth{index}",
        f"rdma link add rxe{index + 2} type rxe netdev eth{index}",
    ]
