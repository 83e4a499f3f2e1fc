"""Strings of software devices at addresses of this host."""

from __future__ import annotations

from unittest import mock
from unittest.mock import Mock

from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import DeviceUnavailable
from txrdma.ports import softdevices
from txrdma.ports.netlink import InterfaceAddress, NetworkInterface
from txrdma.ports.network import HostNetwork
from txrdma.ports.softdevices import softDeviceListening, softDeviceTo


def interface(name: str, *addresses: str, isUp: bool = True) -> NetworkInterface:
    """Return an interface with these addresses; one with a question mark is not usable yet."""
    found = tuple(InterfaceAddress(each.rstrip("?"), 24, not each.endswith("?")) for each in addresses)
    return NetworkInterface(1, name, 1500, isUp, True, name == "lo", addresses=found)


class Network:
    """The interfaces of a host; C{isClosed} is set after their use."""

    isClosed = False

    def interfaces(self) -> list[NetworkInterface]:
        return [
            interface("lo", "127.0.0.1", "::1"),
            interface("eth0", "192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8::2?", "fe80::1"),
            interface("eth1", "192.0.2.1", "198.51.100.1"),
            interface("eth2", "203.0.113.1", isUp=False),
        ]

    def close(self) -> None:
        self.isClosed = True


class ListeningTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.network = Network()
        self.patch(HostNetwork, "open", lambda: self.network)

    def test_one(self) -> None:
        """With an address of the host, there is one device at that address."""
        self.assertEqual(softDeviceListening("192.0.2.1"), "soft:192.0.2.1")
        self.assertEqual(softDeviceListening("fe80::1%eth0"), r"soft:fe80\:\:1%eth0")

    def test_all(self) -> None:
        """C{::} is all addresses that are up, usable and not link-local, once; C{0.0.0.0} those of IPv4."""
        self.assertEqual(
            softDeviceListening("::"), r"soft:127.0.0.1,\:\:1,192.0.2.1,192.0.2.2,2001\:db8\:\:1,198.51.100.1"
        )
        self.assertTrue(self.network.isClosed)
        self.assertEqual(softDeviceListening("0.0.0.0"), "soft:127.0.0.1,192.0.2.1,192.0.2.2,198.51.100.1")

    def test_unknown(self) -> None:
        """If interfaces cannot be read, the loopback address is used."""
        self.patch(HostNetwork, "open", Mock(side_effect=DeviceUnavailable("no netlink")))
        self.assertEqual(softDeviceListening("::"), "soft:127.0.0.1")


class ConnectingTests(SynchronousTestCase):
    """The device of a client on this host."""

    def connecting(self, host: str, source: str, canShare: bool) -> str:
        """Return the device for a host to which this host sends from C{source}."""
        with mock.patch.object(softdevices, "socket") as sockets:
            made = sockets.socket.return_value.__enter__.return_value
            made.getsockname.return_value = (source, 50_000)
            made.bind.side_effect = None if canShare else OSError
            return softDeviceTo(host)

    def test_otherHost(self) -> None:
        """A client of another host uses the address from which this host sends to it."""
        self.assertEqual(self.connecting("198.51.100.9", "192.0.2.1", True), "soft:192.0.2.1")

    def test_thisHost(self) -> None:
        """A client of the same host uses the server's address."""
        self.assertEqual(self.connecting("192.0.2.1", "192.0.2.1", True), "soft:192.0.2.1")
        self.assertEqual(self.connecting("127.0.0.3", "127.0.0.1", True), "soft:127.0.0.3")

    def test_otherUser(self) -> None:
        """If another user occupies port 4791, a client uses a loopback address that no other process has."""
        found = self.connecting("192.0.2.1", "192.0.2.1", False)
        self.assertTrue(found.startswith("soft:127."), found)
        self.assertEqual(self.connecting("127.0.0.3", "127.0.0.1", False), found)
