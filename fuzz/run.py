"""
Every decoder under atheris, for a bounded time: C{python fuzz/run.py --seconds 60 [NAME ...]}.

Prints how often each was called; the exit status is 1 when one broke a promise, 2 when there is no atheris.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import families, HERE

_EXECUTED = re.compile(r"stat::number_of_executed_units:\s*(\d+)")


def atherisIsThere(install: bool) -> bool:
    """Whether it can be imported, after installing it where that is wanted."""
    if importlib.util.find_spec("atheris") is None and install:
        print("Installing atheris", flush=True)
        quietly = HERE.parent / "tools" / "quietly"
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install"]
        subprocess.run([quietly, *pip, "atheris", "--only-binary", ":all:"], check=False)
        importlib.invalidate_caches()
    return importlib.util.find_spec("atheris") is not None


def targets() -> list[tuple[str, str]]:
    """Family and name of every target."""
    program = "import importlib, sys; print(*importlib.import_module(sys.argv[1]).TARGETS, sep='\\n')"
    found = []
    for family in families():
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(HERE), str(HERE.parent)))}
        done = subprocess.run(
            [sys.executable, "-c", program, family],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(f"{family} can't be imported:\n{done.stderr}")
        found += [(family, name) for name in done.stdout.splitlines()]
    return found


def run(family: str, name: str, seconds: int, found: Path) -> tuple[int, str]:
    """Run one: how often it was called, and what went wrong, or ''."""
    limit = seconds + 60
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(HERE / "harness.py"), family, name, str(seconds), folder]
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=limit)
        except subprocess.TimeoutExpired:
            return 0, f"did not end within {limit} seconds"
        for artifact in Path(folder).glob("*-*"):
            found.mkdir(parents=True, exist_ok=True)
            shutil.copy(artifact, found / f"{family}-{artifact.name}")
    match = _EXECUTED.search(done.stderr)
    executed = int(match[1]) if match else 0
    if done.returncode or not executed:
        return executed, (done.stdout + done.stderr)[-4000:] or f"ended with {done.returncode}"
    return executed, ""


def main() -> int:
    """Divide the time among the decoders; return the exit status."""
    parser = argparse.ArgumentParser(description="Run every decoder under atheris.")
    parser.add_argument("--seconds", type=int, default=60, help="for all together (default: %(default)s)")
    parser.add_argument("--install", action="store_true", help="install atheris with pip when it is missing")
    parser.add_argument(
        "--found", type=Path, default=Path("_fuzz"), help="where inputs go that broke something"
    )
    parser.add_argument("names", nargs="*", help="decoders; all when none is named")
    options = parser.parse_args()
    if not atherisIsThere(options.install):
        version = ".".join(map(str, sys.version_info[:3]))
        print(
            f"atheris is not installed, or not to be had for Python {version} on this platform.",
            file=sys.stderr,
        )
        return 2
    chosen = [target for target in targets() if not options.names or target[1] in options.names]
    if not chosen:
        print("no such decoder", file=sys.stderr)
        return 2
    each = max(1, options.seconds // len(chosen))
    failed = 0
    print(f"{'decoder':20} {'seconds':>7} {'executions':>11}", flush=True)
    for family, name in chosen:
        executed, complaint = run(family, name, each, options.found.absolute())
        print(f"{name:20} {each:7} {executed:11,}  {'FAILED' if complaint else 'ok'}", flush=True)
        if complaint:
            failed += 1
            print(complaint, flush=True)
    print(f"{failed} of {len(chosen)} decoders failed" if failed else f"all {len(chosen)} decoders held")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
