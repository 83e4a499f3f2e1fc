"""
Addresses of links' ports, from endpoint strings and the system.
"""

from __future__ import annotations

from pathlib import Path

from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import DeviceUnavailable
from txrdma.iba.types import GID
from txrdma.ports.netlink import InterfaceAddress, NetworkInterface
from txrdma.ports.network import gateways
from txrdma.smc.group import groups
from txrdma.smc.group.groups import linkGroups
from txrdma.smc.group.ports import subnetsOf
from txrdma.smc.terms.offer import Subnets
from txrdma.soft.device import SoftDevice
from txrdma.soft.ports import SoftPort

ROUTES = """\
Iface	Destination	Gateway 	Flags	RefCnt	Use	Metric	Mask		MTU	Window	IRTT
eth0	00000000	0100A8C0	0003	0	0	0	00000000	0	0	0
eth0	0000A8C0	00000000	0001	0	0	0	00FFFFFF	0	0	0
eth1	0000000A	00000000	0001	0	0	0	000000FF	0	0	0
"""


class SubnetTests(SynchronousTestCase):
    """Subnets and gateways of a port's network interface."""

    def interface(self, *addresses: tuple[str, int]) -> NetworkInterface:
        found = tuple(InterfaceAddress(*each) for each in addresses)
        return NetworkInterface(2, "eth0", 1500, True, True, False, b"\2" * 6, found)

    def test_subnetOfPortsAddress(self) -> None:
        interface = self.interface(("192.0.2.1", 24), ("198.51.100.129", 25))
        for address, network, length in (("192.0.2.1", 0xC0000200, 24), ("198.51.100.129", 0xC6336480, 25)):
            self.assertEqual(
                subnetsOf(interface, GID.fromIP(address)), Subnets((network, length), (), "eth0")
            )

    def test_IPv6PrefixesExceptLinkLocal(self) -> None:
        interface = self.interface(("fe80::1", 64), ("2001:db8::1", 48))
        prefix = GID.fromIP("2001:db8::").raw
        self.assertEqual(
            subnetsOf(interface, GID.fromIP("2001:db8::1")), Subnets(None, ((prefix, 48),), "eth0")
        )

    def test_interfaceWithoutAddresses(self) -> None:
        self.assertIsNone(subnetsOf(self.interface(("fe80::1", 64)), GID.fromIP("fe80::1")))

    def test_routedInterfaces(self) -> None:
        path = Path(self.mktemp())
        self.assertEqual(gateways(path), frozenset())
        path.write_text(ROUTES)
        self.assertEqual(gateways(path), {"eth0"})


class RemovalTests(SynchronousTestCase):
    """A device that is removed while it is opened."""

    def test_deviceWhosePortsCannotBeReadIsClosed(self) -> None:
        """Otherwise the process would keep its share of a removed device, one for each attempt."""
        reactor = MemoryReactorClock()
        device = SoftDevice(reactor, [SoftPort("127.0.0.1", 4791, [])])

        def removed(port: int) -> None:
            raise DeviceUnavailable("simulated")

        self.patch(device, "portAttributes", removed)
        self.patch(groups, "openDevices", lambda reactor, description: [device])
        self.assertRaises(DeviceUnavailable, linkGroups, reactor, "test")
        self.assertRaises(DeviceUnavailable, device.createChannel)
