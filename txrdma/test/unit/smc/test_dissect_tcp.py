"""
SMC's option in saved SYNs, valid and malformed.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from twisted.trial.unittest import SynchronousTestCase

from txrdma.commands.dissect.tcp import OPTION, optionsOf, segmentIn, TCPHeader
from txrdma.error import WireError
from txrdma.test.support.smc.option_program import hasOption

RECORDED = bytes.fromhex(
    "4500004401b04000400624640a4d00010a4d0002"
    "98fc1b5a5c4ab4a200000000c002 faf0 1492 0000"
    "020405b40402080ab6ea1ff6000000000103030a0101fe06e2d4c3d9"
)  # fmt: skip
"""A SYN of Linux's AF_SMC: option 254 after two bytes of padding, at the end."""

MSS = bytes.fromhex("020405b4")


def tcp(options: bytes, words: int | None = None) -> bytes:
    """Return a SYN with these options, and a header of this many words, which may be wrong."""
    whole = options + bytes(-len(options) % 4)
    header = TCPHeader(
        source=40000,
        destination=80,
        sequence=1,
        acknowledgement=0,
        words=5 + len(whole) // 4 if words is None else words,
        reserved=0,
        flags=2,
        window=65535,
        checksum=0,
        urgent=0,
    )
    return header.encode() + whole


def ipv4(segment: bytes, options: bytes = b"", protocol: int = 6) -> bytes:
    """Wrap a segment in an IPv4 packet."""
    words = 5 + len(options) // 4
    length = 4 * words + len(segment)
    return (
        bytes([0x40 | words, 0]) + length.to_bytes(2, "big") + bytes(5) + bytes([protocol]) + bytes(10)
    ) + options + segment  # fmt: skip


def ipv6(segment: bytes, first: int = 6, extensions: bytes = b"") -> bytes:
    """Wrap a segment in an IPv6 packet with extension headers."""
    length = (len(extensions) + len(segment)).to_bytes(2, "big")
    return bytes([0x60, 0, 0, 0]) + length + bytes([first, 64]) + bytes(32) + extensions + segment


class SYNTests(SynchronousTestCase):
    """A packet is searched for SMC's option."""

    def test_recorded(self) -> None:
        self.assertTrue(hasOption(RECORDED))
        self.assertIn(OPTION, list(optionsOf(segmentIn(RECORDED))))

    def test_optionAtAnyPosition(self) -> None:
        for options in (OPTION, MSS + OPTION, OPTION + MSS, b"\1\1" + OPTION, MSS + b"\1\1" + OPTION):
            for packet in (ipv4(tcp(options)), ipv4(tcp(options), bytes(8)), ipv6(tcp(options))):
                self.assertTrue(hasOption(packet), packet.hex())

    def test_IPv6ExtensionHeaders(self) -> None:
        hop = bytes([43, 0]) + bytes(6)
        routing = bytes([60, 1]) + bytes(14)
        destination = bytes([6, 0]) + bytes(6)
        self.assertTrue(hasOption(ipv6(tcp(OPTION), 0, hop + routing + destination)))
        self.assertFalse(hasOption(ipv6(tcp(OPTION), 44, bytes([6, 0]) + bytes(6))), "a fragment")
        self.assertFalse(hasOption(ipv6(b"", 0, bytes([0, 255]) + bytes(6))))

    def test_otherOptionsDoNotCount(self) -> None:
        others = [
            b"",
            MSS,
            bytes.fromhex("fe06e2d4c3d8"),
            bytes.fromhex("fd06e2d4c3d9"),
            bytes.fromhex("fe08e2d4c3d90000"),
            bytes.fromhex("fe04e2d4"),
            bytes.fromhex("1e08") + OPTION,  # inside another option
            b"\0\0" + OPTION,  # after the end of the list
        ]
        for options in others:
            self.assertFalse(hasOption(ipv4(tcp(options))), options.hex())
        self.assertFalse(hasOption(ipv4(tcp(b"", words=5) + OPTION)), "in the data")
        self.assertFalse(hasOption(ipv4(tcp(OPTION), protocol=17)), "not TCP")

    def test_malformedListEnds(self) -> None:
        for broken in (b"\2\0\0\0", b"\2\1\0\0", b"\2\x09\0\0", b"\1\1\1\2"):
            self.assertFalse(hasOption(ipv4(tcp(broken + OPTION[:2], words=6))), broken.hex())
            self.assertTrue(hasOption(ipv4(tcp(OPTION + b"\1\1" + broken))), broken.hex())
        self.assertFalse(hasOption(ipv4(tcp(b"\2\0\0\0" + OPTION))))

    def test_wrongHeaderLengthIsNamed(self) -> None:
        for words in (0, 4, 15):
            error = self.assertRaises(WireError, lambda words=words: list(optionsOf(tcp(OPTION, words))))
            self.assertEqual(error.layout, "TCPHeader")
            self.assertFalse(hasOption(ipv4(tcp(OPTION, words))))

    def test_truncatedPackets(self) -> None:
        for packet in (RECORDED, ipv6(tcp(OPTION), 0, bytes([6, 0]) + bytes(6))):
            for length in range(len(packet)):
                self.assertFalse(hasOption(packet[:length]), length)

    @given(st.binary(max_size=120))
    def test_arbitraryBytes(self, packet: bytes) -> None:
        hasOption(packet)

    @given(st.lists(st.builds(lambda kind, body: bytes([kind, 2 + len(body)]) + body,
                              st.integers(2, 253), st.binary(max_size=8)), max_size=3))  # fmt: skip
    def test_wellFormedListIsComplete(self, others: list[bytes]) -> None:
        listed = [*others, OPTION]
        self.assertEqual(list(optionsOf(tcp(b"".join(listed)))), listed)
