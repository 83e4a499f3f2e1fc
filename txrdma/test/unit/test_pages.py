"""
Parsing of documentation pages, and the output that their lines match.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from txrdma.test.support.pages import Command, File, missing, steps

PAGE = """
Save this as `hello.py`:

```python
print("hello")
```

```console
$ python hello.py &
hello
$ true
```

A string:

```text
tls:a:1
```
"""


class StepTests(SynchronousTestCase):
    def test_steps(self) -> None:
        """Files and commands are found in order, with the output of each command."""
        self.assertEqual(
            list(steps(PAGE)),
            [
                File("hello.py", 'print("hello")\n'),
                Command("python hello.py &", ["hello"]),
                Command("true", []),
            ],
        )

    def test_nameless(self) -> None:
        """A program without a file name is an error, since nothing would run it."""
        self.assertRaises(ValueError, list, steps("Run this:\n\n```python\nprint()\n```\n"))


class OutputTests(SynchronousTestCase):
    def allows(self, line: str, printed: str) -> bool:
        return not missing([line], printed)

    def test_loose(self) -> None:
        """Numbers, widths of columns and C{...} may differ, everything else may not."""
        self.assertTrue(self.allows("took 3 s", "took 12.5 s"))
        self.assertTrue(self.allows("a  b", "a      b"))
        self.assertTrue(self.allows("... soft ... ACTIVE...", "| soft | 1 | ACTIVE | lo |"))
        self.assertFalse(self.allows("... soft ... ACTIVE...", "| soft | 1 | DOWN | lo |"))
        self.assertFalse(self.allows("by SMC-R", "by TCP"))
        self.assertFalse(self.allows("all", "all is well"))

    def test_order(self) -> None:
        """Printed lines must have the order of the page, and other lines may be between them."""
        self.assertEqual(missing(["a", "...", "c"], "a\nb\nc\n"), [])
        self.assertEqual(missing(["a", "c"], "c\na\n"), ["c"])
