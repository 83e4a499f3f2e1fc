"""
RDMA devices and their ports, as the kernel reports them without opening a device.

L{devices} and L{getEndPort} find them. Most connections need only C{network}, so the modules of devices are
imported when a name of this package is used.

 - C{sysfs}: devices and ports in sysfs, with their attributes and counters.
 - C{finding}: the port with a name: the spellings of names, and which port of a device is chosen.
 - C{following}: watches devices and ports for changes, and how often they are polled (C{INTERVAL}).
 - C{netlink}: netlink messages.
 - C{netlinkqueries}: queries of the kernel by netlink, which wait for the answer.
 - C{network}: the network interfaces of this host, and their changes, reported together after a pause
   (C{SETTLING}).
 - C{pnettable}: which RDMA port belongs to an interface: rules and text of the table of physical networks.
 - C{pnet}: reads and writes this table, and reads the kernel's; the file, its lock, and how long tables are
   cached.
 - C{softdevices}: the software device for an IP address of this host, or for connections to a peer.
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
