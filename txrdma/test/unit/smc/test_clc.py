"""
L{txrdma.smc.wire.clc}: recorded messages, invalid lengths, every code.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import WireError
from txrdma.iba.types import GID, MACAddress
from txrdma.smc.wire import clc
from txrdma.test.support.captures import names, SMC_GO, streams
from txrdma.test.support.smc.clc import ends, gids, ids, macs, octets
from txrdma.testing.strategies import layouts


def recorded() -> list[tuple[str, bytes]]:
    """Return every CLC message of the captures: the capture's name, and the bytes."""
    found = []
    for name in names():
        for _, _, content in streams(name):
            while content[:3] == clc.SMCR[:3]:
                size, _ = clc.decodeFirst(content)
                found.append((name, content[:size]))
                content = content[size:]
    return found


eids = st.binary(min_size=32, max_size=32)
paths = st.sampled_from(list(clc.SMCKind))

ipParts = {
    "subnet": st.integers(0, 0xFFFFFFFF),
    "prefixLength": octets,
    "ipv6Prefixes": st.lists(layouts(clc.IPv6Prefix), max_size=8).map(tuple),
}
smcdAreas = layouts(clc.SMCDArea, reserved20=st.just(bytes(20)), extensionOffset=st.just(0))
proposalsV1 = st.builds(
    clc.Proposal, ids, gids, macs, **ipParts, typeV1=paths, smcd=st.one_of(st.none(), smcdAreas)
)
extensions = st.builds(
    clc.ProposalV2,
    gids,
    st.lists(eids, max_size=8).map(tuple),
    st.integers(0, 15),
    st.booleans(),
    octets,
    octets,
    st.integers(0, 0xFFFF),
    st.one_of(
        st.none(), st.builds(clc.SMCDV2, eids, st.lists(layouts(clc.ISMDevice), max_size=8).map(tuple))
    ),
)


@st.composite
def proposalsV2(draw: st.DrawFn) -> clc.Proposal:
    """Generate Proposals of version 2, whose parts depend on what is offered."""
    typeV1, typeV2 = draw(paths), draw(paths)
    v2 = draw(st.one_of(st.none(), extensions)) if typeV2 is not clc.SMCKind.NONE else None
    parts: dict[str, Any] = (
        {name: draw(part) for name, part in ipParts.items()} if typeV1 is not clc.SMCKind.NONE else {}
    )
    area = draw(smcdAreas)
    return clc.Proposal(draw(ids), draw(gids), draw(macs), version=2, typeV1=typeV1, typeV2=typeV2, smcd=area,
                        v2=v2, **parts)  # fmt: skip


contacts = st.builds(
    clc.FirstContact,
    st.booleans(),
    st.integers(0, 15).map(clc.OSType),
    st.integers(0, 15),
    st.binary(min_size=32, max_size=32),
    st.one_of(st.none(), layouts(clc.FirstContactV21, reserved44=st.just(bytes(8)))),
)
fullContacts = contacts.filter(lambda each: each.v21 is not None)
answers: st.SearchStrategy[clc.Message] = st.one_of(
    st.builds(clc.Accept, **ends, firstContact=st.booleans()),
    st.builds(clc.Confirm, **ends, firstContact=st.booleans()),
    st.builds(clc.Accept, **ends, version=st.just(2), v2=st.builds(clc.AnswerV2, eids)),
    st.builds(clc.Confirm, **ends, version=st.just(2), v2=st.builds(clc.AnswerV2, eids)),
    st.builds(
        clc.Accept,
        **ends,
        firstContact=st.just(True),
        version=st.just(2),
        v2=st.builds(clc.AnswerV2, eids, contacts),
    ),
    st.builds(
        clc.Confirm,
        **ends,
        firstContact=st.just(True),
        version=st.just(2),
        v2=st.builds(clc.AnswerV2, eids, fullContacts, st.lists(gids, max_size=8).map(tuple)),
    ),
)
wide = st.integers(0, (1 << 64) - 1)
direct = (wide, wide, octets, st.integers(0, 15), st.integers(0, 0xFFFFFFFF))
directAnswers: st.SearchStrategy[clc.Message] = st.one_of(
    st.builds(clc.SMCDAccept, *direct, firstContact=st.booleans()),
    st.builds(clc.SMCDConfirm, *direct, firstContact=st.booleans()),
    st.builds(
        clc.SMCDConfirm,
        *direct,
        firstContact=st.just(True),
        version=st.just(2),
        chid=st.integers(0, 0xFFFF),
        eid=eids,
        gidExtension=wide,
        contact=contacts,
    ),
)
declines = st.builds(
    clc.Decline,
    ids,
    st.integers(0, 0xFFFFFFFF).map(clc.Diagnosis),
    st.booleans(),
    st.integers(1, 2),
    st.integers(0, 15).map(clc.OSType),
    st.sampled_from((b"", bytes(range(16)))),
)
everything = st.one_of(proposalsV1, proposalsV2(), answers, directAnswers, declines)


