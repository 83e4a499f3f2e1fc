"""
Importing pyverbs, tested with a fake.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from textwrap import dedent

from twisted.trial.unittest import SynchronousTestCase

from txrdma.test.support.processes import printed


def program(text: str, *path: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a new interpreter."""
    return printed(f"import sys; sys.path[:0] = {list(path)!r}\n" + dedent(text))


class ImportTests(SynchronousTestCase):
    """pyverbs is imported only when a device is opened, and without side effects on logging."""

    def test_pyverbsIsNotImportedEarly(self) -> None:
        done = program(
            """
            import pkgutil, txrdma.verbs, txrdma.command, txrdma.smc.strings
            for module in pkgutil.iter_modules(txrdma.verbs.__path__, "txrdma.verbs."):
                __import__(module.name)
            from txrdma.verbs.devices import availableDevices
            availableDevices()
            print([name for name in sys.modules if name.split(".")[0] == "pyverbs"])
            """
        )
        self.assertEqual((done.stdout, done.stderr), ("[]\n", ""))

    def test_missingPyverbsIsNamedWithRemedy(self) -> None:
        done = program(
            """
            sys.modules["pyverbs"] = None
            from txrdma.verbs.devices import openDevice
            from txrdma.error import DeviceUnavailable
            try:
                openDevice(None, "pyverbs:mlx5_0")
            except DeviceUnavailable as error:
                print(error)
            """
        )
        self.assertEqual(done.stderr, "")
        self.assertIn("pyverbs can't be imported", done.stdout)
        self.assertIn("python3-pyverbs", done.stdout)

    def fake(self) -> str:
        """Return a folder with a package that changes logging like pyverbs."""
        folder = Path(self.mktemp())
        package = folder / "pyverbs"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "base.py").write_text(
            "import logging\nlogging.basicConfig(format='%(message)s', level=logging.INFO)\n"
        )
        for module, names in {
            "addr": "AH AHAttr GID GlobalRoute",
            "cq": "CompChannel CQ",
            "device": "Context",
            "mr": "MR",
            "pd": "PD",
            "pyverbs_error": "PyverbsError",
            "qp": "QP QPAttr QPCap QPInitAttr",
            "srq": "SRQ SrqAttr SrqInitAttr",
            "wr": "RecvWR SendWR SGE",
        }.items():
            lines = ["import pyverbs.base", *(f"class {name}(Exception): pass" for name in names.split())]
            (package / f"{module}.py").write_text("\n".join(lines))
        return str(folder.absolute())

    def test_rootLoggerIsUnchanged(self) -> None:
        done = program(
            """
            import logging
            from txrdma.verbs.pyverbs.bindings import loadPyverbs
            root = logging.getLogger()
            loadPyverbs()
            print(root.handlers, root.level == logging.WARNING)
            import pyverbs.base
            """,
            self.fake(),
        )
        self.assertEqual((done.stdout, done.stderr), ("[] True\n", ""))
        done = program(
            """
            import logging
            from txrdma.verbs.pyverbs.bindings import loadPyverbs
            root = logging.getLogger()
            mine = logging.StreamHandler()
            root.addHandler(mine)
            root.setLevel(logging.ERROR)
            loadPyverbs()
            print(root.handlers == [mine], root.level == logging.ERROR)
            """,
            self.fake(),
        )
        self.assertEqual((done.stdout, done.stderr), ("True True\n", ""))

    def test_unfitPyverbsCountsAsMissing(self) -> None:
        folder = self.fake()
        (Path(folder) / "pyverbs" / "mr.py").write_text("raise ImportError('IBVERBS_PRIVATE_59 not found')")
        done = program(
            """
            import logging
            from txrdma.error import DeviceUnavailable
            from txrdma.verbs.devices import openDevice
            try:
                openDevice(None, "pyverbs:mlx5_0")
            except DeviceUnavailable as error:
                print(error)
            print(logging.getLogger().handlers)
            """,
            folder,
        )
        self.assertEqual(done.stderr, "")
        self.assertIn("IBVERBS_PRIVATE_59", done.stdout)
        self.assertTrue(done.stdout.endswith("[]\n"))
