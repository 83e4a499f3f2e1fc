"""Tests for L{txrdma.iba.roce} and L{txrdma.iba.internet}: against recorded packets and scapy."""

from __future__ import annotations

import ipaddress
import zlib

from hypothesis import given
from hypothesis import strategies as st

from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import WireError
from txrdma.iba import roce
from txrdma.iba.headers import BTH, EXTENSIONS, Opcode
from txrdma.iba.internet import checksum, checksummed, ipHeaders, IPv4, IPv6, packedIP, UDP
from txrdma.iba.roce import crc32, IDENTIFICATION_CHANGES, LARGEST, RESIDUE, RoCEPacket, UDPFlow
from txrdma.kit.wire import Layout
from txrdma.test.support.captures import Captured, names, packets
from txrdma.test.support.iba.scapyroce import scapyRoCE
from txrdma.testing.strategies import layouts


def invariantCRC(ip: IPv4 | IPv6, udp: UDP, packet: bytes) -> int:
    """Compute the ICRC of the bytes of a packet from BTH to pad directly (annex A17)."""
    masked: Layout
    if isinstance(ip, IPv4):
        masked = ip.replace(typeOfService=0xFF, timeToLive=0xFF, checksum=0xFFFF)
    else:
        masked = ip.replace(trafficClass=0xFF, flowLabel=0xFFFFF, hopLimit=0xFF)
    rest = bytearray(packet)
    rest[4:5] = b"\xff"
    return crc32(b"\xff" * 8 + masked.encode() + udp.replace(checksum=0xFFFF).encode() + rest, 0)


def everything() -> list[Captured]:
    """Return all recorded RoCE v2 packets."""
    return [captured for name in names() for captured in packets(name)]


def addresses() -> st.SearchStrategy[tuple[str, int, str, int]]:
    """Return the addresses of both ends of a flow."""
    ports = st.integers(0, 65535)
    return st.one_of(
        st.tuples(st.ip_addresses(v=4).map(str), ports, st.ip_addresses(v=4).map(str), ports),
        st.tuples(*[st.ip_addresses(network="2001:db8::/32").map(str), ports] * 2),
    )


def rocePackets() -> st.SearchStrategy[RoCEPacket]:
    """Arbitrary packets, with known and unknown opcodes."""

    def withOpcode(number: int) -> st.SearchStrategy[RoCEPacket]:
        opcode = Opcode(number)
        extensions = st.tuples(*(layouts(layout) for layout in EXTENSIONS.get(opcode, ())))
        bth = layouts(BTH, opcode=st.just(opcode))
        return st.builds(RoCEPacket, bth, extensions, st.binary(max_size=64))

    return st.integers(0, 255).flatmap(withOpcode)


class RecordedTests(SynchronousTestCase):
    def test_enough(self) -> None:
        """There are recorded packets of both IP versions, most of them with an identification."""
        found = everything()
        self.assertGreater(len(found), 400)
        self.assertGreater(sum(1 for one in found if not isinstance(one.ip, IPv4)), 5)
        self.assertGreater(sum(1 for one in found if isinstance(one.ip, IPv4) and one.ip.identification), 400)

    def test_packets(self) -> None:
        """Recorded packets are decoded, and encoded to the same bytes."""
        for captured in everything():
            packet = captured.packet
            self.assertEqual(packet.encode(), captured.payload[:-4])
            self.assertEqual(captured.ip.replace().encode(), captured.ip.encode())

    def test_icrc(self) -> None:
        """The ICRC of recorded packets equals the computed one, with the simple algorithm and by flow."""
        for captured in everything():
            icrc = captured.packet.icrc
            body = captured.payload[:-4]
            self.assertEqual(invariantCRC(captured.ip, captured.udp, body), icrc)
            identification = captured.ip.identification if isinstance(captured.ip, IPv4) else 0
            self.assertEqual(captured.flow.icrc(body, identification), icrc)
            self.assertEqual(captured.flow.seal(body, identification), captured.payload)

    def test_identification(self) -> None:
        """The identification of the IP header is found in the ICRC."""
        for captured in everything():
            identification = captured.ip.identification if isinstance(captured.ip, IPv4) else 0
            self.assertEqual(captured.flow.identification(captured.payload), identification)

    def test_checksums(self) -> None:
        """The kernel's fields are encoded to the kernel's packet, including the IP checksum."""
        for captured in everything():
            local = checksummed(captured.ip, captured.udp, captured.payload)
            self.assertEqual(local[: captured.ip.size], captured.ip.encode())


