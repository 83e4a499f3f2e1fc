"""
Tests for L{txrdma.smc.group.ports}: the ports of links, from device strings and from the system.
"""

from __future__ import annotations

from twisted.internet.task import deferLater

from txrdma.error import DeviceUnavailable
from txrdma.kit.strings import splitString
from txrdma.smc.group.groups import linkGroups
from txrdma.smc.group.ports import openDevices
from txrdma.test.support.smc.ends import EndsTestCase, reactor
from txrdma.testing.protocols import Echo

UDP = ":route=rocev2"


class DeviceStringTests(EndsTestCase):
    """Device strings with several devices or addresses."""

    def test_plusSignWithoutBackslashSeparatesDevices(self) -> None:
        self.assertEqual(
            splitString(r"soft:pcap=a\+b+pyverbs:x\\+y", "+"), [r"soft:pcap=a\+b", r"pyverbs:x\\", "y"]
        )

    def test_devicesThatCannotBeOpenedAreIgnoredBesideOthers(self) -> None:
        with self.assertRaises(DeviceUnavailable):
            openDevices(reactor, "soft:192.0.2.7+soft:192.0.2.8")
        [device] = openDevices(reactor, "soft:192.0.2.7+soft:127.0.0.2")
        self.addCleanup(device.close)
        self.assertEqual(device.name, "soft:127.0.0.2")
        self.assertRaises(ValueError, openDevices, reactor, "soft:127.0.0.2+nonsense")

    async def check(self, local: str, remote: str, links: int, more: str = "") -> None:
        """Connect, and assert that the groups of both ends get this number of active links, and no more."""
        quoted = [each.replace(":", r"\:").replace("=", r"\=") for each in (local, remote)]
        _, port = await self.serve(f"smc:0:interface=127.0.0.1:device={quoted[0]}{more}", Echo)
        end = await self.connect(f"smc:127.0.0.1:{port}:fallback=no:device={quoted[1]}{more}")
        end.transport.write(b"hello")
        await end.receiving(5)

        def found() -> list[int]:
            groups = [group for each in (local, remote) for group in linkGroups(reactor, each).groups()]
            return [sum(link.isActive for link in group.links) for group in groups]

        deadline = reactor.seconds() + 60.0
        while found() != [links] * 2 and reactor.seconds() < deadline:
            await deferLater(reactor, 0.01)
        await deferLater(reactor, 0.2)
        self.assertEqual(found(), [links] * 2)

    async def test_twoAddressesMakeTwoLinksUnlessLinksIsOne(self) -> None:
        local, remote = "soft:127.0.0.2,127.0.0.3" + UDP, "soft:127.0.0.4,127.0.0.5" + UDP
        await self.check(local, remote, 2)
        await self.check(local + ":mtu=1024", remote + ":mtu=1024", 1, ":links=1")

    async def test_twoDevicesMakeTwoLinksWithPeersOfTwoPorts(self) -> None:
        local = f"soft:127.0.0.2{UDP}+soft:127.0.0.3{UDP}"
        remote = f"soft:127.0.0.4{UDP}+soft:127.0.0.5{UDP}"
        await self.check(local, remote, 2, ":ueid=A")
        await self.check(local + "+soft:127.0.0.6" + UDP, "soft:127.0.0.7" + UDP, 1)

    async def test_sharedMemoryHasOneLink(self) -> None:
        await self.check("soft:127.0.0.2,127.0.0.3", "soft:127.0.0.4,127.0.0.5", 1)
