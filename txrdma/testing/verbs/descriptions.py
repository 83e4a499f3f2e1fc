"""
Promises of every device about the attributes of itself and its ports.

Follows InfiniBand Architecture vol. 1, 11.2.1.2 (query HCA) and 14.2.5.6 (port attributes).
"""

from __future__ import annotations

from txrdma.error import InvalidRequest
from txrdma.iba.types import MTU
from txrdma.iba.verbs import AtomicCapability, GIDType, LinkLayer, NodeType, PhysicalState, PortState
from txrdma.testing.verbs.ends import TwoEnds


class DescriptionContract(TwoEnds):
    """Promises about the attributes of devices and their ports."""

    def test_attributes(self) -> None:
        """A device has a type, a GUID, and a level of atomicity."""
        for device in self.devices:
            attributes = device.attributes
            self.assertIsInstance(attributes.nodeType, NodeType)
            self.assertNotIn(attributes.nodeType, (NodeType.UNKNOWN, NodeType.SWITCH, NodeType.ROUTER))
            self.assertTrue(any(attributes.nodeGUID.raw), attributes)
            self.assertIsInstance(attributes.atomics, AtomicCapability)
            self.assertIsInstance(attributes.firmware, str)
            for number in (attributes.vendorID, attributes.vendorPartID, attributes.hardwareVersion):
                self.assertGreaterEqual(number, 0)

    def test_port(self) -> None:
        """A port that carries traffic reports its attributes."""
        for device in self.devices:
            for number in range(1, device.portCount + 1):
                port = device.portAttributes(number)
                self.assertEqual(port.state, PortState.ACTIVE)
                self.assertEqual(port.physicalState, PhysicalState.LINK_UP)
                self.assertEqual(port.linkLayer, LinkLayer.ETHERNET)
                self.assertIn(port.activeMTU, MTU)
                self.assertLessEqual(port.activeMTU, port.maxMTU)
                self.assertGreater(port.maxMessageLength, 1 << 20)
                self.assertGreaterEqual(port.rate, 0)
                self.assertGreaterEqual(min(port.badPKeys, port.badQKeys), 0)

    def test_gids(self) -> None:
        """The GID table lists the GIDs in the order of C{gids}, each with its type."""
        for device in self.devices:
            for number in range(1, device.portCount + 1):
                table = device.gidTable(number)
                self.assertEqual([entry.gid for entry in table], list(device.gids(number)))
                there = [entry for entry in table if any(entry.gid.raw)]
                self.assertTrue(there)
                for entry in there:
                    self.assertIsInstance(entry.type, GIDType)
                    self.assertIsInstance(entry.netdev, str)
                self.assertIn(GIDType.ROCE_V2, {entry.type for entry in there})

    def test_ownGIDs(self) -> None:
        """The GIDs of all ports of a device are distinct."""
        for device in self.devices:
            gids = [g for number in range(1, device.portCount + 1) for g in device.gids(number) if any(g.raw)]
            self.assertEqual(len(set(gids)), len(gids))

    def test_pkeys(self) -> None:
        """Every port is a full member of the default partition with its first P_Key."""
        for device in self.devices:
            for number in range(1, device.portCount + 1):
                pkeys = device.pkeys(number)
                self.assertGreaterEqual(len(pkeys), 1)
                self.assertEqual(pkeys[0], 0xFFFF)

    def test_noSuchPort(self) -> None:
        """Ports are numbered from 1; queries with other numbers are refused."""
        for device in self.devices:
            for number in (0, -1, device.portCount + 1):
                for question in (device.gids, device.gidTable, device.pkeys, device.portAttributes):
                    self.assertRaises(InvalidRequest, question, number)

    def test_named(self) -> None:
        """A device has a name and at least one port."""
        for device in self.devices:
            self.assertTrue(device.name)
            self.assertGreaterEqual(device.portCount, 1)
