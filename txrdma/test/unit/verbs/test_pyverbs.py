"""Devices of pyverbs, tested with a fake instead of the library."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import cast

from hypothesis import given
from hypothesis import strategies as st
from zope.interface.verify import verifyObject

from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import DeviceUnavailable, InvalidRequest, ResourceExhausted
from txrdma.iba.types import GID, LID, MTU, QPN
from txrdma.iba.verbs import Access, AddressVector, MigrationState, QPAttributes, QPState
from txrdma.interfaces import IVerbsDeviceStringParser
from txrdma.test.support.verbs.fakepyverbs import FAKE, FakeError
from txrdma.verbs import strings
from txrdma.verbs.devices import openDevice
from txrdma.verbs.pyverbs import device as _pyverbs_device
from txrdma.verbs.pyverbs.attributes import fromPyverbs, toPyverbs
from txrdma.verbs.pyverbs.bindings import translated
from txrdma.verbs.strings import PyverbsDeviceStringParser


class StringTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.opened: list[tuple[object, str]] = []
        self.patch(
            _pyverbs_device, "openPyverbsDevice", lambda reactor, name: self.opened.append((reactor, name))
        )
        self.reactor = MemoryReactorClock()

    def test_pluginProvidesInterface(self) -> None:
        verifyObject(IVerbsDeviceStringParser, PyverbsDeviceStringParser())
        openDevice(self.reactor, "pyverbs:mlx5_0")
        openDevice(self.reactor, "pyverbs:name=mlx5_1")
        self.assertEqual(self.opened, [(self.reactor, "mlx5_0"), (self.reactor, "mlx5_1")])

    def test_invalidStringIsNamedInValueError(self) -> None:
        for text, named in (
            ("pyverbs", "name a device"),
            ("pyverbs:", "name a device"),
            ("pyverbs:a:b", "'b'"),
            ("pyverbs:a:port=1", "port=1"),
            ("pyverbs:a/b", "'a/b'"),
            ("pyverbs:a:name=c", "name=c"),
        ):
            self.assertIn(named, str(self.assertRaises(ValueError, openDevice, self.reactor, text)))
        self.assertEqual(self.opened, [])

    def test_devicesAreAvailableOnlyWithPyverbs(self) -> None:
        folder = Path(self.mktemp())
        for name in ("mlx5_1", "mlx5_0"):
            (folder / name).mkdir(parents=True)
        parser = PyverbsDeviceStringParser()
        self.patch(strings, "DEVICES", str(folder))
        self.patch(strings, "find_spec", lambda name: object())
        self.assertEqual(parser.available(), ["pyverbs:mlx5_0", "pyverbs:mlx5_1"])
        self.patch(strings, "find_spec", lambda name: None)
        self.assertEqual(parser.available(), [])
        self.patch(strings, "find_spec", lambda name: object())
        self.patch(strings, "DEVICES", str(folder / "none"))
        self.assertEqual(parser.available(), [])


GIDS = st.binary(min_size=16, max_size=16).filter(any).map(GID)
ADDRESSES = st.builds(
    AddressVector,
    dgid=GIDS,
    sgidIndex=st.integers(0, 255),
    port=st.integers(1, 255),
    hopLimit=st.integers(0, 255),
    trafficClass=st.integers(0, 255),
    flowLabel=st.integers(0, 0xFFFFF),
    serviceLevel=st.integers(0, 15),
    dlid=st.integers(0, 0xFFFF).map(LID),
    sourcePathBits=st.integers(0, 0x7F),
)
ATTRIBUTES = st.builds(
    QPAttributes,
    state=st.none() | st.sampled_from(QPState),
    access=st.none() | st.integers(0, 15).map(Access),
    pkeyIndex=st.none() | st.integers(0, 0xFFFF),
    qkey=st.none() | st.integers(0, 0xFFFFFFFF),
    address=st.none() | ADDRESSES,
    pathMTU=st.none() | st.sampled_from(MTU),
    destinationQPN=st.none() | st.integers(0, 0xFFFFFF).map(QPN),
    timeout=st.none() | st.integers(0, 31),
    alternateAddress=st.none() | ADDRESSES,
    migrationState=st.none() | st.sampled_from(MigrationState),
)


class AttributeTests(SynchronousTestCase):
    @given(ATTRIBUTES)
    def test_attributesAreUnchangedAfterConversion(self, attributes: QPAttributes) -> None:
        output, _mask = toPyverbs(FAKE, attributes)
        known = fromPyverbs(output, attributes.given())
        for name in attributes.given():
            self.assertEqual(getattr(known, name), getattr(attributes, name))

    def test_maskHasExactlyGivenAttributes(self) -> None:
        vector = AddressVector(GID.fromIP("192.0.2.1"))
        for attributes, mask in (
            (QPAttributes(), 0),
            (QPAttributes(state=QPState.INIT, pkeyIndex=0, port=1, access=Access.NONE), 1 | 8 | 16 | 32),
            (
                QPAttributes(
                    state=QPState.RTR,
                    address=vector,
                    pathMTU=MTU.MTU_1024,
                    destinationQPN=QPN(1),
                    rqPSN=0,
                    maxDestRDAtomic=0,
                    minRNRTimer=0,
                ),
                1 | 1 << 7 | 1 << 8 | 1 << 20 | 1 << 12 | 1 << 17 | 1 << 15,
            ),
            (QPAttributes(timeout=1, retryCount=1, rnrRetry=1), 1 << 9 | 1 << 10 | 1 << 11),
            (QPAttributes(sqPSN=1, maxRDAtomic=1, qkey=1), 1 << 16 | 1 << 13 | 1 << 6),
            (QPAttributes(state=QPState.SQD), 1 | 4),
            (QPAttributes(alternateAddress=vector, alternateTimeout=3), 1 << 14),
            (QPAttributes(migrationState=MigrationState.REARM, currentState=QPState.RTS), 1 << 18 | 2),
        ):
            self.assertEqual(toPyverbs(FAKE, attributes)[1], mask, attributes)

    def test_valueOutOfRangeIsRefused(self) -> None:
        vector = AddressVector(GID.fromIP("192.0.2.1"))
        for attributes in (
            QPAttributes(timeout=32),
            QPAttributes(retryCount=8),
            QPAttributes(sqPSN=1 << 24),
            QPAttributes(qkey=-1),
            QPAttributes(maxRDAtomic=256),
            QPAttributes(pathMTU=cast(MTU, 0)),
            QPAttributes(address=AddressVector(GID.fromIP("192.0.2.1"), sgidIndex=256)),
            QPAttributes(address=AddressVector(GID.fromIP("192.0.2.1"), flowLabel=1 << 20)),
            QPAttributes(alternateAddress=vector, alternateTimeout=32),
            QPAttributes(alternateTimeout=3),
        ):
            self.assertRaises(InvalidRequest, toPyverbs, FAKE, attributes)

    def test_pathWithoutGIDUsesLID(self) -> None:
        vector = AddressVector(GID(bytes(16)), dlid=LID(7), serviceLevel=2, hopLimit=0, sourcePathBits=3)
        output, _mask = toPyverbs(FAKE, QPAttributes(address=vector))
        self.assertEqual(output.ah_attr.is_global, 0)
        self.assertEqual(fromPyverbs(output, frozenset({"address"})).address, vector)

    def test_errnosAreTranslatedToDecisions(self) -> None:
        for code, kind in (
            (errno.EINVAL, InvalidRequest),
            (-errno.EINVAL, InvalidRequest),
            (errno.EOPNOTSUPP, InvalidRequest),
            (errno.ENOMEM, ResourceExhausted),
            (errno.EMFILE, ResourceExhausted),
            (errno.EIO, DeviceUnavailable),
            (errno.ENODEV, DeviceUnavailable),
            (errno.EHOSTUNREACH, DeviceUnavailable),
            (errno.EACCES, DeviceUnavailable),
        ):
            error = translated(FakeError(code), "it")
            self.assertIs(type(error), kind, errno.errorcode[abs(code)])
            self.assertTrue(str(error).startswith("it: "))
