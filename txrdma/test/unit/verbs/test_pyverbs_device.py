"""Devices of pyverbs with a fake instead of the library: leaks, suspension and removal."""

from __future__ import annotations

import errno
import os
import select
from dataclasses import replace
from unittest.mock import Mock

from twisted.internet.testing import MemoryReactorClock

from txrdma.error import DeviceUnavailable, ResourceExhausted
from txrdma.iba.path import GMP_QKEY
from txrdma.iba.verbs import AsyncEventKind, QPAttributes, QPState
from txrdma.interfaces import AsyncEvent
from txrdma.test.support.verbs.fakepyverbs import FAKE, FakeError, Thing
from txrdma.test.support.verbs.pyverbs_device import _inside, FakeDevice
from txrdma.verbs.pyverbs import device as _pyverbs_device


class FakeRemovals:
    """A source of device removals that tests control."""

    isGone = False

    def __init__(self, context: object) -> None:
        self._reading, self._writing = os.pipe()

    def fileno(self) -> int:
        return self._reading

    def emit(self) -> None:
        self.isGone = True
        os.write(self._writing, b"!")

    def isRemoved(self) -> bool:
        return self.isGone

    def close(self) -> None:
        os.close(self._reading)
        os.close(self._writing)


class RemovableDevice(FakeDevice):
    """A device whose removal a test reports."""

    def setUp(self) -> None:
        self.patch(_pyverbs_device, "Removals", FakeRemovals)
        super().setUp()


class LeakTests(RemovableDevice):
    """A failure to create an object releases everything."""

    def test_unwatchableCompletionQueueIsClosed(self) -> None:
        self.patch(
            self.channel, "join", Mock(side_effect=OSError(errno.ENOSPC, "too many descriptors are watched"))
        )
        Thing.log.clear()
        self.assertRaises(ResourceExhausted, self.device.createCompletionQueue, 8, self.channel)
        self.assertEqual([type(each).__name__ for each in Thing.log], ["CQ", "CompChannel"])

    def test_channelOfRefusedQueueIsClosed(self) -> None:
        self.device.verbs = replace(FAKE, CQ=Mock(side_effect=FakeError(errno.ENOMEM)))
        Thing.log.clear()
        self.assertRaises(ResourceExhausted, self.device.createCompletionQueue, 8, self.channel)
        self.assertEqual([type(each).__name__ for each in Thing.log], ["CompChannel"])

    def test_deviceThatCannotBeQueriedIsClosed(self) -> None:
        self.patch(FAKE.Context, "query_device", Mock(side_effect=FakeError(errno.EIO)))
        Thing.log.clear()
        self.assertRaises(DeviceUnavailable, _pyverbs_device.openPyverbsDevice, MemoryReactorClock(), "fake0")
        self.assertEqual([type(each).__name__ for each in Thing.log], ["Context"])

    def test_missingDescriptorClosesFirstOne(self) -> None:
        self.patch(os, "eventfd", Mock(side_effect=OSError(errno.EMFILE, "no descriptor is left")))
        before = len(os.listdir("/dev/fd"))
        failure = self.assertRaises(ResourceExhausted, self.device.createChannel)
        self.assertEqual(len(os.listdir("/dev/fd")), before, failure)


class PermissionTests(RemovableDevice):
    """Q_Keys that require a privilege."""

    def test_refusedPrivilegedQKeyNamesSetting(self) -> None:
        self.patch(self.raw, "modify", Mock(side_effect=FakeError(errno.EPERM)))
        for qkey in (GMP_QKEY, 0x1234):
            attributes = QPAttributes(state=QPState.INIT, qkey=qkey)
            error = self.assertRaises(DeviceUnavailable, self.queuePair.modify, attributes)
            isPermission = isinstance(error.__cause__, PermissionError)
            self.assertEqual((isPermission, "privileged-qkey" in str(error)), (qkey == GMP_QKEY,) * 2)


class RestTests(RemovableDevice):
    """A suspended device, whose descriptors are watched by other code."""

    def setUp(self) -> None:
        self.reactor = MemoryReactorClock()
        super().setUp()
        self.device.close()
        self.device = _pyverbs_device.openPyverbsDevice(self.reactor, "fake0")
        self.addCleanup(self.device.close)
        self.removals = _inside(self.device, "_removals")
        self.received: list[AsyncEvent] = []
        self.device.subscribe(self.received.append)

    def test_suspendedDeviceLeavesReactorAndResumes(self) -> None:
        [descriptor] = self.device.descriptors()
        self.assertEqual([each.fileno() for each in self.reactor.getReaders()], [descriptor])
        self.device.rest()
        self.device.rest()
        self.assertEqual(self.reactor.getReaders(), [])
        self.assertEqual(self.device.descriptors(), [descriptor])
        self.device.wake()
        self.assertEqual([each.fileno() for each in self.reactor.getReaders()], [descriptor])

    def test_deviceRemovedWhileSuspendedIsReleased(self) -> None:
        self.device.rest()
        [descriptor] = self.device.descriptors()
        self.device.attend()
        self.assertEqual(self.received, [])
        self.removals.emit()
        self.assertEqual(select.select([descriptor], [], [], 0)[0], [descriptor])
        self.device.attend()
        self.assertEqual([event.kind for event in self.received], [AsyncEventKind.DEVICE_FATAL])
        self.assertRaises(OSError, os.fstat, descriptor)
        self.assertEqual(self.device.descriptors(), [])
        self.device.attend()
        self.device.wake()
        self.assertEqual((len(self.received), self.reactor.getReaders()), (1, []))
        self.assertRaises(DeviceUnavailable, self.device.createChannel)
