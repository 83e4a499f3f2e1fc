"""
Attributes and limits of devices and ports, converted from those of libibverbs.

Follows InfiniBand Architecture vol. 1, 11.2.1.2 and 14.2.5.6.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any, Final

from txrdma.iba.types import GID, GUID, LID, MACAddress, MTU, PKey
from txrdma.iba.verbs import (
    AtomicCapability,
    DeviceAttributes,
    DeviceLimits,
    GIDEntry,
    GIDType,
    LinkLayer,
    NodeType,
    PhysicalState,
    PortAttributes,
    PortState,
)
from txrdma.verbs.pyverbs.bindings import Pyverbs

_DEVICES: Final = Path("/sys/class/infiniband")
_NETDEVS: Final = Path("/sys/class/net")
_NO_GID: Final = GIDEntry(GID(bytes(16)), GIDType.INFINIBAND)

_GID_TYPES: Final = {0: GIDType.INFINIBAND, 1: GIDType.ROCE_V1, 2: GIDType.ROCE_V2}
_WIDTHS: Final = {1: 1, 2: 4, 4: 8, 8: 12, 16: 2}
_LANE_RATES: Final = {
    1: 2_500_000_000,
    2: 5_000_000_000,
    4: 10_000_000_000,
    8: 10_000_000_000,
    16: 14_000_000_000,
    32: 25_000_000_000,
    64: 50_000_000_000,
    128: 100_000_000_000,
    256: 200_000_000_000,
}
"""Bits per second of one lane, by the bit of its speed, rounded as the kernel does."""

_AUTO_PATH_MIG: Final = 1 << 4
"""Capability flag of devices with automatic path migration: see ibv_query_device(3)."""

_INLINE_SIZES: Final = (4096, 2048, 1024, 512, 256, 128, 64)


def deviceAttributes(name: str, known: Any) -> DeviceAttributes:
    """Return the attributes of a device; C{known} is from C{query_device}."""
    return DeviceAttributes(
        nodeType=_nodeType(name),
        nodeGUID=_guid(known.node_guid),
        systemImageGUID=_guid(known.sys_image_guid),
        firmware=known.fw_version,
        vendorID=known.vendor_id,
        vendorPartID=known.vendor_part_id,
        hardwareVersion=known.hw_ver,
        atomics=AtomicCapability(known.atomic_caps),
        ackDelay=known.local_ca_ack_delay,
        canMigrate=bool(known.device_cap_flags & _AUTO_PATH_MIG),
    )


def deviceLimits(verbs: Pyverbs, context: Any, known: Any) -> DeviceLimits:
    """Return the limits of a device; C{known} is from C{query_device}."""
    return DeviceLimits(
        maxQueuePairs=known.max_qp,
        maxQueuePairRequests=known.max_qp_wr,
        maxSegments=known.max_sge,
        maxCompletionQueues=known.max_cq,
        maxCompletionQueueDepth=known.max_cqe,
        maxMemoryRegions=known.max_mr,
        maxMemoryRegionLength=known.max_mr_size,
        maxInline=_maxInline(verbs, context),
        maxRDAtomic=known.max_qp_init_rd_atom,
        maxDestRDAtomic=known.max_qp_rd_atom,
        maxProtectionDomains=known.max_pd,
        maxAddressHandles=known.max_ah,
        maxSharedReceiveQueues=known.max_srq,
        maxSharedReceiveQueueRequests=known.max_srq_wr,
        maxSharedReceiveQueueSegments=known.max_srq_sge,
    )


def _maxInline(verbs: Pyverbs, context: Any) -> int:
    """Find the limit by trying queue pairs, because no verb reports it."""
    domain = queue = None
    try:
        domain, queue = verbs.PD(context), verbs.CQ(context, 1)
        for size in _INLINE_SIZES:
            wanted = verbs.QPInitAttr(
                qp_type=2,
                scq=queue,
                rcq=queue,
                cap=verbs.QPCap(max_send_wr=1, max_recv_wr=1, max_inline_data=size),
                sq_sig_all=0,
            )
            try:
                verbs.QP(domain, wanted).close()
            except verbs.Error:
                continue
            return max(size, int(wanted.cap.max_inline_data))
    except verbs.Error:
        pass  # no queue pair is left to try with
    finally:
        for thing in (queue, domain):
            if thing is not None:
                thing.close()
    return 0


def gidTable(context: Any, port: int) -> tuple[GIDEntry, ...]:
    """Return the GIDs of a port up to the last one, including empty entries."""
    found: dict[int, GIDEntry] = {}
    ports = context.query_device().phys_port_cnt
    entries = sum(context.query_port(number).gid_tbl_len for number in range(1, ports + 1))
    for entry in context.query_gid_table(entries):
        if entry.port_num == port:
            raw = _raw(entry.gid_subnet_prefix) + _raw(entry.gid_interface_id)
            kind = _GID_TYPES.get(entry.gid_type, GIDType.INFINIBAND)
            found[entry.gid_index] = GIDEntry(GID(raw), kind, _netdev(entry.ndev_ifindex))
    return tuple(found.get(index, _NO_GID) for index in range(max(found, default=-1) + 1))


def pkeyTable(context: Any, port: int) -> tuple[PKey, ...]:
    length = context.query_port(port).pkey_tbl_len
    return tuple(PKey(socket.ntohs(context.query_pkey(port, index))) for index in range(length))


def portAttributes(name: str, context: Any, port: int) -> PortAttributes:
    """Return the current attributes of a port, as the kernel reports them."""
    known = context.query_port(port)
    netdev = next((entry.netdev for entry in gidTable(context, port) if entry.netdev), "")
    width = _WIDTHS.get(known.active_width, 0)
    speed = getattr(known, "active_speed_ex", 0) or known.active_speed
    return PortAttributes(
        state=_PORT_STATES.get(known.state, PortState.NOP),
        maxMTU=MTU(known.max_mtu),
        activeMTU=MTU(known.active_mtu),
        lid=LID(known.lid),
        rate=_LANE_RATES.get(speed, 0) * width,
        netdev=netdev,
        mac=_mac(netdev),
        physicalState=_PHYSICAL_STATES.get(known.phys_state, PhysicalState.NOP),
        linkLayer=_LINK_LAYERS.get(known.link_layer, LinkLayer.UNSPECIFIED),
        width=width,
        lidMask=known.lmc,
        smLID=LID(known.sm_lid),
        smServiceLevel=known.sm_sl,
        capabilities=known.port_cap_flags,
        maxMessageLength=known.max_msg_sz,
        badPKeys=known.bad_pkey_cntr,
        badQKeys=known.qkey_viol_cntr,
    )


_PORT_STATES: Final = {**{state.value: state for state in PortState}, 5: PortState.ACTIVE}
"""The fifth is "active deferred"."""
_PHYSICAL_STATES: Final = {state.value: state for state in PhysicalState}
_LINK_LAYERS: Final = {layer.value: layer for layer in LinkLayer}


def _raw(number: int) -> bytes:
    """Return eight bytes in network order, which pyverbs has read as a native number."""
    return number.to_bytes(8, sys.byteorder)


def _guid(number: int) -> GUID:
    return GUID(_raw(number))


def _nodeType(name: str) -> NodeType:
    try:
        return NodeType(int((_DEVICES / name / "node_type").read_text().partition(":")[0]))
    except (OSError, ValueError):
        return NodeType.UNKNOWN


def _netdev(index: int) -> str:
    try:
        return socket.if_indextoname(index) if index else ""
    except OSError:
        return ""  # in another network namespace


def _mac(netdev: str) -> MACAddress | None:
    try:
        return MACAddress.fromString((_NETDEVS / netdev / "address").read_text().strip()) if netdev else None
    except (OSError, ValueError):
        return None
