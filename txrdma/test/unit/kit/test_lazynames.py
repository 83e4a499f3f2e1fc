"""Names of packages that are imported when they are used."""

from __future__ import annotations

import sys

from twisted.trial.unittest import SynchronousTestCase

import txrdma.btl
import txrdma.cm
import txrdma.mad
import txrdma.ports
from txrdma.kit.lazynames import lazyNames


class LazyNamesTests(SynchronousTestCase):
    def test_packages(self) -> None:
        """Packages list the names that they offer, and each can be imported from there."""
        for package in (txrdma.btl, txrdma.cm, txrdma.mad, txrdma.ports):
            names = package.__all__
            self.assertTrue(names)
            self.assertEqual([getattr(package, name).__name__ for name in names], names)
            self.assertLessEqual({*names, "__name__"}, {*dir(package)})

    def test_unused(self) -> None:
        """A module is imported when a name of it is used, not before."""
        name = "txrdma.kit.graphs"
        self.patch(sys, "modules", {each: module for each, module in sys.modules.items() if each != name})
        find, _names = lazyNames("txrdma.kit", {name: "shortest distances"})
        self.assertEqual(find("__all__"), ["distances", "shortest"])
        self.assertNotIn(name, sys.modules)
        self.assertTrue(callable(find("distances")))
        self.assertIn(name, sys.modules)

    def test_unknown(self) -> None:
        """Other names are not attributes of the package."""
        for package in (txrdma.btl, txrdma.cm, txrdma.mad, txrdma.ports):
            self.assertFalse(hasattr(package, "nothing"))
