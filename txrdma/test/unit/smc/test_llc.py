"""
L{txrdma.smc.wire.llc} and L{txrdma.smc.wire.cdc}: recorded messages, both byte orders, corruption.
"""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import WireError
from txrdma.iba.types import GID, QPN, RKey
from txrdma.smc.wire import llc
from txrdma.smc.wire.cdc import CDC, CDC_HEAD, CDC_TYPE, pack, ProducerFlags, StateFlags, unpackFrom
from txrdma.smc.wire.llc import (
    AddLink,
    AddLinkExtension,
    AddLinkReason,
    Body,
    ConfirmLink,
    ConfirmRKey,
    decode,
    DeleteLink,
    DeleteReason,
    DeleteRKey,
    LLC,
    LLCFlags,
    LLCHeader,
    LLCType,
    message,
    RKeyPair,
    TestLink,
)
from txrdma.test.support.captures import messages, names, SMC_GO
from txrdma.testing.strategies import layouts


def recorded(cdc: bool) -> list[tuple[str, bytes]]:
    """Return every CDC or LLC message of the captures."""
    return [
        (name, raw)
        for name in names()
        if name.startswith("smc-")
        for _, raw in messages(name)
        if (raw[0] == CDC_TYPE) is cdc
    ]


bodies = (
    *(llc.ConfirmLink, llc.AddLink, llc.AddLinkContinuation, llc.DeleteLink, llc.RequestAddLink),
    *(llc.ConfirmRKey, llc.TestLink, llc.ConfirmRKeyContinuation, llc.DeleteRKey),
)
flags = st.integers(0, 255).map(LLCFlags)
# Version 1 has reject reasons, version 2 a byte order.
headersV1 = st.builds(LLCHeader, flags, st.just(1), st.integers(0, 15).map(AddLinkReason))
headersV2 = st.builds(LLCHeader, flags, st.just(2), bigEndian=st.booleans())
messagesV1 = st.builds(message, st.one_of(*map(layouts, bodies)), headersV1)
messagesV2 = st.builds(message, st.one_of(*map(layouts, bodies)), headersV2)
extensions = st.builds(
    AddLinkExtension,
    st.binary(min_size=16, max_size=16).map(GID),
    st.booleans(),
    st.lists(layouts(RKeyPair), max_size=300).map(tuple),
)
extended = st.builds(LLC, st.just(LLCType.ADD_LINK), headersV2, layouts(AddLink), extensions)
everything = st.one_of(messagesV1, messagesV2, extended)


class RecordedTests(SynchronousTestCase):
    """Messages of the Linux kernel."""

    def test_roundTrip(self) -> None:
        found = recorded(cdc=False)
        self.assertGreater(len(found), 50)
        for name, raw in found:
            self.assertEqual(decode(raw).encode(), raw, name)

    def test_kinds(self) -> None:
        found = {decode(raw).type for _, raw in recorded(cdc=False)}
        expected = {LLCType.CONFIRM_LINK, LLCType.ADD_LINK, LLCType.DELETE_LINK, LLCType.CONFIRM_RKEY,
                    LLCType.TEST_LINK, LLCType.DELETE_RKEY}  # fmt: skip
        self.assertEqual(found, expected)

    def test_kernelsAddLinkAndRejection(self) -> None:
        request, response = (
            each
            for each in (decode(raw) for name, raw in recorded(cdc=False) if name == "smc-first")
            if each.type is LLCType.ADD_LINK
        )
        assert request.extension is not None and isinstance(request.body, AddLink)
        self.assertEqual((request.body.link, request.body.mtu, len(request.extension.pairs)), (2, 3, 1))
        self.assertEqual(response.header.flags, LLCFlags.RESPONSE | LLCFlags.REJECT)
        self.assertEqual((response.body, response.extension), (request.body, None))

    def test_kernelsExtensions(self) -> None:
        """The extension of ADD LINK has the GID of its sender's end, of the server's and of the client's."""
        found = [decode(raw) for name, raw in recorded(cdc=False) if name == "smc-two-links"]
        offers = [each for each in found if each.extension is not None]
        self.assertEqual({bool(each.header.flags & LLCFlags.RESPONSE) for each in offers}, {False, True})
        for each in offers:
            assert each.extension is not None and isinstance(each.body, AddLink)
            self.assertEqual(each.extension.gid, each.body.gid)

    def test_reasonsOfDeleteLink(self) -> None:
        found = [decode(raw).body for name, raw in recorded(cdc=False) if name == "smc-two-links"]
        reasons = [body.reason for body in found if isinstance(body, DeleteLink)]
        self.assertEqual(reasons, [DeleteReason.LOST_PATH] * 2 + [DeleteReason.LINK_UNKNOWN])

    def test_groupWithKernelEnds(self) -> None:
        ours, kernels = "10.77.0.1", "10.77.0.2"
        order = LLCFlags.ALL_LINKS | LLCFlags.ORDERLY
        expected = {
            "smc-ours-client": [
                (ours, order),
                (kernels, order),
                (kernels, LLCFlags.ALL_LINKS),
                (ours, order | LLCFlags.RESPONSE),
            ],
            "smc-ours-server": [(ours, order), (kernels, LLCFlags.ALL_LINKS)],
        }
        for name, messagesExpected in expected.items():
            found = [(one.source, decode(raw)) for one, raw in messages(name) if raw[0] != CDC_TYPE]
            output = [(source, each) for source, each in found if each.type is LLCType.DELETE_LINK]
            self.assertEqual([(source, each.header.flags) for source, each in output], messagesExpected)
            reasons = {each.body.reason for _, each in output if isinstance(each.body, DeleteLink)}
            self.assertEqual(reasons, {DeleteReason.PROGRAM_ENDING})

    def test_twoLinksTwoKeys(self) -> None:
        found = [decode(raw) for name, raw in recorded(cdc=False) if name == "smc-two-links"]
        first = next(each.body for each in found if isinstance(each.body, ConfirmRKey))
        self.assertEqual(first.others, 1)
        self.assertEqual((first.rkey, first.onLinks[0].link, first.onLinks[0].rkey), (0x420, 1, 0x436))


