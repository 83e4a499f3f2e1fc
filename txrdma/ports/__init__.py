"""
RDMA devices and their ports, as the kernel reports them without opening a device.

L{devices} and L{getEndPort} find them; L{txrdma.ports.following} watches them for changes, and
L{txrdma.ports.network} lists the network interfaces. Most connections need only the latter, so the modules of
devices are imported when a name of this package is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from txrdma.kit.lazynames import lazyNames

if TYPE_CHECKING:
    from txrdma.ports.finding import getEndPort as getEndPort
    from txrdma.ports.sysfs import devices as devices
    from txrdma.ports.sysfs import EndPort as EndPort
    from txrdma.ports.sysfs import EndPortAttributes as EndPortAttributes
    from txrdma.ports.sysfs import LinkRate as LinkRate
    from txrdma.ports.sysfs import RDMADevice as RDMADevice

__getattr__, __dir__ = lazyNames(
    __name__,
    {
        "txrdma.ports.finding": "getEndPort",
        "txrdma.ports.sysfs": "EndPort EndPortAttributes LinkRate RDMADevice devices",
    },
)
