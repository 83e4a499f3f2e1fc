"""
Tests for L{txrdma.smc.group.ports}: where links begin, as endpoint strings and the system tell.
"""

from __future__ import annotations

from pathlib import Path

from twisted.internet.task import deferLater
from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import DeviceUnavailable
from txrdma.iba.types import GID
from txrdma.ports.netlink import InterfaceAddress, NetworkInterface
from txrdma.ports.network import gateways
from txrdma.smc.group.groups import linkGroups
from txrdma.smc.group.ports import openDevices, subnetsOf
from txrdma.smc.handshake._offer import Subnets
from txrdma.strings import splitString
from txrdma.test.smc.ends import Echo, EndsTestCase, reactor

UDP = ":route=rocev2"

ROUTES = """\
Iface	Destination	Gateway 	Flags	RefCnt	Use	Metric	Mask		MTU	Window	IRTT
eth0	00000000	0100A8C0	0003	0	0	0	00000000	0	0	0
eth0	0000A8C0	00000000	0001	0	0	0	00FFFFFF	0	0	0
eth1	0000000A	00000000	0001	0	0	0	000000FF	0	0	0
"""


class SubnetTests(SynchronousTestCase):
    """What is known of a port's network interface."""

    def interface(self, *addresses: tuple[str, int]) -> NetworkInterface:
        found = tuple(InterfaceAddress(*each) for each in addresses)
        return NetworkInterface(2, "eth0", 1500, True, True, False, b"\2" * 6, found)

    def test_ipv4(self) -> None:
        """The subnet of the port's own address counts, of several."""
        interface = self.interface(("192.0.2.1", 24), ("198.51.100.129", 25))
        for address, network, length in (("192.0.2.1", 0xC0000200, 24), ("198.51.100.129", 0xC6336480, 25)):
            self.assertEqual(subnetsOf(interface, GID.fromIP(address)), Subnets((network, length)))

    def test_ipv6(self) -> None:
        """Prefixes of IPv6 count, except for the one that every interface has."""
        interface = self.interface(("fe80::1", 64), ("2001:db8::1", 48))
        prefix = GID.fromIP("2001:db8::").raw
        self.assertEqual(subnetsOf(interface, GID.fromIP("2001:db8::1")), Subnets(None, ((prefix, 48),)))

    def test_none(self) -> None:
        """An interface without addresses is in no subnet that anybody knows."""
        self.assertIsNone(subnetsOf(self.interface(("fe80::1", 64)), GID.fromIP("fe80::1")))

    def test_gateways(self) -> None:
        """Interfaces with a route through a router lead out of their subnets."""
        path = Path(self.mktemp())
        self.assertEqual(gateways(path), frozenset())
        path.write_text(ROUTES)
        self.assertEqual(gateways(path), {"eth0"})


class DeviceStringTests(EndsTestCase):
    """Device strings with several devices or addresses."""

    def test_split(self) -> None:
        """A plus sign is between two devices, unless a backslash is before it."""
        self.assertEqual(
            splitString(r"soft:pcap=a\+b+pyverbs:x\\+y", "+"), [r"soft:pcap=a\+b", r"pyverbs:x\\", "y"]
        )

    def test_some(self) -> None:
        """Those that can't be opened are left out, as long as there is one."""
        with self.assertRaises(DeviceUnavailable):
            openDevices(reactor, "soft:192.0.2.7+soft:192.0.2.8")
        [device] = openDevices(reactor, "soft:192.0.2.7+soft:127.0.0.2")
        self.addCleanup(device.close)
        self.assertEqual(device.name, "soft:127.0.0.2")
        self.assertRaises(ValueError, openDevices, reactor, "soft:127.0.0.2+nonsense")

    async def linked(self, ours: str, theirs: str, more: str = "") -> list[int]:
        """Active links of the client's group, and the server's."""
        quoted = [each.replace(":", r"\:").replace("=", r"\=") for each in (ours, theirs)]
        _, port = await self.serve(f"smc:0:interface=127.0.0.1:device={quoted[0]}{more}", Echo)
        end = await self.connect(f"smc:127.0.0.1:{port}:fallback=no:device={quoted[1]}{more}")
        end.transport.write(b"hello")
        await end.hearing(5)
        await deferLater(reactor, 0.2)
        groups = [group for each in (ours, theirs) for group in linkGroups(reactor, each).groups()]
        return [sum(link.isActive for link in group.links) for group in groups]

    async def test_addresses(self) -> None:
        """Two addresses of the software device are two ports, and make two links; unless one is enough."""
        ours, theirs = "soft:127.0.0.2,127.0.0.3" + UDP, "soft:127.0.0.4,127.0.0.5" + UDP
        self.assertEqual(await self.linked(ours, theirs), [2, 2])
        self.assertEqual(await self.linked(ours + ":mtu=1024", theirs + ":mtu=1024", ":links=1"), [1, 1])

    async def test_devices(self) -> None:
        """Several devices are as good, in version 2 as well; one with a single port stays with one link."""
        ours = f"soft:127.0.0.2{UDP}+soft:127.0.0.3{UDP}"
        theirs = f"soft:127.0.0.4{UDP}+soft:127.0.0.5{UDP}"
        self.assertEqual(await self.linked(ours, theirs, ":ueid=A"), [2, 2])
        self.assertEqual(await self.linked(ours + "+soft:127.0.0.6" + UDP, "soft:127.0.0.7" + UDP), [1, 1])

    async def test_memory(self) -> None:
        """What goes by shared memory has one link, which nothing can cut."""
        self.assertEqual(await self.linked("soft:127.0.0.2,127.0.0.3", "soft:127.0.0.4,127.0.0.5"), [1, 1])