class RecordedTests(SynchronousTestCase):
    """Messages of the Linux kernel."""

    def test_roundTrip(self) -> None:
        messages = recorded()
        self.assertGreater(len(messages), 20)
        for name, raw in messages:
            self.assertEqual(clc.decode(raw).encode(), raw, name)

    def test_kinds(self) -> None:
        kinds: set[tuple[type, bool | None]] = {(type(message), getattr(message, "firstContact", None))
                 for message in (clc.decode(raw) for _, raw in recorded())}  # fmt: skip
        expected: set[tuple[type, bool | None]] = {(clc.Proposal, None), (clc.Decline, None)}
        expected |= {(kind, first) for kind in (clc.Accept, clc.Confirm) for first in (True, False)}
        self.assertEqual(kinds, expected)

    def test_proposalOfVersion21(self) -> None:
        proposal = clc.decode(next(raw for name, raw in recorded() if name == "smc-first"))
        assert isinstance(proposal, clc.Proposal) and proposal.v2 is not None
        self.assertEqual(
            (proposal.version, proposal.typeV1, proposal.typeV2), (2, clc.SMCKind.NONE, clc.SMCKind.SMC_R)
        )
        self.assertFalse(proposal.offersV1)
        self.assertEqual(proposal.v2.eids, (b"TXRDMA".ljust(32),))
        self.assertEqual((proposal.v2.release, proposal.v2.maxLinks), (1, 2))
        self.assertEqual(proposal.v2.gid, GID.fromIP("10.77.0.1"))

    def test_firstContactConfirmListsGIDs(self) -> None:
        confirms = [clc.decode(raw) for name, raw in recorded() if name == "smc-two-links"]
        first = next(each for each in confirms if isinstance(each, clc.Confirm) and each.firstContact)
        assert first.v2 is not None and first.v2.firstContact is not None
        self.assertEqual(first.v2.gids, (GID.fromIP("10.77.0.1"), GID.fromIP("10.77.0.3")))
        self.assertEqual(first.v2.firstContact.hostName.rstrip(), b"lab")
        self.assertEqual((first.index, first.size, first.mtu), (1, 65536, 3))

    def test_decline(self) -> None:
        decline = next(clc.decode(raw) for name, raw in recorded() if name == "smc-decline" and raw[4] == 4)
        assert isinstance(decline, clc.Decline)
        self.assertEqual((decline.diagnosis, decline.osType), (clc.Diagnosis.NOSMCRDEV, clc.OSType.LINUX))


class SmcGoTests(SynchronousTestCase):
    """Messages of version 1 from the tests of smc-go."""

    def test_roundTrip(self) -> None:
        for name in ("proposal", "accept", "decline"):
            self.assertEqual(clc.decode(SMC_GO[name]).encode(), SMC_GO[name])

    def test_proposal(self) -> None:
        proposal = clc.decode(SMC_GO["proposal"])
        assert isinstance(proposal, clc.Proposal)
        self.assertEqual((proposal.subnet, proposal.prefixLength), (0x7F000000, 8))
        self.assertEqual(str(proposal.mac), "98:03:9b:ab:cd:ef")
        self.assertTrue(proposal.offersV1)

    def test_accept(self) -> None:
        accept = clc.decode(SMC_GO["accept"])
        assert isinstance(accept, clc.Accept)
        self.assertEqual((accept.qpn, accept.rkey, accept.index, accept.token), (228, 5501, 1, 5))
        self.assertEqual((accept.size, accept.mtu, accept.psn), (65536, 3, 7534078))
        self.assertEqual((accept.address, accept.firstContact), (0xF0A60000, True))

    def test_decline(self) -> None:
        decline = clc.decode(SMC_GO["decline"])
        assert isinstance(decline, clc.Decline)
        self.assertEqual(decline.diagnosis, clc.Diagnosis.NOSMCDEV)