class SmcGoTests(SynchronousTestCase):
    """Messages of version 1 from the tests of smc-go."""

    def test_confirmLink(self) -> None:
        raw = bytes.fromhex("012c000398039babcdeffe800000000000009a039bfffeabcdef000107000001000002").ljust(
            44, b"\0"
        )
        found = decode(raw)
        body = found.body
        assert isinstance(body, ConfirmLink)
        self.assertEqual((body.qpn, body.link, body.userID, body.maxLinks), (0x107, 0, b"\0\1\0\0", 2))
        self.assertEqual((found.header.flags, found.header.version), (LLCFlags.NO_EYECATCHER, 1))
        self.assertEqual(found.encode(), raw)

    def test_cdc(self) -> None:
        found = CDC.decode(SMC_GO["cdc"])
        self.assertEqual((found.sequence, found.token, found.producerCount), (1, 3, 13))
        self.assertEqual(found.encode(), SMC_GO["cdc"])


class LLCTests(SynchronousTestCase):
    @given(everything, st.binary(max_size=20))
    def test_bufferLongerThanMessage(self, one: LLC, rest: bytes) -> None:
        self.assertEqual(decode(one.encode() + rest), one)

    @given(messagesV1)
    def test_versionOneLength(self, one: LLC) -> None:
        self.assertEqual(len(one.encode()), 44)

    @given(everything, st.data())
    def test_truncatedMessage(self, one: LLC, data: st.DataObject) -> None:
        raw = one.encode()
        self.assertRaises(WireError, decode, raw[: data.draw(st.integers(0, len(raw) - 1))])

    @given(st.binary(min_size=40, max_size=200))
    def test_arbitraryBytes(self, rest: bytes) -> None:
        for head in (*range(1, 16), *range(0x20, 0x30), 0x30, 0xFF):
            for length in (44, len(rest) + 4):
                for order in ("<", ">"):
                    raw = bytes((head,)) + struct.pack(order + "H", length) + rest
                    try:
                        found = decode(raw)
                    except WireError:
                        continue
                    self.assertEqual(decode(found.encode()), found)

    def test_lengthInEitherOrder(self) -> None:
        for bigEndian, raw in ((False, "272c0000"), (True, "27002c00")):
            found = decode(bytes.fromhex(raw).ljust(44, b"\0"))
            self.assertEqual((found.type, found.header.bigEndian), (LLCType.TEST_LINK, bigEndian))
            self.assertEqual(found.encode()[:4].hex(), raw)

    def test_ambiguousLengthIsResolvedBySize(self) -> None:
        for bigEndian in (False, True):
            for length in (264, 2049):
                body = bytes(length - 44)
                one = LLC(
                    LLCType.TEST_LINK, LLCHeader(version=2, bigEndian=bigEndian), TestLink(), None, body
                )
                self.assertEqual(decode(one.encode()), one)

    def test_palindromicLengthIsResolvedByKeyCount(self) -> None:
        for bigEndian in (False, True):
            extension = AddLinkExtension(GID(bytes(16)), True, (RKeyPair(),) * 124)
            one = LLC(LLCType.ADD_LINK, LLCHeader(version=2, bigEndian=bigEndian), AddLink(), extension)
            self.assertEqual(len(one.encode()), 0x0808)
            self.assertEqual(decode(one.encode()), one)

    def test_wrongLengths(self) -> None:
        for raw in ("072d0000", "07000000", "270b0000", "27000000", "27ffff00", "37002c00"):
            self.assertRaises(WireError, decode, bytes.fromhex(raw).ljust(44, b"\0"))

    def test_unknownTypeHasNoBody(self) -> None:
        for first in (10, 15, 0, 0x2A):
            found = decode(bytes((first, 44)).ljust(44, b"\0"))
            self.assertIsNone(found.body)
            self.assertFalse(found.type.known)

    def test_falseKeyCount(self) -> None:
        header = LLCHeader(version=2)
        raw = bytearray(LLC(LLCType.ADD_LINK, header, AddLink(), AddLinkExtension(GID(bytes(16)))).encode())
        raw[70] = 1
        self.assertRaises(WireError, decode, raw)

    def test_rejectReasonOfVersionOne(self) -> None:
        header = LLCHeader(LLCFlags.RESPONSE | LLCFlags.REJECT, rejectReason=AddLinkReason.NO_ALTERNATE_PATH)
        self.assertEqual(message(AddLink(), header).encode()[:4].hex(), "022c01c0")

    def test_deletedRKeys(self) -> None:
        keys = tuple(RKey(n) for n in range(1, 9))
        self.assertEqual(message(DeleteRKey(count=3, rkeys=keys)).deletedRKeys, keys[:3])
        self.assertRaises(WireError, lambda: message(DeleteRKey(count=9, rkeys=keys)).deletedRKeys)
        body = DeleteRKey(count=10, rkeys=keys, reserved40=9)
        longer = LLC(LLCType.DELETE_RKEY, LLCHeader(version=2), body, None, bytes((0, 0, 0, 10)))
        self.assertEqual(decode(longer.encode()).deletedRKeys, tuple(RKey(n) for n in range(1, 11)))
        shorter = LLC(LLCType.DELETE_RKEY, LLCHeader(version=2), body)
        self.assertRaises(WireError, lambda: decode(shorter.encode()).deletedRKeys)

    def test_tooWideValuesAreRefused(self) -> None:
        body: Body = AddLink(qpn=QPN(1 << 24))
        self.assertRaises(WireError, message(body).encode)


