"""
RDMA devices and their ports, as the kernel tells of them to everybody, without opening one.

L{devices} and L{getEndPort} find them; L{txrdma.ports.following} tells when they change, and
L{txrdma.ports.network} knows the network interfaces beneath.
"""

from txrdma.ports.finding import getEndPort
from txrdma.ports.sysfs import devices, EndPort, EndPortAttributes, Rate, RDMADevice

__all__ = ["EndPort", "EndPortAttributes", "RDMADevice", "Rate", "devices", "getEndPort"]
