"""
Discover a fabric: a simulated one, or with another string that of the host.

Run it: python discover.py [sim:fattree:8 | ibsim | umad:mlx5_0/1]
"""

import sys

from twisted.internet.task import react

from txrdma.fabric.discovery import discover


async def main(reactor, port="sim:fattree:8"):
    fabric = await discover(reactor, port)
    for one, other in fabric.links():
        print(f"{one.node.description}[{one.number}] - {other.node.description}[{other.number}]")


react(main, sys.argv[1:])