class CDCTests(SynchronousTestCase):
    """The message that follows every write."""

    def test_recorded(self) -> None:
        found = recorded(cdc=True)
        self.assertGreater(len(found), 40)
        for name, raw in found:
            self.assertEqual(CDC.decode(raw).encode(), raw, name)

    def test_recordedFlags(self) -> None:
        found = [CDC.decode(raw) for _, raw in recorded(cdc=True)]
        output = ProducerFlags(0)
        state = StateFlags(0)
        for each in found:
            output |= each.flags
            state |= each.state
        self.assertEqual(
            output,
            ProducerFlags.WRITE_BLOCKED
            | ProducerFlags.URGENT_PENDING
            | ProducerFlags.URGENT_PRESENT
            | ProducerFlags.FAILOVER_VALIDATION,
        )
        self.assertEqual(state, StateFlags.DONE_WRITING | StateFlags.CLOSED | StateFlags.ABNORMAL_CLOSE)

    @given(layouts(CDC))
    def test_fastFunctionsMatchDeclaration(self, one: CDC) -> None:
        fields = (one.type << 8 | one.length, one.sequence, one.token, one.producerWrap, one.producerCount,
                  one.consumerWrap, one.consumerCount, int(one.flags) << 8 | int(one.state))  # fmt: skip
        self.assertEqual(unpackFrom(b"?" + one.encode(), 1), fields)
        packed = pack(CDC_HEAD | fields[1], *fields[2:])
        plain = one.replace(type=0xFE, length=44, reserved8=0, reserved16=0, reserved26=bytes(18))
        self.assertEqual(packed, plain.encode())
