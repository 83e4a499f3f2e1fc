"""RDMA devices and ports from sysfs: a recorded tree and artificial ones."""

from __future__ import annotations

import os
import shutil

from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import DeviceUnavailable
from txrdma.iba.types import GID, GUID, MACAddress, MTU
from txrdma.iba.verbs import GIDEntry, GIDType, LinkLayer, NodeType, PhysicalState, PortState
from txrdma.ports import devices, getEndPort, LinkRate, RDMADevice
from txrdma.ports import sysfs as sysfsModule
from txrdma.test.support.sysfs import INFINIBAND, MLX5, ROCE, SIW, SysFS

PORT_GID = "fe80:0000:0000:0000:b859:9f03:0012:3456"


class TreeTestCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.sysfs = SysFS(self.mktemp())
        self.root = self.sysfs.root

    def device(self, name: str) -> RDMADevice:
        [found] = [each for each in devices(self.root) if each.name == name]
        return found


class DeviceTests(TreeTestCase):
    """Attributes of a device and its ports."""

    def test_none(self) -> None:
        """Without RDMA in the kernel there are no devices."""
        self.assertEqual(devices(self.root), [])
        self.assertEqual(devices(self.root / "nowhere"), [])

    def test_recorded(self) -> None:
        """The attributes of a real kernel's rxe device are read."""
        self.sysfs.recorded()
        self.sysfs.netdev("v0", 4200, "46:dd:53:3c:20:88")
        [device] = devices(self.root)
        self.assertEqual(
            (device.name, device.nodeType, device.parent), ("rxe0", NodeType.CHANNEL_ADAPTER, "v0")
        )
        self.assertEqual(device.nodeGUID, GUID.fromString("44dd:53ff:fe3c:2088"))
        self.assertEqual((device.description, device.firmware, device.boardID), ("rxe", "", ""))
        self.assertEqual((device.verbsName, device.driver, device.isIWARP), ("uverbs0", "", False))
        [port] = device.ports
        self.assertEqual((port.name, port.madName, port.smName), ("rxe0/1", "umad0", ""))
        self.assertEqual((port.state, port.physicalState), (PortState.ACTIVE, PhysicalState.LINK_UP))
        self.assertEqual((port.linkLayer, port.lid, port.capabilities), (LinkLayer.ETHERNET, 0, 0x10000))
        self.assertEqual(port.rate, LinkRate(10_000_000_000, 1, "FDR10"))
        self.assertEqual((port.netdev, port.activeMTU), ("v0", MTU.MTU_4096))
        self.assertEqual(port.mac, MACAddress.fromString("46:dd:53:3c:20:88"))
        self.assertEqual(port.pkeys(), [0xFFFF])
        self.assertEqual(
            port.gidTable(),
            [
                GIDEntry(GID.fromString("fe80::44dd:53ff:fe3c:2088"), GIDType.ROCE_V2, "v0"),
                GIDEntry(GID.fromString("::ffff:10.77.0.1"), GIDType.ROCE_V2, "v0"),
            ],
        )
        self.assertEqual(port.hardwareCounters()["lifespan"], 12)
        self.assertEqual((port.counters(), device.counters()), ({}, {}))

    def test_infiniband(self) -> None:
        """An InfiniBand port has LIDs, P_Keys and the kernel's name for the type of its GIDs."""
        self.sysfs.device("mlx5_0")
        alias = "fd00:0000:0000:0000:0000:0000:0000:0001"
        self.sysfs.port(
            "mlx5_0",
            1,
            gids=[(PORT_GID, "IB/RoCE v1", ""), None, (alias, "IB/RoCE v1", "")],
            pkeys=("0x7fff", "0x0000", "0x8001", "0x0000"),
        )
        device = self.device("mlx5_0")
        self.assertEqual(
            (device.firmware, device.hardwareType, device.hardwareVersion), ("16.35.2000", "MT4119", 0x10)
        )
        self.assertEqual((device.boardID, device.description), ("MT_0000000010", "host7 mlx5_0"))
        self.assertEqual(device.systemImageGUID, GUID.fromString("b859:9f03:0012:3450"))
        port = device.port(1)
        self.assertEqual((port.lid, port.lidMask, port.smLID, port.smServiceLevel), (7, 1, 1, 3))
        self.assertEqual((port.rate, port.linkLayer), (LinkRate(10**11, 4, "EDR"), LinkLayer.INFINIBAND))
        self.assertEqual(
            [entry.type for entry in port.gidTable() if any(entry.gid.raw)], [GIDType.INFINIBAND] * 2
        )
        self.assertEqual(port.gids(), [GID.fromString(PORT_GID), GID(bytes(16)), GID.fromString(alias)])
        self.assertEqual(port.pkeys(), [0x7FFF, 0, 0x8001])
        self.assertEqual(port.guid, GUID.fromString("b859:9f03:0012:3456"))
        self.assertEqual((port.netdev, port.mac, port.activeMTU), ("", None, None))
        self.assertEqual(port.counters(), {"symbol_error": 12, "port_rcv_data": 2**64 - 1})
        self.assertEqual(port.hardwareCounters(), {"out_of_sequence": 3})

    def test_twoPorts(self) -> None:
        """Ports and devices are sorted by their numbers; each has its own files."""
        for name in ("mlx5_10", "mlx5_2"):
            self.sysfs.device(name)
        self.sysfs.port("mlx5_2", 2, {**INFINIBAND, "state": "1: DOWN", "phys_state": "3: Disabled"})
        self.sysfs.port("mlx5_2", 1)
        for name, port in (("umad0", 1), ("umad1", 2), ("issm1", 2), ("umad10", 1)):
            self.sysfs.characterDevice(name, "mlx5_10" if name == "umad10" else "mlx5_2", port)
        self.assertEqual([device.name for device in devices(self.root)], ["mlx5_2", "mlx5_10"])
        one, two = self.device("mlx5_2").ports
        self.assertEqual(
            (one.state, two.state, two.physicalState),
            (PortState.ACTIVE, PortState.DOWN, PhysicalState.DISABLED),
        )
        self.assertEqual((one.madName, one.smName, two.madName, two.smName), ("umad0", "", "umad1", "issm1"))
        output = str(self.assertRaises(DeviceUnavailable, self.device("mlx5_2").port, 3))
        self.assertIn("1, 2", output)

    def test_roceVersions(self) -> None:
        """On Ethernet the kernel's name for both InfiniBand and RoCE v1 means RoCE v1."""
        self.sysfs.device("mlx5_0")
        self.sysfs.netdev("ens1")
        self.sysfs.port(
            "mlx5_0", 1, ROCE, gids=[(PORT_GID, "IB/RoCE v1", "ens1"), (PORT_GID, "RoCE v2", "ens1")]
        )
        port = self.device("mlx5_0").port(1)
        self.assertEqual([entry.type for entry in port.gidTable()], [GIDType.ROCE_V1, GIDType.ROCE_V2])
        self.assertEqual((port.netdev, port.activeMTU), ("ens1", MTU.MTU_1024))
        self.sysfs.netdev("ens1", 9000)
        self.assertEqual(port.activeMTU, MTU.MTU_4096)

    def test_iWARP(self) -> None:
        """An iWARP device is recognized; attributes that it does not have are empty."""
        self.sysfs.device("siw0", SIW)
        self.sysfs.port(
            "siw0",
            1,
            {"state": "4: ACTIVE", "link_layer": "Ethernet"},
            gids=[("0250:b6a1:9d61:0000:0000:0000:0000:0000", "IB/RoCE v1", "")],
            pkeys=("0x0000",),
        )
        device = self.device("siw0")
        self.assertTrue(device.isIWARP)
        self.assertEqual(device.nodeType, NodeType.RNIC)
        port = device.port(1)
        self.assertEqual((port.pkeys(), port.rate, port.physicalState), ([], LinkRate(), PhysicalState.NOP))

    def test_netdevOfHardware(self) -> None:
        """Without a GID, the interface is that of the same hardware with the port's number minus one."""
        self.sysfs.device("mlx4_0")
        for number in (1, 2):
            self.sysfs.port("mlx4_0", number)
        net = "class/infiniband/mlx4_0/device/net"
        for name, files in {"ib0": ("0x0", "0"), "ib1": ("0x1", "0"), "ib1.8001": ("0x1", "0")}.items():
            self.sysfs.write(f"{net}/{name}/dev_id", files[0])
            self.sysfs.write(f"{net}/{name}/dev_port", files[1])
        self.assertEqual([port.netdev for port in self.device("mlx4_0").ports], ["ib0", "ib1"])
        self.sysfs.write(f"{net}/ib1/dev_id", "0x0")
        self.sysfs.write(f"{net}/ib1/dev_port", "1")
        self.assertEqual(self.device("mlx4_0").port(2).netdev, "ib1")

    def test_driver(self) -> None:
        """A hardware device has a driver."""
        self.sysfs.device("mlx5_0")
        (self.root / "bus" / "drivers" / "mlx5_core").mkdir(parents=True)
        folder = self.root / "class" / "infiniband" / "mlx5_0" / "device"
        folder.mkdir()
        os.symlink(self.root.resolve() / "bus" / "drivers" / "mlx5_core", folder / "driver")
        self.assertEqual(self.device("mlx5_0").driver, "mlx5_core")

    def test_missing(self) -> None:
        """Each file may be missing, empty or invalid; the other attributes are still read."""
        self.sysfs.device("mlx5_0")
        self.sysfs.port("mlx5_0", 1, gids=[(PORT_GID, "RoCE v2", "ens1")])
        device = self.device("mlx5_0")
        port = device.port(1)
        whole = port.attributes()
        base = self.root / "class" / "infiniband" / "mlx5_0"
        files = [path for path in base.rglob("*") if path.is_file()]
        self.assertGreater(len(files), 20)
        for path in files:
            content = path.read_bytes()
            for damage in (b"", b"\n", b"no such thing\n", b"99: WHAT\n", b"\xff\xfe\0"):
                path.write_bytes(damage)
                self.readAll(device)
            path.unlink()
            self.readAll(device)
            path.write_bytes(content)
        self.assertEqual(port.attributes(), whole)

    def readAll(self, device: RDMADevice) -> None:
        """Read all attributes, which must not raise."""
        for each in (device, *device.ports):
            for name in dir(type(each)):
                if isinstance(getattr(type(each), name), property):
                    getattr(each, name)
        for port in device.ports:
            port.attributes()
            port.counters()
            port.hardwareCounters()

    def test_gone(self) -> None:
        """Any attribute of a removed device raises the documented error."""
        self.sysfs.device("mlx5_0")
        self.sysfs.port("mlx5_0", 1)
        device = self.device("mlx5_0")
        port = device.port(1)
        self.sysfs.remove("class/infiniband/mlx5_0")
        for read in (
            lambda: device.nodeGUID,
            lambda: device.ports,
            lambda: device.identity,
            lambda: port.state,
            port.gidTable,
            port.pkeys,
            port.attributes,
            port.counters,
        ):
            self.assertIn("mlx5_0", str(self.assertRaises(DeviceUnavailable, read)))
        self.assertFalse(device.isPresent)

    def test_vanishing(self) -> None:
        """A device that is removed between any two reads is reported as removed, not partially."""
        total = self.countReads(None)
        self.assertGreater(total, 15)
        for limit in range(total):
            self.assertRaises(DeviceUnavailable, self.countReads, limit)

    def countReads(self, limit: int | None) -> int:
        """Read a port whose device is removed after so many reads; return the number of reads."""
        sysfs = SysFS(self.mktemp())
        sysfs.device("mlx5_0")
        sysfs.port("mlx5_0", 1, gids=[(PORT_GID, "IB/RoCE v1", "")])
        [device] = devices(sysfs.root)
        port = device.port(1)
        reads = 0
        original = sysfsModule.contents

        def contents(path: str) -> bytes:
            nonlocal reads
            if reads == limit:
                shutil.rmtree(sysfs.root / "class" / "infiniband" / "mlx5_0", ignore_errors=True)
            reads += 1
            return original(path)

        patch = self.patch(sysfsModule, "contents", contents)
        try:
            port.attributes()
        finally:
            patch.restore()
        return reads

    def test_live(self) -> None:
        """Attributes are read on access, not when the port is found."""
        self.sysfs.device("mlx5_0")
        self.sysfs.port("mlx5_0", 1)
        port = self.device("mlx5_0").port(1)
        self.assertEqual((port.lid, port.state), (7, PortState.ACTIVE))
        self.sysfs.write("class/infiniband/mlx5_0/ports/1/lid", "0x2a")
        self.sysfs.write("class/infiniband/mlx5_0/ports/1/state", "2: INIT")
        self.assertEqual((port.lid, port.state), (42, PortState.INIT))

    def test_rates(self) -> None:
        """All formats of a rate are parsed."""
        for text, bits, width, speed in (
            ("2.5 Gb/sec (1X)", 2_500_000_000, 1, ""),
            ("10 Gb/sec (4X)", 10**10, 4, ""),
            ("20 Gb/sec (4X DDR)", 2 * 10**10, 4, "DDR"),
            ("200 Gb/sec (4X HDR)", 2 * 10**11, 4, "HDR"),
            ("40 Gb/sec", 4 * 10**10, 0, ""),
            ("fast", 0, 0, ""),
        ):
            self.assertEqual(LinkRate.fromString(text), LinkRate(bits, width, speed), text)