class ICRCTests(SynchronousTestCase):
    @given(addresses(), rocePackets())
    def test_scapy(self, ends: tuple[str, int, str, int], packet: RoCEPacket) -> None:
        """Scapy computes the same ICRC for any packet."""
        reference = scapyRoCE()
        here, there = ipaddress.ip_address(ends[0]), ipaddress.ip_address(ends[2])
        if here.version == 4:
            ip = reference.IP(src=str(here), dst=str(there), id=0, flags="DF")
        else:
            ip = reference.IPv6(src=str(here), dst=str(there))
        body = packet.encode()
        bth = reference.BTH(body[:12] + bytes(4))
        bth.icrc = None
        made = bytes(ip / reference.UDP(sport=ends[1], dport=4791) / bth / reference.Raw(body[12:]))
        flow = UDPFlow(ends[0], ends[1], ends[2], 4791)
        self.assertEqual(flow.seal(body), made[28 if here.version == 4 else 48 :])

    @given(addresses(), rocePackets(), st.integers(0, 65535))
    def test_simple(self, ends: tuple[str, int, str, int], packet: RoCEPacket, identification: int) -> None:
        """A flow computes the same ICRC as the simple algorithm, and recovers any identification."""
        body = packet.encode()
        here, there = packedIP(ends[0]), packedIP(ends[2])
        ip, udp = ipHeaders(here, there, (ends[1], ends[3]), len(body) + 4, identification)
        flow = UDPFlow(*ends)
        if len(here) == 16:
            identification = 0
        sealed = flow.seal(body, identification)
        self.assertEqual(int.from_bytes(sealed[-4:], "little"), invariantCRC(ip, udp, body))
        self.assertEqual(flow.identification(sealed), identification)

    def test_hotPath(self) -> None:
        """The fast paths that L{UDPFlow} documents give the same results."""
        flow = UDPFlow("10.0.0.1", 5, "10.0.0.2", 4791)
        body = RoCEPacket(BTH(opcode=Opcode.RC_SEND_ONLY, psn=77), (), b"x" * 1000).encode()
        state = flow.states[len(body) + 4]
        self.assertEqual(crc32(body, state), flow.icrc(body))
        self.assertEqual(crc32(body[100:], crc32(body[:100], state)), flow.icrc(body))
        self.assertEqual(crc32(flow.seal(body), state), RESIDUE)
        for number in (1, 2, 127):
            changed = state ^ IDENTIFICATION_CHANGES[number]
            self.assertEqual(crc32(body, changed), flow.icrc(body, number))

    def test_congestionMarks(self) -> None:
        """Fields that a router may change do not change the ICRC: FECN and BECN in the BTH."""
        flow = UDPFlow("10.0.0.1", 5, "10.0.0.2", 4791)
        sealed = bytearray(flow.seal(RoCEPacket(BTH(opcode=Opcode.RC_SEND_ONLY)).encode(), 9))
        for mark in range(256):
            sealed[4] = mark
            self.assertEqual(flow.identification(sealed), 9)

    def test_spoilt(self) -> None:
        """Any other flipped bit is detected, although the identification is unknown."""
        flow = UDPFlow("10.0.0.1", 5, "10.0.0.2", 4791)
        good = flow.seal(RoCEPacket(BTH(opcode=Opcode.RC_SEND_ONLY), (), b"payload!").encode(), 0x1234)
        for bit in range(len(good) * 8):
            if bit // 8 == 4:
                continue
            spoilt = bytearray(good)
            spoilt[bit // 8] ^= 1 << bit % 8
            self.assertIsNone(flow.identification(spoilt), bit)

    def test_otherFlow(self) -> None:
        """The ICRC of a packet of another address or port does not match."""
        sealed = UDPFlow("10.0.0.1", 5, "10.0.0.2", 4791).seal(RoCEPacket(BTH()).encode())
        for other in (("10.0.0.3", 5, "10.0.0.2", 4791), ("10.0.0.1", 6, "10.0.0.2", 4791)):
            self.assertIsNone(UDPFlow(*other).identification(sealed))

    def test_lengths(self) -> None:
        """Invalid lengths don't match, and use no memory."""
        flow = UDPFlow("::1", 5, "::1", 4791)
        for length in (0, 3, 15, LARGEST + 1, 1 << 17):
            self.assertIsNone(flow.identification(bytes(length)))
        for length in range(16, 16 + 4 * 5000, 4):
            flow.identification(bytes(length))
        self.assertLess(len(flow.states), 3000)

    def test_mixed(self) -> None:
        """Both ends of a flow have the same IP version; a mapped address is IPv4."""
        self.assertRaises(ValueError, UDPFlow, "10.0.0.1", 1, "::1", 2)
        mapped = UDPFlow("::ffff:10.0.0.1", 1, "10.0.0.2", 2)
        self.assertEqual(mapped.states[100], UDPFlow("10.0.0.1", 1, "10.0.0.2", 2).states[100])

    @given(st.binary(max_size=200), st.integers(0, 0xFFFFFFFF))
    def test_crc32(self, data: bytes, start: int) -> None:
        """The fast CRC-32, if installed, equals zlib's."""
        self.assertEqual(roce.crc32(data, start), zlib.crc32(data, start))


class PacketTests(SynchronousTestCase):
    @given(rocePackets())
    def test_roundTrip(self, packet: RoCEPacket) -> None:
        """An encoded packet is decoded to the same values; the padding is computed from the length."""
        body = packet.encode()
        self.assertEqual(len(body) % 4, 0)
        again = RoCEPacket.decode(body + b"\1\0\0\0")
        self.assertEqual(again.bth, packet.bth.replace(pad=-len(packet.payload) % 4))
        self.assertEqual((again.extensions, again.payload), (packet.extensions, packet.payload))
        self.assertEqual((again.icrc, again.encode()), (1, body))

    @given(st.binary(max_size=100))
    def test_anyBytes(self, raw: bytes) -> None:
        """Any bytes are decoded to a packet with the same encoding except padding, or raise WireError."""
        try:
            packet = RoCEPacket.decode(raw)
        except WireError:
            return
        pad = packet.bth.pad
        self.assertEqual(packet.encode()[: len(raw) - 4 - pad], raw[: len(raw) - 4 - pad])

    def test_short(self) -> None:
        """Truncated headers, missing padding and odd lengths raise WireError."""
        whole = RoCEPacket.decode(packets("verbs")[0].payload).encode() + bytes(4)
        for length in range(32):
            self.assertRaises(WireError, RoCEPacket.decode, whole[:length])
        self.assertRaises(WireError, RoCEPacket.decode, whole + b"x")
        self.assertRaises(WireError, RoCEPacket.decode, bytes(1 << 17))
        padded = BTH(opcode=Opcode.RC_SEND_ONLY, pad=3).encode() + bytes(4)
        self.assertRaises(WireError, RoCEPacket.decode, padded)

    def test_unknown(self) -> None:
        """A packet with an unknown opcode consists of payload only."""
        packet = RoCEPacket.decode(BTH(opcode=Opcode(0xC7)).encode() + b"abcd" + bytes(4))
        self.assertEqual((packet.bth.opcode, packet.extensions, packet.payload), (0xC7, (), b"abcd"))


class ChecksumTests(SynchronousTestCase):
    def test_example(self) -> None:
        """The example of RFC 1071, section 3."""
        self.assertEqual(checksum(bytes.fromhex("0001f203f4f5f6f7")), 0xFFFF - 0xDDF2)

    @given(st.binary(min_size=1, max_size=50))
    def test_scapy(self, data: bytes) -> None:
        """Scapy computes the same checksum."""
        scapyRoCE()
        from scapy.utils import checksum as reference

        self.assertEqual(checksum(b"\1\0" + data), reference(b"\1\0" + data))
