"""
C{txrdma devices}: descriptions and tables of the software device, of fake devices and of a fake sysfs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields

from twisted.trial.unittest import SynchronousTestCase

from txrdma.commands.common import devicedescriptions
from txrdma.commands.common.devicedescriptions import chosen, describeAll, describeDevice
from txrdma.commands.devices import CommandOptions
from txrdma.commands.formats.devicetables import devicesTable, deviceTables
from txrdma.error import DeviceUnavailable
from txrdma.iba.types import DEFAULT_PKEY, GID, GUID, LID, MACAddress, MTU, PKey
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
from txrdma.test.support.sysfs import INFINIBAND, SysFS
from txrdma.test.support.tables import shown

PORT_GID = "fe80:0000:0000:0000:b859:9f03:0012:3456"
LIMITS = DeviceLimits(*range(1001, 1001 + len(fields(DeviceLimits))))


class FakeDevice:
    """A device with given attributes."""

    name = "pyverbs:mlx5_0"
    portCount = 2
    limits = LIMITS
    attributes = DeviceAttributes(
        NodeType.CHANNEL_ADAPTER,
        GUID.fromString("b859:9f03:0012:3456"),
        GUID.fromString("b859:9f03:0012:3450"),
        "16.35.2000",
        0x2C9,
        4119,
        0x10,
        AtomicCapability.HCA,
    )

    def __init__(self) -> None:
        self.closed = 0
        self.isGone = False

    def portAttributes(self, port: int) -> PortAttributes:
        if self.isGone:
            raise DeviceUnavailable("it went away")
        return PortAttributes(
            PortState.ACTIVE if port == 1 else PortState.DOWN,
            MTU.MTU_4096,
            MTU.MTU_2048,
            LID(7),
            100_000_000_000,
            "ib0",
            MACAddress.fromString("02:00:00:00:00:01"),
            PhysicalState.LINK_UP,
            LinkLayer.INFINIBAND,
            4,
            1,
            LID(3),
            2,
            0x2651E848,
            1 << 30,
            5,
            6,
        )

    def gidTable(self, port: int) -> Sequence[GIDEntry]:
        empty = GIDEntry(GID(bytes(16)), GIDType.INFINIBAND)
        return (
            [GIDEntry(GID.fromString(PORT_GID), GIDType.INFINIBAND, "ib0"), empty] if port == 1 else [empty]
        )

    def pkeys(self, port: int) -> Sequence[PKey]:
        return [DEFAULT_PKEY, PKey(0), PKey(0x8001)]

    def close(self) -> None:
        self.closed += 1


class DescriptionTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.sysfs = SysFS(self.mktemp())
        self.root = self.sysfs.root
        self.device = FakeDevice()
        self.failure: Exception | None = None
        self.available = ["soft"]
        self.patch(devicedescriptions, "openDevice", self.openDevice)
        self.patch(devicedescriptions, "availableDevices", lambda: list(self.available))
        self.patch(devicedescriptions, "deviceKinds", lambda: ["pyverbs", "soft"])

    def openDevice(self, reactor: object, name: str) -> FakeDevice:
        if self.failure is not None:
            raise self.failure
        return self.device

    def makeKernels(self) -> None:
        """Create a device in sysfs."""
        self.sysfs.device("mlx5_0")
        for number in (1, 2):
            self.sysfs.port("mlx5_0", number, INFINIBAND, gids=[(PORT_GID, "IB/RoCE v1", "")])
        self.sysfs.characterDevice("uverbs3", "mlx5_0")
        self.sysfs.characterDevice("umad4", "mlx5_0", 1)
        self.sysfs.characterDevice("issm4", "mlx5_0", 1)

    def test_opened(self) -> None:
        """A device that can be opened is described by its attributes, and closed."""
        reported = describeDevice(None, "pyverbs:mlx5_0", self.root)
        self.assertEqual(
            reported["attributes"],
            {
                "nodeType": "CHANNEL_ADAPTER",
                "nodeGUID": "b859:9f03:0012:3456",
                "systemImageGUID": "b859:9f03:0012:3450",
                "firmware": "16.35.2000",
                "vendorID": 0x2C9,
                "vendorPartID": 4119,
                "hardwareVersion": 0x10,
                "atomics": "HCA",
            },
        )
        self.assertEqual(
            sorted(reported["limits"].values()), list(range(1001, 1001 + len(fields(DeviceLimits))))
        )
        self.assertEqual(
            reported["ports"][0],
            {
                "port": 1,
                "state": "ACTIVE",
                "physicalState": "LINK_UP",
                "linkLayer": "INFINIBAND",
                "netdev": "ib0",
                "mac": "02:00:00:00:00:01",
                "maxMTU": 4096,
                "activeMTU": 2048,
                "rate": 100_000_000_000,
                "width": 4,
                "lid": 7,
                "lidMask": 1,
                "smLID": 3,
                "smServiceLevel": 2,
                "capabilities": 0x2651E848,
                "maxMessageLength": 1 << 30,
                "badPKeys": 5,
                "badQKeys": 6,
                "gids": ["fe80::b859:9f03:12:3456"],
                "gidTable": [{"index": 0, "gid": "fe80::b859:9f03:12:3456", "type": "IB", "netdev": "ib0"}],
                "pkeys": [{"index": 0, "pkey": 0xFFFF}, {"index": 2, "pkey": 0x8001}],
                "kernel": None,
            },
        )
        self.assertEqual((reported["ports"][1]["state"], reported["ports"][1]["gids"]), ("DOWN", []))
        self.assertEqual(self.device.closed, 1)
        self.assertNotIn("error", reported)

    def test_kernels(self) -> None:
        """Attributes from sysfs are shown beside those of the device."""
        self.makeKernels()
        reported = describeDevice(None, "pyverbs:mlx5_0", self.root)
        self.assertEqual(
            reported["kernel"],
            {
                "name": "mlx5_0",
                "driver": "",
                "description": "host7 mlx5_0",
                "hardwareType": "MT4119",
                "boardID": "MT_0000000010",
                "parent": "",
                "verbs": "uverbs3",
            },
        )
        self.assertEqual(
            reported["ports"][0]["kernel"],
            {
                "name": "mlx5_0/1",
                "guid": "b859:9f03:0012:3456",
                "speed": "EDR",
                "gidTableLength": 2,
                "pkeyTableLength": 2,
                "mad": "umad4",
                "sm": "issm4",
            },
        )
        self.assertEqual(reported["ports"][1]["kernel"]["mad"], "")

    def test_sameKeys(self) -> None:
        """A device that can't be opened has the same keys, with None for unknown values, and an error."""
        self.makeKernels()
        opened = describeDevice(None, "pyverbs:mlx5_0", self.root)
        self.failure = DeviceUnavailable("pyverbs is not installed")
        reported = describeDevice(None, "pyverbs:mlx5_0", self.root)
        self.assertEqual(reported.pop("error"), "pyverbs is not installed")
        self.assertEqual(reported.keys(), opened.keys())
        self.assertEqual(reported["attributes"].keys(), opened["attributes"].keys())
        self.assertEqual(reported["attributes"]["nodeGUID"], "b859:9f03:0012:3456")
        self.assertIsNone(reported["attributes"]["atomics"])
        self.assertIsNone(reported["limits"])
        for number in (0, 1):
            self.assertEqual(reported["ports"][number].keys(), opened["ports"][number].keys())
        port = reported["ports"][0]
        self.assertEqual((port["state"], port["lid"], port["smLID"], port["rate"]), ("ACTIVE", 7, 1, 10**11))
        self.assertEqual((port["activeMTU"], port["maxMessageLength"]), (None, None))
        json.dumps(reported)

    def test_all(self) -> None:
        """Devices of the kernel that no provider offers are listed, too, each once."""
        self.makeKernels()
        for self.available in (["soft"], ["soft", "pyverbs:mlx5_0"]):
            names = [each["device"] for each in describeAll(None, self.root)]
            self.assertEqual(names, ["soft", "pyverbs:mlx5_0"])

    def test_unavailable(self) -> None:
        """A device that cannot be opened is listed with the error."""
        self.failure = DeviceUnavailable("gone")
        self.assertEqual(describeDevice(None, "soft", self.root), {"device": "soft", "error": "gone"})

    def test_goes(self) -> None:
        """A device that is removed while it is read is reported as such, and closed."""
        self.device.isGone = True
        reported = describeDevice(None, "pyverbs:mlx5_0", self.root)
        self.assertEqual(reported, {"device": "pyverbs:mlx5_0", "error": "it went away"})
        self.assertEqual(self.device.closed, 1)

    def test_chosen(self) -> None:
        """A device is selected by its string, or by the name of its kernel device or port."""
        self.makeKernels()
        for spelling, name in (
            ("soft", "soft"),
            ("soft:10.0.0.1", "soft:10.0.0.1"),
            ("pyverbs:gone", "pyverbs:gone"),
            ("mlx5_0", "pyverbs:mlx5_0"),
            ("mlx5_0/2", "pyverbs:mlx5_0"),
            ("mlx5_0:2", "pyverbs:mlx5_0"),
            (f"{PORT_GID}%mlx5_0/1", "pyverbs:mlx5_0"),
        ):
            self.assertEqual(chosen(spelling, self.root), name)
        output = str(self.assertRaises(DeviceUnavailable, chosen, "eth9", self.root))
        for words in ("'eth9'", "mlx5_0/1 ACTIVE", "could be opened: soft"):
            self.assertIn(words, output)

    # Output for people.

    def test_table(self) -> None:
        """Each port is a line; a device that can't be opened is shown with the reason and its ports."""
        self.makeKernels()
        opened = describeDevice(None, "soft", self.root)
        self.failure = DeviceUnavailable("broken")
        text = shown(devicesTable([opened, describeDevice(None, "pyverbs:mlx5_0", self.root)]))
        for words in ("soft", "ib0", "2048", "fe80::b859:9f03:12:3456", "DOWN", "broken", "pyverbs:mlx5_0"):
            self.assertIn(words, text)

    def test_everything(self) -> None:
        """With --verbose every value of the JSON output is shown."""
        self.makeKernels()
        reported = describeDevice(None, "pyverbs:mlx5_0", self.root)
        text = shown(*deviceTables(reported))
        for words in (
            *"CHANNEL_ADAPTER b859:9f03:0012:3456 16.35.2000 0x2c9 4119 0x10 HCA MT4119".split(),
            *("host7 mlx5_0", "uverbs3", "umad4", "issm4", "LINK_UP", "INFINIBAND", "100 Gb/s", "4X", "EDR"),
            *("0x2651e848", "1073741824 bytes", "0: 0xffff, 2: 0x8001", "SM LID", "IB", "ib0", "DOWN"),
            *map(str, range(1001, 1001 + len(fields(DeviceLimits)))),
        ):
            self.assertIn(words, text)
        self.failure = DeviceUnavailable("broken")
        text = shown(*deviceTables(describeDevice(None, "pyverbs:mlx5_0", self.root)))
        self.assertIn("broken", text)
        self.assertNotIn("None", text)
        self.assertIn("error", shown(*deviceTables({"device": "x", "error": "no such thing"})))


class OptionOrderTests(SynchronousTestCase):
    def test_behind(self) -> None:
        """Options may precede or follow a command's arguments."""
        for words in (["--json", "--verbose", "soft"], ["soft", "--json", "--verbose"]):
            options = CommandOptions()
            options.parseOptions(words)
            self.assertEqual((options["json"], options["verbose"], options["device"]), (1, 1, "soft"))
