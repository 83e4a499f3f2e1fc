"""
RDMA ports followed: changes in a made-up sysfs, on a clock.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from typing import cast

from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import DeviceUnavailable
from txrdma.iba.types import GID
from txrdma.iba.verbs import GIDEntry, GIDType, PortState
from txrdma.ports import sysfs as sysfsModule
from txrdma.ports.following import (
    Change,
    DeviceAdded,
    DeviceRemoved,
    EndPortWatcher,
    follow,
    INTERVAL,
    PortAdded,
    PortChanged,
)
from txrdma.ports.network import HostNetwork
from txrdma.test.support.sysfs import INFINIBAND, SysFS
from txrdma.test.unit.ports.test_network import MemoryReactor

PORT = "class/infiniband/mlx5_0/ports/1"


class FakeNetwork:
    """What tells of changes when a test says so."""

    def __init__(self) -> None:
        self.listeners: list[Callable[[], None]] = []
        self.isAvailable = True
        self.closed = False

    def watch(self, reactor: object, listener: Callable[[], None]) -> Callable[[], None]:
        if not self.isAvailable:
            raise DeviceUnavailable("no netlink here")
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    def close(self) -> None:
        self.closed = True

    def tell(self) -> None:
        for listener in list(self.listeners):
            listener()


class FollowingTests(SynchronousTestCase):
    """Changes are told as what was and what is."""

    def setUp(self) -> None:
        self.sysfs = SysFS(self.mktemp())
        self.sysfs.device("mlx5_0")
        self.sysfs.port("mlx5_0", 1)
        self.reactor = MemoryReactor()
        self.network = FakeNetwork()
        self.received: list[Change] = []

    def listener(self, changes: Sequence[Change]) -> None:
        self.received.extend(changes)

    def follow(self) -> EndPortWatcher:
        watcher = follow(self.reactor, self.listener, self.sysfs.root, cast(HostNetwork, self.network))
        self.addCleanup(watcher.stop)
        return watcher

    def taken(self) -> list[Change]:
        taken, self.received = self.received, []
        return taken

    def test_quiet(self) -> None:
        """What was there at the start is no news, and neither is a notice that changed nothing."""
        watcher = self.follow()
        self.network.tell()
        self.reactor.advance(INTERVAL)
        self.assertEqual(self.received, [])
        self.assertEqual(watcher.seen["mlx5_0"].ports[1].lid, 7)

    def test_attributes(self) -> None:
        """Each attribute that is different is told, with what it was."""
        self.follow()
        for name, text in (("state", "1: DOWN"), ("lid", "0x9"), ("sm_lid", "0x2"), ("pkeys/1", "0x8001")):
            self.sysfs.write(f"{PORT}/{name}", text)
        self.network.tell()
        self.assertEqual(
            self.taken(),
            [
                PortChanged("mlx5_0", 1, "state", PortState.ACTIVE, PortState.DOWN),
                PortChanged("mlx5_0", 1, "lid", 7, 9),
                PortChanged("mlx5_0", 1, "smLID", 1, 2),
                PortChanged("mlx5_0", 1, "pkeys", (0xFFFF,), (0xFFFF, 0x8001)),
            ],
        )
        self.network.tell()
        self.assertEqual(self.taken(), [])

    def test_gids(self) -> None:
        """A GID that comes a little after the notice is seen, too, by looking again soon."""
        self.follow()
        self.network.tell()
        self.sysfs.write(f"{PORT}/gids/0", "0000:0000:0000:0000:0000:ffff:0a00:0007")
        self.sysfs.write(f"{PORT}/gid_attrs/types/0", "RoCE v2")
        self.sysfs.write(f"{PORT}/gid_attrs/ndevs/0", "ens1")
        self.reactor.advance(0.5)
        entry = GIDEntry(GID.fromIP("10.0.0.7"), GIDType.ROCE_V2, "ens1")
        self.assertIn(PortChanged("mlx5_0", 1, "gidTable", (), (entry,)), self.taken())
        self.sysfs.write(f"{PORT}/lid", "0x9")
        self.reactor.advance(1.5)
        self.assertEqual(self.taken(), [PortChanged("mlx5_0", 1, "lid", 7, 9)])

    def test_timer(self) -> None:
        """What nobody tells is seen after a while, again and again."""
        self.follow()
        for lid in (9, 10, 11):
            self.sysfs.write(f"{PORT}/lid", str(lid))
            self.reactor.advance(INTERVAL - 0.1)
            self.assertEqual(self.taken(), [])
            self.reactor.advance(0.1)
            self.assertEqual(self.taken(), [PortChanged("mlx5_0", 1, "lid", lid - 1 if lid > 9 else 7, lid)])

    def test_devices(self) -> None:
        """Devices that come and go are told, with their ports when they come."""
        watcher = self.follow()
        self.sysfs.device("mlx5_1")
        self.sysfs.port("mlx5_1", 1, {**INFINIBAND, "lid": "0x21"})
        self.network.tell()
        [added, port] = self.taken()
        self.assertEqual(added, DeviceAdded("mlx5_1"))
        assert isinstance(port, PortAdded)
        self.assertEqual((port.device, port.port, port.attributes.lid), ("mlx5_1", 1, 0x21))
        self.sysfs.remove("class/infiniband/mlx5_0")
        self.network.tell()
        self.assertEqual(self.taken(), [DeviceRemoved("mlx5_0")])
        self.assertEqual(list(watcher.seen), ["mlx5_1"])

    def test_anew(self) -> None:
        """A device that was made anew between two looks is another one, however equal."""
        self.follow()
        place = self.sysfs.root / "class" / "infiniband" / "mlx5_0"
        kept = place.rename(place.parent.parent / "kept")  # so that its number is not given again
        shutil.copytree(kept, place)
        self.network.tell()
        self.assertEqual([type(change) for change in self.taken()], [DeviceRemoved, DeviceAdded, PortAdded])

    def test_vanishing(self) -> None:
        """A device that goes away while it is looked at is told as gone by the next look."""
        self.follow()
        original = sysfsModule.contents

        def contents(path: str) -> bytes:
            if path.endswith("/lid"):
                self.sysfs.remove("class/infiniband/mlx5_0")
            return original(path)

        patch = self.patch(sysfsModule, "contents", contents)
        self.network.tell()
        patch.restore()
        self.assertEqual(self.taken(), [])
        self.reactor.advance(1)
        self.assertEqual(self.taken(), [DeviceRemoved("mlx5_0")])

    def test_withoutNetwork(self) -> None:
        """Where nobody tells of changes they are seen all the same, a little later."""
        self.network.isAvailable = False
        self.follow()
        self.sysfs.write(f"{PORT}/lid", "0x9")
        self.reactor.advance(INTERVAL)
        self.assertEqual(self.taken(), [PortChanged("mlx5_0", 1, "lid", 7, 9)])

    def test_stop(self) -> None:
        """After the end nothing is told, and nothing is left in the reactor; twice is fine."""
        watcher = self.follow()
        self.network.tell()
        watcher.stop()
        watcher.stop()
        self.sysfs.write(f"{PORT}/lid", "0x9")
        self.reactor.advance(2 * INTERVAL)
        self.assertEqual((self.received, self.network.listeners), ([], []))
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def test_stopsItself(self) -> None:
        """A listener may end it with what it hears."""

        def listener(changes: Sequence[Change]) -> None:
            self.listener(changes)
            watcher.stop()

        watcher = follow(self.reactor, listener, self.sysfs.root, cast(HostNetwork, self.network))
        for lid in (9, 10):
            self.sysfs.write(f"{PORT}/lid", str(lid))
            self.network.tell()
            self.reactor.advance(2 * INTERVAL)
        self.assertEqual(len(self.received), 1)
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def test_badListener(self) -> None:
        """A listener that fails is logged, and hears of the next change."""
        received = 0

        def fail(changes: Sequence[Change]) -> None:
            nonlocal received
            received += 1
            raise RuntimeError("my fault")

        watcher = follow(self.reactor, fail, self.sysfs.root, cast(HostNetwork, self.network))
        self.addCleanup(watcher.stop)
        for lid in (9, 10):
            self.sysfs.write(f"{PORT}/lid", str(lid))
            self.network.tell()
        self.assertEqual((received, len(self.flushLoggedErrors(RuntimeError))), (2, 2))

    def test_ownNetwork(self) -> None:
        """Without a network to share it opens one of its own, and closes it."""
        self.patch(HostNetwork, "open", lambda: self.network)
        watcher = follow(self.reactor, self.listener, self.sysfs.root)
        self.assertEqual((self.network.closed, len(self.network.listeners)), (False, 1))
        watcher.stop()
        self.assertEqual((self.network.closed, self.network.listeners), (True, []))
