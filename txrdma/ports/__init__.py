"""
RDMA devices and their ports, as the kernel reports them without opening a device.

L{devices} and L{getEndPort} find them; L{txrdma.ports.following} watches them for changes, and
L{txrdma.ports.network} lists the network interfaces. Most connections need only the latter, so the modules of
devices are imported when a name of this package is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, TYPE_CHECKING

if TYPE_CHECKING:
    from txrdma.ports.finding import getEndPort
    from txrdma.ports.sysfs import devices, EndPort, EndPortAttributes, LinkRate, RDMADevice

__all__ = ["EndPort", "EndPortAttributes", "LinkRate", "RDMADevice", "devices", "getEndPort"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{'finding' if name == 'getEndPort' else 'sysfs'}"), name)
    globals()[name] = found
    return found
