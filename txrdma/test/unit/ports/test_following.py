"""Watching RDMA ports: changes in a fake sysfs, with a L{Clock}."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast
from unittest.mock import Mock

from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import DeviceUnavailable
from txrdma.iba.types import GID
from txrdma.iba.verbs import GIDEntry, GIDType, PortState
from txrdma.ports import following
from txrdma.ports import sysfs as sysfsModule
from txrdma.ports.following import (
    Change,
    DeviceAdded,
    DeviceRemoved,
    EndPortWatcher,
    follow,
    INTERVAL,
    PortAdded,
    RDMAPortChanged,
)
from txrdma.ports.network import HostNetwork
from txrdma.test.support.sysfs import INFINIBAND, SysFS
from txrdma.test.unit.ports.test_network import MemoryReactor
from txrdma.testing.failingcalls import FailingCalls, OPENING_CALLS

PORT = "class/infiniband/mlx5_0/ports/1"


class FakeNetwork:
    """A network that reports changes on request."""

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

    def notify(self) -> None:
        for listener in list(self.listeners):
            listener()


class FollowingTests(SynchronousTestCase):
    """Changes are reported with the state before and after."""

    def setUp(self) -> None:
        self.sysfs = SysFS(self.mktemp())
        self.sysfs.device("mlx5_0")
        self.sysfs.port("mlx5_0", 1)
        self.reactor = MemoryReactor()
        self.network = FakeNetwork()
        self.received: list[Change] = []

    def listener(self, changes: Sequence[Change]) -> None:
        self.received.extend(changes)

    def follow(self, listener: Callable[[Sequence[Change]], None] | None = None) -> EndPortWatcher:
        network = cast(HostNetwork, self.network)
        watcher = follow(self.reactor, listener or self.listener, self.sysfs.root, network)
        self.addCleanup(watcher.stop)
        return watcher

    def taken(self) -> list[Change]:
        taken, self.received = self.received, []
        return taken

    def test_quiet(self) -> None:
        """Initial ports and notices without a change are not reported."""
        watcher = self.follow()
        self.network.notify()
        self.reactor.advance(INTERVAL)
        self.assertEqual(self.received, [])
        self.assertEqual(watcher.seen["mlx5_0"].ports[1].lid, 7)

    def test_attributes(self) -> None:
        """Each changed attribute is reported with its former value."""
        self.follow()
        for name, text in (("state", "1: DOWN"), ("lid", "0x9"), ("sm_lid", "0x2"), ("pkeys/1", "0x8001")):
            self.sysfs.write(f"{PORT}/{name}", text)
        self.network.notify()
        self.assertEqual(
            self.taken(),
            [
                RDMAPortChanged("mlx5_0", 1, "state", PortState.ACTIVE, PortState.DOWN),
                RDMAPortChanged("mlx5_0", 1, "lid", 7, 9),
                RDMAPortChanged("mlx5_0", 1, "smLID", 1, 2),
                RDMAPortChanged("mlx5_0", 1, "pkeys", (0xFFFF,), (0xFFFF, 0x8001)),
            ],
        )
        self.network.notify()
        self.assertEqual(self.taken(), [])

    def test_gids(self) -> None:
        """A GID that appears shortly after the notice is detected by a second read."""
        self.follow()
        self.network.notify()
        self.sysfs.write(f"{PORT}/gids/0", "0000:0000:0000:0000:0000:ffff:0a00:0007")
        self.sysfs.write(f"{PORT}/gid_attrs/types/0", "RoCE v2")
        self.sysfs.write(f"{PORT}/gid_attrs/ndevs/0", "ens1")
        self.reactor.advance(0.5)
        entry = GIDEntry(GID.fromIP("10.0.0.7"), GIDType.ROCE_V2, "ens1")
        self.assertIn(RDMAPortChanged("mlx5_0", 1, "gidTable", (), (entry,)), self.taken())
        self.sysfs.write(f"{PORT}/lid", "0x9")
        self.reactor.advance(1.5)
        self.assertEqual(self.taken(), [RDMAPortChanged("mlx5_0", 1, "lid", 7, 9)])

    def test_timer(self) -> None:
        """Changes without notices are detected by periodic reads."""
        self.follow()
        for lid in (9, 10, 11):
            self.sysfs.write(f"{PORT}/lid", str(lid))
            self.reactor.advance(INTERVAL - 0.1)
            self.assertEqual(self.taken(), [])
            self.reactor.advance(0.1)
            self.assertEqual(
                self.taken(), [RDMAPortChanged("mlx5_0", 1, "lid", lid - 1 if lid > 9 else 7, lid)]
            )

    def test_devices(self) -> None:
        """Added and removed devices are reported; added ones with their ports."""
        watcher = self.follow()
        self.sysfs.device("mlx5_1")
        self.sysfs.port("mlx5_1", 1, {**INFINIBAND, "lid": "0x21"})
        self.network.notify()
        [added, port] = self.taken()
        self.assertEqual(added, DeviceAdded("mlx5_1"))
        assert isinstance(port, PortAdded)
        self.assertEqual((port.device, port.port, port.attributes.lid), ("mlx5_1", 1, 0x21))
        self.sysfs.remove("class/infiniband/mlx5_0")
        self.network.notify()
        self.assertEqual(self.taken(), [DeviceRemoved("mlx5_0")])
        self.assertEqual(list(watcher.seen), ["mlx5_1"])

    def test_anew(self) -> None:
        """A device that was created again between two reads is reported as another one."""
        self.follow()
        place = self.sysfs.root / "class" / "infiniband" / "mlx5_0"
        moved = place.rename(place.parent.parent / "kept")  # so that its inode number is not used again
        shutil.copytree(moved, place)
        self.network.notify()
        self.assertEqual([type(change) for change in self.taken()], [DeviceRemoved, DeviceAdded, PortAdded])

    def test_vanishing(self) -> None:
        """A device that is removed while it is read is reported as removed by the next read."""
        self.follow()
        original = sysfsModule.contents

        def contents(path: str) -> bytes:
            if path.endswith("/lid"):
                self.sysfs.remove("class/infiniband/mlx5_0")
            return original(path)

        patch = self.patch(sysfsModule, "contents", contents)
        self.network.notify()
        patch.restore()
        self.assertEqual(self.taken(), [])
        self.reactor.advance(1)
        self.assertEqual(self.taken(), [DeviceRemoved("mlx5_0")])

    def test_withoutDescriptors(self) -> None:
        """What cannot be read at present has not changed."""
        self.sysfs.port("mlx5_0", 1, INFINIBAND, [("fe80::2:c903:0:7", "IB/RoCE v1", "")])
        self.follow()
        calls = FailingCalls(self.patch, lambda name: OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
        for owner, name in OPENING_CALLS:
            calls.watch(owner, name)
        number, isReached = 0, True
        while isReached:
            number += 1
            calls.begin(number)
            self.reactor.advance(INTERVAL)
            isReached = calls.count >= number
            self.assertEqual(self.received, [], calls.failed)
        self.assertGreater(number, 15)

    def test_noMemory(self) -> None:
        """While the kernel has no memory to look devices up, nothing is reported; later changes are."""
        self.network.isAvailable = False
        self.follow()
        failing = Mock(side_effect=OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)))
        patched = self.patch(Path, "is_dir", failing)
        self.reactor.advance(INTERVAL)
        patched.restore()
        self.assertEqual((failing.called, self.taken()), (True, []))
        self.sysfs.write(f"{PORT}/lid", "0x9")
        self.reactor.advance(INTERVAL)
        self.assertEqual(self.taken(), [RDMAPortChanged("mlx5_0", 1, "lid", 7, 9)])

    def test_exception(self) -> None:
        """An exception while devices are read does not end the polls."""
        self.network.isAvailable = False
        self.follow()
        patched = self.patch(following, "devices", Mock(side_effect=ZeroDivisionError))
        self.assertRaises(ZeroDivisionError, self.reactor.advance, INTERVAL)
        patched.restore()
        self.sysfs.write(f"{PORT}/lid", "0x9")
        self.reactor.advance(INTERVAL)
        self.assertEqual(self.taken(), [RDMAPortChanged("mlx5_0", 1, "lid", 7, 9)])

    def test_withoutNetwork(self) -> None:
        """Without notices, changes are detected later."""
        self.network.isAvailable = False
        self.follow()
        self.sysfs.write(f"{PORT}/lid", "0x9")
        self.reactor.advance(INTERVAL)
        self.assertEqual(self.taken(), [RDMAPortChanged("mlx5_0", 1, "lid", 7, 9)])

    def test_stop(self) -> None:
        """After it is stopped, nothing is reported, and nothing remains in the reactor. Idempotent."""
        watcher = self.follow()
        self.network.notify()
        watcher.stop()
        watcher.stop()
        self.sysfs.write(f"{PORT}/lid", "0x9")
        self.reactor.advance(2 * INTERVAL)
        self.assertEqual((self.received, self.network.listeners), ([], []))
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def test_stopsItself(self) -> None:
        """A listener may stop watching."""

        def listener(changes: Sequence[Change]) -> None:
            self.listener(changes)
            watcher.stop()

        watcher = self.follow(listener)
        for lid in (9, 10):
            self.sysfs.write(f"{PORT}/lid", str(lid))
            self.network.notify()
            self.reactor.advance(2 * INTERVAL)
        self.assertEqual(len(self.received), 1)
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def test_badListener(self) -> None:
        """An exception of a listener is logged, and the listener receives the next change."""
        received = 0

        def fail(changes: Sequence[Change]) -> None:
            nonlocal received
            received += 1
            raise RuntimeError("my fault")

        self.follow(fail)
        for lid in (9, 10):
            self.sysfs.write(f"{PORT}/lid", str(lid))
            self.network.notify()
        self.assertEqual((received, len(self.flushLoggedErrors(RuntimeError))), (2, 2))

    def test_ownNetwork(self) -> None:
        """Without a given network, one is opened and closed."""
        self.patch(HostNetwork, "open", lambda: self.network)
        watcher = follow(self.reactor, self.listener, self.sysfs.root)
        self.assertEqual((self.network.closed, len(self.network.listeners)), (False, 1))
        watcher.stop()
        self.assertEqual((self.network.closed, self.network.listeners), (True, []))
