"""A Python interpreter for the suites, with the distribution's pyverbs, txrdma and its tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from lab.needs import have, output, Unavailable

DISTRIBUTION = Path("/usr/lib/python3/dist-packages")
SYSTEM_PYTHON = "/usr/bin/python3"


def choose(checkout: Path) -> Path:
    """
    Return the interpreter of C{.venv} if it has the ABI of the distribution's pyverbs.

    Otherwise return that of C{.venv-kernel}, which is created with the distribution's Python if necessary.
    """
    usual = checkout / ".venv" / "bin" / "python"
    if usual.exists() and _fits(usual):
        return usual
    if not _fits(Path(SYSTEM_PYTHON)):
        raise Unavailable(f"pyverbs in {DISTRIBUTION} is not for {SYSTEM_PYTHON}")
    made = checkout / ".venv-kernel"
    python = made / "bin" / "python"
    stamp = made / ".has-test"
    if not stamp.exists() or stamp.stat().st_mtime < (checkout / "pyproject.toml").stat().st_mtime:
        have(lambda: [] if _canMakeEnvironments() else ["python3-venv"])
        print(f"kernel: making {made.name}, for the distribution's pyverbs", flush=True)
        words = [str(checkout / "tools" / "make-venv"), str(made)]
        _run(words, checkout, {**os.environ, "PYTHON": SYSTEM_PYTHON})
        _run([str(checkout / "tools" / "install"), str(made), "-e", ".[test]"], checkout, dict(os.environ))
        stamp.touch()
    return python


def pyverbsOnly(folder: Path) -> Path:
    """Create a folder with only the distribution's pyverbs, for C{PYTHONPATH}."""
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / "pyverbs"
    if not link.is_symlink():
        link.symlink_to(DISTRIBUTION / "pyverbs")
    return folder


def _fits(python: Path) -> bool:
    ask = "import sysconfig; print(sysconfig.get_config_var('EXT_SUFFIX'))"
    suffix = output(python, "-c", ask).strip()
    return (DISTRIBUTION / "pyverbs" / f"device{suffix}").exists()


def _canMakeEnvironments() -> bool:
    words = [SYSTEM_PYTHON, "-c", "import ensurepip, venv"]
    return subprocess.run(words, stderr=subprocess.DEVNULL).returncode == 0


def _run(words: list[str], folder: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(words, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=sys.stdout)
    if done.returncode:
        raise Unavailable(f"{Path(words[0]).name} ended with {done.returncode}")
