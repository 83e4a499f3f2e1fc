"""Checks of RDMA devices of the kernel: device files, links, GIDs and MTUs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from txrdma.iba.types import MTU
from txrdma.iba.verbs import GIDType, LinkLayer, PhysicalState, PortState
from txrdma.ports import EndPort, EndPortAttributes, RDMADevice
from txrdma.verify.host import Host
from txrdma.verify.problems import HostProblem, problem

_ADDRESS: Final = "192.0.2.1/24"
"""The address in examples: of the range for documentation (RFC 5737)."""

_OLD_MELLANOX: Final = "mlx4_core"
"""The driver that has a parameter for RoCE v2."""

_CM_FILE: Final = "dev/infiniband/rdma_cm"


def deviceProblems(host: Host, device: RDMADevice, isLinked: bool) -> Iterator[HostProblem]:
    """Yield the problems of a device and its ports. C{isLinked}: whether any port of the host is active."""
    if host.has("sys/class/infiniband_verbs"):
        yield from fileProblems(
            host, "verbs-file", device.name, f"dev/infiniband/{device.verbsName or 'uverbs'}"
        )
    for port in device.ports:
        if port.madName:
            yield from fileProblems(host, "mad-file", port.name, f"dev/infiniband/{port.madName}")
        attributes = port.attributes()
        yield from _linkProblems(host, port, attributes, isLinked)
        if attributes.linkLayer == LinkLayer.ETHERNET and not device.isIWARP:
            yield from _addressProblems(port, attributes)
            yield from _mtuProblems(host, port, attributes)


def fileProblems(host: Host, kind: str, where: str, path: str) -> Iterator[HostProblem]:
    """Yield the problem of a device file that is missing, or that this user may not open."""
    if not host.has(path):
        fix = f"start the container with --device /{path}" if host.isContainer else "sudo udevadm trigger"
        yield problem(kind, where, f"/{path} does not exist", fix=fix)
        return
    error = host.openError(host.root / path)
    if error is not None:
        fix = f"start the container with --device /{path}" if host.isContainer else f"sudo chmod a+rw /{path}"
        yield problem(kind, where, f"/{path} cannot be opened: {error.strerror}", fix=fix)


def cmFileProblems(host: Host) -> Iterator[HostProblem]:
    """Yield the problem of the connection manager's device file, which exists if its module is loaded."""
    if host.has("sys/class/misc/rdma_cm"):
        yield from fileProblems(host, "cm-file", "rdma_cm", _CM_FILE)


def _linkProblems(host: Host, port: EndPort, now: EndPortAttributes, isLinked: bool) -> Iterator[HostProblem]:
    if now.state in (PortState.INIT, PortState.ARMED) and now.linkLayer == LinkLayer.INFINIBAND:
        yield problem("no-subnet-manager", port.name, f"the port is {now.state.name}")
    elif now.state != PortState.ACTIVE:
        kind = "port-unused" if isLinked else "port-down"
        text = f"the port is {now.state.name}, its link {now.physicalState.name}"
        yield problem(kind, port.name, text, fix=_linkFix(host, port, now))


def _linkFix(host: Host, port: EndPort, now: EndPortAttributes) -> str:
    if now.netdev and not isUp(host, now.netdev):
        return f"sudo ip link set dev {now.netdev} up"
    if now.physicalState == PhysicalState.DISABLED and now.linkLayer == LinkLayer.INFINIBAND:
        return f"sudo ibportstate -C {port.device.name} -P {port.number} -D 0 {port.number} enable"
    return "connect the cable, and see that the other end is up"


def isUp(host: Host, netdev: str) -> bool:
    """Return whether the administrator has brought an interface up (C{IFF_UP})."""
    return bool(int(host.text(f"sys/class/net/{netdev}/flags") or "1", 16) & 1)


def _addressProblems(port: EndPort, now: EndPortAttributes) -> Iterator[HostProblem]:
    """The GIDs of a RoCE port, which Linux derives from the IP and MAC addresses of its interface."""
    netdev = now.netdev or "INTERFACE"
    gids = [entry for entry in now.gidTable if any(entry.gid.raw)]
    routable = [entry for entry in gids if entry.type == GIDType.ROCE_V2]
    if not gids:
        yield problem("no-gid", port.name, "the port has no GID", address=_ADDRESS, netdev=netdev)
    elif not routable:
        yield problem("no-roce-v2", port.name, "the port has GIDs of RoCE v1 only", fix=_roceFix(port))
    elif all(entry.gid.raw[:2] == b"\xfe\x80" for entry in routable):
        text = "the port has link-local GIDs only"
        yield problem("link-local", port.name, text, address=_ADDRESS, netdev=netdev)


def _roceFix(port: EndPort) -> str:
    if port.device.driver == _OLD_MELLANOX:
        line = "options mlx4_core roce_mode=2"
        return f"echo '{line}' | sudo tee /etc/modprobe.d/txrdma-roce.conf    # then restart the host"
    return "see the manual of the adapter's driver how to enable RoCE v2"


def _mtuProblems(host: Host, port: EndPort, now: EndPortAttributes) -> Iterator[HostProblem]:
    mtu = host.number(f"sys/class/net/{now.netdev}/mtu") if now.netdev else None
    if mtu is None:
        return
    if now.activeMTU is None:
        text = f"the MTU of {now.netdev} is {mtu}, too short for RoCE"
        yield problem("tiny-mtu", port.name, text, netdev=now.netdev)
    elif now.activeMTU < MTU.MTU_4096:
        text = (
            f"the MTU of {now.netdev} is {mtu}, so that of the port is {now.activeMTU.bytes} instead of 4096"
        )
        yield problem("small-mtu", port.name, text, netdev=now.netdev)
