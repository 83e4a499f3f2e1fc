"""
The docstring of each package lists its modules and subpackages, so that readers find where things are.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from txrdma.test.unit.test_layers import PACKAGE

_ENTRY = re.compile(r"^ *- [CL]\{(\w+)(?: <[\w.]+>)?\}: \S", re.MULTILINE)


def mistakes(package: str, docstring: str, parts: set[str]) -> Iterator[str]:
    """Yield what is wrong with the list in a package's docstring; C{parts}: its modules and subpackages."""
    listed = _ENTRY.findall(docstring)
    yield from (f"{package} does not list {name}" for name in sorted(parts - {*listed}))
    yield from (f"{package} lists {name}, which does not exist" for name in sorted({*listed} - parts))
    yield from (f"{package} lists {name} twice" for name in sorted({*listed}) if listed.count(name) > 1)


def partsOf(folder: Path) -> set[str]:
    """Return the names of the modules and subpackages in a folder."""
    found = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    return found | {path.parent.name for path in folder.glob("*/__init__.py")}


class MapTests(SynchronousTestCase):
    """Lists of modules are complete."""

    def test_packages(self) -> None:
        wrong: list[str] = []
        for path in sorted(PACKAGE.rglob("*/__init__.py")):
            names = path.parent.relative_to(PACKAGE).parts
            if names[0] not in ("test", "testing"):
                docstring = ast.get_docstring(ast.parse(path.read_text()), clean=False) or ""
                wrong += mistakes(".".join(("txrdma", *names)), docstring, partsOf(path.parent))
        self.assertEqual(wrong, [])

    def test_mistakes(self) -> None:
        found = mistakes("p", "A.\n\n - C{a}: one.\n - L{c <p.c>}: two.\n - C{c}: three.\n", {"a", "b"})
        self.assertEqual(
            [*found], ["p does not list b", "p lists c, which does not exist", "p lists c twice"]
        )
