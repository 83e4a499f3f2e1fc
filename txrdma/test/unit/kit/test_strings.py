"""The arguments of endpoint strings."""

from __future__ import annotations

from collections.abc import Callable

from twisted.trial.unittest import SynchronousTestCase

from txrdma.kit.strings import Arguments, escaped, escapedText


class ArgumentsTests(SynchronousTestCase):
    def test_values(self) -> None:
        """Numbers, sizes, seconds, words and addresses are parsed."""
        cases: list[tuple[Callable[[Arguments], object], str, object]] = [
            (lambda keys: keys.number("key", None, 0, 99), "42", 42),
            (lambda keys: keys.number("key", None, 0, 99), "0x2A", 42),
            (lambda keys: keys.number("key", None, 0, 99), "042", 42),
            (lambda keys: keys.size("key", 1, 1, 1 << 40), "65536", 65536),
            (lambda keys: keys.size("key", 1, 1, 1 << 40), "64K", 65536),
            (lambda keys: keys.size("key", 1, 1, 1 << 40), "3G", 3 << 30),
            (lambda keys: keys.seconds("key", None), "2.5", 2.5),
            (lambda keys: keys.seconds("key", None), "2s", 2.0),
            (lambda keys: keys.seconds("key", 7.0, mayBeZero=True), "0", 0.0),
            (lambda keys: keys.isYes("key", True), "no", False),
            (lambda keys: keys.choice("key", "auto", "1"), "1", "1"),
            (lambda keys: keys.address("key"), "fe80::1%eth0", "fe80::1%eth0"),
        ]
        for read, text, value in cases:
            keys = Arguments("kind", ("key",), (text,), {})
            self.assertEqual(read(keys), value, text)
            keys.end()

    def test_wrong(self) -> None:
        """Other values are rejected with the kind, the key and the value."""
        cases: list[tuple[Callable[[Arguments], object], tuple[str, ...]]] = [
            (
                lambda keys: keys.number("key", None, 1, 99),
                ("0", "100", "-1", " 1", "1_0", "0b1", "x", "1.0"),
            ),
            (lambda keys: keys.size("key", 1, 1, 1 << 20), ("0", "2M", "64k", "K", "1.5K", "9" * 5000)),
            (lambda keys: keys.seconds("key", 1.0), ("0", "-1", "soon", "inf", "nan", "s", "2m")),
            (lambda keys: keys.isYes("key", True), ("", "true")),
            (lambda keys: keys.address("key"), ("", "host")),
            (lambda keys: keys.end(), ("1",)),
        ]
        for read, texts in cases:
            for text in texts:
                error = self.assertRaises(ValueError, read, Arguments("kind", ("key",), (), {"key": text}))
                self.assertIn(f"kind: key={text}", str(error))
        missing = self.assertRaises(ValueError, Arguments("kind", (), (), {}).number, "key", None, 0, 1)
        self.assertEqual(str(missing), "kind: key= is missing")

    def test_unknownKey(self) -> None:
        """The error about an unknown key lists all valid keys."""
        keys = Arguments("kind", ("first",), ("1",), {"second": "2", "wrong": "4"})
        keys.take("first")
        keys.seconds("second", None)
        keys.seconds("third", None)
        error = self.assertRaises(ValueError, keys.end)
        self.assertEqual(
            str(error), "kind: wrong=4: there is no such key here; the keys are first, second, third"
        )


class EscapedTests(SynchronousTestCase):
    """Texts of peers, which may be printed on a terminal."""

    def test_bytes(self) -> None:
        """Bytes that are not printable ASCII are escaped."""
        self.assertEqual(escapedText(b"a\\ \x1b[31m\n\x7f\xff"), "a\\ \\x1b[31m\\x0a\\x7f\\xff")

    def test_text(self) -> None:
        """Letters of all languages are unchanged; control characters and changes of direction are escaped."""
        self.assertEqual(escaped("n\xf8\N{SNOWMAN} \\"), "n\xf8\N{SNOWMAN} \\")
        self.assertEqual(escaped("a\x1b[2J\x9b\r\n\u202e\ud800"), "a\\x1b[2J\\x9b\\x0d\\x0a\\x202e\\xd800")
