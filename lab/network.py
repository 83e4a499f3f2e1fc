"""
What a guest's network is made of before its command begins, as lines for its shell.
"""

from __future__ import annotations

ROCE_PORT = 4791
NEAR, FAR = "10.77.0.1", "10.77.0.2"
"""Addresses of v0 (rxe0) and v1 (rxe1)."""


def pair(mtu: int) -> list[str]:
    """
    Two RDMA devices that talk by a wire: rxe0 on v0 and rxe1 on v1, the ends of a veth pair.

    rxe listens in the first network namespace only, so both are there; and Linux hands packets between its
    own addresses over C{lo}, where rxe sees nothing. Hence rules that send what is for the other end out by
    the wire, where the table of local addresses takes it in. A program binds its source address to go so.
    """
    lines = [
        "echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad",
        f"ip link add v0 mtu {mtu} type veth peer name v1 mtu {mtu}",
        "for each in all v0 v1; do echo 0 >/proc/sys/net/ipv4/conf/$each/rp_filter; done",
        "for each in v0 v1; do echo 1 >/proc/sys/net/ipv4/conf/$each/accept_local; done",
        "ip link set v0 up",
        "ip link set v1 up",
        f"ip addr add {NEAR}/24 dev v0",
        f"ip addr add {FAR}/24 dev v1",
    ]
    for preference, (ours, theirs, link, other) in enumerate(
        ((NEAR, FAR, "v0", "v1"), (FAR, NEAR, "v1", "v0")), start=10
    ):
        lines += [
            f"read -r hardware </sys/class/net/{other}/address",
            f"ip neigh replace {theirs} lladdr $hardware dev {link} nud permanent",
            f"ip route add {theirs} dev {link} src {ours} table {preference}",
            f"ip rule add pref {preference} iif {link} lookup local",
            f"ip rule add pref {preference + 10} to {theirs} lookup {preference}",
        ]
    lines += ["ip rule add pref 30 lookup local", "ip rule del pref 0"]
    return lines + [f"rdma link add rxe{n} type rxe netdev v{n}" for n in (0, 1)]


def joined(index: int, address: str) -> list[str]:
    """The guest's end of a TAP device, with that address (and length of prefix): eth0 and rxe2, and so on."""
    return [
        f"ip link set eth{index} up",
        f"ip addr add {address} dev eth{index}",
        f"rdma link add rxe{index + 2} type rxe netdev eth{index}",
    ]
