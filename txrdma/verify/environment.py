"""Checks of this host's configuration: modules, pyverbs, limits, sysctls and rights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from txrdma.error import DeviceUnavailable
from txrdma.iba.types import ROCE_PORT
from txrdma.iba.verbs import LinkLayer, PortState
from txrdma.ports import EndPort, RDMADevice
from txrdma.ports.finding import portsOf
from txrdma.smc.signalling.option.carrier import PINS
from txrdma.smc.signalling.option.reasons import missingCapabilities
from txrdma.verify.deviceports import cmFileProblems, deviceProblems, isUp
from txrdma.verify.host import Host
from txrdma.verify.problems import HostProblem, limitLine, problem

RDMA_MODULES: Final = {
    "bnxt_en": "bnxt_re",
    "cxgb4": "iw_cxgb4",
    "hns3": "hns_roce_hw_v2",
    "i40e": "irdma",
    "ice": "irdma",
    "mana": "mana_ib",
    "mlx4_core": "mlx4_ib",
    "mlx5_core": "mlx5_ib",
    "qede": "qedr",
}
"""The module with the RDMA part of a driver of network adapters."""

_OLDEST_RELEASE: Final = 44
_FORKS_SAFELY: Final = (5, 12)
_LEAST_MEMLOCK: Final = 8 << 20
_GOOD_MEMLOCK: Final = 64 << 20
_LEAST_DESCRIPTORS: Final = 1024
_LEAST_MEMORY: Final = 256 << 20
_BUFFER: Final = 8 << 20
_NETWORK_ADMINISTRATOR, _IPC_LOCK = 12, 14
"""Capabilities of C{linux/capability.h}: socket buffers of any size, any number of pinned pages."""


def examine(host: Host) -> list[HostProblem]:
    """Return the problems of a host: first those that prevent something from working."""
    devices = host.devices()
    found = [*_moduleProblems(host, devices)]
    isLinked = any(_isActive(port) for device in devices for port in portsOf(device))
    for device in devices:
        try:
            found += deviceProblems(host, device, isLinked)
        except DeviceUnavailable:
            pass  # removed meanwhile
    if devices:
        found += [*cmFileProblems(host), *_pyverbsProblems(host), *_memlockProblems(host)]
    found += [*_limitProblems(host), *_softwareDeviceProblems(host), *_optionProblems(host)]
    return sorted(found, key=lambda each: not each.isNeeded)


def _isActive(port: EndPort) -> bool:
    try:
        return port.state == PortState.ACTIVE
    except DeviceUnavailable:
        return False


def _moduleProblems(host: Host, devices: list[RDMADevice]) -> Iterator[HostProblem]:
    yield from _driverProblems(host)
    if not devices:
        names = [name for name in host.names("sys/class/net") if name != "lo"]
        names.sort(key=lambda name: not (host.root / f"sys/class/net/{name}/device").exists())  # not a bridge
        netdev = next(iter(names), "INTERFACE")
        yield problem("no-device", "", "the kernel has no RDMA device", netdev=netdev)
        return
    if not host.has("sys/class/infiniband_verbs"):
        yield problem("no-verbs-module", "ib_uverbs", "the module is not loaded")
    if not host.has("sys/class/misc/rdma_cm"):
        yield problem("no-cm-module", "rdma_ucm", "the module is not loaded")
    if not host.has("sys/class/infiniband_mad") and any(
        port.linkLayer == LinkLayer.INFINIBAND for device in devices for port in portsOf(device)
    ):
        yield problem("no-mad-module", "ib_umad", "the module is not loaded")
    protocols = {line.split()[0] for line in host.text("proc/net/protocols").splitlines() if line.strip()}
    if protocols and "SMC" not in protocols:
        yield problem("no-smc-module", "smc", "the module is not loaded")
    if host.release and host.release < _FORKS_SAFELY and "RDMAV_FORK_SAFE" not in host.environment:
        release = ".".join(map(str, host.release))
        yield problem("fork", "RDMAV_FORK_SAFE", f"the kernel is {release}, and the variable is not set")


def _driverProblems(host: Host) -> Iterator[HostProblem]:
    """Adapters whose driver has an RDMA part that is not loaded."""
    missing: dict[str, str] = {}
    for name in host.names("sys/class/net"):
        device = f"sys/class/net/{name}/device"
        driver = (host.root / device / "driver").resolve().name if host.has(f"{device}/driver") else ""
        module = RDMA_MODULES.get(driver)
        if module is not None and not host.has(f"{device}/infiniband"):
            missing.setdefault(module, name)
    for module, name in missing.items():
        if not host.has(f"sys/module/{module}"):
            yield problem("no-driver", name, f"the module {module} is not loaded", module=module)


def _pyverbsProblems(host: Host) -> Iterator[HostProblem]:
    release = host.verbsRelease
    if release is not None and release < _OLDEST_RELEASE:
        text = f"libibverbs is of rdma-core {release}"
        yield problem("old-rdma-core", "pyverbs", text, fix=host.installCommand)
    error = host.pyverbsError()
    if not error:
        return
    if "No module named 'pyverbs'" not in error:
        yield problem("wrong-pyverbs", "pyverbs", error, fix=host.installCommand)
    elif host.hasDistributionsPyverbs:
        yield problem("hidden-pyverbs", "pyverbs", error)
    else:
        yield problem("no-pyverbs", "pyverbs", error, fix=host.installCommand)


def _memlockProblems(host: Host) -> Iterator[HostProblem]:
    limit = host.limit("Max locked memory")
    if limit is None or limit >= _GOOD_MEMLOCK or host.capabilities >> _IPC_LOCK & 1:
        return
    kind = "memlock" if limit < _LEAST_MEMLOCK else "small-memlock"
    fix = limitLine(host.isContainer, "memlock", "--ulimit memlock=268435456", "262144")
    yield problem(kind, "memlock", f"this process may pin {limit >> 10} KiB", fix=fix)


def _limitProblems(host: Host) -> Iterator[HostProblem]:
    limit = host.limit("Max open files")
    if limit is not None and limit < _LEAST_DESCRIPTORS:
        fix = limitLine(host.isContainer, "nofile", "--ulimit nofile=65536", "65536")
        yield problem("descriptors", "nofile", f"this process may have {limit} descriptors", fix=fix)
    memory = host.memoryLimit
    if memory is not None and memory < _LEAST_MEMORY:
        unit = host.text("proc/self/cgroup").rpartition("/")[2]
        fix = f"sudo systemctl set-property {unit or 'UNIT'} MemoryMax=1G"
        if host.isContainer:
            fix = "start the container with --memory=1g"
        yield problem("memory", "memory.max", f"the control group may use {memory >> 20} MiB", fix=fix)


def _softwareDeviceProblems(host: Host) -> Iterator[HostProblem]:
    if not isUp(host, "lo"):
        yield problem("loopback-down", "lo", "the interface is down")
    if not host.capabilities >> _NETWORK_ADMINISTRATOR & 1:
        for kind, name in (("receive-buffer", "rmem_max"), ("send-buffer", "wmem_max")):
            limit = host.number(f"proc/sys/net/core/{name}")
            if limit is not None and limit < _BUFFER:
                yield problem(kind, f"net.core.{name}", f"socket buffers have at most {limit >> 10} KiB")
    user = host.user
    for path in ("proc/net/udp", "proc/net/udp6"):
        owners = {owner for owner in _owners(host, path, ROCE_PORT) if owner != user}
        if owners:
            text = "another user or the kernel (rdma_rxe) has the port"
            yield problem("roce-port", f"UDP port {ROCE_PORT}", text)
            return


def _owners(host: Host, path: str, port: int) -> Iterator[int]:
    """Yield the users that have sockets at a port, from a table of proc(5): its local address and UID."""
    for line in host.text(path).splitlines()[1:]:
        fields = line.split()
        if len(fields) > 7 and int(fields[1].rpartition(":")[2], 16) == port:
            yield int(fields[7])


def _optionProblems(host: Host) -> Iterator[HostProblem]:
    missing = missingCapabilities(host.capabilities)
    if missing and not host.has(str(PINS).lstrip("/")):
        yield problem("tcp-option", "SMC's TCP option", f"this process lacks {' and '.join(missing)}")
