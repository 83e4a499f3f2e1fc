"""
Attributes of adaptive routing in switches of NVIDIA and Mellanox, which the IBA does not have.

Follows the public headers of OpenSM and ibutils. Their modifiers are numbers of blocks, in the first table.
"""

from __future__ import annotations

from txrdma.kit.wire import array, bits, Code, data, Layout, wire
from txrdma.mad.layouts.attributes import Attribute, attribute


class LIDState(Code):
    """How a switch chooses the port for a LID: in order of packets, freely, or not at all."""

    BOUNDED = 0
    FREE = 1
    STATIC = 2


@attribute(0xFF20, "SubnGet", "SubnSet", size=64)
class AdaptiveRoutingInfo(Attribute):
    """
    Adaptive routing of a switch.

    @ivar isEnabled: whether the switch routes adaptively.
    @ivar subgroupsActive: number of masks of a group, less one.
    @ivar groupCap: number of groups that the switch can have; C{groupTop}: the highest one in use.
    """

    reserved: int = bits(20)
    subgroupsActive: int = bits(4)
    reserved2: int = bits(7)
    isEnabled: bool = bits(1)
    stringWidthCap: int = bits(4)
    groupTableCap: int = bits(4)
    groupTop: int = bits(12)
    groupCap: int = bits(12)
    reserved3: bytes = data(56)


@attribute(0xFF21, "SubnGet", "SubnSet", size=64)
class AdaptiveGroupTable(Attribute):
    """Two masks of ports; each group has as many as C{subgroupsActive} says. The last bit is port 0."""

    masks: tuple[bytes, ...] = array(2, data(32))


@wire(4)
class AdaptiveEntry(Layout):
    """
    Entry for a LID.

    @ivar staticPort: port of packets that may not be routed adaptively.
    """

    state: LIDState = bits(2)
    reserved: int = bits(2)
    table: int = bits(4)
    staticPort: int = bits(8)
    reserved2: int = bits(4)
    group: int = bits(12)


@attribute(0xFF23, "SubnGet", "SubnSet", size=64)
class AdaptiveForwardingTable(Attribute):
    """Entries of 16 LIDs."""

    entries: tuple[AdaptiveEntry, ...] = array(16)