class DiagnosisTests(SynchronousTestCase):
    def test_everyCodeRoundTrips(self) -> None:
        self.assertEqual(len(clc.Diagnosis), 36)
        for diagnosis in clc.Diagnosis:
            decline = clc.decode(clc.Decline(b"12345678", diagnosis).encode())
            assert isinstance(decline, clc.Decline)
            self.assertIs(decline.diagnosis, diagnosis)

    def test_unknownCodeIsHexadecimal(self) -> None:
        raw = bytearray(SMC_GO["decline"])
        raw[16:20] = bytes.fromhex("02040000")
        decline = clc.decode(raw)
        assert isinstance(decline, clc.Decline)
        self.assertEqual(decline.diagnosis.name, "UNKNOWN_0x2040000")
        self.assertEqual(decline.encode(), raw)

    def test_declineOfEachVersion(self) -> None:
        for version, length in ((1, 28), (2, 44)):
            raw = clc.Decline.inVersion(version, b"12345678", clc.Diagnosis.SYNCERR).encode()
            self.assertEqual((len(raw), raw[7]), (length, version << 4 | 8))
            raw = clc.Decline.inVersion(version, b"12345678", clc.Diagnosis.MEM).encode()
            self.assertEqual((len(raw), raw[7]), (length, version << 4))


class EnterpriseTests(SynchronousTestCase):
    """User-defined enterprise IDs."""

    def test_validEIDs(self) -> None:
        for name in ("A", "0", "EXAMPLE-1.COM", "Z" * 32, "9..--"):
            eid = clc.enterpriseID(name)
            self.assertEqual(eid, name.encode() + b" " * (32 - len(name)))
            self.assertEqual(clc.enterpriseName(eid), name)

    def test_invalidEIDsAreRefused(self) -> None:
        for name in ("", "a", "-A", ".A", " A", "A ", "A B", "A_B", "\xc4", "A\n", "A" * 33):
            self.assertRaises(ValueError, clc.enterpriseID, name)

    def test_peersEIDMayBeAnything(self) -> None:
        self.assertEqual(clc.enterpriseName(b"A\xff".ljust(32)), "A\\xff")
        self.assertEqual(clc.enterpriseName(b"A\x1b[31m\n\x7f".ljust(32)), "A\\x1b[31m\\x0a\\x7f")


class FramingTests(SynchronousTestCase):
    @given(everything, st.binary(max_size=40), st.data())
    def test_lengthIsNeverMoreThanTheMessage(
        self, message: clc.Message, rest: bytes, data: st.DataObject
    ) -> None:
        raw = message.encode()
        stream = raw + rest
        seen = stream[: data.draw(st.integers(0, len(stream)))]
        self.assertEqual(clc.decodeFirst(seen)[0], len(raw) if len(seen) >= 8 else 8)

    def test_firstWrongByteIsEnough(self) -> None:
        for raw in (b"G", b"\xe2\xd4\xc3D", b"\xe2\xd4\xc3\xd9\x05\0\x34\x10", b"\xe2\xd4\xc3\xd9\1\0\x34\0"):
            self.assertRaises(WireError, clc.decodeFirst, raw)

    def test_invalidLengthIsImmediateError(self) -> None:
        for length in (0, 8, 12, clc.MAX_LENGTH + 1, 0xFFFF):
            raw = clc.SMCR + b"\1" + length.to_bytes(2, "big") + b"\x10"
            self.assertRaises(WireError, clc.decodeFirst, raw)

    def test_trailingEyecatcherMustMatch(self) -> None:
        for name in ("proposal", "accept", "decline"):
            raw = SMC_GO[name][:-1] + b"\xc4"
            error = self.assertRaises(WireError, clc.decode, raw)
            self.assertEqual(error.offset, len(raw) - 4)

    def test_incompleteOrExcessBytes(self) -> None:
        for raw in (SMC_GO["accept"][:-1], SMC_GO["accept"] + b"\0", b""):
            self.assertRaises(WireError, clc.decode, raw)


