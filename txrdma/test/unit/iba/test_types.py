"""Tests for L{txrdma.iba.types} and L{txrdma.iba.path}."""

from __future__ import annotations

import ipaddress

from hypothesis import given
from hypothesis import strategies as st

from twisted.trial.unittest import SynchronousTestCase

from txrdma.iba.types import GID, GUID, MACAddress, MTU


class GIDTests(SynchronousTestCase):
    def test_mapped(self) -> None:
        """An IPv4 address is mapped to a GID and back."""
        gid = GID.fromIP("10.77.0.1")
        self.assertEqual(gid.toBytes(), bytes.fromhex("00000000000000000000ffff0a4d0001"))
        self.assertEqual(gid.ip, "10.77.0.1")
        self.assertTrue(gid.isMapped)
        self.assertEqual(str(gid), "::ffff:10.77.0.1")
        self.assertEqual(GID.fromString(str(gid)), gid)

    def test_linkLocal(self) -> None:
        """The link-local GID of a MAC address equals the one that smc-go recorded from Linux."""
        guid = GUID.fromMAC(MACAddress.fromString("98:03:9b:ab:cd:ef"))
        gid = GID.fromParts(0xFE80 << 48, guid)
        self.assertEqual(str(gid), "fe80::9a03:9bff:feab:cdef")
        self.assertTrue(gid.isLinkLocal)
        self.assertEqual(gid.guid, GUID.fromString("9a03:9bff:feab:cdef"))
        self.assertEqual(gid.prefix, 0xFE80 << 48)

    def test_wrong(self) -> None:
        """An invalid GID raises ValueError with the value."""
        self.assertRaises(ValueError, GID, b"short")
        for text in ("", "10.0.0.1", "fe80::1%eth0"):
            with self.assertRaises(ValueError) as caught:
                GID.fromString(text)
            self.assertIn(repr(text), str(caught.exception))
        self.assertRaises(ValueError, GID.fromIP, "host")
        self.assertEqual(GID.fromIP("fe80::1%eth0"), GID.fromString("fe80::1"))

    @given(st.binary(min_size=16, max_size=16))
    def test_text(self, raw: bytes) -> None:
        """Text and representation of any GID are parsed to the same GID."""
        gid = GID.fromBytes(raw)
        self.assertEqual(GID.fromString(str(gid)), gid)
        self.assertEqual(eval(repr(gid)), gid)
        self.assertEqual(hash(GID(raw)), hash(gid))

    @given(st.ip_addresses())
    def test_addresses(self, address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
        """Every IP address, except IPv6's "unspecified", is mapped to a GID and back."""
        ip = GID.fromIP(str(address)).ip
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        expected = None if int(address) == 0 and address.version == 6 else str(mapped or address)
        self.assertEqual(ip, expected)


class NameTests(SynchronousTestCase):
    """GUID, MAC address, MTU."""

    def test_guid(self) -> None:
        """Both notations of a GUID are parsed."""
        guid = GUID.fromString("0x0002c90300a1b2c3")
        self.assertEqual(str(guid), "0002:c903:00a1:b2c3")
        self.assertEqual(GUID.fromString("2:c903:a1:b2c3"), guid)
        self.assertEqual(int(guid), 0x0002C90300A1B2C3)
        self.assertEqual(eval(repr(guid)), guid)
        for text in ("", "1:2:3", "1:2:3:4:5", "0x12345678901234567", "g:0:0:0", "-1"):
            self.assertRaises(ValueError, GUID.fromString, text)
        for number in (-1, 1 << 64):
            self.assertRaises(ValueError, GUID.fromInt, number)
        self.assertRaises(ValueError, GUID, b"")
        self.assertRaises(ValueError, GUID.fromBytes, bytes(7))

    def test_buffers(self) -> None:
        """A GUID made from a mutable buffer does not change with the buffer."""
        buffer = bytearray(range(8))
        guids = {GUID.fromBytes(buffer), GUID.fromBytes(memoryview(buffer)), GUID.fromBytes(bytes(buffer))}
        buffer[0] = 9
        self.assertEqual(guids, {GUID(bytes(range(8)))})

    def test_mac(self) -> None:
        """A MAC address is parsed with colons and with dashes."""
        mac = MACAddress.fromString("02:00:0A:4d:00:01")
        self.assertEqual(MACAddress.fromString("02-00-0a-4d-00-01"), mac)
        self.assertEqual(str(mac), "02:00:0a:4d:00:01")
        self.assertEqual(eval(repr(mac)), mac)
        for text in ("", "02:00:0a:4d:00", "02:00:0a:4d:00:01:02", "02:00:0a:4d:00:1ff", "x"):
            self.assertRaises(ValueError, MACAddress.fromString, text)

    def test_mtu(self) -> None:
        """The code of an MTU gives its bytes, and the largest MTU within a limit is found."""
        self.assertEqual([mtu.bytes for mtu in MTU], [256, 512, 1024, 2048, 4096])
        self.assertIs(MTU.fitting(1500 - 60), MTU.MTU_1024)
        self.assertIs(MTU.fitting(1 << 20), MTU.MTU_4096)
        self.assertRaises(ValueError, MTU.fitting, 255)
