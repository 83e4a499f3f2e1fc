"""Devices by name."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch, PropertyMock
from weakref import ref

from zope.interface import implementer
from zope.interface.verify import verifyObject

from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import DeviceUnavailable, MalformedDevice
from txrdma.iba.verbs import AsyncEventKind
from txrdma.interfaces import (
    AsyncEvent,
    IReactorDevice,
    IServiceClaims,
    IVerbsDevice,
    IVerbsDeviceStringParser,
)
from txrdma.soft.device import SoftDevice
from txrdma.soft.ports import SoftPort
from txrdma.verbs import devices
from txrdma.verbs.devices import availableDevices, DeviceSpec, oneOf, openDevice, sharedDevice


@implementer(IVerbsDeviceStringParser)
class Parser:
    """Records its arguments, and opens devices without routes."""

    prefix = "test"

    def __init__(self) -> None:
        self.asked: list[tuple[tuple[str, ...], dict[str, str]]] = []
        self.opened: list[SoftDevice] = []

    def parseDevice(self, reactor: Any, *args: str, **kwargs: str) -> IVerbsDevice:
        self.asked.append((args, kwargs))
        if "broken" in args:
            raise DeviceUnavailable("broken")
        if "rejected" in args:
            raise ValueError("not an address")
        self.opened.append(SoftDevice(reactor, [SoftPort("127.0.0.1", 4791, [])]))
        return self.opened[-1]

    def available(self) -> list[str]:
        return ["test:1", "test:2"]


class ParserCase(SynchronousTestCase):
    """A parser as the only plugin."""

    def setUp(self) -> None:
        self.parser = Parser()
        self.patch(devices, "getPlugins", self.plugins)
        self.reactor = MemoryReactorClock()

    def plugins(self, interface: object) -> Iterator[Parser]:
        self.assertIs(interface, IVerbsDeviceStringParser)
        yield self.parser


class StringTests(ParserCase):
    """Strings are parsed like Twisted's endpoint strings."""

    def test_parsed(self) -> None:
        """Colons separate arguments, an equals sign follows a key, and a backslash quotes."""
        for text, args, kwargs in (
            ("test", (), {}),
            ("test:", ("",), {}),
            ("test:one:two", ("one", "two"), {}),
            (r"test:\:\:1:port=4791", ("::1",), {"port": "4791"}),
            (r"test:a\=b:c=d=e:f=\\", ("a=b",), {"c": "d=e", "f": "\\"}),
            ("test:k=", (), {"k": ""}),
        ):
            self.parser.asked.clear()
            openDevice(self.reactor, text)
            self.assertEqual(self.parser.asked, [(args, kwargs)])

    def test_nonsense(self) -> None:
        """An invalid string, or one that a parser rejects, raises C{MalformedDevice} with the string."""
        for text, named in (
            ("", "''"),
            ("tset:1", "'tset'"),
            ("tset:1", "only test"),
            ("test:a=1:a=2", "a=2"),
            ("test:oops\\", "backslash"),
            ("key=value", "does not name a kind"),
            ("test:rejected", "not an address"),
        ):
            for opening in (openDevice, sharedDevice):
                error = self.assertRaises(MalformedDevice, opening, self.reactor, text)
                self.assertIsInstance(error, ValueError)
                self.assertIn(named, str(error))

    def test_allParsersReportDevices(self) -> None:
        self.assertEqual(availableDevices(), ["test:1", "test:2"])

    def test_usersOfOneStringShareDeviceUntilLastCloses(self) -> None:
        one, other = (sharedDevice(self.reactor, "test:1") for _ in range(2))
        apart = sharedDevice(self.reactor, "test:2")
        self.assertEqual(len(self.parser.opened), 2)
        device = self.parser.opened[0]
        self.assertTrue(verifyObject(IVerbsDevice, one))
        self.assertEqual((one.gids(1), one.portAttributes(1)), (device.gids(1), device.portAttributes(1)))
        self.assertEqual((one.gidTable(1), one.pkeys(1)), (device.gidTable(1), device.pkeys(1)))
        self.assertEqual(
            (one.name, one.portCount, one.attributes, one.limits),
            (device.name, device.portCount, device.attributes, device.limits),
        )
        one.close()
        one.close()
        self.assertRaises(DeviceUnavailable, one.createChannel)
        other.createChannel()
        other.close()
        self.assertRaises(DeviceUnavailable, device.createChannel)
        apart.close()
        again = sharedDevice(self.reactor, "test:1")
        self.assertEqual(len(self.parser.opened), 3)
        again.close()

    def test_onlyClosedShareGetsNoMoreEvents(self) -> None:
        one, other = (sharedDevice(self.reactor, "test:1") for _ in range(2))
        received: list[str] = []
        one.subscribe(lambda event: received.append("one"))
        unsubscribe = other.subscribe(lambda event: received.append("other"))
        one.close()
        self.parser.opened[0].notify(AsyncEvent(AsyncEventKind.GID_CHANGE, 1))
        self.reactor.advance(0)
        self.assertEqual(received, ["other"])
        unsubscribe()
        other.close()

    def test_unsubscribedListenersAreReleased(self) -> None:
        """A share retains nothing of a listener that has unsubscribed, as each connection does."""
        share = sharedDevice(self.reactor, "test")
        self.addCleanup(share.close)
        unsubscribe = share.subscribe(lambda event: None)
        unsubscribe()
        unsubscribe()
        released = ref(unsubscribe)
        del unsubscribe
        gc.collect()
        self.assertIsNone(released())

    def test_closedShareClaimsNoServices(self) -> None:
        one, other = (sharedDevice(self.reactor, "test") for _ in range(2))
        self.addCleanup(other.close)
        one.close()
        self.assertRaises(DeviceUnavailable, IServiceClaims(one).claimService, 5)
        IServiceClaims(other).claimService(5)()

    def test_deviceIsSuspendedWithItsLastActiveShare(self) -> None:
        one, other, last = (sharedDevice(self.reactor, "test:1") for _ in range(3))
        rests: list[None] = []
        self.patch(self.parser.opened[0], "rest", lambda: rests.append(None))
        IReactorDevice(one).rest()
        IReactorDevice(one).rest()
        other.close()
        other.close()
        self.assertEqual(rests, [])
        IReactorDevice(last).wake()
        last.close()
        self.assertEqual(rests, [None])
        one.close()

    def test_reactorsDoNotShareDevices(self) -> None:
        one, other = sharedDevice(self.reactor, "test"), sharedDevice(MemoryReactorClock(), "test")
        self.assertEqual(len(self.parser.opened), 2)
        one.close()
        other.close()

    def test_orderOfKeysDoesNotMatter(self) -> None:
        one, other = (sharedDevice(self.reactor, f"test:a:{keys}") for keys in ("x=1:y=2", "y=2:x=1"))
        self.assertEqual(len(self.parser.opened), 1)
        one.close()
        other.close()

    def test_unavailableDeviceIsTriedAgain(self) -> None:
        for _ in range(2):
            self.assertRaises(DeviceUnavailable, sharedDevice, self.reactor, "test:broken")
        self.assertEqual(len(self.parser.asked), 2)

    def test_removedDeviceIsOpenedAgain(self) -> None:
        """A device that was removed has no new shares, although others have not closed theirs yet."""
        former = sharedDevice(self.reactor, "test:1")
        self.parser.opened[0].notify(AsyncEvent(AsyncEventKind.DEVICE_FATAL))
        self.reactor.advance(0)
        again = sharedDevice(self.reactor, "test:1")
        self.assertEqual(len(self.parser.opened), 2)
        former.close()
        self.assertRaises(DeviceUnavailable, self.parser.opened[0].createChannel)
        other = sharedDevice(self.reactor, "test:1")
        self.assertEqual(len(self.parser.opened), 2)
        again.close()
        other.close()
        self.assertRaises(DeviceUnavailable, self.parser.opened[1].createChannel)

    def test_deviceThatCannotBeSharedIsClosed(self) -> None:
        """A device that is removed while its limits are read is closed, and opened again the next time."""
        with patch.object(SoftDevice, "limits", PropertyMock(side_effect=DeviceUnavailable("removed"))):
            self.assertRaises(DeviceUnavailable, sharedDevice, self.reactor, "test:1")
        self.assertRaises(DeviceUnavailable, self.parser.opened[0].createChannel)
        sharedDevice(self.reactor, "test:1").close()
        self.assertEqual(len(self.parser.opened), 2)

    def test_collectorIsPausedWhileDeviceIsOpened(self) -> None:
        self.addCleanup(gc.enable if gc.isenabled() else gc.disable)
        parse, found = self.parser.parseDevice, []

        def parseDevice(*args: Any, **kwargs: str) -> IVerbsDevice:
            found.append(gc.isenabled())
            return parse(*args, **kwargs)

        self.patch(self.parser, "parseDevice", parseDevice)
        for switch, name in ((gc.enable, "test"), (gc.disable, "test"), (gc.enable, "test:broken")):
            switch()
            before = gc.isenabled()
            if "broken" in name:
                self.assertRaises(DeviceUnavailable, sharedDevice, self.reactor, name)
            else:
                sharedDevice(self.reactor, name).close()
            self.assertEqual(gc.isenabled(), before)
        self.assertEqual(found, [False] * 3)


