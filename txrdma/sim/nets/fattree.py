"""
Generator of fat tree fabrics.

All switches have the same number of ports. A tree has two levels of switches if they suffice, else three.
Names are C{h00000}, C{leaf0000}, C{spine0000}, C{core0000}.
"""

from __future__ import annotations

from typing import Final

from txrdma.iba.verbs import NodeType
from txrdma.sim.nets.netfile import MOST_OF_NODE, MOST_PORTS, Net

RADIX: Final = 36
WIDTHS: Final = 3
"""Link widths that are supported, as a mask: 1X and 4X."""

SPEEDS: Final = 7
EXTENDED_SPEEDS: Final = 7
"""Extended link speeds that are supported, as a mask: all up to HDR."""


def fatTree(hosts: int, radix: int = RADIX) -> Net:
    """
    Return the smallest fat tree of switches with C{radix} ports for a number of hosts.

    @raise ValueError: three levels are not enough, the radix is odd, there are no hosts, or too many ports.
    """
    if hosts < 1 or not 2 <= radix <= MOST_OF_NODE or radix % 2:
        raise ValueError(f"no fat tree has {hosts} hosts on switches of {radix} ports")
    half = radix // 2
    if hosts > half * half * radix:
        raise ValueError(
            f"{hosts} hosts are more than the {half * half * radix} of three levels of {radix} ports"
        )
    net = Net(width=WIDTHS, speed=SPEEDS, extendedSpeed=EXTENDED_SPEEDS)
    (_twoLevels if hosts <= half * radix else _threeLevels)(net, hosts, radix)
    return net


def _twoLevels(net: Net, hosts: int, radix: int) -> None:
    half = radix // 2
    leaves = -(-hosts // half)
    spines = half if leaves > 1 else 0
    while spines > 1 and spines % 2 == 0 and leaves * (half // (spines // 2)) <= radix:
        spines //= 2  # as few as the ports allow, with equal bundles of links
    bundle = half // spines if spines else 0
    _nodes(net, hosts, radix, leaf=leaves, spine=spines)
    _hosts(net, hosts, half)
    for leaf in range(leaves):
        for spine in range(spines):
            for number in range(bundle):
                up, down = half + spine * bundle + number + 1, leaf * bundle + number + 1
                net.link(f"leaf{leaf:04}", up, f"spine{spine:04}", down)


def _threeLevels(net: Net, hosts: int, radix: int) -> None:
    half = radix // 2
    pods = -(-hosts // (half * half))
    bundle = 1
    while pods * bundle * 2 <= radix and half % (bundle * 2) == 0:
        bundle *= 2
    plane = half // bundle  # number of core switches to which each spine switch is linked
    _nodes(net, hosts, radix, leaf=pods * half, spine=pods * half, core=plane * half)
    _hosts(net, hosts, half)
    for pod in range(pods):
        for lower in range(half):
            for upper in range(half):
                net.link(
                    *(f"leaf{pod * half + lower:04}", half + upper + 1),
                    *(f"spine{pod * half + upper:04}", lower + 1),
                )
        for upper in range(half):
            for core in range(plane):
                for number in range(bundle):
                    net.link(
                        *(f"spine{pod * half + upper:04}", half + core * bundle + number + 1),
                        *(f"core{upper * plane + core:04}", pod * bundle + number + 1),
                    )


def _nodes(net: Net, hosts: int, radix: int, **levels: int) -> None:
    ports = hosts + radix * sum(levels.values())
    if ports > MOST_PORTS:
        raise ValueError(f"a fabric has at most {MOST_PORTS:,} ports here, not {ports:,}")
    for host in range(hosts):
        net.add(NodeType.CHANNEL_ADAPTER, 1, f"h{host:05}")
    for name, count in levels.items():
        for number in range(count):
            net.add(NodeType.SWITCH, radix, f"{name}{number:04}")


def _hosts(net: Net, hosts: int, half: int) -> None:
    for host in range(hosts):
        net.link(f"h{host:05}", 1, f"leaf{host // half:04}", host % half + 1)
