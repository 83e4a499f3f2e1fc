"""Devices by name."""

from __future__ import annotations

from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.soft.device import SoftDevice
from txrdma.verbs.devices import availableDevices, openDevice, sharedDevice


class PluginTests(SynchronousTestCase):
    """The software device is found by its name."""

    def test_softOpensSoftwareDeviceByPlugin(self) -> None:
        device = openDevice(MemoryReactorClock(), "soft:127.0.0.1:mtu=1024:route=rocev2")
        self.addCleanup(device.close)
        self.assertIsInstance(device, SoftDevice)
        self.assertIn("soft", availableDevices())

    def test_onlyEquivalentStringsShareDevice(self) -> None:
        reactor = MemoryReactorClock()
        shares = [
            sharedDevice(reactor, name)
            for name in (
                "soft",
                "soft:127.0.0.1",
                "soft:address=127.0.0.1:route=auto",
                "soft:127.0.0.1:mtu=512",
                "soft:127.0.0.1,127.0.0.2",
            )
        ]
        devices = [repr(share) for share in shares]
        self.assertEqual((len(set(devices)), len(set(devices[:3]))), (3, 1))
        self.assertEqual([share.portCount for share in shares], [1, 1, 1, 1, 2])
        self.assertRaises(ValueError, sharedDevice, reactor, "soft:127.0.0.1:mtu=1")
        for share in shares:
            share.close()
        self.assertEqual(reactor.getReaders(), [])
