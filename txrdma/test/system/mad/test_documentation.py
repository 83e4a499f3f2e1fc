"""The pages about management datagrams: examples run, and names exist."""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import re
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import SkipTest

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

import txrdma.interfaces
import txrdma.mad
from txrdma.iba.path import IBDRPath
from txrdma.mad.layouts.smp import NodeInfo, PortInfo
from txrdma.sim.clock import SimulatedClock
from txrdma.test.support import processes
from txrdma.test.support.clocks import step


def page(name: str) -> str:
    path = processes.CHECKOUT / name
    if not path.exists():
        raise SkipTest("not a checkout")
    return path.read_text()


class PageTests(SynchronousTestCase):
    def run_(self, name: str) -> tuple[dict[str, Any], str]:
        clock = SimulatedClock()
        names: dict[str, Any] = {"reactor": clock}
        printed = io.StringIO()
        blocks = re.findall(r"^```python\n(.*?)^```$", page(name), re.MULTILINE | re.DOTALL)
        self.assertGreater(len(blocks), 5)
        for block in blocks:
            code = compile(block, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            with contextlib.redirect_stdout(printed):
                result = eval(code, names)
                if inspect.iscoroutine(result):
                    self.finish(clock, Deferred.fromCoroutine(result), block)
        return names, printed.getvalue()

    def finish(self, clock: SimulatedClock, done: Deferred[Any], block: str) -> None:
        """Advance the clock until the example has ended."""
        for _ in range(10_000):
            if done.called or not clock.calls:
                break
            step(clock)
        self.assertTrue(done.called, block)
        self.successResultOf(done)

    def test_management(self) -> None:
        names, printed = self.run_("docs/management.md")
        self.addCleanup(names["agent"].close)
        self.addCleanup(names["subscription"].stop)
        self.assertEqual(len(names["names"]), 9)
        self.assertIsInstance(names["info"], NodeInfo)
        self.assertEqual({(record.slid, record.dlid) for record in names["records"]}, {(1, 7)})
        self.assertIn("portState", printed)
        self.assertIn("MADError", printed)
        self.assertIn("calls=9, failed=0, running=0", printed)

    def test_program(self) -> None:
        text = page("docs/management.md")
        found = re.search(r"^```py\n(.*?)^```\n\n```console\n(.*?)^```", text, re.M | re.S)
        assert found is not None
        done = processes.printed(found[1])
        self.assertEqual((done.returncode, done.stderr, done.stdout), (0, "", found[2]))

    def test_fromPythonRDMA(self) -> None:
        names, printed = self.run_("docs/from-python-rdma.md")
        self.addCleanup(names["agent"].close)
        self.assertEqual(set(names["names"].values()), {f"h0000{host}" for host in range(8)} | {"leaf0000"})
        self.assertEqual(len(names["guids"]), 9)
        self.assertIsInstance(names["info"], PortInfo)
        self.assertIn("ACTIVE\n", printed)
        self.assertIn("MADError: SubnGet", printed)

    def test_besides(self) -> None:
        text = page("docs/from-python-rdma.md")
        beside = re.findall(r"(?ms)^```text\n.*?^```\n\ntxrdma[^\n]*:\n\n```(\w+)$", text)
        self.assertEqual(beside, ["python"] * text.count("```text"))
        self.assertGreaterEqual(len(beside), 7)

    def test_links(self) -> None:
        wrong = []
        for name in ("management", "from-python-rdma", "start-fabric", "simulated-fabric", "index"):
            text = page(f"docs/{name}.md")
            for dotted in set(re.findall(r"`(txrdma(?:\.\w+)+)", text)):
                if not exists(dotted):
                    wrong.append(f"{name}: {dotted}")
            for target in re.findall(r"\]\(([\w-]+\.md)\)", text):
                if not (processes.CHECKOUT / "docs" / target).exists():
                    wrong.append(f"{name}: {target}")
        self.assertEqual(wrong, [])

    def test_reference(self) -> None:
        targets = re.findall(r'<a href="api/([\w.]+)\.html">', page("docs/management.md"))
        self.assertIn("index", targets)
        self.assertEqual([each for each in targets if each != "index" and not exists(each)], [])
        self.assertIn("api/index.html", page("docs/_templates/sidebar/reference.html"))


def exists(dotted: str) -> bool:
    """Return whether the name exists."""
    parts = dotted.split(".")
    thing: object = import_module(parts[0])
    for number, part in enumerate(parts[1:], 2):
        if not hasattr(thing, part):
            try:
                import_module(".".join(parts[:number]))
            except ImportError:
                return False
        thing = getattr(thing, part)
    return True


class ImportTests(SynchronousTestCase):
    def test_one(self) -> None:
        source = Path(txrdma.mad.__file__).read_text()
        seen = {
            match[1]: match[0] for match in re.findall(r"from (txrdma[\w.]+) import \w+ as (\w+)", source)
        }
        self.assertEqual(sorted(seen), txrdma.mad.__all__)
        for name, home in seen.items():
            self.assertIs(getattr(txrdma.mad, name), getattr(import_module(home), name))
        self.assertLessEqual(set(seen), set(dir(txrdma.mad)))
        self.assertRaises(AttributeError, getattr, txrdma.mad, "nothing")
        self.assertIs(txrdma.mad.IBDRPath, IBDRPath)

    def test_few(self) -> None:
        program = (
            "import sys\n"
            "from txrdma.error import DeviceUnavailable\n"
            "from txrdma.mad import *\n"
            "from txrdma.mad import MADAgent, MADSchedule, openMADPort, SATransactor\n"
            "import txrdma.fabric.discovery, txrdma.mad.ports.umad\n"
            "import txrdma.mad.layouts.sa, txrdma.mad.layouts.pma\n"
            "try:\n"
            "    openMADPort(None, 'umad:nothing/1')\n"
            "except DeviceUnavailable:\n"
            "    print(*sorted(sys.modules))\n"
        )
        done = processes.printed(program)
        self.assertEqual(done.stderr, "")
        # Twisted's plugin cache contains the provided interfaces, whose modules it loads.
        named = ("txrdma.messages.interfaces",)
        loaded = [name for name in done.stdout.split() if name not in named]
        self.assertIn("txrdma.mad.ports.umad", loaded)
        strange = ("txrdma.verbs", "txrdma.soft", "txrdma.smc", "txrdma.sim.fabric", "txrdma.cm", "pyverbs")
        self.assertEqual([name for name in loaded if name.startswith(strange)], [])
