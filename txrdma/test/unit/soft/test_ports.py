"""
Ports of the software device: their attributes, and their changes by commands and by the host.
"""

from __future__ import annotations

from dataclasses import replace

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import DeviceUnavailable, InvalidRequest
from txrdma.iba.types import DEFAULT_PKEY, GID, MTU
from txrdma.iba.verbs import (
    AddressVector,
    AsyncEventKind,
    GIDEntry,
    GIDType,
    LinkLayer,
    PhysicalState,
    PortState,
    QPAttributes,
)
from txrdma.interfaces import AsyncEvent
from txrdma.ports.netlink import InterfaceAddress, NetworkInterface
from txrdma.soft.core.netdev import softMAC
from txrdma.soft.core.routeport import RoutePort
from txrdma.soft.device import SoftDevice
from txrdma.soft.hostinterfaces import HostInterfaces
from txrdma.soft.ports import NO_GID, SoftPort

ACTIVE, ERROR, GIDS = AsyncEventKind.PORT_ACTIVE, AsyncEventKind.PORT_ERROR, AsyncEventKind.GID_CHANGE

ETHERNET = NetworkInterface(
    2, "eth0", 9000, True, True, False, bytes(6), (InterfaceAddress("192.0.2.1", 24),)
)


class Host(HostInterfaces):
    """The interfaces of a host, which a test can change."""

    def __init__(self) -> None:
        self.interface: NetworkInterface | None = ETHERNET
        self.isSilent = False

    def interfaceOf(self, address: str) -> NetworkInterface | None:
        if self.isSilent:
            raise DeviceUnavailable("no answer")
        return self.interface if address == "192.0.2.1" else None

    def rate(self, name: str) -> int:
        return {"eth0": 25_000_000_000}[name]


class RecordingRoutePort(RoutePort):
    """Records when it is enabled, disabled or closed."""

    canRest = False

    def __init__(self) -> None:
        self.reported: list[object] = []

    def setEnabled(self, isEnabled: bool) -> None:
        self.reported.append(isEnabled)

    def close(self) -> None:
        self.reported.append("closed")


