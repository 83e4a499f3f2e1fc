"""Tests for L{txrdma.test.support.limits}."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from importlib.util import find_spec
from inspect import signature
from itertools import compress
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from txrdma.cm.connections.endpoints import IBServerEndpoint, RDMAServerEndpoint
from txrdma.cm.rsocket.endpoints import RSocketServerEndpoint
from txrdma.cm.terms import Terms
from txrdma.smc.terms.options import Options
from txrdma.test.support.bounds import BOUNDS, REASONS
from txrdma.test.support.limits import LIMITS

_SUPPORT = ("txrdma.test.support.", "txrdma.testing.")


def testNames(path: Path) -> set[str]:
    """Return the names of tests in a module, as C{Class.method}."""
    classes = [each for each in ast.parse(path.read_text()).body if isinstance(each, ast.ClassDef)]
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {
        f"{kind.name}.{each.name}" for kind in classes for each in kind.body if isinstance(each, functions)
    }


def hasTest(name: str) -> bool:
    """Return whether a test with this name exists, given without C{txrdma.test}."""
    module, kind, function = name.rsplit(".", 2)
    spec = find_spec(f"txrdma.test.{module}")
    return (
        spec is not None and spec.origin is not None and f"{kind}.{function}" in testNames(Path(spec.origin))
    )


@lru_cache(None)
def wordsOf(module: str, test: str = "") -> frozenset[str]:
    """Return the words in a test, in its module except other tests, and in the test support it imports."""
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text())
    imports = [each for each in tree.body if isinstance(each, ast.ImportFrom)]
    tree.body = [each for each in tree.body if each not in imports]
    for kind in tree.body:
        if test and isinstance(kind, ast.ClassDef):
            names = [getattr(each, "name", "") for each in kind.body]
            isUsed = [name == test or not name.startswith("test") for name in names]
            kind.body = list(compress(kind.body, isUsed))
    words = set(re.findall(r"\w+", ast.unparse(tree)))
    words |= {alias.name for each in imports for alias in each.names if alias.asname in words}
    support = (str(each.module) for each in imports)
    return frozenset(words).union(*(wordsOf(each) for each in support if each.startswith(_SUPPORT)))


class LimitTests(SynchronousTestCase):
    def test_values(self) -> None:
        """Every limit has a positive default."""
        for limit in LIMITS:
            self.assertIsInstance(limit.value, (int, float), limit.constant)
            self.assertGreater(limit.value, 0, limit.constant)

    def test_reached(self) -> None:
        """Every limit names a test that reaches it."""
        for limit in LIMITS:
            self.assertTrue(hasTest(limit.test), limit.test)

    def test_used(self) -> None:
        """The test of each limit, or what it calls, uses the limit's constant, or the key that sets it."""
        for limit in LIMITS:
            module, _, function = limit.test.rsplit(".", 2)
            name = limit.constant.rpartition(".")[2]
            words = wordsOf(f"txrdma.test.{module}", function)
            self.assertTrue(name in words or limit.key in words, f"{limit.test} does not use {name}")

    def test_tables(self) -> None:
        """Every constant that limits a table is listed."""
        constants = {f"txrdma.{name}" for name in BOUNDS.keys() - REASONS.keys()}
        self.assertEqual(constants - {limit.constant for limit in LIMITS}, set())

    def test_once(self) -> None:
        """No limit is listed twice, except the share of a client, and each is described by sentences."""
        once = [limit.constant for limit in LIMITS if not limit.constant.endswith(".CLIENT_SHARE")]
        self.assertEqual(len(set(once)), len(once))
        self.assertEqual(len({limit[:4] for limit in LIMITS}), len(LIMITS))
        for limit in LIMITS:
            self.assertTrue(limit.reached.endswith("."), limit.constant)

    def test_keys(self) -> None:
        """Keys are options of endpoint strings with this default."""
        options: dict[str, object] = {"smc:": Options(), "rdma:": Terms()}
        servers = RDMAServerEndpoint, IBServerEndpoint, RSocketServerEndpoint
        for limit in LIMITS:
            if limit.key == "backlog":
                for server in servers:
                    self.assertEqual(signature(server).parameters["backlog"].default, limit.value)
            elif limit.key:
                self.assertEqual(getattr(options[limit.part], limit.key), limit.value)
