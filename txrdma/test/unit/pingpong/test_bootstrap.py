"""Messages between two pingpong ends: one line each, validated by the receiver."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import WireError
from txrdma.iba.types import GID, LID, MACAddress, QPN, RKey
from txrdma.iba.verbs import QPKind
from txrdma.pingpong.bootstrap import (
    BootstrapHello,
    Connect,
    Connected,
    decode,
    Done,
    encode,
    LineSplitter,
    LONGEST,
    Message,
    Open,
    Opened,
    Ready,
    Run,
    ServerResult,
    Trouble,
)
from txrdma.pingpong.compatible import decodeEndAddress, encodeEndAddress, LINE_BYTES
from txrdma.pingpong.link import EndAddress
from txrdma.pingpong.plan import DEEPEST, LARGEST, LinkSettings, Measure, Test, Transfer
from txrdma.test.support import slow

COUNTS = st.integers(0, 1 << 53)
SETTINGS = st.builds(
    LinkSettings,
    kind=st.sampled_from([QPKind.RC, QPKind.UD]),
    size=st.integers(0, LARGEST),
    depth=st.integers(1, DEEPEST),
    mtu=st.sampled_from([0, 256, 1024, 4096]),
    inline=st.integers(0, LARGEST),
    check=st.booleans(),
    atomics=st.booleans(),
)
ENDPOINT_DATA = st.builds(
    EndAddress,
    gid=st.binary(min_size=16, max_size=16).map(GID),
    lid=st.integers(0, 0xFFFF).map(LID),
    qpn=st.integers(0, 0xFFFFFF).map(QPN),
    psn=st.integers(0, 0xFFFFFF),
    mtu=st.sampled_from([256, 1024, 4096]),
    mac=st.none() | st.binary(min_size=6, max_size=6).map(MACAddress),
    reads=st.integers(0, 255),
    address=st.integers(0, (1 << 64) - 1),
    rkey=st.integers(0, 0xFFFFFFFF).map(RKey),
)


@st.composite
def tests(draw: st.DrawFn) -> Test:
    transfer = draw(st.sampled_from(Transfer))
    return Test(
        transfer,
        draw(st.sampled_from(Measure)),
        8 if transfer is Transfer.ATOMIC else draw(st.integers(0, LARGEST)),
        draw(st.integers(1, 1 << 53)),
        draw(st.floats(0, 86400)),
        draw(COUNTS),
        draw(st.integers(1, DEEPEST)),
        draw(st.integers(0, LARGEST)),
        draw(st.booleans()),
    )


TEXTS = st.text(st.characters(codec="utf-8").filter(str.isprintable), max_size=200)
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(BootstrapHello, st.integers(1, 9), TEXTS),
    st.builds(Open, SETTINGS),
    st.builds(Opened, SETTINGS, ENDPOINT_DATA),
    st.builds(Connect, ENDPOINT_DATA),
    st.builds(Run, tests()),
    st.builds(Done, COUNTS, st.booleans()),
    st.builds(ServerResult, COUNTS, COUNTS, COUNTS, COUNTS, st.floats(0, 1e18), COUNTS),
    st.builds(Trouble, TEXTS),
    st.sampled_from([Connected(), Ready()]),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=6,
)


class MessageTests(SynchronousTestCase):
    @given(MESSAGES)
    def test_roundTrip(self, message: Message) -> None:
        """An encoded message is one line of limited length, and is decoded to the same values."""
        line = encode(message)
        self.assertEqual(line.find(b"\n"), len(line) - 1)
        self.assertLessEqual(len(line), LONGEST)
        self.assertEqual(decode(line[:-1]), message)

    @given(st.one_of(st.binary(max_size=300), JSON.map(lambda value: json.dumps(value).encode())))
    def test_garbage(self, line: bytes) -> None:
        """Invalid data raises L{WireError}."""
        self.assertRaises(WireError, decode, line)

    @slow("Hypothesis generates many valid and invalid messages")
    @given(MESSAGES, st.data())
    def test_changedValueIsRefusedOrWithinLimits(self, message: Message, data: st.DataObject) -> None:
        reported = json.loads(encode(message))
        place: Any = reported
        while True:
            key = data.draw(st.sampled_from(sorted(place)))
            if isinstance(place[key], dict) and data.draw(st.booleans()):
                place = place[key]
                continue
            place[key] = data.draw(JSON)
            break
        try:
            found = decode(json.dumps(reported).encode())
        except WireError:
            return
        self.assertEqual(decode(encode(found)[:-1]), found)

    def test_namesOnTheWire(self) -> None:
        """The names of messages are those of the protocol, whatever their classes are called."""
        for line, message in (
            (b'{"message": "hello", "version": 1, "software": "x"}\n', BootstrapHello(1, "x")),
            (b'{"message": "connected"}\n', Connected()),
            (b'{"message": "ready"}\n', Ready()),
            (b'{"message": "done", "messages": 7, "interrupted": false}\n', Done(7)),
            (b'{"message": "trouble", "reason": "x"}\n', Trouble("x")),
        ):
            self.assertEqual(encode(message), line)
            self.assertEqual(decode(line[:-1]), message)

    def test_excessiveNestingIsRefused(self) -> None:
        self.assertRaises(WireError, decode, b"[" * LONGEST)
        self.assertRaises(WireError, decode, b'{"message":' * 1000)

    def test_numbersOfOtherTypesOrOutOfRangeAreRefused(self) -> None:
        for value in ("-1", "1e400", "NaN", "true", '"7"', "1.5", "9" * 400, "9" * 5000, str(1 << 54)):
            line = f'{{"message": "done", "messages": {value}}}'.encode()
            self.assertRaises(WireError, decode, line)

    def test_endlessTestAndOtherAtomicsAreRefused(self) -> None:
        for change in ({"iterations": 0, "seconds": 0}, {"transfer": "atomic", "size": 64}):
            reported = {"message": "run", "test": {"transfer": "send", "size": 8, **change}}
            self.assertRaises(WireError, decode, json.dumps(reported).encode())

    def test_fieldsOfLaterVersionAreIgnored(self) -> None:
        self.assertEqual(decode(b'{"message": "ready", "colour": "blue"}'), Ready())

    def test_errorsAreOneLineOfPrintableCharacters(self) -> None:
        found = decode(encode(Trouble("two\nlines \x1b[31m" + "x" * 5000))[:-1])
        assert isinstance(found, Trouble)
        self.assertTrue(found.reason.startswith("two lines"))
        self.assertTrue(found.reason.isprintable())

    def test_controlCharacters(self) -> None:
        """An error of a peer with control characters, or longer than some lines, is refused."""
        for reason in ("\x1b[2J", "two\nlines", "\x9b2J", "\u202e", "x" * 1001):
            line = json.dumps({"message": "trouble", "reason": reason}).encode()
            error = self.assertRaises(WireError, decode, line)
            self.assertTrue(str(error).isprintable())

    @given(st.lists(st.binary(max_size=40).filter(lambda line: b"\n" not in line)), st.data())
    def test_linesDoNotDependOnSegmentation(self, lines: list[bytes], data: st.DataObject) -> None:
        left = b"".join(line + b"\n" for line in lines)
        splitter, found = LineSplitter(), []
        while left:
            count = data.draw(st.integers(1, len(left)))
            found += splitter.take(left[:count])
            left = left[count:]
        self.assertEqual(found, lines)

    def test_tooLongLineIsRefusedAndNotStored(self) -> None:
        splitter = LineSplitter(100)
        splitter.take(b"x" * 100)
        self.assertRaises(WireError, splitter.take, b"x")
        self.assertRaises(WireError, LineSplitter(100).take, b"x" * 101 + b"\n")


class CompatibleTests(SynchronousTestCase):
    """The line of C{ibv_rc_pingpong}."""

    @given(ENDPOINT_DATA)
    def test_roundTrip(self, here: EndAddress) -> None:
        """An encoded line has a constant length and is decoded to the same values."""
        line = encodeEndAddress(here)
        self.assertEqual(len(line), LINE_BYTES)
        there = decodeEndAddress(line)
        self.assertEqual(
            (there.gid, there.lid, there.qpn, there.psn), (here.gid, here.lid, here.qpn, here.psn)
        )

    def test_lineOfProgramIsEncodedIdentically(self) -> None:
        line = b"0000:000011:8f3a21:00000000000000000000ffff0a4f0001\0"
        there = decodeEndAddress(line)
        self.assertEqual((str(there.gid), there.qpn, there.psn), ("::ffff:10.79.0.1", 0x11, 0x8F3A21))
        self.assertEqual(encodeEndAddress(there), line)

    @given(st.binary(max_size=80))
    def test_garbage(self, line: bytes) -> None:
        """Any other line raises L{WireError}."""
        self.assertRaises(WireError, decodeEndAddress, line)
