"""Tests for L{txrdma.kit.wire}: declared layouts are decoded and encoded."""

from __future__ import annotations

import copy
import enum
import pickle
import struct
from collections.abc import Callable
from functools import partial
from typing import Any, NewType

from hypothesis import given
from hypothesis import strategies as st

from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import WireError
from txrdma.iba.types import GID, MACAddress
from txrdma.kit.wire import _compile, _GENERIC, array, bits, Code, data, Layout, nested, reserved, wire
from txrdma.testing.strategies import layouts

Token = NewType("Token", int)


class Kind(Code):
    FIRST = 1
    SECOND = 2


class Closed(enum.IntEnum):
    NO = 0
    YES = 1


class Marks(enum.IntFlag):
    LOW = 1
    HIGH = 8


@wire(4)
class Inner(Layout):
    """A layout inside others."""

    token: Token = bits(24)
    marks: Marks = bits(4)
    rest: int = bits(4)


@wire(68)
class Everything(Layout):
    """A layout with each kind of field."""

    kind: Kind = bits(8)
    yes: bool = bits(1)
    closed: Closed = bits(7)
    odd: int = bits(24)
    even: int = bits(16)
    gid: GID = data(16)
    raw: bytes = data(3)
    hidden: int = reserved(8)
    inner: Inner = nested()
    numbers: tuple[int, ...] = array(3, bits(16))
    nibbles: tuple[int, ...] = array(4, bits(4))
    many: tuple[Inner, ...] = array(2)
    macs: tuple[MACAddress, ...] = array(2, data(6))
    wide: int = bits(72)


@wire(9, little=True)
class Backwards(Layout):
    """A little-endian layout."""

    low: int = bits(3)
    high: int = bits(5)
    word: int = bits(32)
    three: int = bits(24)
    last: Kind = bits(8)


@wire(44)
class Cursors(Layout):
    """A layout of the size of a CDC message."""

    type: int = bits(8)
    length: int = bits(8)
    sequence: int = bits(16)
    token: int = bits(32)
    reserved1: int = bits(16)
    wrap: int = bits(16)
    cursor: int = bits(32)
    tail: bytes = data(28)


