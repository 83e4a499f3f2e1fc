"""
The public interface changes only with a news fragment, and examples use nothing else.
"""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from typing import Any

from twisted.trial.unittest import SkipTest, SynchronousTestCase

import txrdma.cm
from txrdma.cm.terms import Terms
from txrdma.test.support import CHECKOUT

FRAGMENTS = CHECKOUT / "newsfragments"
IMPORT = re.compile(r"^ *from (txrdma[\w.]*) import ([\w, ]+|\([\w,\s]+\))", re.MULTILINE)


class InterfaceTests(SynchronousTestCase):
    """The lines that C{tools/interface.py} collects from the code."""

    def setUp(self) -> None:
        """Import the tool of the checkout."""
        if not (CHECKOUT / "tools" / "interface.py").exists():
            raise SkipTest("the tool is in a checkout only")
        for package, extra in (("prometheus_client", "prometheus"), ("opentelemetry", "opentelemetry")):
            if find_spec(package) is None:
                raise SkipTest(f"{package} is not installed: the extra {extra} brings it")
        if sys.version_info < (3, 11) and find_spec("tomli") is None:
            raise SkipTest("tomli is not installed: the extra monitor brings it")
        sys.path.insert(0, str(CHECKOUT / "tools"))
        self.addCleanup(sys.path.remove, str(CHECKOUT / "tools"))
        import interface  # type: ignore[import-not-found]  # on the path of this test only

        self.tool: Any = interface

    def test_announced(self) -> None:
        """A name, key, option, metric or setting that was added or removed is in a news fragment."""
        changes = self.tool.changed(self.tool.RELEASED.read_text().splitlines(), self.tool.lines())
        fragments = "\n".join(path.read_text() for path in FRAGMENTS.glob("+*"))
        self.assertEqual(
            self.tool.unannounced(changes, fragments),
            [],
            "the public interface has changed: write a news fragment that names each of these",
        )

    def test_promised(self) -> None:
        """What the page calls stable is listed: JSON of each command that has it, metrics, events, twistd."""
        parts = self.tool.interface()
        having = {
            line.split()[0]
            for line in parts["Options of commands"]
            if line.split()[1] in ("--json", "--format")
        }
        self.assertEqual(having, {line.split()[0] for line in parts["JSON of commands"]})
        for title, line in (
            ("JSON of commands", "connections cursors"),
            ("JSON of commands", "devices ports"),
            ("JSON of commands", "discover physicalState"),
            ("JSON of commands", "doctor problems"),
            ("JSON of commands", "smc-stats ringBytes"),
            ("JSON of commands", "verify measurements"),
            ("Keys of strings", "soft: mtu"),
            ("Keys of connection events", "suppressed"),
            ("Metrics of smc:", "txrdma_smc_fallbacks reason"),
            ("Metrics of the fabric monitor", "infiniband_symbol_error_total"),
            ("Metrics of the fabric monitor", "txrdma_monitor_active"),
            ("Metrics of the fabric monitor", "txrdma_monitor_remote_write_spill_bytes"),
            ("Options of twistd", "smc-proxy --connect"),
        ):
            self.assertIn(line, parts[title])

    def test_changes(self) -> None:
        """Changes are found, and announced by their own name, or by that of a new command."""
        old = ["Options of commands: links --json", "Keys of strings: smc: device"]
        new = ["Options of commands: links --json", "Options of commands: verify --serve"]
        changes = self.tool.changed(old, new)
        self.assertEqual(changes, ["- Keys of strings: smc: device", "+ Options of commands: verify --serve"])
        self.assertEqual(self.tool.unannounced(changes, ""), changes)
        self.assertEqual(self.tool.unannounced(changes, "There is no `device=`; `--serve` is new."), [])
        self.assertEqual(self.tool.unannounced(changes[1:], "The command `verify` is new."), [])

    def test_short(self) -> None:
        """Only code names a change: short names occur in the words of any text, and in other names."""
        changes = [
            "+ Formats: shared-memory 9",
            "+ JSON of commands: links by",
            "+ Stable names: txrdma.cm Terms",
        ]
        self.assertEqual(
            self.tool.unannounced(changes, "Termsless by 2019, `standby`, `v19`, `txrdma.cmx.T`."), changes
        )
        text = "`shared-memory 9`, `by` of `links --json`, and `txrdma.cm.Terms`."
        self.assertEqual(self.tool.unannounced(changes, text), [])

    def test_names(self) -> None:
        """Every public name exists, and no module is both stable and provisional."""
        stable, provisional = set(self.tool.STABLE), set(self.tool.PROVISIONAL)
        self.assertEqual(stable & provisional, set())
        for module in (*self.tool.STABLE, *self.tool.PROVISIONAL):
            names = self.tool.namesIn(module)
            self.assertTrue(names, module)
            for name in names:
                self.assertTrue(hasattr(sys.modules[module], name), f"{module}.{name}")

    def test_examples(self) -> None:
        """The documentation and the examples import public names only."""
        modules = {*self.tool.STABLE, *self.tool.PROVISIONAL}
        pages = [*CHECKOUT.glob("docs/*.md"), CHECKOUT / "README.md", *CHECKOUT.glob("examples/*.py")]
        count = 0
        for page in pages:
            for module, words in IMPORT.findall(page.read_text()):
                for name in re.findall(r"\w+", words):
                    count += 1
                    if f"{module}.{name}" not in modules:
                        self.assertIn(module, modules, page.name)
                        self.assertIn(name, self.tool.namesIn(module), f"{page.name}: {module}")
        self.assertGreater(count, 50)


class StarTests(SynchronousTestCase):
    """The names that C{import *} takes from a package that loads them on demand."""

    def test_cm(self) -> None:
        """All names for applications are imported, and nothing else."""
        names = txrdma.cm.__all__
        self.assertEqual({getattr(txrdma.cm, name).__name__ for name in names}, {*names})
        self.assertIs(txrdma.cm.Terms, Terms)
        self.assertEqual(len(names), 15)