class PortTests(SynchronousTestCase):
    """A port has the state of its interface, unless it was taken down."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.host = Host()
        self.route = RecordingRoutePort()
        other = SoftPort("127.0.0.1", 4791, [])
        self.port = SoftPort("192.0.2.1", 4791, [self.route], None, self.host)
        self.device = SoftDevice(self.clock, [other, self.port])
        self.addCleanup(self.device.close)
        self.events: list[AsyncEvent] = []
        self.device.subscribe(self.events.append)

    def reported(self) -> list[AsyncEventKind]:
        """Return the events since the last call, all of this port."""
        self.clock.advance(0)
        events, self.events[:] = self.events[:], []
        self.assertEqual({event.port for event in events} - {2}, set())
        return [event.kind for event in events]

    def change(self, **changes: object) -> None:
        """Change the state of the interface, and report the change."""
        self.host.interface = replace(ETHERNET, **changes)  # type: ignore[arg-type]  # whatever they are
        self.device.readInterfaces()

    def test_attributesOfInterface(self) -> None:
        port = self.device.portAttributes(2)
        self.assertEqual((port.state, port.physicalState), (PortState.ACTIVE, PhysicalState.LINK_UP))
        self.assertEqual((port.linkLayer, port.netdev, port.lid), (LinkLayer.ETHERNET, "eth0", 0))
        self.assertEqual((port.activeMTU, port.maxMTU), (MTU.MTU_4096, MTU.MTU_4096))
        self.assertEqual((port.rate, port.width), (25_000_000_000, 1))
        self.assertEqual((port.mac, port.maxMessageLength), (softMAC("192.0.2.1", 4791), 1 << 31))

    def test_GIDAndPartitionTables(self) -> None:
        gid = GID.fromIP("192.0.2.1")
        self.assertEqual(self.device.gids(2), (gid,))
        self.assertEqual(self.device.gidTable(2), (GIDEntry(gid, GIDType.ROCE_V2, "eth0"),))
        self.assertEqual(self.device.gids(1), (GID.fromIP("127.0.0.1"),))
        self.assertEqual(self.device.pkeys(2), (DEFAULT_PKEY,))

    def test_portDownByCommandIsReportedOnce(self) -> None:
        self.device.setPortEnabled(2, False)
        self.device.setPortEnabled(2, False)
        port = self.device.portAttributes(2)
        self.assertEqual((port.state, port.physicalState), (PortState.DOWN, PhysicalState.DISABLED))
        self.assertEqual(self.device.portAttributes(1).state, PortState.ACTIVE)
        self.assertEqual((self.route.reported, self.reported()), ([False], [ERROR]))
        self.device.setPortEnabled(2, True)
        self.assertEqual(self.device.portAttributes(2).state, PortState.ACTIVE)
        self.assertEqual((self.route.reported, self.reported()), ([False, True], [ACTIVE]))
        self.assertRaises(InvalidRequest, self.device.setPortEnabled, 3, True)
        self.device.close()
        self.assertRaises(DeviceUnavailable, self.device.setPortEnabled, 2, False)

    def test_lostLinkKeepsGID(self) -> None:
        self.change(hasCarrier=False)
        port = self.device.portAttributes(2)
        self.assertEqual((port.state, port.physicalState), (PortState.DOWN, PhysicalState.POLLING))
        self.assertEqual((self.reported(), self.device.gids(2)[0].ip), ([ERROR], "192.0.2.1"))
        self.change()
        self.assertEqual(self.reported(), [ACTIVE])

    def test_lostAddressTakesPortDown(self) -> None:
        self.host.interface = None
        self.device.readInterfaces()
        self.assertEqual(self.reported(), [ERROR, GIDS])
        self.assertEqual(self.device.gidTable(2), (GIDEntry(NO_GID, GIDType.ROCE_V2, ""),))
        port = self.device.portAttributes(2)
        self.assertEqual((port.state, port.netdev, port.rate), (PortState.DOWN, "", 0))
        vector = AddressVector(GID.fromIP("192.0.2.2"), port=2)
        self.assertRaises(InvalidRequest, self.device.admit, QPAttributes(address=vector), QPAttributes())
        self.host.interface = ETHERNET
        self.device.readInterfaces()
        self.assertEqual(self.reported(), [GIDS, ACTIVE])
        self.assertEqual(self.device.gids(2)[0].ip, "192.0.2.1")
        self.device.admit(QPAttributes(address=vector), QPAttributes())

    def test_queryShowsChangeBeforeEvent(self) -> None:
        self.host.interface = None
        self.assertEqual(self.device.gids(2), (NO_GID,))
        self.device.readInterfaces()
        self.assertEqual(self.reported(), [ERROR, GIDS])

    def test_secondDownIsNoEvent(self) -> None:
        self.device.setPortEnabled(2, False)
        self.change(hasCarrier=False)
        self.assertEqual(self.reported(), [ERROR])
        self.device.setPortEnabled(2, True)
        self.assertEqual(self.reported(), [])
        self.change()
        self.assertEqual(self.reported(), [ACTIVE])

    def test_MTUChangeIsNoEvent(self) -> None:
        self.change(mtu=1500)
        self.assertEqual((self.device.portAttributes(2).activeMTU, self.reported()), (MTU.MTU_1024, []))
        wrong = QPAttributes(pathMTU=MTU.MTU_2048)
        self.assertRaises(InvalidRequest, self.device.admit, wrong, QPAttributes(port=2))

    def test_unansweredQueryKeepsState(self) -> None:
        self.host.isSilent = True
        self.assertEqual((self.device.portAttributes(2).state, self.reported()), (PortState.ACTIVE, []))

    def test_closedDeviceHasPortsDown(self) -> None:
        self.device.close()
        self.host.interface = None
        self.assertEqual(self.device.portAttributes(2).state, PortState.DOWN)
        self.assertEqual((self.route.reported, self.device.gids(2)[0].ip), (["closed"], "192.0.2.1"))

    def test_pathBeginsAtQueuePairsPort(self) -> None:
        other = AddressVector(GID.fromIP("192.0.2.2"), port=1)
        own = replace(other, port=2)
        onSecond = QPAttributes(port=2)
        self.device.admit(QPAttributes(address=own), onSecond)
        self.assertRaises(InvalidRequest, self.device.admit, QPAttributes(address=other), onSecond)
        connected = QPAttributes(port=2, address=own)
        self.assertRaises(InvalidRequest, self.device.admit, QPAttributes(port=1), connected)
        self.device.admit(QPAttributes(port=1, address=other), connected)

    def test_alternatePathAtOtherPort(self) -> None:
        current = QPAttributes(port=2, address=AddressVector(GID.fromIP("192.0.2.2"), port=2))
        for number in (1, 2):
            vector = AddressVector(GID.fromIP("192.0.2.3"), port=number)
            self.device.admit(QPAttributes(alternateAddress=vector), current)
        nowhere = AddressVector(GID.fromIP("192.0.2.3"), port=3)
        self.assertRaises(InvalidRequest, self.device.admit, QPAttributes(alternateAddress=nowhere), current)
        narrow = QPAttributes(alternateAddress=replace(vector, port=1))
        large = replace(current, pathMTU=MTU.MTU_4096)
        self.device.admit(QPAttributes(alternateAddress=vector), large)
        self.assertRaises(InvalidRequest, self.device.admit, narrow, large)
        wrong = QPAttributes(alternateAddress=vector, alternatePKeyIndex=1)
        self.assertRaises(InvalidRequest, self.device.admit, wrong, current)