class LayoutTests(SynchronousTestCase):
    example = bytes.fromhex(
        "02 81 abcdef 3412 fe8000000000000000000000000000aa 616263 00 01020385 000100020003 1234"
        "0000011000000220 020000000001020000000002 0102030405060708ff"
    )

    def test_decode(self) -> None:
        """Every field is decoded from its position, in its type."""
        decoded = Everything.decode(self.example)
        self.assertIs(decoded.kind, Kind.SECOND)
        self.assertIs(decoded.yes, True)
        self.assertIs(decoded.closed, Closed.YES)
        self.assertEqual(decoded.odd, 0xABCDEF)
        self.assertEqual(decoded.even, 0x3412)
        self.assertEqual(decoded.gid, GID.fromString("fe80::aa"))
        self.assertEqual(decoded.raw, b"abc")
        self.assertEqual(decoded.inner, Inner(token=Token(0x010203), marks=Marks.HIGH, rest=5))
        self.assertIsInstance(decoded.inner.marks, Marks)
        self.assertEqual(decoded.numbers, (1, 2, 3))
        self.assertEqual(decoded.nibbles, (1, 2, 3, 4))
        self.assertEqual([(one.token, one.marks) for one in decoded.many], [(1, Marks.LOW), (2, 2)])
        self.assertEqual(decoded.macs[1], MACAddress.fromString("02:00:00:00:00:02"))
        self.assertEqual(decoded.wide, 0x0102030405060708FF)

    def test_encodeInto(self) -> None:
        """Encoding into the middle of a buffer changes no other bytes."""
        buffer = bytearray(b"\xaa" * 80)
        Everything.decode(self.example).encodeInto(buffer, 5)
        self.assertEqual(buffer, b"\xaa" * 5 + self.example + b"\xaa" * 7)
        room = memoryview(bytearray(4))
        Inner(token=Token(1)).encodeInto(room)
        self.assertEqual(room, b"\0\0\1\0")

    def test_offset(self) -> None:
        """Decoding begins at the offset, in any buffer, and ignores following bytes."""
        padded = b"xx" + self.example + b"yyy"
        for buffer in (padded, bytearray(padded), memoryview(padded)):
            self.assertEqual(Everything.decode(buffer, 2).encode(), self.example)

    def test_little(self) -> None:
        """A little-endian layout agrees with struct, and fills shared bytes from the lowest bit."""
        decoded = Backwards(low=5, high=0b10001, word=0x12345678, three=0xABCDEF, last=Kind.SECOND)
        expected = bytes((0b10001_101,)) + struct.pack("<I", 0x12345678) + b"\xef\xcd\xab\x02"
        self.assertEqual(decoded.encode(), expected)
        self.assertEqual(Backwards.decode(expected), decoded)

    def test_againstStruct(self) -> None:
        decoded = Cursors(
            type=0xFE, length=44, sequence=7, token=9, wrap=3, cursor=0x01020304, tail=b"t" * 28
        )
        self.assertEqual(
            decoded.encode(), struct.pack(">BBHIHHI28s", 0xFE, 44, 7, 9, 0, 3, 0x01020304, b"t" * 28)
        )

    def test_short(self) -> None:
        """Each buffer that is too short raises WireError, with layout and offset."""
        for length in range(len(self.example)):
            with self.assertRaises(WireError) as caught:
                Everything.decode(b"zz" + self.example[:length], 2)
            self.assertEqual((caught.exception.layout, caught.exception.offset), ("Everything", 2))
        self.assertRaises(WireError, Everything.decode, self.example, 1 << 70)
        self.assertRaises(WireError, Everything.decode, self.example * 2, -68)

    def test_unknownCode(self) -> None:
        """An unknown code has its number and a name."""
        decoded = Everything.decode(b"\x99" + self.example[1:])
        self.assertEqual(decoded.kind, 0x99)
        self.assertIsInstance(decoded.kind, Kind)
        self.assertEqual(
            (decoded.kind.name, decoded.kind.known, Kind.FIRST.known), ("UNKNOWN_0x99", False, True)
        )
        self.assertIn("Kind.UNKNOWN_0x99", repr(decoded))
        self.assertEqual(decoded.encode()[0], 0x99)
        self.assertRaises(ValueError, Kind, "nothing")
        self.assertRaises(ValueError, Kind, -1)

    def test_codesAreCopied(self) -> None:
        """Codes can be pickled and copied; known ones are identical afterwards."""
        unknown = Everything.decode(b"\x99" + self.example[1:])

        def pickled(protocol: int, decoded: Any) -> Any:
            return pickle.loads(pickle.dumps(decoded, protocol))

        ways: list[Callable[[Any], Any]] = [copy.copy, copy.deepcopy]
        ways += [partial(pickled, protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
        for way in ways:
            made = way(unknown.kind)
            self.assertEqual((type(made), made, made.name), (Kind, 0x99, "UNKNOWN_0x99"))
            self.assertEqual(way([unknown.kind]), [0x99])
            self.assertIs(way(Kind.FIRST), Kind.FIRST)
        for way in (*ways[:2], *ways[4:]):  # slots require protocol 2
            self.assertEqual(way(unknown), unknown)

    def test_unknownCodesAreNotKept(self) -> None:
        """Unknown codes from a peer are not cached."""
        before = len(Kind._value2member_map_)
        for number in range(200):
            Kind(1000 + number)
        self.assertEqual(len(Kind._value2member_map_), before)

    def test_closedEnumeration(self) -> None:
        with self.assertRaises(WireError) as caught:
            Everything.decode(self.example[:1] + b"\x02" + self.example[2:])
        self.assertIn("2 is not a valid Closed", str(caught.exception))

    def test_tooLarge(self) -> None:
        """A value that does not fit is refused with the name of its field."""
        fine = Everything.decode(self.example)
        wrong: dict[str, object] = {
            "kind": 256,
            "odd": 1 << 24,
            "even": -1,
            "raw": b"ab",
            "wide": 1 << 72,
            "numbers": (1, 2),
            "nibbles": (1, 2, 16, 4),
            "inner": Inner(marks=Marks(16)),
        }
        for name, value in wrong.items():
            changed = fine.replace(**{name: value})
            with self.assertRaises(WireError) as caught:
                changed.encode()
            self.assertIn("marks" if name == "inner" else name, str(caught.exception))
            self.assertRaises(WireError, changed.encodeInto, bytearray(100))

    def test_noRoom(self) -> None:
        self.assertRaises(WireError, Inner().encodeInto, bytearray(3))
        self.assertRaises(WireError, Everything().encodeInto, bytearray(80), 13)

    def test_defaults(self) -> None:
        """Fields that are not given are zero."""
        self.assertEqual(Everything().encode(), bytes(68))
        self.assertEqual(Everything().gid, GID(bytes(16)))
        self.assertEqual(Everything().many, (Inner(), Inner()))

    def test_value(self) -> None:
        """Layouts are equal if their fields are equal, can be keys, and C{replace} creates another one."""
        one, other = Inner(token=Token(1)), Inner(token=Token(1))
        self.assertEqual(one, other)
        self.assertEqual(len({one, other}), 1)
        self.assertNotEqual(one, other.replace(rest=1))
        self.assertNotEqual(one, (1, 0, 0))
        self.assertEqual(other.rest, 0)
        self.assertRaises(TypeError, one.replace, nothing=1)

    def test_repr(self) -> None:
        """The representation shows all fields, and reserved bits only if they are set."""
        self.assertEqual(
            repr(Backwards(last=Kind.FIRST)), "Backwards(low=0, high=0, word=0, three=0, last=Kind.FIRST)"
        )
        self.assertNotIn("hidden", repr(Everything()))
        self.assertIn("hidden=3", repr(Everything(hidden=3)))

    @given(layouts(Everything), layouts(Backwards))
    def test_roundTrip(self, everything: Everything, backwards: Backwards) -> None:
        for each in (everything, backwards):
            self.assertEqual(type(each).decode(each.encode()), each)

    @given(st.binary(min_size=60, max_size=80))
    def test_anyBytes(self, raw: bytes) -> None:
        """Any bytes are decoded to a value that encodes to the same bytes, or raise WireError."""
        try:
            decoded = Everything.decode(raw)
        except WireError:
            return
        self.assertEqual(decoded.encode(), raw[: Everything.size])


class FirstUseTests(SynchronousTestCase):
    """The generated code of a layout, which is created after frequent use."""

    @given(layouts(Everything), layouts(Backwards), st.binary(min_size=60, max_size=80))
    def test_withoutCode(self, everything: Everything, backwards: Backwards, raw: bytes) -> None:
        """Before code is generated, the results and errors are the same."""
        for decoded, little in ((everything, False), (backwards, True)):
            kind = type(decoded)
            for name in _GENERIC:
                _compile(kind, name)
            encoded = decoded.encode()
            self.assertEqual(_GENERIC["encode"](decoded, little), encoded)
            self.assertEqual(_GENERIC["decode"](kind, little, b"z" + encoded, 1), decoded)
            values = {field.name: getattr(decoded, field.name) for field in kind.fields}
            made, into = kind(), bytearray(kind.size + 2)
            _GENERIC["__init__"](made, little, **values)
            self.assertEqual(repr(made), repr(decoded))
            _GENERIC["encodeInto"](made, little, into, 1)
            self.assertEqual(into, b"\0" + encoded + b"\0")
            found = _GENERIC["decode"](kind, little, raw, 1)
            if found is NotImplemented:
                self.assertRaises(WireError, kind.decode, raw, 1)
            else:
                self.assertEqual(repr(found), repr(kind.decode(raw, 1)))

    def test_refusedWithoutCode(self) -> None:
        """A value that does not fit is refused with its field's name, also without generated code."""
        generic = partial(_GENERIC["encode"], little=False)
        wrong: dict[str, Any] = {"odd": 1 << 24, "even": -1, "raw": b"ab", "wide": 1 << 72}
        wrong |= {"numbers": (1, 2), "numbers ": (1, 2, 3, 4), "gid": None, "kind": None, "raw ": "abc"}
        for name, value in wrong.items():
            unfit = Everything(**{name.strip(): value})
            self.assertIs(generic(unfit), NotImplemented, name)
            self.assertIs(_GENERIC["encodeInto"](unfit, False, bytearray(100)), NotImplemented, name)
        for room, offset in ((3, 0), (8, 5), (8, -1)):
            found = _GENERIC["encodeInto"](Inner(), False, bytearray(room), offset)
            self.assertIs(found, NotImplemented, (room, offset))
        self.assertIs(_GENERIC["__init__"](Inner(), False, nothing=1), NotImplemented)
        self.assertIs(_GENERIC["__init__"](Inner(), False, 1), NotImplemented)

    def test_first(self) -> None:
        """Each method may be the first one called, and may have been bound before."""
        for first in ("decode", "encode", "encodeInto", "make"):

            @wire(2)
            class Small(Layout):
                left: int = bits(4)
                right: int = bits(12)

            @wire(5)
            class Large(Layout):
                small: Small = nested()
                many: tuple[int, ...] = array(3, bits(8))

            decode, raw, into = Large.decode, bytes.fromhex("1234050607"), bytearray(5)
            if first == "decode":
                self.assertEqual(Large.decode(raw).small.right, 0x234)
            elif first == "encode":
                self.assertEqual(Large().encode(), bytes(5))
            elif first == "encodeInto":
                Large().encodeInto(into)
            else:
                self.assertEqual(Large(many=(1, 2, 3)).small, Small())
            for _ in range(2):
                self.assertEqual(decode(raw), Large(small=Small(left=1, right=0x234), many=(5, 6, 7)))
                self.assertEqual(decode(raw, offset=0).encode(), raw)
            self.assertRaises(TypeError, Large, nothing=1)
            self.assertRaises(WireError, decode, raw[:4])


class DeclarationTests(SynchronousTestCase):
    def test_refused(self) -> None:
        """An invalid declaration is refused, and the error names the field."""
        byte = (int, bits(8))
        half = (int, bits(4))
        cases: list[tuple[int, type[Layout], dict[str, tuple[type, Any]], str]] = [
            (2, Layout, {"field": byte}, "declares 8 bits, not 2 bytes"),
            (1, Layout, {"field": (str, bits(8))}, "Wrong.field: unsupported type"),
            (2, Layout, {"half": half, "field": (bytes, data(1)), "rest": half}, "multiple of 8"),
            (16, Layout, {"first": (int, bits(60)), "middle": (int, bits(60)), "last": byte},
             "Wrong: middle does not end in a whole byte"),
            (1, Layout, {"replace": byte}, "this name"),  # a method of all layouts
            (6, Inner, {"rest": (int, bits(16))}, "Wrong.rest: a base has this field"),
            (1, Layout, {"field": (bool, bits(8))}, "one bit"),
            (4, Layout, {"field": (Marks, bits(32))}, "every combination"),  # enum would cache too many
        ]  # fmt: skip
        for size, base, fields, words in cases:
            values = {name: field for name, (_, field) in fields.items()}
            types = {name: type_ for name, (type_, _) in fields.items()}
            wrong = type("Wrong", (base,), {**values, "__annotations__": types, "__module__": __name__})
            self.assertRaisesRegex(TypeError, words, wire(size), wrong)

    def test_valueOfAnotherLength(self) -> None:
        """A field whose length differs from that of its value class is refused when it is decoded."""

        @wire(8)
        class Wrong(Layout):
            field: GID = data(8)

        for _ in range(20):  # with and without generated code
            self.assertRaisesRegex(ValueError, "a GID has 16 bytes, not 8", Wrong.decode, bytes(8))

    def test_inherited(self) -> None:
        """A layout that is derived from another begins with its fields."""

        @wire(6)
        class Longer(Inner):
            more: int = bits(16)

        it = Longer(token=Token(1), rest=2, more=3)
        self.assertEqual([field.offset for field in Longer.fields], [0, 24, 28, 32])
        self.assertEqual(it.encode(), bytes.fromhex("0000010200 03"))
        self.assertEqual(Longer.decode(it.encode()), it)
        shown = (
            f"Longer(token=1, marks={Marks(0)!r}, rest=4, more=3)"  # the form depends on the Python version
        )
        self.assertEqual(repr(it.replace(rest=4)), shown)
        self.assertNotEqual(it, Inner(token=Token(1), rest=2))
