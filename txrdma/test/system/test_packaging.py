"""
Wheel, sdist and editable install, in an environment that has only the dependencies.

Needs a checkout, and a package index for the dependencies.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import textwrap
import zipfile
from pathlib import Path
from typing import ClassVar

from twisted.trial.unittest import SkipTest, SynchronousTestCase

import txrdma
from txrdma.test.support.namespaces import unshared

CHECKOUT = Path(txrdma.__file__).parent.parent

LEFT_OUT = (".git", ".venv*", "_trial_temp*", "build", "dist", "*.egg-info", "_build", ".*_cache", ".hyp*")

REPOSITORY = "https://example.org/people/txrdma"

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
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "Site starting on" in line:
                process.terminate()
                break
        else:
            raise AssertionError("".join(lines))
"""


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    """Return the output of a command with these environment variables; its failure fails the test."""
    environment = {
        key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")
    } | variables
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=environment, capture_output=True, text=True, timeout=300
    )
    if done.returncode:
        words = " ".join(map(str, command))
        raise AssertionError(f"{words}\nended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout


class PackagingTests(SynchronousTestCase):
    """Real builds, and one real environment; the wheel is built from the sdist."""

    slowBecause = "pip and setuptools take seconds to build the distributions and to install the dependencies"
    _folder: ClassVar[Path | None] = None
    _sdist: ClassVar[Path | None] = None
    _wheel: ClassVar[Path | None] = None
    _python: ClassVar[Path | None] = None
    _installed: ClassVar[tuple[str | Path, ...]] = ()

    def setUp(self) -> None:
        if not (CHECKOUT / "pyproject.toml").exists():
            raise SkipTest("not a checkout")
        if PackagingTests._folder is None:
            PackagingTests._folder = Path(self.mktemp()).resolve()
            self.copy(PackagingTests._folder / "source")
        self.top = PackagingTests._folder

    def copy(self, target: Path) -> None:
        """Copy the checkout to a folder."""
        shutil.copytree(CHECKOUT, target, ignore=shutil.ignore_patterns(*LEFT_OUT))

    def build(self, kind: str, source: Path, folder: Path) -> Path:
        """Build C{sdist} or C{wheel} in a folder, without a network if possible, and return its path."""
        command = (sys.executable, "-m", "build", "--no-isolation", f"--{kind}", "--outdir", folder, source)
        variables = {"SOURCE_DATE_EPOCH": "1700000000", "TXRDMA_REPOSITORY": REPOSITORY}
        run(*unshared(), *command, cwd=self.top, **variables)
        [built] = folder.glob({"sdist": "*.tar.gz", "wheel": "*.whl"}[kind])
        return built

    @property
    def sdist(self) -> Path:
        """Return the source distribution, which is built once."""
        if PackagingTests._sdist is None:
            PackagingTests._sdist = self.build("sdist", self.top / "source", self.top)
        return PackagingTests._sdist

    @property
    def wheel(self) -> Path:
        """Return the wheel, which is built once, from the source distribution."""
        if PackagingTests._wheel is None:
            shutil.unpack_archive(self.sdist, self.top / "unpacked")
            [source] = (self.top / "unpacked").iterdir()
            PackagingTests._wheel = self.build("wheel", source, self.top)
        return PackagingTests._wheel

    def environment(self) -> Path:
        """Return the environment's interpreter, with the wheel and what an editable install needs."""
        if PackagingTests._python is None:
            run(sys.executable, "-m", "venv", "--without-pip", self.top / "venv", cwd=self.top)
            python = self.top / "venv" / "bin" / "python"
            try:
                self.pip(python, "install", "--no-compile", "--prefer-binary", self.wheel, "setuptools>=77")
            except AssertionError as error:
                raise SkipTest(f"the dependencies cannot be installed: {error}") from None
            PackagingTests._python = python
        return PackagingTests._python

    def install(self, *words: str | Path) -> Path:
        """Install this in place of the environment's txrdma; return the interpreter."""
        python = self.environment()
        if PackagingTests._installed != words:
            options = ("--no-compile", "--no-deps", "--no-build-isolation", "--force-reinstall")
            self.pip(python, "install", *options, *words)
            PackagingTests._installed = words
        return python

    @property
    def editable(self) -> tuple[str | Path, ...]:
        return "--editable", self.top / "source"

    def pip(self, python: Path, *words: str | Path) -> None:
        run(sys.executable, "-m", "pip", "--quiet", "--python", python, *words, cwd=self.top)

    def script(self, python: Path, program: str) -> str:
        return run(python, "-c", textwrap.dedent(program), cwd=self.top)

    def assertInstalled(self, python: Path, home: Path) -> None:
        """Assert that Twisted finds its plugins, and that it is imported from this folder."""
        binaries = python.parent
        place = Path(self.script(python, RESOLVES).strip())
        self.assertTrue(place.is_relative_to(home), f"imported from {place}")
        self.assertIn("smc-proxy", run(binaries / "twistd", "--help", cwd=self.top))
        self.assertIn("txrdma", run(binaries / "twistd", "--help-reactors", cwd=self.top))
        version = run(binaries / "txrdma", "--version", cwd=self.top)
        self.assertEqual(version, f"txrdma {txrdma.__version__} (pure Python)\n")

    def assertLeavesNothing(self, python: Path) -> None:
        """Assert that the installation serves, and that nothing remains after it is uninstalled."""
        self.script(python, STARTS)
        self.pip(python, "uninstall", "--yes", "txrdma")
        PackagingTests._installed = ()
        self.script(python, FORGOTTEN)
        self.assertNotIn("smc-proxy", run(python.parent / "twistd", "--help", cwd=self.top))

    def sources(self) -> set[str]:
        """Return the names of the packages' files in the source distribution."""
        with tarfile.open(self.sdist) as archive:
            files = {each.name.partition("/")[2] for each in archive if each.isfile()}
        return {name for name in files if name.startswith(("txrdma/", "twisted/"))}

    def test_contents(self) -> None:
        """The sdist has the tests and their vectors."""
        tests = {name for name in self.sources() if name.startswith("txrdma/test/")}
        self.assertIn("txrdma/test/system/test_packaging.py", tests)
        self.assertTrue(any(name.endswith(".pcap") for name in tests))

    def test_contentsOfWheel(self) -> None:
        """The wheel has all sources that the sdist has, but the tests."""
        with zipfile.ZipFile(self.wheel) as archive:
            installed = {name for name in archive.namelist() if ".dist-info/" not in name}
        sources = {name for name in self.sources() if not name.startswith("txrdma/test/")}
        self.assertEqual(installed, sources)
        self.assertIn("txrdma/testing/__init__.py", installed)

    def test_page(self) -> None:
        """The index gets addresses of the repository, and a README whose links lead there."""
        with zipfile.ZipFile(self.wheel) as archive:
            [name] = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA")]
            metadata = archive.read(name).decode()
        self.assertIn(f"Project-URL: Source, {REPOSITORY}\n", metadata)
        links = re.findall(r"\]\(([^)]+)\)", metadata)
        self.assertGreater(len(links), 15)
        for link in links:
            if link.startswith(REPOSITORY):
                path = re.sub(r"^/(blob|raw)/main/", "", link.removeprefix(REPOSITORY))
                self.assertTrue((CHECKOUT / path.partition("#")[0]).exists(), link)
            else:
                self.assertTrue(link.startswith("https://"), link)
        self.assertNotIn("<picture", metadata)

    def assertReproducible(self, first: Path, kind: str) -> None:
        """Assert that a build in another folder has the same name and bytes."""
        folder = self.top / f"second {kind}"
        self.copy(folder / "source")
        second = self.build(kind, folder / "source", folder)
        self.assertEqual(second.name, first.name)
        self.assertEqual(second.read_bytes(), first.read_bytes())

    def test_reproducibleSource(self) -> None:
        """A second sdist, built in another folder and later, has the same bytes."""
        self.assertReproducible(self.sdist, "sdist")

    def test_reproducibleWheel(self) -> None:
        """A wheel built from the checkout has the same bytes as one built from the sdist."""
        self.assertReproducible(self.wheel, "wheel")

    def test_requirements(self) -> None:
        """An environment without mypyc learns that a compiled wheel needs it."""
        program = "import buildbackend; print(buildbackend.get_requires_for_build_wheel())"
        variables = {"PYTHONPATH": "tools", "TXRDMA_COMPILE": "1"}
        found = run(self.environment(), "-c", program, cwd=self.top / "source", **variables)
        self.assertIn("'mypy>=", found)

    def test_dependencies(self) -> None:
        """The wheel installs with its dependencies alone."""
        python = self.environment()
        version = run(python.parent / "txrdma", "--version", cwd=self.top)
        self.assertEqual(version, f"txrdma {txrdma.__version__} (pure Python)\n")

    def test_editable(self) -> None:
        """An editable install is found by Twisted."""
        self.assertInstalled(self.install(*self.editable), self.top / "source")

    def test_editableRemoved(self) -> None:
        """An editable install serves, and leaves nothing behind."""
        self.assertLeavesNothing(self.install(*self.editable))

    def test_wheel(self) -> None:
        """The installed wheel is found by Twisted."""
        self.assertInstalled(self.install(self.wheel), self.top / "venv")

    def test_wheelRemoved(self) -> None:
        """The installed wheel serves, and leaves nothing behind."""
        self.assertLeavesNothing(self.install(self.wheel))