class FindingTests(TreeTestCase):
    """Ports selected by name."""

    def setUp(self) -> None:
        super().setUp()
        self.sysfs.device("mlx5_0")
        self.sysfs.port("mlx5_0", 1, {**INFINIBAND, "state": "2: INIT", "lid": "0x0"})
        self.sysfs.port("mlx5_0", 2, gids=[("fe80:0000:0000:0000:b859:9f03:0012:3457", "IB/RoCE v1", "")])
        self.sysfs.device("mlx5_1", {**MLX5, "node_guid": "b859:9f03:0012:4456"})
        self.sysfs.netdev("ens1")
        self.sysfs.port(
            "mlx5_1",
            1,
            ROCE,
            gids=[
                ("fe80:0000:0000:0000:ba59:9fff:fe12:4456", "RoCE v2", "ens1"),
                ("0000:0000:0000:0000:0000:ffff:0a00:0007", "RoCE v2", "ens1"),
                ("fd00:0000:0000:0000:0000:0000:0000:0007", "RoCE v2", "ens1.7"),
            ],
        )

    def found(self, spelling: str | None) -> str:
        return getEndPort(spelling, self.root).name

    def refused(self, spelling: str | None) -> str:
        return str(self.assertRaises(DeviceUnavailable, getEndPort, spelling, self.root))

    def test_spellings(self) -> None:
        """Each notation selects its port."""
        for spelling, name in (
            (None, "mlx5_0/2"),
            ("", "mlx5_0/2"),
            ("mlx5_0/1", "mlx5_0/1"),
            ("mlx5_0:1", "mlx5_0/1"),
            ("mlx5_0", "mlx5_0/2"),
            ("mlx5_1", "mlx5_1/1"),
            ("fe80::ba59:9fff:fe12:4456", "mlx5_1/1"),
            ("fe80:0000:0000:0000:ba59:9fff:fe12:4456", "mlx5_1/1"),
            ("::ffff:10.0.0.7", "mlx5_1/1"),
            ("10.0.0.7", "mlx5_1/1"),
            ("b859:9f03:0012:3457", "mlx5_0/2"),
            ("0xb8599f0300123457", "mlx5_0/2"),
            ("b859:9f03:0012:4456", "mlx5_1/1"),  # a node GUID
            ("0xb8599f0300123456", "mlx5_0/2"),  # that of the other node: its active port
            ("ens1", "mlx5_1/1"),
            ("ens1.7", "mlx5_1/1"),
            ("7", "mlx5_0/2"),
            ("0x6", None),
            ("8", "mlx5_0/2"),  # by the LMC
            ("9", None),
        ):
            if name is None:
                self.assertIn(repr(spelling), self.refused(spelling))
            else:
                self.assertEqual(self.found(spelling), name, spelling)

    def test_refused(self) -> None:
        """The error for a missing port lists the existing ones."""
        for spelling in "mlx5_7 mlx5_7/1 fe80::1 b859:9f03:0012:9999 eth9 0xffffffffffffffffff /1".split():
            output = self.refused(spelling)
            self.assertIn(repr(spelling), output)
            for words in ("mlx5_0/1 INIT", "mlx5_0/2 ACTIVE LID 7", "mlx5_1/1 ACTIVE", "on ens1"):
                self.assertIn(words, output)
        self.assertIn("its ports: 1, 2", self.refused("mlx5_0/3"))
        self.sysfs.device("bare")
        self.assertIn("no ports", self.refused("bare"))

    def test_several(self) -> None:
        """A GID of two ports needs the name of a device."""
        self.sysfs.device("mlx5_2")
        self.sysfs.port("mlx5_2", 1, gids=[("fe80:0000:0000:0000:b859:9f03:0012:3457", "IB/RoCE v1", "")])
        output = self.refused("fe80::b859:9f03:12:3457")
        self.assertIn("mlx5_0/2, mlx5_2/1", output)
        self.assertEqual(self.found("fe80::b859:9f03:12:3457%mlx5_2"), "mlx5_2/1")
        self.assertEqual(self.found("fe80::b859:9f03:12:3457%mlx5_0/2"), "mlx5_0/2")

    def test_noneActive(self) -> None:
        """Without an active port, the default is a port with a link; without any link, there is none."""
        for port in ("mlx5_0/ports/2", "mlx5_1/ports/1"):
            self.sysfs.write(f"class/infiniband/{port}/state", "1: DOWN")
            self.sysfs.write(f"class/infiniband/{port}/phys_state", "3: Disabled")
        self.assertEqual(self.found(None), "mlx5_0/1")
        self.assertEqual(self.found("mlx5_0"), "mlx5_0/1")
        self.sysfs.write("class/infiniband/mlx5_0/ports/1/phys_state", "2: Polling")
        self.assertIn("no RDMA port has a link", self.refused(None))

    def test_nothing(self) -> None:
        """Without any device, the error says that there is none."""
        empty = SysFS(self.mktemp())
        for spelling in (None, "mlx5_0", "10.0.0.7"):
            output = str(self.assertRaises(DeviceUnavailable, getEndPort, spelling, empty.root))
            self.assertIn("none at all", output)
            self.assertIn(str(empty.root), output)
