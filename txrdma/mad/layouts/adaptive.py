"""
Attributes of adaptive routing in switches of NVIDIA and Mellanox, which the IBA does not have.

Follows the headers of OpenSM, C{iba/ib_types.h} and C{opensm/osm_advanced_routing.h}, which are available
under the GPL and a BSD licence. They do not describe the modifiers: that these are numbers of blocks, like
those of other forwarding tables (IBA 14.2.5.10), and lead to the first of several tables, is an assumption.
"""

from __future__ import annotations

from txrdma.kit.wire import array, bits, Code, data, Layout, wire
from txrdma.mad.layouts.attributes import Attribute, attribute


class LIDState(Code):
    """How a switch chooses the port for a LID: with constraints, freely, not at all, or by a hash."""

    BOUNDED = 0
    FREE = 1
    STATIC = 2
    HASHED = 3


@attribute(0xFF20, "SubnGet", "SubnSet", size=64)
class AdaptiveRoutingInfo(Attribute):
    """
    Adaptive routing of a switch.

    @ivar isEnabled: whether the switch routes adaptively.
    @ivar subgroupsActive: the headers do not say whether this is the number of masks of a group, or one less.
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
    """Two masks of ports, of two groups without subgroups. The last bit is port 0."""

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
    group: int = bits(16)


@attribute(0xFF23, "SubnGet", "SubnSet", size=64)
class AdaptiveForwardingTable(Attribute):
    """Entries of 16 LIDs."""

    entries: tuple[AdaptiveEntry, ...] = array(16)
