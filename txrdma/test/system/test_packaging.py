"""
What pip makes of us, in environments where nothing else is: wheel, sdist, and an editable install.

Needs a checkout, and a package index once, for what we depend on.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import ClassVar

from twisted.trial.unittest import SkipTest, SynchronousTestCase

import txrdma

CHECKOUT = Path(txrdma.__file__).parent.parent

LEFT_OUT = (".git", ".venv*", "_trial_temp*", "build", "dist", "*.egg-info", "_build", ".*_cache", ".hyp*")

RESOLVES = """
    from twisted.internet import reactor
    from twisted.internet.endpoints import clientFromString, serverFromString
    from twisted.internet.interfaces import IStreamClientEndpoint, IStreamServerEndpoint
    import txrdma.interfaces, txrdma.web

    for string in ("smc:127.0.0.1:1", r"smc:\\:\\:1:1:timeout=3"):
        assert IStreamClientEndpoint.providedBy(clientFromString(reactor, string)), string
    for string in ("smc:0", "smc:127.0.0.1:0", "haproxy:smc:0"):
        assert IStreamServerEndpoint.providedBy(serverFromString(reactor, string)), string
    print(txrdma.__file__)
"""

FORGOTTEN = """
    from importlib.metadata import distribution
    from twisted.internet import reactor
    from twisted.internet.endpoints import clientFromString, serverFromString

    clientFromString(reactor, "tcp:127.0.0.1:1")
    for parse in (clientFromString, serverFromString):
        try:
            parse(reactor, "smc:127.0.0.1:1")
        except ValueError as error:
            assert "Unknown endpoint type" in str(error), error
        else:
            raise AssertionError("smc: is still there")
    missing = [str(path) for path in distribution("Twisted").files if not path.locate().exists()]
    assert not missing, missing
"""

STARTS = """
    import subprocess, sys, os

    os.makedirs("site", exist_ok=True)
    twistd = os.path.join(os.path.dirname(sys.executable), "twistd")
    command = [twistd, "-n", "--pidfile=", "web", "--path=site", "--listen", "smc:127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        said = []
        for line in process.stdout:
            said.append(line)
            if "Site starting on" in line:
                process.terminate()
                break
        else:
            raise AssertionError("".join(said))
"""


def run(*command: str | Path, cwd: Path) -> str:
    """What a command prints; its failure is the test's."""
    environment = {
        key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")
    }
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=environment, capture_output=True, text=True, timeout=300
    )
    if done.returncode:
        words = " ".join(map(str, command))
        raise AssertionError(f"{words}\nended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout


class PackagingTests(SynchronousTestCase):
    """Real builds, real environments."""

    _made: ClassVar[Path | None] = None

    def setUp(self) -> None:
        """Build wheel and sdist, and collect what they depend on: once for all tests."""
        if not (CHECKOUT / "pyproject.toml").exists():
            raise SkipTest("not a checkout")
        self.top = Path(self.mktemp()).resolve()
        self.top.mkdir(parents=True)
        if PackagingTests._made is None:
            PackagingTests._made = self.build(self.top)
        self.wheels = PackagingTests._made

    def build(self, top: Path) -> Path:
        """A folder with our wheel, our sdist, and the wheels that installing them needs."""
        source, wheels = self.copy(top), top / "wheels"
        run(sys.executable, "-m", "build", "--no-isolation", "--outdir", wheels, source, cwd=top)
        [wheel] = wheels.glob("*.whl")
        try:
            run(
                *(sys.executable, "-m", "pip", "download", "--quiet", "--dest", wheels),
                *("--prefer-binary", wheel, "setuptools>=77"),
                cwd=top,
            )
        except AssertionError as error:
            raise SkipTest(f"what we depend on can't be had: {error}") from None
        return wheels

    def copy(self, top: Path) -> Path:
        """The checkout, without what was made in it."""
        shutil.copytree(CHECKOUT, top / "source", ignore=shutil.ignore_patterns(*LEFT_OUT))
        return top / "source"

    def environment(self, *what: str | Path) -> Path:
        """An empty environment with that installed; its interpreter."""
        run(sys.executable, "-m", "venv", "--without-pip", self.top / "venv", cwd=self.top)
        python = self.top / "venv" / "bin" / "python"
        self.pip(python, "install", "--no-compile", "--no-index", "--find-links", self.wheels, *what)
        return python

    def pip(self, python: Path, *words: str | Path) -> None:
        run(sys.executable, "-m", "pip", "--quiet", "--python", python, *words, cwd=self.top)

    def script(self, python: Path, program: str) -> str:
        return run(python, "-c", textwrap.dedent(program), cwd=self.top)

    def prove(self, python: Path, home: Path) -> None:
        """It works when installed, and leaves nothing behind."""
        binaries = python.parent
        place = Path(self.script(python, RESOLVES).strip())
        self.assertTrue(place.is_relative_to(home), f"imported from {place}")
        self.assertIn("smc-proxy", run(binaries / "twistd", "--help", cwd=self.top))
        self.assertIn("txrdma", run(binaries / "twistd", "--help-reactors", cwd=self.top))
        self.assertIn("txrdma 0.", run(binaries / "txrdma", "--version", cwd=self.top))
        self.script(python, STARTS)
        self.pip(python, "uninstall", "--yes", "txrdma")
        self.script(python, FORGOTTEN)
        self.assertNotIn("smc-proxy", run(binaries / "twistd", "--help", cwd=self.top))

    def test_wheel(self) -> None:
        """The wheel installs, serves, and goes without a trace."""
        [wheel] = self.wheels.glob("txrdma-*.whl")
        self.prove(self.environment(wheel), self.top / "venv")

    def test_sdist(self) -> None:
        """So does the source distribution."""
        [sdist] = self.wheels.glob("txrdma-*.tar.gz")
        self.prove(self.environment(sdist), self.top / "venv")

    def test_editable(self) -> None:
        """So does an editable install."""
        source = self.copy(self.top) if not (self.top / "source").exists() else self.top / "source"
        self.prove(self.environment("--editable", source), source)
