"""Tests for L{txrdma.test.support.limits}."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from inspect import signature
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from txrdma.cm.connections.endpoints import IBServerEndpoint, RDMAServerEndpoint
from txrdma.cm.rsocket.endpoints import RSocketServerEndpoint
from txrdma.cm.terms import Terms
from txrdma.smc.terms.options import Options
from txrdma.test.support.bounds import BOUNDS, REASONS
from txrdma.test.support.limits import LIMITS


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

    def test_tables(self) -> None:
        """Every constant that limits a table is listed."""
        constants = {f"txrdma.{name}" for name in BOUNDS.keys() - REASONS.keys()}
        self.assertEqual(constants - {limit.constant for limit in LIMITS}, set())

    def test_once(self) -> None:
        """No limit is listed twice, and each is described by sentences."""
        self.assertEqual(len({limit.constant for limit in LIMITS}), len(LIMITS))
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
