"""Problems of a host's configuration: why each matters, and the command that fixes it."""

from __future__ import annotations

from typing import Any, Final

from txrdma.kit.values import frozen


@frozen
class HostProblem:
    """
    A problem of this host.

    @ivar kind: a key of L{REMEDIES}; stable, for programs.
    @ivar where: the device, port, file or limit; empty for the host.
    @ivar text: the observation.
    @ivar fix: a shell command; a sentence if no command on this host helps.
    """

    kind: str
    where: str
    text: str
    fix: str

    @property
    def isNeeded(self) -> bool:
        """Whether something does not work; otherwise something is slow, or an option is unavailable."""
        return REMEDIES[self.kind].isNeeded

    @property
    def why(self) -> str:
        """The consequence of the problem, as a sentence."""
        return REMEDIES[self.kind].why

    def asDict(self) -> dict[str, Any]:
        """Return the problem for JSON."""
        return {
            "kind": self.kind,
            "where": self.where,
            "isNeeded": self.isNeeded,
            "text": self.text,
            "why": self.why,
            "fix": self.fix,
        }


@frozen
class Remedy:
    """
    The remedy of one kind of problem.

    @ivar fix: the command, with fields for C{str.format}.
    """

    isNeeded: bool
    why: str
    fix: str


_NEEDED, _ADVICE = True, False
_LIMITS: Final = "/etc/security/limits.d/txrdma.conf"

# fmt: off
REMEDIES: Final[dict[str, Remedy]] = {
    # devices and modules
    "no-device": Remedy(_ADVICE,
        "Without an RDMA device of the kernel only the software device (soft) is available.",
        "sudo modprobe rdma_rxe && sudo rdma link add rxe0 type rxe netdev {netdev}"),
    "no-driver": Remedy(_NEEDED, "The adapter is used for TCP only: its RDMA driver is a module of its own.",
        "sudo modprobe {module}"),
    "no-verbs-module": Remedy(_NEEDED, "Processes open RDMA devices through ib_uverbs.",
        "sudo modprobe ib_uverbs"),
    "no-cm-module": Remedy(_ADVICE, "librdmacm, rping and perftest's -R need rdma_ucm.",
        "sudo modprobe rdma_ucm"),
    "no-mad-module": Remedy(_ADVICE,
        "Commands about InfiniBand fabrics and ib: endpoints send management datagrams through ib_umad.",
        "sudo modprobe ib_umad"),
    "no-smc-module": Remedy(_ADVICE, "smc: endpoints with backend=kernel use the kernel's AF_SMC.",
        "sudo modprobe smc"),
    "fork": Remedy(_ADVICE,
        "Before Linux 5.12, registered memory is lost in processes that start others, unless this is set.",
        "export RDMAV_FORK_SAFE=1"),
    # device files
    "verbs-file": Remedy(_NEEDED, "The device is opened through this file.", "{fix}"),
    "mad-file": Remedy(_ADVICE, "Management datagrams of this port are sent and received through this file.",
        "{fix}"),
    "cm-file": Remedy(_ADVICE, "librdmacm, rping and perftest's -R open this file.", "{fix}"),
    # ports
    "port-down": Remedy(_NEEDED, "No port of this host has a link, so nothing can be sent.", "{fix}"),
    "port-unused": Remedy(_ADVICE, "Connections can use the other ports only.", "{fix}"),
    "no-subnet-manager": Remedy(_NEEDED, "The link is up, but no subnet manager has configured the port.",
        "sudo systemctl start opensm    # on one host of the fabric"),
    "no-gid": Remedy(_NEEDED,
        "Peers address a port by its GIDs; those of RoCE are made of the IP addresses of its interface.",
        "sudo ip address add {address} dev {netdev}"),
    "no-roce-v2": Remedy(_NEEDED,
        "SMC-R version 2, btl: and the software device use RoCE v2, which routers forward.", "{fix}"),
    "link-local": Remedy(_ADVICE,
        "Peers cannot be found by IP address, and no router forwards packets to them.",
        "sudo ip address add {address} dev {netdev}"),
    "small-mtu": Remedy(_ADVICE,
        "RoCE packets are at most as long as the interface's MTU permits: longer ones cost less.",
        "sudo ip link set dev {netdev} mtu 4200    # and on switches and peers"),
    "tiny-mtu": Remedy(_NEEDED, "The shortest RoCE packet has 256 bytes.",
        "sudo ip link set dev {netdev} mtu 1500"),
    # pyverbs
    "no-pyverbs": Remedy(_NEEDED, "Devices of the kernel are opened by pyverbs.", "{fix}"),
    "hidden-pyverbs": Remedy(_NEEDED,
        "The distribution's pyverbs is built for the distribution's Python, and this one does not see it.",
        "/usr/bin/python3 -m venv --system-site-packages environment && environment/bin/pip install txrdma"),
    "wrong-pyverbs": Remedy(_NEEDED, "pyverbs has to be of the same release as the system's libibverbs.",
        "{fix}"),
    "old-rdma-core": Remedy(_NEEDED,
        "Releases of rdma-core before 44 are not tested, and lack calls that are used.", "{fix}"),
    # limits
    "memlock": Remedy(_NEEDED,
        "Registered memory stays in RAM and counts against this limit: 8 MiB serve a few peers.", "{fix}"),
    "small-memlock": Remedy(_ADVICE, "With more peers or long messages, connections become plain TCP.",
        "{fix}"),
    "descriptors": Remedy(_NEEDED, "Each connection has descriptors: TCP, shared memory, completions.",
        "{fix}"),
    "memory": Remedy(_ADVICE,
        "Memory that processes share (memfd) counts against the control group's limit, not against /dev/shm.",
        "{fix}"),
    "receive-buffer": Remedy(_ADVICE,
        "The software device asks for 8 MiB; with less, packets of other hosts are lost in bursts.",
        "sudo sysctl -w net.core.rmem_max=8388608"),
    "send-buffer": Remedy(_ADVICE,
        "The software device asks for 8 MiB; with less, it sends to other hosts in smaller bursts.",
        "sudo sysctl -w net.core.wmem_max=8388608"),
    "loopback-down": Remedy(_NEEDED, "Processes of this host connect by 127.0.0.1, also to share memory.",
        "sudo ip link set dev lo up"),
    "roce-port": Remedy(_ADVICE,
        "The software device cannot be reached by peers that know no other port: rxe, adapters.",
        "Use an address of its own for the software device: device=soft:ADDRESS."),
    "tcp-option": Remedy(_ADVICE,
        "The TCP option of SMC, by which Linux kernels learn that a peer has SMC-R, needs this right.",
        'sudo "$(command -v txrdma)" smc-option install --group "$(id -gn)"'),
}
# fmt: on
"""Importance, reason and command of each kind of problem."""


def problem(kind: str, where: str, text: str, **fields: str) -> HostProblem:
    """Return a problem with the command of its kind, which has these fields."""
    return HostProblem(kind, where, text, REMEDIES[kind].fix.format(**fields))


def limitLine(isContainer: bool, name: str, flag: str, value: str) -> str:
    """
    Return the command that raises a limit of processes.

    @param name: as in limits.conf(5), with C{value} in its unit.
    @param flag: the argument of docker and podman.
    """
    if isContainer:
        return f"start the container with {flag}"
    return f'echo "$USER - {name} {value}" | sudo tee -a {_LIMITS}    # then log in again'