class Thing:
    """
    An object of a device.

    @ivar close: called at its end.
    """

    def __init__(self, device: IVerbsDevice, closed: Callable[[], None]) -> None:
        self.device, self.close = device, closed


class OneOfTests(ParserCase):
    """Objects that a device has once per reactor."""

    def setUp(self) -> None:
        super().setUp()
        self.things: dict[tuple[object, DeviceSpec], Thing] = {}

    def one(self, place: DeviceSpec = "test", reactor: object = None) -> Thing:
        """Request a device's object."""
        return oneOf(self.things, reactor or self.reactor, place, Thing)

    def test_allRequestsGetSameObjectUntilItCloses(self) -> None:
        thing = self.one()
        self.assertIs(self.one(), thing)
        other = self.one(reactor=MemoryReactorClock())
        self.assertIsNot(other, thing)
        thing.close()
        self.assertRaises(DeviceUnavailable, self.parser.opened[0].createChannel)
        self.parser.opened[1].createChannel()
        self.assertIsNot(self.one(), thing)
        thing.close()  # the second one is not shared
        self.assertEqual(len(self.things), 2)
        for each in tuple(self.things.values()):
            each.close()
        self.assertEqual(self.things, {})

    def test_openDeviceIsNotClosedWithObject(self) -> None:
        device = openDevice(self.reactor, "test")
        self.one(device).close()
        self.assertEqual(self.things, {})
        device.createChannel()
        device.close()

    def test_failedObjectClosesDeviceAndIsTriedAgain(self) -> None:
        def fail(device: IVerbsDevice, closed: Callable[[], None]) -> Thing:
            raise DeviceUnavailable("no room")

        for _ in range(2):
            self.assertRaises(DeviceUnavailable, oneOf, self.things, self.reactor, "test", fail)
        self.assertEqual((len(self.parser.opened), self.things), (2, {}))
        for device in self.parser.opened:
            self.assertRaises(DeviceUnavailable, device.createChannel)
