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
    """An interface with these addresses; one with a question mark is not usable yet."""
    found = tuple(InterfaceAddress(each.rstrip("?"), 24, not each.endswith("?")) for each in addresses)
    return NetworkInterface(1, name, 1500, isUp, True, name == "lo", addresses=found)


class Network:
    """The interfaces of a host; C{isClosed} after their use."""

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
        """An address of the host is that of the device."""
        self.assertEqual(softDeviceListening("192.0.2.1"), "soft:192.0.2.1")
        self.assertEqual(softDeviceListening("fe80::1%eth0"), r"soft:fe80\:\:1%eth0")

    def test_all(self) -> None:
        """C{::} is all addresses that are up, usable and not link-local, each once; C{0.0.0.0} is IPv4's."""
        self.assertEqual(
            softDeviceListening("::"), r"soft:127.0.0.1,\:\:1,192.0.2.1,192.0.2.2,2001\:db8\:\:1,198.51.100.1"
        )
        self.assertTrue(self.network.isClosed)
        self.assertEqual(softDeviceListening("0.0.0.0"), "soft:127.0.0.1,192.0.2.1,192.0.2.2,198.51.100.1")

    def test_unknown(self) -> None:
        """Where the interfaces cannot be read, it is the loopback address."""
        self.patch(HostNetwork, "open", Mock(side_effect=DeviceUnavailable("no netlink")))
        self.assertEqual(softDeviceListening("::"), "soft:127.0.0.1")


class ConnectingTests(SynchronousTestCase):
    """The device of a client of this host."""

    def connecting(self, host: str, source: str, canShare: bool) -> str:
        """The device for a host to which this one sends from C{source}."""
        with mock.patch.object(softdevices, "socket") as sockets:
            made = sockets.socket.return_value.__enter__.return_value
            made.getsockname.return_value = (source, 50_000)
            made.bind.side_effect = None if canShare else OSError
            return softDeviceTo(host)

    def test_otherHost(self) -> None:
        """A client is at the address from which its host sends to another one."""
        self.assertEqual(self.connecting("198.51.100.9", "192.0.2.1", True), "soft:192.0.2.1")

    def test_thisHost(self) -> None:
        """A client of its own host is at the server's address."""
        self.assertEqual(self.connecting("192.0.2.1", "192.0.2.1", True), "soft:192.0.2.1")
        self.assertEqual(self.connecting("127.0.0.3", "127.0.0.1", True), "soft:127.0.0.3")

    def test_otherUser(self) -> None:
        """Where another user has port 4791, a client has a loopback address that only its process has."""
        found = self.connecting("192.0.2.1", "192.0.2.1", False)
        self.assertTrue(found.startswith("soft:127."), found)
        self.assertEqual(self.connecting("127.0.0.3", "127.0.0.1", False), found)