class DistrustTests(SynchronousTestCase):
    """Messages whose parts contradict each other."""

    @given(everything)
    def test_roundTrip(self, message: clc.Message) -> None:
        again = clc.decode(message.encode())
        if isinstance(message, clc.Proposal) and isinstance(again, clc.Proposal) and message.v2 is not None:
            message = replace(message, smcd=again.smcd)
        self.assertEqual(again, message)

    @given(
        st.sampled_from([raw for _, raw in recorded()] + [SMC_GO["proposal"], SMC_GO["accept"]]), st.data()
    )
    def test_damagedMessages(self, raw: bytes, data: st.DataObject) -> None:
        damaged = bytearray(raw)
        for _ in range(data.draw(st.integers(1, 4))):
            damaged[data.draw(st.integers(4, len(raw) - 1))] = data.draw(octets)
        try:
            message = clc.decode(damaged)
        except WireError:
            return
        self.assertEqual(clc.decode(message.encode()), message)

    @given(st.binary(max_size=300))
    def test_arbitraryFramedBytes(self, body: bytes) -> None:
        for kind in range(1, 5):
            for last in (0x10, 0x18, 0x11, 0x12, 0x20, 0x22, 0x28, 0x29):
                head = clc.SMCR + bytes((kind, *(len(body) + 12).to_bytes(2, "big"), last))
                try:
                    clc.decode(head + body + clc.SMCR)
                except WireError:
                    pass

    def test_proposalWithoutExtensionIsRead(self) -> None:
        proposal = clc.Proposal(b"12345678", GID(bytes(16)), MACAddress(bytes(6)), version=2,
                                typeV1=clc.SMCKind.NONE, smcd=clc.SMCDArea())  # fmt: skip
        raw = proposal.encode()
        self.assertEqual((len(raw), clc.decode(raw)), (84, proposal))

    def test_tooManyPrefixes(self) -> None:
        prefixes = tuple(clc.IPv6Prefix(prefix=bytes(16), length=64) for _ in range(9))
        proposal = clc.Proposal(b"12345678", GID(bytes(16)), MACAddress(bytes(6)), ipv6Prefixes=prefixes)
        error = self.assertRaises(WireError, clc.decode, proposal.encode())
        self.assertIn("9 prefixes", str(error))

    def test_tooManyEIDs(self) -> None:
        v2 = clc.ProposalV2(GID(bytes(16)), (b"x" * 32,) * 9)
        proposal = clc.Proposal(b"12345678", GID(bytes(16)), MACAddress(bytes(6)), version=2, v2=v2,
                                smcd=clc.SMCDArea())  # fmt: skip
        self.assertRaises(WireError, clc.decode, proposal.encode())

    def test_EIDOfWrongLengthIsNotSent(self) -> None:
        v2 = clc.ProposalV2(GID(bytes(16)), (b"short",))
        proposal = clc.Proposal(b"12345678", GID(bytes(16)), MACAddress(bytes(6)), version=2, v2=v2,
                                smcd=clc.SMCDArea())  # fmt: skip
        self.assertRaises(WireError, proposal.encode)

    def test_contradictoryCount(self) -> None:
        raw = bytearray(SMC_GO["proposal"])
        raw[47] = 1
        self.assertRaises(WireError, clc.decode, raw)
        raw[47] = 255
        self.assertRaises(WireError, clc.decode, raw)

    def test_firstContactFlagNeedsExtension(self) -> None:
        end: dict[str, Any] = {name: getattr(clc.decode(SMC_GO["accept"]), name) for name in ends}
        with_ = clc.AnswerV2(b"e" * 32, clc.FirstContact())
        without = clc.AnswerV2(b"e" * 32)
        for kind in (clc.Accept, clc.Confirm):
            for first, v2 in ((True, without), (False, with_)):
                raw = kind(**end, firstContact=first, version=2, v2=v2).encode()
                self.assertRaises(WireError, clc.decode, raw)

    def test_tooWideValuesAreRefused(self) -> None:
        self.assertRaises(WireError, clc.Decline(b"short", clc.Diagnosis.MEM).encode)

    def test_sizeCode(self) -> None:
        self.assertEqual([clc.sizeCode(16384 << n) for n in range(16)], list(range(16)))
        for size in (0, 8192, 16385, 3 * 16384, 16384 << 16):
            self.assertRaises(ValueError, clc.sizeCode, size)
