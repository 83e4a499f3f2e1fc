"""
The page about programs: its endpoint strings are valid, and its imports exist.

Those that need only Twisted and treq serve and fetch over SMC-R; the others need programs that tests lack.
"""

from __future__ import annotations

import ast
import re
from importlib import import_module
from importlib.util import find_spec

from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.trial.unittest import SkipTest, SynchronousTestCase

from txrdma.test.support.programs_page import blocks, PAGE
from txrdma.test.support.smc.ends import reactor


class StringTests(SynchronousTestCase):
    """Checks without running the examples."""

    def test_strings(self) -> None:
        """Each C{smc:} string is a valid endpoint, to listen or to connect."""
        blocks()
        listening = connecting = 0
        for string in re.findall(r"(?<![\\\w:=.])smc:[\w.:=]+\d", PAGE.read_text()):
            if string.count(":") == 1:
                serverFromString(reactor, string)
                listening += 1
            else:
                clientFromString(reactor, string)
                connecting += 1
        self.assertGreater(listening, 15)
        self.assertGreater(connecting, 3)

    def test_imports(self) -> None:
        """Imports of the examples from Twisted and txrdma exist."""
        if find_spec("OpenSSL") is None:
            raise SkipTest("pyOpenSSL is not installed: the extra tls brings it")
        names = 0
        for text in blocks():
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.ImportFrom) and str(node.module).startswith(("twisted.", "txrdma.")):
                    module = import_module(str(node.module))
                    for name in node.names:
                        self.assertTrue(hasattr(module, name.name), f"{node.module}.{name.name}")
                        names += 1
        self.assertGreater(names, 20)
