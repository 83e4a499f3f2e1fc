"""Parsing of scripts."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, strategies

from twisted.internet.tcp import Connection
from twisted.trial.unittest import SynchronousTestCase

from txrdma.testing.streams.script import OCCASIONS, parse, ScriptError, size, Step, STEP_NAMES, STEPS
from txrdma.testing.streams.scriptedprotocol import methodName, OF_TRANSPORT, ScriptedProtocol
from txrdma.testing.streams.texts import Checksum, Text


class ScriptTests(SynchronousTestCase):
    def test_stepsHaveTheirValuesInOrder(self) -> None:
        script = parse("made: write 300kB; trickle 5kB by 10 every 0.5\nlost: stop after 3")
        self.assertEqual(
            script.on("made"),
            (
                Step("write", (300_000,), "write 300kB"),
                Step("trickle by every", (5000, 10, 0.5), "trickle 5kB by 10 every 0.5"),
            ),
        )
        self.assertEqual(script.on("lost"), (Step("stop after", (3,), "stop after 3"),))

    def test_thresholdsAreSorted(self) -> None:
        script = parse("received 5MB: lose\nreceived 5: pause")
        self.assertEqual([rule.size for rule in script.thresholds], [5, 5_000_000])

    def test_scriptWithoutEndStopsReactor(self) -> None:
        stop = (Step("stop", (), "stop"),)
        self.assertEqual((parse("").on("lost"), parse("").on("failed")), (stop, stop))
        self.assertEqual(parse("lost: again").on("lost"), (Step("again", (), "again"),))
        self.assertEqual(parse("lost:").on("lost"), ())

    def test_stepsForHalvesMakeProtocolHalfCloseable(self) -> None:
        self.assertFalse(parse("made: half").knowsHalves)
        self.assertTrue(parse("made: half\nread-lost:").knowsHalves)
        self.assertTrue(parse("write-lost: lose").knowsHalves)

    def test_endLeavesAfterSmallestThreshold(self) -> None:
        self.assertEqual(
            parse("received 5: write 5\nreceived 300kB: pause; lose\nreceived 5MB: stop").enough, 300_000
        )
        self.assertEqual(parse("data: abort").enough, 1)
        self.assertIsNone(parse("made: lose\nreceived 5: half").enough)

    def test_invalidScriptIsRefusedWithLine(self) -> None:
        for text in (
            "write 5",
            "mode: write 5",
            "made: wriet 5",
            "made: write",
            "made: write five",
            "made: write 5 5",
            "made: wait a-moment",
            "made: await NOBODY",
            "received: lose",
        ):
            error = self.assertRaises(ScriptError, parse, f"lost: stop\n{text}")
            self.assertIn(text, str(error))

    def test_playerSupportsExactlySteps(self) -> None:
        methods = {name for name in dir(ScriptedProtocol) if name.startswith("step_")}
        self.assertEqual({methodName(each) for each in STEP_NAMES if each not in OF_TRANSPORT}, methods)
        for name in OF_TRANSPORT.values():
            self.assertTrue(hasattr(Connection, name))
        self.assertEqual(len(STEP_NAMES), len(STEPS))

    def test_sizesHaveDecimalUnits(self) -> None:
        self.assertEqual([size(text) for text in ("0", "5", "300kB", "12MB")], [0, 5, 300_000, 12_000_000])
        for text in ("", "-5", "5 kB", "5KB", "1.5MB"):
            self.assertRaises(ValueError, size, text)

    def test_documentedOccasionsCanBeUsed(self) -> None:
        for form in OCCASIONS:
            parse(f"{form.replace('SIZE', '5')}: stop")


class TextTests(SynchronousTestCase):
    """The data that ends write."""

    def _whole(self, length: int) -> bytes:
        return Text("client").take(0, length)

    @given(strategies.integers(0, 200_000), strategies.integers(0, 200_000))
    def test_partOfTextEqualsThatOfWhole(self, start: int, length: int) -> None:
        self.assertEqual(Text("client").take(start, length), self._whole(start + length)[start:])

    def test_piecesAreConsecutive(self) -> None:
        self.assertEqual(b"".join(Text("client").pieces(7, 2_500_000)), Text("client").take(7, 2_500_000))

    def test_endsHaveDifferentTexts(self) -> None:
        self.assertNotEqual(Text("client").take(0, 5), Text("server").take(0, 5))

    @given(strategies.lists(strategies.integers(0, 100_000), max_size=5))
    def test_incrementalChecksumEqualsWhole(self, lengths: list[int]) -> None:
        from zlib import crc32

        growing: Callable[[int], int] = Checksum("server").upTo
        for length in sorted(lengths):
            self.assertEqual(growing(length), crc32(Text("server").take(0, length)))
