"""Checks of a host's configuration, on trees of files in a folder."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from txrdma.test.support.sysfs import INFINIBAND, MLX5, ROCE, SIW, SysFS
from txrdma.verify.environment import examine
from txrdma.verify.host import Host
from txrdma.verify.problems import HostProblem, problem, REMEDIES

V2 = ("0000:0000:0000:0000:0000:ffff:c000:0201", "RoCE v2", "eth0")
V1 = ("0000:0000:0000:0000:0000:ffff:c000:0201", "IB/RoCE v1", "eth0")
LINK_LOCAL = ("fe80:0000:0000:0000:0011:22ff:fe33:4455", "RoCE v2", "eth0")
PORT_GID = ("fe80:0000:0000:0000:b859:9f03:0012:3456", "IB/RoCE v1", "")

LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max open files            {files}              524288               files
Max locked memory         {memlock}            {memlock}            bytes
"""
STATUS = "Name:\tpython\nUid:\t1000\t1000\t1000\t1000\nCapEff:\t{capabilities:016x}\n"
UDP = """\
   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
    7: 0100007F:{port:04X} 00000000:0000 07 00000000:00000000 00:00000000 00000000 {user:5}        0 19 2 0 0
"""
ALL_CAPABILITIES = (1 << 41) - 1


class EnvironmentTests(SynchronousTestCase):
    def setUp(self) -> None:
        """A host without problems: one RoCE port, opened by a user with all capabilities."""
        self.root = Path(self.mktemp())
        self.sysfs = SysFS(str(self.root / "sys"))
        self.denied: dict[str, int] = {}
        self.pyverbsError = ""
        self.environment: dict[str, str] = {}
        self.sysfs.netdev("eth0", 4200)
        self.sysfs.write("class/net/eth0/flags", "0x1003")
        self.addDevice(ROCE, V2)
        self.sysfs.write("class/misc/rdma_cm/dev", "10:1")
        self.write("dev/infiniband/rdma_cm", "")
        self.write("proc/net/protocols", "protocol size\nTCP 2000\nSMC 1000")
        self.write("proc/sys/kernel/osrelease", "6.12.1-arm64")
        self.setLimits()
        self.write("proc/self/status", STATUS.format(capabilities=ALL_CAPABILITIES))

    def write(self, path: str, text: str) -> None:
        self.sysfs.write(f"../{path}", text)

    def setLimits(self, files: object = 1024, memlock: object = "unlimited") -> None:
        self.write("proc/self/limits", LIMITS.format(files=files, memlock=memlock))

    def addDevice(
        self, port: dict[str, str] | object, *gids: tuple[str, str, str], device: object = MLX5
    ) -> None:
        """Replace the only device by one with this port."""
        if (self.root / "sys/class/infiniband/mlx5_0").exists():
            self.sysfs.remove("class/infiniband/mlx5_0")
        self.sysfs.device("mlx5_0", device)  # type: ignore[arg-type]  # mappings of the test support
        self.sysfs.port("mlx5_0", 1, port, gids)  # type: ignore[arg-type]  # likewise
        self.sysfs.characterDevice("uverbs0", "mlx5_0")
        self.sysfs.characterDevice("umad0", "mlx5_0", 1)
        for name in ("uverbs0", "umad0"):
            self.write(f"dev/infiniband/{name}", "")

    def openError(self, path: Path) -> OSError | None:
        code = self.denied.get(path.name)
        return None if code is None else OSError(code, os.strerror(code))

    def host(self) -> Host:
        return Host(self.root, self.openError, lambda: self.pyverbsError, self.environment)

    def found(self) -> list[HostProblem]:
        return examine(self.host())

    def only(self, kind: str, isNeeded: bool) -> HostProblem:
        """Return the only problem, and check its kind."""
        found = self.found()
        self.assertEqual([each.kind for each in found], [kind])
        self.assertEqual(found[0].isNeeded, isNeeded)
        return found[0]

    def test_order(self) -> None:
        """Problems precede advice."""
        self.setLimits(files=64)
        self.write("proc/self/status", STATUS.format(capabilities=0))
        self.denied["umad0"] = errno.EACCES
        needed = [each.isNeeded for each in self.found()]
        self.assertEqual(needed, sorted(needed, reverse=True))
        self.assertEqual(set(needed), {False, True})

    # modules

    def test_noDevice(self) -> None:
        """Without a device, the command creates one of rxe on an interface, of an adapter if possible."""
        self.sysfs.remove("class/infiniband/mlx5_0")
        self.sysfs.netdev("lo", 65536)
        self.sysfs.netdev("docker0")
        self.assertTrue(self.only("no-device", False).fix.endswith("type rxe netdev docker0"))
        (self.root / "sys/class/net/eth0/device").mkdir()
        self.assertTrue(self.only("no-device", False).fix.endswith("type rxe netdev eth0"))

    def test_noDriver(self) -> None:
        """The RDMA part of an adapter's driver is not loaded."""
        self.sysfs.write("module/mlx5_core/version", "")
        folder = self.root / "sys/class/net/eth0/device"
        folder.mkdir()
        (folder / "driver").symlink_to(self.root.absolute() / "sys/module/mlx5_core")
        found = self.only("no-driver", True)
        self.assertEqual((found.where, found.fix), ("eth0", "sudo modprobe mlx5_ib"))
        self.sysfs.write("module/mlx5_ib/version", "")
        self.assertEqual(self.found(), [])

    def test_noVerbsModule(self) -> None:
        self.sysfs.remove("class/infiniband_verbs")
        self.assertEqual(self.only("no-verbs-module", True).fix, "sudo modprobe ib_uverbs")

    def test_optionalModules(self) -> None:
        """rdma_ucm and smc are advice; ib_umad is advice for InfiniBand only."""
        self.sysfs.remove("class/misc/rdma_cm")
        self.sysfs.remove("class/infiniband_mad")
        self.write("proc/net/protocols", "protocol size\nTCP 2000")
        self.assertEqual([each.kind for each in self.found()], ["no-cm-module", "no-smc-module"])
        self.addDevice(INFINIBAND, PORT_GID)
        self.sysfs.remove("class/infiniband_mad")
        self.assertIn("no-mad-module", [each.kind for each in self.found()])

    def test_fork(self) -> None:
        """Kernels before 5.12 need an environment variable."""
        self.write("proc/sys/kernel/osrelease", "5.4.0-150-generic")
        self.only("fork", False)
        self.environment["RDMAV_FORK_SAFE"] = "1"
        self.assertEqual(self.found(), [])
        self.environment.clear()
        self.write("proc/sys/kernel/osrelease", "5.12.0")
        self.assertEqual(self.found(), [])

    # device files

    def test_denied(self) -> None:
        """A device file that this user must not open is named, with the reason."""
        self.denied["uverbs0"] = errno.EACCES
        found = self.only("verbs-file", True)
        self.assertEqual(found.where, "mlx5_0")
        self.assertIn("Permission denied", found.text)
        self.assertEqual(found.fix, "sudo chmod a+rw /dev/infiniband/uverbs0")

    def test_missingFile(self) -> None:
        """A missing device file is created by udev, or passed to a container."""
        (self.root / "dev/infiniband/uverbs0").unlink()
        self.assertEqual(self.only("verbs-file", True).fix, "sudo udevadm trigger")
        self.write("run/.containerenv", "")
        self.assertIn("--device /dev/infiniband/uverbs0", self.only("verbs-file", True).fix)

    def test_otherFiles(self) -> None:
        """Files of management datagrams and of the connection manager are advice."""
        self.denied["umad0"] = errno.EPERM
        self.assertEqual(self.only("mad-file", False).where, "mlx5_0/1")
        self.denied = {"rdma_cm": errno.EACCES}
        self.only("cm-file", False)

    # ports

    def test_down(self) -> None:
        """A port without a link is a problem if no other port has one."""
        self.addDevice({**ROCE, "state": "1: DOWN", "phys_state": "3: Disabled"}, V2)
        self.assertIn("cable", self.only("port-down", True).fix)
        self.sysfs.write("class/net/eth0/flags", "0x1002")
        self.assertEqual(self.only("port-down", True).fix, "sudo ip link set dev eth0 up")
        self.sysfs.port("mlx5_0", 2, ROCE, [V2])
        self.assertEqual(self.only("port-unused", False).where, "mlx5_0/1")

    def test_infiniBandPort(self) -> None:
        """A disabled InfiniBand port is enabled by a datagram; one in INIT has no subnet manager."""
        self.addDevice({**INFINIBAND, "state": "1: DOWN", "phys_state": "3: Disabled"}, PORT_GID)
        self.assertEqual(self.only("port-down", True).fix, "sudo ibportstate -C mlx5_0 -P 1 -D 0 1 enable")
        self.addDevice({**INFINIBAND, "state": "2: INIT"}, PORT_GID)
        self.assertIn("opensm", self.only("no-subnet-manager", True).fix)

    def test_gids(self) -> None:
        """RoCE ports need GIDs of RoCE v2, of IP addresses; InfiniBand and iWARP do not."""
        self.addDevice(ROCE)
        self.sysfs.write("class/infiniband/mlx5_0/parent", "eth0")
        self.assertEqual(self.only("no-gid", True).fix, "sudo ip address add 192.0.2.1/24 dev eth0")
        self.addDevice(ROCE, V1)
        self.only("no-roce-v2", True)
        self.addDevice(ROCE, V1, LINK_LOCAL)
        self.only("link-local", False)
        self.addDevice(INFINIBAND, PORT_GID)
        self.assertEqual(self.found(), [])
        self.addDevice(ROCE, V1, device=SIW)
        self.assertEqual(self.found(), [])

    def test_roceVersionOfMlx4(self) -> None:
        """The driver mlx4 has a parameter for RoCE v2."""
        self.addDevice(ROCE, V1)
        self.sysfs.write("module/mlx4_core/version", "")
        folder = self.root / "sys/class/infiniband/mlx5_0/device"
        folder.mkdir()
        (folder / "driver").symlink_to(self.root.absolute() / "sys/module/mlx4_core")
        self.assertIn("roce_mode=2", self.only("no-roce-v2", True).fix)

    def test_mtu(self) -> None:
        """The MTU of the interface limits that of the port: 4192 is enough for 4096."""
        self.sysfs.netdev("eth0", 4191)
        found = self.only("small-mtu", False)
        self.assertIn("4191, so that of the port is 2048", found.text)
        self.assertIn("dev eth0 mtu 4200", found.fix)
        self.sysfs.netdev("eth0", 4192)
        self.assertEqual(self.found(), [])
        self.sysfs.netdev("eth0", 300)
        self.only("tiny-mtu", True)

    # pyverbs

    def test_noPyverbs(self) -> None:
        """The command that installs pyverbs depends on the distribution."""
        self.pyverbsError = "No module named 'pyverbs'"
        self.assertEqual(self.only("no-pyverbs", True).fix, "pip install 'txrdma[verbs]'")
        self.write("usr/bin/dnf", "")
        self.assertEqual(self.only("no-pyverbs", True).fix, "sudo dnf install python3-pyverbs")
        self.write("usr/lib/python3/dist-packages/pyverbs/__init__.py", "")
        self.assertIn("--system-site-packages", self.only("hidden-pyverbs", True).fix)
        self.pyverbsError = "IBVERBS_PRIVATE_59 not found"
        self.assertEqual(self.only("wrong-pyverbs", True).text, "IBVERBS_PRIVATE_59 not found")

    def test_oldRelease(self) -> None:
        """The release of rdma-core is in the name of libibverbs."""
        self.write("usr/lib/x86_64-linux-gnu/libibverbs.so.1.11.33.1", "")
        self.assertEqual(self.only("old-rdma-core", True).text, "libibverbs is of rdma-core 33")
        self.write("usr/lib64/libibverbs.so.1.14.44.0", "")
        self.assertEqual(self.found(), [])

    # limits

    def test_memlock(self) -> None:
        """Pinned memory is limited only without CAP_IPC_LOCK, and for devices of the kernel."""
        self.setLimits(memlock=65536)
        self.assertEqual(self.found(), [])
        self.write("proc/self/status", STATUS.format(capabilities=ALL_CAPABILITIES & ~(1 << 14)))
        self.assertIn("memlock 262144", self.only("memlock", True).fix)
        self.write("run/.containerenv", "")
        self.assertIn("--ulimit memlock=", self.only("memlock", True).fix)
        self.setLimits(memlock=8 << 20)
        self.assertIn("8192 KiB", self.only("small-memlock", False).text)
        self.sysfs.remove("class/infiniband/mlx5_0")
        self.only("no-device", False)

    def test_descriptors(self) -> None:
        self.setLimits(files=64)
        self.assertEqual(self.only("descriptors", True).text, "this process may have 64 descriptors")
        self.setLimits(files="unlimited")
        self.assertEqual(self.found(), [])

    def test_memory(self) -> None:
        """The smallest limit of memory of the control groups around this process counts."""
        self.write("proc/self/cgroup", "0::/system.slice/web.service")
        self.write("sys/fs/cgroup/system.slice/memory.max", str(64 << 20))
        self.write("sys/fs/cgroup/system.slice/web.service/memory.max", "max")
        found = self.only("memory", False)
        self.assertEqual(found.text, "the control group may use 64 MiB")
        self.assertEqual(found.fix, "sudo systemctl set-property web.service MemoryMax=1G")
        self.write("sys/fs/cgroup/system.slice/memory.max", str(1 << 30))
        self.assertEqual(self.found(), [])

    def test_buffers(self) -> None:
        """Socket buffers are limited only without CAP_NET_ADMIN."""
        for name in ("rmem_max", "wmem_max"):
            self.write(f"proc/sys/net/core/{name}", "212992")
        self.assertEqual(self.found(), [])
        self.write("proc/self/status", STATUS.format(capabilities=ALL_CAPABILITIES & ~(1 << 12 | 1 << 21)))
        kinds = [each.kind for each in self.found()]
        self.assertEqual(kinds, ["receive-buffer", "send-buffer", "tcp-option"])

    def test_port(self) -> None:
        """A socket of another user at RoCE's port is reported, but not one of this user."""
        self.write("proc/net/udp", UDP.format(port=4791, user=0))
        self.only("roce-port", False)
        self.write("proc/net/udp", UDP.format(port=4791, user=1000))
        self.write("proc/net/udp6", UDP.format(port=4790, user=0))
        self.assertEqual(self.found(), [])

    def test_loopback(self) -> None:
        """Without the loopback interface, as in a new network namespace, nothing can be sent on this host."""
        self.sysfs.netdev("lo", 65536)
        self.sysfs.write("class/net/lo/flags", "0x8")
        self.assertEqual(self.only("loopback-down", True).fix, "sudo ip link set dev lo up")
        self.sysfs.write("class/net/lo/flags", "0x9")
        self.assertEqual(self.found(), [])

    def test_option(self) -> None:
        """Missing rights for the TCP option are reported unless its program is installed."""
        self.write("proc/self/status", STATUS.format(capabilities=1 << 12))
        self.assertEqual(self.only("tcp-option", False).text, "this process lacks CAP_BPF")
        (self.root / "run/txrdma-smc-option").mkdir(parents=True)
        self.assertEqual(self.found(), [])

    def test_nothing(self) -> None:
        """A host without C{/proc} and C{/sys} is examined as far as possible."""
        empty = Host(Path(self.mktemp()), self.openError, lambda: "", {})
        self.assertEqual([each.kind for each in examine(empty)], ["no-device", "tcp-option"])


class RemedyTests(SynchronousTestCase):
    def test_json(self) -> None:
        self.assertEqual(
            problem("no-driver", "eth0", "not loaded", module="mlx5_ib").asDict(),
            {
                "kind": "no-driver",
                "where": "eth0",
                "isNeeded": True,
                "text": "not loaded",
                "why": REMEDIES["no-driver"].why,
                "fix": "sudo modprobe mlx5_ib",
            },
        )

    def test_sudo(self) -> None:
        """Root's search path, which sudo uses, has no virtual environment: txrdma is called by its path."""
        for remedy in REMEDIES.values():
            self.assertNotIn("sudo txrdma", remedy.fix)
        self.assertIn('sudo "$(command -v txrdma)" smc-option install', REMEDIES["tcp-option"].fix)
